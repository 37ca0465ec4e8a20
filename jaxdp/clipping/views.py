"""Views of a parameter: reshapes, transposes, slices and reversals that move its entries.

A view neither repeats nor mixes entries, so the gradient with respect to the view has the
norm of its contribution to the parameter's gradient, up to the number that the view is
multiplied by.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

# Factors beyond this might leave the range of float32 where the products do not.
_SMALLEST = 2.0**-20
# Equations that hand their first operand on as it is.
_IDENTITIES = {"copy", "copy_p", "name", "sharding_constraint", "device_put"}


class Step(NamedTuple):
    """One move of entries: "reshape", "transpose", "slice", "rev", or "scan".

    "scan" says that a loop takes the leading axis apart: what follows is applied to each
    of its entries.
    """

    name: str
    params: tuple[Any, ...]


class View(NamedTuple):
    """A parameter as some equation sees it.

    Args:
      leaf: Which parameter, by its place among the leaves.
      steps: The moves, first to last.
      mapped: For each loop around, outermost first, whether it runs over the
        parameter's entries (True) or every turn sees the same ones (False).
      factor: The number that the entries are multiplied by.
    """

    leaf: int
    steps: tuple[Step, ...] = ()
    mapped: tuple[bool, ...] = ()
    factor: float = 1.0

    def then(self, name: str, *params: Any) -> "View":
        return self._replace(steps=(*self.steps, Step(name, params)))


def step_outputs(equation: Any, view: View) -> list[View] | None:
    """The views that an equation makes of a view, or None if it does something else."""
    name, params = equation.primitive.name, equation.params
    if not equation.outvars:
        return None
    factor = _factor(equation)
    if factor is not None:
        factor *= view.factor
        return [view._replace(factor=factor)] if _is_moderate(factor) else None
    if len(equation.invars) != 1:
        return None
    before = equation.invars[0].aval
    after = equation.outvars[0].aval
    if name in _IDENTITIES and len(equation.outvars) == 1:
        return [view]
    if name == "convert_element_type":
        both = jnp.issubdtype(before.dtype, jnp.floating) & jnp.issubdtype(
            after.dtype, jnp.floating
        )
        return [view] if both else None
    if name == "reshape" and params["dimensions"] is None:
        return [view.then("reshape", *after.shape)]
    if name in ("squeeze", "expand_dims"):
        return [view.then("reshape", *after.shape)]
    if name == "broadcast_in_dim" and math.prod(after.shape) == math.prod(before.shape):
        return [view.then("reshape", *after.shape)]
    if name == "transpose":
        return [view.then("transpose", *params["permutation"])]
    if name == "rev":
        return [view.then("rev", *params["dimensions"])]
    if name == "slice":
        strides = params["strides"] or (1,) * len(before.shape)
        box = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return [view.then("slice", *(tuple(map(int, axis)) for axis in box))]
    if name == "split":
        return _split(view, before.shape, params["axis"], params["sizes"])
    return None


def _factor(equation: Any) -> float | None:
    """The number that an equation multiplies a view by, if that is what it does."""
    name = equation.primitive.name
    if name == "neg":
        return -1.0
    numbers = [atom for atom in equation.invars if isinstance(atom, Literal)]
    if name not in ("mul", "div") or len(numbers) != 1 or np.size(numbers[0].val) != 1:
        return None
    number = float(numbers[0].val)
    if name == "div":
        if numbers[0] is equation.invars[0] or not number:
            return None
        number = 1 / number
    return number


def _is_moderate(factor: float) -> bool:
    return _SMALLEST <= abs(factor) <= 1 / _SMALLEST


def _split(view: View, shape: tuple[int, ...], axis: int, sizes: Any) -> list[View]:
    outputs, start = [], 0
    for size in map(int, sizes):
        box = [(0, length, 1) for length in shape]
        box[axis] = (start, start + size, 1)
        outputs.append(view.then("slice", *box))
        start += size
    return outputs


def look(steps: tuple[Step, ...], value: jax.Array) -> jax.Array:
    """The view of a value with the parameter's shape."""
    for index, (name, params) in enumerate(steps):
        if name == "scan":
            rest = steps[index + 1 :]
            return jax.vmap(lambda entry, rest=rest: look(rest, entry))(value)
        if name == "reshape":
            value = value.reshape(params)
        elif name == "transpose":
            value = value.transpose(params)
        elif name == "rev":
            value = jax.lax.rev(value, params)
        else:
            value = jax.lax.slice(value, *zip(*params, strict=True)) if params else value
    return value


def put_back(view: View, shape: tuple[int, ...], viewed: jax.Array) -> jax.Array:
    """The array of the parameter's shape that is zero but for the viewed entries."""
    whole = jax.ShapeDtypeStruct(shape, viewed.dtype)
    (value,) = jax.linear_transpose(lambda leaf: look(view.steps, leaf), whole)(viewed)
    return value


def disjoint(one: View, other: View) -> bool:
    """Whether two views of the same parameter certainly share no entry."""
    for a, b in zip(one.steps, other.steps, strict=False):
        if a != b:
            return a.name == b.name == "slice" and any(
                stop <= other_start or other_stop <= start
                for (start, stop, _), (other_start, other_stop, _) in zip(
                    a.params, b.params, strict=True
                )
            )
    return False


def without_last_transpose(view: View) -> tuple[View, tuple[int, ...] | None]:
    """The view before its last transpositions, and the axes of it that they show in order."""
    axes: tuple[int, ...] | None = None
    steps = view.steps
    while steps and steps[-1].name == "transpose":
        permutation = steps[-1].params
        axes = permutation if axes is None else tuple(permutation[axis] for axis in axes)
        steps = steps[:-1]
    return view._replace(steps=steps), axes
