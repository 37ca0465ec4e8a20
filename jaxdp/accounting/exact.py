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

from jaxdp.accounting import composition, conversion, renyi_bounds, saddle
from jaxdp.accounting.exact_delta import (
    Delta,
    Pieces,
    Side,
    alias,
    along,
    delta_at,
    gradient_at,
    is_finite,
    run_of,
)
from jaxdp.accounting.saddle import Run

_MOST_STEPS, _UNKNOWN_STEPS = 10, 4


class Bounds(NamedTuple):
    """A quantity between two certified numbers."""

    lower: Any
    upper: Any


def applies(steps: composition.Steps) -> bool:
    """Whether a run has Gaussians only, sampled or not."""
    others = steps._replace(gaussian=None, sampled_gaussian=None)
    return all(rows is None for rows in others)


def _moves(found: Delta) -> tuple[jax.Array, jax.Array]:
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
    under = found.value - found.error - alias(dtype) - 1.0
    off = found.slope_error
    up = root(over, 1.1 * found.most_bend, found.slope - jnp.sign(over) * off)
    down = root(under, -1.1 * found.most_bend, found.slope + jnp.sign(under) * off)
    # delta falls with epsilon: where it is met already, or still missed, no move is needed.
    up = jnp.where(jnp.isnan(up) & (over <= 0.0), 0.0, up)
    down = jnp.where(jnp.isnan(down) & (under >= 0.0), 0.0, down)
    return down, up


def _newton(found: Delta) -> jax.Array:
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


def _solve(side: Side, start, floor, ceiling, log_delta, needed) -> tuple[Bounds, _Search]:
    """Brackets the epsilon of one direction within [floor, ceiling]."""
    dtype = start.dtype
    close = 1e-10 if dtype == jnp.float64 else 1e-6

    def evaluate(step, epsilon, split):
        found, pieces = delta_at(side, epsilon, log_delta, split)
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
    side: Side  # the direction that counts
    last: _Search


def _pick(condition: jax.Array, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _epsilon(run: Run, renyi, c, log_delta) -> _Solved:
    usable = (renyi > 0.0) & (renyi < jnp.inf)
    ceiling, c = jnp.where(usable, renyi, 1.0), jnp.where(usable, c, 1.0)

    def solve(floor, remove):
        """One direction, if it can exceed what the other one is known to need."""
        side = Side(run, saddle.table(run, c, ceiling, remove), remove)
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
    t, _ = renyi_bounds.best_order(steps, log_delta)
    values = renyi_bounds.epsilons(steps, conversion.and_least(t), log_delta)
    return conversion.least(values), t


def _renyi_log_delta(run: Run, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    steps = _renyi(run)
    t = renyi_bounds.best_order_at(steps, epsilon)
    values = renyi_bounds.log_deltas(steps, conversion.and_least(t), epsilon)
    return conversion.least(values), t


@jax.custom_jvp
def _epsilon_bounds(run: Run, log_delta: jax.Array) -> Bounds:
    return _solve_epsilon(run, log_delta).bounds


@_epsilon_bounds.defjvp
def _epsilon_bounds_jvp(primals, tangents):
    run, log_delta = primals
    solved = _solve_epsilon(run, log_delta)
    found = solved.last.found
    gradient = gradient_at(solved.side, solved.last.epsilon, solved.last.pieces, log_delta)
    # delta(epsilon, run) = exp(log_delta) says how epsilon moves (implicit differentiation).
    known = (found.value > 2.0 * found.error) & (found.slope > 0.0) & is_finite(gradient)
    gradient = jax.tree.map(lambda leaf: jnp.where(known, leaf, 0.0), gradient)
    slope = jnp.where(known, found.slope, 1.0)
    moved = (along(gradient, tangents[0]) - tangents[1]) / slope
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
    found: Delta
    pieces: Pieces


def _evaluate(side: Side, epsilon, needed) -> _Evaluated:
    """log delta at epsilon in one direction; the reference is guessed and then corrected."""

    def at(step, log_delta, split):
        found, pieces = delta_at(side, epsilon, log_delta, split)
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
    least = found.value - found.error - alias(epsilon.dtype)
    lower = log_delta + jnp.log(jnp.maximum(least, 0.0)) - slack
    return _Evaluated(Bounds(lower, upper), log_delta, found, pieces)


@jax.custom_batching.sequential_vmap
def _solve_log_delta(run: Run, epsilon: jax.Array) -> tuple[Bounds, Side, _Evaluated]:
    renyi, c = _renyi_log_delta(run, epsilon)
    usable = (renyi > -jnp.inf) & (c < jnp.inf) & (epsilon < jnp.inf) & (epsilon >= 0.0)
    c, at = jnp.where(usable, c, 1.0), jnp.where(usable, epsilon, 1.0)
    # Cuts on the scale of epsilon, or where there is none on that of the losses.
    reach = at + 1.0 / c

    def evaluate(floor, remove):
        """One direction, if it can exceed what the other one is known to reach."""
        side = Side(run, saddle.table(run, c, reach, remove), remove)
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
    gradient = gradient_at(side, epsilon, evaluated.pieces, evaluated.log_delta)
    known = (found.value > 2.0 * found.error) & is_finite(gradient)
    gradient = jax.tree.map(lambda leaf: jnp.where(known, leaf, 0.0), gradient)
    value = jnp.where(known, found.value, 1.0)
    moved = (along(gradient, tangents[0]) - found.slope * tangents[1]) / value
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
