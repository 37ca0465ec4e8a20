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

*Epsilons nearby.* The terms of the sum depend on epsilon by e^(-x epsilon) alone, x = c + iy: one
set of moments serves all epsilons for which a Taylor series of that, with a bound on its rest,
says enough.

Sums are over exp(scale) so that nothing underflows however small delta is.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import complex_functions, complex_moment, complex_norm
from jaxdp.accounting.inner_shift import Choice, choose, contour_of
from jaxdp.accounting.saddle import Line, Run

CHUNK = 64  # nodes of the line in one go
ORDER = 8  # of the Taylor series in epsilon
# Powers beyond may overflow: such terms are held constant.
_LARGEST_POWER = 1e3


class Integral(NamedTuple):
    """One line integral, over exp(scale), as a series in d / reach for epsilon + d."""

    series: Any  # the trapezoid sum's Taylor coefficients [ORDER + 1]
    # The same of the terms' absolute values, of which the last one bounds the rest [ORDER + 2]; the
    # first one is of terms that are held constant.
    sizes: Any
    error: Any  # bound on how far the sum is from its exact value, at d = 0
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
    gap_size: Any  # count * |log m below the second cut - log m below the first| [nodes]
    error: Any  # bound on the error of log_moment [nodes]
    gap_error: Any  # bound on the error of gap that what lies between makes [nodes]
    upper_error: Any  # bound on the error of log_moment + gap [nodes]
    decay: Any  # bound on count * log |m / m(c)| beyond the chunk
    log_between: Any  # log of a bound on count * |what lies between the cuts| / m(c) beyond


def _logs(nodes, line: Line, y, choice: Choice) -> tuple[jax.Array, jax.Array, Any]:
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
    nodes = contour_of(line, q, s, remove)
    choice = choose(nodes, line, y, beyond)
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
        count * jnp.abs(gap),
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


def _difference(exponent: jax.Array, gap: jax.Array) -> jax.Array:
    """e^(exponent + gap) - e^exponent, without overflow in between."""
    large = gap.real > 1.0
    factor = complex_functions.expm1(jnp.where(large, 0.0, gap))
    low = jnp.exp(exponent)
    return jnp.where(large, jnp.exp(exponent + gap) - low, low * factor)


def _difference_error(log_size: jax.Array, total: _Component, rounding: jax.Array) -> jax.Array:
    r"""Bound on the error of e^(A + G) - e^A, the least of three.

    The difference is the sum, over all steps, of :math:`\prod s \cdot b \cdot \prod (s + b)` for
    what lies between, b, and what lies below, s. Where all b / s are small together, the error of
    either product counts once for each b; where errors are small, it counts as one of a product;
    else both are off.
    """
    ulp = float(jnp.finfo(log_size.dtype).eps)
    gap_error = total.gap_error + 8.0 * ulp * total.gap_size
    exponent_error = total.error + total.upper_error + rounding
    either = growth(log_size, exponent_error)
    by_steps = 1.03 * total.gap_size * either
    by_steps = by_steps + 1.04 * growth(log_size + jnp.minimum(exponent_error, 80.0), gap_error)
    by_steps = jnp.where(total.gap_size <= 0.01, by_steps, jnp.inf)
    rounding = rounding + 8.0 * ulp * jnp.abs(total.gap)
    below_off = growth(log_size, total.error + rounding)
    log_upper = log_size + total.gap.real
    is_known = (total.error + rounding < 1e-3) & (total.gap.real < 30.0)
    factor = jnp.abs(complex_functions.expm1(jnp.where(is_known, total.gap, 0.0)))
    as_product = factor * below_off + 1.01 * growth(log_upper, gap_error)
    as_product = jnp.where(is_known, as_product, jnp.inf)
    both = growth(log_upper, total.upper_error + rounding) + below_off
    return jnp.minimum(jnp.minimum(by_steps, as_product), both)


def _powers(x: jax.Array, reach: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(-x reach)^k / k! for k to ORDER [nodes, ORDER + 1], and their sizes to ORDER + 1.

    Where they might overflow the term is held constant, and the first size is 1, which is else 0.
    """
    z = -x * reach
    within = jnp.abs(z) < _LARGEST_POWER
    z = jnp.where(within, z, 0.0)
    powers = [jnp.ones_like(z)]
    for k in range(1, ORDER + 2):
        powers.append(powers[-1] * z / k)
    sizes = jnp.abs(jnp.stack(powers, axis=1))
    return jnp.stack(powers[:-1], axis=1), sizes.at[:, 0].set(jnp.where(within, 0.0, 1.0))


def integrate(
    run: Run,
    epsilon: jax.Array,
    line: Line,
    remove: jax.Array,
    most_chunks: Any,
    log_known: jax.Array,
    log_delta: jax.Array,
    reach: jax.Array,
    tolerance: jax.Array,
    patience: jax.Array,
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
      reach: The unit of the series in epsilon, > 0.
      tolerance: What may be cut off, over the value.
      patience: Give up where so many chunks would not be enough for that; infinity for never.
    """
    dtype = epsilon.dtype
    ulp = float(jnp.finfo(dtype).eps)
    scale = line.log_moment - line.c * epsilon
    known, expected = (jnp.exp(jnp.minimum(at - scale, 80.0)) for at in (log_known, log_delta))
    cut = line.cut.size > 0

    def add_chunk(carry):
        index, series, sizes, error, _, top = carry
        x, weight, total, beyond = chunk(run, line, index, remove)
        exponent = total.log_moment - x * epsilon - scale
        term = jnp.exp(exponent)
        rounding = ulp * (16.0 + jnp.abs(total.log_moment) + jnp.abs(x) * epsilon)
        log_size = exponent.real
        share = jnp.abs(weight)
        off = share * growth(log_size, total.error + rounding)
        if cut:
            between_off = _difference_error(log_size, total, rounding)
            off = jnp.where(line.between, share * between_off, off)
            term = jnp.where(line.between, _difference(exponent, total.gap), term)
        term = term * weight
        powers, power_sizes = _powers(x, reach)
        # The first node lies on the real axis, where moments are largest.
        upper = jnp.where(line.between, total.gap[0].real, 0.0)
        top = jnp.where(index == 0, total.log_moment[0].real + upper, top)
        gaussian = -0.5 * beyond * beyond * run.mu_squared
        log_tail = jnp.where(line.between, total.log_between + gaussian, total.decay)
        log_tail = log_tail + jnp.log(1.0 / beyond + line.spacing / beyond / beyond)
        log_tail = log_tail + top - line.c * epsilon - scale - math.log(math.pi)
        return (
            index + 1,
            series + jnp.sum((term[:, None] * powers).real, axis=0),
            sizes + (jnp.abs(term) + off) @ power_sizes,
            error + jnp.sum(off),
            jnp.exp(jnp.minimum(log_tail, 80.0)),
            top,
        )

    def unfinished(carry):
        index, series, _, error, tail, _ = carry
        size = jnp.maximum(jnp.abs(series[0]), known)
        hopeless = ~(error <= 10.0 * jnp.maximum(size, expected))
        # What falls this slowly will not be there in time.
        late = tail > size * tolerance ** (index / patience)
        hopeless = hopeless | (late & (index >= 4) & (patience < jnp.inf))
        unsettled = (tail > tolerance * size) & ~((index > 1) & hopeless)
        return (index < most_chunks) & ((index == 0) | unsettled)

    zero = jnp.zeros((), dtype)
    sums = jnp.zeros((ORDER + 1,), dtype), jnp.zeros((ORDER + 2,), dtype)
    start = (jnp.zeros((), jnp.int32), *sums, zero, jnp.full((), jnp.inf, dtype), zero)
    index, series, sizes, error, tail, _ = jax.lax.while_loop(unfinished, add_chunk, start)
    return Integral(series, sizes, error + tail, scale, index)


def gradient(
    run: Run, epsilon: jax.Array, line: Line, remove: jax.Array, chunks: jax.Array
) -> Gradient:
    """Derivatives of the value of ``integrate``, on as many chunks, by the chain rule."""
    scale = line.log_moment - line.c * epsilon

    def add_chunk(index, sums):
        x, weight, total, _ = chunk(run, line, index, remove)
        exponent = total.log_moment - x * epsilon - scale
        # For e^(A + G) - e^A: the derivative in A, and that in G.
        by_gap = jnp.where(line.between, jnp.exp(exponent + total.gap), 0.0) * weight
        by_log = jnp.where(line.between, _difference(exponent, total.gap), jnp.exp(exponent))
        by_log = by_log * weight
        y = x.imag

        def add(_, row):
            q, s, count = row
            choice = choose(contour_of(line, q, s, remove), line, y, y[-1] + line.spacing)

            def logs(q, s):
                return _logs(contour_of(line, q, s, remove), line, y, choice)[:2]

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
