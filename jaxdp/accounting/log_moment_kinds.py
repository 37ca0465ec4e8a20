r"""Log-moments of mechanisms whose two directions, or whose losses, are of another shape.

The same conventions as in ``log_moment``: ``t`` = a - 1 > 0 is a vector, scalars may be traced, and
:math:`e^K - 1 = E_Q[\beta_a(R)]`, :math:`\beta_a(R) = R^a - 1 - a (R - 1) \ge 0`, R the likelihood
ratio, is a sum of positive terms.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special
from jaxdp.accounting import log_moment


def randomized_response(t: jax.Array, p: jax.Array, k: jax.Array) -> jax.Array:
    """K of randomised response: truth with probability 1 - p, else one of k answers at random.

    The answers of the two neighbours have the masses 1 - p + p/k and p/k, one each way, and the
    rest have ratio 1: e^K - 1 is a sum of two terms.
    """
    valid = (p > 0.0) & (p <= 1.0) & (k >= 1.0) & (k < jnp.inf)
    random, buckets = jnp.where(valid, p, 0.5), jnp.where(valid, k, 2.0)
    other = random / buckets
    loss = jnp.log1p((1.0 - random) / other)
    logs = jnp.stack(
        [
            jnp.log(other) + _special.log_bernoulli_excess(loss, t),
            jnp.log(1.0 - random + other) + _special.log_bernoulli_excess(-loss, t),
        ]
    )
    exact = jnp.logaddexp(jax.nn.logsumexp(logs, axis=0) + jnp.log(t), 0.0)
    exact = jnp.maximum(exact, jnp.finfo(t.dtype).tiny * jnp.maximum(t, 1.0))
    nothing = (k == 1.0) | (p == 1.0)  # one answer only, or always a random one
    answer = jnp.where(nothing & (p >= 0.0) & (p <= 1.0) & (k >= 1.0), 0.0, jnp.inf)
    return jnp.where(valid & ~nothing, exact, answer)


def randomized_response_loss(p: jax.Array, k: jax.Array) -> jax.Array:
    """The largest loss of randomised response, log(1 + (1 - p) k / p)."""
    valid = (p > 0.0) & (p <= 1.0) & (k >= 1.0) & (k < jnp.inf)
    loss = jnp.log1p((1.0 - p) * k / jnp.where(valid, p, 1.0))
    one = (k == 1.0) & (p >= 0.0) & (p <= 1.0)
    return jnp.where(one, 0.0, jnp.where(valid, loss, jnp.inf))


def discrete_gaussian(t: jax.Array, s: jax.Array, sensitivity: jax.Array) -> jax.Array:
    """K of the discrete Gaussian is at most that of the continuous one, a t D^2 / (2 s^2).

    Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 5 and Theorem 4: its
    normaliser is largest for a mean that is an integer.
    """
    noisy = s > 0.0
    mu = jnp.where(noisy, sensitivity / jnp.where(noisy, s, 1.0), jnp.inf)
    spent = log_moment.gaussian(t, mu * mu)
    spent = jnp.where((sensitivity >= 0.0) & (s >= 0.0), spent, jnp.inf)
    return jnp.where(sensitivity == 0.0, 0.0, spent)


def truncated_poisson_gaussian(
    t: jax.Array, q: jax.Array, s: jax.Array, n: jax.Array, capacity: jax.Array
) -> jax.Array:
    """K of the Poisson-subsampled Gaussian with a capacity, at most.

    With probability f the others (n of them, the data set that the example joins) fill the
    capacity; the example then takes the place of another with probability c <= q, at twice the
    sensitivity: e^K = (1-f) e^K(q, s) + f e^K(c, s/2) (see ``loss_law``). This grows with f, since
    s/2 costs more than s at the same rate, and with c; f is replaced by an upper bound and c by q.
    """
    once = log_moment.poisson_gaussian(t, q, s)
    twice = log_moment.poisson_gaussian(t, q, 0.5 * s)
    log_f = log_overflow_bound(q, n, capacity)
    # log((1 - f) e^once + f e^twice) = once + log1p(f (e^(twice - once) - 1)).
    gap = jnp.where(twice < jnp.inf, twice - jnp.where(twice < jnp.inf, once, 0.0), 0.0)
    gap = jnp.maximum(gap, jnp.finfo(t.dtype).tiny)
    mixed = once + jnp.logaddexp(log_f + _special.log_expm1(gap), 0.0)
    # Next to 0, where once and twice have lost all digits but their own.
    known = jnp.where(twice < jnp.inf, jnp.minimum(mixed, twice), twice)
    known = jnp.where(log_f == -jnp.inf, once, known)
    return jnp.where((n >= 0.0) & (capacity >= 1.0) & (q >= 0.0) & (q <= 1.0), known, jnp.inf)


def log_overflow_bound(q: jax.Array, n: jax.Array, capacity: jax.Array) -> jax.Array:
    """Log of an upper bound on P(Bin(n, q) >= capacity), in closed form.

    For B > nq, P(X >= B) is at most P(X = B) / (1 - r), r = (n - B) q / ((B + 1) (1 - q)) bounding
    the ratio of neighbouring terms, and P(X = B) at most exp(-n KL(B/n, q)) sqrt(n / (2 pi B
    (n - B))) by Stirling; the exponential alone is Chernoff's bound.
    """
    never = (capacity > n) | (q == 0.0)
    above = ~never & (q < 1.0) & (capacity > n * q)
    q, n = jnp.where(above, q, 0.25), jnp.where(above, n, 3.0)
    b = jnp.where(above, capacity, 2.0)
    rest = n - b
    some = jnp.maximum(rest, 0.5)
    # B log(B / nq) + (n - B) log((n - B) / (n - nq)), each by its distance from the mean.
    excess = b - n * q
    kl = b * jnp.log1p(excess / (n * q)) + jnp.where(
        rest > 0.0, some * jnp.log1p(-excess / (n * (1.0 - q))), 0.0
    )
    # Rounding of two terms that may nearly cancel.
    kl = jnp.maximum(kl - 64.0 * float(jnp.finfo(q.dtype).eps) * (excess + 1.0), 0.0)
    ratio = rest * q / ((b + 1.0) * (1.0 - q))
    sharp = 0.5 * jnp.log(n / (2.0 * math.pi * b * some)) - jnp.log1p(-jnp.minimum(ratio, 0.999999))
    sharp = jnp.where((rest > 0.0) & (ratio < 0.999), sharp, 0.0)
    bound = -kl + jnp.minimum(sharp, 0.0)
    return jnp.where(never, -jnp.inf, jnp.where(above, bound, 0.0))


def _half_line(panels: int, scale: jax.Array, end: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gauss-Legendre nodes on [0, end] that crowd at 0 on a scale, with log weights."""
    points, weights = np.polynomial.legendre.leggauss(16)
    place = (np.arange(panels)[:, None] + 0.5 + 0.5 * points).ravel() / panels
    nodes = jnp.asarray(place, scale.dtype)[None, :]
    log_weight = jnp.asarray(np.log(np.tile(0.5 * weights, panels) / panels), scale.dtype)[None, :]
    stretch = jnp.log1p(end / scale)[:, None]
    scale = scale[:, None]
    log_step = log_weight + jnp.log(scale * stretch) + stretch * nodes
    return scale * jnp.expm1(stretch * nodes), log_step


def _log_negative_excess(log_ratio: jax.Array, t: jax.Array) -> jax.Array:
    """Log of [(1+u)^(-t) - 1 + t u] / t for u > 0: with L = log(1+u), L^2 [t g(-tL) + g(L)]."""
    first, _ = _special.scaled_exp_excess(-t * log_ratio)
    second, exponent = _special.scaled_exp_excess(log_ratio)
    log_ratio = jnp.maximum(log_ratio, jnp.finfo(log_ratio.dtype).tiny)
    inner = t * first * jnp.exp(-exponent) + second
    return 2.0 * jnp.log(log_ratio) + exponent + jnp.log(inner)


def gaussian_without_replacement(t: jax.Array, q: jax.Array, s: jax.Array) -> jax.Array:
    """K of the Gaussian on a sample without replacement, for one replaced example.

    The loss law (see ``loss_law``) is that of removal above 0 and that of addition below, so with
    the ratio 1 + u of removal, u = q (e^z - 1), and the expectation without the example,

    e^K - 1 = E[beta_a(1 + u); u > 0] + E[(1 + u) beta_a(1 / (1 + u)); u > 0].

    The first is that over all u, a Poisson-subsampled Gaussian, less its part for u < 0; the second
    is E[(1 + u)^(-t) - 1 + t u; u > 0]. No exponential makes these two corrections large: panels
    that crowd at u = 0, where x = 1 / (2 s), resolve them.
    """
    usable = (q > 0.0) & (q <= 1.0) & (s > 0.0) & (s < jnp.inf)
    rate, noise = jnp.where(usable, q, 0.5), jnp.clip(jnp.where(usable, s, 1.0), 1e-9, 1e9)
    mu = 1.0 / noise
    double = t.dtype == jnp.float64
    panels, reach = (24, 9.5) if double else (12, 6.5)
    scale = 1.0 / (1.0 + (1.0 + t) * rate * mu)
    d, log_weight = _half_line(panels, scale, jnp.broadcast_to(0.5 * mu + reach, t.shape))
    log_weight = log_weight - 0.5 * math.log(2.0 * math.pi)
    # At x = mu/2 -+ d the loss before sampling is -+ mu d.
    down = jnp.maximum(jnp.log1p(rate * jnp.expm1(-mu * d)), -mu * d)
    below = _special.log_bernoulli_excess(down, t[:, None]) - 0.5 * (0.5 * mu - d) ** 2
    up = log_moment.sampled_loss(mu * d, rate)
    above = _log_negative_excess(up, t[:, None]) - 0.5 * (0.5 * mu + d) ** 2
    log_below, log_above = (
        jax.nn.logsumexp(part + log_weight, axis=1) + jnp.log(t) for part in (below, above)
    )
    whole = log_moment.poisson_gaussian(t, q, s)
    known = jnp.where(whole < jnp.inf, jnp.maximum(whole, jnp.finfo(t.dtype).tiny), 1.0)
    log_whole = _special.log_expm1(known)
    # Removal below 0 is part of the whole: what rounding makes larger is cut off.
    change = jnp.exp(log_above - log_whole) - jnp.minimum(jnp.exp(log_below - log_whole), 1.0)
    margin = 64.0 * float(jnp.finfo(t.dtype).eps)
    exact = jnp.logaddexp(log_whole + jnp.log1p(jnp.maximum(change, margin - 1.0)) + margin, 0.0)
    exact = jnp.maximum(exact, jnp.finfo(t.dtype).tiny * jnp.maximum(t, 1.0))
    ceiling = log_moment.gaussian(t, mu * mu)
    exact = jnp.where(q < 1.0, jnp.minimum(exact, ceiling), ceiling)
    return jnp.where(usable & (whole < jnp.inf), exact, whole)
