"""The one-call layer: calibrated, budgeted, reproducible, resumable."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import accounting as acc
from jaxdp._rounding import rounded_down

NUM_EXAMPLES = 400
X = jax.random.normal(jax.random.key(100), (NUM_EXAMPLES, 5))
Y = jnp.sign(X @ jnp.asarray([1.0, -1.0, 0.5, 0.0, 2.0]))
PARAMS = {"w": jnp.zeros(5), "b": jnp.zeros(())}
ARGUMENTS = {
    "target_epsilon": 2.0,
    "delta": 1e-5,
    "num_examples": NUM_EXAMPLES,
    "expected_batch_size": 80,
    "num_steps": 12,
    "l2_clip_norm": 1.0,
}


def loss_fn(params, example):
    x, y = example
    return jax.nn.softplus(-y * (x @ params["w"] + params["b"]))


def dropout_loss_fn(params, example, key):
    x, y = example
    keep = jax.random.bernoulli(key, 0.8, x.shape)
    return loss_fn(params, (x * keep, y))


def sampled_step(private):
    def step(state, key):
        batch = private.sample(key)
        return private.step(state, (X[batch.indices], Y[batch.indices]), batch.is_padding)

    return step


def train(private, num_steps, key=0):
    keys = jax.random.split(jax.random.key(1000 + key), num_steps)
    state = private.init(PARAMS, jax.random.key(key))
    return jax.jit(lambda s, k: jax.lax.scan(sampled_step(private), s, k))(state, keys)


PRIVATE = jaxdp.make_private(loss_fn, optax.sgd(0.5, momentum=0.9), **ARGUMENTS)


def as_data(tree):
    return jax.tree.map(
        lambda leaf: (
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        ),
        tree,
    )


def assert_same_bits(left, right):
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)),
        as_data(left),
        as_data(right),
    )


def test_the_plan_meets_its_target_and_wastes_nothing():
    plan = PRIVATE.plan
    mechanism_delta = plan.delta - plan.overflow_delta
    assert plan.epsilon <= plan.target_epsilon
    # Calibration stops within 1e-6; rounding the multiplier up to float32 costs 1e-7 more.
    assert plan.epsilon >= plan.target_epsilon * (1 - 2e-6)
    assert acc.epsilon(plan.event, delta=mechanism_delta) == plan.epsilon
    assert float(np.float32(plan.noise_multiplier)) == plan.noise_multiplier
    lost = jaxdp.sampling.overflow_probability(
        num_examples=NUM_EXAMPLES,
        sampling_probability=plan.sampling_probability,
        max_batch_size=plan.max_batch_size,
        num_steps=plan.num_steps,
    )
    assert 0.0 < lost <= plan.overflow_delta <= 0.01 * plan.delta


def test_the_plan_prints_as_a_privacy_statement():
    text = str(PRIVATE.plan)
    for words in (
        "one example",
        "add_or_remove_one",
        "Poisson",
        "1e-05",
        rounded_down(PRIVATE.plan.noise_multiplier),
        "exact",
        "12 steps",
        "batch overflow",
    ):
        assert words in text


def test_training_spends_the_budget_and_then_stops():
    state, metrics = train(PRIVATE, 15)
    np.testing.assert_array_equal(metrics.steps_left, [*range(11, -1, -1), 0, 0, 0])
    np.testing.assert_array_equal(metrics.exhausted, [False] * 11 + [True] * 4)
    assert np.all(np.diff(metrics.epsilon[:12]) >= 0)
    assert np.all(np.asarray(metrics.epsilon) <= 2.0)
    assert float(metrics.epsilon[11]) > 1.99
    after_budget, _ = train(PRIVATE, 12)
    assert_same_bits(after_budget.params, state.params)


def test_training_learns():
    private = jaxdp.make_private(
        loss_fn, optax.sgd(0.5, momentum=0.9), **(ARGUMENTS | {"target_epsilon": 8.0})
    )
    state, _ = train(private, 12)
    correct = jnp.sign(X @ state.params["w"] + state.params["b"]) == Y
    assert float(jnp.mean(correct)) > 0.8


def test_the_same_key_is_the_same_run_and_another_key_is_another():
    first, _ = train(PRIVATE, 5)
    again, _ = train(PRIVATE, 5)
    other_state = PRIVATE.init(PARAMS, jax.random.key(1))
    keys = jax.random.split(jax.random.key(1000), 5)
    other, _ = jax.lax.scan(sampled_step(PRIVATE), other_state, keys)
    assert_same_bits(first, again)
    assert not np.any(np.asarray(first.params["w"]) == np.asarray(other.params["w"]))


def test_two_fits_of_one_object_with_two_seeds_do_not_share_noise():
    empty = (X[:4], Y[:4])
    nothing = jnp.ones(4, bool)
    steps = [
        PRIVATE.step(PRIVATE.init(PARAMS, jax.random.key(seed)), empty, nothing)[0].params["w"]
        for seed in (0, 1)
    ]
    assert not np.any(np.asarray(steps[0]) == np.asarray(steps[1]))


def test_a_run_resumed_from_a_checkpoint_equals_the_uninterrupted_one():
    keys = jax.random.split(jax.random.key(7), 14)
    step = jax.jit(sampled_step(PRIVATE))
    state = PRIVATE.init(PARAMS, jax.random.key(3))
    for key in keys:
        state, _ = step(state, key)
    half = PRIVATE.init(PARAMS, jax.random.key(3))
    for key in keys[:6]:
        half, _ = step(half, key)
    leaves, treedef = jax.tree.flatten(half)
    stored = [
        (str(jax.random.key_impl(leaf)), np.asarray(jax.random.key_data(leaf)))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else (None, np.asarray(leaf))
        for leaf in leaves
    ]
    restored = jax.tree.unflatten(
        treedef,
        [
            jnp.asarray(data) if kind is None else jax.random.wrap_key_data(data, impl=kind)
            for kind, data in stored
        ],
    )
    for key in keys[6:]:
        restored, _ = step(restored, key)
    assert_same_bits(state, restored)


def test_an_empty_batch_is_a_step_of_pure_noise():
    state = PRIVATE.init(PARAMS, jax.random.key(0))
    batch = (X[:8].at[0].set(jnp.nan), Y[:8])
    state, metrics = jax.jit(PRIVATE.step)(state, batch, jnp.ones(8, bool))
    assert float(metrics.loss) == 0.0
    assert float(metrics.clipped_fraction) == 0.0
    assert int(metrics.steps_left) == 11
    moved = np.asarray(state.params["w"])
    assert np.all(np.isfinite(moved))
    assert np.all(moved != 0.0)


def test_a_step_is_clip_noise_and_optimizer_by_hand():
    plan = PRIVATE.plan
    key = jax.random.key(9)
    batch = (X[:30], Y[:30])
    state, metrics = PRIVATE.step(PRIVATE.init(PARAMS, key), batch)
    grads = [jax.grad(loss_fn)(PARAMS, (X[i], Y[i])) for i in range(30)]
    norms = [np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(grad))) for grad in grads]
    noise = jaxdp.noise.gaussian(jax.random.fold_in(key, 0), 0, PARAMS)
    for name in PARAMS:
        total = sum(
            np.asarray(grad[name], np.float64) * min(1.0, 1.0 / norm)
            for grad, norm in zip(grads, norms, strict=True)
        )
        expected = -0.5 * (total + plan.noise_multiplier * np.asarray(noise[name])) / 80
        np.testing.assert_allclose(np.asarray(state.params[name]), expected, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(float(metrics.clipped_fraction), np.mean(np.array(norms) > 1.0))


def test_full_batches_use_the_exact_gaussian_accountant():
    private = jaxdp.make_private(
        loss_fn, optax.sgd(0.5), **(ARGUMENTS | {"expected_batch_size": NUM_EXAMPLES})
    )
    plan = private.plan
    expected = np.sqrt(12) * jaxdp.mechanisms.gaussian.stddev(epsilon=2.0, delta=1e-5)
    np.testing.assert_allclose(plan.noise_multiplier, expected, rtol=1e-6)
    assert plan.max_batch_size == NUM_EXAMPLES
    assert plan.overflow_delta == 0.0
    _, metrics = train(private, 13)
    np.testing.assert_array_equal(metrics.exhausted, [False] * 11 + [True] * 2)


def test_per_example_keys_reach_the_loss_and_change_every_step():
    private = jaxdp.make_private(
        dropout_loss_fn,
        optax.sgd(0.5),
        **(ARGUMENTS | {"target_epsilon": 50.0}),
        loss_takes_key=True,
        microbatch_size=7,
    )
    batch = (X[:30], Y[:30])
    state = private.init(PARAMS, jax.random.key(0))._replace(
        params={"w": jnp.full(5, 0.1), "b": jnp.zeros(())}
    )
    _, first = private.step(state, batch)
    later = state._replace(opt_state=state.opt_state._replace(step=state.opt_state.step + 1))
    _, second = private.step(later, batch)
    assert float(first.loss) != float(second.loss)


def test_steps_can_be_mapped_over_seeds():
    keys = jax.random.split(jax.random.key(0), 3)
    copies = [jax.random.clone(key) for key in keys]
    batch = (X[:20], Y[:20])

    def run(key):
        return PRIVATE.step(PRIVATE.init(PARAMS, key), batch)[0].params["w"]

    mapped = jax.vmap(run)(keys)
    alone = jnp.stack([run(key) for key in copies])
    # Batched matrix products may be summed in another order.
    np.testing.assert_allclose(np.asarray(mapped), np.asarray(alone), rtol=1e-5, atol=1e-7)


def test_a_batch_size_that_does_not_divide_the_data_set_counts_whole_steps():
    # q = 1/75: three epochs are 225 steps, whatever floating point makes of 3 / q.
    private = jaxdp.make_private(
        loss_fn,
        optax.sgd(0.5),
        **(ARGUMENTS | {"num_examples": 75, "expected_batch_size": 1, "num_steps": 225}),
    )
    assert private.plan.num_steps == 225
    assert (
        acc.affordable_steps(
            acc.PoissonSampled(1 / 75, acc.Gaussian(private.plan.noise_multiplier)),
            target_epsilon=2.0,
            delta=private.plan.delta - private.plan.overflow_delta,
        )
        == 225
    )


def test_a_delta_of_one_over_the_number_of_examples_is_called_large():
    assert "NOT SMALL" not in str(PRIVATE.plan)
    large = PRIVATE.plan._replace(delta=1.0 / PRIVATE.plan.num_examples)
    assert "NOT SMALL" in str(large)


def reset_loss_fn(params, example, *, rng):
    return loss_fn(params, example)


def loss_of_two(params, x, y):
    return loss_fn(params, (x, y))


# (loss, whether it is given a key, what the message says)
LOSSES = [
    (dropout_loss_fn, False, ["loss_takes_key=True", "missing a required argument: 'key'"]),
    (reset_loss_fn, False, ["(params, example)", "'rng'"]),
    (loss_of_two, False, ["one pytree such as (x, y)", "loss_of_two(params, x, y)", "'y'"]),
    (lambda params: 0.0, False, ["(params, example)", "too many positional arguments"]),
    (loss_fn, True, ["loss_takes_key=False", "unexpected keyword argument 'key'"]),
    (loss_of_two, True, ["(params, example, key)", "one pytree such as (x, y)"]),
]


@pytest.mark.parametrize(("loss", "takes_key", "words"), LOSSES)
def test_a_loss_of_other_arguments_is_refused_by_name(loss, takes_key, words):
    private = jaxdp.make_private(loss, optax.sgd(0.5), loss_takes_key=takes_key, **ARGUMENTS)
    state = private.init(PARAMS, jax.random.key(0))
    with pytest.raises(ValueError, match=r"^loss_fn must be a function") as refused:
        jax.jit(private.step)(state, (X[:4], Y[:4]))
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_type_error_of_the_loss_itself_stays_what_it_is():
    private = jaxdp.make_private(lambda p, e: loss_of_two(p, e), optax.sgd(0.5), **ARGUMENTS)
    with pytest.raises(TypeError, match="loss_of_two"):
        private.step(private.init(PARAMS, jax.random.key(0)), (X[:4], Y[:4]))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda x: x, r"scalar for each example, got 'float32\[5\]'"),
        (lambda x: jnp.int32(1), "real floating-point scalar"),
        (lambda x: (jnp.sum(x), x), "the loss alone"),
    ],
)
def test_a_loss_that_returns_something_else_is_refused(output, words):
    private = jaxdp.make_private(lambda p, e: output(p["w"] * e[0]), optax.sgd(0.5), **ARGUMENTS)
    with pytest.raises(ValueError, match=rf"^loss_fn's output must be .*{words}"):
        private.step(private.init(PARAMS, jax.random.key(0)), (X[:4], Y[:4]))


class Module:
    """A model object, as in Flax: no pytree."""


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (Module(), "params must be a floating-point array.* model.init returns"),
        ({"w": X, "act": jax.nn.relu}, r"params\['act'\] must be .*eqx.partition.*got <"),
        ({"w": jnp.arange(3)}, r"params\['w'\] must be .*int32"),
        (jax.random.key(0), "params must be .*got '.*of dtype key"),
        (None, "params must be a pytree with at least one .*got None"),
    ],
)
def test_what_cannot_be_trained_is_refused_when_the_run_begins(params, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        PRIVATE.init(params, jax.random.key(0))


def test_an_optimizer_is_one_and_not_the_function_that_makes_it():
    for wrong in (optax.sgd, 0.1):
        with pytest.raises(ValueError, match=r"^optimizer must be .* such as optax\.sgd"):
            jaxdp.make_private(loss_fn, wrong, **ARGUMENTS)


def test_a_step_says_what_it_takes():
    state, batch = PRIVATE.init(PARAMS, jax.random.key(0)), (X[:4], Y[:4])
    with pytest.raises(ValueError, match=r"^state must be the PrivateState .* got 'dict'"):
        PRIVATE.step(PARAMS, batch)
    with pytest.raises(ValueError, match=r"^batch must be the examples at its indices"):
        PRIVATE.step(state, PRIVATE.sample(jax.random.key(1)))
    with pytest.raises(ValueError, match=r"^is_padding must be a bool array .*as a tuple"):
        PRIVATE.step(state, *batch)
