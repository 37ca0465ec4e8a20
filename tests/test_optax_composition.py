"""What composes with Optax's wrappers, what is refused, and that nothing passes silently."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import ClippedSum

PARAMS = {"w": jnp.ones(3), "b": jnp.ones(2)}
CLIPPED = ClippedSum({"w": jnp.full(3, 2.0), "b": jnp.zeros(2)}, 1.0)


def noise(noise_multiplier=1.0):
    return jaxdp.add_gaussian_noise(noise_multiplier, key=jax.random.key(0))


def one_update(tx, updates=CLIPPED):
    return tx.update(updates, tx.init(PARAMS), PARAMS)[0]


def test_named_chain_and_masked_optimizers_after_the_noise_work():
    tx = optax.named_chain(
        ("noise", noise(0.0)),
        ("mean", jaxdp.scale_by_batch_size(4)),
        ("decay", optax.masked(optax.add_decayed_weights(0.1), {"w": True, "b": False})),
    )
    updates = one_update(tx)
    np.testing.assert_allclose(np.asarray(updates["w"]), 0.6, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(updates["b"]), 0.0)


def test_multi_transform_after_the_noise_works():
    tx = optax.chain(
        noise(1.0),
        optax.multi_transform(
            {"train": optax.sgd(1.0), "freeze": optax.set_to_zero()}, {"w": "train", "b": "freeze"}
        ),
    )
    updates = one_update(tx)
    assert np.all(np.asarray(updates["w"]) != -2.0)
    np.testing.assert_array_equal(np.asarray(updates["b"]), 0.0)


def test_multi_steps_after_the_noise_works():
    tx = optax.chain(noise(0.0), optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation())
    state = tx.init(PARAMS)
    first, state = tx.update(CLIPPED, state, PARAMS)
    second, state = tx.update(CLIPPED, state, PARAMS)
    np.testing.assert_array_equal(np.asarray(first["w"]), 0.0)
    np.testing.assert_array_equal(np.asarray(second["w"]), -2.0)


def test_apply_if_finite_after_the_noise_works():
    tx = optax.chain(noise(0.0), optax.apply_if_finite(optax.sgd(1.0), 3))
    np.testing.assert_array_equal(np.asarray(one_update(tx)["w"]), -2.0)


@pytest.mark.parametrize(
    "link",
    [
        noise(),
        jaxdp.add_laplace_noise(1.0, key=jax.random.key(0)),
        jaxdp.clip_per_example(1.0),
    ],
)
def test_masked_clipping_or_noise_is_refused_at_init(link):
    with pytest.raises(ValueError, match="must see every leaf"):
        optax.masked(link, {"w": True, "b": False}).init(PARAMS)
    with pytest.raises(ValueError, match="must see every leaf"):
        optax.multi_transform(
            {"private": link, "public": optax.identity()}, {"w": "private", "b": "public"}
        ).init(PARAMS)


def test_multi_steps_around_the_noise_is_refused():
    chain = optax.chain(noise(), optax.sgd(1.0))
    tx = optax.MultiSteps(chain, 2)
    with pytest.raises(ValueError, match="ClippedSum"):
        tx.update(CLIPPED, tx.init(PARAMS), PARAMS)
    # With raw gradients the noise itself refuses what MultiSteps hands it.
    with pytest.raises(ValueError, match="expects the ClippedSum"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_multi_steps_around_per_example_clipping_is_refused():
    tx = optax.MultiSteps(optax.chain(jaxdp.clip_per_example(1.0), noise(), optax.sgd(1.0)), 2)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), PARAMS)
    with pytest.raises((ValueError, TypeError)):
        tx.update(stacked, tx.init(PARAMS), PARAMS)


def test_apply_if_finite_around_the_noise_is_refused():
    tx = optax.apply_if_finite(optax.chain(noise(), optax.sgd(1.0)), 3)
    with pytest.raises((ValueError, TypeError)):
        tx.update(CLIPPED, tx.init(PARAMS), PARAMS)


def test_forgetting_the_noise_is_refused():
    with pytest.raises(ValueError, match="put add_gaussian_noise"):
        one_update(optax.chain(jaxdp.scale_by_batch_size(4), optax.sgd(1.0)))


def test_injected_noise_multipliers_reach_the_noise():
    factory = optax.inject_hyperparams(
        jaxdp.add_gaussian_noise, static_args=("key", "precompute_steps")
    )
    tx = factory(0.0, key=jax.random.key(0))
    state = tx.init(PARAMS)
    quiet, _ = jax.jit(tx.update)(CLIPPED, state, PARAMS)
    np.testing.assert_array_equal(np.asarray(quiet["w"]), 2.0)
    state.hyperparams["noise_multiplier"] = jnp.asarray(1.0)
    loud, _ = jax.jit(tx.update)(CLIPPED, state, PARAMS)
    assert np.all(np.asarray(loud["w"]) != 2.0)


def test_injecting_into_a_bfloat16_model_does_not_round_the_noise_silently():
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    static = ("key", "precompute_steps")
    tx = optax.inject_hyperparams(jaxdp.add_gaussian_noise, static_args=static)(
        1.1, key=jax.random.key(0)
    )
    with pytest.raises(ValueError, match="hyperparam_dtype"):
        tx.init(params)
    tx = optax.inject_hyperparams(
        jaxdp.add_gaussian_noise, static_args=static, hyperparam_dtype=jnp.float32
    )(1.1, key=jax.random.key(0))
    assert tx.update(CLIPPED, tx.init(params), params)[0]["w"].dtype == jnp.float32


def test_a_whole_private_optimizer_can_have_its_hyperparameters_injected():
    static = ("key", "target_epsilon", "delta", "nesterov", "sampling_probability")
    tx = optax.inject_hyperparams(jaxdp.dp_sgd, static_args=static)(
        learning_rate=0.5,
        noise_multiplier=2.0,
        expected_batch_size=4.0,
        key=jax.random.key(0),
        sampling_probability=0.1,
        target_epsilon=1.0,
        delta=1e-5,
    )
    state = tx.init(PARAMS)
    updates, state = jax.jit(tx.update)(CLIPPED, state, PARAMS)
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    still, state = jax.jit(tx.update)(CLIPPED, state, PARAMS)
    assert np.all(np.asarray(updates["w"]) != 0.0)
    np.testing.assert_array_equal(np.asarray(still["w"]), 0.0)
    assert 0.0 < float(jaxdp.privacy_spent(state)) <= 1.0


def test_a_budget_around_extra_arguments_passes_them_on():
    def init(params):
        return optax.EmptyState()

    def update(updates, state, params=None, *, factor):
        return jax.tree.map(lambda leaf: factor * leaf, updates), state

    inner = optax.chain(noise(0.1), optax.GradientTransformationExtraArgs(init, update))
    tx = jaxdp.with_budget(
        inner, event=jaxdp.accounting.Gaussian(0.1), target_epsilon=1e4, delta=1e-5
    )
    updates, _ = tx.update(CLIPPED, tx.init(PARAMS), PARAMS, factor=0.0)
    np.testing.assert_array_equal(np.asarray(updates["w"]), 0.0)
