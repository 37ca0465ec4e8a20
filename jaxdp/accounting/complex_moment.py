r"""One step's moment at complex orders, by quadrature on a contour of its own.

For the Poisson-sampled Gaussian the likelihood ratio of "with" (P) over "without" (Q) the example
is :math:`1 + u = 1 - q + q e^z`, where under Q :math:`z \sim N(-v/2, v)`, v = 1/s^2. Removing the
example has the loss L = log(1 + u) under P, adding it L = -log(1 + u) under Q. What is wanted is

.. math:: m(\lambda) - 1 = E[e^{\lambda L}] - 1 = E[e_2(\lambda L)] + \lambda E[L],
          \quad e_2(x) = e^x - 1 - x,

under that law, and E[L], a divergence, is the mean under Q of 1 + (1+u)(log(1+u) - 1) or of
u - log(1 + u): nothing of this cancels for real orders.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting.complex_functions import exp_excess
from jaxdp.accounting.contour import (
    MOST_NODES,
    Contour,
    log_weight_below,
    log_x,
    nodes_at,
    partition,
)

# Of overflow.
_LEVELS = (1.0, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, math.inf)


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


def overflow(dtype: Any) -> float:
    """The log at which sums are cut off; one that large is not to be trusted."""
    return 0.8 * math.log(float(jnp.finfo(dtype).max))


def _spoilt(exponent: jax.Array, log_below: jax.Array) -> jax.Array:
    """Whether some node counts in a sum [n, k + 1] whose exponent [n, nodes] overflows.

    By levels, so that it is a few products: an exponent between t and t' overflows does not count
    where the weight times exp(t' overflows) is negligible against a sum of 1.
    """
    dtype = exponent.dtype
    highest, negligible = overflow(dtype), -45.0 if dtype == jnp.float64 else -20.0
    none = jnp.zeros((exponent.shape[0], log_below.shape[1]), bool)

    def by_level():
        found = none
        for level, following in itertools.pairwise(_LEVELS):
            much = (exponent > level * highest).astype(dtype)
            counts = (log_below > -following * highest + negligible).astype(dtype)
            found = found | (much @ counts > 0.0)
        return found

    return jax.lax.cond(jnp.any(exponent > highest), by_level, lambda: none)


def moments(line: Contour, orders: jax.Array, shift: jax.Array, scale: jax.Array) -> Moments:
    """m - 1 at complex orders [n], on the contour with one shift.

    Args:
      line: Nodes that serve these orders.
      orders: Complex orders lambda [n], with imaginary parts >= 0.
      shift: How far to shift the contour, in standard deviations of z, >= 0.
      scale: Logarithm by which every sum is divided, so that nothing overflows.
    """
    dtype = line.sd.dtype
    ulp = float(jnp.finfo(dtype).eps)
    highest = overflow(dtype)

    def add(index, sums):
        log_weight, loss, _, log_jump, loss_off = nodes_at(line, index, shift)
        x = orders[:, None] * loss[None, :]
        # Absolute values of products by those of their factors: of all else they take longest.
        size = jnp.abs(orders)[:, None] * jnp.abs(loss)[None, :]
        small = size < 0.5
        exponent = x + (log_weight - scale)[None, :]
        excess = log_x(line, log_jump)
        above, below, between = partition(excess)
        # Exponents are held below an overflow, so that nothing becomes infinity times a weight of
        # 0; a sum in which that matters is spoilt.
        held = jnp.minimum(exponent.real, highest)
        log_below = log_weight_below(excess, below)
        spoilt = _spoilt(exponent.real, log_below)
        heavy = jnp.exp(held)
        full = jax.lax.complex(heavy * jnp.cos(exponent.imag), heavy * jnp.sin(exponent.imag))
        weight = jnp.exp(log_weight - scale)[None, :]
        light = jnp.exp(log_weight.real - scale)[None, :]
        near = jnp.where(small, x, 0.0)
        terms = jnp.where(
            small, weight * (near * near * exp_excess(near)), full - weight * (1.0 + x)
        )
        # |e_2(x)| is at most 0.6 |x|^2 for |x| <= 1/2.
        bound = jnp.where(small, 0.6 * light * size * size, heavy + light * (1.0 + size))
        weight_off = (jnp.abs(log_weight) + 6.0)[None, :]
        x_off = jnp.abs(orders)[:, None] * loss_off[None, :]
        rough = heavy * (x_off + weight_off) + light * ((1.0 + size) * weight_off + x_off)
        error = jnp.where(small, light * size * x_off + bound * weight_off, rough)
        # The divergence E[L] by a sum of terms of one sign, under this law: L - 1 + e^-L.
        own = jnp.exp(log_weight)
        little = jnp.abs(loss) < 0.5
        near = jnp.where(little, loss, 0.0)
        far = jnp.exp(log_weight - loss) - own * (1.0 - loss)
        mean = jnp.where(little, own * (near * near * exp_excess(-near)), far)
        mean_off = jnp.where(
            little,
            jnp.abs(own) * (jnp.abs(loss) * loss_off + jnp.abs(near * near) * weight_off[0]),
            (jnp.abs(jnp.exp(log_weight - loss)) + jnp.abs(own) * (1.0 + jnp.abs(loss)))
            * (weight_off[0] + loss_off),
        )
        added = [jnp.sum(terms, axis=1), jnp.sum(mean), jnp.sum(error, axis=1), jnp.sum(mean_off)]
        added.append(terms @ below)
        # Weights are off where they change from 0 to 1, which counts since the parts have to fit.
        split_off = 64.0 * line.sharpness
        added.append(error @ jnp.abs(below) + (split_off * bound) @ jnp.abs(below * above))
        added.append(full @ between)
        added.append((heavy * (x_off + weight_off + split_off)) @ jnp.abs(between))
        added.append(own @ above)
        added.append((own * loss) @ above)
        added.append(jnp.where(spoilt, jnp.nan, 0.0))
        return [total + part for total, part in zip(sums, added, strict=True)]

    cuts = line.log_cut.size
    number = orders.size
    shapes = [(number,), (), (number,), (), *[(number, cuts)] * 4, (cuts,), (cuts,)]
    shapes.append((number, cuts + 1))
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
    gone = (sums[8][None, :] + orders[:, None] * sums[9][None, :]) * shrink
    size = jnp.abs(sums[8])[None, :] + jnp.abs(orders[:, None] * sums[9][None, :])
    # NaN for what an overflow spoilt: below each cut, and last of all the whole law.
    bad, bad_upper = sums[10][:, :-1], sums[10][:, 1:]
    # What underflows is nowhere in the sums: of each node up to four numbers below the least one.
    lost = 4.0 * MOST_NODES * float(jnp.finfo(dtype).tiny)
    return Moments(
        sums[0] + mean + sums[10][:, -1],
        ulp * (sums[2] + rough) + lost,
        sums[4] + mean[:, None] - gone + bad,
        ulp * (sums[5] + rough[:, None] + 64.0 * line.sharpness * size * shrink) + lost,
        sums[6] + bad_upper,
        ulp * sums[7] + lost,
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
        nodes = nodes_at(line, index, zero)
        log_weight, loss = nodes.log_weight.real, nodes.loss.real
        x = orders[:, None] * loss[None, :]
        exponent = x + log_weight[None, :]
        excess = log_x(line, nodes.log_jump)
        parts = partition(excess)
        above, below, between = (part.real for part in parts)
        log_below = log_weight_below(excess, parts[1])
        spoilt = _spoilt(exponent, log_below)
        full = jnp.exp(jnp.minimum(exponent, highest))
        own = jnp.exp(log_weight)
        small = jnp.abs(x) < 0.5
        near = jnp.where(small, x, 0.0)
        squared = own[None, :] * (near * near * exp_excess(near))
        terms = jnp.where(small, squared, full - own[None, :] * (1.0 + x))
        little = jnp.abs(loss) < 0.5
        near = jnp.where(little, loss, 0.0)
        far = jnp.exp(log_weight - loss) - own * (1.0 - loss)
        mean = jnp.where(little, own * (near * near * exp_excess(-near)), far)
        weights = jnp.concatenate([below, jnp.ones((loss.size, 1), dtype)], axis=1)
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
