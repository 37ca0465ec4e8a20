"""Events of the dp_accounting library, converted from and to, so that anyone can check a number.

Numbers pass unchanged, since both libraries measure them alike: a noise multiplier is standard
deviation (or Laplace scale) over sensitivity; the answers of randomised response are redrawn with
probability p, the true one included. What dp_accounting does with them is not always alike:

- Under its replace-one relation, its PLD accountant takes a Gaussian's noise relative to the norm
  of one record, and doubles the sensitivity; its RDP accountant takes it relative to the
  sensitivity under replacement, as this package does. So for one Gaussian under replace-one,
  its PLD answer at 2 sigma is its RDP answer, and ours, at sigma (up to their tightness).
- Sampling without replacement is known to its RDP accountant only, which takes the noise relative
  to the sensitivity under replacement, like ``SampledWithoutReplacement``: for clipped sums,
  twice the clip norm. A ``noise_multiplier`` that was meant relative to the clip norm must be
  halved before or after the conversion, or epsilon comes out as for twice the noise.
- Version 0.6.0 ignores the count of a repeated randomised response.
"""

from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.accounting.composition import steps_of
from jaxdp.accounting.events import (
    Composed,
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


def _library() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise ImportError(
            "Converting events needs the dp_accounting library, which is no dependency of this "
            "package: pip install 'dp-accounting>=0.6'."
        ) from error
    return dp_event


def _whole(value: Any) -> int:
    return int(np.asarray(value))


def _number(value: Any) -> float:
    return float(np.asarray(value))


def _truncated(event: TruncatedPoissonSampled, library: Any) -> Any:
    """Its event holds one Gaussian; several about one sample amount to one."""
    if isinstance(event.event, Gaussian):
        noise = event.event.noise_multiplier
    else:
        mu_squared = steps_of(event.event).gaussian
        if not mu_squared:  # no Gaussian at all
            return library.NoOpDpEvent()
        noise = 1.0 / np.sqrt(mu_squared)
    return library.TruncatedSubsampledGaussianDpEvent(
        dataset_size=_whole(event.num_examples),
        sampling_probability=_number(event.sampling_probability),
        truncated_batch_size=_whole(event.max_batch_size),
        noise_multiplier=_number(noise),
    )


def _schedule(event: Schedule, library: Any) -> Any:
    numbers = (event.sampling_probabilities, event.noise_multipliers, event.counts)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(n, np.float64)) for n in numbers))
    steps = []
    for q, noise, count in zip(*(column.tolist() for column in columns), strict=True):
        step = library.PoissonSampledDpEvent(q, library.GaussianDpEvent(noise))
        steps.append(library.SelfComposedDpEvent(step, int(count)))
    return library.ComposedDpEvent(steps)


def _to(event: Any, library: Any) -> Any:
    if isinstance(event, Repeated):
        return library.SelfComposedDpEvent(_to(event.event, library), _whole(event.count))
    if isinstance(event, Composed):
        return library.ComposedDpEvent([_to(part, library) for part in event.events])
    if isinstance(event, Gaussian):
        return library.GaussianDpEvent(_number(event.noise_multiplier))
    if isinstance(event, Laplace):
        return library.LaplaceDpEvent(_number(event.noise_multiplier))
    if isinstance(event, RandomizedResponse):
        return library.RandomizedResponseDpEvent(
            _number(event.noise_parameter), _whole(event.num_buckets)
        )
    if isinstance(event, PoissonSampled):
        return library.PoissonSampledDpEvent(
            _number(event.sampling_probability), _to(event.event, library)
        )
    if isinstance(event, TruncatedPoissonSampled):
        return _truncated(event, library)
    if isinstance(event, SampledWithoutReplacement):
        return library.SampledWithoutReplacementDpEvent(
            _whole(event.num_examples), _whole(event.batch_size), _to(event.event, library)
        )
    if isinstance(event, Schedule):
        return _schedule(event, library)
    if isinstance(event, Event):
        _validate.refuse(
            "event", event, f"known to dp_accounting, which has no {type(event).__name__}"
        )
    _validate.refuse("event", event, "an event such as Gaussian(1.0)")


def to_dp_accounting(event: Event) -> Any:
    """The same run as an event of the dp_accounting library.

    Args:
      event: A run; its numbers known, not traced. A ``Schedule`` becomes the composition of its
        steps, and the Gaussians in a ``TruncatedPoissonSampled`` the one they amount to.

    Returns:
      A ``dp_accounting.DpEvent``.

    Raises:
      ValueError: if something in the run has no counterpart there (``DiscreteGaussian``), or a
        number is traced.
      ImportError: if dp_accounting, 0.6 or newer, is not installed.

    Guarantee:
      Describes the same mechanism. How dp_accounting accounts for it is its own affair; see this
      module's first lines for where its accountants measure noise against another sensitivity.

    Example:
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting import interchange
      >>> interchange.to_dp_accounting(acc.PoissonSampled(0.01, acc.Gaussian(1.1)) * 10)
      SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01, \
event=GaussianDpEvent(noise_multiplier=1.1)), count=10)

    References:
      dp_accounting 0.6.0, dp_event.py.
    """
    if _validate.is_traced(event):
        _validate.refuse("event", event, "an event of numbers, not of traced values")
    return _to(event, _library())


def _from(event: Any, library: Any) -> Event:
    if isinstance(event, library.SelfComposedDpEvent):
        return Repeated(_from(event.event, library), event.count)
    if isinstance(event, library.ComposedDpEvent):
        return Composed([_from(part, library) for part in event.events])
    if isinstance(event, library.NoOpDpEvent):
        return Composed([])
    if isinstance(event, library.NonPrivateDpEvent):
        return Gaussian(0.0)
    if isinstance(event, library.GaussianDpEvent):
        return Gaussian(event.noise_multiplier)
    if isinstance(event, library.LaplaceDpEvent):
        return Laplace(event.noise_multiplier)
    if isinstance(event, library.RandomizedResponseDpEvent):
        return RandomizedResponse(event.noise_parameter, event.num_buckets)
    if isinstance(event, library.PoissonSampledDpEvent):
        return PoissonSampled(event.sampling_probability, _from(event.event, library))
    if isinstance(event, library.TruncatedSubsampledGaussianDpEvent):
        return TruncatedPoissonSampled(
            event.sampling_probability,
            Gaussian(event.noise_multiplier),
            num_examples=event.dataset_size,
            max_batch_size=event.truncated_batch_size,
        )
    if isinstance(event, library.SampledWithoutReplacementDpEvent):
        return SampledWithoutReplacement(
            event.source_dataset_size, event.sample_size, _from(event.event, library)
        )
    if isinstance(event, library.DpEvent):
        _validate.refuse(
            "event",
            event,
            f"of a kind that jaxdp accounts for, which {type(event).__name__} is not",
        )
    _validate.refuse("event", event, "an event of dp_accounting, such as GaussianDpEvent(1.0)")


def from_dp_accounting(event: Any) -> Event:
    """A run described by events of the dp_accounting library, as an event of this package.

    Args:
      event: A ``dp_accounting.DpEvent``. ``NoOpDpEvent`` becomes a composition of nothing, and
        ``NonPrivateDpEvent`` a Gaussian without noise, of infinite epsilon.

    Returns:
      The same run.

    Raises:
      ValueError: if some event has no counterpart here, or a number is out of range.
      ImportError: if dp_accounting, 0.6 or newer, is not installed.

    Guarantee:
      Describes the same mechanism, with noise relative to the sensitivity under the relation in
      use. Halve the noise multiplier inside a ``SampledWithoutReplacementDpEvent`` that was
      meant relative to the clip norm: replacing a record moves a clipped sum by twice that.

    Example:
      >>> import dp_accounting
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting import interchange
      >>> event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(10.0), 100)
      >>> round(acc.epsilon(interchange.from_dp_accounting(event), delta=1e-5), 6)
      4.377178

    References:
      dp_accounting 0.6.0, dp_event.py.
    """
    return _from(event, _library())
