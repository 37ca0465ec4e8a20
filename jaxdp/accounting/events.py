"""What a private computation released, as frozen pytrees of plain numbers.

Two neighbouring relations are known, ``"add_or_remove_one"`` and ``"replace_one"`` example (or
whatever the unit of privacy is). Noise is measured against the sensitivity under the relation in
use; an event that depends on a sampler, or on each person's answer, has one relation only.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp import _validate

ADD_OR_REMOVE_ONE, REPLACE_ONE = "add_or_remove_one", "replace_one"
RELATIONS = (ADD_OR_REMOVE_ONE, REPLACE_ONE)


class Event:
    """One release, or several: the base of all events.

    ``event * n`` is ``Repeated(event, n)`` and ``a + b`` is ``Composed([a, b])``.
    """

    relations: ClassVar[tuple[str, ...]] = RELATIONS  # what the event by itself allows

    def __mul__(self, count: Any) -> "Repeated":
        return Repeated(self, count)

    __rmul__ = __mul__

    def __add__(self, other: "Event") -> "Composed":
        return Composed([self, other])

    def tree_flatten_with_keys(self):
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], None

    @classmethod
    def tree_unflatten(cls, _, children):
        # Past __init__ and its checks: JAX also rebuilds pytrees from placeholders.
        event = object.__new__(cls)
        for field, child in zip(dataclasses.fields(cls), children, strict=True):  # type: ignore[arg-type]
            object.__setattr__(event, field.name, child)
        return event


def _event(name: str, value: Any) -> Event:
    if not isinstance(value, Event):
        _validate.refuse(name, value, "an event such as Gaussian(1.0)")
    return value


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Gaussian(Event):
    """The Gaussian mechanism: a query of bounded L2 sensitivity with normal noise added.

    Args:
      noise_multiplier: Standard deviation of the noise over the L2 sensitivity (add or remove one
        example), dimensionless, >= 0. Zero is no privacy: epsilon is infinite.

    Raises:
      ValueError: if ``noise_multiplier`` is negative or not finite.

    Example:
      >>> from jaxdp import accounting as acc
      >>> round(acc.epsilon(acc.Gaussian(1.0), delta=1e-5), 6)
      4.377178
    """

    noise_multiplier: Any

    def __post_init__(self):
        _validate.non_negative("noise_multiplier", self.noise_multiplier)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Laplace(Event):
    """The Laplace mechanism: a query of bounded L1 sensitivity with Laplace noise added.

    Args:
      noise_multiplier: Scale of the noise over the L1 sensitivity (add or remove one example),
        dimensionless, >= 0. The release is (1 / noise_multiplier, 0)-private. A vector with
        independent noise in every coordinate counts once, its L1 norm being bounded.

    Raises:
      ValueError: if ``noise_multiplier`` is negative or not finite.

    Example:
      >>> from jaxdp import accounting as acc
      >>> round(acc.epsilon(acc.Laplace(2.0), delta=0.0), 6)
      0.5
    """

    noise_multiplier: Any

    def __post_init__(self):
        _validate.non_negative("noise_multiplier", self.noise_multiplier)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class PoissonSampled(Event):
    """An event that sees a fresh Poisson sample: every example is in it independently.

    Batches from a shuffled data set, or batches of a fixed size, are *not* Poisson samples, and
    this event does not bound them: the order or the size of the batch tells about who is in it.
    The same goes for a batch that is divided by its realised size or cut off at a capacity.

    Args:
      sampling_probability: The probability that an example is in the sample, in [0, 1].
      event: What is released about the sample: one ``Laplace``, or any composition of
        ``Gaussian`` events. Several answers about one sample, such as the microbatches of one
        gradient, belong together in here: a composition of Gaussians is again one Gaussian.

    Raises:
      ValueError: if the probability is outside [0, 1], or if ``event`` is a composition with a
        Laplace or another sampled event in it (its dominating pair is not known).

    Example:
      >>> from jaxdp import accounting as acc
      >>> step = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
      >>> round(acc.epsilon(step * 1_000, delta=1e-5), 4)
      1.8282
    """

    sampling_probability: Any
    event: Event

    relations = (ADD_OR_REMOVE_ONE,)

    def __post_init__(self):
        _validate.probability("sampling_probability", self.sampling_probability)
        _event("event", self.event)
        if not isinstance(self.event, Laplace) and not _only_gaussians(self.event):
            _validate.refuse(
                "event", self.event, "one Laplace or a composition of Gaussians (under sampling)"
            )


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class DiscreteGaussian(Event):
    """An integer query with discrete Gaussian noise, P(k) proportional to exp(-k^2 / (2 s^2)).

    Args:
      standard_deviation: The parameter s, > 0 (the standard deviation, but for small s).
      sensitivity: Largest change of the query, a whole number >= 0: one number, not a vector.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxdp import accounting as acc
      >>> acc.epsilon(acc.DiscreteGaussian(2.0), 1e-5) <= acc.epsilon(acc.Gaussian(1.9), 1e-5)
      True

    References:
      Canonne, Kamath and Steinke 2020, arXiv:2004.00010.
    """

    standard_deviation: Any
    sensitivity: Any = 1

    def __post_init__(self):
        _validate.non_negative("standard_deviation", self.standard_deviation)
        _validate.count("sensitivity", self.sensitivity)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Event):
    """A person's answer out of k, replaced with probability p by a uniformly random one.

    The random one may be the true one. Neighbours differ in what one person answers.

    Args:
      noise_parameter: The probability p of a random answer, in [0, 1].
      num_buckets: The number k of possible answers, a whole number >= 1.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxdp import accounting as acc
      >>> round(acc.epsilon(acc.RandomizedResponse(0.5, 2), delta=0.0), 6)  # log(0.75 / 0.25)
      1.098612

    References:
      Warner 1965, Randomized response; Kairouz, Bonawitz and Ramage 2016, arXiv:1602.07387.
    """

    noise_parameter: Any
    num_buckets: Any

    relations = (REPLACE_ONE,)

    def __post_init__(self):
        _validate.probability("noise_parameter", self.noise_parameter)
        _validate.count("num_buckets", self.num_buckets)
        if not _validate.is_traced(self.num_buckets) and self.num_buckets < 1:
            _validate.refuse("num_buckets", self.num_buckets, "a whole number >= 1")


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class TruncatedPoissonSampled(Event):
    """Gaussian noise on a Poisson sample of which at most a given number of examples is kept.

    Of a sample above the capacity, a uniformly random subset of that size is kept. One example
    more can then push another one out: the truncation changes the guarantee.

    Args:
      sampling_probability: The probability that an example is in the sample, in [0, 1].
      event: A composition of ``Gaussian`` events.
      num_examples: Number of examples in the data set, taken as public.
      max_batch_size: The capacity, a whole number >= 1.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxdp import accounting as acc
      >>> step = acc.TruncatedPoissonSampled(
      ...     0.005, acc.Gaussian(0.8), num_examples=50_000, max_batch_size=325)
      >>> free = acc.PoissonSampled(0.005, acc.Gaussian(0.8))
      >>> acc.epsilon(step * 1_000, 1e-5) > acc.epsilon(free * 1_000, 1e-5)
      True

    References:
      Chua et al. 2024, arXiv:2411.04205; Ganesh 2024, arXiv:2411.14639.
    """

    sampling_probability: Any
    event: Event
    num_examples: Any = dataclasses.field(kw_only=True)
    max_batch_size: Any = dataclasses.field(kw_only=True)

    relations = (ADD_OR_REMOVE_ONE,)

    def __post_init__(self):
        _validate.probability("sampling_probability", self.sampling_probability)
        _composition_of_gaussians("event", self.event)
        for name in ("num_examples", "max_batch_size"):
            _validate.count(name, getattr(self, name))
        if not _validate.is_traced(self.max_batch_size) and self.max_batch_size < 1:
            _validate.refuse("max_batch_size", self.max_batch_size, "a whole number >= 1")


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class SampledWithoutReplacement(Event):
    """Gaussian noise on a uniformly random subset of a fixed size, drawn afresh.

    Neighbours differ in one replaced example, and the noise of ``event`` is relative to the
    sensitivity under replacement: twice the clip norm for clipped sums.

    Args:
      num_examples: Number of examples in the data set, a whole number >= 1, public.
      batch_size: Size of the subset, a whole number from 0 to ``num_examples``.
      event: A composition of ``Gaussian`` events.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxdp import accounting as acc
      >>> step = acc.SampledWithoutReplacement(10_000, 100, acc.Gaussian(2.0))
      >>> acc.epsilon(step * 100, 1e-5) < acc.epsilon(acc.Gaussian(2.0) * 100, 1e-5)
      True

    References:
      Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, Theorem 9; Zhu, Dong and Wang 2022,
      arXiv:2106.08567, Theorem 11.
    """

    num_examples: Any
    batch_size: Any
    event: Event

    relations = (REPLACE_ONE,)

    def __post_init__(self):
        _validate.count("num_examples", self.num_examples)
        _validate.count("batch_size", self.batch_size)
        _composition_of_gaussians("event", self.event)
        if _validate.is_traced(self.num_examples, self.batch_size):
            return
        if self.num_examples < 1:
            _validate.refuse("num_examples", self.num_examples, "a whole number >= 1")
        if self.batch_size > self.num_examples:
            _validate.refuse("batch_size", self.batch_size, f"at most {self.num_examples}")


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Schedule(Event):
    """Poisson-sampled Gaussians whose rate and noise change from step to step, as arrays.

    The same as the composition of ``PoissonSampled(q[i], Gaussian(s[i])) * counts[i]``, in one
    vectorised call.

    Args:
      sampling_probabilities: Probabilities in [0, 1], shape [n] or a scalar for all of them.
      noise_multipliers: Noise multipliers >= 0, shape [n] or a scalar.
      counts: How often each step is taken, whole numbers >= 0, shape [n] or a scalar.

    Raises:
      ValueError: if a number is out of range, or the shapes do not fit together.

    Example:
      >>> import numpy as np
      >>> from jaxdp import accounting as acc
      >>> run = acc.Schedule(0.01, 0.999 ** np.arange(300))
      >>> round(acc.epsilon(run, delta=1e-5, accountant="rdp"), 4)
      2.5866
    """

    sampling_probabilities: Any
    noise_multipliers: Any
    counts: Any = 1

    relations = (ADD_OR_REMOVE_ONE,)

    def __post_init__(self):
        checks = {
            "sampling_probabilities": _validate.probability,
            "noise_multipliers": _validate.non_negative,
            "counts": _validate.count,
        }
        for name, check in checks.items():
            column = getattr(self, name)
            if np.ndim(column) > 1:
                _validate.refuse(name, f"shape {np.shape(column)}", "a vector or a scalar")
            if not _validate.is_traced(column):
                for number in np.ravel(column).tolist():
                    check(name, number)
        try:
            (size,) = np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in checks), (1,))
        except ValueError:
            shapes = tuple(np.shape(getattr(self, name)) for name in checks)
            _validate.refuse("noise_multipliers", f"shapes {shapes}", "of one length with the rest")
        if size == 0:
            _validate.refuse("noise_multipliers", "no steps", "at least one number")


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Repeated(Event):
    """The same event several times, each with fresh noise and, if sampled, a fresh sample.

    Args:
      event: What is repeated.
      count: How many times, a whole number >= 0; it may be traced.

    Raises:
      ValueError: if ``count`` is negative or not whole.

    Example:
      >>> from jaxdp import accounting as acc
      >>> acc.epsilon(acc.Repeated(acc.Gaussian(1.0), 0), delta=1e-5)
      0.0
    """

    event: Event
    count: Any

    def __post_init__(self):
        _event("event", self.event)
        _validate.count("count", self.count)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Composed(Event):
    """Several events, one after the other; later ones may depend on what earlier ones released.

    Args:
      events: The events, in any order. None at all is a run that released nothing.

    Raises:
      ValueError: if something in ``events`` is not an event.

    Example:
      >>> from jaxdp import accounting as acc
      >>> acc.epsilon(acc.Composed([]), delta=1e-5)
      0.0
    """

    events: Iterable[Event]

    def __post_init__(self):
        if isinstance(self.events, Event) or not isinstance(self.events, Iterable):
            _validate.refuse("events", self.events, "a sequence of events")
        events = tuple(self.events)
        for index, event in enumerate(events):
            _event(f"events[{index}]", event)
        object.__setattr__(self, "events", events)


def _only_gaussians(event: Event) -> bool:
    if isinstance(event, Repeated):
        return _only_gaussians(event.event)
    if isinstance(event, Composed):
        return all(_only_gaussians(part) for part in event.events)
    return isinstance(event, Gaussian)


def _composition_of_gaussians(name: str, value: Any) -> None:
    if not _only_gaussians(_event(name, value)):
        _validate.refuse(name, value, "a composition of Gaussian events")


def relations_of(event: Event) -> tuple[str, ...]:
    """The neighbouring relations that a run can be accounted under: those that all parts allow."""
    parts: tuple[Event, ...] = ()
    if isinstance(event, Repeated):
        parts = (event.event,)
    elif isinstance(event, Composed):
        parts = tuple(event.events)
    allowed = [relations_of(part) for part in parts] or [event.relations]
    return tuple(word for word in RELATIONS if all(word in words for words in allowed))
