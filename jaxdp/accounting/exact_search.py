"""The epsilon of one direction at a log delta: a search, and bounds by the series it ends with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import saddle
from jaxdp.accounting.exact_delta import Delta, Side, bend_of, delta_at, is_summed, known_at

_MOST_STEPS, _UNKNOWN_STEPS = 12, 5


class Bounds(NamedTuple):
    """A quantity between two certified numbers."""

    lower: Any
    upper: Any


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

    def most(d):
        value, slope, error = known_at(found, d)
        return value + error + 1.01 * found.left_out - 1.0, slope

    def least(d):
        value, slope, error = known_at(found, d)
        return value - error - found.alias - 1.0, slope

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


class Search(NamedTuple):
    step: Any  # int32
    epsilon: Any  # where delta was evaluated
    following: Any  # where it will be next
    rough: Any  # bool, whether that will be for three digits only
    unit: Any  # about what epsilon has to move by to change delta by a factor
    low: Any  # below the solution, as far as is known; negative where nothing is
    high: Any  # above it
    sure_low: Any  # below it for certain; 0 where nothing is
    sure_high: Any  # above it for certain
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


def solve_side(side: Side, start, unit, floor, ceiling, log_delta, needed) -> tuple[Bounds, Search]:
    """Brackets the epsilon of one direction within [floor, ceiling]."""
    dtype = start.dtype

    def evaluate(state):
        epsilon, rough, unit, split = state.following, state.rough, state.unit, state.found.split
        found, pieces = delta_at(side, epsilon, log_delta, unit, split, rough)
        at_start = known_at(found, jnp.zeros_like(epsilon))
        root = _root(found)
        there = known_at(found, root)
        # Settled if the series reaches the solution with no more error than delta had anyhow.
        sure = jnp.abs(jnp.log(there.value)) <= 1e3 * float(jnp.finfo(dtype).eps)
        close = 1e-11 if dtype == jnp.float64 else 1e-6
        settled = sure & (there.error <= 1.5 * at_start.error + close) & ~rough
        following, low, high = _next(epsilon, found, state.low, state.high, floor)
        following = jnp.clip(following, floor, ceiling)
        near = jnp.abs(following - epsilon) <= jnp.where(found.split, 0.01, 0.5) * unit
        rough = rough & ~near
        value, slope, error = at_start
        met = (value + error + 1.01 * found.left_out <= 1.0) & is_summed(found)
        missed = value - error - found.alias >= 1.0
        # Renyi DP's order is far from those that matter where its epsilon is far off.
        known = (value > 2.0 * error) & (slope > 0.0)
        unit = jnp.where(known, jnp.minimum(unit, 2.0 * value / slope), unit)
        return Search(
            state.step + 1,
            epsilon,
            following,
            rough,
            unit,
            low,
            high,
            jnp.where(missed, jnp.maximum(state.sure_low, epsilon), state.sure_low),
            jnp.where(met, jnp.minimum(state.sure_high, epsilon), state.sure_high),
            root,
            settled,
            found,
            pieces,
        )

    def proceed(state):
        at_start = known_at(state.found, jnp.zeros_like(start))
        unknown = ~(at_start.value > 2.0 * at_start.error)
        at_ends = state.following == state.epsilon
        # What is not known by then will hardly be so further down, and takes long.
        hopeless = unknown & (state.step >= _UNKNOWN_STEPS)
        going = (state.step < _MOST_STEPS) & ~hopeless & ~state.settled & ~at_ends
        return needed & ((state.step == 0) | going)

    exactly = jnp.zeros((), bool)
    shapes = jax.eval_shape(delta_at, side, start, log_delta, unit, exactly, exactly)
    found, pieces = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    begin = saddle.plan(side.table, start, start, log_delta, side.remove, exactly)
    zero = jnp.zeros_like(start)
    first = Search(
        jnp.int32(0),
        epsilon=start,
        following=start,
        rough=begin.can_split & begin.rather_split,
        # Nor does Renyi DP's order for removing say much about adding.
        unit=jnp.minimum(unit, 1.0 / begin.whole.c),
        low=zero - 1.0,
        high=ceiling,
        sure_low=zero,
        sure_high=ceiling,
        root=zero,
        settled=exactly,
        found=found,
        pieces=pieces,
    )
    last = jax.lax.while_loop(proceed, evaluate, first)
    down, up = _moves(last.found, jnp.where(last.settled, last.root, 0.0))
    ulp = 4.0 * float(jnp.finfo(dtype).eps)
    # Where no move is needed delta is met at this very number.
    upper = jnp.where(up == 0.0, last.epsilon, (last.epsilon + up) * (1.0 + ulp))
    lower = (last.epsilon + down) * (1.0 - ulp)
    # Where the search did not settle, what it met on its way holds all the same.
    highest, least = last.sure_high, last.sure_low
    known = jnp.isfinite(upper) & (last.settled | is_summed(last.found))
    upper = jnp.where(known, jnp.clip(upper, floor, highest), highest)
    lower = jnp.where(jnp.isfinite(lower), jnp.maximum(lower, least), least)
    lower = jnp.clip(lower, 0.0, upper)
    return Bounds(lower, upper), last
