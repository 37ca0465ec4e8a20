r"""delta at an epsilon by the line integral of the moment at complex orders, with error bounds.

With M(c) = E_P[e^(c L)] for the loss L of the whole run,

.. math:: \delta(\epsilon) = \frac{1}{2 \pi} \int \frac{M(c + iy) e^{-(c + iy) \epsilon}}
          {(c + iy)(1 + c + iy)} dy, \quad c > 0.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import complex_moment, saddle
from jaxdp.accounting.saddle import Line, Run

_CHUNK = 64  # nodes of the line in one go


class Integral(NamedTuple):
    """One line integral, over exp(scale)."""

    value: Any  # the trapezoid sum
    slope: Any  # minus its derivative in epsilon
    bend: Any  # its second derivative
    most_bend: Any  # bound on that around epsilon
    error: Any  # bound on what rounding, the inner sums and the cut-off do to the value
    scale: Any
    chunks: Any  # int32, how many chunks of nodes it took


class _Step(NamedTuple):
    """One component's part on one chunk of the line."""

    log_moment: Any  # count * log of m, or of the part below the cut [nodes]
    gap: Any  # count * (log m below the second cut - log m below the first) [nodes]
    error: Any  # bound on the error of log_moment [nodes]
    gap_error: Any
    decay: Any  # bound on count * log |m / m(c)| beyond the chunk, or on that below the cut
    big: Any  # log of a bound on count * |part between the cuts| / m(c) beyond the chunk


def _component(line: Line, y, beyond, row, remove) -> _Step:
    q, s, count = row
    dtype = q.dtype
    c = line.c
    cut, between = line.cut.size > 0, line.cut.size > 1
    cuts = saddle.log_cut(line.cut, q)
    until = cuts[-1] if cut else None
    contour = complex_moment.contour(q, s, cuts, c, remove, fine=cut, until=until)
    step = jnp.minimum(0.2 * s, 1.0)
    shifts = step * jnp.asarray(complex_moment.SHIFTS, dtype)
    first, last = (
        complex_moment.log_norms(contour, c, at, shifts) for at in (y[0], y[-1])
    )
    at_rest = complex_moment.log_norms(contour, c, jnp.zeros_like(c), jnp.zeros((1,), dtype))
    ulp = float(jnp.finfo(dtype).eps)
    steps = jnp.asarray(complex_moment.SHIFTS, dtype)
    apart = steps[None, :] - steps[:, None]
    fall = 2.0 * math.pi * step / contour.spacing * jnp.abs(apart)

    def alias(norm):
        """How far the trapezoid rule of the inner sum is off, for each shift: up or down."""
        reached = norm[..., None, :] - fall
        up = jnp.min(jnp.where(apart > 0, reached, jnp.inf), axis=-1)
        down = jnp.min(jnp.where(apart < 0, reached, jnp.inf), axis=-1)
        return jnp.logaddexp(up, down) + math.log(2.0)

    def worst(part):
        """The larger of rounding and rule at either end, in ulps of the part at y = 0."""
        most = jnp.maximum(getattr(first, part), getattr(last, part))
        rule = jnp.maximum(alias(getattr(first, part)), alias(getattr(last, part)))
        return jnp.maximum(most, rule - math.log(ulp)) - getattr(at_rest, part)[0]

    cost = jnp.maximum(worst("excess"), worst("between")) if between else worst("excess")
    usable = (complex_moment.SHIFTS >= 0) & (complex_moment.SHIFTS < complex_moment.SHIFTS[-1])
    best = jnp.argmin(jnp.where(usable, cost, jnp.inf))

    def rule_error(part):
        # Norms are log-convex in y: between two nodes they lie below the chord.
        at = ((y - y[0]) / jnp.maximum(y[-1] - y[0], jnp.finfo(dtype).tiny))[:, None]
        norm = getattr(first, part) * (1.0 - at) + getattr(last, part) * at
        return jnp.exp(alias(norm)[:, best] - scale)

    # One scale for the component: its moment on the real axis, where that is large.
    scale = jnp.where(at_rest.upper[0] > 1.0, at_rest.upper[0], 0.0)
    found = complex_moment.moments(
        contour, jax.lax.complex(c + 0.0 * y, y), shifts[best], scale + 0.0 * y
    )
    unit = jnp.exp(-scale)
    small = found.small[:, 0] if cut else found.excess
    log_small = jnp.where(scale > 0.0, scale + jnp.log(unit + small), complex_moment.log1p(small))
    error = found.small_error[:, 0] if cut else found.error
    error = error + rule_error("excess") + 8.0 * ulp * unit * (scale > 0.0)
    gap, gap_error = jnp.zeros_like(small), jnp.zeros_like(error)
    if between:
        part = found.between[:, 0]
        gap = complex_moment.log1p(part / (unit + small))
        gap_error = found.between_error[:, 0] + rule_error("between")
        gap_error = gap_error / jnp.abs(unit + small + part)
    decay = count * complex_moment.log_decay(contour, c, beyond)
    log_big = jnp.full_like(decay, -jnp.inf)
    if between:
        far = complex_moment.log_norms(contour, c, beyond, shifts[6:])
        log_big = jnp.log(count) + jnp.min(far.between) - at_rest.upper[0] + math.log(2.0)
    return _Step(
        count * log_small,
        count * gap,
        count * error / jnp.abs(unit + small),
        count * gap_error,
        decay,
        log_big,
    )


def integrate(
    run: Run, epsilon, line: Line, remove, tolerance, most_chunks
) -> Integral:
    """delta of the whole law, of that below one cut, or of what lies between two."""
    dtype = epsilon.dtype
    ulp = float(jnp.finfo(dtype).eps)
    c = line.c
    scale = line.log_moment - c * epsilon
    rows = (run.q, run.s, run.count)
    between = line.cut.size > 1

    def add_chunk(carry):
        index, sums, _, top = carry
        grid = (index * _CHUNK + jnp.arange(_CHUNK)).astype(dtype)
        y = line.spacing * grid
        beyond = y[-1] + line.spacing
        x = jax.lax.complex(c + 0.0 * y, y)
        gaussian = 0.5 * x * (1.0 + x) * run.mu_squared
        def add(total, row):
            step = _component(line, y, beyond, row, remove)
            log_big = jnp.logaddexp(total.big, step.big)
            total = _Step(*(a + b for a, b in zip(total, step, strict=True)))
            return total._replace(big=log_big), None

        nothing = jnp.zeros_like(y)
        start = _Step(
            gaussian, nothing + 0.0 * x, nothing, nothing,
            -0.5 * beyond * beyond * run.mu_squared, jnp.full((), -jnp.inf, dtype),
        )  # fmt: skip
        total, _ = jax.lax.scan(add, start, rows)
        weight = jnp.where(grid == 0, 0.5, 1.0) * (line.spacing / math.pi)
        term = jnp.exp(total.log_moment - x * epsilon - scale) / (x * (1.0 + x)) * weight
        relative = total.error + ulp * (16.0 + jnp.abs(total.log_moment) + jnp.abs(x) * epsilon)
        # An exponent off by r makes the term off by e^r - 1 of itself at most.
        relative = jnp.expm1(jnp.minimum(relative, 60.0))
        size = jnp.abs(term)
        if between:
            factor = complex_moment.expm1(total.gap)
            grown = jnp.abs(jnp.exp(total.gap))
            error = size * (jnp.abs(factor) * relative + grown * (total.gap_error + ulp * 8.0 * jnp.abs(total.gap)))
            term, size = term * factor, size * jnp.abs(factor)
        else:
            error = size * relative
        new = (
            jnp.sum(term.real),
            jnp.sum((term * x).real),
            jnp.sum((term * x * x).real),
            jnp.sum(size * jnp.abs(x) ** 2),
            jnp.sum(error),
        )
        # The first node lies on the real axis; the rest is bounded through the whole law.
        real = (total.log_moment + total.gap if between else total.log_moment)[0].real
        top = jnp.where(index == 0, real, top)
        beyond_gaussian = -0.5 * beyond * beyond * run.mu_squared
        decay = total.big + beyond_gaussian if between else total.decay
        log_tail = jnp.log(1.0 / beyond + line.spacing / beyond / beyond) - math.log(math.pi)
        log_tail = log_tail + decay + top - c * epsilon - scale
        tail = jnp.exp(jnp.minimum(log_tail, 80.0))
        sums = tuple(old + part for old, part in zip(sums, new, strict=True))
        return index + 1, sums, tail, top

    def unfinished(carry):
        index, sums, tail, _ = carry
        unsettled = (index == 0) | ((tail > tolerance * jnp.abs(sums[0])) & jnp.isfinite(sums[0]))
        return (index < most_chunks) & unsettled

    zero = jnp.zeros((), dtype)
    start = (jnp.zeros((), jnp.int32), (zero,) * 5, jnp.full((), jnp.inf, dtype), zero)
    index, sums, tail, _ = jax.lax.while_loop(unfinished, add_chunk, start)
    value, slope, bend, most_bend, error = sums
    return Integral(value, slope, bend, most_bend, error + tail, scale, index)
