r"""One step's moment at complex orders, by quadrature on a contour of its own.

For the Poisson-sampled Gaussian the likelihood ratio of "with" (P) over "without" (Q) the example
is :math:`1 + u = 1 - q + q e^z`, where under Q :math:`z \sim N(-v/2, v)`, v = 1/s^2. Removing the
example has the loss L = log(1 + u) under P, adding it L = -log(1 + u) under Q. What is wanted is

.. math:: m(\lambda) - 1 = E[e^{\lambda L}] - 1 = E[e_2(\lambda L)] + \lambda E[L],
          \quad e_2(x) = e^x - 1 - x,

under that law, and E[L], a divergence, is the mean under Q of 1 + (1+u)(log(1+u) - 1) or of
u - log(1 + u): nothing of this cancels for real orders.

*Shifting the contour.* The integrand is analytic in z for \|Im z\| < pi, so z may run along
:math:`r + i \theta`. There, with :math:`\lambda = c + i y` and b the power of 1 + u,

.. math:: |e^{\lambda L}| = |1 + u|^b e^{-y \alpha}, \quad u = q (e^{r + i \theta} - 1),
          \quad \alpha = |\arg(1 + u)| \le |\theta|,

and the normal density grows by exp(theta^2 / (2 v)). Three things follow from the *norm*

.. math:: N(\theta, y) = e^{\theta^2 / (2 v)} E[|1 + u|^b e^{-y \alpha}].

It bounds \|m\|, and falls with y: its value at Y covers all y >= Y, which is what has to be
known where a line integral is cut off. A sum on the contour of least norm loses nothing to
cancellation, however small m is. And the error of the trapezoid rule with spacing h is at most
e^(-2 pi d / h) (N(theta + d) + N(theta - d)) for any d (Poisson summation, shifting up for the
positive frequencies and down for the negative ones).

*Big jumps.* The law may be split at a cut by the weight :math:`\chi(z) = (1 - e^{-x})^{16}`,
x = q e^z / cut: entire in z, in [0, 1] on the real line, next to 0 below the cut and to 1 above.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_CHUNK = 128  # nodes in one go
_MOST_CHUNKS = 4096
_EVERY = 4  # norms are right to a few per cent on every fourth node
# Where log x counts as infinite.
FAR = 9.0
_LEVELS = (1.0, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0, 20.0, math.inf)  # of overflow
_SQUARINGS = 4  # the partition's power is 2^4
# Shifts that are tried, in steps of 0.2 in z or of one standard deviation, the smaller one;
# beyond pi / 2 the partition would grow.
SHIFTS = np.arange(-6, 8)
_STEP_ANGLE, _STEP_DEVIATIONS = 0.2, 1.0


class Contour(NamedTuple):
    """Equispaced nodes that carry one step's mass, in units of the standard deviation of z.

    Node i is at t = spacing (first + i), exactly: weights are then right to their exponent's last
    digit, and do not depend on the parameters that derivatives are taken in.
    """

    q: Any  # sampling probability, inside (0, 1)
    sd: Any  # standard deviation of z
    first: Any  # a whole number
    spacing: Any  # a few bits
    chunks: Any  # int32 scalar, number of chunks of nodes
    log_cut: Any  # logs of ascending cuts on q e^z [k], k = 0 for none
    remove: Any  # bool scalar, the direction


class Moments(NamedTuple):
    """Sums over one step's law at complex orders, scaled by exp(-scale)."""

    excess: Any  # m - 1, complex [n]
    error: Any  # bound on its rounding [n]
    small: Any  # m - 1 without the jumps above each cut, complex [n, k]
    small_error: Any  # bound on its rounding [n, k]
    between: Any  # what jumps from each cut to the next contribute to m, complex [n, k]
    between_error: Any  # bound on its rounding [n, k]


class RealMoments(NamedTuple):
    """Sums over one step's law at real orders; infinite where they cannot be trusted."""

    excess: Any  # m - 1 [n]
    small: Any  # m - 1 without the jumps above each cut [n, k]
    between: Any  # what jumps from each cut to the next contribute to m [n, k]


class LogNorms(NamedTuple):
    """Logs of integrals of absolute values over the contours with given shifts."""

    excess: Any  # of what is summed for m - 1, below the first cut [n, k]
    between: Any  # of e^(lambda L) from the first cut to the second [n, k]
    lower: Any  # of e^(lambda L) below the first cut [n, k]
    upper: Any  # of e^(lambda L) below the last cut [n, k]


def _is_double(x: Any) -> bool:
    return x.dtype in (jnp.float64, jnp.complex128)


def overflow(dtype: Any) -> float:
    """The log at which sums are cut off; one that large is not to be trusted."""
    return 0.8 * math.log(float(jnp.finfo(dtype).max))


def contour(
    q: jax.Array,
    s: jax.Array,
    log_cut: jax.Array,
    most: jax.Array,
    remove: jax.Array,
    *,
    fine: bool = False,
    until: jax.Array | None = None,
) -> Contour:
    """The nodes that serve all orders with real parts from 0 to ``most``.

    The stationary points of (1 + u)^b against the normal density satisfy z = -v/2 + v b w(z) with
    0 < w < 1. For b < 0 they lie at most log(1 + v |b|) below the point where w falls off.
    With ``until``, the log of a cut on q e^z, only what has weight below it.
    """
    double = _is_double(s)
    sd = 1.0 / s
    reach = 9.5 if double else 6.5
    turn = (jnp.log1p(-q) - jnp.log(q)) / sd + 0.5 * sd
    floor = jnp.minimum(0.0, turn - (jnp.log1p(sd * sd * most) + 2.0) / sd)
    left = jnp.where(remove, 0.0, jnp.maximum(-sd * most, floor)) - reach
    right = jnp.where(remove, sd * (1.0 + most), sd) + reach
    if until is not None:
        # Jumps beyond e^9 times the last cut have no weight, but the means that are taken off
        # need all of z under P and under Q.
        last = (until - jnp.log(q) + FAR) / sd + 0.5 * sd
        # What lies above the first cut may be beyond all that the whole law puts weight on.
        begin = (log_cut[0] - jnp.log(q) + 3.0) / sd + 0.5 * sd
        right = jnp.maximum(right, jnp.where(jnp.isfinite(begin), begin, 0.0) + reach)
        right = jnp.minimum(right, jnp.maximum(last, sd + reach))
    # The partition leaves less room for shifts, so that the rule needs finer steps.
    finest = (0.1 if fine else 0.2) if double else (0.15 if fine else 0.25)
    mantissa, exponent = jnp.frexp(jnp.minimum(0.5 if double else 0.6, finest / sd))
    spacing = jnp.ldexp(jnp.floor(32.0 * mantissa) / 32.0, exponent)
    first = jnp.floor(left / spacing)
    chunks = jnp.ceil((right - left) / spacing / _CHUNK)
    # Nothing is cut off silently: where the nodes do not suffice the sums are NaN.
    enough = chunks <= _MOST_CHUNKS
    if until is not None:
        # On every contour in use |e^-x| is below exp(-0.16 e^9) there.
        gain = (1.0 + most) * jnp.log1p(jnp.exp(jnp.minimum(until + FAR, 80.0)))
        enough = enough & ((gain <= 0.1 * math.exp(FAR)) | (until == jnp.inf))
    first = jnp.where(enough, first, jnp.nan)
    chunks = jnp.where(chunks <= _MOST_CHUNKS, jnp.maximum(chunks, 1.0), 1.0)
    first, spacing, log_cut = jax.lax.stop_gradient((first, spacing, log_cut))
    return Contour(q, sd, first, spacing, chunks.astype(jnp.int32), log_cut, remove)


def shift_step(line: Contour) -> jax.Array:
    """The unit of SHIFTS, in standard deviations of z."""
    return jnp.minimum(_STEP_ANGLE / line.sd, _STEP_DEVIATIONS)


def end_of(line: Contour) -> jax.Array:
    """The largest z among the nodes."""
    return line.sd * (line.spacing * (line.first + _CHUNK * line.chunks) - 0.5 * line.sd)


class _Nodes(NamedTuple):
    log_weight: Any  # of the law's density times the spacing
    loss: Any
    slope: Any  # |d loss / dz|
    log_jump: Any  # log(q e^z)


def _at(line: Contour, index: Any, shift: jax.Array) -> _Nodes:
    """One chunk of nodes, z shifted towards decay by that many deviations; all complex [nodes]."""
    dtype = line.sd.dtype
    shift = jnp.where(line.remove, shift, -shift)
    t = line.spacing * (line.first + _CHUNK * index + jnp.asarray(np.arange(_CHUNK), dtype))
    log_weight = 0.5 * (shift * shift - t * t) + jnp.log(line.spacing) - 0.5 * math.log(2 * math.pi)
    r, angle = line.sd * (t - 0.5 * line.sd), line.sd * shift
    # 1 + u by whichever form has no large numbers: u = q (e^z - 1) below the turn, and
    # q e^z (1 + (1 - q) / q e^-z) above it.
    log_q = jnp.log(line.q)
    turn = jnp.log1p(-line.q) - log_q
    edge = jnp.maximum(turn, 0.0) + 1.0
    large = r > edge
    growth = jnp.where(large, jnp.exp(jnp.minimum(turn - r, 0.0)), jnp.exp(jnp.minimum(r, edge)))
    sine, versine = jnp.sin(angle), 2.0 * jnp.square(jnp.sin(0.5 * angle))
    u = line.q * (jnp.expm1(jnp.minimum(r, edge)) - growth * versine)
    real = jnp.where(large, growth * (1.0 - versine), u)
    imaginary = jnp.where(large, -growth, line.q * growth) * sine
    part = log1p(jax.lax.complex(real, imaginary))
    log_ratio = jax.lax.complex(
        part.real + jnp.where(large, r + log_q, 0.0), part.imag + jnp.where(large, angle, 0.0)
    )
    under_q = jax.lax.complex(log_weight, -t * shift)
    return _Nodes(
        jnp.where(line.remove, under_q + log_ratio, under_q),
        jnp.where(line.remove, log_ratio, -log_ratio),
        jnp.abs(1.0 - (1.0 - line.q) * jnp.exp(-log_ratio)),
        jax.lax.complex(r + log_q, jnp.broadcast_to(angle, r.shape)),
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
    # Far beyond a cut chi is 1 to more digits than are kept, and e^x must not overflow.
    far = log_x.real > FAR
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


def _log_below(log_jump: jax.Array, log_cut: jax.Array, below: jax.Array) -> jax.Array:
    """log |1 - chi| for each cut and, as 0, for none at all [nodes, k + 1]; also far beyond it."""
    log_x = (log_jump[:, None] - log_cut[None, :]).real
    x = jnp.exp(jnp.minimum(log_x, FAR))
    cosine = jnp.cos(log_jump.imag)[:, None]
    far = math.log(2.0**_SQUARINGS) - x * cosine
    log_size = jnp.where(x * cosine > 20.0, far, jnp.log(jnp.abs(below)))
    log_size = jnp.where(log_x > FAR, -jnp.inf, log_size)
    return jnp.concatenate([log_size, jnp.zeros((x.shape[0], 1), x.dtype)], axis=1)


def _spoilt(exponent: jax.Array, log_below: jax.Array) -> jax.Array:
    """Whether some node counts in a sum [n, k + 1] whose exponent [n, nodes] overflows.

    By levels, so that it is a few products: an exponent between t and t' overflows does not count
    where the weight times exp(t' overflows) is negligible against a sum of 1.
    """
    dtype = exponent.dtype
    highest, negligible = overflow(dtype), -45.0 if dtype == jnp.float64 else -20.0
    found = jnp.zeros((exponent.shape[0], log_below.shape[1]), bool)
    for level, following in itertools.pairwise(_LEVELS):
        much = (exponent > level * highest).astype(dtype)
        counts = (log_below > -following * highest + negligible).astype(dtype)
        found = found | (much @ counts > 0.0)
    return found


def moments(line: Contour, orders: jax.Array, shift: jax.Array, scale: jax.Array) -> Moments:
    """m - 1 at complex orders [n], on the contour with one shift.

    Args:
      line: Nodes that serve these orders.
      orders: Complex orders lambda [n], with imaginary parts >= 0.
      shift: How far to shift the contour, in standard deviations of z, >= 0.
      scale: Logarithm by which each sum is divided [n], so that nothing overflows.
    """
    dtype = line.sd.dtype
    ulp = float(jnp.finfo(dtype).eps)
    highest = overflow(dtype)

    def add(index, sums):
        log_weight, loss, slope, log_jump = _at(line, index, shift)
        x = orders[:, None] * loss[None, :]
        size = jnp.abs(x)
        small = size < 0.5
        exponent = x + log_weight[None, :] - scale[:, None]
        above, below, between = _partition(log_jump, line.log_cut)
        # Exponents are held below an overflow, so that nothing becomes infinity times a weight of
        # 0; a sum in which that matters is spoilt.
        held = jnp.minimum(exponent.real, highest)
        log_below = _log_below(log_jump, line.log_cut, below)
        spoilt = _spoilt(exponent.real, log_below)
        full = jnp.exp(jax.lax.complex(held, exponent.imag))
        weight = jnp.exp(log_weight[None, :] - scale[:, None])
        near = jnp.where(small, x, 0.0)
        terms = jnp.where(
            small, weight * (near * near * _exp_excess(near)), full - weight * (1.0 + x)
        )
        # In ulps: a loss is off by two of itself and by what its z is, a weight by its exponent.
        z_off = slope * (jnp.abs(log_jump - jnp.log(line.q)) + line.sd * line.sd)
        # 1 + u is next to 1 - q far to the left, where the digits of u are lost in it.
        log_ratio = jnp.where(line.remove, loss, -loss)
        loss_off = 2.0 * (jnp.abs(loss) + jnp.abs(1.0 - jnp.exp(-log_ratio))) + z_off
        weight_off = (jnp.abs(log_weight) + 8.0)[None, :]
        x_off = jnp.abs(orders)[:, None] * loss_off[None, :]
        heavy, light = jnp.abs(full), jnp.abs(weight)
        rough = heavy * (x_off + weight_off) + light * ((1.0 + size) * weight_off + x_off)
        error = jnp.where(small, light * size * x_off + jnp.abs(terms) * weight_off, rough)
        # The divergence E[L] by a sum of terms of one sign, under this law: L - 1 + e^-L.
        own = jnp.exp(log_weight)
        little = jnp.abs(loss) < 0.5
        near = jnp.where(little, loss, 0.0)
        far = jnp.exp(log_weight - loss) - own * (1.0 - loss)
        mean = jnp.where(little, own * (near * near * _exp_excess(-near)), far)
        mean_off = jnp.where(
            little,
            jnp.abs(own) * (jnp.abs(loss) * loss_off + jnp.abs(near * near) * weight_off[0]),
            (jnp.abs(jnp.exp(log_weight - loss)) + jnp.abs(own) * (1.0 + jnp.abs(loss)))
            * (weight_off[0] + loss_off),
        )
        added = [jnp.sum(terms, axis=1), jnp.sum(mean), jnp.sum(error, axis=1), jnp.sum(mean_off)]
        added.append(terms @ below)
        added.append(error @ jnp.abs(below))
        added.append(full @ between)
        added.append((heavy * (x_off + weight_off + 64.0)) @ jnp.abs(between))
        added.append(own @ above)
        added.append((own * loss) @ above)
        added.append(jnp.where(spoilt, jnp.nan, 0.0))
        return [total + part for total, part in zip(sums, added, strict=True)]

    cuts = line.log_cut.size
    size = orders.size
    shapes = [(size,), (), (size,), (), *[(size, cuts)] * 4, (cuts,), (cuts,), (size, cuts + 1)]
    exact = [False, False, True, True, False, True, False, True, False, False, True]
    start = [
        jnp.zeros(shape, dtype if real else orders.dtype)
        for shape, real in zip(shapes, exact, strict=True)
    ]
    sums = jax.lax.fori_loop(0, line.chunks, add, start)
    shrink = jnp.exp(-scale)
    mean = orders * sums[1] * shrink
    rough = jnp.abs(orders) * (sums[3] + 2.0 * jnp.abs(sums[1])) * shrink
    # E[(1 - chi) e^x] - 1 by E[(1 - chi) e_2(x)], and the mass and mean that chi takes away.
    gone = (sums[8][None, :] + orders[:, None] * sums[9][None, :]) * shrink[:, None]
    size = jnp.abs(sums[8])[None, :] + jnp.abs(orders[:, None] * sums[9][None, :])
    # NaN for what an overflow spoilt: below each cut, and last of all the whole law.
    bad, bad_upper = sums[10][:, :-1], sums[10][:, 1:]
    return Moments(
        sums[0] + mean + sums[10][:, -1],
        ulp * (sums[2] + rough),
        sums[4] + mean[:, None] - gone + bad,
        ulp * (sums[5] + rough[:, None] + 64.0 * size * shrink[:, None]),
        sums[6] + bad_upper,
        ulp * sums[7],
    )


def real_moments(line: Contour, orders: jax.Array) -> RealMoments:
    """m - 1 at real orders [n], and its parts by the largest jump.

    Sums that overflow are infinite, and so are those whose peak is too narrow for the nodes, which
    shows in a difference between the even and the odd ones.
    """
    dtype = line.sd.dtype
    highest = overflow(dtype)
    zero = jnp.zeros((), dtype)

    def add(index, sums):
        nodes = _at(line, index, zero)
        log_weight, loss = nodes.log_weight.real, nodes.loss.real
        x = orders[:, None] * loss[None, :]
        exponent = x + log_weight[None, :]
        parts = _partition(nodes.log_jump, line.log_cut)
        above, below, between = (part.real for part in parts)
        log_below = _log_below(nodes.log_jump, line.log_cut, parts[1])
        spoilt = _spoilt(exponent, log_below)
        full = jnp.exp(jnp.minimum(exponent, highest))
        own = jnp.exp(log_weight)
        small = jnp.abs(x) < 0.5
        near = jnp.where(small, x, 0.0)
        squared = own[None, :] * (near * near * _exp_excess(near))
        terms = jnp.where(small, squared, full - own[None, :] * (1.0 + x))
        little = jnp.abs(loss) < 0.5
        near = jnp.where(little, loss, 0.0)
        far = jnp.exp(log_weight - loss) - own * (1.0 - loss)
        mean = jnp.where(little, own * (near * near * _exp_excess(-near)), far)
        weights = jnp.concatenate([below, jnp.ones_like(below[:, :1])], axis=1)
        added = (
            jnp.sum(terms, axis=1),
            jnp.sum(mean),
            terms @ below,
            full @ between,
            own @ above,
            (own * loss) @ above,
            jnp.where(spoilt, jnp.nan, 0.0),
            full[:, ::2] @ weights[::2],
            full[:, 1::2] @ weights[1::2],
        )
        return [total + part for total, part in zip(sums, added, strict=True)]

    n, k = orders.size, line.log_cut.size
    shapes = [(n,), (), (n, k), (n, k), (k,), (k,), (n, k + 1), (n, k + 1), (n, k + 1)]
    start = [jnp.zeros(shape, dtype) for shape in shapes]
    terms, mean, small, between, mass, gone, bad, even, odd = jax.lax.fori_loop(
        0, line.chunks, add, start
    )
    drift = orders * mean
    # For a normal peak a quarter here means that the whole sum is off by 5e-4 of itself.
    bad = bad + jnp.where(jnp.abs(even - odd) <= 0.25 * (even + odd), 0.0, jnp.nan)

    def trusted(value):
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    taken = mass[None, :] + orders[:, None] * gone[None, :]
    return RealMoments(
        trusted(terms + drift + bad[:, -1]),
        trusted(small + drift[:, None] - taken + bad[:, :-1]),
        trusted(between + bad[:, 1:]),
    )


def log_norms(
    line: Contour, c: jax.Array, y: jax.Array, shifts: jax.Array, largest: jax.Array
) -> LogNorms:
    """Norms at the orders c + i y [n] for each shift [k]; a negative one is away from decay.

    Orders count with the size that they have at c + i ``largest``, so that the logarithms are
    convex in y up to there.
    """
    dtype = line.sd.dtype
    tiny = float(jnp.finfo(dtype).tiny)
    # The coarse nodes must stay on the fine ones: the first of them does.
    coarse = line._replace(
        first=line.first / _EVERY,
        spacing=_EVERY * line.spacing,
        chunks=(line.chunks + _EVERY - 1) // _EVERY,
    )

    def at(shift):
        def add(index, totals):
            log_weight, loss, _, log_jump = _at(coarse, index, shift)
            exponent = log_weight.real + c * loss.real
            exponent = exponent[None, :] - y[:, None] * loss.imag[None, :]
            log_size = 0.5 * jnp.log(c * c + largest * largest) + jnp.log(jnp.abs(loss) + tiny)
            size = jnp.exp(jnp.minimum(log_size, 30.0))
            direct = jnp.logaddexp(exponent, (log_weight.real + jnp.log1p(size))[None, :])
            squared = (log_weight.real + 2.0 * log_size + size)[None, :]
            excess = jnp.where((size < 1.0)[None, :], squared, direct)
            between = jnp.full_like(exponent, -jnp.inf)
            upper = lower = exponent
            if line.log_cut.size > 0:
                weights = _partition(log_jump, line.log_cut)
                above, below, inside = (jnp.log(jnp.abs(weight)).T for weight in weights)
                taken = log_weight.real + jnp.log1p(size) + above[0]
                excess = jnp.logaddexp(excess + below[:1], taken[None, :])
                between = exponent + inside[:1]
                lower, upper = exponent + below[:1], exponent + below[-1:]
            return [
                jnp.logaddexp(total, jax.nn.logsumexp(value, axis=1))
                for total, value in zip(totals, (excess, between, lower, upper), strict=True)
            ]

        nothing = jnp.full(y.shape, -jnp.inf, dtype)
        return LogNorms(*jax.lax.fori_loop(0, coarse.chunks, add, [nothing] * 4))

    return jax.vmap(at, out_axes=1)(shifts)


def log_decay(line: Contour, c: jax.Array, y: jax.Array, log_norm: jax.Array) -> jax.Array:
    """A bound on log(|m(c + i y')| / m(c)) for all y' >= y; with a cut, for the part below it.

    The norm over m(c), written with expm1 so that a million steps may be raised to it; the
    least over a few shifts around the one that would be best for a normal law. ``log_norm`` is
    about the log of m(c), or of the part below the cut.
    """
    dtype = line.sd.dtype
    zero = jnp.zeros((), dtype)
    cut = line.log_cut.size > 0

    def log_below(log_jump):
        return jnp.log(jnp.abs(_partition(log_jump, line.log_cut)[1][:, 0])) if cut else 0.0

    def base(index):
        nodes = _at(line, index, zero)
        below = log_below(nodes.log_jump)
        return nodes.log_weight.real + c * nodes.loss.real + below - log_norm, nodes, below

    def plain(index, sums):
        exponent, nodes, _ = base(index)
        share = jnp.exp(exponent)
        return sums[0] + jnp.sum(share), sums[1] + jnp.sum(share * nodes.slope)

    mass, slope = jax.lax.fori_loop(0, line.chunks, plain, (zero, zero))
    most = jnp.minimum(1.2 / line.sd, 10.0)
    best = jnp.minimum(line.sd * y * slope / mass, most)
    shifts = jnp.stack([0.5 * best, best, jnp.minimum(2.0 * best, most), 0.5 * most, most])

    def at(shift):
        def add(index, total):
            exponent, nodes, below = base(index)
            moved = _at(line, index, shift)
            change = moved.log_weight.real - nodes.log_weight.real
            change = change + c * (moved.loss.real - nodes.loss.real) - y * moved.loss.imag
            if cut:
                shifted = log_below(moved.log_jump)
                change = change + jnp.where(exponent > -jnp.inf, shifted - below, 0.0)
            return total + jnp.sum(jnp.exp(exponent) * jnp.expm1(change))

        total = jax.lax.fori_loop(0, line.chunks, add, zero)
        return jnp.log1p(jnp.maximum(total / mass, -1.0))

    return jnp.minimum(jnp.min(jax.vmap(at)(shifts)), 0.0)
