"""Evaluates a jaxpr with a zero added at every site, so that its cotangent can be asked for.

The gradient with respect to such a zero is the cotangent of the site's result: together with
the site's data operand, recorded on the way, it is all that the parameter's gradient is made
of. Everything else is evaluated as it stands.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from jaxdp.clipping.uses import REMATERIALISED, Actions, Site, open_jaxpr


@jax.custom_jvp
def _tap(value: jax.Array, zero: jax.Array) -> jax.Array:
    """``value + zero``, without an addition in the forward pass."""
    del zero
    return value


@_tap.defjvp
def _tap_jvp(primals, tangents):
    return _tap(*primals), tangents[0] + tangents[1]


def zeros(sites: Sequence[Site]) -> dict[int, jax.Array]:
    """The zeros to differentiate by, of one example, by the number of the site."""
    return {
        number: jnp.zeros((*site.loops, *site.output.shape), site.output.dtype)
        for number, site in enumerate(sites)
    }


def evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    actions: Actions,
    sites: Sequence[Site],
    taps: dict[int, jax.Array],
) -> tuple[list[Any], dict[int, jax.Array]]:
    """Runs a jaxpr, taps included.

    Args:
      jaxpr: An open jaxpr.
      consts: Values of its constants.
      inputs: Values of its inputs.
      actions: What to do at its equations.
      sites: All sites of the loss.
      taps: One zero for each site inside, with the axes of the loops in between in front.

    Returns:
      The outputs, and the data operand of every site inside (with the same axes in front).
    """
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))
    operands: dict[int, jax.Array] = {}

    def read(atom):
        return atom.val if isinstance(atom, Literal) else known[atom]

    for place, equation in enumerate(jaxpr.eqns):
        values = [read(atom) for atom in equation.invars]
        inner = actions.calls.get(place)
        if inner is not None and (numbers := inner.site_numbers()):
            inner_taps = {number: taps[number] for number in numbers}
            outputs, more = _call(equation, values, inner, sites, inner_taps)
            operands.update(more)
        else:
            outputs = bind(jaxpr, equation, values)
        if place in actions.sites:
            number = actions.sites[place]
            operands[number] = values[sites[number].data_position]
            outputs = [_tap(outputs[0], taps[number])]
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars], operands


def bind(jaxpr: Any, equation: Any, values: Sequence[Any]) -> list[Any]:
    """The outputs of one of the jaxpr's equations, evaluated as it stands."""
    inputs = {
        atom: value
        for atom, value in zip(equation.invars, values, strict=True)
        if not isinstance(atom, Literal)
    }
    alone = jaxpr.replace(
        constvars=[], invars=list(inputs), outvars=list(equation.outvars), eqns=[equation]
    )
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*inputs.values())


def _call(equation, values, actions, sites, taps):
    """Evaluates a call, a checkpointed region or a loop that has sites inside."""
    params = equation.params
    jaxpr, consts = open_jaxpr(params["jaxpr"]), getattr(params["jaxpr"], "consts", ())

    def inside(inputs, inner_taps):
        return evaluate(jaxpr, consts, inputs, actions, sites, inner_taps)

    if equation.primitive.name == "scan":
        return _loop(params, values, inside, taps)
    if equation.primitive.name in REMATERIALISED:
        # The operands come out of the region, and so are kept; the rest is computed again.
        again = jax.checkpoint(inside, prevent_cse=params["prevent_cse"], policy=params["policy"])
        return again(values, taps)
    return inside(values, taps)


def _loop(params, values, inside, taps):
    consts, carried = params["num_consts"], params["num_carry"]
    fixed, first, slices = (
        values[:consts],
        values[consts : consts + carried],
        values[consts + carried :],
    )

    def body(carry, turn):
        turn_slices, turn_taps = turn
        outputs, operands = inside([*fixed, *carry, *turn_slices], turn_taps)
        return outputs[:carried], (outputs[carried:], operands)

    last, (stacked, operands) = jax.lax.scan(
        body,
        first,
        (slices, taps),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*last, *stacked], operands
