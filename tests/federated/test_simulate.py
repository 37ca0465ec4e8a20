"""Whole runs: one program, reproducible, and mapped over keys, noise and learning rates."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp import federated

RNG = np.random.default_rng(3)
N = 30
W = RNG.normal(size=4).astype(np.float32)


def make_rows(n):
    x = RNG.normal(size=(n, 4)).astype(np.float32)
    return x, x @ W


FEDERATION = federated.from_clients([make_rows(n) for n in RNG.integers(1, 12, N)])
COHORTS = federated.PoissonCohorts(N, expected_cohort_size=10, max_cohort_size=N)
PARAMS = jnp.zeros(4)


def loss_fn(params, example):
    x, y = example
    return 0.5 * (x @ params - y) ** 2


def plan_of(**settings):
    settings = {
        "num_rounds": 40,
        "l2_clip_norm": 0.5,
        "noise_multiplier": 0.05,
        "delta": 1e-4,
    } | settings
    return federated.make_plan(COHORTS, **settings)


def simulate(federation, key, *, learning_rate=1.0, plan=None):
    client_update = federated.local_training(loss_fn, optax.sgd(0.1), num_epochs=2, batch_size=4)
    return federated.simulate(
        client_update,
        federation,
        PARAMS,
        key,
        plan=plan or plan_of(),
        server_optimizer=optax.sgd(learning_rate),
        evaluate=jnp.copy,
    )


@pytest.fixture(scope="module")
def compiled():
    return jax.jit(simulate)


def test_the_same_key_is_the_same_run_and_another_key_is_another(compiled):
    first, again, other = (compiled(FEDERATION, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.params, again.params)
    for a, b in zip(*(jax.tree.leaves(run.metrics) for run in (first, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.any(np.asarray(first.params) == np.asarray(other.params))
    assert np.any(first.metrics.num_clients != other.metrics.num_clients)


def test_a_simulation_is_its_rounds_one_after_the_other(compiled):
    client_update = federated.local_training(loss_fn, optax.sgd(0.1), num_epochs=2, batch_size=4)
    fed = federated.make_round(client_update, optax.sgd(1.0), plan_of())
    step = jax.jit(lambda carry, f: fed.round(carry, fed.sample(f, carry)))
    carry = fed.init(PARAMS, jax.random.key(0))
    for _ in range(5):
        carry, metrics = step(carry, FEDERATION)
    run = compiled(FEDERATION, jax.random.key(0))
    # Another program may contract products and sums differently: ulps of numbers near 1.
    np.testing.assert_allclose(run.metrics.evaluation[4], carry.params, rtol=0, atol=1e-5)
    np.testing.assert_allclose(run.metrics.loss[4], metrics.loss, rtol=1e-4)
    assert run.plan.cohorts == COHORTS
    assert float(run.plan.noise_multiplier) == np.float32(0.05)


def test_it_learns(compiled):
    run = compiled(FEDERATION, jax.random.key(0))
    errors = np.linalg.norm(np.asarray(run.metrics.evaluation) - W, axis=1)
    assert errors[-1] < 0.2 * np.linalg.norm(W)
    np.testing.assert_array_equal(run.metrics.evaluation[-1], run.params)


def test_runs_are_mapped_over_keys(compiled):
    keys = jax.random.split(jax.random.key(4), 3)
    copies = [jax.random.clone(key) for key in keys]
    # vmap turns conditionals into both branches and a choice; the key checker counts both.
    with jax.debug_key_reuse(False):
        mapped = jax.jit(jax.vmap(lambda f, key: simulate(f, key)[:2], in_axes=(None, 0)))(
            FEDERATION, keys
        )
    for i, key in enumerate(copies):
        alone = compiled(FEDERATION, key)
        # Batched products add up in another order: some ulps a step, over 40 rounds.
        np.testing.assert_allclose(mapped[0][i], alone.params, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(mapped[1].num_clients[i], alone.metrics.num_clients)


def test_runs_are_mapped_over_noise_multipliers_and_learning_rates(compiled):
    noise, rates = jnp.array([0.0, 0.05, 0.05]), jnp.array([1.0, 1.0, 0.5])
    # A key for each run: with one for all, two models would give away the noise of both.
    keys = jax.random.split(jax.random.key(5), 3)
    copies = [jax.random.clone(key) for key in keys]

    def one(federation, key, noise_multiplier, learning_rate):
        plan = plan_of(noise_multiplier=noise_multiplier)
        return simulate(federation, key, plan=plan, learning_rate=learning_rate)[:2]

    with jax.debug_key_reuse(False):  # vmap makes conditionals both branches and a choice
        sweep = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))
        params, metrics = sweep(FEDERATION, keys, noise, rates)
    alone = compiled(FEDERATION, copies[1])
    np.testing.assert_allclose(params[1], alone.params, rtol=0, atol=1e-4)
    assert np.all(np.isinf(metrics.epsilon[0]))
    # Renyi DP computed inside the program and ahead of it.
    np.testing.assert_allclose(metrics.epsilon[1], alone.metrics.epsilon, rtol=1e-4)
    # The first round moves in proportion to the learning rate: it starts at zero.
    whole = compiled(FEDERATION, copies[2]).metrics.evaluation[0]
    np.testing.assert_allclose(metrics.evaluation[2, 0], 0.5 * whole, rtol=1e-5)


def test_narrow_params_keep_their_type_and_the_server_works_in_float32():
    rows = [np.full((3, 2), 1.0, np.float32)] * 6
    client_update = federated.local_training(
        lambda w, x: jnp.sum((w - x.astype(w.dtype)) ** 2),
        optax.sgd(0.1),
        num_epochs=1,
        batch_size=2,
    )
    plan = federated.make_plan(
        federated.GroupCohorts(6, min_separation=2),
        num_rounds=2,
        l2_clip_norm=1.0,
        noise_multiplier=0.0,
    )
    fed = federated.make_round(client_update, optax.adam(0.1), plan)
    carry = fed.init(jnp.zeros(2, jnp.bfloat16), jax.random.key(0))
    carry, _ = federated.run_rounds(fed, federated.from_clients(rows), carry, 2)
    assert carry.params.dtype == jnp.bfloat16
    assert carry.opt_state[2][0].mu.dtype == jnp.float32
    # Adam moves by its learning rate; bfloat16 keeps 8 bits.
    np.testing.assert_allclose(carry.params.astype(jnp.float32), 0.2, rtol=2**-7)


def test_generated_clients_train_without_existing_at_once():
    def make_client(client_id):
        key = jax.random.fold_in(jax.random.key(9), client_id)
        x = jax.random.normal(key, (8, 4))
        return (x, x @ jnp.asarray(W)), 1 + client_id % 8

    federation = federated.GeneratedFederation(make_client, num_clients=100_000)
    plan = federated.make_plan(
        federated.PoissonCohorts(100_000, expected_cohort_size=12),
        num_rounds=20,
        l2_clip_norm=0.5,
        noise_multiplier=0.1,
        delta=1e-6,
    )
    run = jax.jit(lambda key: simulate(federation, key, plan=plan)[:2])(jax.random.key(0))
    assert np.linalg.norm(run[0] - W) < 0.6 * np.linalg.norm(W)
    assert not np.any(run[1].overflowed)


def test_a_data_set_is_an_argument_and_no_part_of_the_program():
    text = jax.jit(simulate).lower(FEDERATION, jax.random.key(0)).as_text()
    assert len(text) < 400_000
    assert "dense_resource" not in text


def test_a_federation_of_another_size_is_refused():
    small = federated.from_clients([make_rows(2)])
    with pytest.raises(ValueError, match="federation must be of the sampler's 30 clients"):
        simulate(small, jax.random.key(0))
    with pytest.raises(ValueError, match="federation must be a Federation"):
        simulate([1, 2], jax.random.key(0))
    with pytest.raises(ValueError, match="plan must be a ClientPlan"):
        simulate(FEDERATION, jax.random.key(0), plan=3)


def test_dp_fed_avg_for_ones_own_model_takes_at_most_twenty_lines():
    # The example itself runs as a doctest.
    examples = doctest.DocTestParser().get_examples(federated.__doc__)
    lines = "".join(example.source for example in examples).splitlines()
    statements = [line for line in lines if not line.startswith(("import ", "from "))]
    assert 10 < len(statements) <= 20


def arguments(**changes):
    return {
        "client_update": CLIENT_UPDATE,
        "federation": FEDERATION,
        "params": PARAMS,
        "key": jax.random.key(0),
        "plan": plan_of(),
        "server_optimizer": optax.sgd(1.0),
    } | changes


CLIENT_UPDATE = federated.local_training(loss_fn, optax.sgd(0.1), num_epochs=1, batch_size=4)
SWAPPED = [
    ("client_update", {"client_update": FEDERATION}, "a function .*local_training.*'Federation'"),
    ("client_update", {"client_update": loss_fn}, r".*too many .*, for loss_fn\(params, example\)"),
    ("federation", {"federation": PARAMS, "params": FEDERATION}, "a Federation or .*ArrayImpl"),
    ("federation", {"federation": [make_rows(3)]}, ".*from_clients.*'list'"),
    ("params", {"params": jax.random.key(0), "key": PARAMS}, ".*of dtype key"),
    ("params", {"params": {}}, "a pytree with at least one"),
    ("key", {"key": PARAMS}, "a scalar typed PRNG key"),
    ("server_optimizer", {"server_optimizer": plan_of(), "plan": 1}, "an Optax .*ClientPlan"),
    ("server_optimizer", {"server_optimizer": optax.sgd}, "an Optax optimizer"),
    ("plan", {"plan": optax.sgd(1.0)}, "a ClientPlan"),
]


@pytest.mark.parametrize(("name", "changes", "words"), SWAPPED)
def test_swapped_arguments_are_refused_by_name(name, changes, words):
    with pytest.raises(ValueError, match=rf"^{name} must be {words}"):
        federated.simulate(**arguments(**changes))


def test_a_clients_loss_of_other_arguments_is_refused_by_name():
    def dropout_loss_fn(params, example, key):
        return loss_fn(params, example)

    update = federated.local_training(dropout_loss_fn, optax.sgd(0.1), num_epochs=1, batch_size=4)
    with pytest.raises(ValueError, match=r"^loss_fn must be .*loss_takes_key=True.*'key'"):
        federated.simulate(**arguments(client_update=update))
    with pytest.raises(ValueError, match=r"^optimizer must be an Optax optimizer"):
        federated.local_training(loss_fn, 0.1, num_epochs=1, batch_size=4)
