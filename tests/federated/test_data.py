"""Ragged federations: who owns which rows, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import federated

LISTS = [{"x": np.full((n, 2), i + 1.0)} for i, n in enumerate((3, 0, 2))]


def rows_of(cohort, slot):
    client = cohort.client(jnp.int32(slot))
    return jax.tree.map(np.asarray, client.take(jnp.arange(int(client.size))))


def test_a_list_of_clients_keeps_every_clients_rows_in_order():
    federation = federated.from_clients(LISTS)
    cohort = federation.cohort(jnp.array([2, 0, 1]))
    for slot, client_id in enumerate((2, 0, 1)):
        np.testing.assert_array_equal(rows_of(cohort, slot)["x"], LISTS[client_id]["x"])
    assert federation.possible_sizes == (0, 2, 3)


def test_a_column_of_ids_groups_rows_and_keeps_their_order():
    ids, values = np.array([4, 0, 4, 2, 0, 4]), np.arange(6.0)
    federation = federated.from_client_ids(values, ids, num_clients=6)
    assert federation.num_clients == 6
    cohort = federation.cohort(jnp.arange(6))
    for client_id in range(6):
        np.testing.assert_array_equal(rows_of(cohort, client_id), values[ids == client_id])


def test_a_client_never_reads_past_its_own_rows():
    cohort = federated.from_clients(LISTS).cohort(jnp.array([0, 2]))
    far = jnp.array([-7, 0, 2, 3, 1000])
    assert set(np.ravel(cohort.client(jnp.int32(0)).take(far)["x"])) == {1.0}
    assert set(np.ravel(cohort.client(jnp.int32(1)).take(far)["x"])) == {3.0}


def test_generated_clients_are_those_of_the_function():
    def make_client(client_id):
        return jnp.full(5, client_id, jnp.float32), client_id % 7

    federation = federated.GeneratedFederation(make_client, num_clients=10**9)
    cohort = federation.cohort(jnp.array([123_456_789, 5, 4]))
    # Sizes beyond the generated rows would read rows that do not exist.
    np.testing.assert_array_equal(cohort.sizes, [min(123_456_789 % 7, 5), 5, 4])
    np.testing.assert_array_equal(rows_of(cohort, 2), np.full(4, 4.0))


def test_many_sizes_are_described_by_their_range():
    federation = federated.from_clients([np.zeros(n) for n in range(1, 100)])
    assert federation.possible_sizes == range(100)


def test_a_client_that_stands_twice_or_does_not_exist_is_refused_or_counts_as_padding():
    federation = federated.from_clients(LISTS)
    for ids in ([0, 0], [0, 3], [-1, 0]):
        with pytest.raises(ValueError, match=r"client_ids must be distinct ids from 0 to"):
            federation.cohort(jnp.array(ids))
    ids, is_padding = jnp.array([2, 2, 0, 7, 2]), jnp.array([True, False, False, False, False])
    traced = jax.jit(lambda ids: federation.cohort(ids, is_padding).is_padding)(ids)
    np.testing.assert_array_equal(traced, [True, False, False, True, True])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("odd", [np.zeros((2, 2), np.float16), np.zeros((0, 2), np.int32)])
def test_no_client_changes_the_type_of_all(odd, first):
    # One int16 among uint8 would change how the others' arithmetic wraps.
    good = [{"x": np.full((3, 2), 1e5, np.float32)}] * 3
    clients = [{"x": odd}, *good] if first else [*good, {"x": odd}]
    where = 1 if first else 3
    with pytest.raises(ValueError, match=rf"clients\[{where}\]\['x'\] must be .* as the first"):
        federated.from_clients(clients)
    with pytest.raises(ValueError, match=r"clients\[1\] must be float32 rows of shape \(2,\)"):
        federated.from_clients([np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)])


def test_a_cohort_says_who_drew_it_and_for_which_round():
    federation = federated.from_clients(LISTS)
    by_hand = federation.cohort(jnp.array([0]))
    assert int(by_hand.round_number) == -1
    assert by_hand.drawn_by is None
    sampler = federated.GroupCohorts(3, min_separation=2)
    drawn = jax.jit(lambda f, n: sampler.sample(f, jax.random.key(0), n))(federation, 5)
    assert int(drawn.round_number) == 5
    assert drawn.drawn_by == sampler
    with pytest.raises(TypeError):
        federation.cohort(jnp.array([0, 0]), drawn_by=sampler)


class _Twice(federated.GroupCohorts):
    def draw(self, key, round_number):
        draw = super().draw(key, round_number)
        return draw._replace(client_ids=jnp.zeros_like(draw.client_ids))


def test_a_sampler_that_draws_a_client_twice_is_refused_or_has_it_once():
    federation, sampler = federated.from_clients(LISTS), _Twice(3, min_separation=1)
    with pytest.raises(ValueError, match="client_ids must be distinct"):
        sampler.sample(federation, jax.random.key(0), 0)
    traced = jax.jit(lambda f: sampler.sample(f, jax.random.key(0), 0))(federation)
    np.testing.assert_array_equal(traced.is_padding, [False, True, True])


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("clients must be a sequence", lambda: federated.from_clients([])),
        ("examples must be at least 1 row", lambda: federated.from_clients([np.zeros((0, 2))])),
        (
            r"clients\[1\] must be of the first client's structure",
            lambda: federated.from_clients([np.zeros(2), {"x": np.zeros(2)}]),
        ),
        (
            "client_ids must be integers",
            lambda: federated.from_client_ids(np.zeros(3), [0.0, 1.0, 2.0]),
        ),
        (
            "client_ids must be from 0 to num_clients - 1 = 1",
            lambda: federated.from_client_ids(np.zeros(2), [0, 2], num_clients=2),
        ),
        (
            "num_clients must be an integer >= 1",
            lambda: federated.GeneratedFederation(lambda i: (i, 1), num_clients=0),
        ),
        (
            "is_padding must be a bool array",
            lambda: federated.from_clients(LISTS).cohort(jnp.array([0]), jnp.array([0])),
        ),
    ],
)
def test_bad_data_are_refused(match, call):
    with pytest.raises(ValueError, match=match):
        call()
