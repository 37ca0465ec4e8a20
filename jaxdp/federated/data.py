"""Federations of ragged clients: flat rows, and where each client's rows are."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate
from jaxdp.federated.rows import rows_like

# The round of a cohort that no sampler drew.
BY_HAND = -1

# More distinct sizes than this are described by their range.
_FEW = 64

Sizes = tuple[int, ...] | range  # the sizes that clients can have, static
_MakeClient = Callable[[jax.Array], tuple[Any, Any]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Client:
    """One client's rows, as a client update sees them: read them with ``take``.

    Args:
      rows: Pytree of arrays ``[total, ...]``, of which ``size`` rows from ``start`` on are this
        client's. Reading any other breaks the guarantee: use ``take``.
      start: int32 scalar.
      size: int32 scalar, the number of rows; 0 for a client without data.
      loop_size: int32 scalar, the largest size among the clients that run side by side, to
        which loops run for all of them; None for a client that runs alone.
      possible_sizes: Static: every size that ``size`` can take.
    """

    rows: Any
    start: jax.Array
    size: jax.Array
    loop_size: jax.Array | None
    possible_sizes: Sizes = dataclasses.field(metadata={"static": True})

    def take(self, positions: jax.Array) -> Any:
        """The rows at positions from 0 to ``size - 1``; others read the nearest of these."""
        last = jnp.maximum(self.size - 1, 0)
        places = self.start + jnp.clip(positions, 0, last)
        return jax.tree.map(lambda leaf: jnp.take(leaf, places, axis=0, mode="clip"), self.rows)


class Source(Protocol):
    """What a cohort can be drawn from: a ``Federation`` or a ``GeneratedFederation``."""

    @property
    def num_clients(self) -> int: ...

    def cohort(self, client_ids: jax.Array, is_padding: jax.Array | None = None) -> "Cohort": ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cohort:
    """The clients of one round: no copy of their rows, but where these are.

    Args:
      source: Pytree of rows ``[total, ...]``, or a function from a client's id to its rows.
      client_ids: int32 ``[m]``.
      starts: int32 ``[m]``, each client's first row.
      sizes: int32 ``[m]``, each client's number of rows.
      is_padding: bool ``[m]``: slots without a client, which count for nothing.
      overflowed: bool scalar: the draw had more clients than there are slots.
      round_number: int32 scalar, the round that it was drawn for; -1 for a cohort that was put
        together by hand.
      possible_sizes: Static: every size that a client can have.
      drawn_by: Static: the cohort sampler, or None for a cohort that was put together by hand.
    """

    source: Any
    client_ids: jax.Array
    starts: jax.Array
    sizes: jax.Array
    is_padding: jax.Array
    overflowed: jax.Array
    round_number: jax.Array
    possible_sizes: Sizes = dataclasses.field(metadata={"static": True})
    drawn_by: Any = dataclasses.field(metadata={"static": True})

    def client(self, slot: jax.Array, loop_size: jax.Array | None = None) -> Client:
        """The client in a slot; nothing of its rows is read yet."""
        rows = self.source
        if isinstance(rows, _Generator):
            rows, _ = rows.make_client(self.client_ids[slot])
        return Client(rows, self.starts[slot], self.sizes[slot], loop_size, self.possible_sizes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Federation:
    """All clients' examples in flat rows, on the device.

    Made by ``from_clients`` or ``from_client_ids``. A pytree: pass it to a compiled function
    as an argument (closing over it would write the data into the program).

    Args:
      examples: Pytree of arrays ``[total, ...]``, a client's rows next to each other.
      starts: int32 ``[num_clients]``, each client's first row.
      sizes: int32 ``[num_clients]``, each client's number of rows, 0 allowed.
      possible_sizes: Static: every size that occurs.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxdp import federated
      >>> federation = federated.from_clients([{"x": jnp.ones((3, 2))}, {"x": jnp.ones((1, 2))}])
      >>> federation.num_clients, federation.sizes.tolist()
      (2, [3, 1])
    """

    examples: Any
    starts: jax.Array
    sizes: jax.Array
    possible_sizes: Sizes = dataclasses.field(metadata={"static": True})

    @property
    def num_clients(self) -> int:
        return self.sizes.shape[0]

    def cohort(self, client_ids: jax.Array, is_padding: jax.Array | None = None) -> Cohort:
        """The cohort of these clients: distinct ids ``[m]`` from 0 to ``num_clients - 1``.

        Others are refused, and where they are traced they count as padding.
        """
        client_ids, is_padding = checked_ids(client_ids, is_padding, self.num_clients)
        return Cohort(
            source=self.examples,
            client_ids=client_ids,
            starts=jnp.take(self.starts, client_ids, mode="clip"),
            sizes=jnp.take(self.sizes, client_ids, mode="clip"),
            is_padding=is_padding,
            overflowed=jnp.zeros((), bool),
            possible_sizes=self.possible_sizes,
            round_number=jnp.asarray(BY_HAND, jnp.int32),
            drawn_by=None,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Generator:
    """A function that is compared by identity, as a pytree without leaves."""

    make_client: _MakeClient = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GeneratedFederation:
    """Clients that are made up when their turn comes, and never exist at once.

    Args:
      make_client: Traceable function from a client's id (int32 scalar) to
        ``(examples, size)``: a pytree of arrays ``[n_max, ...]`` of which the first ``size``
        rows (an integer scalar from 0 to n_max) are the client's. It must be a function of
        the id: fold the id into a key of the data's own.
      num_clients: How many clients there are.

    Raises:
      ValueError: if ``make_client`` is no function, or ``num_clients`` not an integer >= 1.

    Example:
      >>> import jax
      >>> from jaxdp import federated
      >>> def make_client(client_id):
      ...     key = jax.random.fold_in(jax.random.key(7), client_id)
      ...     return jax.random.normal(key, (20, 3)), 20
      >>> federated.GeneratedFederation(make_client, num_clients=1_000_000).num_clients
      1000000
    """

    make_client: _MakeClient = dataclasses.field(metadata={"static": True})
    num_clients: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self):
        _validate.function("make_client", self.make_client)
        _validate.integer("num_clients", self.num_clients, minimum=1, maximum=2**31 - 1)

    def cohort(self, client_ids: jax.Array, is_padding: jax.Array | None = None) -> Cohort:
        """The cohort of these clients: distinct ids ``[m]`` from 0 to ``num_clients - 1``.

        Others are refused, and where they are traced they count as padding.
        """
        client_ids, is_padding = checked_ids(client_ids, is_padding, self.num_clients)
        shapes, _ = jax.eval_shape(self.make_client, jax.ShapeDtypeStruct((), jnp.int32))
        most = _validate.leading_axis("make_client's examples", shapes)
        # Only the sizes are asked for here: a compiler drops the rest.
        sizes = jax.vmap(lambda i: jnp.asarray(self.make_client(i)[1], jnp.int32))(client_ids)
        return Cohort(
            source=_Generator(self.make_client),
            client_ids=client_ids,
            starts=jnp.zeros_like(client_ids),
            sizes=jnp.clip(sizes, 0, most),
            is_padding=is_padding,
            overflowed=jnp.zeros((), bool),
            possible_sizes=range(most + 1),
            round_number=jnp.asarray(BY_HAND, jnp.int32),
            drawn_by=None,
        )


def checked_ids(client_ids: Any, is_padding: Any, num_clients: int) -> tuple[jax.Array, jax.Array]:
    """The ids and which slots are padding, those of an id out of range or taken included."""
    ids = jnp.asarray(client_ids)
    if ids.ndim != 1 or not jnp.issubdtype(ids.dtype, jnp.integer):
        _validate.refuse("client_ids", client_ids, "an integer array of one axis")
    mask = jnp.zeros(ids.shape, bool) if is_padding is None else jnp.asarray(is_padding)
    if mask.shape != ids.shape or mask.dtype != jnp.bool_:
        _validate.refuse("is_padding", is_padding, f"a bool array of shape {ids.shape}")
    # A client that took part twice, or under another's id, would weigh twice its bound.
    bad = ~mask & ((ids < 0) | (ids >= num_clients) | _stands_before(ids, mask))
    if not _validate.is_traced(bad) and bool(jnp.any(bad)):
        allowed = f"distinct ids from 0 to num_clients - 1 = {num_clients - 1}"
        _validate.refuse("client_ids", ids[jnp.argmax(bad)].item(), allowed)
    return ids.astype(jnp.int32), mask | bad


def _stands_before(ids: jax.Array, is_padding: jax.Array) -> jax.Array:
    """Whether the same client stands in an earlier slot."""
    order = jnp.lexsort((is_padding, ids))
    ids, real = ids[order], ~is_padding[order]
    again = jnp.zeros(ids.shape, bool).at[1:].set((ids[1:] == ids[:-1]) & real[:-1])
    return jnp.zeros(ids.shape, bool).at[order].set(again)


def possible_sizes(sizes: np.ndarray) -> Sizes:
    """The sizes that occur, as something small that can be compared and hashed."""
    distinct = np.unique(sizes)
    if distinct.size > _FEW:
        return range(int(distinct[-1]) + 1)
    return tuple(int(size) for size in distinct)


def _federation(examples: Any, sizes: np.ndarray) -> Federation:
    total = _validate.leading_axis("examples", examples)
    if not 1 <= total < 2**31:
        _validate.refuse("examples", f"{total} rows", "at least 1 row and fewer than 2**31")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return Federation(
        jax.tree.map(jnp.asarray, examples),
        jnp.asarray(starts, jnp.int32),
        jnp.asarray(sizes, jnp.int32),
        possible_sizes(sizes),
    )


def from_clients(clients: Sequence[Any]) -> Federation:
    """Puts a list of clients' data sets one after the other.

    Args:
      clients: For each client a pytree of arrays ``[n_i, ...]``, with the structure, types and
        shapes of a row of client 0; ``n_i`` may be 0.

    Returns:
      The federation: client ``i`` is the ``i``-th of the list.

    Raises:
      ValueError: if there is no client or no row at all, a client's rows are not of the kind of
        client 0's, or its arrays disagree in their first axis. Nothing is converted: one
        client's type would change the numbers of all.

    Guarantee:
      None by itself. The list's length is taken as public, the sizes are not. A refusal tells
      of a client's data: it is the curator's check, before anything is released.

    Example:
      >>> import numpy as np
      >>> from jaxdp import federated
      >>> federated.from_clients([np.ones((3, 2)), np.ones((0, 2))]).sizes.tolist()
      [3, 0]
    """
    clients = list(clients)
    if not clients:
        _validate.refuse("clients", clients, "a sequence of at least one client")
    kind = rows_like(clients[0])
    sizes = [kind.check(f"clients[{i}]", client) for i, client in enumerate(clients)]
    rows = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *clients)
    return _federation(rows, np.asarray(sizes))


def from_client_ids(
    examples: Any, client_ids: Any, *, num_clients: int | None = None
) -> Federation:
    """Groups the rows of a table by a column that says whose they are.

    Args:
      examples: Pytree of arrays ``[total, ...]``.
      client_ids: Integers ``[total]`` from 0 to ``num_clients - 1``.
      num_clients: How many clients there are, those without rows included; by default one
        more than the largest id.

    Returns:
      The federation; the rows of a client keep their order.

    Raises:
      ValueError: if an id is out of range, or the shapes disagree.

    Guarantee:
      None by itself. ``num_clients`` is taken as public: give it where the largest id that
      has data is not.

    Example:
      >>> import numpy as np
      >>> from jaxdp import federated
      >>> federated.from_client_ids(np.ones((4, 2)), [2, 0, 2, 2]).sizes.tolist()
      [1, 0, 3]
    """
    total = _validate.leading_axis("examples", examples)
    ids = np.asarray(client_ids)
    if ids.shape != (total,) or not np.issubdtype(ids.dtype, np.integer) or total == 0:
        _validate.refuse("client_ids", client_ids, f"integers of shape ({total},), at least one")
    if num_clients is None:
        num_clients = int(ids.max()) + 1
    num_clients = _validate.integer("num_clients", num_clients, minimum=1)
    if ids.min() < 0 or ids.max() >= num_clients:
        extremes = f"ids from {ids.min()} to {ids.max()}"
        _validate.refuse("client_ids", extremes, f"from 0 to num_clients - 1 = {num_clients - 1}")
    order = np.argsort(ids, kind="stable")
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[order], examples)
    return _federation(rows, np.bincount(ids, minlength=num_clients))
