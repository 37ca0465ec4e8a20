"""Poisson sampling with static shapes, its truncation accounted for."""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _random, _validate

_WORDS = 2**32


class PoissonBatch(NamedTuple):
    """The records that one step drew, in slots of a static number."""

    indices: jax.Array
    """int32 [max_batch_size], ascending; 0 in the slots that are padding."""
    is_padding: jax.Array
    """bool [max_batch_size]: slots that hold no record, always the last ones."""
    overflowed: jax.Array
    """bool scalar: more records were drawn than there are slots, and the rest was dropped."""


def _is_included(bits: jax.Array, sampling_probability: Any) -> jax.Array:
    """Whether each 32-bit word is below floor(q 2^32): with probability at most q."""
    # jax.random.bernoulli compares a float32 uniform, a multiple of 2^-23, with q. That rounds
    # q up: at q = 1e-6 by 7 %, more than the accountant was told.
    if _validate.is_traced(sampling_probability):
        q = sampling_probability
        # Scaling by a power of two is exact, and below 1 the floor fits 32 bits.
        words = jnp.floor(jnp.where((q > 0.0) & (q < 1.0), q, 0.0) * float(_WORDS))
        return (bits < words.astype(jnp.uint32)) | (q >= 1.0)
    static_words = math.floor(Fraction(float(sampling_probability)) * _WORDS)
    if static_words == _WORDS:
        return jnp.ones(bits.shape, bool)
    return bits < jnp.uint32(static_words)


def poisson_batch(
    key: jax.Array, *, num_examples: int, sampling_probability: Any, max_batch_size: int
) -> PoissonBatch:
    r"""Draws each record independently, into a batch of static shape.

    Record i is in the batch with probability :math:`\lfloor 2^{32} q \rfloor / 2^{32}`,
    independently of all others. If more than ``max_batch_size`` are drawn, those with the
    largest indices are dropped and ``overflowed`` is True.

    Args:
      key: Scalar typed PRNG key, a new one for every batch.
      num_examples: The number of records, >= 1.
      sampling_probability: Scalar q: 0, 1, or from 2^-32 to 1; it may be traced.
      max_batch_size: The number of slots, >= 1; ``poisson_capacity`` chooses it.

    Returns:
      The batch: ``indices`` int32 [max_batch_size], ``is_padding`` bool [max_batch_size],
      ``overflowed`` bool scalar. An empty batch is all padding.

    Raises:
      ValueError: if an argument is outside its range; a q between 0 and 2^-32 would never
        draw anything.

    Guarantee:
      No record is drawn with more than the stated probability. The batch is ascending
      whatever was drawn, so its order tells nothing more. Truncation costs part of delta:
      ``overflow_probability``. Divide what is computed on the batch by the expected batch
      size, never by the number of slots that happen to be filled.

    Example:
      >>> import jax
      >>> from jaxdp import sampling
      >>> batch = sampling.poisson_batch(
      ...     jax.random.key(0), num_examples=100, sampling_probability=0.05, max_batch_size=20
      ... )
      >>> batch.indices.shape, bool(batch.overflowed)
      ((20,), False)

    References:
      Abadi et al. 2016, arXiv:1607.00133, Section 3.1.
    """
    _validate.key("key", key)
    num_examples = _validate.integer("num_examples", num_examples, minimum=1, maximum=2**31 - 1)
    capacity = _validate.integer("max_batch_size", max_batch_size, minimum=1, maximum=2**31 - 1)
    q = _validate.probability("sampling_probability", sampling_probability)
    if not _validate.is_traced(q) and 0.0 < q < 1.0 / _WORDS:
        _validate.refuse("sampling_probability", q, "0, or at least 2**-32 (it is floored)")
    included = _is_included(
        jax.random.bits(jax.random.fold_in(key, _random.POISSON), (num_examples,), jnp.uint32), q
    )
    (indices,) = jnp.nonzero(included, size=capacity, fill_value=0)
    drawn = jnp.sum(included, dtype=jnp.int32)
    return PoissonBatch(
        indices=indices.astype(jnp.int32),
        is_padding=jnp.arange(capacity, dtype=jnp.int32) >= drawn,
        overflowed=drawn > capacity,
    )


def _run(num_examples: Any, sampling_probability: Any, num_steps: Any) -> tuple[int, float, int]:
    if _validate.is_traced(sampling_probability):
        _validate.refuse(
            "sampling_probability", sampling_probability, "a number, not a traced value"
        )
    return (
        _validate.integer("num_examples", num_examples, minimum=1),
        float(_validate.probability("sampling_probability", sampling_probability)),
        _validate.integer("num_steps", num_steps, minimum=1),
    )


def _overflow_bound(n: int, q: float, capacity: int, num_steps: int) -> float:
    if q == 0.0 or capacity >= n:
        return 0.0
    if capacity <= n * q:
        return 1.0
    # n KL(k/n || q), both terms through log1p: k/n is often close to q.
    excess = capacity - n * q
    gain = capacity * math.log1p(excess / (n * q))
    loss = (n - capacity) * math.log1p(-excess / (n * (1.0 - q)))
    # The terms have opposite signs: their rounding, not that of the sum, sets the margin.
    exponent = gain + loss - 1e-14 * (gain - loss)
    return min(1.0, num_steps * math.exp(-max(exponent, 0.0)) * (1.0 + 1e-12))


def overflow_probability(
    *, num_examples: int, sampling_probability: Any, max_batch_size: int, num_steps: int
) -> float:
    r"""The part of delta that truncating Poisson batches costs over a run, at most.

    With cap slots, n records and T steps it is
    :math:`T \Pr[\mathrm{Bin}(n, q) \ge cap] \le T e^{-n\, KL(cap/n \,\|\, q)}` (Chernoff).

    Why it adds to delta, with no factor :math:`e^\varepsilon`, and why the tail starts at cap
    and not above it: take neighbours D and D' = D + {x}, and let :math:`S_1, \dots, S_T` be
    the batches drawn from the common records D. Given these, if every
    :math:`|S_t| \le cap - 1` then neither run truncates, with or without x, so the two runs
    are an untruncated pair; otherwise bound their divergence by 1. The hockey-stick
    divergence is jointly convex, so averaging over the batches gives
    :math:`\delta_{truncated} \le \delta + \Pr[\exists t: |S_t| \ge cap]`, in both directions,
    and the union bound over steps does the rest.

    Args:
      num_examples: The number n of rows that the draws index, >= 1: the size of the larger
        data set of a pair of neighbours.
      sampling_probability: The probability q of each record, in [0, 1].
      max_batch_size: The number of slots, cap >= 1.
      num_steps: The number T of batches drawn in the run, >= 1.

    Returns:
      A float in [0, 1]; 1 if cap is at most the expected batch size, 0 if it is at least n
      (the common records are at most n - 1, so they leave a slot).

    Raises:
      ValueError: if an argument is outside its range.

    Guarantee:
      An upper bound, for adding or removing one record: (epsilon, delta)-DP of the untruncated
      run implies (epsilon, delta + this)-DP of the truncated one. Rounded up.

    Example:
      >>> from jaxdp import sampling
      >>> lost = sampling.overflow_probability(
      ...     num_examples=50_000, sampling_probability=0.005, max_batch_size=400, num_steps=1000
      ... )
      >>> lost < 1e-12
      True

    References:
      Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, Theorem 2 (joint convexity); Chernoff
      1952, A Measure of Asymptotic Efficiency.
    """
    n, q, steps = _run(num_examples, sampling_probability, num_steps)
    capacity = _validate.integer("max_batch_size", max_batch_size, minimum=1)
    return _overflow_bound(n, q, capacity, steps)


def poisson_capacity(
    *, num_examples: int, sampling_probability: Any, num_steps: int, overflow_delta: float
) -> int:
    """The fewest slots whose truncation costs at most a stated part of delta.

    Args:
      num_examples: The number of rows that the draws index, >= 1.
      sampling_probability: The probability of each record, in [0, 1].
      num_steps: The number of batches drawn in the run, >= 1.
      overflow_delta: The part of delta set aside for truncation, in (0, 1).

    Returns:
      The smallest ``max_batch_size`` whose ``overflow_probability`` is at most
      ``overflow_delta``; never more than ``num_examples``.

    Raises:
      ValueError: if an argument is outside its range.

    Guarantee:
      As for ``overflow_probability``. Account the run at delta - ``overflow_delta``.

    Example:
      >>> from jaxdp import sampling
      >>> sampling.poisson_capacity(
      ...     num_examples=50_000, sampling_probability=0.005, num_steps=1000, overflow_delta=1e-8
      ... )
      371

    References:
      As for ``overflow_probability``.
    """
    n, q, steps = _run(num_examples, sampling_probability, num_steps)
    allowed = _validate.delta("overflow_delta", overflow_delta)
    if _validate.is_traced(allowed):
        _validate.refuse("overflow_delta", allowed, "a number, not a traced value")
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        enough = _overflow_bound(n, q, middle, steps) <= allowed
        low, high = (low, middle) if enough else (middle, high)
    return high
