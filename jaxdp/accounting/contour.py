r"""The contours on which one step's moment is summed, and what stands at their nodes.

For the Poisson-sampled Gaussian the likelihood ratio of "with" (P) over "without" (Q) the example
is :math:`1 + u = 1 - q + q e^z`, where under Q :math:`z \sim N(-v/2, v)`, v = 1/s^2. Removing the
example has the loss L = log(1 + u) under P, adding it L = -log(1 + u) under Q.

*Shifting the contour.* The integrand is analytic in z for \|Im z\| < pi, so z may run along
:math:`r + i \theta`. There, with :math:`\lambda = c + i y` and b the power of 1 + u,

.. math:: |e^{\lambda L}| = |1 + u|^b e^{-y \alpha}, \quad u = q (e^{r + i \theta} - 1),
          \quad \alpha = |\arg(1 + u)| \le |\theta|,

and the normal density grows by exp(theta^2 / (2 v)).

*Big jumps.* The law may be split at a cut by the weight :math:`\chi(z) = (1 - e^{-x})^{16}`,
:math:`x = (q e^z / cut)^p`: entire in z, in [0, 1] on the real line, next to 0 below the cut and to
1 above. The *sharpness* p >= 2 grows as the law of z gets narrow, so that what is above the cut
stays out at orders far above 1 / cut, too.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.accounting.complex_functions import exp_excess, log1p

CHUNK = 128  # nodes in one go
_MOST_CHUNKS = 96
MOST_NODES = CHUNK * _MOST_CHUNKS
# Where log x counts as infinite.
FAR = 12.0
_SQUARINGS = 4  # the partition's power is 2^4
# Shifts that are tried, in steps of 0.2 in z or of one standard deviation, the smaller one;
# beyond pi / 2 the partition would grow.
SHIFTS = np.arange(-6, 8)
_STEP_ANGLE, _STEP_DEVIATIONS = 0.2, 1.0
# The partition is as sharp as eight deviations of z leave room for, and at least so sharp that
# e^-x^2 holds back every moment of x. What that takes of the shifts is made up for by finer nodes:
# the trapezoid rule is off by exp(-2 pi 1.2 / (p spacing)).
_SHARPNESS, _LEAST_SHARP = 0.15, 2.0


class Contour(NamedTuple):
    """Equispaced nodes that carry one step's mass, in units of the standard deviation of z.

    Node i is at t = spacing (first + i), exactly: weights are then right to their exponent's last
    digit, and do not depend on the parameters that derivatives are taken in.
    """

    q: Any  # sampling probability, inside (0, 1)
    sd: Any  # standard deviation of z, rounded
    sd_rest: Any  # what rounding took from it
    first: Any  # a whole number
    spacing: Any  # a few bits
    chunks: Any  # int32 scalar, number of chunks of nodes
    log_cut: Any  # logs of ascending cuts on q e^z [k], k = 0 for none
    sharpness: Any  # of the partition at the cuts, >= 1
    remove: Any  # bool scalar, the direction


class Nodes(NamedTuple):
    log_weight: Any  # of the law's density times the spacing
    loss: Any
    slope: Any  # |d loss / dz|
    log_jump: Any  # log(q e^z)
    loss_off: Any  # bound on the loss's rounding, in ulps of 1


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
    double = s.dtype == jnp.float64
    sd = 1.0 / s
    sharp = sharpness(s) if log_cut.size > 0 else jnp.ones_like(s)
    far = FAR / sharp
    reach = 9.5 if double else 6.5
    turn = (jnp.log1p(-q) - jnp.log(q)) / sd + 0.5 * sd
    floor = jnp.minimum(0.0, turn - (jnp.log1p(sd * sd * most) + 2.0) / sd)
    left = jnp.where(remove, 0.0, jnp.maximum(-sd * most, floor)) - reach
    right = jnp.where(remove, sd * (1.0 + most), sd) + reach
    if until is not None:
        # Jumps beyond e^12 times the last cut have no weight, but the means that are taken off
        # need all of z under P and under Q.
        last = (until - jnp.log(q) + far) / sd + 0.5 * sd
        # What lies above the first cut may be beyond all that the whole law puts weight on.
        begin = (log_cut[0] - jnp.log(q) + 3.0 / sharp) / sd + 0.5 * sd
        right = jnp.maximum(right, jnp.where(jnp.isfinite(begin), begin, 0.0) + reach)
        # On a shifted contour the weight below a cut falls late, and what it multiplies grows until
        # then: all of it is kept.
        right = jnp.where(last < jnp.inf, jnp.maximum(last, sd + reach), right)
    # The partition leaves less room for shifts, so that the rule needs finer steps.
    finest = (0.06 if fine else 0.2) if double else (0.1 if fine else 0.25)
    mantissa, exponent = jnp.frexp(jnp.minimum(0.5 if double else 0.6, finest / sd))
    spacing = jnp.ldexp(jnp.floor(32.0 * mantissa) / 32.0, exponent)
    first = jnp.floor(left / spacing)
    chunks = jnp.ceil((right - left) / spacing / CHUNK)
    # Nothing is cut off silently: where the nodes do not suffice the sums are NaN.
    enough = chunks <= _MOST_CHUNKS
    if until is not None:
        enough = enough & is_covered(until, most, sharp)
    first = jnp.where(enough, first, jnp.nan)
    chunks = jnp.where(chunks <= _MOST_CHUNKS, jnp.maximum(chunks, 1.0), 1.0)
    first, spacing, log_cut = jax.lax.stop_gradient((first, spacing, log_cut))
    return Contour(
        q, sd, _rest(sd, s), first, spacing, chunks.astype(jnp.int32), log_cut, sharp, remove
    )


def sharpness(s: jax.Array) -> jax.Array:
    """The partition's power p for a noise multiplier."""
    return jax.lax.stop_gradient(jnp.maximum(_SHARPNESS * s, _LEAST_SHARP))


def is_covered(log_cut: jax.Array, order: jax.Array, sharp: jax.Array) -> jax.Array:
    """Whether the weight below a cut is negligible where x is e^12, on all contours in use.

    There |e^-x| is below exp(-0.16 e^12); |1 + u| raised to the order must not make up for it.
    """
    gain = (1.0 + order) * jnp.log1p(jnp.exp(jnp.minimum(log_cut + FAR / sharp, 80.0)))
    return (gain <= 0.1 * math.exp(FAR)) | (log_cut == jnp.inf)


def shift_step(line: Contour) -> jax.Array:
    """The unit of SHIFTS, in standard deviations of z."""
    return jnp.minimum(_STEP_ANGLE / (line.sharpness * line.sd), _STEP_DEVIATIONS)


def reached(q: jax.Array, s: jax.Array, order: jax.Array) -> jax.Array:
    """The order, or the largest one below it up to which there are nodes for the whole law."""
    sd = 1.0 / s
    spacing = jnp.minimum(0.5, 0.2 / sd)
    return jnp.maximum(jnp.minimum(order, (0.9 * MOST_NODES * spacing - 20.0) / sd - 1.0), 1.0)


def end_of(line: Contour) -> jax.Array:
    """The largest z among the nodes."""
    return line.sd * (line.spacing * (line.first + CHUNK * line.chunks) - 0.5 * line.sd)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A number as the sum of two with half of its digits each: products of such are exact."""
    exponent, digits = (11, 25) if x.dtype == jnp.float64 else (8, 11)
    high = jax.lax.reduce_precision(x, exponent, digits)
    return high, x - high


def _rest(sd: jax.Array, s: jax.Array) -> jax.Array:
    """1 / s - sd, where sd is 1 / s rounded."""
    (high, low), (s_high, s_low) = _halves(sd), _halves(s)
    miss = (1.0 - s_high * high) - (s_high * low + s_low * high + s_low * low)
    return jax.lax.stop_gradient(miss * sd)


def _log_parts(q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log q as the sum of an exact number and one below 1 in size."""
    _, exponent = jnp.frexp(jax.lax.stop_gradient(q))
    scale = 2.0 ** (26 if q.dtype == jnp.float64 else 12)
    high = math.floor(math.log(2.0) * scale) / scale
    mantissa = q * jnp.ldexp(jnp.ones_like(q), -exponent)
    times = exponent.astype(q.dtype)
    return times * high, times * (math.log(2.0) - high) + jnp.log(mantissa)


def _parts_of_z(line: Contour, whole: jax.Array) -> tuple[jax.Array, jax.Array]:
    """z at node number ``whole``, as the sum of an exact number and a small one."""
    # Half a deviation, which z is away from sd t, is taken off in whole nodes first.
    half = jax.lax.stop_gradient(jnp.round(0.5 * line.sd / line.spacing))
    t = line.spacing * (whole - half)
    (high, low), (t_high, t_low) = _halves(line.sd), _halves(t)
    apart = line.spacing * half - 0.5 * line.sd - 0.5 * line.sd_rest
    rest = high * t_low + low * t + line.sd_rest * t + line.sd * apart
    return high * t_high, rest


def nodes_at(line: Contour, index: Any, shift: jax.Array) -> Nodes:
    """One chunk of nodes, z shifted towards decay by that many deviations; all complex [nodes]."""
    dtype = line.sd.dtype
    shift = jnp.where(line.remove, shift, -shift)
    whole = line.first + CHUNK * index + jnp.asarray(np.arange(CHUNK), dtype)
    t = line.spacing * whole
    log_weight = 0.5 * (shift * shift - t * t) + jnp.log(line.spacing) - 0.5 * math.log(2 * math.pi)
    # Orders are large where losses are small, so that z has to be known to more than its digits.
    r_high, r_low = _parts_of_z(line, whole)
    r, angle = r_high + r_low, line.sd * shift
    # 1 + u by whichever form has no large numbers: u = q (e^z - 1) below the turn, and
    # q e^z (1 + (1 - q) / q e^-z) above it.
    q_high, q_low = _log_parts(line.q)
    log_q, log_rest = q_high + q_low, jnp.log1p(-line.q)
    edge = jnp.maximum(log_rest - log_q, 0.0) + 1.0
    large = r > edge
    jump_high, jump_low = q_high + r_high, q_low + r_low
    low, high = jnp.where(large, 0.0, r_low), jnp.where(large, 0.0, r_high)
    below_turn = jnp.exp(jnp.minimum((log_rest - jump_low) - jump_high, 0.0))
    growth, change = jnp.exp(high), low + low * low * exp_excess(low)
    excess = jnp.expm1(high) + growth * change
    growth = jnp.where(large, below_turn, growth * (1.0 + change))
    sine, versine = jnp.sin(angle), 2.0 * jnp.square(jnp.sin(0.5 * angle))
    u = line.q * (excess - growth * versine)
    real = jnp.where(large, growth * (1.0 - versine), u)
    imaginary = jnp.where(large, -growth, line.q * growth) * sine
    part = log1p(jax.lax.complex(real, imaginary))
    log_ratio = jax.lax.complex(
        part.real + jnp.where(large, jump_high + jump_low, 0.0),
        part.imag + jnp.where(large, angle, 0.0),
    )
    under_q = jax.lax.complex(log_weight, -t * shift)
    slope = jnp.abs(1.0 - (1.0 - line.q) * jnp.exp(-log_ratio))
    # 1 + u is next to 1 - q far to the left, where the digits of u are lost in it.
    lost = jnp.where(large, 3.0, jnp.abs(1.0 - jnp.exp(-log_ratio)))
    return Nodes(
        jnp.where(line.remove, under_q + log_ratio, under_q),
        jnp.where(line.remove, log_ratio, -log_ratio),
        slope,
        jax.lax.complex(r + log_q, jnp.broadcast_to(angle, r.shape)),
        2.0 * (jnp.abs(log_ratio) + lost) + slope * (3.0 * jnp.abs(r_low) + 2.0 * jnp.abs(angle)),
    )


def log_x(line: Contour, log_jump: jax.Array) -> jax.Array:
    """How far jumps are above each cut, as the partition sees it [nodes, k]."""
    # Part by part: a product of complex numbers would make a NaN of an infinite cut.
    above = line.sharpness * (log_jump.real[:, None] - line.log_cut[None, :])
    angle = line.sharpness * log_jump.imag[:, None]
    return jax.lax.complex(above, jnp.broadcast_to(angle, above.shape))


def partition(log_x: jax.Array) -> tuple[jax.Array, ...]:
    """Weights of jumps above each cut, below it, and between it and the next, all [nodes, k].

    The cuts ascend; beyond the last one there is none, which an infinite cut amounts to.
    """
    # Far beyond a cut chi is 1 to more digits than are kept, and e^x must not overflow.
    far = log_x.real > FAR
    size = jnp.exp(jnp.where(far, 0.0, log_x.real))
    x, half = size * jnp.cos(log_x.imag), 0.5 * size * jnp.sin(log_x.imag)
    # w = e^-x and r = 1 - w, each to all of its digits.
    sine, cosine, decay = jnp.sin(half), jnp.cos(half), jnp.exp(-x)
    versine, turned = 2.0 * sine * sine, 2.0 * decay * sine * cosine
    w = jax.lax.complex(decay * (1.0 - versine), -turned)
    above = jax.lax.complex(decay * versine - jnp.expm1(-x), turned)
    # chi = r^16, and 1 - chi = w (1 + r) (1 + r^2) (1 + r^4) (1 + r^8).
    below = w
    for _ in range(_SQUARINGS):
        below = below * (1.0 + above)
        above = above * above
    above, below = jnp.where(far, 1.0, above), jnp.where(far, 0.0, below)
    large = x > 1.0
    next_above = jnp.concatenate([above[:, 1:], 0.0 * above[:, :1]], axis=1)
    next_below = jnp.concatenate([below[:, 1:], 0.0 * below[:, :1] + 1.0], axis=1)
    return above, below, jnp.where(large | far, next_below - below, above - next_above)


def log_weight_below(log_x: jax.Array, below: jax.Array) -> jax.Array:
    """log |1 - chi| for each cut and, as 0, for none at all [nodes, k + 1]; also far beyond it."""
    x = jnp.exp(jnp.minimum(log_x.real, FAR))
    cosine = jnp.cos(log_x.imag)
    far = math.log(2.0**_SQUARINGS) - x * cosine
    log_size = jnp.where(x * cosine > 20.0, far, jnp.log(jnp.abs(below)))
    log_size = jnp.where(log_x.real > FAR, -jnp.inf, log_size)
    return jnp.concatenate([log_size, jnp.zeros((x.shape[0], 1), x.dtype)], axis=1)
