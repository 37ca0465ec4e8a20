"""Convolutions in the one layout that XLA on CPU computes fast inside a loop.

XLA's CPU compiler brings convolutions into the layout that its fast kernels want, but only in
the outermost computation of a program: in the body of a loop the gradients of a convolution
run in code that is 10 to 20 times slower. Local training is a loop, so its convolutions
are written in that layout to begin with. The transpositions change no value.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from jaxdp.clipping import tapping

_CALLS = ("pjit", "jit")


def in_fast_layout(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its convolutions, gradients' included, in the fast layout."""

    def rewritten(*args):
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        if not _has_convolution(closed.jaxpr):
            return fn(*args)
        outputs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return rewritten


def _is_convolution(equation: Any) -> bool:
    return equation.primitive.name == "conv_general_dilated"


def _has_convolution(jaxpr: Any) -> bool:
    return any(
        _is_convolution(equation)
        or (equation.primitive.name in _CALLS and _has_convolution(equation.params["jaxpr"].jaxpr))
        for equation in jaxpr.eqns
    )


def _evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr")
        if _is_convolution(equation):
            outputs = [_convolve(values[0], values[1], equation.params)]
        elif equation.primitive.name in _CALLS and _has_convolution(inner.jaxpr):
            outputs = _evaluate(inner.jaxpr, inner.consts, values)
        else:
            outputs = tapping.bind(jaxpr, equation, values)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _convolve(inputs: jax.Array, kernel: jax.Array, params: dict[str, Any]) -> jax.Array:
    """The convolution with operands and result transposed to batch, space, features."""
    numbers = params["dimension_numbers"]
    batch, features, *space = numbers.lhs_spec
    out_features, in_features, *window = numbers.rhs_spec
    out_batch, out_channels, *out_space = numbers.out_spec
    last = len(space) + 1
    places = range(1, last)
    fast = jax.lax.ConvDimensionNumbers(
        lhs_spec=(0, last, *places),
        rhs_spec=(last, last - 1, *range(last - 1)),
        out_spec=(0, last, *places),
    )
    result = jax.lax.conv_general_dilated(
        inputs.transpose(batch, *space, features),
        kernel.transpose(*window, in_features, out_features),
        dimension_numbers=fast,
        **{name: params[name] for name in _PASSED_ON},
    )
    order = (out_batch, *out_space, out_channels)
    return result.transpose([order.index(axis) for axis in range(last + 1)])


_PASSED_ON = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "feature_group_count",
    "batch_group_count",
    "precision",
    "preferred_element_type",
)
