"""The exact accountant: epsilon and delta bracketed by line integrals, in both directions."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp.accounting import composition, conversion, line_integral, saddle
from jaxdp.accounting.saddle import Run


class _Delta(NamedTuple):
    """delta at one epsilon, over a reference."""

    value: Any
    error: Any  # bound on what value may be above or below the sum it stands for
    above: Any  # part of delta that is only bounded, and not in value
    alias: Any  # bound on what the trapezoid rules add
    slope: Any
    bend: Any
    most_bend: Any
    split: Any  # bool, whether the law was split at a cut


def _settings(dtype):
    double = dtype == jnp.float64
    return (1e-11, 1e-9) if double else (1e-6, 3e-5)


def _delta(run, table, epsilon, log_reference, log_delta, split, remove) -> _Delta:
    """delta(epsilon) / exp(log_reference), delta being about exp(log_delta)."""
    dtype = epsilon.dtype
    tolerance, good = _settings(dtype)
    plan = saddle.plan(table, epsilon, log_delta, remove)

    def over(found):
        size = jnp.exp(found.scale - log_reference)
        sums = (found.value, found.slope, found.bend, found.most_bend, found.error)
        return tuple(part * size for part in sums)

    def line(where, most):
        return over(line_integral.integrate(run, epsilon, where, remove, tolerance, most))

    whole_first = ~(split & plan.can_split)
    most = jnp.where(whole_first, jnp.where(plan.can_split, 8, 64), 0)
    whole = line(plan.whole, most)
    fine = whole_first & (whole[4] <= good * whole[0])
    again = plan.can_split & ~fine
    below = line(plan.below, jnp.where(again & plan.use_below, 256, 0))

    def add(total, part):
        where, used = part
        used = again & used
        found = line(where, jnp.where(used, 256, 0))
        return tuple(t + jnp.where(used, f, 0.0) for t, f in zip(total, found, strict=True)), None

    start = tuple(jnp.where(again & plan.use_below, part, 0.0) for part in below)
    pieces, _ = jax.lax.scan(add, start, (plan.parts, plan.used))
    # Of two certified answers the one that is known better.
    better = again & ~(pieces[4] > whole[4]) | ~whole_first
    value, slope, bend, most_bend, error = (
        jnp.where(better, piece, part) for piece, part in zip(pieces, whole, strict=True)
    )
    left = jnp.where(better, jnp.exp(plan.left_out - log_reference), 0.0)
    alias = jnp.exp(log_delta - log_reference) * (2e-11 if dtype == jnp.float64 else 2e-5)
    return _Delta(value, error, left, alias, slope, bend, most_bend, again)


class Bracket(NamedTuple):
    lower: Any
    upper: Any


class _Search(NamedTuple):
    step: Any
    epsilon: Any
    found: Any  # _Delta at epsilon
    move: Any
    split: Any


def _moves(found: _Delta):
    """How far epsilon has to move up, and may move, for delta to meet the reference (1)."""
    tiny = jnp.finfo(found.value.dtype).tiny

    def root(excess, bend):
        inside = found.slope * found.slope - 2.0 * bend * excess
        move = 2.0 * excess / (found.slope + jnp.sqrt(jnp.maximum(inside, 0.0)) + tiny)
        return jnp.where((inside >= 0.0) & (found.slope > 0.0), move, jnp.nan)

    slack = 1.0 + 1e-6 if found.value.dtype == jnp.float64 else 1.0 + 1e-3
    over = found.value + found.error + found.above * 2.0 - 1.0
    under = found.value - found.error - found.alias - 1.0
    up = root(over, found.most_bend * 1.1)
    down = root(under, -found.most_bend * 1.1)
    up = jnp.where(up > 0.0, up * slack, up / slack)
    down = jnp.where(down > 0.0, down / slack, down * slack)
    return down, up


def _newton(found: _Delta):
    value = jnp.maximum(found.value, 0.0)
    miss = jnp.log(value)
    p = found.slope / value
    g = found.bend / value - p * p
    inside = jnp.maximum(p * p - 2.0 * jnp.minimum(g, 0.0) * miss, 0.25 * p * p)
    move = 2.0 * miss / (p + jnp.sqrt(inside))
    return jnp.where((value > 0.0) & (p > 0.0), move, jnp.nan)


def _solve(run: Run, table, start, ceiling, log_delta, remove, needed) -> Bracket:
    """The bracket of epsilon in one direction."""
    dtype = start.dtype
    close = 1e-10 if dtype == jnp.float64 else 1e-6

    def evaluate(epsilon, split):
        return _delta(run, table, epsilon, log_delta, log_delta, split, remove)

    def body(state):
        found = evaluate(state.epsilon, state.split)
        move = _newton(found)
        return _Search(state.step + 1, state.epsilon, found, move, found.split)

    def advance(state):
        # An answer that is not known to a factor says that delta is far below: half way down.
        known = jnp.isfinite(state.move) & (state.found.error < 0.5 * state.found.value)
        move = jnp.where(known, state.move, -0.5 * state.epsilon)
        epsilon = jnp.clip(state.epsilon + move, 0.0, ceiling)
        return body(state._replace(epsilon=epsilon))

    def unfinished(state):
        moved = jnp.clip(state.epsilon + state.move, 0.0, ceiling) - state.epsilon
        settled = (jnp.abs(moved) <= close * state.epsilon) & (state.found.error < 0.5 * state.found.value)
        return needed & (state.step < 14) & ~settled

    zero = jnp.zeros((), dtype)
    nothing = _Delta(*[zero] * 7, jnp.zeros((), bool))
    first = _Search(jnp.zeros((), jnp.int32), start, nothing, jnp.asarray(jnp.inf, dtype) * 0.0 + zero, jnp.zeros((), bool))
    # The first evaluation is at the start itself.
    first = first._replace(move=jnp.where(needed, jnp.maximum(start, 1.0), 0.0) * 0.0)
    def once(state):
        return jax.lax.cond(state.step == 0, body, advance, state)
    def go(state):
        return (needed & (state.step == 0)) | unfinished(state) & (state.step > 0)
    last = jax.lax.while_loop(go, once, first)
    down, up = _moves(last.found)
    ulp = 4.0 * float(jnp.finfo(dtype).eps)
    upper = (last.epsilon + up) * (1.0 + ulp)
    lower = (last.epsilon + down) * (1.0 - ulp)
    upper = jnp.where(jnp.isfinite(upper), jnp.clip(upper, 0.0, ceiling), ceiling)
    lower = jnp.where(jnp.isfinite(lower), jnp.clip(lower, 0.0, upper), 0.0)
    return Bracket(lower, upper), last


def _run(steps: composition.Steps, dtype) -> Run:
    if steps.sampled_gaussian is None:
        q = s = count = jnp.zeros((0,), dtype)
    else:
        q, s, count = steps.sampled_gaussian
    mu_squared = jnp.zeros((), dtype) if steps.gaussian is None else steps.gaussian
    whole = q == 1.0
    mu_squared = mu_squared + jnp.sum(jnp.where(whole, count / s / s, 0.0))
    idle = whole | (q == 0.0) | (count == 0.0) | (s == jnp.inf)
    return Run(
        mu_squared, jnp.where(idle, 0.5, q), jnp.where(idle, 1.0, s), jnp.where(idle, 0.0, count)
    )


def epsilon_bounds(steps: composition.Steps, log_delta):
    dtype = log_delta.dtype
    run = _run(steps, dtype)

    def bound(t):
        return conversion.epsilon_at(t, composition.log_moment_of(steps, t) / t, log_delta)

    renyi, c, _ = conversion.search(bound, dtype)
    usable = (renyi > 0.0) & (renyi < jnp.inf)
    c = jnp.where(usable, c, 1.0)
    ceiling = jnp.where(usable, renyi, 1.0)
    removed = saddle.table(run, c, ceiling, jnp.ones((), bool))
    start = jnp.clip(saddle.guess(removed, log_delta), 0.05 * ceiling, ceiling)
    remove, last = _solve(run, removed, start, ceiling, log_delta, jnp.ones((), bool), usable)
    added = saddle.table(run, c, ceiling, jnp.zeros((), bool))
    chernoff = saddle.chernoff(added, log_delta)
    needed = usable & ~(chernoff <= remove.upper)
    other = jnp.minimum(ceiling, jnp.where(chernoff > 0, chernoff, ceiling))
    add, _ = _solve(run, added, remove.upper, other, log_delta, jnp.zeros((), bool), needed)
    upper = jnp.maximum(remove.upper, jnp.where(needed, add.upper, 0.0))
    lower = jnp.maximum(remove.lower, jnp.where(needed, add.lower, 0.0))
    return jnp.where(usable, lower, 0.0), jnp.where(usable, upper, renyi), last
