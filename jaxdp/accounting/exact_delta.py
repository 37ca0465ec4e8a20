"""delta at one epsilon, with its derivatives: the line integrals that a plan asks for, added up."""

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
    """delta at one epsilon, over a reference."""

    value: Any  # the sums
    error: Any  # bound on how far they are off
    slope: Any
    slope_error: Any
    bend: Any
    most_bend: Any
    left_out: Any  # bound on the parts of the law that were left out
    split: Any  # bool, whether the law had to be split


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
    sums = (
        found.value,
        found.error,
        found.slope,
        found.slope_error,
        found.bend,
        found.most_bend,
    )
    return tuple(part * size for part in sums)


class Pieces(NamedTuple):
    """The line integrals that delta was computed from, with the chunks that each took."""

    plan: saddle.Plan
    whole: Any  # int32; 0 where the law was split
    parts: Any  # int32 [1 + k]


def delta_at(side: Side, epsilon, log_delta, split) -> tuple[Delta, Pieces]:
    """delta(epsilon) / exp(log_delta), which should be about 1."""
    run, table, remove = side
    good = 2e-8 if epsilon.dtype == jnp.float64 else 1e-4
    plan = saddle.plan(table, epsilon, log_delta, remove)
    as_it_is = ~(split & plan.can_split)
    most = jnp.where(plan.can_split & plan.rather_split, _FIRST_CHUNKS, _MOST_CHUNKS)
    most = jnp.where(as_it_is, most, 0)
    nothing = jnp.full_like(epsilon, -jnp.inf)
    whole = line_integral.integrate(run, epsilon, plan.whole, remove, most, nothing, log_delta)
    whole_sums = _scaled(whole, log_delta)
    again = plan.can_split & ~(as_it_is & (whole_sums[1] <= good * whole_sums[0]))
    start = tuple(jnp.zeros_like(part) for part in whole_sums)

    def add(total, part):
        line, used = part
        # Once a part is not known the others are of no use.
        hopeless = ~(total[1] <= 10.0 * jnp.maximum(jnp.abs(total[0]), 1.0))
        most = jnp.where(again & used & ~hopeless, _PART_CHUNKS, 0)
        log_known = jnp.log(jnp.abs(total[0])) + log_delta
        found = line_integral.integrate(run, epsilon, line, remove, most, log_known, log_delta)
        sums = _scaled(found, log_delta)
        return tuple(
            old + jnp.where(again & used, new, 0.0) for old, new in zip(total, sums, strict=True)
        ), found.chunks

    pieces, chunks = jax.lax.scan(add, start, (plan.parts, plan.used))
    # Of two certified answers the one that is known better.
    closer = (pieces[1] <= whole_sums[1]) | jnp.isnan(whole_sums[1])
    better = again & (closer | ~as_it_is)
    value, error, slope, slope_error, bend, most_bend = (
        jnp.where(better, a, b) for a, b in zip(pieces, whole_sums, strict=True)
    )
    left_out = jnp.where(better, jnp.exp(plan.left_out - log_delta), 0.0)
    used = Pieces(
        plan,
        jnp.where(better, 0, whole.chunks),
        jnp.where(better, chunks, 0),
    )
    found = Delta(value, error, slope, slope_error, bend, most_bend, left_out, again)
    return found, used


def alias(dtype: Any) -> float:
    """Bound on what the trapezoid rules add to delta, over it: ten lines, both sides."""
    return 20.0 * saddle.tolerance(dtype)


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
