"""Local training against a plain Optax loop, and what it costs."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp import federated

RNG = np.random.default_rng(0)
SIZES = (5, 1, 12, 0, 8)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in SIZES]
CLIENTS = [(x.astype(np.float32), y.astype(np.float32)) for x, y in CLIENTS]
FEDERATION = federated.from_clients(CLIENTS)
PARAMS = {"w": jnp.array([0.1, -0.2, 0.3]), "b": jnp.zeros(())}


def loss_fn(params, example):
    x, y = example
    return 0.5 * (x @ params["w"] + params["b"] - y) ** 2


def update_of(client_update, client_id, key=0, federation=FEDERATION):
    @jax.jit
    def run(federation, client_id, key):
        cohort = federation.cohort(client_id[None])
        return client_update(PARAMS, cohort.client(0), key)

    return run(federation, jnp.int32(client_id), jax.random.key(key))


def gradient_by_hand(w, b, x, y):
    error = x @ w + b - y
    return x.T @ error / len(y), error.mean()


def test_full_batch_epochs_equal_a_plain_optax_loop_with_a_fresh_state():
    client_update = federated.local_training(loss_fn, optax.adam(0.1), num_epochs=3, batch_size=12)
    for client_id in (0, 2):
        x, y = CLIENTS[client_id]
        optimizer, params = optax.adam(0.1), PARAMS
        state, losses = optimizer.init(params), []
        for _ in range(3):
            error = x @ np.asarray(params["w"]) + np.asarray(params["b"]) - y
            losses.append(0.5 * np.mean(error**2))
            gradient = {"w": jnp.asarray(x.T @ error / len(y)), "b": jnp.asarray(error.mean())}
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        update = update_of(client_update, client_id)
        # Three float32 steps of size 0.1, each off by some ulps of the gradient (Adam divides
        # by its size), so 1e-5 of the step.
        for name in PARAMS:
            expected = np.asarray(params[name]) - np.asarray(PARAMS[name])
            np.testing.assert_allclose(update.delta[name], expected, atol=1e-5 * 0.3)
        np.testing.assert_allclose(update.loss, np.mean(losses), rtol=1e-5)
        assert int(update.num_examples) == len(y)


def test_the_proximal_term_pulls_towards_the_model_that_was_sent():
    client_update = federated.local_training(
        loss_fn, optax.sgd(0.1), num_epochs=2, batch_size=8, proximal=0.7
    )
    x, y = CLIENTS[4]
    start = w, b = np.asarray(PARAMS["w"], np.float64), 0.0
    for _ in range(2):
        gradient_w, gradient_b = gradient_by_hand(w, b, x, y)
        w, b = (
            w - 0.1 * (gradient_w + 0.7 * (w - start[0])),
            b - 0.1 * (gradient_b + 0.7 * (b - start[1])),
        )
    delta = update_of(client_update, 4).delta
    # Two float32 steps: a few ulps of numbers near 1.
    np.testing.assert_allclose(delta["w"], w - start[0], atol=1e-6)
    np.testing.assert_allclose(delta["b"], b - start[1], atol=1e-6)


def visits(sizes, batch_size, num_epochs, clients):
    """How often each row of each client goes through the loss, copies that fill shapes too."""
    federation = federated.from_clients([100.0 * i + np.arange(n) for i, n in enumerate(sizes)])
    seen = []

    def counting_loss(params, row):
        jax.debug.callback(lambda value: seen.append(float(value)), row)
        return params * row

    client_update = federated.local_training(
        counting_loss, optax.sgd(0.0), num_epochs=num_epochs, batch_size=batch_size
    )

    @jax.jit
    def run(federation, client_id):
        cohort = federation.cohort(client_id[None])
        return client_update(jnp.zeros(()), cohort.client(0), jax.random.key(0)).loss

    for client_id in clients:
        jax.block_until_ready(run(federation, jnp.int32(client_id)))
    jax.effects_barrier()
    return seen


def test_every_epoch_visits_every_own_row_once_and_no_other():
    seen = collections.Counter(visits((4, 8, 3), batch_size=4, num_epochs=2, clients=[0, 1]))
    # Whole batches, so nothing is filled up.
    assert seen == collections.Counter(
        [100.0 * i + row for i, n in enumerate((4, 8)) for row in range(n)] * 2
    )


def test_a_skewed_federation_computes_at_most_a_third_more_than_its_rows():
    # From 1 to 160 examples, half of the clients below 16: a log-uniform law.
    sizes = tuple(int(n) for n in np.geomspace(1, 160, 24))
    seen = visits(sizes, batch_size=20, num_epochs=1, clients=range(len(sizes)))
    assert sum(sizes) <= len(seen) <= 1.3 * sum(sizes)


def test_epochs_come_in_different_orders_that_follow_the_key():
    rows = np.arange(9.0)
    federation = federated.from_clients([rows])

    # With a loss linear in the model and a decaying step, the delta tells the order.
    client_update = federated.local_training(
        lambda w, row: w * row,
        optax.sgd(lambda step: 0.5**step),
        num_epochs=2,
        batch_size=1,
    )

    @jax.jit
    def delta(key):
        client = federation.cohort(jnp.array([0])).client(0)
        return client_update(jnp.zeros(()), client, key).delta

    deltas = [float(delta(jax.random.key(seed))) for seed in (0, 0, 1)]
    assert deltas[0] == deltas[1] != deltas[2]


def test_orders_are_uniform():
    # 3 rows in batches of 1 have 6 orders; chi-squared with 5 degrees of freedom exceeds 35.9
    # once in a million runs (the key is fixed, so this is a statement about one draw).
    federation = federated.from_clients([np.array([1.0, 2.0, 4.0])])
    client_update = federated.local_training(
        lambda w, row: w * row, optax.sgd(lambda step: 10.0**-step), num_epochs=1, batch_size=1
    )

    def delta(key):
        client = federation.cohort(jnp.array([0])).client(0)
        return client_update(jnp.zeros(()), client, key).delta

    deltas = jax.jit(jax.vmap(delta))(jax.random.split(jax.random.key(5), 1200))
    _, counts = np.unique(np.round(np.asarray(deltas), 4), return_counts=True)
    assert len(counts) == 6
    assert np.sum((counts - 200.0) ** 2 / 200.0) < 35.9


def test_a_client_without_data_changes_nothing():
    client_update = federated.local_training(
        loss_fn, optax.adam(0.1), num_epochs=2, batch_size=4, proximal=0.1
    )
    update = update_of(client_update, 3)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(update.delta))
    assert float(update.loss) == 0.0


def test_rows_have_keys_of_their_own_that_do_not_depend_on_the_batch_shape():
    def noisy_loss(w, row, key):
        return w * row * jax.random.bernoulli(key, 0.5)

    rows = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    deltas = []
    for padding_sizes in ((), (2, 30)):
        clients = [rows, *(np.zeros(n, np.float32) for n in padding_sizes)]
        client_update = federated.local_training(
            noisy_loss, optax.sgd(1.0), num_epochs=1, batch_size=16, loss_takes_key=True
        )
        federation = federated.from_clients(clients)

        @jax.jit
        def deltas_of(keys, federation=federation, client_update=client_update):
            client = federation.cohort(jnp.array([0])).client(0)
            return jax.lax.map(lambda key: client_update(jnp.zeros(()), client, key).delta, keys)

        deltas.append(deltas_of(jax.random.split(jax.random.key(0), 4)).tolist())
    assert deltas[0] == deltas[1]
    assert len(set(deltas[0])) > 1


def test_deltas_of_narrow_params_are_wide():
    client_update = federated.local_training(
        lambda w, x: jnp.sum((w - x) ** 2).astype(jnp.float32),
        optax.sgd(0.5),
        num_epochs=1,
        batch_size=4,
    )
    client = federated.from_clients([np.ones((2, 3), np.float32)]).cohort(jnp.array([0])).client(0)
    update = client_update(jnp.zeros(3, jnp.bfloat16), client, jax.random.key(0))
    assert update.delta.dtype == jnp.float32
    np.testing.assert_array_equal(update.delta, 1.0)


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        ("loss_fn must be a function", {"loss_fn": 3}),
        ("num_epochs must be an integer >= 1", {"num_epochs": 0}),
        ("batch_size must be an integer >= 1", {"batch_size": 2.0}),
        ("proximal must be a finite number >= 0", {"proximal": -1.0}),
    ],
)
def test_bad_settings_are_refused(match, changed):
    settings = {"num_epochs": 1, "batch_size": 1, "loss_fn": loss_fn} | changed
    with pytest.raises(ValueError, match=match):
        federated.local_training(optimizer=optax.sgd(0.1), **settings)


def test_a_loss_that_is_no_scalar_is_refused():
    client_update = federated.local_training(
        lambda w, x: x, optax.sgd(0.1), num_epochs=1, batch_size=4
    )
    client = federated.from_clients([np.ones((2, 3))]).cohort(jnp.array([0])).client(0)
    with pytest.raises(ValueError, match="loss_fn's output must be a float scalar"):
        client_update(jnp.zeros(3), client, jax.random.key(0))
