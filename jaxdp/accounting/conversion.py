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
_POINTS = 12
_STEPS = 60  # more than golden sections need
_GOLDEN = 0.5 * (3.0 - 5.0**0.5)


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
    """The interval that holds the minimum, and the three least points met, as (place, value)."""

    low: jax.Array
    high: jax.Array
    best: tuple[jax.Array, jax.Array]
    second: tuple[jax.Array, jax.Array]
    third: tuple[jax.Array, jax.Array]
    moves: tuple[jax.Array, jax.Array]  # the last one, and the one before
    count: Any


def _next_point(bracket: _Bracket, closest: float) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The vertex of the parabola through the three points, or a golden section.

    Where a value is infinite, or all three are on a line, the vertex is a NaN and not taken.
    """
    low, high, (x, at_x), (second, at_second), (third, at_third), moves, _ = bracket
    r, q = (x - second) * (at_x - at_third), (x - third) * (at_x - at_second)
    vertex = 0.5 * ((x - third) * q - (x - second) * r) / (r - q)
    inside = (low < x + vertex) & (x + vertex < high) & (jnp.abs(vertex) < 0.5 * jnp.abs(moves[1]))
    larger = jnp.where(high - x > x - low, high - x, low - x)
    move = jnp.where(inside, vertex, _GOLDEN * larger)
    # Next to a point that is known, a step into the larger part narrows the bracket most.
    move = jnp.where(jnp.abs(move) < closest, jnp.copysign(closest, larger), move)
    return x + move, (move, jnp.where(inside, moves[0], larger))


def _narrowed(bracket: _Bracket, u: jax.Array, at_u: jax.Array, moves: Any) -> _Bracket:
    low, high, best, second, third, _, count = bracket
    x, new = best[0], (u, at_u)
    better = at_u <= best[1]
    next_best = ~better & (at_u <= second[1])
    kept = better | next_best

    def pick(which, one, other):
        return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)

    end = jnp.where(better, x, u)
    is_low = (u >= x) == better
    return _Bracket(
        jnp.where(is_low, end, low),
        jnp.where(is_low, high, end),
        pick(better, new, best),
        pick(better, best, pick(next_best, new, second)),
        pick(kept, second, pick(at_u <= third[1], new, third)),
        moves,
        count + 1,
    )


def search(
    bound: Callable[[jax.Array], jax.Array], dtype: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The least ``bound(t)`` over real t, for a bound with a single minimum.

    A coarse grid over log t, then Brent's search (1973, chapter 5) around its least point.

    Returns:
      The value, its t, and whether that t is an end of the range.
    """
    # Under Poisson sampling the minimum sits in a bend, where half the second derivative in
    # log t is 500 times the value and more: 1e-4 of log t are 5e-6 of the value, as float32 has.
    closest = 1e-6 if dtype == jnp.float64 else 1e-4
    rounding = 2.0 * float(jnp.finfo(dtype).eps)

    def going(bracket):
        low, high, (x, least), (_, second), (_, third), _, count = bracket
        wide = jnp.maximum(high - x, x - low) > 2.0 * closest
        # Where all three are equal nothing tells places apart: all zero, infinite or rounding.
        apart = jnp.maximum(second, third) > least + rounding * jnp.abs(least)
        return wide & apart & (count < _STEPS)

    def value(x):
        return jax.lax.stop_gradient(bound(jnp.exp(x)))

    def step(bracket):
        u, moves = _next_point(bracket, closest)
        return _narrowed(bracket, u, value(u[None])[0], moves)

    x = jnp.asarray(np.linspace(_FIRST, _LAST, _POINTS), dtype)
    values = value(x)
    at = jnp.argmin(values)
    low, high = jnp.maximum(at - 1, 0), jnp.minimum(at + 1, _POINTS - 1)
    best, second, third = ((x[i], values[i]) for i in (at, low, high))
    width = x[high] - x[low]
    bracket = _Bracket(x[low], x[high], best, second, third, (width, width), 0)
    best_x = jax.lax.while_loop(going, step, bracket).best[0]
    # At a minimum the derivative in t is 0, so that of the value there is that of the minimum;
    # through the search it would be spoilt by the orders where the bound is infinite.
    t = jnp.exp(best_x)
    return bound(t[None])[0], t, (best_x <= x[0]) | (best_x >= x[-1])


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
