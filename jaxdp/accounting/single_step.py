r"""The (epsilon, delta) of every step by itself, which the composition theorems start from.

A pure step (Laplace, sampled Laplace, randomised response) has its largest loss and delta 0. A
Gaussian step has the smallest epsilon at a given delta, by its exact profile. Sampled with
probability q, it is :math:`(\log(1 + q (e^{\epsilon} - 1)), q \delta)`-private if the Gaussian is
:math:`(\epsilon, \delta)`-private (Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, Theorem 8 for
Poisson samples, 9 for subsets of a fixed size). With :math:`M = (1-q) Q + q P` the mixture and
:math:`e^{\epsilon'} = 1 + q (e^{\epsilon} - 1)`, the direction M against Q is exact:
:math:`M - e^{\epsilon'} Q = q (P - e^{\epsilon} Q)`. The other one is smaller:

.. math:: Q - e^{\epsilon'} M
    = q [(1 - (1-q)(e^{\epsilon} - 1)) Q - (1 + q (e^{\epsilon} - 1)) P],

which is positive only where Q > P, and there it is q (Q - e^epsilon P) less
q (1-q) (e^epsilon - 1) (Q - P) >= 0; and the pair of Gaussians is symmetric.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _gaussian_profile, _precision, _validate
from jaxdp.accounting import composition, host
from jaxdp.accounting.composition import Steps
from jaxdp.accounting.events import Composed, Event, Gaussian, Repeated
from jaxdp.accounting.sampled_events import PoissonSampled, Schedule

ALLOWED = "Gaussian steps and pure ones, sampled or not"
_KINDS = {
    "gaussian",
    "laplace",
    "sampled_gaussian",
    "sampled_laplace",
    "randomized_response",
    "without_replacement",
}


class Releases(NamedTuple):
    """A run's distinct steps, each with its guarantee's parameters; counts are above 0."""

    pure_epsilons: np.ndarray  # [n]
    pure_counts: np.ndarray  # [n]
    rates: np.ndarray  # [m], 1 where a Gaussian is not sampled
    noise_multipliers: np.ndarray  # [m]
    gaussian_counts: np.ndarray  # [m]


def _gaussians(event: Event, count: float) -> tuple[list[tuple[Any, ...]], list[Event]]:
    """Rows (1, noise multiplier, count) of unsampled Gaussians, and the other events."""
    if isinstance(event, Repeated):
        return _gaussians(event.event, count * event.count)
    if isinstance(event, Composed):
        parts = [_gaussians(part, count) for part in event.events]
        return [row for rows, _ in parts for row in rows], [e for _, es in parts for e in es]
    if isinstance(event, Gaussian):
        return [(1.0, event.noise_multiplier, count)], []
    if isinstance(event, Schedule):
        sizes = (event.sampling_probabilities, event.noise_multipliers, event.counts)
        q, s, n = np.broadcast_arrays(*host.columns(*sizes))
        whole, part = q == 1.0, q < 1.0
        rest = [Repeated(Schedule(q[part], s[part], n[part]), count)] if part.any() else []
        return [(q[whole], s[whole], n[whole] * count)], list(rest)
    if isinstance(event, PoissonSampled) and event.sampling_probability == 1.0:
        mu_squared = composition.steps_of(event).gaussian
        if mu_squared is not None:
            return [(1.0, 1.0 / math.sqrt(mu_squared) if mu_squared else math.inf, count)], []
    return [], [Repeated(event, count)]


def one_by_one(event: Event) -> Steps:
    """The steps of a run with its Gaussians apart, as sampled ones at rate 1.

    ``composition.steps_of`` merges Gaussians into one, which is exact; theorems about k
    compositions are about the k steps.
    """
    if _validate.is_traced(event):
        return composition.steps_of(event)  # the accountants refuse it
    rows, rest = _gaussians(event, 1.0)
    steps = composition.steps_of(Composed(rest))
    if not rows:
        return steps
    columns = [host.columns(*row) for row in rows]
    apart = tuple(np.concatenate(column) for column in zip(*columns, strict=True))
    if steps.sampled_gaussian is not None:
        apart = tuple(
            np.concatenate(pair) for pair in zip(apart, steps.sampled_gaussian, strict=True)
        )
    return steps._replace(sampled_gaussian=apart)


def applies(steps: Steps) -> bool:
    """Whether every step's own (epsilon, delta) is known here."""
    return host.kinds_of(steps) <= _KINDS


def _sampled(epsilon: np.ndarray, q: np.ndarray) -> np.ndarray:
    """log(1 + q (e^epsilon - 1)), rounded up."""
    near = np.minimum(epsilon, 600.0)
    value = np.log1p(q * np.expm1(near)) * (1.0 + 8.0 * host.ULP)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q, log_rest = np.log(q), np.log1p(-q)
    far = np.logaddexp(log_rest, log_q + epsilon)
    # Two large logarithms may nearly cancel.
    far = far + 8.0 * host.ULP * (np.maximum(epsilon, 600.0) - log_q)
    return np.where(q == 1.0, epsilon, np.where(epsilon < 600.0, value, np.minimum(far, epsilon)))


def _randomized_response(p: np.ndarray, buckets: np.ndarray) -> np.ndarray:
    """log of (1 - p + p/k) over p/k; nothing is told with one answer to give."""
    some = np.where(p > 0.0, p, 1.0)
    with np.errstate(over="ignore"):
        epsilon = np.log1p(buckets * (1.0 - some) / some) * (1.0 + 8.0 * host.ULP)
    return np.where(buckets < 2.0, 0.0, np.where(p > 0.0, epsilon, np.inf))


def _inverse(scale: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.where(scale > 0.0, (1.0 + 2.0 * host.ULP) / np.maximum(scale, 1e-320), np.inf)


def releases_of(steps: Steps) -> Releases:
    """The steps that take place, by whether they are pure."""
    pure: list[tuple[np.ndarray, ...]] = []
    gaussians: list[tuple[np.ndarray, ...]] = []
    if steps.laplace is not None:
        b, count = host.columns(*steps.laplace)
        pure.append((_inverse(b), count))
    if steps.sampled_laplace is not None:
        q, b, count = host.columns(*steps.sampled_laplace)
        pure.append((np.where(q > 0.0, _sampled(_inverse(b), q), 0.0), count))
    if steps.randomized_response is not None:
        p, buckets, count = host.columns(*steps.randomized_response)
        pure.append((_randomized_response(p, buckets), count))
    if steps.gaussian is not None and float(steps.gaussian) > 0.0:
        mu_squared = float(steps.gaussian)
        # Rounded down, so that the guarantee is rounded up.
        noise = 0.0 if mu_squared == math.inf else (1.0 - 2.0 * host.ULP) / math.sqrt(mu_squared)
        gaussians.append(host.columns(1.0, noise, 1.0))
    for rows in (steps.sampled_gaussian, steps.without_replacement):
        if rows is not None:
            gaussians.append(host.columns(*rows))
    nothing = (np.zeros(0),) * 3
    epsilons, counts = (np.concatenate(c) for c in zip(nothing[:2], *pure, strict=True))
    q, s, n = (np.concatenate(c) for c in zip(nothing, *gaussians, strict=True))
    taken, drawn = (counts > 0.0) & (epsilons > 0.0), (n > 0.0) & (q > 0.0)
    return Releases(epsilons[taken], counts[taken], q[drawn], s[drawn], n[drawn])


def _gaussian_epsilons(log_deltas: jax.Array, noise_multipliers: jax.Array) -> jax.Array:
    mus = jnp.where(noise_multipliers > 0.0, 1.0 / noise_multipliers, jnp.inf)
    mus = mus * (1.0 + 2.0 * host.ULP)
    return jax.vmap(_gaussian_profile.epsilon)(log_deltas, mus)


def gaussian_epsilons(releases: Releases, log_delta: float) -> np.ndarray:
    """The smallest epsilon of every Gaussian step at one delta, rounded up, shape [m]."""
    q = releases.rates
    if q.size == 0:
        return np.zeros(0)
    goals = log_delta - np.log(q)
    # The goal is rounded down. At a goal of 1 or more epsilon 0 is enough.
    goals = goals - 4.0 * host.ULP * (1.0 + abs(log_delta) + np.abs(np.log(q)))
    inner = np.minimum(goals, -1e-300)
    epsilons = _precision.evaluate(_gaussian_epsilons, inner, releases.noise_multipliers)
    return np.where(goals >= 0.0, 0.0, _sampled(epsilons, q))
