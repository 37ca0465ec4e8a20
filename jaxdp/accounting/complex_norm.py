r"""Norms of one step's moment on shifted contours: bounds on it, and on errors of its sums.

On the contour through i theta, at the order c + i y, the *norm* is

.. math:: N(\theta, y) = e^{\theta^2 / (2 v)} E[|1 + u|^b e^{-y \alpha}].

It bounds \|m\|, and falls with y: its value at Y covers all y >= Y, which is what has to be
known where a line integral is cut off. A sum on the contour of least norm loses nothing to
cancellation, however small m is. And the error of the trapezoid rule with spacing h is at most
e^(-2 pi d / h) (N(theta + d) + N(theta - d)) for any d (Poisson summation, shifting up for the
positive frequencies and down for the negative ones).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting.contour import Contour, log_x, nodes_at, partition

# Norms are right to a few per cent on every fourth node; not so below a cut, where weights may fall
# within a few nodes.
_EVERY, _EVERY_CUT = 4, 1


class LogNorms(NamedTuple):
    """Logs of integrals of absolute values over the contours with given shifts."""

    excess: Any  # of what is summed for m - 1, below the first cut [n, k]
    between: Any  # of e^(lambda L) from the first cut to the second [n, k]
    lower: Any  # of e^(lambda L) below the first cut [n, k]
    upper: Any  # of e^(lambda L) below the last cut [n, k]


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
    every = _EVERY_CUT if line.log_cut.size > 0 else _EVERY
    coarse = line._replace(
        first=line.first / every,
        spacing=every * line.spacing,
        chunks=(line.chunks + every - 1) // every,
    )

    def at(shift):
        def add(index, totals):
            log_weight, loss, _, log_jump = nodes_at(coarse, index, shift)
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
                weights = partition(log_x(line, log_jump))
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
        return jnp.log(jnp.abs(partition(log_x(line, log_jump))[1][:, 0])) if cut else 0.0

    def base(index):
        nodes = nodes_at(line, index, zero)
        below = log_below(nodes.log_jump)
        return nodes.log_weight.real + c * nodes.loss.real + below - log_norm, nodes, below

    def plain(index, sums):
        exponent, nodes, _ = base(index)
        share = jnp.exp(exponent)
        return sums[0] + jnp.sum(share), sums[1] + jnp.sum(share * nodes.slope)

    mass, slope = jax.lax.fori_loop(0, line.chunks, plain, (zero, zero))
    # The weight below a cut explodes from an angle of pi / (2 p) on.
    most = jnp.minimum(1.2 / (line.sd * (line.sharpness if cut else 1.0)), 10.0)
    best = jnp.minimum(line.sd * y * slope / mass, most)
    shifts = jnp.stack([0.5 * best, best, jnp.minimum(2.0 * best, most), 0.5 * most, most])

    def at(shift):
        def add(index, total):
            exponent, nodes, below = base(index)
            moved = nodes_at(line, index, shift)
            change = moved.log_weight.real - nodes.log_weight.real
            change = change + c * (moved.loss.real - nodes.loss.real) - y * moved.loss.imag
            if cut:
                shifted = log_below(moved.log_jump)
                change = change + jnp.where(exponent > -jnp.inf, shifted - below, 0.0)
            return total + jnp.sum(jnp.exp(exponent) * jnp.expm1(change))

        total = jax.lax.fori_loop(0, line.chunks, add, zero)
        return jnp.log1p(jnp.maximum(total / mass, -1.0))

    return jnp.minimum(jnp.min(jax.vmap(at)(shifts)), 0.0)
