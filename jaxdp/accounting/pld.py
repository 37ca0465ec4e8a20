r"""Composition of privacy-loss laws by a tilted FFT, with both ends of the bracket certified.

Let the runs' steps have the pessimistic laws w_j (``loss_law``) on grids o_j + h Z, with counts
n_j. Their sum Y has :math:`\delta(\epsilon) = E[(1 - e^{\epsilon - Y})_+]`, and its law is the
inverse transform of the product of w_j^(n_j). **Tilting** multiplies w_j by
:math:`e^{\theta y - \kappa_j}` with :math:`\kappa_j` such that it sums to 1; the law of the sum is
tilted likewise, and the sum for delta has the weights
:math:`e^{\kappa - \theta y}(1 - e^{\epsilon - y})_+`, :math:`\kappa = \sum n_j \kappa_j`, instead.
Any theta is valid; with the saddle point the mass sits near epsilon and delta = 1e-100 is as easy
as 0.1.

**Heavy tails.** Where one large loss decides (few expected participations), no tilt moves the mass
to epsilon. So losses above a cut are kept apart: w = b + g, and
:math:`w^n = b^n + [(b + g)^n - b^n]`, each part with a tilt of its own. The second one is computed
as :math:`\hat b^n \, \mathrm{expm1}(n \, \mathrm{log1p}(\hat g / \hat b))`, small as it is.

**Why the upper bound holds.** Errors, all moved outward:

- *Discretisation, truncation of a law*: pessimistic, see ``loss_law``. Infinite losses add at most
  the sum of n_j times their mass.
- *Wrap-around*. The transform is cyclic with the period W = size * h, and all masses are >= 0. What
  lies below the window reappears in it and only adds. What lies above reappears lower and may be
  lost: tilted, at most its share of the total, so at most e^(kappa - theta * top) untilted.
- *Rounding of the transforms*. Every entry of a transform is off by at most
  e = 6 eps log2(size) times the sum of the moduli of its input (each of log2(size) stages adds
  products with rounded roots of unity; the constant has room for the ones of other libraries). For
  products, |prod a^n - prod b^n| with |a - b| <= e is at most n e (|b| + e)^(n-1) ...: the
  derivative at the outer end, the product being a power series in b and g with coefficients >= 0.
  The mean of that over the frequencies, plus e times the mean modulus, bounds each entry's error.
- *Rounding of the laws*: losses off by some ulps move the sum by at most n_j times them, and that
  is added to epsilon; masses off by a factor 1 + some ulps, to the power n_j.

**Why the lower bound holds.** The same sum, errors moved inward, bounds delta' of the *spread*
laws from below. Let R be the likelihood ratio e^Y of the run, R M that of the spread one,
M = e^Z, E_Q[M | R] <= 1. For every c,
:math:`(RM - e^{\epsilon + c})_+ \le M (R - e^\epsilon)_+ + RM \, 1[RM > e^{\epsilon+c}, M > e^c]`
(write RM - e^(eps+c) = M (R - e^eps) + (M - e^c) e^eps; the last term counts only where M > e^c),
and the mean of the right end is at most
:math:`e^{-\theta(\epsilon+c) - s c} E_{P'}[(R')^\theta M^s]`. Given R, log M is a sum of variables
on two points h apart. The log-moment of one, with base Q, vanishes at 0, is <= 0 at 1 and has a
second derivative <= h^2 / 4; its derivative at 1 is then <= h^2 / 4, so it grows from 1 + theta to
1 + theta + s by at most h^2 (s (1 + theta) / 4 + s^2 / 8). With V = h^2 times the number of steps
that are spread, c = V (1 + theta + s) / 4 leaves
:math:`\delta(\epsilon) \ge \delta'(\epsilon + c) - e^{\kappa - \theta (\epsilon + c) - V s^2 / 8}`.
Steps below a law's grid have no such bound on M; their tilted mass is subtracted, as is
wrap-around from either side.

The spacing follows the standard deviation of the sum, not of a step, and the added variance
V / 6 makes epsilon too large by about V (1 + theta) / 12: the size is chosen for that to be small.

References:
  Koskela, Jälkö and Honkela 2020, arXiv:1906.03049; Doroshenko, Ghazi, Kamath, Kumar and
  Manurangsi 2022, arXiv:2207.04380; Alghamdi et al. 2022, arXiv:2208.09595 (tilting).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _precision, _validate
from jaxdp.accounting import composition, conversion, loss_law, loss_plan
from jaxdp.accounting.composition import Steps

_TINY = 1e-290
# So that the index of every loss in the sum is an exact integer.
_MOST_STEPS = 2.0**32
# Parameters past this are no noise at all.
_LARGEST_NUMBER = 1e100
# Sketches for an unknown delta reach to this.
_LEAST_LOG_DELTA = -750.0


class Part(NamedTuple):
    """A part of the law of the sum: entry m stands for the mass times e^(theta y_m - log_mgf)."""

    entries: jax.Array
    error: jax.Array  # at most, of each entry
    theta: jax.Array
    log_mgf: jax.Array  # kappa
    log_share: jax.Array  # log of the tilted mass of this part
    log_above: jax.Array  # log of its tilted mass above the window, at most
    log_below: jax.Array  # log of its tilted mass with a step below a law's grid, at most


class Sum(NamedTuple):
    """The law of the sum on a window, with bounds on all that is missing."""

    y: jax.Array
    parts: list[Part]
    infinite: jax.Array  # P-mass of infinite losses
    log_under: jax.Array  # log of the P-mass below the window
    spread: jax.Array  # V
    shift: jax.Array  # what rounding may have moved losses by
    slack: jax.Array  # what rounding may have taken off log delta


def _log_sum(log_masses: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(log_masses)


def _complex_log1p(z: jax.Array) -> jax.Array:
    x, y = jnp.real(z), jnp.imag(z)
    return 0.5 * jnp.log1p(jnp.maximum(2.0 * x + x * x + y * y, -1.0)) + 1j * jnp.arctan2(
        y, 1.0 + x
    )


def _complex_expm1(z: jax.Array) -> jax.Array:
    x, y = jnp.real(z), jnp.imag(z)
    half = jnp.sin(0.5 * y)
    return jnp.expm1(x) * jnp.cos(y) - 2.0 * half * half + 1j * jnp.exp(x) * jnp.sin(y)


def _transform(tilted: jax.Array) -> jax.Array:
    return jnp.fft.rfft(tilted)


def _bulk(log_mass: jax.Array, y: jax.Array, theta: jax.Array, cut: jax.Array, e: float):
    """One law's contribution to the part without large losses, for one step."""
    exponent = jnp.where(y <= cut, log_mass + theta * y, -jnp.inf)
    log_mgf = _log_sum(exponent)
    b = _transform(jnp.exp(exponent - log_mgf))
    size = jnp.abs(b)
    return {
        "log_mgf": log_mgf,
        "log": jnp.log(jnp.maximum(size, _TINY)),
        "phase": jnp.angle(b),
        "log_outer": jnp.log(size + e),
        "slope": e / (size + e),
    }


def _large(log_mass: jax.Array, y: jax.Array, theta: jax.Array, cut: jax.Array, e: float):
    """One law's contribution to the part with large losses, for one step."""
    exponent = log_mass + theta * y
    log_mgf = _log_sum(exponent)
    tilted = jnp.exp(exponent - log_mgf)
    low, high = jnp.where(y <= cut, tilted, 0.0), jnp.where(y > cut, tilted, 0.0)
    low_mass, high_mass = jnp.sum(low), jnp.sum(high)
    b, g = _transform(low), _transform(high)
    b = jnp.where(jnp.abs(b) > 1e-25, b, 1e-25)  # a perturbation below e
    b_outer, g_outer = jnp.abs(b) + e * low_mass, jnp.abs(g) + e * high_mass
    ratio = _complex_log1p(g / b)
    return {
        "log_mgf": log_mgf,
        "log": jnp.log(jnp.abs(b)),
        "phase": jnp.angle(b),
        "ratio": jnp.real(ratio),
        "ratio_phase": jnp.imag(ratio),
        "log_outer": jnp.log(b_outer),
        "ratio_outer": jnp.log1p(g_outer / b_outer),
        "slope": e * low_mass / b_outer,
        "slope_large": e * high_mass / (b_outer + g_outer),
        "share": jnp.log1p(high_mass / low_mass),
    }


def _law(
    kind: str, row: Any, ends: Any, h: Any, tilts: Any, size: int, split: bool, e: float
) -> dict[str, Any]:
    """All contributions of one law, for one step."""
    start, last = ends
    law = loss_law.masses(kind, row, start, h, size)
    y = start + h * jnp.arange(size, dtype=h.dtype)
    beyond = jnp.sum(jnp.where(y > last, law.grid, 0.0))
    # Probabilities that were rounded up add up to more than 1.
    excess = jnp.maximum(jnp.sum(law.grid) + law.infinite - 1.0, 0.0)
    law = law._replace(grid=jnp.where(y > last, 0.0, law.grid), infinite=law.infinite + beyond)
    log_mass = jnp.where(law.grid > 0.0, jnp.log(jnp.maximum(law.grid, 1e-323)), -jnp.inf)
    theta_b, theta_g, cut, right, left = tilts
    found = {"infinite": law.infinite, "start": start, "excess": excess}
    found["bulk"] = _bulk(log_mass, y, theta_b, cut, e)
    inside = jnp.where(y <= cut, log_mass, -jnp.inf)
    found["right"] = _log_sum(inside + (theta_b + right) * y)
    found["left"] = _log_sum(log_mass - left * y)
    found["below"] = law.below * jnp.exp(theta_b * start - found["bulk"]["log_mgf"])
    furthest = jnp.maximum(jnp.abs(start), jnp.abs(last))
    found["furthest"] = furthest
    if split:
        found["large"] = _large(log_mass, y, theta_g, cut, e)
        found["right_large"] = _log_sum(log_mass + (theta_g + right) * y)
        found["below_large"] = law.below * jnp.exp(theta_g * start - found["large"]["log_mgf"])
    spread = jnp.where(jnp.any(_is_spread(kind, row, start, h)), 1.0, 0.0)
    found["spread"] = spread * h * h
    return found


def _is_spread(kind: str, row: Any, start: Any, h: Any) -> Any:
    if kind != "lattice":
        return True
    place = (row[0] - start) / h
    return (jnp.abs(place - jnp.round(place)) >= loss_law.SNAP) & (row[1] > 0.0)


def _added(laws: Any, ends: Any, h: Any, tilts: Any, kinds: Any, size: int, split: bool, e: float):
    """The contributions of all laws, each times its count."""
    total = None
    for kind, (columns, count), grid in zip(kinds, laws, ends, strict=True):

        def term(row, n, o, kind=kind):
            one = _law(kind, row, o, h, tilts, size, split, e)
            return jax.tree.map(lambda value: n * value, one)

        first = term(tuple(column[0] for column in columns), count[0], (grid[0][0], grid[1][0]))
        total = first if total is None else jax.tree.map(jnp.add, total, first)
        if count.shape[0] > 1:
            rest = (tuple(column[1:] for column in columns), count[1:], (grid[0][1:], grid[1][1:]))

            def step(carry, row, term=term):
                return jax.tree.map(jnp.add, carry, term(*row)), None

            total = jax.lax.scan(step, total, rest)[0]
    return total


def _entries(spectrum: jax.Array, error: jax.Array, first: jax.Array, size: int, e: float):
    """The inverse transform, turned so that it begins at index ``first``; the error of an entry."""
    weight = jnp.full(spectrum.shape, 2.0).at[jnp.asarray([0, -1])].set(1.0) / size
    values = jnp.fft.irfft(spectrum, size)
    bound = jnp.sum(weight * error) + e * jnp.sum(weight * jnp.abs(spectrum))
    return jnp.roll(values, -jnp.mod(first, size).astype(jnp.int32)), bound


def _sum_of(
    laws: Any, ends: Any, h: Any, bottom: Any, tilts: Any, *, kinds: Any, size: int, split: bool
) -> Sum:
    """The law of the sum on the window of ``size`` points from ``bottom`` upwards."""
    eps = float(jnp.finfo(h.dtype).eps)
    e = 6.0 * eps * math.log2(size)
    found = _added(laws, ends, h, tilts, kinds, size, split, e)
    theta_b, theta_g, _, right, left = tilts
    first = jnp.ceil((bottom - found["start"]) / h)
    y = found["start"] + h * (first + jnp.arange(size, dtype=h.dtype))
    top = y[-1] + h
    bulk = found["bulk"]
    modulus = jnp.exp(bulk["log"])
    spectrum = modulus * jnp.exp(1j * bulk["phase"])
    turns = eps * 8.0 * sum(jnp.sum(count) for _, count in laws)  # rounding of n times a phase
    error = (bulk["slope"] + turns) * jnp.exp(bulk["log_outer"])
    entries, bound = _entries(spectrum, error, first, size, e)
    above = jnp.minimum(found["right"] - bulk["log_mgf"] - right * top, 0.0)
    parts = [
        Part(entries, bound, theta_b, bulk["log_mgf"], 0.0 * h, above, jnp.log(found["below"]))
    ]
    if split:
        big = found["large"]
        spectrum = jnp.exp(big["log"] + 1j * big["phase"])
        spectrum = spectrum * _complex_expm1(big["ratio"] + 1j * big["ratio_phase"])
        outer = jnp.exp(big["log_outer"])
        grown = outer * jnp.expm1(big["ratio_outer"])
        error = (big["slope"] + turns) * grown + (
            big["slope_large"] + turns * big["ratio_outer"]
        ) * (outer + grown)
        entries, bound = _entries(spectrum, error, first, size, e)
        share = jnp.log(-jnp.expm1(-big["share"]))
        above = jnp.minimum(found["right_large"] - big["log_mgf"] - right * top, share)
        below = jnp.log(found["below_large"])
        parts.append(Part(entries, bound, theta_g, big["log_mgf"], share, above, below))
    steps = sum(jnp.sum(count) for _, count in laws)
    shift = found["furthest"] * loss_law.LOCATION_ULPS * eps + steps * h * loss_law.SNAP * 2.0
    largest = jnp.maximum(theta_b, theta_g) if split else theta_b
    slack = eps * (steps * loss_law.MASS_ULPS + 16.0 * largest * found["furthest"])
    slack = slack + found["excess"]
    log_under = jnp.minimum(found["left"] + left * y[0], 0.0)
    infinite = found["infinite"] * (1.0 + 1e-9)
    return Sum(y, parts, infinite, log_under, found["spread"], shift, slack)


def _log_delta_part(part: Part, y: jax.Array, epsilon: jax.Array, sign: float) -> jax.Array:
    """Log of the sum for delta over one part, its entries moved by their error."""
    d = y - epsilon
    inside = jnp.maximum(d, 0.0)
    weights = jnp.where(d > 0.0, jnp.exp(-part.theta * inside) * -jnp.expm1(-inside), 0.0)
    entries = jnp.maximum(part.entries + sign * part.error, 0.0)
    return part.log_mgf - part.theta * epsilon + jnp.log(jnp.sum(entries * weights))


def _log_upper(law: Sum, epsilon: jax.Array) -> jax.Array:
    """Log delta at epsilon, at least."""
    top = 2.0 * law.y[-1] - law.y[-2]
    at = epsilon - law.shift
    terms = [jnp.log(law.infinite)]
    for part in law.parts:
        terms.append(_log_delta_part(part, law.y, at, 1.0))
        terms.append(part.log_mgf - part.theta * top + jnp.minimum(part.log_above, part.log_share))
    value = _log_sum(jnp.stack(terms)) + law.slack
    value = jnp.where(at >= law.y[0], value, 0.0)
    return jnp.where(value <= 0.0, value, 0.0)


def _log_lower(law: Sum, epsilon: jax.Array) -> jax.Array:
    """Log delta at epsilon, at most; -inf where nothing is known."""
    main = law.parts[-1]  # its tilt bounds the whole sum
    needed = jnp.maximum(main.log_mgf - main.theta * epsilon - _log_upper(law, epsilon), 0.0) + 10.0
    v = jnp.maximum(law.spread, 1e-300)
    s = jnp.sqrt(8.0 * needed / v)
    c = jnp.where(law.spread > 0.0, 0.25 * v * (1.0 + main.theta + s), 0.0)
    at = jnp.maximum(epsilon + c + law.shift, law.y[0])
    smoothed = main.log_mgf - main.theta * at - 0.125 * v * s * s
    lost = [jnp.where(law.spread > 0.0, smoothed, -jnp.inf)]
    lost.append(
        jnp.where(law.spread > 0.0, main.log_mgf - main.theta * at + main.log_below, -jnp.inf)
    )
    window = law.y[-1] - law.y[0]
    for part in law.parts:
        lost.append(part.log_mgf - part.theta * at + part.log_above)
        lost.append(law.log_under - part.theta * window)
    gained = _log_sum(jnp.stack([_log_delta_part(part, law.y, at, -1.0) for part in law.parts]))
    gained = gained - law.slack
    loss = _log_sum(jnp.stack(lost)) + law.slack
    some = gained > loss
    ratio = jnp.exp(jnp.where(some, loss - gained, -1.0))
    return jnp.where(some, gained + jnp.log1p(-ratio), -jnp.inf)


def _next(i: jax.Array, a: jax.Array, b: jax.Array, fa: jax.Array, fb: jax.Array) -> jax.Array:
    """Where to look between a and b: by the Illinois rule, every third time in the middle."""
    known = jnp.isfinite(fa) & jnp.isfinite(fb) & (fa > fb)
    share = jnp.where(known, fa / jnp.where(known, fa - fb, 1.0), 0.5)
    return jnp.where(i % 3 == 2, 0.5 * (a + b), a + (b - a) * jnp.clip(share, 1e-6, 1.0 - 1e-6))


def _least_known(excess: Any, low: jax.Array, high: jax.Array) -> jax.Array:
    """Nearly the least x with excess(x) <= 0, a decreasing function; inf if excess(high) > 0."""

    def look(i, carry):
        a, b, fa, fb = carry
        x = jnp.where(i == 0, low, jnp.where(i == 1, high, _next(i, a, b, fa, fb)))
        f = excess(x)
        below = f <= 0.0
        found = (jnp.where(below, a, x), jnp.where(below, x, b))
        # The end that stays loses half its weight.
        values = (jnp.where(below, 0.5 * fa, f), jnp.where(below, f, 0.5 * fb))
        settled = (b == low) | ((i > 1) & (b == jnp.inf))
        return jax.tree.map(lambda new, old: jnp.where(settled, old, new), (*found, *values), carry)

    inf = jnp.full_like(low, jnp.inf)
    return jax.lax.fori_loop(0, 32, look, (low, inf, inf, -inf))[1]


def _greatest_known(excess: Any, low: jax.Array, high: jax.Array) -> jax.Array:
    """Nearly the greatest x in [low, high] with excess(x) > 0, of a function that need not be
    monotone far from there; 0 if none is found."""
    steps = 24

    def look(i, carry):
        a, b, fa, fb = carry
        begin = high - (high - low) * 0.5 ** i.astype(high.dtype)
        x = jnp.where(i < steps, begin, _next(i, a, b, fa, fb))
        f = excess(x)
        above, first = f > 0.0, i < steps
        # While beginning, x ascends: whatever lies above the last one known is open again.
        open_end = jnp.where(first, jnp.where(above, high, jnp.where(b == high, x, b)), b)
        new_b = jnp.where(above | first, open_end, x)
        new_fb = jnp.where(above, jnp.where(first, -jnp.inf, 0.5 * fb), f)
        return jnp.where(above, x, a), new_b, jnp.where(above, f, 0.5 * fa), new_fb

    start = (
        jnp.full_like(low, -1.0),
        high,
        jnp.full_like(low, jnp.inf),
        -jnp.full_like(low, jnp.inf),
    )
    return jnp.maximum(jax.lax.fori_loop(0, steps + 24, look, start)[0], 0.0)


def _epsilons(
    laws: Any, ends: Any, h: Any, bottom: Any, tilts: Any, log_delta: Any, **static: Any
) -> tuple[jax.Array, jax.Array]:
    law = _sum_of(laws, ends, h, bottom, tilts, **static)
    zero, top = jnp.zeros_like(log_delta), law.y[-1]
    upper = _least_known(lambda epsilon: _log_upper(law, epsilon) - log_delta, zero, top)
    end = jnp.minimum(upper, top)
    begin = jnp.clip(law.y[0], zero, end)
    return (
        _greatest_known(lambda epsilon: _log_lower(law, epsilon) - log_delta, begin, end),
        upper,
    )


def _log_deltas(
    laws: Any, ends: Any, h: Any, bottom: Any, tilts: Any, epsilon: Any, **static: Any
) -> Any:
    law = _sum_of(laws, ends, h, bottom, tilts, **static)
    return _log_lower(law, epsilon), _log_upper(law, epsilon)


def _arguments(found: list[loss_law.Laws], chosen: loss_plan.Plan) -> tuple[tuple[Any, ...], Any]:
    laws = tuple((row.columns, row.times) for row in found)
    kinds = tuple(row.kind for row in found)
    tilts = tuple(min(tilt, 1e300) for tilt in chosen.tilts)
    grids = tuple(zip(chosen.starts, chosen.ends, strict=True))
    arguments = (laws, grids, chosen.spacing, chosen.bottom, tilts)
    return arguments, {"kinds": kinds, "size": chosen.size, "split": chosen.split}


def _directions(steps: Steps) -> tuple[bool, ...]:
    directed = (steps.sampled_gaussian, steps.sampled_laplace, steps.truncated_gaussian)
    return (False,) if all(rows is None for rows in directed) else (False, True)


def _refuse_traced(*trees: Any) -> None:
    if _validate.is_traced(trees):
        _validate.refuse(
            "event",
            "traced numbers",
            "of numbers known outside the program for the accountant 'pld', whose grid depends on "
            "them and whose margins need float64",
        )


def _checked_laws(steps: Steps, add: bool) -> list[loss_law.Laws]:
    found = loss_law.laws_of(steps, add)
    if sum(laws.times.sum() for laws in found) > _MOST_STEPS:
        _validate.refuse("count", "more steps", f"at most {_MOST_STEPS:.0e} for this accountant")
    return found


def _without_noise(found: list[loss_law.Laws]) -> bool:
    """Whether some release has an infinite loss, or one past the numbers there are."""
    return any(
        not np.all(np.abs(column) < _LARGEST_NUMBER) for laws in found for column in laws.columns
    )


def _one_epsilon(steps: Steps, log_delta: float, add: bool) -> tuple[float, float]:
    found = _checked_laws(steps, add)
    if not found:
        return 0.0, 0.0
    if _without_noise(found):
        return 0.0, math.inf
    sketched = loss_plan.sketches(found, log_delta)
    rows = [row for kind in sketched for row in kind]
    guess = loss_plan.chernoff_epsilon(rows, log_delta)
    lower, upper = 0.0, math.inf
    # Coarsely first: where epsilon is decides where the window and the tilts go.
    for largest, whole in (
        (loss_plan.COARSE, True),
        (loss_plan.COARSE, False),
        (loss_plan.LARGEST, False),
    ):
        chosen = loss_plan.plan(found, sketched, log_delta, guess, largest=largest, whole=whole)
        arguments, static = _arguments(found, chosen)
        low, high = _precision.evaluate(_epsilons, *arguments, log_delta, **static)
        # A NaN, if arithmetic broke down, is no bound and leaves the ends as they are.
        lower, upper = max(lower, low), min(upper, high)
        guess = min(guess, upper)
    return lower, upper


def _one_log_delta(steps: Steps, epsilon: float, add: bool) -> tuple[float, float]:
    found = _checked_laws(steps, add)
    if not found:
        return -math.inf, -math.inf
    if _without_noise(found):
        return -math.inf, 0.0
    sketched = loss_plan.sketches(found, _LEAST_LOG_DELTA)
    rows = [row for kind in sketched for row in kind]
    guess = loss_plan.chernoff_log_delta(rows, epsilon)
    lower, upper = -math.inf, 0.0
    for largest in (loss_plan.COARSE, loss_plan.LARGEST):
        chosen = loss_plan.plan(found, sketched, guess, epsilon, largest=largest)
        arguments, static = _arguments(found, chosen)
        low, high = _precision.evaluate(_log_deltas, *arguments, epsilon, **static)
        # A NaN, if arithmetic broke down, is no bound and leaves the ends as they are.
        lower, upper = max(lower, low), min(upper, high)
        guess = min(guess, upper)
    return lower, upper


def epsilon_bounds(steps: Steps, log_delta: float) -> tuple[float, float]:
    r"""A certified bracket around the smallest epsilon of a run at a given delta.

    Args:
      steps: The run; known numbers.
      log_delta: Natural logarithm of delta, < 0.

    Returns:
      ``(lower, upper)``, both >= 0; upper is infinite where some step has no noise.

    Raises:
      ValueError: if a number is traced, or there are more than 2^32 steps.

    Guarantee:
      The run's dominating pairs (the worse of both directions) are (upper, delta)-DP and not
      (epsilon, delta)-DP for any epsilon < lower. The module's docstring has the proof.

    Example:
      >>> import math
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting import composition, pld
      >>> steps = composition.steps_of(acc.RandomizedResponse(0.5, 2) * 100)
      >>> lower, upper = pld.epsilon_bounds(steps, math.log(1e-6))
      >>> lower <= 94.2898678929249 <= upper, round(upper, 6)
      (True, 94.289868)
    """
    _refuse_traced(steps, log_delta)
    bounds = [_one_epsilon(steps, log_delta, add) for add in _directions(steps)]
    lower, upper = (max(ends) for ends in zip(*bounds, strict=True))
    pure = float(_precision.evaluate(_pure_epsilon, steps, 0.0))
    if upper == math.inf:  # where the grid's margins are too wide, the Chernoff bound still holds
        upper = float(_precision.evaluate(_renyi_epsilon, steps, log_delta))
    upper = min(upper, pure)
    return min(lower, upper), upper


def log_delta_bounds(steps: Steps, epsilon: float) -> tuple[float, float]:
    r"""A certified bracket around the log of the smallest delta of a run at a given epsilon.

    Args:
      steps: The run; known numbers.
      epsilon: Epsilon, >= 0.

    Returns:
      ``(lower, upper)``, both <= 0, natural logarithms, since a small delta is no number.

    Raises:
      ValueError: if a number is traced, or there are more than 2^32 steps.

    Guarantee:
      That of ``epsilon_bounds``.

    Example:
      >>> import math
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting import composition, pld
      >>> steps = composition.steps_of(acc.Laplace(1.0))
      >>> lower, upper = pld.log_delta_bounds(steps, 0.5)
      >>> lower <= math.log(1 - math.exp(-0.25)) <= upper
      True
    """
    _refuse_traced(steps, epsilon)
    if _precision.evaluate(_pure_epsilon, steps, 0.0) <= epsilon:
        return -math.inf, -math.inf
    bounds = [_one_log_delta(steps, epsilon, add) for add in _directions(steps)]
    lower, upper = (max(ends) for ends in zip(*bounds, strict=True))
    return min(lower, upper), upper


def _renyi_epsilon(steps: Steps, log_delta: Any) -> Any:
    def bound(t):
        rdp = composition.log_moment_of(steps, t) / t
        return conversion.epsilon_at(t, rdp, log_delta)

    return conversion.search(bound, log_delta.dtype)[0]


def _pure_epsilon(steps: Steps, unused: Any) -> Any:
    return composition.pure_epsilon_of(steps, unused.dtype) * (1.0 + 1e-12)
