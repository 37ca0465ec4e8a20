"""Cohorts from the host give the same model as a federation on the device."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp import federated

RNG = np.random.default_rng(10)
N = 20
SIZES = RNG.integers(0, 12, N)
X = RNG.normal(size=(SIZES.sum(), 3)).astype(np.float32)
Y = RNG.integers(0, 2, SIZES.sum()).astype(np.int32)
STARTS = np.cumsum(SIZES) - SIZES
CLIENTS = [(X[s : s + n], Y[s : s + n]) for s, n in zip(STARTS, SIZES, strict=True)]
COHORTS = federated.PoissonCohorts(N, expected_cohort_size=6, max_cohort_size=N)
PARAMS = {"w": jnp.zeros(3), "b": jnp.zeros(())}
ROUNDS = 5


def loss_fn(params, example):
    x, y = example
    return optax.sigmoid_binary_cross_entropy(x @ params["w"] + params["b"], y)


@pytest.fixture(scope="module")
def fed():
    client_update = federated.local_training(loss_fn, optax.sgd(0.5), num_epochs=2, batch_size=4)
    plan = federated.make_plan(COHORTS, num_rounds=ROUNDS, l2_clip_norm=0.5, noise_multiplier=0.2)
    return federated.make_round(client_update, optax.adam(0.1), plan)


@pytest.fixture(scope="module")
def in_memory(fed):
    """The carry and metrics of a run on the device."""
    run = jax.jit(lambda f, c: federated.run_rounds(fed, f, c, ROUNDS))
    carry = fed.init(PARAMS, jax.random.key(1))
    return run(federated.from_clients(CLIENTS), carry)


class Source:
    """Random access alone, as Grain's sources have it; remembers who was read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return N

    def __getitem__(self, client_id):
        assert isinstance(client_id, int)
        self.read.append((client_id, threading.get_ident()))
        return CLIENTS[client_id]


def memmaps(folder):
    arrays = []
    for name, array in (("x", X), ("y", Y)):
        stored = np.memmap(folder / name, array.dtype, "w+", shape=array.shape)
        stored[:] = array
        stored.flush()
        arrays.append(np.memmap(folder / name, array.dtype, "r", shape=array.shape))
    return tuple(arrays)


@pytest.mark.parametrize("kind", ["arrays", "memmap", "source"])
def test_a_streamed_run_is_the_run_on_the_device_bit_for_bit(fed, in_memory, kind, tmp_path):
    source = Source()
    federation = {
        "arrays": lambda: federated.HostFederation.from_arrays((X, Y), SIZES),
        "memmap": lambda: federated.HostFederation.from_arrays(memmaps(tmp_path), SIZES),
        "source": lambda: federated.HostFederation(source),
    }[kind]()
    start = fed.init(PARAMS, jax.random.key(1))
    carries, metrics = zip(*federated.stream_rounds(fed, federation, start, ROUNDS), strict=True)
    carry = carries[-1]
    for name in PARAMS:
        np.testing.assert_array_equal(carry.params[name], in_memory[0].params[name])
    assert int(carry.round) == ROUNDS
    counts = [int(more.num_clients) for more in metrics]
    assert counts == in_memory[1].num_clients.tolist()
    if kind == "source":
        # Client 0 at the start, for the kind of its rows; then whoever took part once a round,
        # in another thread, and nobody else.
        (first, _), *others = source.read
        assert first == 0
        assert len(others) == sum(counts)
        assert all(thread != threading.get_ident() for _, thread in others)


def test_a_stream_goes_on_where_a_run_stands(fed, in_memory):
    federation = federated.HostFederation.from_arrays((X, Y), SIZES)
    carry = fed.init(PARAMS, jax.random.key(1))
    for length in (2, 3):
        *_, (carry, _) = federated.stream_rounds(fed, federation, carry, length)
    np.testing.assert_array_equal(carry.params["w"], in_memory[0].params["w"])


def test_an_error_of_the_source_reaches_the_caller(fed):
    class Broken(Source):
        def __getitem__(self, client_id):
            if self.read:  # the first is read at once
                raise OSError("unreadable")
            return super().__getitem__(client_id)

    stream = federated.stream_rounds(
        fed, federated.HostFederation(Broken()), fed.init(PARAMS, jax.random.key(1)), 2
    )
    with pytest.raises(OSError, match="unreadable"):
        next(stream)


@pytest.mark.parametrize("odd", [0, 7])
def test_a_client_of_another_type_is_refused_and_changes_nobody(fed, odd):
    # The kind of rows is client 0's, whoever is in the cohort.
    clients = list(CLIENTS)
    clients[odd] = (clients[odd][0].astype(np.float16), clients[odd][1])
    carry = fed.init(PARAMS, jax.random.key(1))
    stream = federated.stream_rounds(fed, federated.HostFederation(clients), carry, 30)
    kind = "float16" if odd == 0 else "float32"
    with pytest.raises(ValueError, match=rf"clients\[\d+\]\[0\] must be {kind} rows"):
        list(stream)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("clients must be a sequence", lambda fed: federated.HostFederation(iter([1]))),
        ("clients must be at least one client", lambda fed: federated.HostFederation([])),
        (
            f"sizes must be integers >= 0 that add up to {len(X)} rows",
            lambda fed: federated.HostFederation.from_arrays((X, Y), SIZES + 1),
        ),
        (
            "federation must be a HostFederation",
            lambda fed: federated.stream_rounds(fed, CLIENTS, None, 1),
        ),
        (
            "federation must be of the sampler's 20 clients",
            lambda fed: federated.stream_rounds(
                fed, federated.HostFederation(CLIENTS[:3]), None, 1
            ),
        ),
    ],
)
def test_bad_host_data_are_refused(fed, match, call):
    with pytest.raises(ValueError, match=match):
        call(fed)
