"""Where to put the grid, the window and the tilts for a sum of privacy losses.

Nothing here is a bound: laws are sketched by a few hundred atoms each, and what is chosen decides
how tight the certified sum is, not whether it holds.

The spacing follows the standard deviation of the sum, not of a step: spread over the cells of
their grids, the steps add a variance of V / 6 to the sum, V = h^2 times their number, and that
makes epsilon too large by about V (1 + theta) / 12. The size is chosen for that to be small.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from jaxdp.accounting.loss_rows import Laws

_NODES = 512
# Natural logarithm of what may be lost, relative to delta.
_MARGIN = 16.0
COARSE, _SMALLEST, LARGEST = 2**12, 2**16, 2**20
# Allowed relative increase of epsilon by the spread onto the grid.
_SPREAD = 1.5e-5


class Sketch(NamedTuple):
    """A law by atoms: losses [n] ascending, the logs of their P-masses [n], and how often."""

    losses: np.ndarray
    log_masses: np.ndarray
    times: float


class Plan(NamedTuple):
    """Arguments of the sum: where the laws' grids begin and end, by kind, and the rest."""

    starts: tuple[np.ndarray, ...]
    ends: tuple[np.ndarray, ...]
    spacing: float
    bottom: float
    tilts: tuple[float, float, float, float, float]  # bulk, large, cut, right, left
    size: int
    split: bool


def _loss(z: np.ndarray, q: float) -> np.ndarray:
    if q == 1.0:
        return z
    with np.errstate(over="ignore"):
        near = np.log1p(q * np.expm1(np.minimum(z, 30.0)))
    far = z + math.log(q)
    return np.where(z > 30.0, far + np.log1p((1.0 - q) * np.exp(-np.maximum(far, 0.0))), near)


def _gaussian(q: float, mu: float, add: bool, reach: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(-reach, reach if add else mu + reach, _NODES)
    with_it = -0.5 * (x - mu) ** 2 + math.log(q)
    without = -0.5 * x * x + (math.log1p(-q) if q < 1.0 else -np.inf)
    loss = _loss(mu * x - 0.5 * mu * mu, q)
    return (-loss, -0.5 * x * x) if add else (loss, np.logaddexp(without, with_it))


def _laplace(q: float, r: float, add: bool) -> tuple[np.ndarray, np.ndarray]:
    z = np.concatenate([[-r], np.linspace(-r, r, _NODES), [r]])
    inner = math.log(0.25 * 2.0 * r / _NODES) - 0.5 * (z + r)
    without = inner
    without[0], without[-1] = math.log(0.5), math.log(0.5) - r
    loss = _loss(z, q)
    return (-loss, without) if add else (loss, without + loss)


def _atoms_of(kind: str, row: tuple[Any, ...], reach: float) -> tuple[np.ndarray, np.ndarray]:
    add = kind.endswith("_add")
    if kind.startswith("gaussian"):
        q, mu = row
        return _gaussian(q, mu, add, reach)
    if kind.startswith("laplace"):
        q, r = row
        return _laplace(q, r, add)
    if kind == "lattice":
        kept = row[1] > 0.0
        return row[0][kept], np.log(row[1][kept])
    if kind == "without_replacement":
        q, mu = row
        parts = [_gaussian(q, mu, side, reach) for side in (False, True)]
        removed, added = ((y, m - np.logaddexp.reduce(m)) for y, m in parts)
        high, low = removed[0] > 0.0, added[0] < 0.0
        atom = max((1.0 - q) * math.erf(mu / math.sqrt(8.0)), 1e-300)
        return (
            np.concatenate([removed[0][high], [0.0], added[0][low]]),
            np.concatenate([removed[1][high], [math.log(atom)], added[1][low]]),
        )
    full, rest, c, q, mu = row
    losses, masses = _gaussian(q, mu, add, reach)
    masses = masses - np.logaddexp.reduce(masses) + math.log(max(rest, 1e-300))
    if full == 0.0 or c == 0.0:
        return losses, masses
    other, more = _gaussian(c, 2.0 * mu, add, reach)
    more = more - np.logaddexp.reduce(more) + math.log(full)
    return np.concatenate([losses, other]), np.concatenate([masses, more])


def sketches(found: list[Laws], log_delta: float) -> list[list[Sketch]]:
    """A sketch of every row, by kind."""
    result = []
    for laws in found:
        rows = []
        for i, count in enumerate(laws.times):
            reach = math.sqrt(2.0 * (40.0 - log_delta + math.log(count)))
            losses, log_masses = _atoms_of(laws.kind, tuple(c[i] for c in laws.columns), reach)
            order = np.argsort(losses, kind="stable")
            log_masses = log_masses - np.logaddexp.reduce(log_masses)
            rows.append(Sketch(losses[order], log_masses[order], float(count)))
        result.append(rows)
    return result


def log_mgf(rows: list[Sketch], t: np.ndarray, cut: float = math.inf) -> np.ndarray:
    """log E[e^(t Y)] of the sum, without losses above the cut, at each t."""
    total = np.zeros_like(t)
    for losses, log_masses, count in rows:
        inside = losses <= cut
        exponent = log_masses[inside] + t[:, None] * losses[inside]
        top = exponent.max(axis=1, initial=-np.inf, keepdims=True)
        total += count * (top[:, 0] + np.log(np.exp(exponent - top).sum(axis=1)))
    return total


def _least(objective: Any) -> tuple[float, float]:
    """The least value over t > 0, roughly, and its t."""
    low, high = math.log(1e-5), math.log(1e11)
    best, at = math.inf, 1.0
    for points in (49, 17, 17):
        x = np.linspace(low, high, points)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            values = objective(np.exp(x))
        values = np.where(np.isfinite(values), values, np.inf)
        i = int(np.argmin(values))
        if values[i] < best:
            best, at = float(values[i]), float(np.exp(x[i]))
        low, high = x[max(i - 1, 0)], x[min(i + 1, points - 1)]
    return best, at


def chernoff_epsilon(rows: list[Sketch], log_delta: float) -> float:
    return max(_least(lambda t: (log_mgf(rows, t) - log_delta) / t)[0], 0.0)


def chernoff_log_delta(rows: list[Sketch], epsilon: float) -> float:
    return min(_least(lambda t: log_mgf(rows, t) - t * epsilon)[0], -1e-3)


def _range(sketch: Sketch, theta: float, log_delta: float) -> tuple[float, float]:
    """Where a law's grid should begin and end."""
    losses, log_masses, count = sketch
    upper = np.logaddexp.accumulate(log_masses[::-1])[::-1] + math.log(count)
    outside = np.flatnonzero(upper > log_delta - _MARGIN)
    end = losses[min(outside[-1] + 1, losses.size - 1)] if outside.size else losses[-1]
    # What lies below the start is moved there, where the tilt makes more of it.
    log_mgf_of_one = np.logaddexp.reduce(log_masses + theta * losses)
    moved = np.logaddexp.accumulate(log_masses) + theta * losses - log_mgf_of_one
    start = losses[max(int(np.searchsorted(moved, -_MARGIN - math.log(count))) - 1, 0)]
    return float(start), float(max(end, start))


def _largest_tilt(rows: list[Sketch], log_delta: float) -> float:
    """The tilt whose mean is as improbable as delta.

    Next to the largest loss there is, the saddle point of an epsilon runs off to infinity.
    """
    t = np.exp(np.linspace(math.log(1e-5), math.log(1e11), 200))
    k = log_mgf(rows, t)
    # t k' - k is the divergence of the tilted law from the law.
    divergence = 1e4 * (log_mgf(rows, t * (1.0 + 1e-4)) - k) - k
    beyond = np.flatnonzero(divergence > 6.0 - log_delta)
    if beyond.size:
        return float(t[beyond[0]])
    width = max(row.losses[-1] - row.losses[0] for row in rows)
    return 2000.0 / width if width > 0.0 else math.inf


def _cut(
    rows: list[Sketch], epsilon: float, log_delta: float, theta: float, most: float
) -> tuple[float, float, float]:
    """The cut with the least rounding, and the tilts of the two parts; no cut if none is needed."""
    # Log of the rounding over delta, less the Chernoff exponent k - t epsilon.
    unit = math.log(4e-15 * sum(row.times for row in rows)) - log_delta
    whole = float(log_mgf(rows, np.array([theta]))[0]) - theta * epsilon + unit
    best = (whole, math.inf, theta, theta)
    if whole < math.log(1e-6):
        return best[1:]
    for share in (0.03, 0.06, 0.12, 0.25, 0.4, 0.6):
        cut = share * epsilon
        rare = sum(row.times * np.exp(row.log_masses[row.losses > cut]).sum() for row in rows)
        if rare > 0.1:
            continue

        def bulk(t, cut=cut):
            return log_mgf(rows, t, cut) - t * epsilon

        def large(t, cut=cut):
            k = log_mgf(rows, t)
            rest = -np.expm1(np.minimum(log_mgf(rows, t, cut) - k, 0.0))
            return k + np.log(np.maximum(rest, 1e-300)) - t * epsilon

        theta_b = min(_least(bulk)[1], _largest_tilt([_below(row, cut) for row in rows], log_delta))
        theta_g = min(_least(large)[1], most)
        prices = [part(np.array([t]))[0] for part, t in ((bulk, theta_b), (large, theta_g))]
        worse = float(max(prices)) + unit
        if worse < best[0]:
            best = (worse, cut, theta_b, theta_g)
    return best[1:]


def plan(
    found: list[Laws],
    sketched: list[list[Sketch]],
    log_delta: float,
    epsilon: float,
    *,
    largest: int = LARGEST,
    whole: bool = False,
) -> Plan:
    """A plan for the sum near an epsilon and a log delta that are roughly known.

    Args:
      found: The laws.
      sketched: Their sketches.
      log_delta: Log delta, roughly.
      epsilon: The epsilon that goes with it, roughly.
      largest: The most points.
      whole: Whether the window must reach down to 0, epsilon being known from above only.
    """
    rows = [row for kind in sketched for row in kind]
    theta = _least(lambda t: log_mgf(rows, t) - t * epsilon)[1]
    most = _largest_tilt(rows, log_delta)
    theta = min(theta, most)
    cut, theta_b, theta_g = math.inf, theta, theta
    if not whole:
        cut, theta_b, theta_g = _cut(rows, epsilon, log_delta, theta, most)
    theta_low = min(theta_b, theta_g)
    ranges = [[_range(row, theta_low, log_delta) for row in kind] for kind in sketched]
    kept = [
        _below(row, high)
        for kind, ends in zip(sketched, ranges, strict=True)
        for row, (_, high) in zip(kind, ends, strict=True)
    ]

    def end(s):
        return (log_mgf(kept, theta_g + s) - theta_g * epsilon - log_delta + _MARGIN) / s

    top, right = _least(end)
    top = max(top, epsilon * 1.01)

    def width(t):
        return (log_mgf(rows, -t) + t * top - log_delta + _MARGIN) / (t + theta_low)

    window, left = _least(width)
    widest = max(high - low for kind in ranges for low, high in kind)
    window = max(window, 1.02 * widest, 1.5 * (top - epsilon), 1e-300)
    if whole:
        window = max(window, 1.01 * top)
    steps = sum(row.times for row in rows)
    spacing = math.sqrt(12.0 * _SPREAD * max(epsilon, 1e-3 * window) / (steps * (1.0 + theta_g)))
    size = 4 ** math.ceil(0.5 * math.log2(max(window / spacing, 1.0)))
    size = int(min(max(size, _SMALLEST), largest))  # few sizes: each is compiled once
    spacing = _aligned(found, window / (size - 4))
    starts, ends = [], []
    for laws, kind in zip(found, ranges, strict=True):
        starts.append(np.array([_start(laws, i, kind[i][0], spacing) for i in range(len(kind))]))
        ends.append(np.array([high for _, high in kind]) + 2.0 * spacing)
    bottom = top - spacing * (size - 2)
    tilts = (theta_b, theta_g, cut, right, left)
    return Plan(tuple(starts), tuple(ends), spacing, bottom, tilts, size, cut < math.inf)


def _below(sketch: Sketch, end: float) -> Sketch:
    inside = sketch.losses <= end
    return Sketch(sketch.losses[inside], sketch.log_masses[inside], sketch.times)


def _lattice_step(laws: Laws) -> float:
    """The distance of which the atoms of the first law are multiples, if it has such."""
    if laws.kind == "laplace_remove" and laws.columns[0][0] == 1.0:
        return 2.0 * laws.columns[1][0]
    if laws.kind == "lattice":
        losses, masses = laws.columns[0][0], laws.columns[1][0]
        gaps = np.diff(np.unique(losses[masses > 0.0]))
        return float(gaps.min()) if gaps.size else 0.0
    return 0.0


def _aligned(found: list[Laws], spacing: float) -> float:
    """The spacing, made a little larger so that the atoms of one law lie on the grid."""
    for laws in sorted(found, key=lambda laws: -float(laws.times.max())):
        step = _lattice_step(laws)
        if step >= spacing:
            return step / math.floor(step / spacing)
    return spacing


def _anchor(laws: Laws, i: int) -> float:
    """A loss that should lie on the grid: an atom, or where an unsampled example leaves it."""
    row = tuple(column[i] for column in laws.columns)
    if laws.kind == "without_replacement":
        return 0.0
    if laws.kind == "lattice":
        return float(row[0][np.argmax(row[1])])
    q, scale = row[-2:]
    if laws.kind.startswith("laplace"):
        loss = float(_loss(np.array(-scale), q))
    else:
        loss = float(_loss(np.array(-0.5 * scale * scale), q))
    return -loss if laws.kind.endswith("_add") else loss


def _start(laws: Laws, i: int, low: float, spacing: float) -> float:
    anchor = _anchor(laws, i)
    return anchor - spacing * max(math.ceil((anchor - low) / spacing) + 1, -(2**20))
