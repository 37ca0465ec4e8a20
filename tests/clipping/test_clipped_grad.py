import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.clipping import PerExample

# The largest loss against exact clipping that clipped_grad allows.
LOSS = 3e-5


def linear(w, x):
    """A loss whose per-example gradient is the example itself."""
    return sum(jnp.vdot(leaf, x[name]) for name, leaf in w.items())


def rows(*shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def mlp_params():
    shapes = {"w1": (5, 7), "b1": (7,), "w2": (7, 3), "b2": (3,)}
    return {name: rows(*shape, seed=i, scale=0.5) for i, (name, shape) in enumerate(shapes.items())}


def mlp_loss(params, x, label):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return jax.nn.logsumexp(logits) - logits[label]


def mlp_gradient_in_float64(params, x, label):
    """Back-propagation by hand, one example at a time."""
    p = {name: leaf.astype(np.float64) for name, leaf in params.items()}
    hidden = np.tanh(x @ p["w1"] + p["b1"])
    logits = hidden @ p["w2"] + p["b2"]
    softmax = np.exp(logits - logits.max())
    softmax /= softmax.sum()
    loss = -np.log(softmax[label])
    at_logits = softmax - np.eye(3)[label]
    at_hidden = (p["w2"] @ at_logits) * (1 - hidden**2)
    gradient = {
        "w1": np.outer(x, at_hidden),
        "b1": at_hidden,
        "w2": np.outer(hidden, at_logits),
        "b2": at_logits,
    }
    return loss, gradient


def length(tree, order=2):
    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
    return np.linalg.norm(flat, order)


@pytest.fixture(scope="module")
def mlp():
    params, xs = mlp_params(), rows(20, 5, seed=9, scale=2.0)
    labels = np.arange(20) % 3
    reference = [
        mlp_gradient_in_float64(params, *example) for example in zip(xs, labels, strict=True)
    ]
    return params, (xs, labels), reference


def weighted_sum(gradients, weights):
    return jax.tree.map(lambda *g: sum(w * x for w, x in zip(weights, g, strict=True)), *gradients)


def assert_sums_agree(actual, expected, num_examples, threshold):
    # Each contribution is right to 3e-5 of the threshold by the guarantee, and its
    # gradient was computed in float32, which is far closer.
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=0, atol=LOSS * threshold * num_examples),
        actual,
        expected,
    )


@pytest.mark.parametrize("method", ["clip", "automatic"])
@pytest.mark.parametrize("order", [1, 2])
def test_the_sum_equals_a_loop_over_examples_in_float64(mlp, order, method):
    params, batch, reference = mlp
    losses, gradients = zip(*reference, strict=True)
    norms = np.array([length(g, order) for g in gradients])
    threshold = float(np.median(norms))
    weights = np.minimum(1, threshold / norms) if method == "clip" else threshold / (norms + 0.01)
    grad_fn = jaxdp.clipped_grad(
        mlp_loss, **{f"l{order}_clip_norm": threshold}, method=method, return_per_example=True
    )
    clipped, per_example = jax.jit(grad_fn)(params, *batch)
    assert_sums_agree(clipped.value, weighted_sum(gradients, weights), 20, threshold)
    # The norm is an upper bound within 3e-5; float32 gradients and losses are right to 1e-5.
    np.testing.assert_allclose(per_example.norm, norms, rtol=LOSS + 1e-5)
    np.testing.assert_allclose(per_example.loss, losses, rtol=1e-5, atol=1e-6)
    assert clipped.l2_sensitivity == np.float32(threshold)
    assert clipped.l1_sensitivity == (np.float32(threshold) if order == 1 else None)


def test_layers_clipped_by_themselves_have_the_sensitivity_of_all_together(mlp):
    params, batch, reference = mlp
    grouped = {"first": {k: params[k] for k in ("w1", "b1")}, "last": [params["w2"], params["b2"]]}

    def loss_fn(params, *example):
        w2, b2 = params["last"]
        return mlp_loss({**params["first"], "w2": w2, "b2": b2}, *example)

    thresholds = {"first": 0.3, "last": 0.5}
    clipped, per_example = jaxdp.clipped_grad(
        loss_fn, l2_clip_norm=thresholds, return_per_example=True
    )(grouped, *batch)
    for group, names in {"first": ["w1", "b1"], "last": ["w2", "b2"]}.items():
        parts = [{name: g[name] for name in names} for _, g in reference]
        norms = np.array([length(part) for part in parts])
        expected = weighted_sum(parts, np.minimum(1, thresholds[group] / norms))
        actual = clipped.value[group]
        actual = actual if group == "first" else dict(zip(names, actual, strict=True))
        assert_sums_agree(actual, expected, 20, thresholds[group])
        np.testing.assert_allclose(per_example.norm[group], norms, rtol=LOSS + 1e-5)
    truth = np.hypot(0.3, 0.5)
    assert truth <= clipped.l2_sensitivity <= truth * (1 + LOSS)


def test_a_traced_clip_norm_gives_the_same_sum_as_a_number(mlp):
    params, batch, _ = mlp

    @jax.jit
    def dynamic(threshold):
        return jaxdp.clipped_grad(mlp_loss, l2_clip_norm=threshold)(params, *batch)

    for threshold in (0.1, 1.0):
        static = jax.jit(jaxdp.clipped_grad(mlp_loss, l2_clip_norm=threshold))(params, *batch)
        traced = dynamic(threshold)
        assert traced.l2_sensitivity == static.l2_sensitivity
        # One rounding more or less in each contribution, and in each of 19 additions.
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=25 * 2**-23 * 20),
            traced.value,
            static.value,
        )


def test_examples_that_are_not_finite_contribute_exactly_zero():
    # CASES 16: norms 1, NaN, inf.
    batch = {"w": np.float32([[0.6, 0.8], [np.nan, 1.0], [np.inf, 1.0]])}
    params = {"w": jnp.zeros(2)}
    grad_fn = jaxdp.clipped_grad(linear, l2_clip_norm=0.5, return_per_example=True)
    clipped, per_example = grad_fn(params, batch)
    alone, _ = grad_fn(params, {"w": batch["w"][:1]})
    np.testing.assert_array_equal(clipped.value["w"], alone.value["w"])
    np.testing.assert_array_equal(np.isfinite(per_example.norm), [True, False, False])


@pytest.mark.parametrize("method", ["clip", "automatic"])
@pytest.mark.parametrize("threshold", [1e-30, 1.0, 1e30])
def test_zero_gradients_and_extreme_thresholds_behave(threshold, method):
    # CASES 19.
    grad_fn = jaxdp.clipped_grad(linear, l2_clip_norm=threshold, method=method)
    params = {"w": jnp.zeros(2)}
    zero = grad_fn(params, {"w": jnp.zeros((3, 2))})
    np.testing.assert_array_equal(zero.value["w"], 0)
    some = grad_fn(params, {"w": jnp.array([[3.0, 4.0]])})
    expected = min(5.0, threshold) if method == "clip" else threshold * 5 / 5.01
    np.testing.assert_allclose(length(some.value), expected, rtol=LOSS)


def test_a_parameter_used_twice_has_the_norm_of_the_sum_of_its_uses():
    # CASES 17: w x + w x at x = 3 has the gradient 6.
    grad_fn = jaxdp.clipped_grad(
        lambda w, x: w * x + w * x, l2_clip_norm=100.0, return_per_example=True
    )
    clipped, per_example = grad_fn(jnp.float32(1.0), jnp.array([3.0]))
    assert clipped.value == 6
    np.testing.assert_allclose(per_example.norm, [6.0], rtol=LOSS)


def test_low_rank_adapters_train_while_frozen_parameters_stay_outside():
    # CASES 18: frozen weights are closed over; they have no gradient and no share of the norm.
    frozen = rows(6, 6)
    adapter = {"a": rows(6, 2, seed=1), "b": np.zeros((2, 6), np.float32)}

    def loss_fn(adapter, x):
        return jnp.sum(jnp.square((frozen + adapter["a"] @ adapter["b"]).T @ x))

    clipped = jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0)(adapter, rows(4, 6, seed=2))
    assert jax.tree.structure(clipped.value) == jax.tree.structure(adapter)
    assert length(clipped.value["b"]) > 0.1


def test_identical_copies_averaged_inside_an_example_change_nothing():
    # CASES 20, with 4 copies, so that the mean is exact.
    batch = rows(6, 5)
    copies = np.repeat(batch[:, None], 4, axis=1)
    params = {"w": jnp.zeros(5)}

    def augmented(params, views):
        return jnp.mean(jax.vmap(lambda x: linear(params, {"w": x}))(views))

    once = jaxdp.clipped_grad(linear, l2_clip_norm=1.0)(params, {"w": batch})
    many = jaxdp.clipped_grad(augmented, l2_clip_norm=1.0)(params, copies)
    np.testing.assert_allclose(many.value["w"], once.value["w"], rtol=0, atol=6 * 2**-22)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_low_precision_parameters_give_float32_sums_that_keep_every_example(dtype):
    # CASES 21: in float16 the squared norm 300^2 * 8 overflows.
    batch = {"w": jnp.full((500, 8), 300, dtype)}
    params = {"w": jnp.zeros(8, dtype)}
    clipped, per_example = jaxdp.clipped_grad(linear, l2_clip_norm=1.0, return_per_example=True)(
        params, batch
    )
    assert clipped.value["w"].dtype == per_example.norm.dtype == jnp.float32
    np.testing.assert_allclose(per_example.norm, 300 * 8**0.5, rtol=LOSS)
    # In bfloat16 a running sum would have stopped growing at 256 / 8 ** 0.5. The sum of
    # 500 equal numbers is wrong by at most 500 roundings of 6e-8.
    np.testing.assert_allclose(clipped.value["w"], 500 / 8**0.5, rtol=2 * LOSS)


@pytest.mark.parametrize("microbatch_size", [None, 1, 3])
def test_an_empty_batch_sums_to_zero(microbatch_size):
    grad_fn = jaxdp.clipped_grad(
        mlp_loss,
        l2_clip_norm=1.0,
        microbatch_size=microbatch_size,
        return_per_example=True,
    )
    clipped, per_example = grad_fn(mlp_params(), jnp.zeros((0, 5)), jnp.zeros(0, int))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(clipped.value))
    assert clipped.l2_sensitivity == 1
    assert per_example.loss.shape == per_example.norm.shape == (0,)


class Layer(NamedTuple):
    w: jax.Array
    b: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    layers: list[Layer]
    scale: jax.Array


def test_parameters_may_be_any_registered_pytree_with_none_and_empty_leaves():
    params = Model([Layer(jnp.ones((2, 2)), None), Layer(jnp.ones((0, 3)), jnp.ones(2))], 1.0)

    def loss_fn(model, x):
        hidden = model.layers[0].w @ x["in"] + model.layers[1].b
        return model.scale * jnp.sum(hidden) + jnp.sum(model.layers[1].w)

    norms = Model([Layer(1.0, None), 1.0], 1.0)
    batch = {"in": jnp.ones((3, 2)), "unused": None}
    for threshold in (1.0, norms):
        clipped = jaxdp.clipped_grad(loss_fn, l2_clip_norm=threshold)(params, batch)
        assert jax.tree.structure(clipped.value) == jax.tree.structure(params)
        assert jax.tree.map(jnp.shape, clipped.value) == jax.tree.map(jnp.shape, params)


def test_extra_outputs_come_in_the_documented_order():
    def loss_fn(w, x):
        return w * x, {"double": 2 * x, "pair": jnp.stack([x, x])}

    batch = jnp.arange(5.0)

    def make(**options):
        return jaxdp.clipped_grad(loss_fn, l2_clip_norm=9.0, has_aux=True, **options)

    clipped, aux = make()(1.0, batch)
    assert clipped.value == 10
    np.testing.assert_array_equal(aux["double"], 2 * batch)
    assert aux["pair"].shape == (5, 2)
    _, aux, per_example = make(return_per_example=True, microbatch_size=2)(1.0, batch)
    np.testing.assert_array_equal(aux["double"], 2 * batch)
    assert isinstance(per_example, PerExample)
    np.testing.assert_array_equal(per_example.loss, batch)


def test_padding_is_reported_as_zero_even_where_its_loss_is_not_a_number():
    grad_fn = jaxdp.clipped_grad(
        lambda w, x: w * jnp.log(x), l2_clip_norm=1.0, return_per_example=True
    )
    is_padding = np.array([False, True, True])
    clipped, per_example = grad_fn(1.0, jnp.array([2.0, 0.0, -1.0]), is_padding=is_padding)
    np.testing.assert_allclose(clipped.value, np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(per_example.loss)[1:], 0)
    np.testing.assert_array_equal(np.asarray(per_example.norm)[1:], 0)


@pytest.mark.parametrize("microbatch_size", [None, 1, 4, 5, 100])
def test_an_example_draws_from_its_own_key_however_the_batch_is_cut(microbatch_size):
    def loss_fn(w, x, *, key):
        drawn = jax.random.uniform(key)
        return w * x * drawn, drawn

    grad_fn = jaxdp.clipped_grad(
        loss_fn, l2_clip_norm=10.0, has_aux=True, microbatch_size=microbatch_size
    )
    _, drawn = jax.jit(grad_fn)(1.0, jnp.ones(10), key=jax.random.key(3))
    keys = [jax.random.fold_in(jax.random.key(3), i) for i in range(10)]
    np.testing.assert_array_equal(drawn, [jax.random.uniform(key) for key in keys])


def test_examples_may_carry_typed_keys_of_their_own():
    keys = jax.random.split(jax.random.key(0), 5)
    grad_fn = jaxdp.clipped_grad(
        lambda w, key: w * jax.random.uniform(key), l2_clip_norm=10.0, microbatch_size=2
    )
    assert 0 < grad_fn(1.0, keys).value < 5


def test_the_gradient_is_a_pure_function_under_vmap_and_scan():
    batch = rows(3, 4, 2)
    grad_fn = jaxdp.clipped_grad(linear, l2_clip_norm=1.0, microbatch_size=2)

    def step(x):
        return grad_fn({"w": jnp.zeros(2)}, {"w": x})

    one_by_one = [step(x).value["w"] for x in batch]
    vmapped = jax.vmap(step)(batch)
    _, scanned = jax.lax.scan(lambda carry, x: (carry, step(x)), None, batch)
    # Up to a rounding for each of 4 additions of numbers below 4.
    np.testing.assert_allclose(vmapped.value["w"], one_by_one, rtol=0, atol=4 * 2**-22)
    np.testing.assert_allclose(scanned.value["w"], one_by_one, rtol=0, atol=4 * 2**-22)
    np.testing.assert_array_equal(scanned.l2_sensitivity, 1.0)
