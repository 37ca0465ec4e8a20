"""Cohort samplers: who takes part in a round, and what that makes of the noise."""

import abc
import dataclasses
import math
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _validate, accounting, sampling
from jaxdp.federated import _streams
from jaxdp.federated.data import Cohort, Source


class Draw(NamedTuple):
    """Who takes part in one round."""

    client_ids: jax.Array  # int32 [max_cohort_size], ascending; 0 where there is none
    is_padding: jax.Array  # bool [max_cohort_size], slots without a client
    overflowed: jax.Array  # bool scalar, whether clients were left out for want of a slot


def _expected(expected_cohort_size: Any, num_clients: int) -> float:
    if _validate.is_traced(expected_cohort_size):
        _validate.refuse("expected_cohort_size", expected_cohort_size, "a number, not traced")
    expected = float(_validate.positive("expected_cohort_size", expected_cohort_size))
    if expected > num_clients:
        allowed = f"at most num_clients = {num_clients}"
        _validate.refuse("expected_cohort_size", expected_cohort_size, allowed)
    return expected


def keep(record: Any, **fields: Any) -> None:
    """Sets fields of a frozen record while it is made.

    Plain numbers in place of NumPy's: their arithmetic neither wraps around nor loses digits.
    """
    for name, value in fields.items():
        object.__setattr__(record, name, value)


class CohortSampler(abc.ABC):
    """The base of the samplers: static, compared by its numbers.

    A sampler knows the event that one round is, so that the accountant cannot be told of
    another one; and a cohort knows the sampler that it was drawn by.
    """

    num_clients: int  # in the federation
    expected_cohort_size: Any  # float, public: what a round's sum is divided by
    max_cohort_size: Any  # int, static slots

    @abc.abstractmethod
    def draw(self, key: jax.Array, round_number: jax.Array) -> Draw:
        """Who takes part in a round: a function of the run's key and the round alone."""

    @abc.abstractmethod
    def event(self, noise_multiplier: Any) -> accounting.Event:
        """What a round costs a client that may take part in it.

        Args:
          noise_multiplier: Standard deviation of the noise over the L2 sensitivity of the
            ``ClippedSum`` (which is for adding or removing one client).
        """

    @property
    def period(self) -> int:
        """Rounds in which a client can take part once."""
        return 1

    def participations(self, num_rounds: Any) -> Any:
        """How many times ``event`` is to be counted after so many rounds (int, or traced)."""
        # A small integer type would wrap around when negated.
        if not _validate.is_traced(num_rounds):
            return -(-math.ceil(num_rounds) // self.period)
        whole = jnp.issubdtype(num_rounds.dtype, jnp.integer)
        rounds = num_rounds.astype(jnp.int32) if whole else num_rounds
        return -(-rounds // self.period)

    def overflow_delta(self, num_rounds: int) -> float:
        """The part of delta that slots which run out cost over so many rounds."""
        del num_rounds
        return 0.0

    def run_event(self, noise_multiplier: Any, num_rounds: int) -> accounting.Event:
        """What a whole run costs."""
        return accounting.Repeated(self.event(noise_multiplier), self.participations(num_rounds))

    def sample(self, source: Source, key: jax.Array, round_number: jax.Array) -> Cohort:
        """The cohort of a round, drawn from a federation of this sampler's size."""
        if source.num_clients != self.num_clients:
            given = f"one of {source.num_clients} clients"
            _validate.refuse("federation", given, f"of the sampler's {self.num_clients} clients")
        round_number = jnp.asarray(round_number, jnp.int32)
        draw = self.draw(key, round_number)
        return dataclasses.replace(
            source.cohort(draw.client_ids, draw.is_padding),
            overflowed=draw.overflowed,
            # A copy: a carry may be donated to the round that takes this cohort.
            round_number=jnp.array(round_number, copy=True),
            drawn_by=self,
        )


@dataclasses.dataclass(frozen=True)
class PoissonCohorts(CohortSampler):
    """Every client takes part in every round independently, with the same probability.

    Args:
      num_clients: Clients in the federation, >= 1, public.
      expected_cohort_size: Clients in a round on average, in (0, num_clients].
      max_cohort_size: Static slots. ``with_capacity`` finds as many as needed; None stands for
        that, where the number of rounds is known (``simulate``).

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      For one client added or removed. A round is ``PoissonSampled(q, Gaussian(z))``, q the
      expected size over the number of clients; clients beyond the slots are left out, which
      costs ``overflow_delta``, a part of delta.

    Example:
      >>> import jax
      >>> from jaxdp import federated
      >>> cohorts = federated.PoissonCohorts(1000, expected_cohort_size=50, max_cohort_size=100)
      >>> cohorts.draw(jax.random.key(0), 3).client_ids.shape
      (100,)

    References:
      McMahan et al. 2018, arXiv:1710.06963, Algorithm 1; ``sampling.overflow_probability``.
    """

    num_clients: int
    expected_cohort_size: float = dataclasses.field(kw_only=True)
    max_cohort_size: int | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        n = _validate.integer("num_clients", self.num_clients, minimum=1, maximum=2**31 - 1)
        keep(self, num_clients=n, expected_cohort_size=_expected(self.expected_cohort_size, n))
        if self.max_cohort_size is not None:
            slots = _validate.integer("max_cohort_size", self.max_cohort_size, minimum=1)
            keep(self, max_cohort_size=slots)

    @property
    def sampling_probability(self) -> float:
        return float(self.expected_cohort_size) / self.num_clients

    def with_capacity(self, *, num_rounds: int, overflow_delta: float) -> "PoissonCohorts":
        """The same sampler with as few slots as that part of delta allows over the rounds."""
        slots = self.num_clients
        if self.sampling_probability < 1.0:
            slots = sampling.poisson_capacity(
                num_examples=self.num_clients,
                sampling_probability=self.sampling_probability,
                num_steps=num_rounds,
                overflow_delta=overflow_delta,
            )
        return dataclasses.replace(self, max_cohort_size=slots)

    def draw(self, key, round_number):
        if self.max_cohort_size is None:
            _validate.refuse("max_cohort_size", None, "a number of slots (see with_capacity)")
        batch = sampling.poisson_batch(
            _streams.of_round(key, _streams.COHORT, round_number),
            num_examples=self.num_clients,
            sampling_probability=self.sampling_probability,
            max_batch_size=self.max_cohort_size,
        )
        return Draw(batch.indices, batch.is_padding, batch.overflowed)

    def event(self, noise_multiplier):
        return accounting.PoissonSampled(
            self.sampling_probability, accounting.Gaussian(noise_multiplier)
        )

    def overflow_delta(self, num_rounds):
        if num_rounds < 1:
            return 0.0
        return sampling.overflow_probability(
            num_examples=self.num_clients,
            sampling_probability=self.sampling_probability,
            max_batch_size=self.max_cohort_size or self.num_clients,
            num_steps=num_rounds,
        )


@dataclasses.dataclass(frozen=True)
class FixedSizeCohorts(CohortSampler):
    """A uniformly random subset of a fixed size takes part, drawn afresh without replacement.

    Args:
      num_clients: Clients in the federation, >= 1, public.
      cohort_size: Clients in a round, from 1 to ``num_clients``.

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      For one client replaced by another. Replacing moves the clipped sum by up to twice its
      sensitivity, so that noise of multiplier z counts as z / 2: a round is
      ``SampledWithoutReplacement(num_clients, cohort_size, Gaussian(z / 2))``. A draw sorts
      all clients.

    Example:
      >>> import jax
      >>> from jaxdp import federated
      >>> cohorts = federated.FixedSizeCohorts(10, cohort_size=3)
      >>> len(set(cohorts.draw(jax.random.key(0), 0).client_ids.tolist()))
      3

    References:
      Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, Theorem 9.
    """

    num_clients: int
    cohort_size: int = dataclasses.field(kw_only=True)

    def __post_init__(self):
        n = _validate.integer("num_clients", self.num_clients, minimum=1, maximum=2**31 - 1)
        size = _validate.integer("cohort_size", self.cohort_size, minimum=1, maximum=n)
        keep(self, num_clients=n, cohort_size=size)

    @property
    def expected_cohort_size(self) -> float:
        return float(self.cohort_size)

    @property
    def max_cohort_size(self) -> int:
        return self.cohort_size

    def draw(self, key, round_number):
        round_key = _streams.of_round(key, _streams.COHORT, round_number)
        everyone = jax.random.permutation(round_key, self.num_clients)
        chosen = jnp.sort(everyone[: self.cohort_size]).astype(jnp.int32)
        return Draw(chosen, jnp.zeros(self.cohort_size, bool), jnp.zeros((), bool))

    def event(self, noise_multiplier):
        return accounting.SampledWithoutReplacement(
            self.num_clients, self.cohort_size, accounting.Gaussian(noise_multiplier / 2)
        )


@dataclasses.dataclass(frozen=True)
class GroupCohorts(CohortSampler):
    """Fixed public groups take turns: a client takes part in every ``min_separation``-th round.

    Client c is in the group ``c mod min_separation``, and a round's cohort is a whole group.

    Args:
      num_clients: Clients in the federation, >= 1, public.
      min_separation: Rounds from one participation of a client to its next, >= 1, at most
        ``num_clients``, and the two together below 2**31.

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      For one client added or removed, which has an id of its own: ids are public, and those of
      the others stay (a client that is removed leaves an empty place, not a gap that closes).
      Nothing is sampled, so nothing is amplified: R rounds are ``Gaussian(z)`` repeated
      ceil(R / min_separation) times. No trust in the secrecy of any draw is needed.

    Example:
      >>> import jax
      >>> from jaxdp import federated
      >>> cohorts = federated.GroupCohorts(7, min_separation=3)
      >>> draw = cohorts.draw(jax.random.key(0), 1)
      >>> draw.client_ids[~draw.is_padding].tolist(), cohorts.participations(10)
      ([1, 4], 4)

    References:
      Choquette-Choo et al. 2023, arXiv:2306.08153 (participation with a minimum separation).
    """

    num_clients: int
    min_separation: int = dataclasses.field(kw_only=True)

    def __post_init__(self):
        n = _validate.integer("num_clients", self.num_clients, minimum=1, maximum=2**31 - 1)
        separation = _validate.integer("min_separation", self.min_separation, minimum=1, maximum=n)
        if n + separation >= 2**31:
            # A group is counted past its last member, in int32.
            _validate.refuse("min_separation", separation, "below 2**31 with num_clients added")
        keep(self, num_clients=n, min_separation=separation)

    @property
    def expected_cohort_size(self) -> float:
        return self.num_clients / self.min_separation

    @property
    def max_cohort_size(self) -> int:
        return math.ceil(Fraction(self.num_clients, self.min_separation))

    def draw(self, key, round_number):
        del key  # the groups are public
        group = jnp.asarray(round_number, jnp.int32) % self.min_separation
        members = group + self.min_separation * jnp.arange(self.max_cohort_size, dtype=jnp.int32)
        is_padding = members >= self.num_clients
        return Draw(jnp.where(is_padding, 0, members), is_padding, jnp.zeros((), bool))

    def event(self, noise_multiplier):
        return accounting.Gaussian(noise_multiplier)

    @property
    def period(self):
        return self.min_separation
