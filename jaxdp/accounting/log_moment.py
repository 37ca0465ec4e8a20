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

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special


def _guard(log_moment: jax.Array, q: jax.Array, ceiling: jax.Array) -> jax.Array:
    """K within its bounds: never 0 by underflow, and at most what it is without sampling."""
    log_moment = jnp.maximum(log_moment, jnp.finfo(log_moment.dtype).tiny)
    # A NaN (inf - inf at absurd parameters) fails the comparison too.
    bounded = jnp.where(log_moment < ceiling, log_moment, ceiling)
    return jnp.where(q > 0.0, jnp.where(q < 1.0, bounded, ceiling), 0.0)


def _log_ratio(z: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 - q + q exp(z)) to full relative accuracy, also where it is next to 0."""
    large = z > (600.0 if z.dtype == jnp.float64 else 80.0)
    shifted = z + jnp.log(q)  # positive wherever z is large: q is kept above exp(-70)
    change = jnp.expm1(jnp.where(large, -shifted, z))
    return jnp.where(large, shifted, 0.0) + jnp.log1p(
        jnp.where(large, (1.0 - q) * (change + 1.0), q * change)
    )


def _inside(q: jax.Array) -> jax.Array:
    """q moved into the open interval where the formulas hold; the ends are masked by _guard."""
    return jnp.clip(q, 1e-30, 1.0 - jnp.finfo(q.dtype).epsneg)


def gaussian(t: jax.Array, mu_squared: jax.Array) -> jax.Array:
    """K of the Gaussian mechanism with sensitivity over standard deviation mu: a t mu^2 / 2."""
    return jnp.where(mu_squared > 0.0, 0.5 * (1.0 + t) * t * mu_squared, 0.0)


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
    total = up + a * down * jnp.exp(-exponent)  # over a t^2 r^2 / (2a - 1): e2(x) = x^2 g(x)
    log_excess = exponent + jnp.log(total) + jnp.log(t) + jnp.log(t / (1.0 + 2.0 * t) * a)
    log_excess = log_excess - jnp.log(t) + 2.0 * jnp.log(r)
    return jnp.where(b > 0.0, jnp.logaddexp(log_excess, 0.0), jnp.inf)


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
    log_terms = (
        jnp.asarray(log_choose, dtype)
        + jnp.asarray(np.maximum(a - k, 0.0), dtype) * jnp.log1p(-inner)
        + jnp.asarray(k, dtype) * jnp.log(inner)
        + _special.log_expm1(jnp.asarray((k * k - k) / 2.0, dtype) / noisy / noisy)
    )
    log_excess = jax.nn.logsumexp(log_terms, axis=1)
    t = jnp.asarray(a[:, 0] - 1.0, dtype)
    return _guard(jnp.logaddexp(log_excess, 0.0), q, gaussian(t, _inverse_square(s)))


def _inverse_square(s: jax.Array) -> jax.Array:
    noisy = jnp.where(s > 0.0, s, 1.0)
    return jnp.where(s > 0.0, 1.0 / noisy / noisy, jnp.inf)


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

    low = jax.lax.fori_loop(0, 12, newton, jnp.zeros_like(t))
    high = jax.lax.fori_loop(0, 12, newton, far)
    # Where two maxima merge the peak is quartic, with a width that grows as sqrt(s).
    flattest = jnp.minimum(2.0 / s, 1.0)
    low_width = reach / jnp.sqrt(jnp.clip(slope(low)[1], flattest, 1.0))
    high_width = reach / jnp.sqrt(jnp.clip(slope(high)[1], flattest, 1.0))
    # Around 0 the integrand is up to t, which counts unless e^K, about exp(t^2 / (2 s^2)), is huge.
    begin = jnp.where(t / s < reach, 0.0, low) - low_width
    end = jnp.maximum(high, jnp.minimum(2.0 / s, 0.5 / s - s * logit)) + high_width
    # Towards the valley between two maxima the integrand falls more slowly.
    low_end = low + 1.5 * low_width
    high_begin = high - 1.5 * high_width
    joined = (low_end >= high_begin) | (end - begin <= span)
    middle = 0.5 * (begin + end)
    return begin, jnp.where(joined, middle, low_end), jnp.where(joined, middle, high_begin), end


def poisson_gaussian(t: jax.Array, q: jax.Array, s: jax.Array) -> jax.Array:
    """K of the Poisson-subsampled Gaussian at real orders, by quadrature.

    The equispaced midpoint rule with a static number of nodes and traced positions. The integrand
    is a positive mixture of unit Gaussians (in units of s) times a function analytic up to
    distance pi s from the real axis, so the error falls as exp(-2 pi^2 / h^2) and
    exp(-2 pi^2 s / h) in the spacing h.
    """
    double = t.dtype == jnp.float64
    nodes, reach = (192, 9.5) if double else (64, 6.5)
    ceiling = gaussian(t, _inverse_square(s))
    sampled = q
    q = _inside(q)
    s = jnp.clip(s, 1e-9, 1e9)
    widest = jnp.minimum(0.75, 0.8 * s) if double else jnp.minimum(0.95, 0.9 * s)
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
    return _guard(jnp.logaddexp(log_excess, 0.0), sampled, ceiling)
