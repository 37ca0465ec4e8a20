r"""Bounds on the privacy profile of a sum of losses: delta at an epsilon, and the inverse.

The upper bound is the sum for delta over the window of a ``cyclic_sum``, with every error that is
named there moved outward.

**Why the lower bound holds.** The same sum, errors moved inward, bounds delta' of the *spread*
laws from below. Let R be the likelihood ratio e^Y of the run, R M that of the spread one,
M = e^Z, E_Q[M | R] <= 1. For every c,
:math:`(RM - e^{\epsilon + c})_+ \le M (R - e^\epsilon)_+ + RM \, 1[RM > e^{\epsilon+c}, M > e^c]`
(write RM - e^(eps+c) = M (R - e^eps) + (M - e^c) e^eps; the last term counts only where M > e^c),
and the mean of the right end is at most
:math:`e^{-\theta(\epsilon+c) - s c} E_{P'}[(R')^\theta M^s]`. Given R, log M is a sum of variables
on two points h apart. The log-moment of one, with base Q, vanishes at 0, is <= 0 at 1 and has a
second derivative <= h^2 / 4; its derivative at 1 is then <= h^2 / 4, so it grows from 1 + theta to
1 + theta + s by at most h^2 (s (1 + theta) / 4 + s^2 / 8). With V = h^2 times the number of steps
that are spread, c = V (1 + theta + s) / 4 leaves
:math:`\delta(\epsilon) \ge \delta'(\epsilon + c) - e^{\kappa - \theta (\epsilon + c) - V s^2 / 8}`.
Steps below a law's grid have no such bound on M; their tilted mass is subtracted, as is
wrap-around from either side.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import logsumexp

from jaxdp.accounting import cyclic_sum
from jaxdp.accounting.cyclic_sum import Part, Sum


def _log_delta_part(part: Part, y: jax.Array, epsilon: jax.Array, sign: float) -> jax.Array:
    """Log of the sum for delta over one part, its entries moved by their error."""
    d = y - epsilon
    inside = jnp.maximum(d, 0.0)
    weights = jnp.where(d > 0.0, jnp.exp(-part.theta * inside) * -jnp.expm1(-inside), 0.0)
    entries = jnp.maximum(part.entries + sign * part.error, 0.0)
    return part.log_mgf - part.theta * epsilon + jnp.log(jnp.sum(entries * weights))


def _log_upper(law: Sum, epsilon: jax.Array) -> jax.Array:
    """Log delta at epsilon, at least."""
    top = 2.0 * law.y[-1] - law.y[-2]
    at = epsilon - law.shift
    terms = [jnp.log(law.infinite)]
    for part in law.parts:
        terms.append(_log_delta_part(part, law.y, at, 1.0))
        terms.append(part.log_mgf - part.theta * top + jnp.minimum(part.log_above, part.log_share))
    value = logsumexp(jnp.stack(terms)) + law.slack
    value = jnp.where(at >= law.y[0], value, 0.0)
    return jnp.where(value <= 0.0, value, 0.0)


def _log_lower(law: Sum, epsilon: jax.Array) -> jax.Array:
    """Log delta at epsilon, at most; -inf where nothing is known."""
    main = law.parts[-1]  # its tilt bounds the whole sum
    needed = jnp.maximum(main.log_mgf - main.theta * epsilon - _log_upper(law, epsilon), 0.0) + 10.0
    v = jnp.maximum(law.spread, 1e-300)
    s = jnp.sqrt(8.0 * needed / v)
    c = jnp.where(law.spread > 0.0, 0.25 * v * (1.0 + main.theta + s), 0.0)
    at = jnp.maximum(epsilon + c + law.shift, law.y[0])
    smoothed = main.log_mgf - main.theta * at - 0.125 * v * s * s
    lost = [jnp.where(law.spread > 0.0, smoothed, -jnp.inf)]
    lost.append(
        jnp.where(law.spread > 0.0, main.log_mgf - main.theta * at + main.log_below, -jnp.inf)
    )
    window = law.y[-1] - law.y[0]
    for part in law.parts:
        lost.append(part.log_mgf - part.theta * at + part.log_above)
        lost.append(law.log_under - part.theta * window)
    gained = logsumexp(jnp.stack([_log_delta_part(part, law.y, at, -1.0) for part in law.parts]))
    gained = gained - law.slack
    loss = logsumexp(jnp.stack(lost)) + law.slack
    some = gained > loss
    ratio = jnp.exp(jnp.where(some, loss - gained, -1.0))
    return jnp.where(some, gained + jnp.log1p(-ratio), -jnp.inf)


def _next(i: jax.Array, a: jax.Array, b: jax.Array, fa: jax.Array, fb: jax.Array) -> jax.Array:
    """Where to look between a and b: by the Illinois rule, every third time in the middle."""
    known = jnp.isfinite(fa) & jnp.isfinite(fb) & (fa > fb)
    share = jnp.where(known, fa / jnp.where(known, fa - fb, 1.0), 0.5)
    return jnp.where(i % 3 == 2, 0.5 * (a + b), a + (b - a) * jnp.clip(share, 1e-6, 1.0 - 1e-6))


def _least_known(excess: Any, low: jax.Array, high: jax.Array) -> jax.Array:
    """Nearly the least x with excess(x) <= 0, a decreasing function; inf if excess(high) > 0."""

    def look(i, carry):
        a, b, fa, fb = carry
        x = jnp.where(i == 0, low, jnp.where(i == 1, high, _next(i, a, b, fa, fb)))
        f = excess(x)
        below = f <= 0.0
        found = (jnp.where(below, a, x), jnp.where(below, x, b))
        # The end that stays loses half its weight.
        values = (jnp.where(below, 0.5 * fa, f), jnp.where(below, f, 0.5 * fb))
        settled = (b == low) | ((i > 1) & (b == jnp.inf))
        return jax.tree.map(lambda new, old: jnp.where(settled, old, new), (*found, *values), carry)

    inf = jnp.full_like(low, jnp.inf)
    return jax.lax.fori_loop(0, 32, look, (low, inf, inf, -inf))[1]


def _greatest_known(excess: Any, low: jax.Array, high: jax.Array) -> jax.Array:
    """Nearly the greatest x in [low, high] with excess(x) > 0, of a function that need not be
    monotone far from there; 0 if none is found."""
    steps = 24

    def look(i, carry):
        a, b, fa, fb = carry
        begin = high - (high - low) * 0.5 ** i.astype(high.dtype)
        x = jnp.where(i < steps, begin, _next(i, a, b, fa, fb))
        f = excess(x)
        above, first = f > 0.0, i < steps
        # While beginning, x ascends: whatever lies above the last one known is open again.
        open_end = jnp.where(first, jnp.where(above, high, jnp.where(b == high, x, b)), b)
        new_b = jnp.where(above | first, open_end, x)
        new_fb = jnp.where(above, jnp.where(first, -jnp.inf, 0.5 * fb), f)
        return jnp.where(above, x, a), new_b, jnp.where(above, f, 0.5 * fa), new_fb

    start = (
        jnp.full_like(low, -1.0),
        high,
        jnp.full_like(low, jnp.inf),
        -jnp.full_like(low, jnp.inf),
    )
    return jnp.maximum(jax.lax.fori_loop(0, steps + 24, look, start)[0], 0.0)


def epsilons(
    laws: Any, ends: Any, h: Any, bottom: Any, tilts: Any, log_delta: Any, **static: Any
) -> tuple[jax.Array, jax.Array]:
    law = cyclic_sum.sum_of(laws, ends, h, bottom, tilts, **static)
    zero, top = jnp.zeros_like(log_delta), law.y[-1]
    upper = _least_known(lambda epsilon: _log_upper(law, epsilon) - log_delta, zero, top)
    end = jnp.minimum(upper, top)
    begin = jnp.clip(law.y[0], zero, end)
    return (
        _greatest_known(lambda epsilon: _log_lower(law, epsilon) - log_delta, begin, end),
        upper,
    )


def log_deltas(
    laws: Any, ends: Any, h: Any, bottom: Any, tilts: Any, epsilon: Any, **static: Any
) -> Any:
    law = cyclic_sum.sum_of(laws, ends, h, bottom, tilts, **static)
    return _log_lower(law, epsilon), _log_upper(law, epsilon)
