import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp

PARAMS = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}


def stacked(batch=5, dtype=np.float32):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.standard_normal((batch, *leaf.shape)), dtype), PARAMS
    )


def assert_close(actual, expected, atol):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=0, atol=atol), actual, expected)


@pytest.mark.parametrize("method", ["clip", "automatic"])
@pytest.mark.parametrize("norms", [{"l2_clip_norm": 1.0}, {"l1_clip_norm": 1.0}])
def test_clip_per_example_keeps_the_contract(check_contract, norms, method):
    # Other programs may fuse a product with a sum: 8 roundings of 2^-24 and to spare.
    check_contract(
        lambda: jaxdp.clip_per_example(**norms, method=method), stacked(), PARAMS, rtol=1e-6
    )


def test_clip_per_example_keeps_the_contract_in_bfloat16(check_contract):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    check_contract(
        lambda: jaxdp.clip_per_example(1.0), stacked(dtype=jnp.bfloat16), params, rtol=1e-6
    )


@pytest.mark.parametrize("method", ["clip", "automatic"])
@pytest.mark.parametrize("norms", [{"l2_clip_norm": 1.0}, {"l1_clip_norm": {"w": 1.0, "b": 2.0}}])
def test_the_link_and_clipped_grad_give_the_same_sum_bit_for_bit(norms, method):
    def loss_fn(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)

    params = {"w": jnp.full((3, 2), 0.3), "b": jnp.array([0.1, -0.2])}
    batch = jnp.asarray(np.random.default_rng(0).standard_normal((20, 3)), jnp.float32)
    grad_fn = jaxdp.clipped_grad(loss_fn, **norms, method=method, strategy="per_example")
    expected = grad_fn(params, batch)
    tx = jaxdp.clip_per_example(**norms, method=method)
    gradients = jax.vmap(jax.grad(loss_fn), in_axes=(None, 0))(params, batch)
    actual, _ = tx.update(gradients, tx.init(params), params)
    # Neither is compiled, so both run the same operations one by one.
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_rows_that_are_not_finite_are_left_out():
    gradients = stacked()
    gradients["b"] = gradients["b"].at[2, 0].set(jnp.nan)
    tx = jaxdp.clip_per_example(1.0)
    without = jax.tree.map(lambda leaf: leaf[np.array([0, 1, 3, 4])], gradients)
    some, _ = tx.update(gradients, tx.init(PARAMS), PARAMS)
    same, _ = tx.update(without, tx.init(PARAMS), PARAMS)
    # Adding a zero in between may change the order of at most 4 additions of numbers <= 1.
    assert_close(some.value, same.value, atol=16 * 2**-24)


def test_an_empty_batch_sums_to_zero():
    tx = jaxdp.clip_per_example(1.0)
    clipped, _ = tx.update(stacked(0), tx.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, clipped.value, PARAMS)


def test_the_classic_chain_is_all_optax():
    tx = optax.chain(
        jaxdp.clip_per_example(1.0),
        jaxdp.add_gaussian_noise(0.0, key=jax.random.key(0)),
        jaxdp.scale_by_batch_size(5),
        optax.sgd(1.0),
    )
    updates, _ = jax.jit(tx.update)(stacked(), tx.init(PARAMS), PARAMS)
    clip = jaxdp.clip_per_example(1.0)
    clipped, _ = clip.update(stacked(), clip.init(PARAMS), PARAMS)
    # Two more roundings of numbers below 1.
    expected = jax.tree.map(lambda leaf: -leaf / 5, clipped.value)
    assert_close(updates, expected, atol=8 * 2**-24)


def test_inject_hyperparams_makes_the_clip_norm_part_of_the_state():
    tx = optax.inject_hyperparams(jaxdp.clip_per_example)(l2_clip_norm=1.0)
    state = tx.init(PARAMS)
    state.hyperparams["l2_clip_norm"] = jnp.asarray(0.25)
    clipped, _ = jax.jit(tx.update)(stacked(), state, PARAMS)
    assert clipped.l2_sensitivity == 0.25
    alone = jax.tree.map(lambda leaf: leaf[:1], stacked())
    clipped, _ = jax.jit(tx.update)(alone, state, PARAMS)
    # Shortened by no more than 3e-5, and never above the norm.
    flat = np.concatenate([np.float64(leaf).ravel() for leaf in jax.tree.leaves(clipped.value)])
    assert 0.25 * (1 - 3e-5) <= np.linalg.norm(flat) <= 0.25


MASK = {"w": True, "b": False}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: optax.masked(tx, MASK),
        lambda tx: optax.multi_transform({"a": tx, "b": optax.identity()}, {"w": "a", "b": "b"}),
    ],
)
def test_masking_leaves_away_is_refused(wrap):
    tx = wrap(jaxdp.clip_per_example(1.0))
    with pytest.raises(ValueError, match="clip_per_example must see every leaf"):
        tx.init(PARAMS)
    masked = {"w": stacked()["w"], "b": optax.MaskedNode()}
    with pytest.raises(ValueError, match="clip_per_example must see every leaf"):
        jaxdp.clip_per_example(1.0).update(masked, optax.EmptyState())


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (jaxdp.ClippedSum(PARAMS, 1.0), "got a ClippedSum: clipped_grad has clipped it already"),
        (PARAMS, r"updates\['w'\] must be of as many examples as updates\['b'\], that is 2"),
        ({"w": stacked()["w"]}, "updates must be of the params' structure"),
        (
            {"w": stacked()["w"], "b": np.zeros((4, 2), np.float32)},
            r"updates\['w'\] must be of as many examples as updates\['b'\], that is 4",
        ),
        (
            {"w": stacked()["w"], "b": np.zeros((5, 3), np.float32)},
            r"updates\['b'\] must be of shape \(5, 2\): .*, got 'shape \(5, 3\)'",
        ),
        (
            {"w": stacked()["w"], "b": np.float32(1.0)},
            r"updates\['b'\] must be an array whose first axis is the example",
        ),
        (
            {"w": stacked()["w"], "b": np.zeros((5, 2), np.int32)},
            r"updates\['b'\] must be a floating-point array, got .*int32",
        ),
    ],
)
def test_updates_that_are_no_stacked_gradients_are_refused(updates, message):
    tx = jaxdp.clip_per_example(1.0)
    with pytest.raises(ValueError, match=message):
        tx.update(updates, tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "exactly one of l2_clip_norm and l1_clip_norm"),
        ((1.0,), {"l1_clip_norm": 1.0}, "exactly one of l2_clip_norm and l1_clip_norm"),
        ((0,), {}, "l2_clip_norm must be a finite number > 0, got 0"),
        ((), {"l1_clip_norm": float("nan")}, "l1_clip_norm must be .*, got nan"),
        ((1.0,), {"method": "none"}, "method must be one of 'clip', 'automatic', got 'none'"),
    ],
)
def test_options_out_of_range_are_refused(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        jaxdp.clip_per_example(*args, **kwargs)


def test_clip_norms_that_do_not_cover_the_parameters_are_refused_at_init():
    with pytest.raises(ValueError, match=r"l2_clip_norm must be .*pytree prefix"):
        jaxdp.clip_per_example({"w": 1.0}).init(PARAMS)
