"""A client's batches: shuffled epochs whose cost follows the client's real size.

Loops have dynamic trip counts, and the last batch of an epoch, or the only one of a small
client, has the smallest of a few static shapes that holds it. No reverse-mode derivative can be
taken through these loops; none is needed, since gradients are taken inside a step.

Rounding is amplified by training, up to the whole clip norm. So nothing that a client computes with
may follow the clients that run side by side with it: those loop to the largest size among
them, leave a state alone that is done, and all take the full shape of a batch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.federated.data import Client, Sizes


class LocalBatch(NamedTuple):
    """One batch of one client."""

    positions: jax.Array  # int32 [batch_size], places among the client's rows
    num_rows: jax.Array  # int32 scalar, how many of them count, 0 to batch_size
    widths: tuple[int, ...]  # the static shapes to choose from, ascending


def _power_of_two_from(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def widths(possible_sizes: Sizes, batch_size: int) -> tuple[int, ...]:
    """The batch shapes that clients of these sizes need: powers of two, and the full batch."""
    largest = possible_sizes[-1]
    # A range is cut where remainders start to repeat.
    sizes = (
        possible_sizes[: 2 * batch_size] if isinstance(possible_sizes, range) else possible_sizes
    )
    remainders = {size % batch_size for size in sizes} - {0}
    found = {min(_power_of_two_from(rest), batch_size) for rest in remainders}
    if largest >= batch_size or not found:
        found.add(batch_size)
    return tuple(sorted(found))


def _lengths(possible_sizes: Sizes, batch_size: int) -> tuple[int, ...]:
    """The lengths that orders are sorted at, ascending: powers of four.

    Zero stands for clients of one batch, whose order is left as it is.
    """
    largest = possible_sizes[-1]
    if largest <= batch_size:
        return (0,)
    powers = [4**exponent for exponent in range(_power_of_two_from(largest).bit_length() // 2 + 1)]
    first = next(power for power in powers if power > batch_size)
    return (0, *(power for power in powers if power >= first))


def _order(client: Client, key: jax.Array, batch_size: int) -> jax.Array:
    """A random order of the client's rows, int32 [whole batches], any place past its end.

    Integers alone: the same whatever the length it is sorted at.
    """
    loop_size = client.size if client.loop_size is None else client.loop_size
    total = -(-max(client.possible_sizes[-1], 1) // batch_size) * batch_size
    lengths = _lengths(client.possible_sizes, batch_size)

    def sort(length):
        if length == 0:
            return jnp.arange(total, dtype=jnp.int32)
        places = jnp.arange(length, dtype=jnp.int32)
        # One draw a place, so that the order does not depend on the length of the array.
        draws = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), (), jnp.uint32))
        ranks = jnp.where(places < client.size, draws(places), jnp.uint32(0xFFFF_FFFF))
        _, order = jax.lax.sort((ranks, places), num_keys=1, is_stable=True)
        return jnp.pad(order, (0, max(total - length, 0)))[:total]

    needed = jnp.where(loop_size > batch_size, loop_size, 0)
    order = jax.lax.switch(
        _smallest(lengths, needed), [functools.partial(sort, length) for length in lengths]
    )
    # Whether a client is shuffled is for its own size to say.
    return jnp.where(client.size > batch_size, order, sort(0))


def _smallest(ascending: tuple[int, ...], needed: jax.Array) -> jax.Array:
    """The place of the first number that is at least what is needed."""
    return jnp.sum(jnp.asarray(ascending, jnp.int32) < needed, dtype=jnp.int32)


def local_steps(
    client: Client,
    key: jax.Array,
    step: Callable[[Any, LocalBatch, jax.Array], Any],
    state: Any,
    *,
    num_epochs: int,
    batch_size: int,
    shuffle: bool = True,
) -> Any:
    """Runs ``step(state, batch, step_key)`` over every batch of some epochs.

    For a client that has run out of rows while others that run side by side have not, the
    state stays as it is.
    """
    loop_size = client.size if client.loop_size is None else client.loop_size
    num_steps = (loop_size + batch_size - 1) // batch_size
    runs_alone = client.loop_size is None
    shapes = widths(client.possible_sizes, batch_size) if runs_alone else (batch_size,)

    def run_epoch(epoch, state):
        epoch_key = jax.random.fold_in(key, epoch)
        total = -(-max(client.possible_sizes[-1], 1) // batch_size) * batch_size
        order = jnp.arange(total, dtype=jnp.int32)
        if shuffle:
            order = _order(client, jax.random.fold_in(epoch_key, 0), batch_size)
        steps_key = jax.random.fold_in(epoch_key, 1)

        def run_step(number, state):
            first = number * batch_size
            num_rows = jnp.clip(client.size - first, 0, batch_size)
            positions = jax.lax.dynamic_slice(order, (first,), (batch_size,))
            # Copies of a row that counts fill up the shape.
            counts = jnp.arange(batch_size, dtype=jnp.int32) < num_rows
            batch = LocalBatch(jnp.where(counts, positions, positions[0]), num_rows, shapes)
            new_state = step(state, batch, jax.random.fold_in(steps_key, number))
            if runs_alone:
                return new_state
            keep = batch.num_rows > 0
            return jax.tree.map(lambda new, old: jnp.where(keep, new, old), new_state, state)

        return jax.lax.fori_loop(0, num_steps, run_step, state)

    if num_epochs == 1:
        return run_epoch(0, state)
    return jax.lax.fori_loop(0, num_epochs, run_epoch, state)


def over_rows(
    client: Client, batch: LocalBatch, fn: Callable[[Any, jax.Array, jax.Array], Any]
) -> Any:
    """``fn(examples, counts, positions)`` on the batch at the smallest shape that holds it.

    A client that runs side by side with others has the full shape only.

    ``examples`` is a pytree of arrays ``[width, ...]``; ``counts`` a float ``[width]``, 1
    for the batch's rows and 0 for the copies that fill the shape; ``positions`` int32 ``[width]``.
    """

    def at(width):
        positions = batch.positions[:width]
        counts = jnp.arange(width, dtype=jnp.int32) < batch.num_rows
        return fn(client.take(positions), counts.astype(jnp.float32), positions)

    return jax.lax.switch(
        _smallest(batch.widths, batch.num_rows),
        [functools.partial(at, width) for width in batch.widths],
    )
