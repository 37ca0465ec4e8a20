"""What a private computation released, as frozen pytrees of plain numbers.

All events speak of neighbours that differ by adding or removing one example (or whatever the
unit of privacy is), with noise measured against the sensitivity under that relation.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax

from jaxdp import _validate


class Event:
    """One release, or several: the base of all events.

    ``event * n`` is ``Repeated(event, n)`` and ``a + b`` is ``Composed([a, b])``.
    """

    def __mul__(self, count: Any) -> "Repeated":
        return Repeated(self, count)

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
      2.1013
    """

    sampling_probability: Any
    event: Event

    def __post_init__(self):
        _validate.probability("sampling_probability", self.sampling_probability)
        _event("event", self.event)
        if not isinstance(self.event, Laplace) and not _only_gaussians(self.event):
            _validate.refuse(
                "event", self.event, "one Laplace or a composition of Gaussians (under sampling)"
            )


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
