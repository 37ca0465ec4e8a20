r"""Where to integrate: the real orders, spacings and cuts that make the line integral short.

*Splitting the law.* Where one large loss dominates (few expected participations, little noise), the
transform of the whole law falls off slowly, because of what happens near a loss of 0 and does not
matter at epsilon. With S_k the runs whose steps count with the weight of jumps below cut k alone
(`contour`), M = S_0 + (S_1 - S_0) + ... + (M - S_K) is a sum of non-negative measures, each
with an order, a spacing and a cut-off of its own. Parts that cannot matter are left out: by
Chernoff, delta of a measure is at most c^c / (1 + c)^(1 + c) times its moment at any order c > 0,
times e^(-c epsilon).

*The spacing.* The trapezoid rule with spacing h adds e^(k c P) delta(epsilon + k P), P = 2 pi / h,
for every whole k. To the left delta is at most the measure's mass, to the right at most what a
larger order says; P is chosen so that either sum is at most `tolerance` of delta. That makes the
upper bound tight and the lower one valid; the upper one is valid for any h.

What decides is a table of log-moments at real orders by the same nodes. Entries that overflow, end
beyond the nodes, or peak too narrowly for them are infinite: they then count for nothing. What the
nodes leave is below 5e-4 of an entry, which is allowed for by factors of two and more.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.accounting import complex_moment, contour

# Orders around that of Renyi DP, nearest ones too in case moments rise steeply there, and far above
# it, for parts of the law; and cuts up to the epsilon that it gives.
_ORDERS = np.concatenate([1.25 ** np.arange(-12.0, 20.1), 87.0 * 1.5 ** np.arange(1.0, 18.1)])
_ORDERS = np.sort(np.append(_ORDERS, [0.9, 0.95, 0.98, 1.02, 1.05, 1.1]))
_CUTS = 3.0 ** np.arange(-11.0, 0.1)
# Nodes for parts take four times as long, and 64 of them are done in one go.
_PART_NODES = 16.0


class Run(NamedTuple):
    """A run of Gaussians and Poisson-sampled Gaussians."""

    mu_squared: Any  # scalar, of all Gaussians without sampling
    q: Any  # sampling probability [n]
    s: Any  # noise multiplier [n]
    count: Any  # [n]


class Table(NamedTuple):
    """Logs of moments of the whole run on real orders."""

    c: Any  # the orders less one [m], ascending
    cut: Any  # losses of one step at which to split [k]
    whole: Any  # log M(c) [m]
    small: Any  # log S(c, cut), of runs with no jump above the cut [m, k]
    between: Any  # log of S(c, cut above) - S(c, cut) [m, k]
    between_mass: Any  # log probability of its largest jump between the two, under P [k]
    sharpness: Any  # the largest of the partitions'


class Line(NamedTuple):
    """One line integral: delta's part from the whole law, or from one side of a cut."""

    c: Any  # real part of the line, > 0
    spacing: Any  # of the nodes
    cut: Any  # losses of one step at which the law is cut [0 or 2], ascending, infinite for none
    between: Any  # bool scalar: the part between the cuts, or that below the first one
    log_moment: Any  # of the part, at c: about how large the integrand is


def log_cut(cut: jax.Array, q: jax.Array) -> jax.Array:
    """The log of q e^z where a loss is the cut above log(1 - q), its least: (1 - q) (e^cut - 1)."""
    tiny = jnp.finfo(cut.dtype).tiny
    log_excess = jnp.where(cut > 1.0, cut, 0.0) + jnp.log(
        jnp.where(cut > 1.0, -jnp.expm1(-cut), jnp.expm1(jnp.minimum(cut, 1.0))) + tiny
    )
    return jnp.log1p(-q) + log_excess


def tolerance(dtype: Any, rough: jax.Array) -> jax.Array:
    """What of delta one trapezoid rule may add on either side, and what may be left out."""
    return jnp.where(rough, 1e-4, 1e-12 if dtype == jnp.float64 else 1e-6).astype(dtype)


def _log_chernoff(c: jax.Array) -> jax.Array:
    """log of the largest (1 - e^-x) e^(-c x): delta is at most this times M(c) e^(-c epsilon)."""
    # Written so that nothing cancels: orders may be huge.
    return -c * jnp.log1p(1.0 / c) - jnp.log1p(c)


def _rounded_up(log_moment: jax.Array, c: jax.Array, epsilon: Any) -> jax.Array:
    """A log-moment, with room for its own rounding and for that of c epsilon."""
    ulp = float(jnp.finfo(c.dtype).eps)
    return log_moment + ulp * (256.0 * jnp.abs(log_moment) + 4.0 * c * epsilon)


def table(run: Run, c: jax.Array, epsilon: jax.Array, remove: jax.Array) -> Table:
    """The moments at the orders around c, for cuts below epsilon."""
    dtype = c.dtype
    cs = c * jnp.asarray(_ORDERS, dtype)
    cuts = epsilon * jnp.asarray(_CUTS, dtype)
    # The last order, c = 0, measures probability.
    orders = jnp.append(cs, 0.0)
    # Orders far above c serve parts of the law only: the moment of the whole of it is huge there,
    # or, adding an example, the law next to bounded.
    reached = jax.vmap(contour.reached, in_axes=(0, 0, None))(run.q, run.s, 4.0 * c)
    furthest = jnp.where(
        remove, jnp.minimum(jnp.min(reached, initial=jnp.inf), 4.0 * c), 2500.0 * c
    )
    summed = jnp.append(cs <= furthest, True)

    def moments(q, s):
        """The moment's excess, that below each cut, and what lies between a cut and the next."""
        line = contour.contour(q, s, log_cut(cuts, q), furthest, remove)
        found = complex_moment.real_moments(line, orders)
        end = contour.end_of(line) + jnp.log(q)
        covered = (line.log_cut + contour.FAR / line.sharpness <= end)[None, :] | summed[:, None]
        covered = covered & contour.is_covered(
            line.log_cut[None, :], orders[:, None], line.sharpness
        )
        return found.excess, jnp.where(covered, found.small, jnp.inf), found.between

    def uncut(q, s):
        # Adding the example has no large losses to split off.
        line = contour.contour(q, s, jnp.zeros((0,), dtype), furthest, remove)
        unknown = jnp.full((orders.size, cuts.size), jnp.inf, dtype)
        return complex_moment.real_moments(line, orders).excess, unknown, unknown

    def add(totals, row):
        q, s, count = row
        trusted, lesser, between = jax.lax.cond(remove, moments, uncut, q, s)
        upper = jnp.concatenate([lesser[:, 1:], trusted[:, None]], axis=1)
        share = between / (1.0 + lesser)
        # By what lies between, where that is small; by the difference, where it is not.
        step = jnp.log1p(upper) - jnp.log1p(lesser)
        by_share = (share < 0.5) & (upper < jnp.inf)
        step = jnp.where(by_share, jnp.log1p(jnp.maximum(share, 0.0)), step)
        return (
            totals[0] + count * jnp.log1p(trusted),
            totals[1] + count * jnp.log1p(lesser),
            totals[2] + count * step,
        ), None

    gaussian = jnp.append(0.5 * cs * (1.0 + cs) * run.mu_squared, 0.0)
    many = jnp.zeros((orders.size, cuts.size), dtype)
    start = (gaussian, many + gaussian[:, None], many)
    (whole, small, step), _ = jax.lax.scan(add, start, (run.q, run.s, run.count))
    # A moment that overflows is infinite, and its line of no use; so is one whose jumps lie
    # beyond the end of the contour.
    finite = jnp.isfinite(whole)
    whole = jnp.where(finite & summed, whole, jnp.inf)
    small = jnp.where(jnp.isfinite(small), small, jnp.inf)
    log_step = jnp.where(step > 1.0, step, 0.0) + jnp.log(
        jnp.where(step > 1.0, -jnp.expm1(-step), jnp.expm1(jnp.minimum(step, 1.0)))
    )
    # What underflows is not nothing: below the least number it may be anything.
    least = math.log(float(jnp.finfo(dtype).tiny)) + 10.0 + jnp.log1p(jnp.sum(run.count))
    log_step = jnp.where(jnp.isnan(log_step), jnp.inf, jnp.maximum(log_step, least))
    between = jnp.where(jnp.isfinite(small + log_step), small + log_step, jnp.inf)
    last = jnp.where(summed, between[:, -1], jnp.inf)
    between = between.at[:, -1].set(last)
    sharpness = jnp.max(contour.sharpness(run.s), initial=1.0)
    return Table(cs, cuts, whole[:-1], small[:-1], between[:-1], between[-1], sharpness)


class Plan(NamedTuple):
    """How to integrate at one epsilon."""

    whole: Line  # for the law as it is
    parts: Line  # for what lies below the lowest cut, and between cuts, stacked [1 + k]
    used: Any  # which of the parts to use, bool [1 + k]
    can_split: Any  # bool scalar
    rather_split: Any  # bool scalar, whether that looks shorter than the law as it is
    price: Any  # of the parts, in chunks of nodes for the law as it is that take as long
    left_out: Any  # log of a bound on what is not used of the split law


class _Part(NamedTuple):
    line: Line
    log_height: Any  # log of the integrand at its peak
    log_bound: Any  # log of the Chernoff bound on delta
    nodes: Any  # about how many nodes it takes for each 1 / width of the law


def _part(log_moment, table, epsilon, log_mass, wanted, cut, between, width) -> _Part:
    """Order and spacing for one part of the law, given its log-moments."""
    c = table.c
    height = log_moment - c * epsilon - jnp.log(c) - jnp.log1p(c)
    height = jnp.where(jnp.isfinite(height), height, jnp.inf)
    chernoff = _rounded_up(log_moment, c, epsilon) - c * epsilon + _log_chernoff(c)
    chernoff = jnp.where(jnp.isfinite(chernoff), chernoff, jnp.inf)
    gap = c[None, :] - c[:, None]
    above = gap > 0.0
    right = (chernoff[None, :] - wanted) / jnp.where(above, gap, 1.0)
    right = jnp.where(above, right, jnp.inf)
    periods = jnp.maximum(jnp.maximum(log_mass - wanted, 1.0) / c, jnp.min(right, axis=1))
    # Digits to spare are traded for a shorter period.
    spare = 4.0 if c.dtype == jnp.float64 else 0.5
    height = jnp.where(jnp.isfinite(periods), height, jnp.inf)
    allowed = height <= jnp.min(height) + spare
    at = jnp.argmin(jnp.where(allowed, periods, jnp.inf))
    period = periods[at]
    deviation, skewness = _shape(log_moment, c, at)
    # A law that is not spread over many jumps has a transform that falls off slowly.
    reach = width(jnp.where(skewness < 0.25, deviation, 0.0))
    line = Line(c[at], 2.0 * math.pi / period, cut, jnp.asarray(between), log_moment[at])
    return _Part(line, height[at], jnp.minimum(jnp.min(chernoff), 0.0), reach * period)


def plan(
    table: Table,
    epsilon: jax.Array,
    part_epsilon: jax.Array,
    log_delta: jax.Array,
    remove: jax.Array,
    rough: jax.Array,
) -> Plan:
    """The lines for epsilons from this one on, where delta is about exp(log_delta).

    Those for the parts hold from ``part_epsilon`` on. A ``rough`` plan is for three digits.
    """
    dtype = epsilon.dtype
    double = dtype == jnp.float64
    wanted = log_delta + jnp.log(tolerance(dtype, rough))
    # A peak this much above delta costs that much of the digits.
    room = log_delta + math.log(1e6 if double else 100.0)
    zero = jnp.zeros((), dtype)
    none = jnp.zeros((0,), dtype)
    whole = _part(table.whole, table, epsilon, zero, wanted, none, False, lambda sd: 9.0 / sd)

    def below_cut(small, cut):
        cuts = jnp.stack([cut, cut])
        part = _part(small, table, part_epsilon, zero, wanted, cuts, False, lambda sd: 9.0 / sd)
        return part._replace(nodes=part.nodes * _slowness(table, small, part.line.c))

    def between_cuts(between, mass, cut, next_cut):
        jump = jnp.minimum(jnp.expm1(cut), 2.0)
        cuts = jnp.stack([cut, next_cut])
        return _part(
            between,
            table,
            part_epsilon,
            mass,
            wanted,
            cuts,
            True,
            lambda sd: 55.0 * table.sharpness / jump,
        )

    next_cut = jnp.append(table.cut[1:], jnp.inf)
    below = jax.vmap(below_cut, in_axes=(1, 0))(table.small, table.cut)
    parts = jax.vmap(between_cuts, in_axes=(1, 0, 0, 0))(
        table.between, table.between_mass, table.cut, next_cut
    )
    empty = parts.log_bound <= wanted
    negligible = below.log_bound <= wanted

    def price(part, skip):
        # Large jumps come first: parts that have less of delta need be known to fewer digits.
        digits = (part.log_bound - wanted) / (log_delta - wanted)
        nodes = part.nodes * jnp.clip(digits, 0.1, 1.0)
        high = jnp.exp(jnp.minimum(jnp.maximum(part.log_height - room, 0.0), 80.0))
        known = jnp.isfinite(part.nodes) & jnp.isfinite(part.log_height)
        return jnp.where(skip, 0.0, jnp.where(known, nodes * high, jnp.inf))

    onward = jnp.cumsum(price(parts, empty)[::-1])[::-1]
    cost = onward + price(below, negligible)
    best = jnp.argmin(jnp.where(jnp.isnan(cost), jnp.inf, cost))
    used = (jnp.arange(cost.size) >= best) & ~empty
    unused = (jnp.arange(cost.size) >= best) & empty
    left = jnp.sum(jnp.where(unused, jnp.exp(parts.log_bound - wanted), 0.0))
    left = left + jnp.where(negligible[best], jnp.exp(below.log_bound[best] - wanted), 0.0)
    lines = jax.tree.map(
        lambda low, high: jnp.concatenate([low[best][None], high]), below.line, parts.line
    )
    return Plan(
        whole.line,
        lines,
        jnp.append(~negligible[best], used),
        (cost[best] < jnp.inf) & remove,
        cost[best] < price(whole, jnp.zeros((), bool)),
        cost[best] / _PART_NODES,
        wanted + jnp.log(left),
    )


def _slowness(table: Table, small: jax.Array, c: jax.Array) -> jax.Array:
    """How many times 9 standard deviations the transform of a law below a cut takes to vanish.

    Once, if it is spread over many small jumps (that they make most of its variance) or hardly
    ever without a jump that is large against 1/9 of a standard deviation. Otherwise until the
    jumps are resolved that it is hardly ever without.
    """
    at = jnp.argmin(jnp.abs(table.c - c))
    deviation, _ = _shape(small, table.c, at)
    without = table.small[at] - small[at]  # log probability that all jumps are below each cut
    fine = jnp.maximum(jnp.sum(table.cut <= 0.35 * deviation) - 1, 0)
    fine_deviation, _ = _shape(table.small[:, fine], table.c, at)
    vanishes = (without[fine] <= -30.0) | (fine_deviation >= 0.8 * deviation)
    needed = jnp.max(jnp.where(without <= -30.0, table.cut, 0.0))
    resolved = 55.0 * table.sharpness / jnp.where(needed > 0.0, needed, 1.0) * deviation / 9.0
    return jnp.where(vanishes, 1.0, jnp.where(needed > 0.0, resolved, jnp.inf))


def _shape(log_moment: jax.Array, c: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Standard deviation and skewness of the tilted loss, from differences in c."""
    at = jnp.clip(at, 1, c.size - 3)
    near = jnp.stack([at - 1, at, at + 1, at + 2])
    x, k = c[near], log_moment[near]
    first = (k[1:] - k[:-1]) / (x[1:] - x[:-1])
    second = (first[1:] - first[:-1]) / (x[2:] - x[:-2])
    third = (second[1] - second[0]) / (x[3] - x[0])
    curvature = 2.0 * second[0]
    valid = curvature > 0.0
    deviation = jnp.sqrt(jnp.where(valid, curvature, 1.0))
    skewness = 6.0 * third / deviation**3
    return (
        jnp.where(valid, deviation, jnp.nan),
        jnp.where(valid & jnp.isfinite(third), jnp.abs(skewness), jnp.inf),
    )


def chernoff(table: Table, log_delta: jax.Array) -> jax.Array:
    """An epsilon at which delta is enough, by the best order of the table."""
    log_moment = _rounded_up(table.whole, table.c, 0.0)
    epsilons = (log_moment + _log_chernoff(table.c) - log_delta) / table.c
    return jnp.maximum(jnp.min(jnp.where(jnp.isfinite(epsilons), epsilons, jnp.inf)), 0.0)


def log_chernoff(table: Table, epsilon: jax.Array) -> jax.Array:
    """A log delta that is enough at epsilon, by the best order of the table."""
    log_moment = _rounded_up(table.whole, table.c, epsilon)
    logs = log_moment + _log_chernoff(table.c) - table.c * epsilon
    return jnp.minimum(jnp.min(jnp.where(jnp.isfinite(logs), logs, jnp.inf)), 0.0)


def _log_area(log_moment: jax.Array, c: jax.Array) -> jax.Array:
    """log of c (1 + c) sqrt(2 pi times the exponent's curvature), at every order."""
    deviation, _ = jax.vmap(_shape, in_axes=(None, None, 0))(log_moment, c, jnp.arange(c.size))
    curvature = deviation**2 + 1.0 / c**2 + 1.0 / (1.0 + c) ** 2
    return jnp.log(c) + jnp.log1p(c) + 0.5 * jnp.log(2.0 * math.pi * curvature)


def _guess(table: Table, value: Any) -> tuple[jax.Array, jax.Array]:
    """The saddle-point approximation of the whole law or, where that is much less, of its parts.

    ``value(log_moment, c)`` says what each order would give; the least counts.
    """

    def of(log_moment):
        values = value(log_moment, table.c)
        least = jnp.min(jnp.where(jnp.isfinite(values), values, jnp.inf))
        return jnp.where(jnp.all(log_moment == -jnp.inf), -jnp.inf, least)

    many = jax.vmap(of, in_axes=1)
    onward = jax.lax.cummax(many(table.between), reverse=True)
    return of(table.whole), jnp.min(jnp.maximum(onward, many(table.small)))


def guess(table: Table, log_delta: jax.Array) -> jax.Array:
    """About the epsilon at delta."""
    whole, split = _guess(table, lambda k, c: (k - _log_area(k, c) - log_delta) / c)
    return jnp.where(split < 0.9 * whole, split, whole)


def guess_log_delta(table: Table, epsilon: jax.Array) -> jax.Array:
    """About the log delta at epsilon."""
    whole, split = _guess(table, lambda k, c: k - _log_area(k, c) - c * epsilon)
    return jnp.minimum(jnp.where(split < whole - 3.0, split, whole), 0.0)
