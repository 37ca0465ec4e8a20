r"""delta around one epsilon, with its derivatives: the line integrals of a plan, added up.

A term of a line's sum depends on epsilon by e^(-x epsilon), x = c + iy. With z = -x d,

.. math:: \left|e^z - \sum_{k \le K} \frac{z^k}{k!}\right|
          \le \frac{|z|^{K + 1}}{(K + 1)!} \max(1, e^{-c d}),

so that one sum serves all epsilon + d for which the sizes of the terms, times that, are small. What
a term is off by changes by e^(-c d). The spacing, and what is left out, are chosen for the least of
these epsilons: both bounds fall with epsilon.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import composition, line_integral, saddle
from jaxdp.accounting.saddle import Run, Table

# Chunks of nodes: for a law as it is where it could be split, where it could not, for a part.
_FIRST_CHUNKS, _MOST_CHUNKS, _PART_CHUNKS = 8, 64, 96


class Side(NamedTuple):
    """One direction."""

    run: Any  # Run
    table: Table
    remove: Any  # bool scalar


class Delta(NamedTuple):
    """delta around one epsilon, over a reference: a series in d / reach for epsilon + d."""

    series: Any  # Taylor coefficients of the sums [line_integral.ORDER + 1]
    sizes: Any  # the same of absolute values, as in line_integral.Integral [ORDER + 2]
    error: Any  # bound on how far the sums are off at d = 0
    left_out: Any  # bound on the parts of the law that were left out
    alias: Any  # bound on what the trapezoid rules add: ten lines, both sides
    steepest: Any  # the largest c of a line: errors grow by e^(c |d|) at most where d < 0
    flattest: Any  # the least c of a line: errors fall by e^(-c d) at least where d > 0
    reach: Any  # |d| up to which the plan holds
    split: Any  # bool, whether the law had to be split, or will have to for more digits


class Known(NamedTuple):
    """delta at one d."""

    value: Any
    slope: Any  # minus its derivative in epsilon
    error: Any  # bound on how far the value is off


def known_at(found: Delta, d: jax.Array) -> Known:
    """delta at epsilon + d for |d| <= reach."""
    ulp = float(jnp.finfo(found.error.dtype).eps)
    order = line_integral.ORDER
    at = d / found.reach
    value, slope, rounding = found.series[order], jnp.zeros_like(d), jnp.zeros_like(d)
    for k in range(order - 1, -1, -1):
        slope = slope * at + value
        value = value * at + found.series[k]
        # Of a power and of its sum; those of the terms themselves are in the error.
        rounding = (rounding + (2 * k + 6) * ulp * found.sizes[k + 1]) * jnp.abs(at)
    growth = jnp.exp(-d * jnp.where(d > 0.0, found.flattest, found.steepest))
    rest = found.sizes[order + 1] * jnp.abs(at) ** (order + 1)
    # |e^(-x d) - 1| is at most 2 max(1, e^(-c d)).
    rest = rest + 2.0 * found.sizes[0]
    error = rest * jnp.maximum(growth, 1.0) + found.error * growth + rounding
    return Known(value, -slope / found.reach, error)


def is_summed(found: Delta) -> jax.Array:
    """Whether delta was summed, rather than left out for what a table of moments says."""
    value, _, error = known_at(found, jnp.zeros_like(found.error))
    seen = (value > 2.0 * error) & (value > found.left_out)
    return seen | (found.left_out == 0.0)


def bend_of(found: Delta) -> jax.Array:
    """The second derivative in epsilon at d = 0."""
    return 2.0 * found.series[2] / found.reach / found.reach


def run_of(steps: composition.Steps, dtype: Any) -> Run:
    none = jnp.zeros((0,), dtype)
    q, s, count = steps.sampled_gaussian or (none, none, none)
    mu_squared = jnp.zeros((), dtype) if steps.gaussian is None else steps.gaussian
    # Traced probabilities may turn out to be 1 (a Gaussian) or 0 (nothing).
    whole = q == 1.0
    noise = jnp.where(whole, s, 1.0)
    mu_squared = mu_squared + jnp.sum(jnp.where(whole, count / noise / noise, 0.0))
    idle = whole | (q == 0.0) | (count == 0.0) | (s == jnp.inf)
    # Traced numbers cannot be refused: where they are out of range nothing is certified.
    valid = (q >= 0.0) & (q <= 1.0) & (s >= 0.0) & (count >= 0.0)
    return Run(
        mu_squared,
        jnp.where(idle, 0.5, q),
        jnp.where(idle, 1.0, s),
        jnp.where(valid, jnp.where(idle, 0.0, count), jnp.nan),
    )


def _scaled(found: line_integral.Integral, log_delta: jax.Array) -> tuple[Any, ...]:
    size = jnp.exp(found.scale - log_delta)
    return found.series * size, found.sizes * size, found.error * size


class Pieces(NamedTuple):
    """The line integrals that delta was computed from, with the chunks that each took."""

    plan: saddle.Plan
    whole: Any  # int32; 0 where the law was split
    parts: Any  # int32 [1 + k]


def delta_at(side: Side, epsilon, log_delta, unit, split, rough) -> tuple[Delta, Pieces]:
    """delta(epsilon + d) / exp(log_delta), which should be about 1 at d = 0.

    Args:
      side: The direction.
      epsilon: Scalar.
      log_delta: The reference.
      unit: About what epsilon has to move by to change delta by a factor.
      split: Whether the law is known to need splitting.
      rough: Whether three digits will do, for searches that are still far away.
    """
    run, table, remove = side
    double, tiny = epsilon.dtype == jnp.float64, float(jnp.finfo(epsilon.dtype).tiny)
    good = jnp.where(rough, 1e-2, 2e-8 if double else 1e-4)
    tolerance = jnp.where(rough, 1e-3, 1e-11 if double else 1e-6)
    # A series for the law as it is reaches further than one for its parts.
    reach, part_reach = 0.7 * unit, 0.03 * unit
    # What holds for the least of the epsilons holds for all.
    plan = saddle.plan(table, epsilon - reach, epsilon - part_reach, log_delta, remove, rough)
    as_it_is = ~(split & plan.can_split)
    most = jnp.clip(plan.price, _FIRST_CHUNKS, _MOST_CHUNKS)
    most = jnp.where(plan.can_split, most, _MOST_CHUNKS)
    patience = jnp.where(plan.can_split, 2.5 * most, jnp.inf)
    most = jnp.where(as_it_is, most, 0.0)

    def integrate(line, most, log_known, reach, patience):
        found = line_integral.integrate(
            run, epsilon, line, remove, most, log_known, log_delta, reach, tolerance, patience
        )
        return _scaled(found, log_delta), found.chunks

    never = jnp.full_like(epsilon, jnp.inf)
    whole, whole_chunks = integrate(plan.whole, most, -never, reach, patience)
    again = plan.can_split & ~(as_it_is & (whole[2] <= good * whole[0][0]))
    start = tuple(jnp.zeros_like(part) for part in whole)

    def add(total, part):
        line, used = part
        # Once a part is not known the others are of no use.
        size = jnp.abs(total[0][0])
        hopeless = ~(total[2] <= 10.0 * jnp.maximum(size, 1.0))
        most = jnp.where(again & used & ~hopeless, float(_PART_CHUNKS), 0.0)
        sums, chunks = integrate(line, most, jnp.log(size) + log_delta, part_reach, never)
        return tuple(
            old + jnp.where(again & used, new, 0.0) for old, new in zip(total, sums, strict=True)
        ), chunks

    # From the largest jumps down: they have most of delta, and the others its digits only.
    pieces, chunks = jax.lax.scan(add, start, (plan.parts, plan.used), reverse=True)
    # Of two certified answers the one that is known better.
    closer = (pieces[2] <= whole[2]) | jnp.isnan(whole[2])
    better = again & (closer | ~as_it_is)
    series, sizes, error = (jnp.where(better, a, b) for a, b in zip(pieces, whole, strict=True))
    steepest = jnp.max(jnp.where(plan.used, plan.parts.c, 0.0))
    flattest = jnp.min(jnp.where(plan.used, plan.parts.c, jnp.inf))
    flattest = jnp.where(jnp.any(plan.used), flattest, 0.0)
    found = Delta(
        series,
        sizes,
        error,
        # Next to nothing is not nothing: only the law as it is leaves out none of it.
        jnp.where(better, jnp.maximum(jnp.exp(plan.left_out - log_delta), tiny), 0.0),
        20.0 * saddle.tolerance(epsilon.dtype, rough),
        jnp.where(better, steepest, plan.whole.c),
        jnp.where(better, flattest, plan.whole.c),
        jnp.where(better, part_reach, reach),
        # More digits take that many more nodes.
        again | (rough & plan.can_split & (3.5 * (whole_chunks - 1) > plan.price)),
    )
    used = Pieces(plan, jnp.where(better, 0, whole_chunks), jnp.where(better, chunks, 0))
    return found, used


@jax.custom_batching.sequential_vmap
def gradient_at(side: Side, epsilon, pieces: Pieces, log_delta) -> line_integral.Gradient:
    """Derivatives of delta / exp(log_delta) in the run's numbers, summed over the pieces."""
    run, _, remove = side
    plan = pieces.plan

    def of(line, chunks):
        size = jnp.exp(line.log_moment - line.c * epsilon - log_delta)
        found = line_integral.gradient(run, epsilon, line, remove, chunks)
        return jax.tree.map(lambda leaf: jnp.where(chunks > 0, size * leaf, 0.0), found)

    def add(total, part):
        return jax.tree.map(jnp.add, total, of(*part)), None

    start = of(plan.whole, pieces.whole)
    return jax.lax.scan(add, start, (plan.parts, pieces.parts))[0]


def is_finite(gradient: line_integral.Gradient) -> jax.Array:
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in gradient]
    return jnp.all(jnp.stack(leaves))


def along(gradient: line_integral.Gradient, tangents: Run) -> jax.Array:
    return gradient.mu_squared * tangents.mu_squared + sum(
        jnp.sum(by * tangent) for by, tangent in zip(gradient[1:], tangents[1:], strict=True)
    )
