"""Attacks on the guarantee that once worked."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import ClippedSum
from jaxdp import accounting as acc


@pytest.mark.parametrize("clip_norm", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    "meddle",
    [
        lambda c: jax.tree.map(jnp.add, c, c),
        lambda c: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]).sum(0).astype(leaf.dtype), c),
        lambda c: jax.tree.map(lambda leaf: 2 * leaf, c),
        lambda c: jax.tree.map(jnp.sign, c),
        lambda c: jax.tree.map(lambda leaf: jnp.clip(leaf, 0, 1), c),
    ],
)
def test_integer_arithmetic_on_a_clipped_sum_never_lowers_the_noise(clip_norm, meddle):
    clipped = meddle(ClippedSum(jnp.zeros(50), clip_norm))
    tx = jaxdp.add_gaussian_noise(1.0, key=jax.random.key(0))
    noisy, _ = tx.update(clipped, tx.init(clipped.value))
    assert np.all(np.isnan(np.asarray(noisy)))


def test_noise_does_not_meet_the_keys_that_a_caller_splits_from_the_same_root():
    root = jax.random.key(0)
    chain, subkeys = jax.random.clone(root), []
    for _ in range(6):
        chain, subkey = jax.random.split(chain)
        subkeys.append(np.asarray(jax.random.normal(subkey, (64,))).tobytes())
    trees = [jnp.zeros(64), jnp.zeros(64), jnp.zeros(64)]
    for key in (root, jax.random.fold_in(root, 0)):
        for step in range(3):
            for leaf in jaxdp.noise.gaussian(key, step, trees):
                assert np.asarray(leaf).tobytes() not in subkeys


def test_a_batch_without_its_mask_or_beyond_its_capacity_is_refused():
    private = jaxdp.make_private(
        lambda params, x: jnp.sum(params * x),
        optax.sgd(0.1),
        target_epsilon=1.0,
        delta=1e-5,
        num_examples=1000,
        expected_batch_size=50,
        num_steps=5,
        l2_clip_norm=1.0,
    )
    state = private.init(jnp.zeros(2), jax.random.key(0))
    capacity = private.plan.max_batch_size
    with pytest.raises(ValueError, match="is_padding must be given"):
        private.step(state, jnp.zeros((capacity, 2)))
    with pytest.raises(ValueError, match="max_batch_size"):
        private.step(state, jnp.zeros((capacity + 1, 2)), jnp.zeros(capacity + 1, bool))


def test_a_resumed_state_pays_for_what_a_costlier_event_spent():
    def chain(noise_multiplier, target_epsilon=3.0):
        return jaxdp.dp_sgd(
            0.1,
            noise_multiplier=noise_multiplier,
            expected_batch_size=10,
            key=jax.random.key(0),
            sampling_probability=0.2,
            target_epsilon=target_epsilon,
            delta=1e-5,
        )

    params = jnp.zeros(2)
    clipped = ClippedSum(params, 1.0)

    def run(tx, state, length):
        body = lambda s, _: (tx.update(clipped, s, params)[1], None)  # noqa: E731
        return jax.jit(lambda s: jax.lax.scan(body, s, length=length)[0])(state)

    first = run(chain(1.0), chain(1.0).init(params), 10)
    spent = int(first.step)
    after = run(chain(3.0), first._replace(exhausted=jnp.zeros((), bool)), 300)
    event = acc.PoissonSampled(0.2, acc.Gaussian(1.0)) * spent
    event += acc.PoissonSampled(0.2, acc.Gaussian(3.0)) * (int(after.step) - spent)
    assert acc.epsilon(event, 1e-5) <= 3.0
    other_target = run(chain(1.0, 8.0), first._replace(exhausted=jnp.zeros((), bool)), 3)
    assert int(other_target.step) == spent
