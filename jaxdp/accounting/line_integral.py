r"""delta at an epsilon by the line integral of the moment, with a bound on every error.

With M(c) = E[e^(c L)] for the loss L of the whole run under the law that it has,

.. math:: \delta(\epsilon) = E[(1 - e^{\epsilon - L})_+] = \frac{1}{2 \pi} \int
          \frac{M(c + iy) \, e^{-(c + iy) \epsilon}}{(c + iy)(1 + c + iy)} dy, \quad c > 0.

*The trapezoid rule is an upper bound.* e^(c eps) delta(eps) is the Fourier transform of the
integrand, so by Poisson summation the sum with spacing h is

.. math:: \sum_{k \in Z} e^{k c P} \delta(\epsilon + k P), \quad P = 2 \pi / h:

what it adds is non-negative, and `saddle` chooses h so that it is 1e-12 (float32: 1e-6) of delta
at most. The same goes for any part of the law that is a non-negative measure, such as that of the
runs whose largest jump lies between two cuts.

*The cut-off.* Beyond the last node Y the moment is at most its norm on a shifted contour, which
falls with y (`complex_norm`); the sum of h / (pi y^2) over the nodes beyond is at most
(1/Y + h/Y^2) / pi. For what lies between two cuts, \|prod a_j - prod b_j\| is at most the sum of
\|a_j - b_j\| over the largest of the products' other factors.

*The inner sums* are off by their trapezoid rule (bounded by norms at other shifts) and by rounding
(bounded term by term): an error e in log M makes a term off by e^e - 1 of itself at most.

Sums are over exp(scale) so that nothing underflows however small delta is.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.accounting import complex_functions, complex_moment, complex_norm, contour, saddle
from jaxdp.accounting.saddle import Line, Run

CHUNK = 64  # nodes of the line in one go


class Integral(NamedTuple):
    """One line integral, over exp(scale)."""

    value: Any  # the trapezoid sum
    error: Any  # bound on how far it is from its exact value
    slope: Any  # minus its derivative in epsilon
    slope_error: Any  # bound on how far that is off
    bend: Any  # its second derivative
    most_bend: Any  # bound on that for epsilon nearby
    scale: Any
    chunks: Any  # int32, how many chunks of nodes it took


class Gradient(NamedTuple):
    """Derivatives of an integral's value in the numbers of the run, over exp(scale)."""

    mu_squared: Any
    q: Any  # [n]
    s: Any  # [n]
    count: Any  # [n]


class _Component(NamedTuple):
    """One component's part on one chunk of the line."""

    log_moment: Any  # count * log m, of the law below the first cut [nodes]
    gap: Any  # count * (log m below the second cut - log m below the first) [nodes]
    error: Any  # bound on the error of log_moment [nodes]
    gap_error: Any  # bound on the error of gap that what lies between makes [nodes]
    upper_error: Any  # bound on the error of log_moment + gap [nodes]
    decay: Any  # bound on count * log |m / m(c)| beyond the chunk
    log_between: Any  # log of a bound on count * |what lies between the cuts| / m(c) beyond


class _Choice(NamedTuple):
    shift: Any  # of the inner contour, in standard deviations
    scale: Any  # log of the inner sums on the real axis, where that is large
    at_rest: Any  # norms on the real axis
    log_between: Any  # log of a bound on what lies between the cuts, beyond the chunk
    rule_error: Any  # of the inner sums below the first cut [nodes]
    between_error: Any  # of those between the cuts [nodes]


def _contour(line: Line, q, s, remove) -> contour.Contour:
    cuts = saddle.log_cut(line.cut, q)
    cut = line.cut.size > 0
    until = cuts[-1] if cut else None
    return contour.contour(q, s, cuts, line.c, remove, fine=cut, until=until)


def _choose(nodes: contour.Contour, line: Line, y: jax.Array, beyond: Any) -> _Choice:
    """The shift of the inner contour that serves a chunk of nodes best.

    Coarse norms choose it, and the shifts whose norms bound the error of the rule; those norms
    are then found on as many nodes as make them right.
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

    def reached(part):
        """What a norm further up or down bounds the rule's error by, at the worse end [k, k]."""
        norm = jnp.max(getattr(rough, part), axis=0)
        return in_ulps(part, norm[None, :] - fall)

    def cost(part):
        """The larger of rounding and rule, in ulps [k]."""
        up = jnp.min(jnp.where(apart > 0, reached(part), jnp.inf), axis=1)
        down = jnp.min(jnp.where(apart < 0, reached(part), jnp.inf), axis=1)
        norm = jnp.max(getattr(rough, part), axis=0) + math.log(float(jnp.finfo(y.dtype).eps))
        return jnp.maximum(in_ulps(part, norm), jnp.maximum(up, down))

    usable = (contour.SHIFTS >= 0) & (np.arange(contour.SHIFTS.size) < contour.SHIFTS.size - 1)
    costs = [jnp.where(usable, cost(part), jnp.inf) for part in parts]
    best = jnp.argmin(functools.reduce(jnp.maximum, costs))
    # Of those that make the rule's error small beside rounding the nearest, whose norms are tamest.
    over = functools.reduce(jnp.maximum, [reached(part)[best] for part in parts])
    over = jnp.maximum(over, -3.0) + 1e-3 * jnp.abs(apart[best])
    up = jnp.argmin(jnp.where(apart[best] > 0, over, jnp.inf))
    down = jnp.argmin(jnp.where(apart[best] < 0, over, jnp.inf))
    sure = complex_norm.log_norms(
        nodes, line.c, ends, jnp.stack([shifts[up], shifts[down]]), y[-1], every
    )
    taken = jnp.stack([fall[best, up], fall[best, down]])
    scale = jnp.where(rest.upper > 1.0, rest.upper, 0.0)

    def rule_error(part):
        # The logs of norms are convex in y: between two nodes they lie below the chord.
        along = ((y - y[0]) / (y[-1] - y[0]))[:, None]
        first, last = getattr(sure, part)
        norm = first[None, :] * (1.0 - along) + last[None, :] * along
        # At the ends themselves nothing may be made of 0 times an infinite one.
        norm = jnp.where(along == 0.0, first[None, :], jnp.where(along == 1.0, last[None, :], norm))
        # Norms are right to a few per cent: twice that covers it.
        log_error = jax.nn.logsumexp(norm - taken[None, :], axis=1) + math.log(2.0)
        return jnp.exp(log_error - scale)

    far = jnp.full_like(beyond, -jnp.inf)
    if cut:
        furthest = shifts[jnp.argmin(jnp.where(usable, rough.between[1], jnp.inf))]
        far = complex_norm.log_norms(
            nodes, line.c, beyond[None], furthest[None], y[-1], every
        ).between[0, 0]
    return jax.lax.stop_gradient(
        _Choice(
            shifts[best],
            scale,
            rest,
            far - rest.upper + math.log(2.0),
            rule_error("excess"),
            rule_error("between") if cut else jnp.zeros_like(y),
        )
    )


def _logs(nodes, line: Line, y, choice: _Choice) -> tuple[jax.Array, jax.Array, Any]:
    """log m below the first cut, and what it takes to get below the second, with the sums."""
    orders = jax.lax.complex(jnp.broadcast_to(line.c, y.shape), y)
    found = complex_moment.moments(nodes, orders, choice.shift, choice.scale)
    unit = jnp.exp(-choice.scale)
    small = found.small[:, 0] if line.cut.size > 0 else found.excess
    scaled = choice.scale + complex_functions.log(unit + small)
    log_moment = jnp.where(choice.scale > 0.0, scaled, complex_functions.log1p(small))
    if line.cut.size == 0:
        return log_moment, jnp.zeros_like(log_moment), found
    return log_moment, complex_functions.log1p(found.between[:, 0] / (unit + small)), found


def _floored(moment: jax.Array) -> jax.Array:
    """|m|, at least where ``log1p`` puts it."""
    floor = math.sqrt(float(jnp.finfo(moment.real.dtype).tiny))
    return jnp.maximum(jnp.abs(moment), floor)


def _component(line: Line, y: jax.Array, beyond: jax.Array, row: Any, remove) -> _Component:
    q, s, count = row
    ulp = float(jnp.finfo(y.dtype).eps)
    nodes = _contour(line, q, s, remove)
    choice = _choose(nodes, line, y, beyond)
    log_moment, gap, found = _logs(nodes, line, y, choice)
    unit = jnp.exp(-choice.scale)
    cut = line.cut.size > 0
    small = unit + (found.small[:, 0] if cut else found.excess)
    at_rest = choice.at_rest.lower
    error = (found.small_error[:, 0] if cut else found.error) + choice.rule_error
    error = error + 8.0 * ulp * jnp.where(choice.scale > 0.0, unit, 0.0)
    gap_error = upper_error = jnp.zeros_like(error)
    if cut:
        upper = _floored(small + found.between[:, 0])
        between_error = found.between_error[:, 0] + choice.between_error
        gap_error, upper_error = between_error / upper, (error + between_error) / upper
    return _Component(
        count * log_moment,
        count * gap,
        # |(m + e)^n - m^n| <= |m|^n (exp(n log(1 + |e / m|)) - 1), however large e is.
        count * jnp.log1p(error / _floored(small)),
        count * jnp.log1p(gap_error),
        count * jnp.log1p(upper_error),
        # Without the floor a count of 0 times minus infinity would be a NaN.
        count * jnp.maximum(complex_norm.log_decay(nodes, line.c, beyond, at_rest), -1e6),
        jnp.log(count) + choice.log_between,
    )


def chunk(run: Run, line: Line, index: jax.Array, remove) -> tuple[Any, ...]:
    """The moment of the whole run on one chunk of nodes."""
    dtype = line.c.dtype
    grid = (index * CHUNK + jnp.arange(CHUNK)).astype(dtype)
    y = line.spacing * grid
    beyond = y[-1] + line.spacing
    x = jax.lax.complex(jnp.broadcast_to(line.c, y.shape), y)

    def add(total, row):
        part = _component(line, y, beyond, row, remove)
        log_between = jnp.logaddexp(total.log_between, part.log_between)
        total = _Component(*(old + new for old, new in zip(total, part, strict=True)))
        return total._replace(log_between=log_between), None

    nothing = jnp.zeros_like(y)
    start = _Component(
        0.5 * x * (1.0 + x) * run.mu_squared,
        jnp.zeros_like(x),
        nothing,
        nothing,
        nothing,
        -0.5 * beyond * beyond * run.mu_squared,
        jnp.full((), -jnp.inf, dtype),
    )
    total, _ = jax.lax.scan(add, start, (run.q, run.s, run.count))
    weight = jnp.where(grid == 0, 0.5, 1.0) * (line.spacing / math.pi)
    return x, weight / (x * (1.0 + x)), total, beyond


def growth(log_size: jax.Array, exponent_error: jax.Array) -> jax.Array:
    """By how much a term is off at most, given a bound on the error of its log."""
    small = exponent_error < 1.0
    near = jnp.exp(log_size) * jnp.expm1(jnp.where(small, exponent_error, 0.0))
    return jnp.where(small, near, jnp.exp(jnp.minimum(log_size + exponent_error, 80.0)))


def integrate(
    run: Run,
    epsilon: jax.Array,
    line: Line,
    remove: jax.Array,
    most_chunks: Any,
    log_known: jax.Array,
    log_delta: jax.Array,
) -> Integral:
    """delta of the whole law, of that below one cut, or of what lies between two.

    Args:
      run: The run.
      epsilon: Scalar.
      line: Where to integrate, and which part of the law.
      remove: Bool scalar, whether the example is removed or added.
      most_chunks: Int32 scalar, after how many chunks to stop; what is cut off is in the error.
      log_known: Log of what other parts of the law have: this one need be known to the digits of
        that only.
      log_delta: Log of about what the law has: what is not known to ten times that is given up.
    """
    dtype = epsilon.dtype
    ulp = float(jnp.finfo(dtype).eps)
    tolerance = 1e-11 if dtype == jnp.float64 else 1e-6
    scale = line.log_moment - line.c * epsilon
    known, expected = (jnp.exp(jnp.minimum(at - scale, 80.0)) for at in (log_known, log_delta))
    cut = line.cut.size > 0

    def add_chunk(carry):
        index, sums, _, top = carry
        x, weight, total, beyond = chunk(run, line, index, remove)
        term = jnp.exp(total.log_moment - x * epsilon - scale) * weight
        rounding = ulp * (16.0 + jnp.abs(total.log_moment) + jnp.abs(x) * epsilon)
        log_size = (total.log_moment - x * epsilon).real - scale
        share = jnp.abs(weight)
        error = share * growth(log_size, total.error + rounding)
        size = jnp.abs(term)
        if cut:
            # e^(A + G) - e^A, whose error is bounded in either form.
            rounding = rounding + 8.0 * ulp * jnp.abs(total.gap)
            factor = complex_functions.expm1(total.gap)
            log_upper = log_size + total.gap.real
            upper_off = growth(log_upper, total.upper_error + rounding)
            gap_off = growth(log_upper, total.gap_error + 8.0 * ulp * jnp.abs(total.gap))
            known = total.error + rounding < 1e-3
            product = jnp.abs(factor) * error + 1.01 * share * gap_off
            product = jnp.where(known, product, jnp.inf)
            difference = share * upper_off + error
            error = jnp.where(line.between, jnp.minimum(product, difference), error)
            term = jnp.where(line.between, term * factor, term)
            size = jnp.abs(term)
        new = (
            jnp.sum(term.real),
            jnp.sum(error),
            jnp.sum((term * x).real),
            jnp.sum(error * jnp.abs(x)),
            jnp.sum((term * x * x).real),
            jnp.sum(size * jnp.abs(x) ** 2),
        )
        # The first node lies on the real axis, where moments are largest.
        upper = jnp.where(line.between, total.gap[0].real, 0.0)
        top = jnp.where(index == 0, total.log_moment[0].real + upper, top)
        gaussian = -0.5 * beyond * beyond * run.mu_squared
        log_tail = jnp.where(line.between, total.log_between + gaussian, total.decay)
        log_tail = log_tail + jnp.log(1.0 / beyond + line.spacing / beyond / beyond)
        log_tail = log_tail + top - line.c * epsilon - scale - math.log(math.pi)
        sums = tuple(old + part for old, part in zip(sums, new, strict=True))
        return index + 1, sums, jnp.exp(jnp.minimum(log_tail, 80.0)), top

    def unfinished(carry):
        index, sums, tail, _ = carry
        size = jnp.maximum(jnp.abs(sums[0]), known)
        hopeless = ~(sums[1] <= 10.0 * jnp.maximum(size, expected))
        unsettled = (tail > tolerance * size) & ~hopeless
        return (index < most_chunks) & ((index == 0) | unsettled)

    zero = jnp.zeros((), dtype)
    start = (jnp.zeros((), jnp.int32), (zero,) * 6, jnp.full((), jnp.inf, dtype), zero)
    index, sums, tail, _ = jax.lax.while_loop(unfinished, add_chunk, start)
    value, error, slope, slope_error, bend, most_bend = sums
    # Norms fall at least as fast as 1 / y^2 where they are negligible at all.
    far = line.spacing * CHUNK * index.astype(dtype)
    slope_error = slope_error + 4.0 * tail * (line.c + far)
    return Integral(value, error + tail, slope, slope_error, bend, most_bend, scale, index)


def gradient(
    run: Run, epsilon: jax.Array, line: Line, remove: jax.Array, chunks: jax.Array
) -> Gradient:
    """Derivatives of the value of ``integrate``, on as many chunks, by the chain rule."""
    scale = line.log_moment - line.c * epsilon

    def add_chunk(index, sums):
        x, weight, total, _ = chunk(run, line, index, remove)
        low = jnp.exp(total.log_moment - x * epsilon - scale) * weight
        # For e^(A + G) - e^A: the derivative in A, and that in G.
        by_gap = jnp.where(line.between, low * jnp.exp(total.gap), 0.0)
        by_log = jnp.where(line.between, low * complex_functions.expm1(total.gap), low)
        y = x.imag

        def add(_, row):
            q, s, count = row
            choice = _choose(_contour(line, q, s, remove), line, y, y[-1] + line.spacing)

            def logs(q, s):
                return _logs(_contour(line, q, s, remove), line, y, choice)[:2]

            def weigh(log_moment, gap):
                return jnp.sum((by_log * log_moment + by_gap * gap).real)

            value, by_q = jax.jvp(lambda q: logs(q, s), (q,), (jnp.ones_like(q),))
            _, by_s = jax.jvp(lambda s: logs(q, s), (s,), (jnp.ones_like(s),))
            return None, (count * weigh(*by_q), count * weigh(*by_s), weigh(*value))

        _, rows = jax.lax.scan(add, None, (run.q, run.s, run.count))
        gaussian = jnp.sum((by_log * 0.5 * x * (1.0 + x)).real)
        return Gradient(
            sums.mu_squared + gaussian, *(a + b for a, b in zip(sums[1:], rows, strict=True))
        )

    zeros = jnp.zeros_like(run.q)
    start = Gradient(jnp.zeros_like(epsilon), zeros, zeros, zeros)
    return jax.lax.fori_loop(0, chunks, add_chunk, start)
