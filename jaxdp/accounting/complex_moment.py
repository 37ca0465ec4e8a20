r"""One step's moment at complex orders, by quadrature on a contour of its own.

For the Poisson-sampled Gaussian the loss is :math:`\ell(z) = \log(1 - q + q e^z)`, where
:math:`z \sim N(-v/2, v)`, v = 1/s^2, is the loss of the Gaussian itself. What is wanted is

.. math:: m(a) - 1 = E[e^{a \ell} - 1 - a (e^\ell - 1)] = E[e_2(a \ell)] - a E[e_2(\ell)],

with :math:`e_2(x) = e^x - 1 - x`; the subtracted term has mean 0 and takes away what would cancel.

*Shifting the contour.* The integrand is analytic in z for \|Im z\| < pi, so z may run along
:math:`r + i \theta`. There, with a = b + i y,

.. math:: |e^{a \ell}| = |1 + u|^b e^{-y \alpha}, \quad u = q (e^{r + i \theta} - 1),
          \quad \alpha = \arg(1 + u) \in [0, \theta],

and the normal density grows by exp(theta^2 / (2 v)). Three things follow from the *norm*

.. math:: N(\theta, y) = e^{\theta^2 / (2 v)} E[|1 + u|^b e^{-y \alpha}].

It bounds \|m(a)\|, and falls with y: its value at Y covers all y >= Y, which is what has to be
known where a line integral is cut off. A sum on the contour of least norm loses nothing to
cancellation, however small m is. And the error of the trapezoid rule with spacing h is at most
e^(-2 pi d / h) (N(theta + d) + N(theta - d)) for any d (Poisson summation, shifting up for the
positive frequencies and down for the negative ones).

*Big jumps.* The law may be split at a cut by the weight :math:`\chi(z) = (1 - e^{-x})^{16}`,
x = q e^z / cut: entire in z, in [0, 1] on the real line, next to 0 below the cut and to 1 above.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_CHUNK = 128  # nodes in one go
_MOST_CHUNKS = 4096
_EVERY = 4  # norms are right to a few per cent on every fourth node
_SQUARINGS = 4  # the partition's power is 2^4
# Shifts that are tried, in units of a step; beyond pi / 2 the partition would grow.
SHIFTS = np.arange(-6, 8)


class Contour(NamedTuple):
    """Equispaced nodes start + spacing (i + 1/2) that carry one step's mass."""

    q: Any  # sampling probability, inside (0, 1)
    v: Any  # variance of z
    start: Any
    spacing: Any
    chunks: Any  # int32 scalar, number of chunks of nodes
    log_cut: Any  # logs of cuts on q e^z [k], k = 0 for none


class Moments(NamedTuple):
    """Sums over one step's law at complex orders, scaled by exp(-scale)."""

    excess: Any  # m - 1, complex [n]
    error: Any  # bound on its rounding [n]
    small: Any  # m - 1 without the jumps above each cut, complex [n, k]
    small_error: Any  # bound on its rounding [n, k]
    between: Any  # what jumps from each cut to the next contribute to m, complex [n, k]
    between_error: Any  # bound on its rounding [n, k]


class LogNorms(NamedTuple):
    """Logs of integrals of absolute values over the contours with given shifts."""

    excess: Any  # of what is summed for m - 1, below the first cut
    between: Any  # of e^(a loss) from the first cut to the second
    upper: Any  # of e^(a loss) below the last cut


def _is_double(x: Any) -> bool:
    return x.dtype in (jnp.float64, jnp.complex128)


def overflow(dtype: Any) -> float:
    """The log at which sums are cut off; one that large is not to be trusted."""
    return 0.8 * math.log(float(jnp.finfo(dtype).max))


def contour(
    q: jax.Array,
    s: jax.Array,
    log_cut: jax.Array,
    least: jax.Array,
    most: jax.Array,
    *,
    fine: bool = False,
    until: jax.Array | None = None,
) -> Contour:
    """The nodes that serve all orders with real parts between ``least`` and ``most``.

    With ``until``, the log of a cut on q e^z, only what has weight below it.

    The stationary points of the tilted density satisfy z = -v/2 + v a w(z) with 0 < w < 1. For
    a < 0 they lie at most log(1 + v |a|) below the point where w falls off.
    """
    double = _is_double(s)
    sd = 1.0 / s
    v = sd * sd
    reach = (9.5 if double else 6.5) * sd
    turn = jnp.log1p(-q) - jnp.log(q)
    floor = jnp.minimum(-0.5 * v, turn - jnp.log1p(v * jnp.maximum(-least, 0.0)) - 2.0)
    left = jnp.maximum(-0.5 * v + v * jnp.minimum(least, 0.0), floor) - reach
    right = -0.5 * v + v * jnp.maximum(most, 0.0) + reach
    if until is not None:
        # Jumps beyond 148 times the last cut have no weight, but the means that are taken off
        # need all of z under P and under Q.
        right = jnp.minimum(right, jnp.maximum(until - jnp.log(q) + 5.0, 0.5 * v + reach))
    # The partition leaves less room for shifts, so that the rule needs finer steps.
    finest = (0.1 if fine else 0.2) if double else (0.15 if fine else 0.25)
    spacing = jnp.minimum((0.5 if double else 0.6) * sd, finest)
    chunks = jnp.ceil((right - left) / spacing / _CHUNK)
    # Nothing is cut off silently: where the nodes do not suffice the sums are NaN.
    left = jnp.where(chunks <= _MOST_CHUNKS, left, jnp.nan)
    chunks = jnp.clip(chunks, 1, _MOST_CHUNKS).astype(jnp.int32)
    return Contour(q, v, left, spacing, chunks, log_cut)


def _at(line: Contour, index: Any, shift: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log weights, losses and log(q e^z) at one chunk of nodes, all complex [nodes]."""
    offset = jnp.asarray(np.arange(_CHUNK) + 0.5, line.v.dtype)
    r = line.start + line.spacing * (offset + _CHUNK * index)
    from_mean = r + 0.5 * line.v
    log_weight = (
        0.5 * (shift * shift - from_mean * from_mean) / line.v
        + jnp.log(line.spacing)
        - 0.5 * jnp.log(2.0 * math.pi * line.v)
    )
    # 1 + u by whichever form has no large numbers: u = q (e^z - 1) below the turn, and
    # q e^z (1 + (1 - q) / q e^-z) above it.
    log_q = jnp.log(line.q)
    turn = jnp.log1p(-line.q) - log_q
    edge = jnp.maximum(turn, 0.0) + 1.0
    large = r > edge
    growth = jnp.where(large, jnp.exp(jnp.minimum(turn - r, 0.0)), jnp.exp(jnp.minimum(r, edge)))
    sine, versine = jnp.sin(shift), 2.0 * jnp.square(jnp.sin(0.5 * shift))
    u = line.q * (jnp.expm1(jnp.minimum(r, edge)) - growth * versine)
    real = jnp.where(large, growth * (1.0 - versine), u)
    imaginary = jnp.where(large, -growth, line.q * growth) * sine
    loss = 0.5 * jnp.log1p(real * (2.0 + real) + imaginary * imaginary)
    angle = jnp.arctan2(imaginary, 1.0 + real)
    return (
        jax.lax.complex(log_weight, -from_mean * shift / line.v),
        jax.lax.complex(
            loss + jnp.where(large, r + log_q, 0.0), angle + jnp.where(large, shift, 0.0)
        ),
        jax.lax.complex(r + log_q, jnp.broadcast_to(shift, r.shape)),
    )


def _exp_excess(x: jax.Array) -> jax.Array:
    """(e^x - 1 - x) / x^2 for complex x, |x| <= 1/2."""
    terms = 12 if _is_double(x) else 6
    series = jnp.full_like(x, 1.0 / math.factorial(terms + 2))
    for n in range(terms + 1, 1, -1):
        series = series * x + 1.0 / math.factorial(n)
    return series


def expm1(x: jax.Array) -> jax.Array:
    """e^x - 1 for complex x, to full accuracy where x is small."""
    small = jnp.abs(x) < 0.5
    near = jnp.where(small, x, 0.0)
    return jnp.where(small, near + near * near * _exp_excess(near), jnp.exp(x) - 1.0)


def log1p(x: jax.Array) -> jax.Array:
    """log(1 + x) for complex x, to full accuracy where x is small."""
    real, imaginary = x.real, x.imag
    square = real * (2.0 + real) + imaginary * imaginary
    near = jnp.where(square > -0.5, square, 0.0)
    # Next to 0 there is nothing but rounding; the floor keeps the logarithm finite.
    size = jnp.maximum(jnp.square(1.0 + real) + imaginary * imaginary, jnp.finfo(real.dtype).tiny)
    size = 0.5 * jnp.where(square > -0.5, jnp.log1p(near), jnp.log(size))
    return jax.lax.complex(size, jnp.arctan2(imaginary, 1.0 + real))


def _partition(log_jump: jax.Array, log_cut: jax.Array) -> tuple[jax.Array, ...]:
    """Weights of jumps above each cut, below it, and between it and the next, all [nodes, k].

    The cuts ascend; beyond the last one there is none, which an infinite cut amounts to.
    """
    log_x = log_jump[:, None] - log_cut[None, :]
    # Beyond 148 cuts chi is 1 to more digits than are kept, and e^x must not overflow.
    far = log_x.real > 5.0
    x = jnp.exp(jnp.where(far, 0.0, log_x))
    above = -expm1(-x)
    for _ in range(_SQUARINGS):
        above = above * above
    # Where chi is next to 1, what is left has to keep its digits.
    large = x.real > 1.0
    decay = jnp.exp(-jnp.where(large, x, 1.0))
    below = jnp.where(large, -expm1(2.0**_SQUARINGS * log1p(-decay)), 1.0 - above)
    above, below = jnp.where(far, 1.0, above), jnp.where(far, 0.0, below)
    next_above = jnp.concatenate([above[:, 1:], 0.0 * above[:, :1]], axis=1)
    next_below = jnp.concatenate([below[:, 1:], 0.0 * below[:, :1] + 1.0], axis=1)
    return above, below, jnp.where(large | far, next_below - below, above - next_above)


def moments(line: Contour, a: jax.Array, shift: jax.Array, scale: jax.Array) -> Moments:
    """m - 1 at the complex orders a, shape [n], on the contour with one shift.

    Args:
      line: Nodes that serve these orders.
      a: Complex orders [n], with imaginary parts of the sign of ``shift``.
      shift: The contour's imaginary part.
      scale: Logarithm by which each sum is divided [n], so that nothing overflows.
    """
    ulp = float(jnp.finfo(line.v.dtype).eps)
    highest = overflow(line.v.dtype)

    def add(index, sums):
        log_weight, loss, log_jump = _at(line, index, shift)
        x = a[:, None] * loss[None, :]
        size = jnp.abs(x)
        small = size < 0.5
        exponent = x + log_weight[None, :] - scale[:, None]
        # Held below an overflow, so that nothing becomes infinity times a weight of 0.
        exponent = jax.lax.complex(jnp.minimum(exponent.real, highest), exponent.imag)
        full = jnp.exp(exponent)
        weight = jnp.exp(log_weight[None, :] - scale[:, None])
        near = jnp.where(small, x, 0.0)
        terms = jnp.where(
            small, weight * (near * near * _exp_excess(near)), full - weight * (1.0 + x)
        )
        # The exponent is off by its size in ulps; so is, relatively, each small term.
        rough = jnp.abs(full) * (size + 8.0) + 8.0 * jnp.abs(weight) * (1.0 + size)
        error = jnp.where(small, 8.0 * jnp.abs(terms), rough)
        own = jnp.exp(log_weight)
        little = jnp.abs(loss) < 0.5
        near = jnp.where(little, loss, 0.0)
        mean = jnp.where(
            little,
            own * (near * near * _exp_excess(near)),
            jnp.exp(loss + log_weight) - own * (1.0 + loss),
        )
        added = [jnp.sum(terms, axis=1), jnp.sum(mean), jnp.sum(error, axis=1)]
        added.append(8.0 * jnp.sum(jnp.abs(mean)))
        above, below, between = _partition(log_jump, line.log_cut)
        added.append(terms @ below)
        added.append(error @ jnp.abs(below))
        added.append(full @ between)
        added.append((jnp.abs(full) * (size + 64.0)) @ jnp.abs(between))
        added.append(own @ above)
        added.append((own * loss) @ above)
        return [total + part for total, part in zip(sums, added, strict=True)]

    cuts = line.log_cut.size
    shapes = [a.shape, (), a.shape, (), *[(a.size, cuts)] * 4, (cuts,), (cuts,)]
    exact = [False, False, True, True, False, True, False, True, False, False]
    start = [
        jnp.zeros(shape, line.v.dtype if real else a.dtype)
        for shape, real in zip(shapes, exact, strict=True)
    ]
    sums = jax.lax.fori_loop(0, line.chunks, add, start)
    shrink = jnp.exp(-scale)
    taken = a * sums[1] * shrink
    rough = jnp.abs(a) * sums[3] * shrink
    # E[(1 - chi) e^x] - 1 by E[(1 - chi) e_2(x)], and the mass and mean that chi takes away.
    gone = (sums[8][None, :] + a[:, None] * sums[9][None, :]) * shrink[:, None]
    size = (jnp.abs(sums[8])[None, :] + jnp.abs(a[:, None] * sums[9][None, :])) * shrink[:, None]
    return Moments(
        sums[0] - taken,
        ulp * (sums[2] + rough),
        sums[4] - taken[:, None] - gone,
        ulp * (sums[5] + rough[:, None] + 64.0 * size),
        sums[6],
        ulp * sums[7],
    )


def log_norms(line: Contour, b: jax.Array, y: jax.Array, shifts: jax.Array) -> LogNorms:
    """Norms at the order b + i y for each shift [shifts], both taken towards decay."""
    nothing = jnp.full((), -jnp.inf, line.v.dtype)
    coarse = line._replace(spacing=_EVERY * line.spacing, chunks=(line.chunks + 3) // _EVERY)

    def at(shift):
        def add(index, totals):
            log_weight, loss, log_jump = _at(coarse, index, shift)
            exponent = log_weight.real + b * loss.real - y * loss.imag
            log_size = 0.5 * jnp.log(b * b + y * y) + jnp.log(jnp.abs(loss) + 1e-37)
            size = jnp.exp(jnp.minimum(log_size, 30.0))
            direct = jnp.logaddexp(exponent, log_weight.real + jnp.log1p(size))
            squared = log_weight.real + 2.0 * log_size + size
            excess = jnp.where(size < 1.0, jnp.minimum(squared, direct), direct)
            values = [excess, nothing[None], exponent]
            if line.log_cut.size > 0:
                above, below, between = (
                    jnp.log(jnp.abs(weight)) for weight in _partition(log_jump, line.log_cut)
                )
                taken = log_weight.real + jnp.log1p(size) + above[:, 0]
                values[0] = jnp.logaddexp(excess + below[:, 0], taken)
                values[1] = exponent + between[:, 0]
                values[2] = exponent + below[:, -1]
            return [
                jnp.logaddexp(total, jax.nn.logsumexp(value))
                for total, value in zip(totals, values, strict=True)
            ]

        return LogNorms(*jax.lax.fori_loop(0, coarse.chunks, add, [nothing] * 3))

    return jax.vmap(at)(shifts)


def log_decay(line: Contour, b: jax.Array, y: jax.Array) -> jax.Array:
    """A bound on log(|m(b + i y')| / m(b)) for all y' >= y; with a cut, for the part below it.

    The norm over m(b), written with expm1 so that a million steps may be raised to it; the
    least over a few shifts around the one that would be best for a normal law.
    """
    zero = jnp.zeros((), line.v.dtype)
    cut = line.log_cut.size > 0

    def log_below(log_jump):
        return jnp.log(jnp.abs(_partition(log_jump, line.log_cut)[1][:, 0]))

    def base(index):
        log_weight, loss, log_jump = _at(line, index, zero)
        below = log_below(log_jump) if cut else 0.0
        return log_weight.real + b * loss.real + below, loss.real, below

    def highest(index, top):
        return jnp.maximum(top, jnp.max(base(index)[0]))

    low = jnp.full((), -jnp.inf, line.v.dtype)
    top = jax.lax.fori_loop(0, line.chunks, highest, low)

    def plain(index, sums):
        exponent, loss, _ = base(index)
        # dloss / dz, whose mean says how fast y turns the phase.
        slope = -jnp.expm1(-loss) + line.q * jnp.exp(-loss)
        share = jnp.exp(exponent - top)
        return sums[0] + jnp.sum(share), sums[1] + jnp.sum(share * slope)

    mass, slope = jax.lax.fori_loop(0, line.chunks, plain, (zero, zero))
    most = jnp.minimum(1.2, 10.0 * jnp.sqrt(line.v))
    best = jnp.minimum(line.v * y * slope / mass, most)
    shifts = jnp.stack([0.5 * best, best, jnp.minimum(2.0 * best, most), 0.5 * most, most])

    def at(shift):
        def add(index, total):
            exponent, loss, below = base(index)
            _, moved, log_jump = _at(line, index, shift)
            change = 0.5 * shift * shift / line.v + b * (moved.real - loss) - y * moved.imag
            if cut:
                shifted = log_below(log_jump)
                change = change + jnp.where(exponent > -jnp.inf, shifted - below, 0.0)
            return total + jnp.sum(jnp.exp(exponent - top) * jnp.expm1(change))

        total = jax.lax.fori_loop(0, line.chunks, add, zero)
        return jnp.log1p(jnp.maximum(total / mass, -1.0))

    return jnp.minimum(jnp.min(jax.vmap(at)(shifts)), 0.0)
