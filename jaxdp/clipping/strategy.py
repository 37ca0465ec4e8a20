"""Which way each parameter's norm and sum are computed, from static shapes.

Numbers are of one example: multiplications count flops, and a gradient entry that is written,
read for its norm and read for the sum costs about as much as 30 multiplications in a matrix
product (``benchmarks/README.md``).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdp.clipping import factors, groups, uses
from jaxdp.clipping.groups import Group

_COST_OF_AN_ENTRY = 30
# What the dozen small operations of another way than holding cost on top, in the same unit.
_COST_OF_A_WAY = 4_000_000
# The bound on the rounding of a longer sum would say nothing.
_MOST_POSITIONS = 2**15
# Entries held, over entries of the factors, beyond which holding is not worth its memory.
_MOST_HELD = 4


_REASONS = {
    "outer": "one position",
    "gram": "few positions",
    "rows": "a lookup",
    "kept": "many positions",
    "recomputed": "too large to hold",
}


class Way(NamedTuple):
    """How one group of sites is computed: the names are those of ``pieces``."""

    group: Group
    way: str
    sizes: factors.Sizes  # T counts all sites' positions


class LeafPlan(NamedTuple):
    """How one parameter is computed.

    Args:
      rule: "sites", "instantiated" (by the backward pass), or "unused".
      ways: One for each group of sites; none but for "sites".
      reason: Why, in words.
      fallback: Whether it is instantiated because a use is not of a known form.
    """

    rule: str
    ways: tuple[Way, ...]
    reason: str
    fallback: bool = False


class Plan(NamedTuple):
    """How every parameter is computed, and where the loss uses them."""

    leaves: tuple[LeafPlan, ...]
    found: uses.Uses


def plan(jaxpr: Any, num_leaves: int, order: int, batch_size: int) -> Plan:
    """Plans the computation of clipped gradients.

    Args:
      jaxpr: The loss's jaxpr, whose first inputs are the parameters' leaves.
      num_leaves: How many they are.
      order: Of the norm, 2 or 1.
      batch_size: Examples that are differentiated at once.

    Returns:
      The plan. Leaves that are instantiated count as data in what was found.
    """
    way_cost = _COST_OF_A_WAY / max(batch_size, 1)
    instantiated: dict[int, LeafPlan] = {}
    while True:
        found = uses.find(jaxpr, num_leaves, instantiated)
        rest = {
            leaf: _leaf_plan(leaf, found, order, way_cost)
            for leaf in range(num_leaves)
            if leaf not in instantiated
        }
        more = {leaf: chosen for leaf, chosen in rest.items() if chosen.rule == "instantiated"}
        if not more:
            leaves = {**instantiated, **rest}
            return Plan(tuple(leaves[leaf] for leaf in range(num_leaves)), found)
        # Their uses are data to the others, so look again.
        instantiated.update(more)


def _leaf_plan(leaf: int, found: uses.Uses, order: int, way_cost: float) -> LeafPlan:
    obstacle = found.obstacles.get(leaf)
    if obstacle is not None:
        kind = "bias or scale" if obstacle.elementwise else "used by"
        return LeafPlan("instantiated", (), f"{kind}: {obstacle.reason}", not obstacle.elementwise)
    numbers = [number for number, site in enumerate(found.sites) if site.view.leaf == leaf]
    if not numbers:
        return LeafPlan("unused", (), "the loss does not depend on it")
    grouped = groups.of_leaf(numbers, found.sites)
    if isinstance(grouped, str):
        return LeafPlan("instantiated", (), grouped, True)
    ways = tuple(_way(group, found.sites, order, way_cost) for group in grouped)
    if all(way.way == "kept" and _backward_is_as_good(way.group, found.sites) for way in ways):
        return LeafPlan("instantiated", (), "its gradient is small")
    return LeafPlan("sites", ways, _REASONS[ways[0].way])


def _way(group: Group, sites: Sequence[uses.Site], order: int, way_cost: float) -> Way:
    each = [factors.sizes(sites[number]) for number in group.sites]
    rows = [sites[number].rule in factors.LOOKUPS for number in group.sites]
    positions = sum(sizes.T for sizes in each)
    sizes = each[0]._replace(T=positions)
    return Way(group, _best(sizes, order, len(rows) == 1 and rows[0], way_cost), sizes)


def _best(sizes: factors.Sizes, order: int, is_lookup: bool, way_cost: float) -> str:
    m, positions, d, p = sizes
    held = m * d * p * _COST_OF_AN_ENTRY
    if held <= way_cost or m * positions > _MOST_POSITIONS:
        return "kept"
    if m == 1 and positions == 1:
        return "outer"
    if is_lookup:
        return "rows"
    if order == 1:
        return "kept" if d * p <= _MOST_HELD * positions * (d + p) else "recomputed"
    return "gram" if m * positions**2 * (d + p) + way_cost < held else "kept"


def _backward_is_as_good(group: Group, sites: Sequence[uses.Site]) -> bool:
    """Whether differentiation by the parameter itself makes the same product at once.

    A loop would add up products turn by turn, and a batch of convolutions has a slow gradient.
    In a checkpointed region the factors would have to be kept where the gradient is enough.
    """
    if len(group.sites) > 1:
        return False
    site = sites[group.sites[0]]
    return site.rematerialised or (site.rule == "dot_general" and not site.loops)


def flops(way: Way) -> int:
    """Multiplications for one example's norm and its part of the sum."""
    m, positions, d, p = way.sizes
    product = m * positions * d * p
    if way.way == "outer":
        return product + d + p
    if way.way == "gram":
        return product + m * positions**2 * (d + p)
    if way.way == "rows":
        return 2 * m * positions * p
    return product + (math.prod((m, d, p)) if way.way == "kept" else product)


def held_entries(way: Way) -> int:
    """Numbers held for one example from the norm to the sum, factors included."""
    m, positions, d, p = way.sizes
    if way.way == "kept":
        return m * d * p
    return m * positions * (p + (1 if way.way == "rows" else d))
