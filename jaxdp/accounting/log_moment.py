r"""The log-moment of one step, :math:`K(a) = \log E_Q[(dP/dQ)^a]`, for real orders a > 1.

All functions take ``t`` = a - 1 > 0, a vector, so that orders next to one keep their digits in
float32, and scalars that may be traced. P is the output with the differing example and Q without
it. For a symmetric noise law this direction dominates the other at every order (Mironov, Talwar
and Zhang 2019, arXiv:1908.10530, Theorem 5), so K bounds both.

A sampled mechanism has likelihood ratio 1 + u with :math:`u = q (e^z - 1)`, z the loss of the
mechanism itself, and E_Q[u] = 0. Hence :math:`e^K - 1 = E_Q[(1+u)^a - 1 - a u]`, whose integrand is
non-negative (Bernoulli): the sums below have no cancellation, and K keeps its relative accuracy
however small it is.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special


def _above_zero(log_moment: jax.Array, t: jax.Array) -> jax.Array:
    """K, or if it underflowed the least number whose quotient by t does not."""
    return jnp.maximum(log_moment, jnp.finfo(t.dtype).tiny * jnp.maximum(t, 1.0))


def _log_moment(log_excess: jax.Array, t: jax.Array, q: jax.Array, ceiling: jax.Array) -> jax.Array:
    """K from log(e^K - 1), within its bounds: 0 < K <= what it is without sampling.

    Where the excess could not be computed (no noise at all, or the nodes of a quadrature have
    fallen together, at orders beyond any use), the bound without sampling stands in.
    """
    computed = jnp.isfinite(log_excess) & (ceiling < jnp.inf)
    log_moment = jnp.logaddexp(jnp.where(computed, log_excess, 0.0), 0.0)
    log_moment = _above_zero(log_moment, t)
    bounded = jnp.where(computed & (log_moment < ceiling), log_moment, ceiling)
    sampled = jnp.where(q < 1.0, bounded, ceiling)
    # A traced probability cannot be refused: outside [0, 1], or NaN, it bounds nothing.
    valid = (q >= 0.0) & (q <= 1.0)
    return jnp.where(valid, jnp.where(q > 0.0, sampled, 0.0), jnp.inf)


def _log_ratio(z: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 - q + q exp(z)) to full relative accuracy, also where it is next to 0."""
    large = z > (600.0 if z.dtype == jnp.float64 else 80.0)
    shifted = z + jnp.log(q)  # positive wherever z is large: q is kept above exp(-70)
    change = jnp.expm1(jnp.where(large, -shifted, z))
    return jnp.where(large, shifted, 0.0) + jnp.log1p(
        jnp.where(large, (1.0 - q) * (change + 1.0), q * change)
    )


def _rounding(log_terms: jax.Array, exponents: jax.Array) -> jax.Array:
    """What rounding can take from a log-sum of terms whose exponents are this large.

    It shows where exponents nearly cancel, such as y^2 / 2 against a log(1 + u), and is added,
    since K is to be an upper bound.
    """
    top = jnp.argmax(log_terms, axis=1, keepdims=True)
    largest = jnp.take_along_axis(exponents, top, axis=1)[:, 0]
    return float(jnp.finfo(log_terms.dtype).eps) * jax.lax.stop_gradient(largest)


def _inside(q: jax.Array) -> jax.Array:
    """q moved into the open interval where the formulas hold; _log_moment masks the ends."""
    return jnp.clip(q, 1e-30, 1.0 - jnp.finfo(q.dtype).epsneg)


def _inverse_square(s: jax.Array) -> jax.Array:
    noisy = jnp.where(s > 0.0, s, 1.0)
    square = jnp.maximum(1.0 / noisy / noisy, jnp.finfo(s.dtype).tiny)
    return jnp.where(s > 0.0, jnp.where(s < jnp.inf, square, 0.0), jnp.inf)


def gaussian(t: jax.Array, mu_squared: jax.Array) -> jax.Array:
    """K of the Gaussian mechanism with sensitivity over standard deviation mu: a t mu^2 / 2."""
    log_moment = _above_zero(0.5 * (1.0 + t) * t * mu_squared, t)
    return jnp.where(mu_squared > 0.0, log_moment, 0.0)


def laplace(t: jax.Array, b: jax.Array) -> jax.Array:
    """K of the Laplace mechanism with scale b over L1 sensitivity.

    With r = 1/b, (2a-1) (e^K - 1) = a e2(t r) + t e2(-a r), e2(x) = exp(x) - 1 - x: both terms
    are positive. Vectors need nothing more: for a shift split over coordinates the K's add up to
    at most that of one coordinate with the whole shift, because K is convex in r and 0 at 0.
    """
    r = 1.0 / jnp.where(b > 0.0, b, 1.0)
    a = 1.0 + t
    up, exponent = _special.scaled_exp_excess(t * r)
    down, _ = _special.scaled_exp_excess(-a * r)
    # e2(x) = x^2 g(x), and a t r^2 is taken out of both terms.
    log_excess = exponent + jnp.log(t * up + a * down * jnp.exp(-exponent))
    log_excess = log_excess + jnp.log(a) - jnp.log1p(2.0 * t) + jnp.log(t) + 2.0 * jnp.log(r)
    log_moment = _above_zero(jnp.logaddexp(log_excess, 0.0), t)
    return jnp.where(b > 0.0, log_moment, jnp.inf)


def poisson_gaussian_at_integers(orders: tuple[int, ...], q: jax.Array, s: jax.Array) -> jax.Array:
    """K of the Poisson-subsampled Gaussian at static integer orders, as a finite sum.

    e^K - 1 = sum over k >= 2 of C(a,k) (1-q)^(a-k) q^k (exp((k^2-k) / (2 s^2)) - 1): the terms
    k = 0 and 1 of the binomial sum cancel the 1 exactly, and those left are positive.
    """
    k = np.arange(2.0, max(orders) + 1.0)[None, :]
    a = np.asarray(orders, np.float64)[:, None]
    log_choose = np.array(
        [
            [math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) if j <= n else -np.inf
             for j in range(2, max(orders) + 1)]
            for n in orders
        ]
    )  # fmt: skip
    dtype = q.dtype
    noisy = jnp.where(s > 0.0, s, 1.0)
    inner = _inside(q)
    losses = jnp.asarray((k * k - k) / 2.0, dtype) / noisy / noisy
    log_terms = (
        jnp.asarray(log_choose, dtype)
        + jnp.asarray(np.maximum(a - k, 0.0), dtype) * jnp.log1p(-inner)
        + jnp.asarray(k, dtype) * jnp.log(inner)
        + _special.log_expm1(losses)
    )
    sizes = 2.0 * losses + jnp.asarray(np.abs(log_choose), dtype)
    log_excess = jax.nn.logsumexp(log_terms, axis=1) + _rounding(log_terms, sizes)
    t = jnp.asarray(a[:, 0] - 1.0, dtype)
    return _log_moment(log_excess, t, q, gaussian(t, _inverse_square(s)))


def _windows(t: jax.Array, q: jax.Array, s: jax.Array, reach: float, span: jax.Array):
    """Two intervals, adjacent or apart, outside which the integrand is negligible.

    In units of s the log-integrand a log(1 + u(y)) - y^2 / 2 is stationary where
    y = (a/s) w(y), w the logistic posterior of having been sampled. Newton's method from 0 upwards
    and from a/s downwards is monotone towards the outermost of the (one or two) maxima, since w
    is convex below 1/2 and concave above. Where |a u| is small the integrand goes with u^2
    instead, whose own maximum is at most min(2/s, the y at which w = 1/2).
    """
    far = (1.0 + t) / s
    logit = jnp.log(q) - jnp.log1p(-q)

    def slope(y):
        w = jax.nn.sigmoid(y / s - 0.5 / s / s + logit)
        return far * w, 1.0 - far / s * w * (1.0 - w)

    def newton(_, y):
        goal, curvature = slope(y)
        return jnp.clip(y + (goal - y) / jnp.clip(curvature, 0.05, 1.0), 0.0, far)

    low = jax.lax.fori_loop(0, 12, newton, jnp.zeros_like(t), unroll=True)
    high = jax.lax.fori_loop(0, 12, newton, far, unroll=True)
    # Where two maxima merge the peak is quartic, with a width that grows as sqrt(s).
    flattest = jnp.minimum(2.0 / s, 1.0)
    low_width = reach / jnp.sqrt(jnp.clip(slope(low)[1], flattest, 1.0))
    high_width = reach / jnp.sqrt(jnp.clip(slope(high)[1], flattest, 1.0))
    # Around 0 the integrand is up to t, which counts unless e^K, about exp(t^2 / (2 s^2)), is huge.
    begin = jnp.where(t / s < reach, 0.0, low) - low_width
    quadratic = jnp.minimum(2.0 / s, 0.5 / s - s * logit)
    end = jnp.maximum(high, quadratic) + high_width

    # A maximum that has just merged into nothing leaves a shoulder at the inflection, where
    # w (1 - w) = s^2 / a: it counts while it is within reach of the maximum that is left.
    flatness = jnp.minimum(4.0 * s * s / (1.0 + t), 1.0)
    log_odds = 2.0 * jnp.log1p(jnp.sqrt(1.0 - flatness)) - jnp.log(flatness)

    def height(y):
        return (1.0 + t) * _log_ratio(y / s - 0.5 / s / s, q) - 0.5 * y * y

    peak = jnp.maximum(height(low), height(high)) - 0.5 * reach * reach
    left, right = (0.5 / s + s * (sign * log_odds - logit) for sign in (-1.0, 1.0))
    widest = reach / jnp.sqrt(flattest)
    end = jnp.where((high < right) & (height(right) > peak), jnp.maximum(end, right + widest), end)
    begin = jnp.where(
        (low > left) & (height(left) > peak), jnp.minimum(begin, left - widest), begin
    )

    # Where the nodes are dense enough for all there could be, there is nothing to choose.
    whole = far + 2.0 * reach <= span
    begin = jnp.where(whole, -reach, begin)
    end = jnp.where(whole, jnp.maximum(far, quadratic) + reach, end)
    # Towards the valley between two maxima the integrand falls more slowly.
    low_end = low + 1.5 * low_width
    high_begin = high - 1.5 * high_width
    joined = whole | (low_end >= high_begin) | (end - begin <= span)
    middle = 0.5 * (begin + end)
    return begin, jnp.where(joined, middle, low_end), jnp.where(joined, middle, high_begin), end


def poisson_gaussian(t: jax.Array, q: jax.Array, s: jax.Array, *, rough: bool = False) -> jax.Array:
    """K of the Poisson-subsampled Gaussian at real orders, by quadrature.

    The equispaced midpoint rule with a static number of nodes and traced positions. The integrand
    is a positive mixture of unit Gaussians (in units of s) times a function analytic up to
    distance pi s from the real axis, so the error falls as exp(-2 pi^2 / h^2) and
    exp(-2 pi^2 s / h) in the spacing h. ``rough``, for a search, is in float64 as good as float32.
    """
    double = t.dtype == jnp.float64
    fine = double and not rough
    nodes, reach = (192, 9.5) if fine else (64, 6.5)
    ceiling = gaussian(t, _inverse_square(s))
    sampled = q
    q = _inside(q)
    s = jnp.clip(s, 1e-12, 1e9)  # the lower end is out of range below, the upper one costs noise
    widest = jnp.minimum(0.75, 0.8 * s) if fine else jnp.minimum(0.95, 0.9 * s)
    edges = jax.lax.stop_gradient(_windows(t, q, s, reach, 2 * nodes * widest))
    begin, low_end, high_begin, end = edges
    cell = jnp.asarray((np.arange(nodes) + 0.5) / nodes, t.dtype)[None, :]
    y = jnp.concatenate(
        [
            begin[:, None] + (low_end - begin)[:, None] * cell,
            high_begin[:, None] + (end - high_begin)[:, None] * cell,
        ],
        axis=1,
    )
    spacing = jnp.stack([low_end - begin, end - high_begin], axis=1) / nodes
    log_ratio = _log_ratio(y / s - 0.5 / s / s, q)
    log_terms = _special.log_bernoulli_excess(log_ratio, t[:, None]) - 0.5 * y * y
    log_terms = log_terms + jnp.log(jnp.repeat(spacing, nodes, axis=1))
    log_excess = jax.nn.logsumexp(log_terms, axis=1) + jnp.log(t) - 0.5 * math.log(2 * math.pi)
    log_excess = log_excess + _rounding(log_terms, y * y)
    # Further out, neighbouring nodes are the same float: no order that large is of use.
    log_excess = jnp.where((1.0 + t) / s < (1e12 if double else 1e5), log_excess, jnp.nan)
    return _log_moment(log_excess, t, sampled, ceiling)


def sampled_loss(z: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 + q (exp(z) - 1)): the largest loss after sampling, z >= 0 the one before."""
    finite = jnp.minimum(z, 0.5 * jnp.finfo(z.dtype).max)
    loss = jnp.where(q < 1.0, _log_ratio(finite, _inside(q)), z)
    valid = (q >= 0.0) & (q <= 1.0) & (z < jnp.inf)
    return jnp.where(q == 0.0, 0.0, jnp.where(valid, loss, jnp.inf))


def poisson_laplace(t: jax.Array, q: jax.Array, b: jax.Array) -> jax.Array:
    """K of the Poisson-subsampled Laplace mechanism at real orders, by quadrature.

    Without the example, the loss z of the mechanism itself has atoms of mass 1/2 at -r and
    exp(-r)/2 at r = 1/b, and the density exp(-(z + r)/2) / 4 in between. Under this density the
    integrand is log-convex up to a factor that varies slowly: its mass sits at the two ends, on
    the scales 1 (left) and 1/a (right), and Gauss-Legendre panels grow geometrically from either.
    """
    ceiling = laplace(t, b)
    sampled, q = q, _inside(q)
    r = 1.0 / jnp.where(b > 0.0, b, 1.0)

    def graded(panels, scale):
        """Nodes on [0, r] that crowd at 0 on a scale, with log weights, both [n, nodes]."""
        points, weights = np.polynomial.legendre.leggauss(16)
        place = (np.arange(panels)[:, None] + 0.5 + 0.5 * points).ravel() / panels
        place = jnp.asarray(place, t.dtype)[None, :]
        log_weight = jnp.asarray(np.log(np.tile(0.5 * weights, panels) / panels), t.dtype)[None, :]
        stretch = jnp.log1p(r / scale)[:, None]
        scale = scale[:, None]
        distance = scale * jnp.expm1(stretch * place)
        return distance, log_weight + jnp.log(scale * stretch) + stretch * place

    left, left_weight = graded(4, jnp.ones_like(t))
    right, right_weight = graded(8, 1.0 / (1.0 + t))
    end = jnp.broadcast_to(r, t.shape)[:, None]
    z = jnp.concatenate([left - r, r - right, -end, end], axis=1)
    log_mass = jnp.concatenate(
        [
            left_weight - 0.5 * left - math.log(4.0),
            right_weight + 0.5 * right - r - math.log(4.0),
            jnp.full_like(end, -math.log(2.0)),
            -end - math.log(2.0),
        ],
        axis=1,
    )
    log_terms = log_mass + _special.log_bernoulli_excess(_log_ratio(z, q), t[:, None])
    log_excess = jax.nn.logsumexp(log_terms, axis=1) + jnp.log(t)
    log_excess = log_excess + _rounding(log_terms, (1.0 + t)[:, None] * jnp.abs(z))
    return _log_moment(log_excess, t, sampled, ceiling)
