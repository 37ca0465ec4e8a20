r"""The exact accountant: epsilon and delta between certified bounds, with their derivatives.

For runs of Gaussians and Poisson-sampled Gaussians, any mix. Both directions are bracketed, the
example removed and the example added, and the larger one counts; where the Chernoff bound already
puts adding below removing, the line integral of adding is left out.

*From delta to epsilon.* At one epsilon the integral gives U >= delta >= L, the slope of the sum S1
and a bound B on its second derivative nearby. Moving epsilon by d changes the sum by at most
-d S1 + d^2 B / 2, so the least d with U - d S1 + d^2 B / 2 <= target is enough, and the largest
with L - d S1 - d^2 B / 2 >= target still too little; S1 is moved by its own error. Newton's method
brings d to rounding size; how it got there does not enter. What is not certified (a sum that is
not finite, a search that does not settle) falls back on Renyi DP.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import composition, conversion, line_integral, saddle
from jaxdp.accounting.saddle import Run, Table

_MOST_STEPS, _UNKNOWN_STEPS = 10, 4
# Chunks of nodes: for a law as it is where it could be split, where it could not, for a part.
_FIRST_CHUNKS, _MOST_CHUNKS, _PART_CHUNKS = 8, 64, 96


class Bounds(NamedTuple):
    """A quantity between two certified numbers."""

    lower: Any
    upper: Any


class _Side(NamedTuple):
    """One direction."""

    run: Any  # Run
    table: Table
    remove: Any  # bool scalar


class _Delta(NamedTuple):
    """delta at one epsilon, over a reference."""

    value: Any  # the sums
    error: Any  # bound on how far they are off
    slope: Any
    slope_error: Any
    bend: Any
    most_bend: Any
    left_out: Any  # bound on the parts of the law that were left out
    split: Any  # bool, whether the law had to be split


def applies(steps: composition.Steps) -> bool:
    """Whether a run has Gaussians only, sampled or not."""
    others = steps._replace(gaussian=None, sampled_gaussian=None)
    return all(rows is None for rows in others)


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


class _Pieces(NamedTuple):
    """The line integrals that delta was computed from, with the chunks that each took."""

    plan: saddle.Plan
    whole: Any  # int32; 0 where the law was split
    parts: Any  # int32 [1 + k]


def _delta(side: _Side, epsilon, log_delta, split) -> tuple[_Delta, _Pieces]:
    """delta(epsilon) / exp(log_delta), which should be about 1."""
    run, table, remove = side
    good = 2e-8 if epsilon.dtype == jnp.float64 else 1e-4
    plan = saddle.plan(table, epsilon, log_delta, remove)
    as_it_is = ~(split & plan.can_split)
    most = jnp.where(plan.can_split & plan.rather_split, _FIRST_CHUNKS, _MOST_CHUNKS)
    whole = line_integral.integrate(run, epsilon, plan.whole, remove, jnp.where(as_it_is, most, 0))
    whole_sums = _scaled(whole, log_delta)
    again = plan.can_split & ~(as_it_is & (whole_sums[1] <= good * whole_sums[0]))
    start = tuple(jnp.zeros_like(part) for part in whole_sums)

    def add(total, part):
        line, used = part
        most = jnp.where(again & used, _PART_CHUNKS, 0)
        found = line_integral.integrate(run, epsilon, line, remove, most)
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
    used = _Pieces(
        plan,
        jnp.where(better, 0, whole.chunks),
        jnp.where(better, chunks, 0),
    )
    found = _Delta(value, error, slope, slope_error, bend, most_bend, left_out, again)
    return found, used


def _alias(dtype: Any) -> float:
    """Bound on what the trapezoid rules add to delta, over it: ten lines, both sides."""
    return 20.0 * saddle.tolerance(dtype)


def _moves(found: _Delta) -> tuple[jax.Array, jax.Array]:
    """How far epsilon may move without, and has to move for, delta to be met for sure."""
    dtype = found.value.dtype
    tiny = jnp.finfo(dtype).tiny

    def root(excess, bend, slope):
        inside = slope * slope - 2.0 * bend * excess
        move = 2.0 * excess / (slope + jnp.sqrt(jnp.maximum(inside, 0.0)) + tiny)
        # The bend holds for moves by which e^(c d) changes little: c^2 is below bend / value.
        near = move * move * found.most_bend <= 0.005 * jnp.abs(found.value)
        return jnp.where((inside >= 0.0) & (slope > 0.0) & near, move, jnp.nan)

    over = found.value + found.error + 1.01 * found.left_out - 1.0
    under = found.value - found.error - _alias(dtype) - 1.0
    off = found.slope_error
    up = root(over, 1.1 * found.most_bend, found.slope - jnp.sign(over) * off)
    down = root(under, -1.1 * found.most_bend, found.slope + jnp.sign(under) * off)
    # delta falls with epsilon: where it is met already, or still missed, no move is needed.
    up = jnp.where(jnp.isnan(up) & (over <= 0.0), 0.0, up)
    down = jnp.where(jnp.isnan(down) & (under >= 0.0), 0.0, down)
    return down, up


def _newton(found: _Delta) -> jax.Array:
    """The move of epsilon towards delta = 1, by two derivatives of log delta; NaN if unknown."""
    value = jnp.where(found.value > 2.0 * found.error, found.value, jnp.nan)
    miss, slope = jnp.log(value), found.slope / value
    bend = jnp.minimum(found.bend / value - slope * slope, 0.0)
    inside = jnp.maximum(slope * slope - 2.0 * bend * miss, 0.25 * slope * slope)
    return jnp.where(slope > 0.0, 2.0 * miss / (slope + jnp.sqrt(inside)), jnp.nan)


class _Search(NamedTuple):
    step: Any  # int32
    epsilon: Any  # where delta was evaluated
    following: Any  # where it will be next
    found: Any
    pieces: Any


def _solve(side: _Side, start, floor, ceiling, log_delta, needed) -> tuple[Bounds, _Search]:
    """Brackets the epsilon of one direction within [floor, ceiling]."""
    dtype = start.dtype
    close = 1e-10 if dtype == jnp.float64 else 1e-6

    def evaluate(step, epsilon, split):
        found, pieces = _delta(side, epsilon, log_delta, split)
        move = _newton(found)
        # Not known to a factor: delta is far too small to be seen, so half way down.
        move = jnp.where(jnp.isfinite(move), move, -0.5 * (epsilon - floor))
        following = jnp.clip(epsilon + move, floor, ceiling)
        return _Search(step, epsilon, following, found, pieces)

    def again(state):
        return evaluate(state.step + 1, state.following, state.found.split)

    def unsettled(state):
        moved = jnp.abs(state.following - state.epsilon) > close * state.epsilon
        unknown = ~(state.found.value > 2.0 * state.found.error)
        at_ends = state.following == state.epsilon
        # What is not known by then will hardly be so further down, and takes long.
        hopeless = unknown & (state.step >= _UNKNOWN_STEPS)
        going = (state.step < _MOST_STEPS) & ~hopeless
        return needed & going & (moved | (unknown & ~at_ends))

    shapes = jax.eval_shape(evaluate, jnp.int32(0), start, jnp.zeros((), bool))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    begin = nothing._replace(following=start, epsilon=start)

    def proceed(state):
        return jnp.where(state.step == 0, needed, unsettled(state))

    last = jax.lax.while_loop(proceed, again, begin)
    down, up = _moves(last.found)
    ulp = 4.0 * float(jnp.finfo(dtype).eps)
    # Where no move is needed delta is met at this very number.
    upper = jnp.where(up == 0.0, last.epsilon, (last.epsilon + up) * (1.0 + ulp))
    lower = (last.epsilon + down) * (1.0 - ulp)
    upper = jnp.where(jnp.isfinite(upper), jnp.clip(upper, floor, ceiling), ceiling)
    lower = jnp.where(jnp.isfinite(lower), jnp.clip(lower, 0.0, upper), 0.0)
    return Bounds(lower, upper), last


class _Solved(NamedTuple):
    bounds: Bounds
    side: _Side  # the direction that counts
    last: _Search


def _pick(condition: jax.Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _epsilon(run: Run, renyi, c, log_delta) -> _Solved:
    usable = (renyi > 0.0) & (renyi < jnp.inf)
    ceiling, c = jnp.where(usable, renyi, 1.0), jnp.where(usable, c, 1.0)

    def solve(floor, remove):
        """One direction, if it can exceed what the other one is known to need."""
        side = _Side(run, saddle.table(run, c, ceiling, remove), remove)
        most = jnp.minimum(saddle.chernoff(side.table, log_delta), ceiling)
        start = jnp.clip(saddle.guess(side.table, log_delta), 0.05 * ceiling, most)
        start = jnp.where(remove, start, floor)
        needed = usable & ~(most <= floor)
        bounds, last = _solve(side, start, floor, most, log_delta, needed)
        bounds = _pick(needed, bounds, Bounds(jnp.zeros_like(floor), jnp.zeros_like(floor)))
        return jnp.maximum(floor, bounds.upper), (bounds, side._replace(run=None), last)

    upper, both = jax.lax.scan(solve, jnp.zeros_like(renyi), jnp.asarray([True, False]))
    bounds, side, last = both
    larger = jnp.argmax(bounds.upper)
    lower = jnp.where(usable, jnp.max(bounds.lower), 0.0)
    upper = jnp.where(usable, upper, renyi)
    counts = jax.tree.map(lambda leaf: leaf[larger], (side, last))
    return _Solved(Bounds(lower, upper), counts[0]._replace(run=run), counts[1])


def _renyi(run: Run) -> composition.Steps:
    rows = (run.q, run.s, run.count) if run.q.size else None
    return composition.Steps(run.mu_squared, None, rows, *[None] * 5)


def _renyi_epsilon(run: Run, log_delta: jax.Array) -> tuple[jax.Array, jax.Array]:
    steps = _renyi(run)

    def bound(t):
        return conversion.epsilon_at(t, composition.log_moment_of(steps, t) / t, log_delta)

    epsilon, t, _ = conversion.search(bound, log_delta.dtype)
    return epsilon, t


def _renyi_log_delta(run: Run, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    steps = _renyi(run)

    def exponent(t):
        # Without the bound on total variation, which has its minimum elsewhere.
        log_moment = composition.log_moment_of(steps, t)
        return log_moment - t * epsilon - t * jnp.log1p(1.0 / t) - jnp.log1p(t)

    _, t, _ = conversion.search(exponent, epsilon.dtype)
    ends = jnp.stack([t, jnp.full_like(t, 1e-6)])
    logs = conversion.log_delta_at(ends, composition.log_moment_of(steps, ends), epsilon)
    return jnp.min(logs), t


@jax.custom_batching.sequential_vmap
def _gradient(side: _Side, epsilon, pieces: _Pieces, log_delta) -> line_integral.Gradient:
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


def _is_finite(gradient: line_integral.Gradient) -> jax.Array:
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in gradient]
    return jnp.all(jnp.stack(leaves))


def _along(gradient: line_integral.Gradient, tangents: Run) -> jax.Array:
    return gradient.mu_squared * tangents.mu_squared + sum(
        jnp.sum(by * tangent) for by, tangent in zip(gradient[1:], tangents[1:], strict=True)
    )


@jax.custom_jvp
def _epsilon_bounds(run: Run, log_delta: jax.Array) -> Bounds:
    return _solve_epsilon(run, log_delta).bounds


@_epsilon_bounds.defjvp
def _epsilon_bounds_jvp(primals, tangents):
    run, log_delta = primals
    solved = _solve_epsilon(run, log_delta)
    found = solved.last.found
    gradient = _gradient(solved.side, solved.last.epsilon, solved.last.pieces, log_delta)
    # delta(epsilon, run) = exp(log_delta) says how epsilon moves (implicit differentiation).
    known = (found.value > 2.0 * found.error) & (found.slope > 0.0) & _is_finite(gradient)
    gradient = jax.tree.map(lambda leaf: jnp.where(known, leaf, 0.0), gradient)
    slope = jnp.where(known, found.slope, 1.0)
    moved = (_along(gradient, tangents[0]) - tangents[1]) / slope
    _, fallback = jax.jvp(lambda *args: _renyi_epsilon(*args)[0], primals, tangents)
    moved = jnp.where(known, moved, fallback)
    moved = jnp.where(solved.bounds.upper > 0.0, moved, 0.0)
    return solved.bounds, Bounds(moved, moved)


# Under vmap one after the other: each takes as many nodes as it needs, not as the worst one does.
@jax.custom_batching.sequential_vmap
def _solve_epsilon(run: Run, log_delta: jax.Array) -> _Solved:
    renyi, c = _renyi_epsilon(run, log_delta)
    return _epsilon(run, renyi, c, log_delta)


def epsilon_bounds(steps: composition.Steps, log_delta: jax.Array) -> Bounds:
    """Epsilon at a log delta, between certified bounds.

    Args:
      steps: A run to which this accountant ``applies``, in log_delta's dtype.
      log_delta: Scalar < 0.

    Returns:
      Bounds on epsilon: 0 <= lower <= truth <= upper <= what Renyi DP gives.
    """
    return _epsilon_bounds(run_of(steps, log_delta.dtype), log_delta)


class _Evaluated(NamedTuple):
    bounds: Bounds  # of log delta
    log_delta: Any  # the reference
    found: _Delta
    pieces: _Pieces


def _evaluate(side: _Side, epsilon, needed) -> _Evaluated:
    """log delta at epsilon in one direction; the reference is guessed and then corrected."""

    def at(step, log_delta, split):
        found, pieces = _delta(side, epsilon, log_delta, split)
        known = found.value > 2.0 * found.error
        miss = jnp.where(known, jnp.log(jnp.where(known, found.value, 1.0)), -5.0)
        return step, log_delta, miss, found, pieces

    def again(state):
        step, log_delta, miss, found, _ = state
        return at(step + 1, log_delta + miss, found.split)

    def proceed(state):
        step, _, miss, *_ = state
        return needed & ((step == 0) | ((step < _MOST_STEPS) & (jnp.abs(miss) > 1.0)))

    guess = saddle.guess_log_delta(side.table, epsilon)
    shapes = jax.eval_shape(at, jnp.int32(0), guess, jnp.zeros((), bool))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    _, log_delta, _, found, pieces = jax.lax.while_loop(
        proceed, again, (nothing[0], guess, *nothing[2:])
    )
    ulp = 4.0 * float(jnp.finfo(epsilon.dtype).eps)
    slack = ulp * (1.0 + jnp.abs(log_delta))
    upper = log_delta + jnp.log(found.value + found.error + found.left_out) + slack
    least = found.value - found.error - _alias(epsilon.dtype)
    lower = log_delta + jnp.log(jnp.maximum(least, 0.0)) - slack
    return _Evaluated(Bounds(lower, upper), log_delta, found, pieces)


@jax.custom_batching.sequential_vmap
def _solve_log_delta(run: Run, epsilon: jax.Array) -> tuple[Bounds, _Side, _Evaluated]:
    renyi, c = _renyi_log_delta(run, epsilon)
    usable = (renyi > -jnp.inf) & (c < jnp.inf) & (epsilon < jnp.inf) & (epsilon >= 0.0)
    c, at = jnp.where(usable, c, 1.0), jnp.where(usable, epsilon, 1.0)
    # Cuts on the scale of epsilon, or where there is none on that of the losses.
    reach = at + 1.0 / c

    def evaluate(floor, remove):
        """One direction, if it can exceed what the other one is known to reach."""
        side = _Side(run, saddle.table(run, c, reach, remove), remove)
        most = jnp.minimum(saddle.log_chernoff(side.table, at), renyi)
        needed = usable & ~(most <= floor)
        found = _evaluate(side, at, needed)
        upper = jnp.where(jnp.isnan(found.bounds.upper), most, found.bounds.upper)
        upper = jnp.where(needed, jnp.minimum(upper, most), -jnp.inf)
        lower = jnp.where(jnp.isnan(found.bounds.lower), -jnp.inf, found.bounds.lower)
        lower = jnp.where(needed, jnp.minimum(lower, upper), -jnp.inf)
        found = found._replace(bounds=Bounds(lower, upper))
        return jnp.maximum(floor, lower), (side._replace(run=None), found)

    nothing = jnp.full_like(renyi, -jnp.inf)
    _, (side, found) = jax.lax.scan(evaluate, nothing, jnp.asarray([True, False]))
    larger = jnp.argmax(found.bounds.upper)
    bounds = Bounds(
        jnp.where(usable, jnp.max(found.bounds.lower), -jnp.inf),
        jnp.where(usable, jnp.max(found.bounds.upper), renyi),
    )
    side, found = jax.tree.map(lambda leaf: leaf[larger], (side, found))
    return bounds, side._replace(run=run), found


@jax.custom_jvp
def _log_delta_bounds(run: Run, epsilon: jax.Array) -> Bounds:
    return _solve_log_delta(run, epsilon)[0]


@_log_delta_bounds.defjvp
def _log_delta_bounds_jvp(primals, tangents):
    run, epsilon = primals
    bounds, side, evaluated = _solve_log_delta(run, epsilon)
    found = evaluated.found
    gradient = _gradient(side, epsilon, evaluated.pieces, evaluated.log_delta)
    known = (found.value > 2.0 * found.error) & _is_finite(gradient)
    gradient = jax.tree.map(lambda leaf: jnp.where(known, leaf, 0.0), gradient)
    value = jnp.where(known, found.value, 1.0)
    moved = (_along(gradient, tangents[0]) - found.slope * tangents[1]) / value
    _, fallback = jax.jvp(lambda *args: _renyi_log_delta(*args)[0], primals, tangents)
    moved = jnp.where(known, moved, fallback)
    moved = jnp.where(bounds.upper > -jnp.inf, moved, 0.0)
    return bounds, Bounds(moved, moved)


def log_delta_bounds(steps: composition.Steps, epsilon: jax.Array) -> Bounds:
    """log delta at an epsilon, between certified bounds.

    Args:
      steps: A run to which this accountant ``applies``, in epsilon's dtype.
      epsilon: Scalar >= 0.

    Returns:
      Bounds on log delta: lower <= truth <= upper <= what Renyi DP gives, upper <= 0.
    """
    return _log_delta_bounds(run_of(steps, epsilon.dtype), epsilon)
