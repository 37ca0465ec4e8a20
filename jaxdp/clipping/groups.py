"""The sites of one parameter, put together where they see the same entries.

Gradients at sites that see different entries never meet, so their squared norms add up.
Gradients at sites that see the same entries add up before the norm is taken: the factors of
such sites are laid end to end, which gives the cross terms their due.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdp.clipping import factors, views
from jaxdp.clipping.uses import Site
from jaxdp.clipping.views import View


class Group(NamedTuple):
    """Sites that see the same entries of a parameter.

    Args:
      sites: Their numbers. The axes are named as the first one names them.
      swapped: For each, whether its X and G change places to do so.
    """

    sites: tuple[int, ...]
    swapped: tuple[bool, ...]


class _Layout(NamedTuple):
    """Which axes of the parameter a site's m, d and p are."""

    view: View
    m: Any
    d: Any
    p: Any


def of_leaf(numbers: Sequence[int], sites: Sequence[Site]) -> list[Group] | str:
    """Groups the sites of one parameter, or says why they cannot be told apart."""
    # A lookup cannot change sides, so it goes first and the others follow it.
    ordered = sorted(numbers, key=lambda number: sites[number].rule not in factors.LOOKUPS)
    groups: list[Group] = []
    for number in ordered:
        layout = _layout(sites[number])
        for place, group in enumerate(groups):
            first = _layout(sites[group.sites[0]])
            if layout.view.steps == first.view.steps:
                swapped = _match(first, layout)
                if swapped is None or (swapped and sites[number].rule in factors.LOOKUPS):
                    return "several uses that see its entries in different orders"
                groups[place] = Group((*group.sites, number), (*group.swapped, swapped))
                break
            if not views.disjoint(layout.view, first.view):
                return "several uses that see overlapping parts"
        else:
            groups.append(Group((number,), (False,)))
    return groups


def _layout(site: Site) -> _Layout:
    if site.rule == "conv_general_dilated":
        numbers = site.params["dimension_numbers"]
        counts = site.params["feature_group_count"], site.params["batch_group_count"]
        return _Layout(site.view, counts, tuple(numbers.rhs_spec), "kernel")
    view, shown = views.without_last_transpose(site.view)
    m, d, p = factors.sides(site)
    if shown is not None:
        m, d, p = (tuple(shown[axis] for axis in side) for side in (m, d, p))
    return _Layout(view, m, d, p)


def _match(first: _Layout, other: _Layout) -> bool | None:
    """Whether the other's X and G must change places; None if the axes do not agree."""
    if first[1:] == other[1:]:
        return False
    if (first.m, first.d, first.p) == (other.m, other.p, other.d):
        return True
    return None


def join(group: Group, found: dict[int, factors.Factors]) -> list[factors.Factors]:
    """The factors of each site, in the first one's order of axes."""
    parts = []
    for number, swapped in zip(group.sites, group.swapped, strict=True):
        x, g = found[number]
        parts.append(factors.Factors(g, x) if swapped else factors.Factors(x, g))
    return parts
