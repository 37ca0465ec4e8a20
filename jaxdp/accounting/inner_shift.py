"""The shift of the inner contour that serves a chunk of nodes best, and what its sums are off by.

Any shift gives the same sum in exact arithmetic. What differs is the size of the terms, to which
rounding is relative, and how fast the trapezoid rule converges, which norms at shifts further up
and down bound (`complex_norm`).
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.accounting import complex_norm, contour, saddle
from jaxdp.accounting.saddle import Line


class Choice(NamedTuple):
    shift: Any  # of the inner contour, in standard deviations
    scale: Any  # log of the inner sums on the real axis, where that is large
    at_rest: Any  # norms on the real axis
    log_between: Any  # log of a bound on what lies between the cuts, beyond the chunk
    rule_error: Any  # of the inner sums below the first cut [nodes]
    between_error: Any  # of those between the cuts [nodes]


def contour_of(line: Line, q, s, remove) -> contour.Contour:
    cuts = saddle.log_cut(line.cut, q)
    cut = line.cut.size > 0
    until = cuts[-1] if cut else None
    return contour.contour(q, s, cuts, line.c, remove, fine=cut, until=until)


def _partners(over: jax.Array, apart: jax.Array) -> jax.Array:
    """Of the shifts above and below those whose norms make the rule's error small [4].

    The nearest ones, since their norms are the tamest, and in case coarse nodes have missed where
    a norm grows, those a step nearer still. ``over`` is the rule's error in ulps.
    """
    over = jnp.maximum(over, -7.0) + 1e-3 * jnp.abs(apart)
    up = jnp.argmin(jnp.where(apart > 0.0, over, jnp.inf))
    down = jnp.argmin(jnp.where(apart < 0.0, over, jnp.inf))
    best = jnp.argmin(jnp.abs(apart))
    return jnp.stack([up, jnp.maximum(up - 1, best + 1), down, jnp.minimum(down + 1, best - 1)])


def choose(nodes: contour.Contour, line: Line, y: jax.Array, beyond: Any) -> Choice:
    """The shift of the inner contour that serves a chunk of nodes best.

    Coarse norms choose it, and the shifts whose norms bound the error of the rule; below a cut
    those norms are then found on as many nodes as make them right.
    """
    cut = line.cut.size > 0
    parts = ("excess", "between") if cut else ("excess",)
    every = complex_norm.EVERY_CUT if cut else complex_norm.EVERY
    steps = jnp.asarray(contour.SHIFTS, y.dtype)
    unit = contour.shift_step(nodes)
    shifts = unit * steps
    ends = jnp.stack([y[0], y[-1]])
    # Of each shift the others' norms count less, by what the rule's frequencies take away.
    apart = steps[None, :] - steps[:, None]
    fall = 2.0 * math.pi * unit / nodes.spacing * jnp.abs(apart)
    rest = complex_norm.log_norms_at_rest(nodes, line.c, y[-1], every)
    rough = complex_norm.log_norms(nodes, line.c, ends, shifts, y[-1], complex_norm.EVERY)

    def in_ulps(part, log_error):
        """Over one ulp of the part at rest. Where there is nothing, nothing can get wrong."""
        at_rest = getattr(rest, part)
        over = log_error - math.log(float(jnp.finfo(y.dtype).eps)) - at_rest
        return jnp.where(at_rest == -jnp.inf, -jnp.inf, over)

    def reached(part, end):
        """What a norm further up or down bounds the rule's error by, at one end [k, k]."""
        return in_ulps(part, getattr(rough, part)[end][None, :] - fall)

    at_ends = [
        functools.reduce(jnp.maximum, [reached(part, end) for part in parts]) for end in (0, 1)
    ]

    def cost(end):
        """The larger of rounding and rule, in ulps [k]."""
        up = jnp.min(jnp.where(apart > 0, at_ends[end], jnp.inf), axis=1)
        down = jnp.min(jnp.where(apart < 0, at_ends[end], jnp.inf), axis=1)
        log_ulp = math.log(float(jnp.finfo(y.dtype).eps))
        norms = [in_ulps(part, getattr(rough, part)[end] + log_ulp) for part in parts]
        return functools.reduce(jnp.maximum, [*norms, up, down])

    usable = (contour.SHIFTS >= 0) & (np.arange(contour.SHIFTS.size) < contour.SHIFTS.size - 1)
    best = jnp.argmin(jnp.where(usable, jnp.maximum(cost(0), cost(1)), jnp.inf))
    partners = jnp.concatenate([_partners(over[best], apart[best]) for over in at_ends])
    if cut:
        sure = complex_norm.log_norms(nodes, line.c, ends, shifts[partners], y[-1], every)
    else:
        sure = jax.tree.map(lambda norm: norm[:, partners], rough)
    taken, below = fall[best, partners], apart[best, partners] < 0.0
    scale = jnp.where(rest.upper > 1.0, rest.upper, 0.0)

    def rule_error(part):
        # The logs of norms are convex in y: between two nodes they lie below the chord.
        along = ((y - y[0]) / (y[-1] - y[0]))[:, None]
        first, last = getattr(sure, part)
        norm = first[None, :] * (1.0 - along) + last[None, :] * along
        # At the ends themselves nothing may be made of 0 times an infinite one.
        norm = jnp.where(along == 0.0, first[None, :], jnp.where(along == 1.0, last[None, :], norm))
        # Norms are right to a few per cent: twice that covers it.
        log_error = norm - taken[None, :]
        up = jnp.min(jnp.where(below, jnp.inf, log_error), axis=1)
        down = jnp.min(jnp.where(below, log_error, jnp.inf), axis=1)
        return jnp.exp(jnp.logaddexp(up, down) + math.log(2.0) - scale)

    far = jnp.full_like(beyond, -jnp.inf)
    if cut:
        furthest = shifts[jnp.argmin(jnp.where(usable, rough.between[1], jnp.inf))]
        far = complex_norm.log_norms(
            nodes, line.c, beyond[None], furthest[None], y[-1], every
        ).between[0, 0]
    return jax.lax.stop_gradient(
        Choice(
            shifts[best],
            scale,
            rest,
            far - rest.upper + math.log(2.0),
            rule_error("excess"),
            rule_error("between") if cut else jnp.zeros_like(y),
        )
    )
