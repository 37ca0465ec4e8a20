r"""The exact accountant: epsilon and delta between certified bounds, with their derivatives.

For runs of Gaussians and Poisson-sampled Gaussians, any mix. Both directions are bracketed, the
example removed and the example added, and the larger one counts; where the Chernoff bound already
puts adding below removing, the line integral of adding is left out.

*From delta to epsilon.* At one epsilon the integral gives a Taylor series of delta nearby, with a
bound on its rest and on every error (`exact_delta`). A search, at first for three digits only,
finds an epsilon from which the series reaches the solution (`exact_search`); how it got there does
not enter. Then the series itself is asked, where delta is for sure below its target, and where
still above. Where a search does not settle, what it met for sure on its way are the bounds; where
it met nothing (no sum was finite), they are those of Renyi DP.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import composition, conversion, renyi_bounds, saddle
from jaxdp.accounting.exact_delta import (
    Known,
    Pieces,
    Side,
    along,
    delta_at,
    gradient_at,
    is_finite,
    is_summed,
    known_at,
    run_of,
)
from jaxdp.accounting.exact_search import Bounds, Search, solve_side
from jaxdp.accounting.saddle import Run

_MOST_STEPS = 12


def applies(steps: composition.Steps) -> bool:
    """Whether a run has Gaussians only, sampled or not."""
    others = steps._replace(gaussian=None, sampled_gaussian=None)
    return all(rows is None for rows in others)


class _Solved(NamedTuple):
    bounds: Bounds
    side: Side  # the direction that counts
    last: Search


def _epsilon(run: Run, renyi, c, log_delta) -> _Solved:
    usable = (renyi > 0.0) & (renyi < jnp.inf)
    ceiling, c = jnp.where(usable, renyi, 1.0), jnp.where(usable, c, 1.0)

    def solve(floor, remove):
        """One direction, if it can exceed what the other one is known to need."""

        side = Side(run, saddle.table(run, c, ceiling, remove), remove)
        most = jnp.minimum(saddle.chernoff(side.table, log_delta), ceiling)
        start = jnp.clip(saddle.guess(side.table, log_delta), 1e-3 * ceiling, most)
        start = jnp.where(remove, start, floor)
        needed = usable & ~(most <= floor)
        found, last = solve_side(side, start, 1.0 / c, floor, most, log_delta, needed)
        bounds = Bounds(*(jnp.where(needed, bound, 0.0) for bound in found))
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
    upper = jnp.where(is_summed(found), upper, jnp.nan)
    least = known.value - known.error - found.alias
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
