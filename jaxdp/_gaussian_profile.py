r"""The privacy profile of one Gaussian mechanism, solved in each direction.

For the pair N(0, 1), N(mu, 1), with mu the L2 sensitivity over the standard deviation, let
a = eps/mu - mu/2 and b = a + mu. Then (Balle and Wang 2018, Theorem 8)

    delta(eps) = Phi(-a) - e^eps Phi(-b) = phi(a) (R(a) - R(b)),    R(t) = Phi(-t) / phi(t),

because e^eps phi(b) = phi(a). The first form is a difference of numbers that agree to all
digits when mu is small, and overflows when eps is large; so nothing here evaluates it:

- small mu: R(a) - R(b) is the integral over [a, b] of D(t) = 1 - t R(t) > 0, whose terms
  are all positive (Gauss-Legendre);
- D itself cancels for large t, where R(t) = 1/(t + K) with the continued fraction
  K = 1/(t + 2/(t + 3/(t + ...))) gives D = K/(t + K);
- a <= 0: 1 - delta = Phi(a) + phi(a) R(b), again a sum of positive terms.

Every function takes float scalars of one dtype (float32 or float64), logarithms of delta
instead of delta (1e-300 is not a float32), and is jittable, vmappable and differentiable.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc

from jaxdp import _special

_HALF_LOG_2PI = 0.9189385332046727
_SQRT_HALF_PI = 1.2533141373155003
_SQRT_HALF = 0.7071067811865476
_LOG_2 = 0.6931471805599453
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FRACTION_DEPTH = 40
# Margin for evaluation errors, in units of the dtype's epsilon. Against 60-digit arithmetic
# at most 3 were measured on a CPU; the rest is room for the elementary functions of others.
_ULPS = 16.0


def _is_double(x: jax.Array) -> bool:
    return x.dtype == jnp.float64


def _mills(t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """R(t) and D(t) = 1 - t R(t) for t >= -1."""
    # Left of the switch the erfc form loses a factor t/D(t) of precision; right of it the
    # fraction needs depth: at 3, 40 terms are good to 1e-16, and at 2 to 1e-11.
    switch = 3.0 if _is_double(t) else 2.0
    low = jnp.clip(t, -1.0, switch)
    r_low = _SQRT_HALF_PI * jnp.exp(0.5 * low * low) * erfc(low * _SQRT_HALF)
    high = jnp.maximum(t, switch)
    # The remainder of the fraction is close to the fixed point of k = n / (t + k).
    n = float(_FRACTION_DEPTH)
    k = 2.0 * n / (high + jnp.sqrt(high * high + 4.0 * n))
    for i in range(_FRACTION_DEPTH - 1, 0, -1):
        k = i / (high + k)
    r_high = 1.0 / (high + k)
    return (
        jnp.where(t < switch, r_low, r_high),
        jnp.where(t < switch, 1.0 - low * r_low, k * r_high),
    )


def _log_delta(c: jax.Array, mu: jax.Array) -> jax.Array:
    """Log delta at eps = c mu, for 0 <= c and 0 < mu < inf, not rounded either way."""
    a = c - 0.5 * mu
    b = c + 0.5 * mu
    log_phi_a = -0.5 * a * a - _HALF_LOG_2PI
    # Small mu. The width is cut where this form is not used, so that nothing overflows.
    width = jnp.minimum(mu, jnp.maximum(1.0, 0.5 * a))
    start = jnp.maximum(a, -0.5)
    points = start + width * (0.5 + 0.5 * _NODES).astype(a.dtype)
    mean_d = jnp.sum((0.5 * _WEIGHTS).astype(a.dtype) * _mills(points)[1])
    narrow = log_phi_a + jnp.log(width) + jnp.log(mean_d)
    # Large mu: R(b) is well below R(a).
    r_a, _ = _mills(jnp.maximum(a, 0.0))
    r_b, _ = _mills(b)
    right = log_phi_a + jnp.log(jnp.where(r_a > r_b, r_a - r_b, 1.0))
    complement = 0.5 * erfc(-jnp.minimum(a, 0.0) * _SQRT_HALF) + jnp.exp(log_phi_a) * r_b
    left = _special.log_complement(jnp.minimum(complement, 1.0))
    wide = jnp.where(a > 0.0, right, left)
    return jnp.where(mu <= jnp.maximum(1.0, 0.5 * a), narrow, wide)


def _margin(log_delta: jax.Array) -> jax.Array:
    """A bound on the rounding error of a log delta, apart from that of a itself."""
    return _ULPS * float(jnp.finfo(log_delta.dtype).eps) * (1.0 + jnp.abs(log_delta))


@jax.custom_jvp
def log_delta(epsilon: jax.Array, mu: jax.Array) -> jax.Array:
    """The log of the smallest delta at ``epsilon``, rounded up.

    Args:
      epsilon: Scalar >= 0. Below 0, or NaN, gives 0 (delta = 1).
      mu: Scalar >= 0, L2 sensitivity over standard deviation. 0 gives -inf (delta = 0),
        infinity or NaN gives 0.

    Returns:
      Scalar <= 0, never below the truth.
    """
    regular = (mu > 0.0) & (mu < jnp.inf) & (epsilon >= 0.0) & (epsilon < jnp.inf)
    safe_mu = jnp.where(regular, mu, 1.0)
    c = jnp.where(regular, epsilon, 1.0) / safe_mu
    value = _log_delta(c, safe_mu)
    # a = c - mu/2 is off by an ulp of b, and |d log delta / d a| <= max(a, 0) + 1.3.
    ulp = float(jnp.finfo(value.dtype).eps)
    slope = jnp.maximum(c - 0.5 * safe_mu, 0.0) + 1.3
    # The ends of the float range bound what overflows: -inf plus inf would be NaN.
    largest = float(jnp.finfo(value.dtype).max)
    value = jnp.maximum(value, -0.5 * largest)
    margin = _margin(value) + 2.0 * ulp * slope * (c + 0.5 * safe_mu)
    value = value + jnp.minimum(margin, 0.25 * largest)
    value = jnp.where(value <= 0.0, value, 0.0)
    nothing = (epsilon >= 0.0) & ((mu == 0.0) | (epsilon == jnp.inf))
    return jnp.where(regular, value, jnp.where(nothing, -jnp.inf, 0.0))


@log_delta.defjvp
def _log_delta_jvp(primals, tangents):
    epsilon, mu = primals
    out = log_delta(epsilon, mu)
    # d delta / d mu = phi(a) and d delta / d eps = -e^eps Phi(-b) = -phi(a) R(b).
    regular = (mu > 0.0) & (mu < jnp.inf) & (epsilon >= 0.0) & (out > -jnp.inf)
    safe_mu = jnp.where(regular, mu, 1.0)
    c = jnp.where(regular, epsilon, 1.0) / safe_mu
    a = c - 0.5 * safe_mu
    by_mu = jnp.exp(-0.5 * a * a - _HALF_LOG_2PI - jnp.where(regular, out, 0.0))
    by_mu = jnp.where(regular, by_mu, 0.0)
    by_epsilon = -by_mu * _mills(c + 0.5 * safe_mu)[0]
    return out, by_epsilon * tangents[0] + by_mu * tangents[1]


def _bisect(is_above, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Halves a bracket until no float lies between its ends, or nearly so."""
    steps = 70 if _is_double(low) else 40

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        above = is_above(middle)
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    return jax.lax.fori_loop(0, steps, halve, (low, high))


@jax.custom_jvp
def epsilon(log_delta: jax.Array, mu: jax.Array) -> jax.Array:
    """The smallest epsilon at which delta is enough, rounded up.

    Args:
      log_delta: Scalar < 0; -inf gives infinity.
      mu: Scalar >= 0, L2 sensitivity over standard deviation. 0 gives 0, infinity or NaN
        gives infinity.

    Returns:
      Scalar >= 0, never below the truth: 0 where delta(0) is at most the delta asked for.
    """
    regular = (mu > 0.0) & (mu < jnp.inf) & (log_delta > -jnp.inf)
    safe_mu = jnp.where(regular, mu, 1.0)
    target = jnp.where(regular, log_delta, -1.0)
    target = target - _margin(target)
    # delta <= Phi(-a) <= exp(-a^2 / 2) / 2 for a >= 0 puts the solution left of this end.
    end = jnp.sqrt(jnp.maximum(-2.0 * (target + _LOG_2), 0.0)) + 0.5 * safe_mu
    start = jnp.zeros_like(end)
    _, c = _bisect(lambda c: _log_delta(c, safe_mu) <= target, start, end)
    c = jnp.where(_log_delta(start, safe_mu) <= target, 0.0, c)
    value = c * safe_mu * (1.0 + _ULPS * float(jnp.finfo(c.dtype).eps))
    value = jnp.where(regular & (value >= 0.0), value, jnp.inf)
    return jnp.where(mu == 0.0, 0.0, value)


@epsilon.defjvp
def _epsilon_jvp(primals, tangents):
    log_delta, mu = primals
    out = epsilon(log_delta, mu)
    # From the two derivatives of delta: d eps / d mu = 1 / R(b), and
    # d eps / d log delta = -delta / (phi(a) R(b)).
    inside = (out > 0.0) & (out < jnp.inf)
    safe_mu = jnp.where(inside, mu, 1.0)
    c = jnp.where(inside, out, 1.0) / safe_mu
    a = c - 0.5 * safe_mu
    r_b, _ = _mills(c + 0.5 * safe_mu)
    by_mu = jnp.where(inside, 1.0 / r_b, 0.0)
    log_phi_a = -0.5 * a * a - _HALF_LOG_2PI
    by_log_delta = -by_mu * jnp.exp(jnp.where(inside, log_delta, 0.0) - log_phi_a)
    by_log_delta = jnp.where(inside, by_log_delta, 0.0)
    return out, by_log_delta * tangents[0] + by_mu * tangents[1]


@jax.custom_jvp
def mu(epsilon: jax.Array, log_delta: jax.Array) -> jax.Array:
    """The largest mu that (epsilon, delta) allows, rounded down.

    The standard deviation that a target needs is the sensitivity over this.

    Args:
      epsilon: Scalar >= 0; infinity gives infinity.
      log_delta: Scalar < 0; -inf gives 0 (no finite noise is enough), 0 infinity.

    Returns:
      Scalar >= 0, never above the truth; 0 for an argument that is NaN or negative.
    """
    regular = (epsilon >= 0.0) & (epsilon < jnp.inf) & (log_delta > -jnp.inf) & (log_delta < 0.0)
    safe_epsilon = jnp.where(regular, epsilon, 1.0)
    target = jnp.where(regular, log_delta, -1.0)
    target = target - _margin(target)
    # delta(0) = erf(mu / sqrt 8) <= mu / sqrt(2 pi), and delta falls with epsilon.
    low = target + _HALF_LOG_2PI
    # With m0 the solution at epsilon 0, mu <= m0 + sqrt(2 eps): at a = -m0/2, 1 - delta is
    # at most 2 Phi(-m0/2). And m0 <= 2.7 delta below 1/2, sqrt(-8 log(1 - delta)) above.
    log_m0 = jnp.where(
        target < -_LOG_2,
        target + 1.0,
        0.5 * jnp.log(-8.0 * jnp.log(-jnp.expm1(jnp.minimum(target, 0.0)))),
    )
    log_root = 0.5 * (jnp.log(jnp.maximum(safe_epsilon, jnp.finfo(target.dtype).tiny)) + _LOG_2)
    high = jnp.logaddexp(log_m0, log_root) + 1e-3

    def is_above(log_mu):
        mu = jnp.exp(log_mu)
        return _log_delta(safe_epsilon / mu, mu) > target

    log_mu, _ = _bisect(is_above, low, high)
    ulp = float(jnp.finfo(log_mu.dtype).eps)
    value = jnp.exp(log_mu) * (1.0 - _ULPS * ulp * (1.0 + jnp.abs(log_mu)))
    everything = (epsilon == jnp.inf) | ((epsilon >= 0.0) & (log_delta >= 0.0))
    return jnp.where(regular, value, jnp.where(everything, jnp.inf, 0.0))


@mu.defjvp
def _mu_jvp(primals, tangents):
    epsilon, log_delta = primals
    out = mu(epsilon, log_delta)
    # d mu / d eps = R(b) and d mu / d log delta = delta / phi(a).
    inside = (out > 0.0) & (out < jnp.inf)
    safe_mu = jnp.where(inside, out, 1.0)
    c = jnp.where(inside, epsilon, 1.0) / safe_mu
    a = c - 0.5 * safe_mu
    by_epsilon = jnp.where(inside, _mills(c + 0.5 * safe_mu)[0], 0.0)
    by_log_delta = jnp.exp(jnp.where(inside, log_delta + 0.5 * a * a + _HALF_LOG_2PI, 0.0))
    return out, by_epsilon * tangents[0] + jnp.where(inside, by_log_delta, 0.0) * tangents[1]
