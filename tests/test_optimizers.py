"""The private optimizers are the chains that they say they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import ClippedSum

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": jnp.ones(3)}
CLIPPED = ClippedSum({"w": jnp.full((2, 3), 0.5), "b": jnp.full(3, -0.25)}, 1.0)
BUDGET = {"sampling_probability": 0.1, "target_epsilon": 30.0, "delta": 1e-5}


def private(**more):
    return {
        "noise_multiplier": 0.5,
        "expected_batch_size": 8.0,
        "key": jax.random.key(4),
    } | more


OPTIMIZERS = {
    "dp_sgd": lambda **kw: jaxdp.dp_sgd(0.1, **private(**kw)),
    "dp_sgd momentum": lambda **kw: jaxdp.dp_sgd(0.1, momentum=0.9, nesterov=True, **private(**kw)),
    "dp_adam": lambda **kw: jaxdp.dp_adam(0.1, **private(**kw)),
    "dp_adamw": lambda **kw: jaxdp.dp_adamw(0.1, **private(**kw)),
    "dp_adamw_bc": lambda **kw: jaxdp.dp_adamw_bc(0.1, l2_clip_norm=1.0, **private(**kw)),
    "privatize": lambda **kw: jaxdp.privatize(optax.lion(0.1), **private(**kw)),
}
REFERENCES = {
    "dp_sgd": optax.sgd(0.1),
    "dp_sgd momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "dp_adam": optax.adam(0.1),
    "dp_adamw": optax.adamw(0.1),
    "privatize": optax.lion(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_private_optimizers_pass_the_contract(name, check_contract):
    # Optax's arithmetic may be contracted when compiled: a few units in the last place.
    check_contract(OPTIMIZERS[name], CLIPPED, PARAMS, rtol=2e-6)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("budget", [{}, BUDGET])
def test_they_are_the_public_optimizer_on_the_noisy_mean(name, budget):
    ours, reference = OPTIMIZERS[name](**budget), REFERENCES[name]
    noise = jaxdp.add_gaussian_noise(0.5, key=jax.random.key(4))
    state, noise_state, ref_state = ours.init(PARAMS), noise.init(PARAMS), reference.init(PARAMS)
    for _ in range(3):
        updates, state = ours.update(CLIPPED, state, PARAMS)
        noisy, noise_state = noise.update(CLIPPED, noise_state)
        mean = jax.tree.map(lambda leaf: leaf / 8.0, noisy)
        expected, ref_state = reference.update(mean, ref_state, PARAMS)
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)),
            updates,
            expected,
        )


def test_the_corrected_adam_takes_the_known_noise_variance_out():
    tx = jaxdp.dp_adamw_bc(1.0, l2_clip_norm=2.0, weight_decay=0.0, **private(noise_multiplier=4.0))
    plain = jaxdp.add_gaussian_noise(4.0, key=jax.random.key(4))
    clipped = ClippedSum(CLIPPED.value, 2.0)
    noisy, _ = plain.update(clipped, plain.init(PARAMS))
    updates, _ = tx.update(clipped, tx.init(PARAMS), PARAMS)
    mean = np.asarray(noisy["w"], np.float64) / 8.0
    # After one step both moments are the gradient's own: m / sqrt(max(m^2 - (4 * 2 / 8)^2, 1e-8)).
    expected = -mean / np.sqrt(np.maximum(mean**2 - 1.0, 1e-8))
    # m^2 - 1 cancels: float32 keeps it to 2^-22 over its size.
    tolerance = 1e-5 + 2.0**-20 / np.maximum(mean**2 - 1.0, 1e-8)
    assert np.all(np.abs(np.asarray(updates["w"]) / expected - 1.0) < tolerance)


def test_a_noise_schedule_is_accounted_as_it_runs():
    def schedule(step):
        return 1.0 + 0.5 * step

    tx = jaxdp.dp_sgd(1.0, **private(noise_multiplier=schedule, **BUDGET))
    state = tx.init(PARAMS)
    for _ in range(3):
        _, state = tx.update(CLIPPED, state, PARAMS)
    acc = jaxdp.accounting
    run = acc.Composed([acc.PoissonSampled(0.1, acc.Gaussian(s)) for s in (1.0, 1.5, 2.0)])
    spent = float(jaxdp.privacy_spent(state))
    # Two per cent: the grid of orders away from the end of the budget.
    renyi = acc.epsilon(run, delta=1e-5, accountant="rdp")
    assert renyi <= spent <= 1.02 * renyi


@pytest.mark.parametrize("left_out", ["sampling_probability", "target_epsilon", "delta"])
def test_half_a_budget_is_refused(left_out):
    budget = {name: value for name, value in BUDGET.items() if name != left_out}
    with pytest.raises(ValueError, match=f"^{left_out} must be given together"):
        jaxdp.dp_sgd(0.1, **private(**budget))
