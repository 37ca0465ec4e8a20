"""Where a loss uses its parameters: the sites of known form, and a reason for every other use.

A site is an equation of the loss's jaxpr that combines one view of one parameter with data,
linearly in the parameter: a matrix product, a convolution, an embedding lookup.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import Literal

from jaxdp.clipping import views
from jaxdp.clipping.views import View

CALLS = ("jit", "pjit", "closed_call", "core_call")
REMATERIALISED = ("remat2", "checkpoint", "remat")
_SHOWING = ("debug_callback", "debug_print")
# Uses that are no fallback: the gradient of a bias or a scale is as small as a gradient gets.
_SUMS = ("add", "sub", "add_any")
_PRODUCTS = ("mul", "div", "max", "min", "select_n")


class Site(NamedTuple):
    """One use of a parameter in a known form.

    Args:
      rule: The equation's primitive: "dot_general", "conv_general_dilated", "gather" or
        "dynamic_slice".
      view: The parameter as the equation sees it.
      position: Which operand of the equation the view is.
      data_position: Which operand the data is.
      params: The equation's static parameters.
      view_shape: Shape of the view.
      data: Shape and dtype of the other operand, of one example and one turn of the loops.
      output: Shape and dtype of the equation's result.
      loops: Lengths of the loops around it, outermost first.
      rematerialised: Whether it is inside ``jax.checkpoint``.
    """

    rule: str
    view: View
    position: int
    data_position: int
    params: dict[str, Any]
    view_shape: tuple[int, ...]
    data: Any
    output: Any
    loops: tuple[int, ...]
    rematerialised: bool


class Obstacle(NamedTuple):
    """A use that is no site, and whether it is one of a bias or a scale."""

    reason: str
    elementwise: bool


class Actions(NamedTuple):
    """What to do at the equations of one jaxpr, by their place.

    Args:
      sites: Place of the equation to the number of the site.
      calls: Place of the equation to the actions inside it.
    """

    sites: dict[int, int]
    calls: dict[int, "Actions"]

    def site_numbers(self) -> list[int]:
        inner = [number for actions in self.calls.values() for number in actions.site_numbers()]
        return [*self.sites.values(), *inner]


class Uses(NamedTuple):
    """All uses of the parameters by a loss."""

    actions: Actions
    sites: list[Site]
    obstacles: dict[int, Obstacle]  # by the parameter's place among the leaves


def find(jaxpr: Any, num_leaves: int, as_data: Iterable[int]) -> Uses:
    """Finds every use through which the loss, the first output, depends on a parameter.

    Args:
      jaxpr: The loss's jaxpr; its first inputs are the parameters' leaves.
      num_leaves: How many they are.
      as_data: Leaves that are not looked at: they count as data.

    Returns:
      The uses. A leaf without an obstacle is used at the sites that name it and nowhere else.
    """
    skipped = set(as_data)
    values: list[View | None] = [
        View(place) if place < num_leaves and place not in skipped else None
        for place in range(len(jaxpr.invars))
    ]
    finder = _Finder([], {})
    matters = [place == 0 for place in range(len(jaxpr.outvars))]
    actions, outputs = finder.walk(jaxpr, values, matters, (), False)
    finder.block(outputs[:1], Obstacle("the loss itself, independent of the example", False))
    return Uses(actions, finder.sites, finder.obstacles)


class _Finder(NamedTuple):
    sites: list[Site]
    obstacles: dict[int, Obstacle]

    def block(self, values: Iterable[View | None], obstacle: Obstacle) -> None:
        for view in values:
            if view is not None:
                known = self.obstacles.get(view.leaf)
                if known is None or known.elementwise:
                    self.obstacles[view.leaf] = obstacle

    def walk(
        self,
        jaxpr: Any,
        inputs: Sequence[View | None],
        matters: Sequence[bool],
        loops: tuple[int, ...],
        rematerialised: bool,
    ) -> tuple[Actions, list[View | None]]:
        """Follows the views through one jaxpr."""
        actions = Actions({}, {})
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        reaching = _reaching(jaxpr, matters)

        def read(atom):
            return None if isinstance(atom, Literal) else known.get(atom)

        for place, equation in enumerate(jaxpr.eqns):
            operands = [read(atom) for atom in equation.invars]
            used = [view for view in operands if view is not None]
            outputs: Sequence[View | None] = [None] * len(equation.outvars)
            name = equation.primitive.name
            flows = _may_write(equation) or any(var in reaching for var in equation.outvars)
            if used and flows and name != "stop_gradient":
                moved = views.step_outputs(equation, used[0]) if len(used) == 1 else None
                site = _site(equation, operands, loops, rematerialised)
                if moved is not None:
                    outputs = moved
                elif isinstance(site, Site) and _is_empty(site):
                    pass  # No position: its gradient is zero.
                elif isinstance(site, Site):
                    actions.sites[place] = len(self.sites)
                    self.sites.append(site)
                elif name in CALLS or name in REMATERIALISED or name == "scan":
                    inner = self._inside(equation, operands, reaching, loops, rematerialised)
                    actions.calls[place], outputs = inner
                else:
                    self.block(used, _obstacle(equation, operands, site, jaxpr))
            known.update(zip(equation.outvars, outputs, strict=True))
        return actions, [read(atom) for atom in jaxpr.outvars]

    def _inside(self, equation, operands, reaching, loops, rematerialised):
        matters = [var in reaching for var in equation.outvars]
        jaxpr = open_jaxpr(equation.params["jaxpr"])
        if equation.primitive.name == "scan":
            return self._loop(equation, jaxpr, operands, matters, loops, rematerialised)
        inside = rematerialised or equation.primitive.name in REMATERIALISED
        return self.walk(jaxpr, operands, matters, loops, inside)

    def _loop(self, equation, jaxpr, operands, matters, loops, rematerialised):
        length, consts, carried = (equation.params[key] for key in _LOOP_KEYS)
        inner: list[View | None] = []
        for place, view in enumerate(operands):
            if view is None:
                inner.append(None)
            elif place >= consts + carried:
                mapped = (*view.mapped, True)
                inner.append(view.then("scan", length)._replace(mapped=mapped))
            elif place < consts or jaxpr.outvars[place - consts] is jaxpr.invars[place]:
                inner.append(view._replace(mapped=(*view.mapped, False)))
            else:
                self.block([view], Obstacle("carried through a loop that changes it", False))
                inner.append(None)
        reaching = _loop_matters(jaxpr, consts, carried, matters)
        actions, outputs = self.walk(jaxpr, inner, reaching, (*loops, length), rematerialised)
        after: list[View | None] = []
        for place, view in enumerate(outputs):
            unchanged = place < carried and jaxpr.outvars[place] is jaxpr.invars[consts + place]
            after.append(operands[consts + place] if unchanged else None)
            if not unchanged and reaching[place]:
                self.block([view], Obstacle("returned by a loop", False))
        return actions, after


_LOOP_KEYS = ("length", "num_consts", "num_carry")


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr without its constants, which are no parameters."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _reaching(jaxpr: Any, matters: Sequence[bool]) -> set[Any]:
    """The variables through which a gradient of the outputs that matter flows."""
    outputs = zip(jaxpr.outvars, matters, strict=True)
    reaching = {var for var, wanted in outputs if wanted and _is_inexact(var)}
    for equation in reversed(jaxpr.eqns):
        name = equation.primitive.name
        flows = [var in reaching for var in equation.outvars]
        # What has effects may write a mutable array that a later equation reads.
        if not (any(flows) or _may_write(equation)) or name == "stop_gradient":
            continue
        wanted = [True] * len(equation.invars)
        if name in CALLS or name in REMATERIALISED or name == "scan":
            inner = open_jaxpr(equation.params["jaxpr"])
            if name == "scan":
                _, consts, carried = (equation.params[key] for key in _LOOP_KEYS)
                flows = _loop_matters(inner, consts, carried, flows)
            variables = _reaching(inner, flows)
            wanted = [var in variables for var in inner.invars]
        reaching.update(
            atom
            for atom, needed in zip(equation.invars, wanted, strict=True)
            if needed and _is_inexact(atom)
        )
    return reaching


def _may_write(equation: Any) -> bool:
    """Whether it has effects, other than to show what it is given."""
    return bool(equation.effects) and equation.primitive.name not in _SHOWING


def _is_inexact(atom: Any) -> bool:
    """Whether a gradient can flow through it."""
    dtype = getattr(atom.aval, "dtype", None)
    return (
        dtype is not None and jnp.issubdtype(dtype, jnp.inexact) and not isinstance(atom, Literal)
    )


def _loop_matters(jaxpr: Any, consts: int, carried: int, matters: Sequence[bool]) -> list[bool]:
    """Which outputs of a loop's body matter, those included that later turns read."""
    found = list(matters)
    while True:
        variables = _reaching(jaxpr, found)
        carries = jaxpr.invars[consts : consts + carried]
        more = [flag or var in variables for flag, var in zip(found, carries, strict=False)]
        more += found[carried:]
        if more == found:
            return found
        found = more


def _site(equation, operands, loops, rematerialised) -> Site | str | None:
    """The equation as a site, or why it is none although its primitive is known."""
    name, params = equation.primitive.name, equation.params
    places = [place for place, view in enumerate(operands) if view is not None]
    if name not in _FORMS:
        return None
    if len(places) != 1:
        return "a product of two parameters"
    (position,) = places
    avals = [atom.aval for atom in equation.invars]
    output = equation.outvars[0].aval
    data_position = _FORMS[name](params, avals, position)
    if data_position is None:
        return _NO_FORM[name]
    if not all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in (output, avals[position])):
        return "a product that is not real"
    return Site(
        rule=name,
        view=operands[position],
        position=position,
        data_position=data_position,
        params=dict(params),
        view_shape=avals[position].shape,
        data=avals[data_position],
        output=output,
        loops=loops,
        rematerialised=rematerialised,
    )


def _is_empty(site: Site) -> bool:
    sizes = (*site.loops, *site.view_shape, *site.data.shape, *site.output.shape)
    return 0 in sizes


def _product(params, avals, position):
    """A product with real data, from either side."""
    del params
    return 1 - position if jnp.issubdtype(avals[1 - position].dtype, jnp.floating) else None


def _convolution(params, avals, position):
    del params, avals
    return 0 if position == 1 else None


def _lookup(params, avals, position):
    """A gather of whole rows along one axis, as an embedding's."""
    numbers = params["dimension_numbers"]
    if position or numbers.operand_batching_dims or len(numbers.start_index_map) != 1:
        return None
    (axis,) = numbers.start_index_map
    known = getattr(params["mode"], "name", None) in ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")
    whole = numbers.collapsed_slice_dims == (axis,) and _is_row(params, avals[0].shape, axis)
    return 1 if known and whole else None


def _one_row(params, avals, position):
    """A slice of one row, at a place that is computed."""
    axes = [axis for axis, size in enumerate(avals[0].shape) if size != params["slice_sizes"][axis]]
    if position or len(axes) != 1 or not _is_row(params, avals[0].shape, axes[0]):
        return None
    return 1 + axes[0]


def _is_row(params, shape, axis) -> bool:
    whole = tuple(1 if place == axis else size for place, size in enumerate(shape))
    return tuple(params["slice_sizes"]) == whole


# For each primitive the place of the data operand, or None if it is not of the known form.
_FORMS: dict[str, Any] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "gather": _lookup,
    "dynamic_slice": _one_row,
}
_NO_FORM = {
    "dot_general": "a product with data that is not real floating point",
    "conv_general_dilated": "a parameter convolved by data",
    "gather": "a gather of something else than whole rows",
    "dynamic_slice": "a slice of something else than a row",
}


def _obstacle(equation, operands, site, jaxpr) -> Obstacle:
    name = equation.primitive.name
    if isinstance(site, str):
        return Obstacle(site, False)
    if name == "broadcast_in_dim":
        readers = {
            other.primitive.name
            for other in jaxpr.eqns
            if any(var is equation.outvars[0] for var in other.invars)
        }
        reason = "broadcast, then " + ", ".join(sorted(readers))
        return Obstacle(reason, readers <= {"broadcast_in_dim", *_SUMS, *_PRODUCTS})
    with_data = any(
        view is None and not isinstance(atom, Literal)
        for view, atom in zip(operands, equation.invars, strict=True)
    )
    is_vector = all(
        math.prod(atom.aval.shape) == max(atom.aval.shape, default=1)
        for view, atom in zip(operands, equation.invars, strict=True)
        if view is not None
    )
    small = is_vector and name in (*_SUMS, *_PRODUCTS)
    return Obstacle(name, small or (with_data and name in _SUMS))
