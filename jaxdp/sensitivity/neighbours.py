"""The neighbouring pairs of a domain, as the image of a unit cube.

A search has to stay inside the domain, and its two data sets have to stay neighbours. Both hold
by construction where a function maps every point of the cube :math:`[0, 1]^m` to such a pair:
random pairs come from random points, and steps from point to point need only be clipped.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate

_RELATIONS = ("add_or_remove_one", "replace_one", "replace_special")


class Neighbours(NamedTuple):
    """Neighbouring pairs of data sets, one for each point of a unit cube.

    For a domain or a relation of your own: every point of the closed cube must give two data
    sets in the domain that are neighbours, and every pair of interest must be given by a point.
    Where ``pair`` is differentiable, gradient ascent helps the search; steps (the floor of an
    entry, for a discrete choice) are left to random points.

    Example:
      Two records on the unit circle, of which one is replaced:

      >>> import jax.numpy as jnp
      >>> from jaxdp import sensitivity
      >>> def pair(point):
      ...     angles = 2.0 * jnp.pi * point
      ...     records = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
      ...     return records[:2], records[1:]
      >>> circle = sensitivity.Neighbours(dimension=3, pair=pair)
    """

    dimension: int
    """Number m of entries of a point."""
    pair: Callable[[jax.Array], tuple[Any, Any]]
    """From a point, float [m] with entries in [0, 1], to a data set and its neighbour."""


def _bounds(low: Any, high: Any) -> tuple[list[Any], list[Any], Any]:
    """The bounds leaf by leaf, in the dtype of the records, and the structure of a record."""
    if _validate.is_traced(low, high):
        _validate.refuse("low", (low, high), "a pair of bounds known before tracing")
    structure: Any = jax.tree.structure(low)
    lows, highs = jax.tree.leaves(low), jax.tree.leaves(high)
    if structure != jax.tree.structure(high) or not lows:
        _validate.refuse("high", high, "a pytree of numbers or arrays like low")
    pairs = [_leaf_bounds(*leaves) for leaves in zip(lows, highs, strict=True)]
    return [lower for lower, _ in pairs], [upper for _, upper in pairs], structure


def _leaf_bounds(low: Any, high: Any) -> tuple[Any, Any]:
    try:
        lower, upper = np.broadcast_arrays(np.asarray(low), np.asarray(high))
    except ValueError:
        _validate.refuse("high", high, f"of a shape that fits low, {low!r}")
    kinds = {lower.dtype.kind, upper.dtype.kind}
    whole = kinds <= {"i", "u"}
    if not kinds <= {"i", "u", "f"}:
        _validate.refuse("low", low, "a pytree of real numbers, like high")
    # Floats must not overflow the program's float type, nor differences of integers int32.
    most = 2**30 if whole else float(jnp.finfo(jnp.result_type(float)).max)
    if not np.all((-most <= lower) & (lower <= upper) & (upper <= most)):
        _validate.refuse("low", low, f"in [-{most:g}, {most:g}], as high, and at most {high!r}")
    dtype = jnp.result_type(int if whole else float)
    return lower.astype(dtype), upper.astype(dtype)


def _inside(unit: jax.Array, low: Any, high: Any) -> jax.Array:
    """Entries of [low, high] from entries of [0, 1], both ends included."""
    low, high = (jnp.broadcast_to(bound, unit.shape) for bound in (low, high))
    if jnp.issubdtype(low.dtype, jnp.integer):
        steps = jnp.floor(unit * (high - low + 1)).astype(low.dtype)
        return jnp.minimum(low + steps, high)
    # Exact at both ends; between them, rounding must not leave the box.
    return jnp.clip(low * (1.0 - unit) + high * unit, low, high)


def neighbours_in_box(
    num_records: int,
    low: Any,
    high: Any,
    *,
    neighboring_relation: str = "add_or_remove_one",
) -> Neighbours:
    """All neighbouring pairs of data sets whose records lie in a box.

    A data set has its records along the leading axis of every leaf, in any order: the record in
    which neighbours differ may be at any place.

    Args:
      num_records: The number n >= 1 of records of the data set (its neighbour has n - 1 under
        ``"add_or_remove_one"``, else n).
      low: The least record: a number, an array, or a pytree of them. Where ``low`` and ``high``
        are integers, so are the records.
      high: The largest record, like ``low``; finite, ends included.
      neighboring_relation: ``"add_or_remove_one"`` (one record is missing in the neighbour),
        ``"replace_one"`` (another one is in its place) or ``"replace_special"`` (zero is in
        its place, in the box or not).

    Returns:
      The pairs, as ``Neighbours``.

    Raises:
      ValueError: if an argument is out of range, or the bounds do not fit together.

    Guarantee:
      Each pair consists of neighbours with records in the box, floating-point rounding included.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxdp import sensitivity
      >>> pairs = sensitivity.neighbours_in_box(3, low=0.0, high=10.0)
      >>> dataset, neighbour = pairs.pair(jnp.array([0.0, 0.5, 1.0, 0.9, 0.0]))
      >>> dataset.tolist(), neighbour.tolist()
      ([0.0, 5.0, 10.0], [5.0, 10.0])

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Section 2.3.
    """
    num_records = _validate.integer("num_records", num_records, minimum=1)
    relation = _validate.choice("neighboring_relation", neighboring_relation, _RELATIONS)
    lows, highs, structure = _bounds(low, high)
    shapes = [bound.shape for bound in lows]
    ends = np.cumsum([(num_records + 1) * math.prod(shape) for shape in shapes])

    def pair(point: jax.Array) -> tuple[Any, Any]:
        # n records, one more to replace one of them, and the place where neighbours differ.
        place = jnp.minimum(jnp.floor(point[-1] * num_records).astype(int), num_records - 1)
        parts = jnp.split(point[:-1], ends[:-1])
        records = [
            _inside(part.reshape((num_records + 1, *shape)), low, high)
            for part, shape, low, high in zip(parts, shapes, lows, highs, strict=True)
        ]

        def changed(leaf: jax.Array) -> jax.Array:
            rows, spare = leaf[:-1], leaf[-1]
            if relation == "add_or_remove_one":
                kept = jnp.arange(num_records - 1)
                return rows[kept + (kept >= place)]
            return rows.at[place].set(spare if relation == "replace_one" else 0)

        dataset = [leaf[:-1] for leaf in records]
        neighbour = [changed(leaf) for leaf in records]
        return structure.unflatten(dataset), structure.unflatten(neighbour)

    return Neighbours(dimension=int(ends[-1]) + 1, pair=pair)
