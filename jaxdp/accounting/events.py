"""What a private computation released, as frozen pytrees of plain numbers.

Two neighbouring relations are known, ``"add_or_remove_one"`` and ``"replace_one"`` example (or
whatever the unit of privacy is). Noise is measured against the sensitivity under the relation in
use; an event that depends on a sampler, or on each person's answer, has one relation only.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

import jax

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


def check_event(name: str, value: Any) -> Event:
    """The value, refused by the argument's name if it is no event."""
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
        check_event("event", self.event)
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
            check_event(f"events[{index}]", event)
        object.__setattr__(self, "events", events)


def only_gaussians(event: Event) -> bool:
    """Whether an event amounts to one Gaussian without sampling."""
    if isinstance(event, Repeated):
        return only_gaussians(event.event)
    if isinstance(event, Composed):
        return all(only_gaussians(part) for part in event.events)
    return isinstance(event, Gaussian)


def relations_of(event: Event) -> tuple[str, ...]:
    """The neighbouring relations that a run can be accounted under: those that all parts allow."""
    parts: tuple[Event, ...] = ()
    if isinstance(event, Repeated):
        parts = (event.event,)
    elif isinstance(event, Composed):
        parts = tuple(event.events)
    allowed = [relations_of(part) for part in parts] or [event.relations]
    return tuple(word for word in RELATIONS if all(word in words for words in allowed))
