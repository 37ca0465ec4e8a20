"""Events about a random sample of the examples: Poisson, truncated, or of a fixed size."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxdp import _validate
from jaxdp.accounting import events
from jaxdp.accounting.events import ADD_OR_REMOVE_ONE, REPLACE_ONE, Event, Laplace


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
        events.check_event("event", self.event)
        if not isinstance(self.event, Laplace) and not events.only_gaussians(self.event):
            _validate.refuse(
                "event", self.event, "one Laplace or a composition of Gaussians (under sampling)"
            )


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
        _check_gaussians(self.event)
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
        _check_gaussians(self.event)
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


def _check_gaussians(event: Event) -> None:
    if not events.only_gaussians(events.check_event("event", event)):
        _validate.refuse("event", event, "a composition of Gaussian events")
