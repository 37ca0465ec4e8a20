r"""The exact accountant: epsilon and delta between certified bounds, with their derivatives.

For runs of Gaussians and Poisson-sampled Gaussians, any mix. Both directions are bracketed, the
example removed and the example added, and the larger one counts; where the Chernoff bound already
puts adding below removing, the line integral of adding is left out.

*From delta to epsilon.* At one epsilon the integral gives a Taylor series of delta nearby, with a
bound on its rest and on every error (`exact_delta`). A search, at first for three digits only,
finds an epsilon from which the series reaches the solution; how it got there does not enter. Then
the series itself is asked, where delta is for sure below its target, and where still above.
What is not certified (a sum that is
not finite, a search that does not settle) falls back on Renyi DP.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import composition, conversion, renyi_bounds, saddle
from jaxdp.accounting.exact_delta import (
    Delta,
    Known,
    Pieces,
    Side,
    alias,
    along,
    bend_of,
    delta_at,
    gradient_at,
    is_finite,
    known_at,
    run_of,
)
from jaxdp.accounting.saddle import Run

_MOST_STEPS, _UNKNOWN_STEPS = 12, 5


class Bounds(NamedTuple):
    """A quantity between two certified numbers."""

    lower: Any
    upper: Any


def applies(steps: composition.Steps) -> bool:
    """Whether a run has Gaussians only, sampled or not."""
    others = steps._replace(gaussian=None, sampled_gaussian=None)
    return all(rows is None for rows in others)


def _root(found: Delta) -> jax.Array:
    """The d at which the series says that delta is 1, within reach; NaN if it says nothing."""

    def move(_, d):
        value, slope, _ = known_at(found, d)
        d = d + jnp.log(jnp.maximum(value, 0.0)) * value / slope
        return jnp.clip(d, -found.reach, found.reach)

    return jax.lax.fori_loop(0, 8, move, jnp.zeros_like(found.error))


def _moves(found: Delta, root: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How far epsilon may move without, and has to move for, delta to be met for sure.

    What the series says is moved by its own error, and then asked again at that very place.
    """
    dtype = found.error.dtype

    def most(d):
        value, slope, error = known_at(found, d)
        return value + error + 1.01 * found.left_out - 1.0, slope

    def least(d):
        value, slope, error = known_at(found, d)
        return value - error - alias(dtype) - 1.0, slope

    def settle(bound, wanted):
        def move(_, d):
            over, slope = bound(d)
            return jnp.clip(d + over / slope, -found.reach, found.reach)

        d = jax.lax.fori_loop(0, 3, move, root)
        # A little too far, so that rounding does not undo it.
        d = jnp.clip(d + 1e-3 * (d - root), -found.reach, found.reach)
        # Where delta is met already, or still missed, no move is needed.
        still = jnp.where(wanted(bound(jnp.zeros_like(d))[0]), 0.0, jnp.nan)
        return jnp.where(wanted(bound(d)[0]), d, still)

    return settle(least, lambda over: over >= 0.0), settle(most, lambda over: over <= 0.0)


def _newton(found: Delta) -> jax.Array:
    """The move of epsilon towards delta = 1, by two derivatives of log delta; NaN if unknown."""
    value, slope, error = known_at(found, jnp.zeros_like(found.error))
    value = jnp.where(value > 2.0 * error, value, jnp.nan)
    miss, slope = jnp.log(value), slope / value
    bend = jnp.minimum(bend_of(found) / value - slope * slope, 0.0)
    inside = jnp.maximum(slope * slope - 2.0 * bend * miss, 0.25 * slope * slope)
    return jnp.where(slope > 0.0, 2.0 * miss / (slope + jnp.sqrt(inside)), jnp.nan)


class _Search(NamedTuple):
    step: Any  # int32
    epsilon: Any  # where delta was evaluated
    following: Any  # where it will be next
    rough: Any  # bool, whether that will be for three digits only
    low: Any  # below the solution, as far as is known; negative where nothing is
    high: Any  # above it
    root: Any  # how far from epsilon the solution is, if it is settled
    settled: Any  # bool
    found: Any
    pieces: Any


def _next(epsilon, found: Delta, low, high, floor) -> tuple[Any, Any, Any]:
    """Where to look next, and between which two epsilons the solution seems to be."""
    value, _, error = known_at(found, jnp.zeros_like(epsilon))
    # What is not known is as a rule far too small to be seen.
    met = (value + error < 1.0) | ~(value > 2.0 * error)
    low = jnp.where(value - error > 1.0, epsilon, low)
    high = jnp.where(met, epsilon, high)
    following = epsilon + _newton(found)
    far = value + error < 0.01
    to_floor = (following <= floor) & (low < 0.0) & ~far
    inside = (following > low) & (following < high) & (following > floor)
    # Delta falls by factors: so do the steps down to it as long as nothing bounds them.
    ratio = jnp.where(low > 0.0, jnp.sqrt(jnp.maximum(low, 0.0) / high), 0.125)
    between = jnp.where(high < 4.0 * low, 0.5 * (low + high), high * ratio)
    between = jnp.where(low == 0.0, 0.25 * high, between)
    return jnp.where(inside, following, jnp.where(to_floor, floor, between)), low, high


def _solve(side: Side, start, unit, floor, ceiling, log_delta, needed) -> tuple[Bounds, _Search]:
    """Brackets the epsilon of one direction within [floor, ceiling]."""
    dtype = start.dtype

    def evaluate(step, epsilon, split, rough, low, high):
        found, pieces = delta_at(side, epsilon, log_delta, unit, split, rough)
        at_start = known_at(found, jnp.zeros_like(epsilon))
        root = _root(found)
        there = known_at(found, root)
        # Settled if the series reaches the solution with no more error than delta had anyhow.
        sure = jnp.abs(jnp.log(there.value)) <= 1e3 * float(jnp.finfo(dtype).eps)
        close = 1e-11 if dtype == jnp.float64 else 1e-6
        settled = sure & (there.error <= 1.5 * at_start.error + close) & ~rough
        following, low, high = _next(epsilon, found, low, high, floor)
        following = jnp.clip(following, floor, ceiling)
        near = jnp.abs(following - epsilon) <= jnp.where(found.split, 0.01, 0.5) * unit
        rough = rough & ~near
        return _Search(step, epsilon, following, rough, low, high, root, settled, found, pieces)

    def again(state):
        return evaluate(
            state.step + 1, state.following, state.found.split, state.rough, state.low, state.high
        )

    def proceed(state):
        at_start = known_at(state.found, jnp.zeros_like(start))
        unknown = ~(at_start.value > 2.0 * at_start.error)
        at_ends = state.following == state.epsilon
        # What is not known by then will hardly be so further down, and takes long.
        hopeless = unknown & (state.step >= _UNKNOWN_STEPS)
        going = (state.step < _MOST_STEPS) & ~hopeless & ~state.settled & ~at_ends
        return needed & ((state.step == 0) | going)

    false = jnp.zeros((), bool)
    shapes = jax.eval_shape(evaluate, jnp.int32(0), start, false, false, start, start)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    begin = saddle.plan(side.table, start, start, log_delta, side.remove, false)
    first = nothing._replace(
        epsilon=start,
        following=start,
        rough=begin.can_split & begin.rather_split,
        low=jnp.full_like(start, -1.0),
        high=ceiling,
    )
    last = jax.lax.while_loop(proceed, again, first)
    down, up = _moves(last.found, jnp.where(last.settled, last.root, 0.0))
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

        def attempt(state):
            number, share, *_ = state
            table = saddle.table(run, c / share, ceiling * share, remove)
            side = Side(run, table, remove)
            most = jnp.minimum(saddle.chernoff(table, log_delta), ceiling)
            start = jnp.clip(saddle.guess(table, log_delta), 1e-3 * share * ceiling, most)
            start = jnp.where(remove, start, floor)
            needed = usable & ~(most <= floor)
            bounds, last = _solve(side, start, share / c, floor, most, log_delta, needed)
            bounds = _pick(needed, bounds, Bounds(jnp.zeros_like(floor), jnp.zeros_like(floor)))
            again = needed & (bounds.lower < 0.999 * bounds.upper)
            # Where Renyi DP is far off its order is none of those that matter.
            closer = jnp.minimum(4.0 * last.high / ceiling, 1.0)
            again = again & remove & (number == 0) & (closer < 0.2) & (closer > 0.0)
            share = jnp.where(again, closer, share)
            return number + 1, share, again, bounds, side._replace(run=None), last

        one = jnp.ones_like(floor)
        shapes = jax.eval_shape(attempt, (jnp.int32(0), one))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[3:])
        start = (jnp.int32(0), one, jnp.ones((), bool), *nothing)
        _, _, _, *found = jax.lax.while_loop(lambda state: state[2], attempt, start)
        return jnp.maximum(floor, found[0].upper), tuple(found)

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
    _, last_side, last = solved
    root = jnp.where(last.settled, last.root, 0.0)
    gradient = gradient_at(last_side, last.epsilon + root, last.pieces, log_delta)
    # delta(epsilon, run) = exp(log_delta) says how epsilon moves (implicit differentiation).
    value, slope, error = known_at(last.found, root)
    known = (value > 2.0 * error) & (slope > 0.0) & is_finite(gradient)
    gradient = jax.tree.map(lambda leaf: jnp.where(known, leaf, 0.0), gradient)
    slope = jnp.where(known, slope, 1.0)
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
    known: Known
    pieces: Pieces


def _evaluate(side: Side, epsilon, unit, needed) -> _Evaluated:
    """log delta at epsilon in one direction; the reference is guessed and then corrected."""
    here, exactly = jnp.zeros_like(epsilon), jnp.zeros((), bool)

    def at(step, log_delta, split):
        found, pieces = delta_at(side, epsilon, log_delta, unit, split, exactly)
        value, _, error = known_at(found, here)
        known = value > 2.0 * error
        miss = jnp.where(known, jnp.log(jnp.where(known, value, 1.0)), -5.0)
        return step, log_delta, miss, found, pieces

    def again(state):
        step, log_delta, miss, found, _ = state
        return at(step + 1, log_delta + miss, found.split)

    def proceed(state):
        step, _, miss, *_ = state
        return needed & ((step == 0) | ((step < _MOST_STEPS) & (jnp.abs(miss) > 1.0)))

    guess = saddle.guess_log_delta(side.table, epsilon)
    shapes = jax.eval_shape(at, jnp.int32(0), guess, exactly)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    _, log_delta, _, found, pieces = jax.lax.while_loop(
        proceed, again, (nothing[0], guess, *nothing[2:])
    )
    known = known_at(found, here)
    ulp = 4.0 * float(jnp.finfo(epsilon.dtype).eps)
    slack = ulp * (1.0 + jnp.abs(log_delta))
    upper = log_delta + jnp.log(known.value + known.error + found.left_out) + slack
    least = known.value - known.error - alias(epsilon.dtype)
    lower = log_delta + jnp.log(jnp.maximum(least, 0.0)) - slack
    return _Evaluated(Bounds(lower, upper), log_delta, known, pieces)


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
        found = _evaluate(side, at, 1e-3 / c, needed)
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
    value, slope, error = evaluated.known
    gradient = gradient_at(side, epsilon, evaluated.pieces, evaluated.log_delta)
    known = (value > 2.0 * error) & is_finite(gradient)
    gradient = jax.tree.map(lambda leaf: jnp.where(known, leaf, 0.0), gradient)
    value = jnp.where(known, value, 1.0)
    moved = (along(gradient, tangents[0]) - slope * tangents[1]) / value
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
