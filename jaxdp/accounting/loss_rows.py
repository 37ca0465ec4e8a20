"""A run's steps as rows of loss laws, one for each distinct step, in one direction.

A row has the parameters of one law that ``loss_law`` puts on a grid, and how often it is taken.
Symmetric mechanisms have the same law in both directions.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from jaxdp import _validate
from jaxdp.accounting.composition import Steps

# More atoms than this and a lattice is refused.
_MOST_ATOMS = 2**21


class Laws(NamedTuple):
    """Rows of one kind: its name, its parameters as columns of one length, and the counts."""

    kind: str
    columns: tuple[np.ndarray, ...]
    times: np.ndarray  # how often each row is taken


def _laws(kind: str, columns: tuple[Any, ...], count: Any) -> Laws:
    rows = tuple(np.atleast_1d(np.asarray(column, np.float64)) for column in columns)
    return Laws(kind, rows, np.atleast_1d(np.asarray(count, np.float64)))


def _kept(columns: tuple[Any, ...], released: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(column, np.float64)[np.asarray(released)] for column in columns)


def _inverse(noise: Any) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 1.0 / np.asarray(noise, np.float64)


def _log_binomial(n: float, q: float, j: np.ndarray) -> np.ndarray:
    log_factorial = np.vectorize(math.lgamma, otypes=[float])
    log_choose = math.lgamma(n + 1) - log_factorial(j + 1.0) - log_factorial(n - j + 1.0)
    return log_choose + j * math.log(q) + (n - j) * math.log1p(-q)


def _overflow(n: float, q: float, capacity: float) -> tuple[float, float, float]:
    """For n others: the probability that they fill the capacity, or not, and of being in even so.

    P(X >= B), P(X < B) and P(in | X >= B) with X ~ Bin(n, q): the one more is sampled with
    probability q and kept with probability B / (X + 1). All are rounded up by more than lgamma's
    error, 4 ulps of n log n.
    """
    if n < capacity or q == 0.0:
        return 0.0, 1.0, 0.0
    if q == 1.0:
        return 1.0, 0.0, capacity / (n + 1.0)
    spread = math.sqrt(n * q * (1.0 - q)) + 1.0
    # Beyond 40 standard deviations and 200 the terms are below 1e-60 of the largest.
    last = min(n, max(capacity, n * q) + 40.0 * spread + 200.0)
    first = max(capacity, math.floor(n * q - 40.0 * spread - 200.0))
    j = np.arange(first, math.floor(last) + 1.0)
    terms = np.exp(_log_binomial(n, q, j))
    margin = 1.0 + 1e-15 * (n * math.log(n + 2.0) + 1e3)
    filled = terms.sum()
    if filled <= 0.0:  # below the smallest number there is
        return np.finfo(float).tiny, 1.0, q
    kept = (terms * capacity / (j + 1.0)).sum() / filled
    rest = max(1.0 - filled / margin, 0.0)
    return min(filled * margin, 1.0), rest, min(q * kept * margin, q)


def laws_of(steps: Steps, add: bool) -> list[Laws]:
    """The loss laws of a run's steps in one direction; mechanisms without a loss are left out.

    Args:
      steps: The run, with numbers that are known.
      add: False for the pair of (with, without) the example, True for the reverse. Symmetric
        mechanisms have the same law both ways.
    """
    side = "add" if add else "remove"
    found: list[Laws] = []
    if steps.gaussian is not None and steps.gaussian > 0.0:
        found.append(_laws("gaussian_remove", (1.0, math.sqrt(steps.gaussian)), 1.0))
    if steps.laplace is not None:
        scale, count = _kept(steps.laplace, steps.laplace[1] > 0.0)
        found.append(_laws("laplace_remove", (np.ones_like(scale), _inverse(scale)), count))
    for kind, rows in (
        (f"gaussian_{side}", steps.sampled_gaussian),
        (f"laplace_{side}", steps.sampled_laplace),
        ("without_replacement", steps.without_replacement),
    ):
        if rows is not None:
            q, scale, count = _kept(rows, (rows[2] > 0.0) & (rows[0] > 0.0) & (rows[1] < np.inf))
            found.append(_laws(kind, (q, _inverse(scale)), count))
    if steps.truncated_gaussian is not None:
        q, s, n, capacity, count = steps.truncated_gaussian
        released = (count > 0.0) & (q > 0.0) & (s < np.inf)
        q, s, n, capacity, count = _kept(steps.truncated_gaussian, released)
        rows_of_odds = [_overflow(*row) for row in zip(n, q, capacity, strict=True)]
        odds = tuple(np.array(rows_of_odds).reshape(-1, 3).T)
        found.append(_laws(f"truncated_{side}", (*odds, q, _inverse(s)), count))
    if steps.randomized_response is not None:
        for p, k, count in zip(*steps.randomized_response, strict=True):
            if count > 0.0 and k > 1.0 and p < 1.0:
                loss = math.log1p((1.0 - p) * k / p) if p > 0.0 else math.inf
                other = p / k
                losses, masses = [[loss, -loss, 0.0]], [[1.0 - p + other, other, other * (k - 2.0)]]
                found.append(
                    Laws("lattice", (np.array(losses), np.array(masses)), np.array([count]))
                )
    if steps.discrete_gaussian is not None:
        for s, sensitivity, count in zip(*steps.discrete_gaussian, strict=True):
            if count > 0.0 and sensitivity > 0.0 and s < math.inf:
                found.append(_discrete_gaussian(s, sensitivity, count))
    return [laws for laws in found if laws.times.size]


def _discrete_gaussian(s: float, sensitivity: float, count: float) -> Laws:
    """Atoms of the loss of two lattices, k + D under P against k under Q: (2 k D + D^2) / 2 s^2."""
    if s == 0.0:
        return Laws("lattice", (np.array([[math.inf]]), np.array([[1.0]])), np.array([count]))
    # Masses beyond 39 standard deviations are below 1e-330: no number.
    reach = math.ceil(39.0 * s) + 1
    if 2 * reach + 1 > _MOST_ATOMS:
        _validate.refuse(
            "standard_deviation", s, f"at most {_MOST_ATOMS // 80} for this accountant"
        )
    k = np.arange(-reach, reach + 1.0)
    masses = np.exp(-0.5 * (k / s) ** 2)
    losses = (2.0 * k * sensitivity + sensitivity**2) / (2.0 * s * s)
    return Laws("lattice", (losses[None], masses[None] / masses.sum()), np.array([count]))
