"""The clipped sum over clients: one client moves it by no more than the clip norm."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp import federated
from jaxdp.federated import ClientUpdate

C = 0.75
KEY = jax.random.key(3)
RNG = np.random.default_rng(1)
# One row a client: the update to send, as it is. Rows of zeros, NaN and infinity too.
SENT = RNG.normal(size=(9, 6)).astype(np.float32) * np.geomspace(1e-3, 30, 9)[:, None]
SENT = SENT.astype(np.float32)
SENT[3] = 0.0
SENT[5, 2] = np.nan
SENT[6, 0] = np.inf
GOOD = [0, 1, 2, 3, 4, 7, 8]


def send(params, client, key):
    """A client update that sends the client's first row: an adversary can send anything."""
    del key
    row = jax.tree.map(lambda leaf: leaf[0], client.take(jnp.zeros(1, jnp.int32)))
    delta = {"a": row[:2], "b": {"c": row[2:]}}
    return ClientUpdate(delta, jnp.sum(params), client.size)


def clipped(rows, *, client_ids=None, client_update=send, sizes=None, **settings):
    sizes = np.ones(len(rows), int) if sizes is None else np.asarray(sizes)
    clients = [np.repeat(row[None], n, 0) for row, n in zip(rows, sizes, strict=True)]
    federation = federated.from_clients(clients)
    client_ids = jnp.arange(len(rows)) if client_ids is None else jnp.asarray(client_ids)
    sum_fn = federated.clipped_pseudo_grad(client_update, **({"l2_clip_norm": C} | settings))
    return jax.jit(sum_fn)(jnp.zeros(2), federation.cohort(client_ids), KEY)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


def by_hand(rows, weights=None):
    weights = np.ones(len(rows)) if weights is None else weights
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows, axis=1)
    factors = np.where(norms > C, C / np.where(norms > 0, norms, 1), 1)
    return -np.sum(weights[:, None] * factors[:, None] * rows, axis=0)


def test_the_sum_is_minus_the_clipped_deltas_and_bad_clients_add_exactly_zero():
    total, per_client = clipped(SENT)
    alone, _ = clipped(SENT[GOOD])
    # Norms are rounded up by 3e-5 at most, for each of 9 clients of norm C at most.
    np.testing.assert_allclose(flat(total.value), by_hand(SENT[GOOD]), atol=9 * 3e-5 * C)
    np.testing.assert_array_equal(flat(total.value), flat(alone.value))
    assert float(total.l2_sensitivity) == np.float32(C)
    assert np.isfinite(per_client.norm).tolist() == [i in GOOD for i in range(9)]
    np.testing.assert_allclose(
        per_client.norm[jnp.asarray(GOOD)], np.linalg.norm(SENT[GOOD], axis=1), rtol=3e-5
    )


def test_an_adversarial_client_moves_the_sum_by_no_more_than_the_clip_norm():
    base = SENT[[0, 1, 2]]
    without, _ = clipped(base)
    for attack in (
        1e30 * np.ones(6),
        -1e38 * np.ones(6),
        1e-20 * np.ones(6),
        np.array([np.nan, 1e38, 0, 0, 0, 0]),
        np.full(6, C / np.sqrt(6.0)) * (1 + 1e-6),
    ):
        rows = np.concatenate([base, attack[None].astype(np.float32)])
        for chunk in (1, 2):
            with_attack, _ = clipped(rows, client_chunk_size=chunk)
            moved = np.linalg.norm(flat(with_attack.value) - flat(without.value))
            # Rounding of the sum: 6 entries below 4 C, half an ulp each for 4 additions.
            assert moved <= C + 6**0.5 * 4 * 4 * C * 2.0**-24


def test_order_and_chunks_change_nothing_but_rounding():
    reference, reports = clipped(SENT)
    for seed, chunk in ((1, 1), (2, 2), (3, 4), (4, 9), (5, 100)):
        order = np.random.default_rng(seed).permutation(len(SENT))
        total, again = clipped(SENT, client_ids=order, client_chunk_size=chunk)
        # 9 additions of numbers below 9 C.
        np.testing.assert_allclose(
            flat(total.value), flat(reference.value), rtol=0, atol=9 * 9 * C * 2.0**-24
        )
        np.testing.assert_array_equal(again.norm, reports.norm[order])
        np.testing.assert_array_equal(again.num_examples, reports.num_examples[order])


def test_a_clients_randomness_follows_its_id_and_nothing_else():
    def draw(params, client, key):
        delta = jax.random.normal(key, (6,)) / 100
        return ClientUpdate(delta, delta[0], client.size)

    _, first = clipped(SENT, client_update=draw)
    order = np.array([8, 2, 5, 0])
    _, other = clipped(SENT, client_update=draw, client_ids=order, client_chunk_size=3)
    np.testing.assert_array_equal(other.loss, first.loss[order])
    assert len(set(np.asarray(first.loss).tolist())) == len(SENT)
    sum_fn = federated.clipped_pseudo_grad(draw, l2_clip_norm=C)
    cohort = federated.from_clients([row[None] for row in SENT]).cohort(jnp.arange(len(SENT)))
    _, another = jax.jit(sum_fn)(jnp.zeros(2), cohort, jax.random.key(4))
    assert not np.any(another.loss == first.loss)


def test_empty_clients_padding_and_empty_cohorts_add_exactly_zero():
    total, per_client = clipped(SENT[:3] + 5, sizes=[1, 0, 2])
    np.testing.assert_allclose(flat(total.value), by_hand(SENT[[0, 2]] + 5), atol=2 * 3e-5 * C)
    np.testing.assert_array_equal(per_client.num_examples, [1, 0, 2])
    federation = federated.from_clients([row[None] for row in SENT])
    cohort = federation.cohort(jnp.zeros(4, jnp.int32), jnp.ones(4, bool))
    sum_fn = federated.clipped_pseudo_grad(send, l2_clip_norm=C)
    nothing, reports = sum_fn(jnp.ones(2), cohort, KEY)
    assert not np.any(flat(nothing.value))
    assert not np.any(reports.loss)


def test_padding_is_never_trained():
    trained = []

    def counting(params, client, key):
        jax.debug.callback(lambda: trained.append(1))
        return send(params, client, key)

    federation = federated.from_clients([row[None] for row in SENT])
    is_padding = jnp.array([True, False, True, False, True, True])
    cohort = federation.cohort(jnp.arange(6), is_padding)
    sum_fn = federated.clipped_pseudo_grad(counting, l2_clip_norm=C)
    jax.block_until_ready(jax.jit(sum_fn)(jnp.zeros(2), cohort, KEY))
    jax.effects_barrier()
    assert len(trained) == 2


def test_weights_are_at_most_one_and_multiply_what_is_clipped():
    sizes = [1, 3, 4, 400]
    total, _ = clipped(SENT[[0, 1, 7, 8]], sizes=sizes, weight_cap=4.0)
    weights = np.array([0.25, 0.75, 1.0, 1.0])
    np.testing.assert_allclose(
        flat(total.value), by_hand(SENT[[0, 1, 7, 8]], weights), atol=4 * 3e-5 * C
    )
    assert float(total.l2_sensitivity) == np.float32(C)


def test_each_subtree_is_clipped_to_its_own_norm():
    norms = {"a": 0.5, "b": 0.1}
    total, per_client = clipped(SENT[[7, 8]], l2_clip_norm=norms)
    pieces = {"a": SENT[[7, 8], :2], "b": SENT[[7, 8], 2:]}
    for name, piece in pieces.items():
        lengths = np.linalg.norm(piece.astype(np.float64), axis=1)
        expected = -np.sum(piece * np.minimum(1, norms[name] / lengths)[:, None], axis=0)
        np.testing.assert_allclose(flat(total.value[name]), expected, atol=2 * 3e-5)
        np.testing.assert_allclose(per_client.norm[name], lengths, rtol=3e-5)
    np.testing.assert_allclose(float(total.l2_sensitivity), np.hypot(0.5, 0.1), rtol=1e-5)
    assert float(total.l2_sensitivity) >= np.hypot(0.5, 0.1)


def test_a_traced_clip_norm_out_of_range_shows():
    def run(norm):
        federation = federated.from_clients([row[None] for row in SENT])
        sum_fn = federated.clipped_pseudo_grad(send, l2_clip_norm=norm)
        return sum_fn(jnp.zeros(2), federation.cohort(jnp.array([0, 1])), KEY)[0]

    bad = jax.jit(run)(-1.0)
    assert np.isnan(bad.l2_sensitivity)
    assert not np.any(flat(bad.value))


def test_chunks_train_as_clients_alone_do():
    clients = [RNG.normal(size=(n, 3)).astype(np.float32) for n in (5, 1, 12, 0, 8, 7)]
    federation = federated.from_clients(clients)
    client_update = federated.local_training(
        lambda w, x: jnp.sum((w - x) ** 2), optax.adam(0.1), num_epochs=2, batch_size=4
    )
    results = []
    for chunk in (1, 4):
        sum_fn = federated.clipped_pseudo_grad(
            client_update, l2_clip_norm=0.5, client_chunk_size=chunk
        )
        cohort = federation.cohort(jnp.arange(6))
        results.append(jax.jit(sum_fn)(jnp.zeros(3), cohort, KEY))
    (alone, alone_reports), (together, together_reports) = results
    # Adam divides by the gradient's size, so ulps of it are ulps of a step of 0.1.
    np.testing.assert_allclose(together.value, alone.value, rtol=0, atol=1e-5)
    np.testing.assert_allclose(together_reports.norm, alone_reports.norm, rtol=1e-4)
    np.testing.assert_allclose(together_reports.loss, alone_reports.loss, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [8, 40])
def test_what_a_client_adds_does_not_depend_on_who_trains_beside_it(batch_size):
    # Chaotic training: an ulp at its start moves the clipped delta by the whole clip norm. The
    # others' rows have a loss of zero, so that the sum is the one client's, to the bit.
    def loss_fn(w, row):
        return jnp.sum(row[0] * jnp.cos(jnp.array([400.0, 300.0, 350.0, 370.0]) * (w - row[1])))

    client_update = federated.local_training(
        loss_fn, optax.sgd(0.05), num_epochs=30, batch_size=batch_size
    )
    sum_fn = federated.clipped_pseudo_grad(client_update, l2_clip_norm=1.0, client_chunk_size=2)
    rng = np.random.default_rng(0)
    own = np.c_[np.ones(7), rng.normal(size=7)].astype(np.float32)
    zeros = [np.zeros((n, 2), np.float32) for n in (1, 9, 17, 40)]

    @jax.jit
    def total(federation, start, ids):
        return sum_fn(start, federation.cohort(ids), KEY)[0].value

    start, larger = jnp.zeros(4), federated.from_clients([own, *zeros])
    # Other mates in one program, and mates whose sizes make another program of it.
    ids = [jnp.array([0, mate]) for mate in (1, 2, 3, 4)] + [jnp.array([3, 0])]
    sums = [total(larger, start, pair) for pair in ids]
    sums += [total(federated.from_clients([own, zeros[0]]), start, jnp.array([0, 1]))]
    for other in sums[1:]:
        np.testing.assert_array_equal(other, sums[0])
    # The test can fail: one ulp of the start shows.
    assert np.linalg.norm(total(larger, start + 1e-7, ids[0]) - sums[0]) > 1e-3


def test_clients_side_by_side_need_keys_that_vmap_does_not_mix():
    sum_fn = federated.clipped_pseudo_grad(send, l2_clip_norm=C, client_chunk_size=2)
    cohort = federated.from_clients([row[None] for row in SENT]).cohort(jnp.arange(2))
    with pytest.raises(ValueError, match="key must be of threefry2x32 where client_chunk_size"):
        sum_fn(jnp.zeros(2), cohort, jax.random.key(0, impl="rbg"))


def test_an_empty_client_has_no_weight():
    total, _ = clipped(SENT[[0, 1, 2]], sizes=[1, 0, 1], weight_cap=1.0)
    np.testing.assert_allclose(flat(total.value), by_hand(SENT[[0, 2]]), atol=2 * 3e-5 * C)


@pytest.mark.parametrize(
    ("match", "settings"),
    [
        ("l2_clip_norm must be a finite number > 0", {"l2_clip_norm": 0.0}),
        ("l2_clip_norm must be a number in", {"l2_clip_norm": 1e-31}),
        ("client_chunk_size must be an integer >= 1", {"client_chunk_size": 0}),
        ("weight_cap must be a finite number > 0", {"weight_cap": float("inf")}),
        ("weight_cap must be a number from 1", {"weight_cap": 0.5}),
        ("weight_cap must be a number from 1", {"weight_cap": 1e300}),
        ("l2_clip_norm must be a number, or a pytree prefix", {"l2_clip_norm": {"z": 1.0}}),
    ],
)
def test_bad_settings_are_refused(match, settings):
    with pytest.raises(ValueError, match=match):
        clipped(SENT, **settings)
