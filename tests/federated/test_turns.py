"""A budget that groups spend in turn: whole cycles, and then nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import accounting as acc
from jaxdp.federated import with_budget_in_turns

PARAMS = {"w": jnp.ones(3), "b": jnp.ones(2)}
CLIPPED = jaxdp.ClippedSum({"w": jnp.full(3, 2.0), "b": jnp.zeros(2)}, 1.0)


def transformation(period=2, target_epsilon=4.0, noise_multiplier=2.0):
    chain = optax.chain(
        jaxdp.add_gaussian_noise(noise_multiplier, key=jax.random.key(0)), optax.adam(0.1)
    )
    return with_budget_in_turns(
        chain,
        event=acc.Gaussian(noise_multiplier),
        period=period,
        target_epsilon=target_epsilon,
        delta=1e-5,
    )


def test_it_keeps_the_contract_of_transformations(check_contract):
    # Under vmap and in other programs Adam's quotients round differently.
    check_contract(transformation, CLIPPED, PARAMS, rtol=1e-5)


@pytest.mark.parametrize("period", [1, 3])
def test_every_affordable_cycle_is_finished_and_no_other_begun(period):
    affordable = acc.affordable_steps(acc.Gaussian(2.0), target_epsilon=4.0, delta=1e-5)
    assert affordable == 3
    tx = transformation(period)
    step = jax.jit(tx.update)
    state, moved, exhausted, spent = tx.init(PARAMS), [], [], []
    for _ in range(3 * period + 4):
        updates, state = step(CLIPPED, state, PARAMS)
        moved.append(bool(np.any(updates["w"])))
        exhausted.append(bool(state.exhausted))
        spent.append(float(jaxdp.privacy_spent(state)))
    assert moved == [True] * 3 * period + [False] * 4
    assert exhausted == [False] * (3 * period - 1) + [True] * 5
    # A cycle is paid for in its first round, for whoever takes part first.
    assert all(spent[i] == spent[i - i % period] for i in range(3 * period))
    assert spent[0] >= acc.epsilon(acc.Gaussian(2.0), 1e-5)
    assert spent[-1] <= 4.0
    assert int(state.round) == 3 * period


def test_without_a_single_affordable_round_nothing_is_taken():
    tx = transformation(noise_multiplier=0.0)
    state = tx.init(PARAMS)
    assert bool(state.exhausted)
    updates, state = tx.update(CLIPPED, state, PARAMS)
    assert not np.any(updates["w"])
    with pytest.raises(ValueError, match="period must be an integer >= 1"):
        transformation(period=0)
