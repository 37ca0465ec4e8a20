"""Federations that stay on the host: cohorts are gathered there, the next one ahead of time."""

import concurrent.futures
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _random, _validate
from jaxdp.federated.data import Cohort, Sizes, checked_ids, possible_sizes
from jaxdp.federated.metrics import RoundMetrics
from jaxdp.federated.round import Carry, FederatedRound
from jaxdp.federated.rows import rows_like


class RandomAccess(Protocol):
    """A data source of one record a client, as Grain has them: a list will do."""

    def __len__(self) -> int: ...

    def __getitem__(self, client_id: int) -> Any: ...


class HostFederation:
    """A federation in host memory or on disk, of which a round reads its cohort alone.

    Args:
      clients: Random access to the clients: ``clients[i]`` is a pytree of arrays ``[n_i, ...]``
        with the structure, types and shapes of a row of ``clients[0]``, which is read at once
        for these; ``n_i`` may be 0; ``len(clients)`` is their number.

    Raises:
      ValueError: if ``clients`` has no length or holds no client.

    Guarantee:
      None by itself. A client of another kind of rows is refused when its turn comes, and that
      is seen: check data that may hold one beforehand.

    Example:
      >>> import numpy as np
      >>> from jaxdp import federated
      >>> federated.HostFederation([np.ones((3, 2)), np.ones((1, 2))]).num_clients
      2
    """

    def __init__(self, clients: RandomAccess):
        if not hasattr(clients, "__len__") or not hasattr(clients, "__getitem__"):
            _validate.refuse("clients", clients, "a sequence, or another random-access source")
        if len(clients) < 1:
            _validate.refuse("clients", "no client", "at least one client")
        self.clients = clients
        # Of one client, always the same, so that no cohort's rows depend on who is in it.
        first = clients.examples if isinstance(clients, _FlatRows) else clients[0]
        _validate.leading_axis("clients[0]", first)
        self.row_kind = rows_like(first)

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    @classmethod
    def from_arrays(cls, examples: Any, sizes: Any) -> "HostFederation":
        """The federation of flat rows, such as memory-mapped files, that are not read before.

        Args:
          examples: Pytree of NumPy arrays ``[total, ...]``, client after client.
          sizes: Integers ``[num_clients]``, each client's number of rows; their sum is total.

        Raises:
          ValueError: if the sizes do not add up to the rows.

        Example:
          >>> import numpy as np
          >>> from jaxdp import federated
          >>> federated.HostFederation.from_arrays(np.ones((4, 2)), [3, 0, 1]).num_clients
          3
        """
        total = _validate.leading_axis("examples", examples)
        numbers = np.asarray(sizes)
        whole = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
        if not whole or numbers.min(initial=0) < 0 or numbers.sum() != total:
            _validate.refuse("sizes", sizes, f"integers >= 0 that add up to {total} rows")
        return cls(_FlatRows(examples, numbers.astype(np.int64)))


class _FlatRows:
    """Random access to the clients of flat rows."""

    def __init__(self, examples: Any, sizes: np.ndarray):
        self.examples = examples
        self.ends = np.cumsum(sizes)
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client_id: int) -> Any:
        rows = slice(self.ends[client_id] - self.sizes[client_id], self.ends[client_id])
        return jax.tree.map(lambda leaf: leaf[rows], self.examples)


class _Buckets:
    """Sizes rounded up to few values that never shrink, so that programs are compiled seldom."""

    def __init__(self) -> None:
        self.held = 0

    def holding(self, number: int) -> int:
        power = 1 << max(number - 1, 0).bit_length()
        self.held = max(self.held, 3 * power // 4 if number <= 3 * power // 4 else power, 1)
        return self.held


class _Gatherer:
    """Draws the cohort of a round and puts its rows, and no others, on the device."""

    def __init__(self, federated_round: FederatedRound, federation: HostFederation, key: Any):
        self.cohorts = federated_round.plan.cohorts
        self.clients, self.row_kind = federation.clients, federation.row_kind
        self.key = key
        self.draw = jax.jit(self.cohorts.draw)
        self.rows, self.largest = _Buckets(), _Buckets()

    def cohort(self, round_number: int) -> Cohort:
        draw = self.draw(self.key, jnp.int32(round_number))
        client_ids, is_padding = checked_ids(
            draw.client_ids, draw.is_padding, self.cohorts.num_clients
        )
        taken = np.nonzero(~np.asarray(is_padding))[0]
        fetched, lengths = [], []
        for client_id in np.asarray(client_ids)[taken].tolist():
            fetched.append(self.clients[client_id])
            lengths.append(self.row_kind.check(f"clients[{client_id}]", fetched[-1]))
        sizes, starts = np.zeros((2, len(client_ids)), np.int32)
        sizes[taken] = lengths
        starts[taken] = np.cumsum([0, *lengths])[:-1]
        sizes_known: Sizes = range(self.largest.holding(max(lengths, default=0)) + 1)
        if isinstance(self.clients, _FlatRows):
            sizes_known = possible_sizes(self.clients.sizes)
        return jax.device_put(
            Cohort(
                source=self.joined(fetched, sum(lengths)),
                client_ids=client_ids,
                starts=jnp.asarray(starts),
                sizes=jnp.asarray(sizes),
                is_padding=is_padding,
                overflowed=draw.overflowed,
                round_number=jnp.asarray(round_number, jnp.int32),
                possible_sizes=sizes_known,
                drawn_by=self.cohorts,
            )
        )

    def joined(self, fetched: list[Any], total: int) -> Any:
        """The clients' rows one after the other, and zeros up to a size that is held on to."""
        capacity = self.rows.holding(total)
        columns = [np.zeros((capacity, *shape), dtype) for dtype, shape in self.row_kind.leaves]
        if fetched:
            pieces = zip(*map(jax.tree.leaves, fetched), strict=True)
            for column, piece in zip(columns, pieces, strict=True):
                np.concatenate(piece, out=column[:total])
        return jax.tree.unflatten(self.row_kind.structure, columns)


def stream_rounds(
    federated_round: FederatedRound, federation: HostFederation, carry: Carry, num_rounds: int
) -> Iterator[tuple[Carry, RoundMetrics]]:
    """Runs some more rounds on a federation that the device need not hold.

    The cohort of a round is a function of the run's key and the round, so that the next one is
    read, in a thread, while a round is computed. The model is the same as that of a run on the
    device, client by client. Compiles the round, anew for the few times that a
    cohort needs a larger buffer.

    Args:
      federated_round: What ``make_round`` or ``make_local_round`` returned.
      federation: The clients' data on the host.
      carry: Where the run stands; the rounds that follow it are run.
      num_rounds: How many rounds, >= 1.

    Returns:
      An iterator over ``(carry, metrics)`` after each round.

    Raises:
      ValueError: if the federation is not of the sampler's size, or a client's rows are not of
        the kind of client 0's.

    Guarantee:
      That of the rounds. What is read from disk, and when, shows who takes part.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np, optax
      >>> from jaxdp import federated
      >>> federation = federated.HostFederation([np.ones((4, 2), np.float32)] * 30)
      >>> client_update = federated.local_training(
      ...     lambda w, x: 0.5 * jnp.sum((w - x) ** 2), optax.sgd(0.5), num_epochs=1, batch_size=4)
      >>> plan = federated.make_plan(federated.GroupCohorts(30, min_separation=3), num_rounds=3,
      ...     l2_clip_norm=1.0, noise_multiplier=1.0)
      >>> fed = federated.make_round(client_update, optax.sgd(1.0), plan)
      >>> carry = fed.init(jnp.zeros(2), jax.random.key(0))
      >>> for carry, metrics in federated.stream_rounds(fed, federation, carry, 3):
      ...     clients = int(metrics.num_clients)  # or a progress bar
      >>> int(carry.round), clients
      (3, 10)
    """
    if not isinstance(federation, HostFederation):
        _validate.refuse("federation", federation, "a HostFederation")
    num_clients = federated_round.plan.cohorts.num_clients
    if federation.num_clients != num_clients:
        given = f"one of {federation.num_clients} clients"
        _validate.refuse("federation", given, f"of the sampler's {num_clients} clients")
    num_rounds = _validate.integer("num_rounds", num_rounds, minimum=1)
    gatherer = _Gatherer(federated_round, federation, _random.copy(carry.key))
    return _rounds(jax.jit(federated_round.round), gatherer, carry, num_rounds)


def _rounds(
    step: Any, gatherer: _Gatherer, carry: Carry, num_rounds: int
) -> Iterator[tuple[Carry, RoundMetrics]]:
    first = int(carry.round)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as thread:
        ahead = thread.submit(gatherer.cohort, first)
        for number in range(first + 1, first + num_rounds + 1):
            cohort = ahead.result()
            if number < first + num_rounds:
                ahead = thread.submit(gatherer.cohort, number)
            carry, metrics = step(carry, cohort)
            yield carry, metrics
