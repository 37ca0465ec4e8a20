"""A run of events as the flat list of its distinct steps, whose log-moments add up."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate
from jaxdp.accounting import log_moment, log_moment_kinds
from jaxdp.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    Repeated,
)
from jaxdp.accounting.sampled_events import (
    PoissonSampled,
    SampledWithoutReplacement,
    Schedule,
    TruncatedPoissonSampled,
)


class Steps(NamedTuple):
    """The steps of a run by kind; None where there are none of a kind.

    Gaussians without sampling compose to one Gaussian, so they are one number: the sum of
    count / noise_multiplier^2. The rest are columns with one entry for each event.
    """

    gaussian: Any  # scalar mu^2
    laplace: Any  # (scale [n], count [n])
    sampled_gaussian: Any  # (probability [n], noise multiplier [n], count [n])
    sampled_laplace: Any  # (probability [n], scale [n], count [n])
    discrete_gaussian: Any  # (standard deviation [n], sensitivity [n], count [n])
    randomized_response: Any  # (noise parameter [n], number of buckets [n], count [n])
    truncated_gaussian: Any  # (probability, multiplier, num_examples, capacity, count), all [n]
    without_replacement: Any  # (fraction of the examples [n], noise multiplier [n], count [n])


def _times(count: Any, more: Any) -> Any:
    """The product of two counts, which does not wrap around whatever integers they are."""
    if _validate.is_traced(count, more):
        dtype = jnp.result_type(float)
        return jnp.asarray(count, dtype) * jnp.asarray(more, dtype)
    return np.asarray(count).item() * np.asarray(more).item()


def _ratio(part: Any, whole: Any) -> Any:
    """A quotient to all digits: NumPy's small integers give a float16."""
    return part / whole if _validate.is_traced(part, whole) else float(part) / float(whole)


def _precision_of(noise_multiplier: Any, count: Any) -> Any:
    """count / noise_multiplier^2, infinite without noise, 0 without steps."""
    if _validate.is_traced(noise_multiplier, count):
        traced_noise = jnp.asarray(noise_multiplier, jnp.result_type(float))
        traced_count = jnp.asarray(count, jnp.result_type(float))
        noisy = jnp.where(traced_noise > 0.0, traced_noise, 1.0)
        spent = jnp.where(traced_noise > 0.0, traced_count / noisy / noisy, jnp.inf)
        # Traced numbers cannot be refused: what is negative or NaN bounds nothing.
        spent = jnp.where(traced_count > 0.0, spent, jnp.inf)
        return jnp.where(traced_count == 0.0, 0.0, spent)
    noise, count = float(noise_multiplier), float(count)
    if count == 0.0:
        return 0.0
    return count / noise / noise if noise > 1e-150 else math.inf


def _merged(event: Event, count: Any) -> Any:
    """The sum of count / noise_multiplier^2 over a composition of Gaussians."""
    if isinstance(event, Repeated):
        return _merged(event.event, _times(count, event.count))
    if isinstance(event, Composed):
        return sum((_merged(part, count) for part in event.events), 0.0)
    assert isinstance(event, Gaussian)
    return _precision_of(event.noise_multiplier, count)


def _multiplier(event: Event) -> Any:
    """The noise multiplier of the one Gaussian that a composition of Gaussians amounts to."""
    if isinstance(event, Gaussian):
        return event.noise_multiplier
    mu_squared = _merged(event, 1)
    if _validate.is_traced(mu_squared):
        some = jnp.where(mu_squared > 0.0, mu_squared, 1.0)
        return jnp.where(mu_squared > 0.0, 1.0 / jnp.sqrt(some), jnp.inf)
    return 1.0 / math.sqrt(mu_squared) if mu_squared > 0.0 else math.inf


def _collect_schedule(event: Schedule, count: Any, found: dict[str, list[Any]]) -> None:
    columns = (event.sampling_probabilities, event.noise_multipliers, event.counts)
    if _validate.is_traced(columns, count):
        dtype = jnp.result_type(float)
        q, s, n = jnp.broadcast_arrays(*(jnp.atleast_1d(jnp.asarray(c, dtype)) for c in columns))
        found["sampled_gaussian"].append((q, s, n * count))
        return
    known = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, np.float64)) for c in columns))
    rates, noises, times = known[0], known[1], known[2] * float(count)
    for noise, number in zip(noises[rates == 1.0], times[rates == 1.0], strict=True):
        found["gaussian"].append(_precision_of(noise, number))
    sampled = (rates > 0.0) & (rates < 1.0)
    if sampled.any():
        found["sampled_gaussian"].append((rates[sampled], noises[sampled], times[sampled]))


def _collect(event: Event, count: Any, found: dict[str, list[Any]]) -> None:
    if isinstance(event, Repeated):
        _collect(event.event, _times(count, event.count), found)
    elif isinstance(event, Composed):
        for part in event.events:
            _collect(part, count, found)
    elif isinstance(event, Gaussian):
        found["gaussian"].append(_precision_of(event.noise_multiplier, count))
    elif isinstance(event, Laplace):
        found["laplace"].append((event.noise_multiplier, count))
    elif isinstance(event, Schedule):
        _collect_schedule(event, count, found)
    elif isinstance(event, DiscreteGaussian):
        found["discrete_gaussian"].append((event.standard_deviation, event.sensitivity, count))
    elif isinstance(event, RandomizedResponse):
        found["randomized_response"].append((event.noise_parameter, event.num_buckets, count))
    elif isinstance(event, TruncatedPoissonSampled):
        found["truncated_gaussian"].append(
            (
                event.sampling_probability,
                _multiplier(event.event),
                event.num_examples,
                event.max_batch_size,
                count,
            )
        )
    elif isinstance(event, SampledWithoutReplacement):
        fraction = _ratio(event.batch_size, event.num_examples)
        found["without_replacement"].append((fraction, _multiplier(event.event), count))
    elif isinstance(event, PoissonSampled):
        q = event.sampling_probability
        known = None if _validate.is_traced(q) else float(q)
        if known == 1.0:  # no sampling: the exact Gaussian accountant applies
            _collect(event.event, count, found)
        elif known != 0.0 and isinstance(event.event, Laplace):
            found["sampled_laplace"].append((q, event.event.noise_multiplier, count))
        elif known != 0.0:
            found["sampled_gaussian"].append((q, _multiplier(event.event), count))
    else:
        _validate.refuse("event", event, "an event such as Gaussian(1.0)")


def _columns(rows: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    if not rows:
        return None
    if _validate.is_traced(rows):
        dtype = jnp.result_type(float)
        return tuple(
            jnp.concatenate([jnp.atleast_1d(jnp.asarray(part, dtype)) for part in column])
            for column in zip(*rows, strict=True)
        )
    return tuple(
        np.concatenate([np.atleast_1d(np.asarray(part, np.float64)) for part in column])
        for column in zip(*rows, strict=True)
    )


def steps_of(event: Event) -> Steps:
    """Flattens an event tree; which kinds occur, and how many of each, is static."""
    found: dict[str, list[Any]] = {name: [] for name in Steps._fields}
    _collect(event, 1, found)
    return Steps(
        sum(found["gaussian"][1:], found["gaussian"][0]) if found["gaussian"] else None,
        *(_columns(found[name]) for name in Steps._fields[1:]),
    )


def _counted(count: jax.Array, value: jax.Array) -> jax.Array:
    """count * value: zero steps cost nothing, and a negative or NaN count bounds nothing."""
    return jnp.where(count > 0.0, count * value, jnp.where(count == 0.0, 0.0, jnp.inf))


def _sum_over(rows: tuple[jax.Array, ...], term: Any, start: jax.Array) -> jax.Array:
    """The sum of term(row), compensated: float32 keeps its digits over thousands of rows."""
    if rows[0].shape[0] == 1:
        return start + term(*(column[0] for column in rows))

    def add(carry, row):
        total, lost = carry
        value = term(*row) - lost
        grown = total + value
        # Once the total is infinite the correction would be a NaN.
        return (grown, jnp.where(jnp.isfinite(grown), (grown - total) - value, 0.0)), None

    return jax.lax.scan(add, (start, jnp.zeros_like(start)), rows)[0][0]


def log_moment_of(
    steps: Steps, t: jax.Array, *, integers: tuple[int, ...] | None = None, rough: bool = False
) -> jax.Array:
    """K of the whole run at the orders 1 + t: the sum of its steps'.

    Args:
      steps: The run; numbers in t's dtype.
      t: Orders minus one, shape [n].
      integers: The same orders, where they are static whole numbers: sampled Gaussians then use
        the finite sum.
      rough: Whether a few digits will do, as for a search.

    Returns:
      K, shape [n]; infinite where some step has no noise, never NaN.
    """

    def sampled_gaussian(q, s, count):
        if integers is None:
            return _counted(count, log_moment.poisson_gaussian(t, q, s, rough=rough))
        return _counted(count, log_moment.poisson_gaussian_at_integers(integers, q, s))

    total = jnp.zeros_like(t)
    if steps.gaussian is not None:
        total = total + log_moment.gaussian(t, steps.gaussian)
    if steps.laplace is not None:
        total = _sum_over(
            steps.laplace, lambda b, count: _counted(count, log_moment.laplace(t, b)), total
        )
    if steps.sampled_gaussian is not None:
        total = _sum_over(steps.sampled_gaussian, sampled_gaussian, total)
    if steps.sampled_laplace is not None:
        total = _sum_over(
            steps.sampled_laplace,
            lambda q, b, count: _counted(count, log_moment.poisson_laplace(t, q, b)),
            total,
        )
    for rows, moment in (
        (steps.discrete_gaussian, log_moment_kinds.discrete_gaussian),
        (steps.randomized_response, log_moment_kinds.randomized_response),
        (steps.truncated_gaussian, log_moment_kinds.truncated_poisson_gaussian),
        (steps.without_replacement, log_moment_kinds.gaussian_without_replacement),
    ):
        if rows is not None:
            total = _sum_over(
                rows, lambda *row, moment=moment: _counted(row[-1], moment(t, *row[:-1])), total
            )
    return total


def pure_epsilon_of(steps: Steps, dtype: Any) -> jax.Array:
    """The epsilon at delta = 0, infinite where a Gaussian takes part.

    A Laplace release has losses in [-1/b, 1/b]; sampling turns the larger one, r = 1/b, into
    log(1 + q (e^r - 1)), which is at least the other, and losses add up.
    """
    total = jnp.zeros((), dtype)
    if steps.gaussian is not None:
        total = total + jnp.where(steps.gaussian == 0.0, 0.0, jnp.inf)
    if steps.laplace is not None:
        b, count = steps.laplace
        total = total + jnp.sum(_counted(count, jnp.where(b > 0.0, 1.0 / b, jnp.inf)))
    if steps.sampled_gaussian is not None:
        q, s, count = steps.sampled_gaussian
        # Written so that a NaN counts as released.
        released = ~((q == 0.0) | (s == jnp.inf) | (count == 0.0))
        total = total + jnp.where(jnp.any(released), jnp.inf, 0.0)
    if steps.sampled_laplace is not None:
        q, b, count = steps.sampled_laplace
        loss = log_moment.sampled_loss(jnp.where(b > 0.0, 1.0 / b, jnp.inf), q)
        total = total + jnp.sum(_counted(count, loss))
    if steps.discrete_gaussian is not None:
        s, sensitivity, count = steps.discrete_gaussian
        total = total + _unbounded((sensitivity == 0.0) | (s == jnp.inf) | (count == 0.0))
    if steps.randomized_response is not None:
        p, k, count = steps.randomized_response
        loss = log_moment_kinds.randomized_response_loss(p, k)
        total = total + jnp.sum(_counted(count, loss))
    if steps.truncated_gaussian is not None:
        q, s, _, _, count = steps.truncated_gaussian
        total = total + _unbounded((q == 0.0) | (s == jnp.inf) | (count == 0.0))
    if steps.without_replacement is not None:
        q, s, count = steps.without_replacement
        total = total + _unbounded((q == 0.0) | (s == jnp.inf) | (count == 0.0))
    return total


def _unbounded(silent: jax.Array) -> jax.Array:
    """Infinite unless every row is silent: written so that a NaN counts as released."""
    return jnp.where(jnp.all(silent), 0.0, jnp.inf)
