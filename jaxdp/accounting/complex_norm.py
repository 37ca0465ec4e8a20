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
EVERY, EVERY_CUT = 4, 1


class LogNorms(NamedTuple):
    """Logs of integrals of absolute values over the contours with given shifts."""

    excess: Any  # of what is summed for m - 1, below the first cut [n, k]
    between: Any  # of e^(lambda L) from the first cut to the second [n, k]


class LogNormsAtRest(NamedTuple):
    """The same on the real axis, at the line's real order."""

    excess: Any
    between: Any
    lower: Any  # of e^(lambda L) below the first cut
    upper: Any  # of e^(lambda L) below the last cut


def _coarse(line: Contour, every: int) -> Contour:
    # The coarse nodes must stay on the fine ones: the first of them does.
    return line._replace(
        first=line.first / every,
        spacing=every * line.spacing,
        chunks=(line.chunks + every - 1) // every,
    )


class _Logs(NamedTuple):
    """What stands at one chunk of nodes [nodes], in logs of absolute values."""

    heavy: Any  # of e^(lambda L) at the real order
    loss: Any  # the loss, complex
    light: Any  # of the terms 1 + lambda L that are taken off where lambda L is not small
    squared: Any  # of e_2(lambda L) where it is
    small: Any  # whether it is
    weights: Any  # of jumps above each cut, below it, and between it and the next


def _logs(line: Contour, index: Any, shift: jax.Array, c: jax.Array, largest: jax.Array) -> _Logs:
    log_weight, loss, _, log_jump, _ = nodes_at(line, index, shift)
    log_order = 0.5 * jnp.log(c * c + largest * largest)
    log_size = log_order + jnp.log(jnp.abs(loss) + float(jnp.finfo(line.sd.dtype).tiny))
    size = jnp.exp(jnp.minimum(log_size, 30.0))
    weight = log_weight.real
    weights = None
    if line.log_cut.size > 0:
        weights = [jnp.log(jnp.abs(part)).T for part in partition(log_x(line, log_jump))]
    return _Logs(
        weight + c * loss.real,
        loss,
        weight + jnp.log1p(size),
        weight + 2.0 * log_size + size,
        size < 1.0,
        weights,
    )


def log_norms(
    line: Contour, c: jax.Array, y: jax.Array, shifts: jax.Array, largest: jax.Array, every: int
) -> LogNorms:
    """Norms at the orders c + i y [n] for each shift [k]; a negative one is away from decay.

    Orders count with the size that they have at c + i ``largest``, so that the logarithms are
    convex in y up to there. Only one of ``every`` nodes is used.
    """
    coarse = _coarse(line, every)
    nothing = jnp.full(y.shape, -jnp.inf, line.sd.dtype)

    def at(shift):
        def add(index, totals):
            logs = _logs(coarse, index, shift, c, largest)
            decay = y[:, None] * logs.loss.imag[None, :]
            heavy, still = logs.heavy, jnp.where(logs.small, logs.squared, logs.light)
            between = nothing
            if line.log_cut.size > 0:
                above, below, inside = logs.weights
                between = jax.nn.logsumexp((heavy + inside[0])[None, :] - decay, axis=1)
                heavy = heavy + below[0]
                still = jnp.logaddexp(still + below[0], logs.light + above[0])
            heavy = jnp.where(logs.small, -jnp.inf, heavy)
            moving = jax.nn.logsumexp(heavy[None, :] - decay, axis=1)
            excess = jnp.logaddexp(moving, jax.nn.logsumexp(still))
            return jnp.logaddexp(totals[0], excess), jnp.logaddexp(totals[1], between)

        return LogNorms(*jax.lax.fori_loop(0, coarse.chunks, add, (nothing, nothing)))

    return jax.vmap(at, out_axes=1)(shifts)


def log_norms_at_rest(
    line: Contour, c: jax.Array, largest: jax.Array, every: int
) -> LogNormsAtRest:
    """Norms on the real axis at the order c; those of the excess as in ``log_norms``."""
    coarse = _coarse(line, every)
    zero = jnp.zeros((), line.sd.dtype)

    def add(index, totals):
        logs = _logs(coarse, index, zero, c, largest)
        direct = jnp.logaddexp(logs.heavy, logs.light)
        excess = jnp.where(logs.small, logs.squared, direct)
        between = jnp.full_like(excess, -jnp.inf)
        lower = upper = logs.heavy
        if line.log_cut.size > 0:
            above, below, inside = logs.weights
            excess = jnp.logaddexp(excess + below[0], logs.light + above[0])
            between = logs.heavy + inside[0]
            lower, upper = logs.heavy + below[0], logs.heavy + below[-1]
        return [
            jnp.logaddexp(total, jax.nn.logsumexp(value))
            for total, value in zip(totals, (excess, between, lower, upper), strict=True)
        ]

    nothing = jnp.full((), -jnp.inf, line.sd.dtype)
    return LogNormsAtRest(*jax.lax.fori_loop(0, coarse.chunks, add, [nothing] * 4))


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
