r"""The L1 and L2 sensitivity of elementary queries.

Neighbouring data sets differ in one record, in one of three ways:

- ``"add_or_remove_one"``: one of them lacks the record;
- ``"replace_special"``: the record is zeroed out in one of them: it adds nothing, and the
  number of records is the same;
- ``"replace_one"``: the two hold different records in its place.

A sum over records then moves by one contribution x in the first two cases, and by a
difference x - x' of two in the third. So each function maximises :math:`\|x\|` or
:math:`\|x - x'\|` over the contributions that the caller promises (by clipping, say). All
bounds are attained, and are the smallest floats that are not below the exact value.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from jaxdp import _validate

_RELATIONS = ("add_or_remove_one", "replace_one", "replace_special")


class Sensitivity(NamedTuple):
    """The most that one record moves a query, in the unit of the query."""

    l1: float
    """In L1 norm: what the Laplace mechanism needs."""
    l2: float
    """In L2 norm: what the Gaussian mechanism needs."""


def _root_times(count: int, bound: Fraction) -> float:
    """The smallest float that is not below sqrt(count) * bound."""
    square = count * bound * bound
    try:
        value = math.sqrt(count) * float(bound)
    except OverflowError:
        return math.inf
    while value > 0.0 and Fraction(math.nextafter(value, 0.0)) ** 2 >= square:
        value = math.nextafter(value, 0.0)
    while value < math.inf and Fraction(value) ** 2 < square:
        value = math.nextafter(value, math.inf)
    return value


def _fraction(name: str, value: Any, check: Callable[[str, Any], Any]) -> Fraction:
    """A number known before the program runs, as it is held in binary."""
    if _validate.is_traced(value):
        _validate.refuse(name, value, "a number, not a traced value")
    return Fraction(float(check(name, value)))


def _of_sum(
    dimension: int,
    relation: str,
    l2_bound: Any,
    l1_bound: Any,
    coordinate_bounds: Any,
    divisor: int,
) -> Sensitivity:
    _validate.integer("dimension", dimension, minimum=1)
    given = [bound for bound in (l2_bound, l1_bound, coordinate_bounds) if bound is not None]
    if len(given) != 1:
        raise ValueError(
            "Give exactly one of l2_bound, l1_bound and coordinate_bounds, got "
            f"l2_bound={l2_bound!r}, l1_bound={l1_bound!r}, "
            f"coordinate_bounds={coordinate_bounds!r}."
        )
    twice = 2 if relation == "replace_one" else 1
    if l2_bound is not None:
        bound = _fraction("l2_bound", l2_bound, _validate.positive) * twice / divisor
        return Sensitivity(l1=_root_times(dimension, bound), l2=_root_times(1, bound))
    if l1_bound is not None:
        bound = _fraction("l1_bound", l1_bound, _validate.positive) * twice / divisor
        return Sensitivity(l1=_root_times(1, bound), l2=_root_times(1, bound))
    if not isinstance(coordinate_bounds, tuple | list) or len(coordinate_bounds) != 2:
        _validate.refuse("coordinate_bounds", coordinate_bounds, "a pair (lower, upper)")
    lower = _fraction("coordinate_bounds[0]", coordinate_bounds[0], _validate.finite)
    upper = _fraction("coordinate_bounds[1]", coordinate_bounds[1], _validate.finite)
    if lower >= upper:
        _validate.refuse("coordinate_bounds", coordinate_bounds, "a pair with lower < upper")
    widest = upper - lower if relation == "replace_one" else max(abs(lower), abs(upper))
    bound = widest / divisor
    return Sensitivity(l1=_root_times(dimension**2, bound), l2=_root_times(dimension, bound))


def bounded_sum(
    *,
    dimension: int,
    l2_bound: Any = None,
    l1_bound: Any = None,
    coordinate_bounds: Any = None,
    neighboring_relation: str = "add_or_remove_one",
) -> Sensitivity:
    r"""The sensitivity of a sum of vectors, one a record, under one bound on each.

    With d the dimension, the largest :math:`\|x\|` (add or remove, zeroing out) is

    - for :math:`\|x\|_2 \le C`: L2 = C; L1 = :math:`\sqrt d\, C` (all coordinates equal);
    - for :math:`\|x\|_1 \le C`: L1 = C; L2 = C (all in one coordinate);
    - for every coordinate in [lo, hi]: with :math:`m = \max(|lo|, |hi|)`, L1 = d m and
      L2 = :math:`\sqrt d\, m`.

    The largest :math:`\|x - x'\|` (replace) is twice the norm bound, at x' = -x; in the box it
    has hi - lo in place of m.

    Args:
      dimension: The number d of coordinates, >= 1.
      l2_bound: The bound C > 0 on the L2 norm of each vector.
      l1_bound: The bound C > 0 on the L1 norm of each vector.
      coordinate_bounds: The pair (lo, hi), lo < hi, that holds for every coordinate.
      neighboring_relation: ``"add_or_remove_one"``, ``"replace_one"`` or
        ``"replace_special"``.

    Returns:
      The L1 and L2 sensitivity.

    Raises:
      ValueError: unless exactly one bound is given, a positive finite number (a pair of
        finite numbers in order), and ``dimension`` is a positive integer.

    Guarantee:
      Attained by some pair of neighbours, and never below it in floating point. The bound on
      each record is the caller's promise: it is not checked against data.

    Example:
      >>> from jaxdp import sensitivity
      >>> sensitivity.bounded_sum(dimension=4, l2_bound=1.0)
      Sensitivity(l1=2.0, l2=1.0)

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Definitions
      3.1 and 3.8.
    """
    relation = _validate.choice("neighboring_relation", neighboring_relation, _RELATIONS)
    return _of_sum(dimension, relation, l2_bound, l1_bound, coordinate_bounds, 1)


def bounded_mean(
    *,
    dimension: int,
    num_examples: int,
    l2_bound: Any = None,
    l1_bound: Any = None,
    coordinate_bounds: Any = None,
    neighboring_relation: str,
) -> Sensitivity:
    r"""The sensitivity of a mean over a public number of records.

    The mean is the sum over ``num_examples``, a number that both neighbours share: so its
    sensitivity is that of ``bounded_sum`` over ``num_examples``. For example, vectors in
    :math:`[0, 1]^d` and d records: replacing one moves each coordinate of the mean by at
    most 1/d, so L1 = 1 but L2 = :math:`1/\sqrt d`.

    Args:
      dimension: The number d of coordinates, >= 1.
      num_examples: The number of records, >= 1, which is public.
      l2_bound: As in ``bounded_sum``.
      l1_bound: As in ``bounded_sum``.
      coordinate_bounds: As in ``bounded_sum``.
      neighboring_relation: ``"replace_one"`` or ``"replace_special"`` (the divisor stays
        ``num_examples``).

    Returns:
      The L1 and L2 sensitivity.

    Raises:
      ValueError: for ``"add_or_remove_one"``, under which the divisor is itself private; and
        as for ``bounded_sum``.

    Guarantee:
      As for ``bounded_sum``.

    Example:
      >>> from jaxdp import sensitivity
      >>> sensitivity.bounded_mean(
      ...     dimension=4, num_examples=4, coordinate_bounds=(0, 1),
      ...     neighboring_relation="replace_one",
      ... )
      Sensitivity(l1=1.0, l2=0.5)

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Definitions
      3.1 and 3.8.
    """
    relation = _validate.choice("neighboring_relation", neighboring_relation, _RELATIONS)
    if relation == "add_or_remove_one":
        _validate.refuse(
            "neighboring_relation",
            relation,
            "'replace_one' or 'replace_special' for a mean: when a record may be missing, the "
            "number of records is private too (release a noisy bounded_sum, and divide by a "
            "public or noisy number)",
        )
    num_examples = _validate.integer("num_examples", num_examples, minimum=1)
    return _of_sum(dimension, relation, l2_bound, l1_bound, coordinate_bounds, num_examples)


def count(*, neighboring_relation: str = "add_or_remove_one") -> Sensitivity:
    """The sensitivity of the number of records that satisfy a predicate.

    One record adds 0 or 1, so the count moves by at most 1 under every relation: replacing a
    record that counts by one that does not moves it by 1 too, not by 2.

    Args:
      neighboring_relation: ``"add_or_remove_one"``, ``"replace_one"`` or
        ``"replace_special"``.

    Returns:
      The L1 and L2 sensitivity, both 1.

    Raises:
      ValueError: if the relation is none of the three.

    Guarantee:
      Attained. For k counts at once, use ``bounded_sum`` with ``dimension=k`` and
      ``coordinate_bounds=(0, 1)``.

    Example:
      >>> from jaxdp import sensitivity
      >>> sensitivity.count()
      Sensitivity(l1=1.0, l2=1.0)

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Section 3.3.
    """
    _validate.choice("neighboring_relation", neighboring_relation, _RELATIONS)
    return Sensitivity(l1=1.0, l2=1.0)


def histogram(
    *,
    num_bins: int,
    max_bins_per_record: int = 1,
    neighboring_relation: str = "add_or_remove_one",
) -> Sensitivity:
    r"""The sensitivity of a histogram in which one record counts in a few bins.

    A record adds 1 to each of at most k distinct bins of B. Adding, removing or zeroing it
    out moves k entries by 1: L1 = k, L2 = :math:`\sqrt k`. Replacing it moves at most
    :math:`\min(2k, B)` entries by 1 (k old bins and k new ones, where there is room):
    L1 = min(2k, B), L2 = :math:`\sqrt{\min(2k, B)}`; with one bin a record, 2 and
    :math:`\sqrt 2`.

    Args:
      num_bins: The number B of bins, >= 1.
      max_bins_per_record: The most bins k that a record counts in, 1 <= k <= B.
      neighboring_relation: ``"add_or_remove_one"``, ``"replace_one"`` or
        ``"replace_special"``.

    Returns:
      The L1 and L2 sensitivity.

    Raises:
      ValueError: if an argument is outside its range.

    Guarantee:
      Attained, and never below in floating point. The bins must not depend on the data.

    Example:
      >>> from jaxdp import sensitivity
      >>> sensitivity.histogram(num_bins=10, max_bins_per_record=4)
      Sensitivity(l1=4.0, l2=2.0)

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Section 3.3.
    """
    relation = _validate.choice("neighboring_relation", neighboring_relation, _RELATIONS)
    bins = _validate.integer("num_bins", num_bins, minimum=1)
    each = _validate.integer("max_bins_per_record", max_bins_per_record, minimum=1, maximum=bins)
    moved = min(2 * each, bins) if relation == "replace_one" else each
    return Sensitivity(l1=float(moved), l2=_root_times(moved, Fraction(1)))
