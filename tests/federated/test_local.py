"""Local privacy: what each client sends is private by itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import accounting as acc
from jaxdp import federated
from jaxdp.federated import ClientUpdate, _streams

N, C, Z = 8, 0.5, 1.5
COHORTS = federated.GroupCohorts(N, min_separation=1)
PLAN = federated.LocalPlan(Z, C, COHORTS, num_rounds=3, delta=1e-5)
RNG = np.random.default_rng(8)
SENT = RNG.normal(size=(N, 3)).astype(np.float32)
SENT[2] = np.nan


def send(params, client, key):
    del params, key
    row = client.take(jnp.zeros(1, jnp.int32))[0]
    return ClientUpdate(row, row[0], client.size)


def first_round(sizes=(1,) * N, plan=PLAN, chunk=1):
    clients = [np.repeat(row[None], n, 0) for row, n in zip(SENT, sizes, strict=True)]
    federation = federated.from_clients(clients)
    fed = federated.make_local_round(send, optax.sgd(1.0), plan, client_chunk_size=chunk)
    carry = fed.init(jnp.zeros(3), jax.random.key(2))
    return jax.jit(lambda f, c: fed.round(c, fed.sample(f, c)))(federation, carry)


def noise_of(client_id):
    key = _streams.of_round(jax.random.key(2), _streams.LOCAL_NOISE, 0)
    return np.asarray(jaxdp.noise.gaussian(key, client_id, jnp.zeros(3)))


def expected_mean(silent):
    total = np.zeros(3)
    for client in range(N):
        row = SENT[client].astype(np.float64)
        if client not in silent:
            total += row * min(1, C / np.linalg.norm(row))
        total += 2 * C * Z * noise_of(client)
    return total / N


@pytest.mark.parametrize("chunk", [1, 3])
def test_every_client_sends_its_clipped_delta_and_noise_of_its_own(chunk):
    carry, _ = first_round(chunk=chunk)
    # Norms are rounded up by 3e-5; float32 sums of numbers near 2.
    np.testing.assert_allclose(carry.params, expected_mean({2}), rtol=0, atol=N * C * 3e-5)


def test_a_client_without_data_or_with_a_bad_delta_sends_noise_all_the_same():
    carry, metrics = first_round(sizes=(1, 0, 1, 1, 1, 1, 1, 1))
    np.testing.assert_allclose(carry.params, expected_mean({1, 2}), rtol=0, atol=N * C * 3e-5)
    assert int(metrics.num_clients) == N


def test_the_local_epsilon_counts_participations_and_nothing_from_sampling():
    assert PLAN.event == acc.Repeated(acc.Gaussian(Z), 3)
    sampled = federated.PoissonCohorts(N, expected_cohort_size=1, max_cohort_size=N)
    assert federated.LocalPlan(Z, C, sampled, num_rounds=3, delta=1e-5).epsilon == PLAN.epsilon
    groups = federated.GroupCohorts(N, min_separation=4)
    apart = federated.LocalPlan(Z, C, groups, num_rounds=3, delta=1e-5)
    assert apart.epsilon == acc.epsilon(acc.Gaussian(Z), 1e-5)
    _, metrics = first_round()
    one = acc.epsilon(acc.Gaussian(Z), 1e-5)
    # By Renyi DP in the program: above the exact one, by less than a third.
    assert one <= float(metrics.epsilon) <= 1.33 * one


def test_padding_sends_nothing_and_an_empty_cohort_moves_nothing():
    nobody = federated.PoissonCohorts(N, expected_cohort_size=1e-6, max_cohort_size=3)
    plan = federated.LocalPlan(Z, C, nobody, num_rounds=1, delta=1e-5)
    carry, metrics = first_round(plan=plan)
    assert not np.any(carry.params)
    assert int(metrics.num_clients) == 0


def test_bad_plans_and_cohorts_are_refused():
    with pytest.raises(ValueError, match="plan must be a LocalPlan"):
        federated.make_local_round(send, optax.sgd(1.0), 3)
    for match, changed in (
        ("noise_multiplier must be a finite number >= 0", {"noise_multiplier": -1.0}),
        ("l2_clip_norm must be a finite number > 0", {"l2_clip_norm": 0.0}),
        ("num_rounds must be an integer >= 1", {"num_rounds": 2.5}),
        ("num_rounds must be an integer >= 1", {"num_rounds": 0}),
        ("delta must be a number in", {"delta": 1.0}),
        ("cohorts must be a sampler", {"cohorts": 8}),
    ):
        with pytest.raises(ValueError, match=match):
            dataclasses.replace(PLAN, **changed)
    fed = federated.make_local_round(send, optax.sgd(1.0), PLAN)
    federation = federated.from_clients([row[None] for row in SENT])
    with pytest.raises(ValueError, match="cohort must be drawn by the plan's GroupCohorts"):
        fed.round(fed.init(jnp.zeros(3), jax.random.key(0)), federation.cohort(jnp.arange(2)))
