r"""From log-moments to (epsilon, delta).

With t = a - 1 and K the log-moment at order a, Canonne, Kamath and Steinke 2020
(arXiv:2004.00010, Proposition 12; also Balle et al. 2020) prove, for every t > 0,

.. math:: \log \delta(\epsilon) \le K - t \epsilon - t \log(1 + 1/t) - \log(1 + t),

and solved for epsilon the same inequality. The right side is convex in t, because K is and because
t log t - (1 + t) log(1 + t) is: delta has one minimum over t. For epsilon it is N(t) / t with N
convex, which has one too. So a search that shrinks a bracket around the least of a few points
finds the best real order, and stopping early costs tightness, never validity.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate

# The orders that a search without a grid ranges over, as log(a - 1).
_FIRST, _LAST = float(np.log(1e-6)), float(np.log(1e9))
_ENDS = (_FIRST, -np.inf), (_LAST, np.inf)
_STEPS = 60  # more than halvings need


class RdpEpsilon(NamedTuple):
    """An epsilon from Renyi DP, with the order that gave it.

    Attributes:
      epsilon: The bound, >= 0, rounded up; infinite where some step has no noise.
      order: The Renyi order it came from; infinite where the pure guarantee is the smaller one.
      order_at_edge: True where the order is the first or last one looked at and epsilon is
        positive and finite: orders beyond would probably give a smaller epsilon. Not an error.
    """

    epsilon: Any
    order: Any
    order_at_edge: Any


def margin(dtype: Any) -> float:
    """Relative allowance for the error of a log-moment, above what was measured.

    On 40,000 random (t, q, sigma), half of them where two maxima of the integrand merge, float64
    was at most 2.5e-11 below a dense quadrature and float32 at most 6.2e-6.
    """
    return 1e-10 if dtype == jnp.float64 else 1.5e-5


def _ulps(dtype: Any) -> float:
    """Relative allowance for the rounding of a few elementary functions."""
    return 16.0 * float(jnp.finfo(dtype).eps)


def _log_total_variation(rdp: jax.Array) -> jax.Array:
    """Bretagnolle and Huber: TV <= sqrt(1 - exp(-KL)), with KL <= RDP; rounded up."""
    some = jnp.where(rdp > 0.0, rdp, 1.0) * (1.0 + margin(rdp.dtype))
    return jnp.where(rdp > 0.0, 0.5 * jnp.log(-jnp.expm1(-some)) + _ulps(rdp.dtype), -jnp.inf)


def epsilon_at(t: jax.Array, rdp: jax.Array, log_delta: jax.Array) -> jax.Array:
    """Epsilon by the order 1 + t alone, moved up by the rounding margin, at least 0."""
    gain = jnp.log1p(1.0 / t)
    logs = (jnp.log1p(t) - log_delta) / t
    price = (-log_delta - jnp.log1p(t)) / t
    epsilon = rdp - gain + price + margin(t.dtype) * rdp + _ulps(t.dtype) * (gain + logs)
    return jnp.where(log_delta >= _log_total_variation(rdp), 0.0, jnp.maximum(epsilon, 0.0))


def log_delta_at(t: jax.Array, log_moment: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Log delta by the order 1 + t alone, moved up by the rounding margin, at most 0."""
    gain = t * jnp.log1p(1.0 / t) + jnp.log1p(t)
    size = margin(t.dtype) * log_moment + _ulps(t.dtype) * (t * epsilon + gain)
    log_delta = log_moment - t * epsilon - gain + size
    # The size is infinite without noise: infinity less infinity, and delta is 1.
    log_delta = jnp.where(size < jnp.inf, log_delta, 0.0)
    return jnp.minimum(jnp.minimum(log_delta, _log_total_variation(log_moment / t)), 0.0)


class _Bracket(NamedTuple):
    """Where an increasing function changes sign: the newest end, the other one, and one before."""

    new: tuple[jax.Array, jax.Array]  # (place, value)
    other: tuple[jax.Array, jax.Array]  # of the other sign
    before: tuple[jax.Array, jax.Array]
    share: jax.Array  # of the way from the newest end to the other one, where to look next
    count: Any


def _interpolated(bracket: _Bracket, closest: float) -> jax.Array:
    """Where inverse quadratic interpolation puts the zero, if it can be trusted, or half way."""
    (a, at_a), (b, at_b), (c, at_c) = bracket.new, bracket.other, bracket.before
    xi, phi = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
    share = at_a / (at_b - at_a) * at_c / (at_b - at_c) + (c - a) / (b - a) * (
        at_a / (at_c - at_a) * at_b / (at_c - at_b)
    )
    # Where a value is infinite these are NaN, and not taken.
    smooth = (phi * phi < xi) & ((1.0 - phi) ** 2 < 1.0 - xi) & jnp.isfinite(share)
    least = jnp.minimum(closest / jnp.abs(b - a), 0.5)
    return jnp.clip(jnp.where(smooth, share, 0.5), least, 1.0 - least)


def _zero(value: Callable[[jax.Array], jax.Array], dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Where an increasing function of log t is 0, by Chandrupatla's method (1997).

    Returns:
      t, and whether it is an end of the range.
    """
    # Under Poisson sampling the minimum sits in a bend, where half the second derivative in
    # log t is 500 times the value and more: 1e-4 of log t are 5e-6 of the value, as float32 has.
    # Derivatives in the run's numbers are off by the distance itself, times that.
    closest = 1e-10 if dtype == jnp.float64 else 1e-5

    def step(bracket):
        (a, at_a), (b, at_b) = bracket.new, bracket.other
        x = a + bracket.share * (b - a)
        new = x, value(x)
        same = (new[1] > 0.0) == (at_a > 0.0)

        def pick(one, other):
            return jax.tree.map(lambda x, y: jnp.where(same, x, y), one, other)

        other, before = pick((b, at_b), (a, at_a)), pick((a, at_a), (b, at_b))
        narrowed = _Bracket(new, other, before, bracket.share, bracket.count + 1)
        return narrowed._replace(share=_interpolated(narrowed, closest))

    def going(bracket):
        wide = jnp.abs(bracket.other[0] - bracket.new[0]) > 2.0 * closest
        return wide & (bracket.new[1] != 0.0) & (bracket.count < _STEPS)

    first, last = ((jnp.asarray(end, dtype), jnp.asarray(at, dtype)) for end, at in _ENDS)
    # The first look is at order 2 or so.
    share = jnp.asarray(_FIRST / (_FIRST - _LAST), dtype)
    found = jax.lax.while_loop(going, step, _Bracket(first, last, first, share, 0))
    closer = jnp.abs(found.new[1]) <= jnp.abs(found.other[1])
    x = jnp.where(closer, found.new[0], found.other[0])
    edge = 2.0 * closest
    return jnp.exp(x), (x <= first[0] + edge) | (x >= last[0] - edge)


def _log_over(value: jax.Array, goal: jax.Array) -> jax.Array:
    """log(value / goal); a value that overflowed is above, one lost to rounding below."""
    over = jnp.log(jnp.maximum(value, jnp.finfo(value.dtype).tiny)) - jnp.log(goal)
    return jnp.where(jnp.isnan(value), jnp.inf, over)


def and_least(t: jax.Array) -> jax.Array:
    """An order and the least one, at which the bound by total variation is best."""
    return jnp.stack([t, jnp.full_like(t, np.exp(_FIRST))])


def least(values: jax.Array) -> jax.Array:
    """The least entry by its place.

    The derivative of ``jnp.min`` compares entries with the minimum, and is lost where a compiler
    computes either again and rounds it otherwise (seen on JAX 0.10.2 under vmap).
    """
    return values[jnp.argmin(values)]


def _with_slope(log_moment: Callable[[jax.Array], jax.Array], t: jax.Array):
    k, slope = jax.jvp(log_moment, (t[None],), (jnp.ones_like(t)[None],))
    return k[0], slope[0]


def best_for_epsilon(
    log_moment: Callable[[jax.Array], jax.Array], log_delta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The t at which epsilon at a log delta is least: where t K' - K + log(1 + t) = -log delta.

    That is t^2 times the derivative of epsilon, and grows, since K is convex.
    """

    def over(x):
        t = jnp.exp(x)
        k, slope = _with_slope(log_moment, t)
        return _log_over(t * slope - k + jnp.log1p(t), -log_delta)

    return _zero(over, log_delta.dtype)


def best_for_delta(
    log_moment: Callable[[jax.Array], jax.Array], epsilon: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The t at which log delta at an epsilon is least: where K' = epsilon + log(1 + 1/t)."""

    def over(x):
        t = jnp.exp(x)
        _, slope = _with_slope(log_moment, t)
        return _log_over(slope, epsilon + jnp.log1p(1.0 / t))

    return _zero(over, epsilon.dtype)


def epsilon_from_rdp(rdp: Any, orders: Any, log_delta: Any) -> RdpEpsilon:
    r"""The least epsilon that Renyi DP on a grid of orders gives, as a jittable function.

    Args:
      rdp: Renyi DP at each order, shape [n], as ``rdp`` returns it (and added up over steps).
      orders: The orders, all > 1, shape [n], ascending.
      log_delta: Natural logarithm of delta, a scalar < 0. The logarithm, since a small delta
        underflows in float32.

    Returns:
      An ``RdpEpsilon`` of scalars in the float type of ``rdp``.

    Raises:
      ValueError: if an order is not above one, or if the shapes differ.

    Guarantee:
      If every neighbouring pair satisfies the Renyi bounds at these orders, it satisfies
      (epsilon, delta): the conversion is proved at each order by itself, and zero is returned
      only where delta is at least the total variation (Bretagnolle and Huber). Rounded up by
      1.5e-5 (float32) or 1e-10 (float64) of the Renyi divergence and a few ulps of the other terms.

    Example:
      >>> import math, jax.numpy as jnp
      >>> from jaxdp import accounting as acc
      >>> orders = jnp.linspace(2.0, 20.0, 37)
      >>> spent = acc.epsilon_from_rdp(orders / 2, orders, math.log(1e-5))
      >>> print(f"{spent.epsilon:.2f} at order {spent.order:.1f}")
      4.73 at order 5.5

    References:
      Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 12; Canonne 2022,
      arXiv:2202.07270, for Bretagnolle and Huber's inequality.
    """
    rdp = jnp.asarray(rdp)
    t = excess_orders(orders, rdp.dtype)
    if rdp.ndim != 1 or rdp.shape != t.shape:
        _validate.refuse("rdp", f"shape {rdp.shape}", f"of the orders' shape {t.shape}, a vector")
    bounds = epsilon_at(t, rdp, jnp.asarray(log_delta, rdp.dtype))
    at = jnp.argmin(bounds)
    epsilon = bounds[at]
    at_edge = ((at == 0) | (at == t.size - 1)) & (epsilon > 0.0) & (epsilon < jnp.inf)
    return RdpEpsilon(epsilon, 1.0 + t[at], at_edge)


def excess_orders(orders: Any, dtype: Any) -> jax.Array:
    """orders - 1, taken before rounding to the dtype where the orders are known; checked."""
    if _validate.is_traced(orders):
        return jnp.asarray(orders, dtype) - 1.0
    return jnp.asarray(known_orders(orders) - 1.0, dtype)


def known_orders(orders: Any) -> np.ndarray:
    """Concrete orders as float64, each checked to be finite and above one."""
    try:
        known = np.asarray(orders, np.float64)
    except (TypeError, ValueError):
        _validate.refuse("orders", orders, "an array of finite numbers > 1")
    if known.size == 0 or not np.all((known > 1.0) & (known < np.inf)):
        _validate.refuse("orders", orders, "an array of finite numbers > 1")
    return known
