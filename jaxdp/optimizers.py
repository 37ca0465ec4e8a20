"""Private optimizers: an Optax optimizer behind noise, batch size and budget."""

from collections.abc import Callable
from typing import Any

import numpy as np
import optax

from jaxdp import _validate, accounting, transforms
from jaxdp.transforms.noise import NoiseMultiplier

LearningRate = float | Callable[[Any], Any]


def privatize(
    optimizer: optax.GradientTransformation,
    *,
    noise_multiplier: NoiseMultiplier,
    expected_batch_size: Any,
    key: Any,
    sampling_probability: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Puts an Optax optimizer behind Gaussian noise, and behind a budget if one is given.

    It is ``chain(add_gaussian_noise, scale_by_batch_size, optimizer)``: a clipped sum
    :math:`s` becomes :math:`(s + \sigma \Delta_2 z) / E` before ``optimizer`` sees it. With
    ``sampling_probability``, ``target_epsilon`` and ``delta`` the chain sits in
    ``with_budget``, accounted as a Poisson-subsampled Gaussian with this very multiplier.

    Args:
      optimizer: Any Optax transformation; all of it is post-processing.
      noise_multiplier: Standard deviation over L2 sensitivity, >= 0; or a function from the
        step (int32 scalar) to it.
      expected_batch_size: Examples in a batch on average, > 0; a public constant.
      key: Scalar typed PRNG key. One key, one run.
      sampling_probability: Probability, in [0, 1], with which each record joins a batch,
        independently of every other. Batches drawn in any other way (shuffled epochs, fixed
        size) are not what this accounts for.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1).

    Returns:
      A transformation from a ``ClippedSum`` to updates shaped like its value.

    Raises:
      ValueError: if an argument is out of range, or only some of ``sampling_probability``,
        ``target_epsilon`` and ``delta`` are given.

    Guarantee:
      With a budget: (``target_epsilon``, ``delta``)-DP for one record added or removed, for
      any number of updates. Without one: each update is a Gaussian mechanism with this
      multiplier, and counting them is up to the caller.

    Example:
      >>> import jax, jax.numpy as jnp, optax, jaxdp
      >>> tx = jaxdp.privatize(optax.lion(1e-3), noise_multiplier=1.0, expected_batch_size=100,
      ...     key=jax.random.key(0), sampling_probability=0.01, target_epsilon=3.0, delta=1e-5)
      >>> params = jnp.zeros(3)
      >>> updates, state = tx.update(jaxdp.ClippedSum(params, 1.0), tx.init(params), params)
      >>> updates.shape
      (3,)

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1.
    """
    chain = optax.chain(
        transforms.add_gaussian_noise(noise_multiplier, key=key),
        transforms.scale_by_batch_size(expected_batch_size),
        optimizer,
    )
    budget = {
        "sampling_probability": sampling_probability,
        "target_epsilon": target_epsilon,
        "delta": delta,
    }
    missing = [name for name, value in budget.items() if value is None]
    if len(missing) == len(budget):
        return optax.with_extra_args_support(chain)
    if sampling_probability is None or target_epsilon is None or delta is None:
        _validate.refuse(missing[0], None, f"given together with the rest of {', '.join(budget)}")
    _validate.probability("sampling_probability", sampling_probability)

    def event_at(step):
        multiplier = noise_multiplier(step) if callable(noise_multiplier) else noise_multiplier
        if not _validate.is_traced(multiplier):
            # Noise is drawn in float32: account for the multiplier that runs, if it is smaller.
            multiplier = min(float(multiplier), float(np.float32(multiplier)))
        return accounting.PoissonSampled(sampling_probability, accounting.Gaussian(multiplier))

    return transforms.with_budget(
        chain,
        event=event_at if callable(noise_multiplier) else event_at(0),
        target_epsilon=target_epsilon,
        delta=delta,
    )


def dp_sgd(
    learning_rate: LearningRate,
    *,
    momentum: float | None = None,
    nesterov: bool = False,
    noise_multiplier: NoiseMultiplier,
    expected_batch_size: Any,
    key: Any,
    sampling_probability: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """DP-SGD: ``optax.sgd`` behind Gaussian noise, with an optional budget.

    Args:
      learning_rate: Step size, or an Optax schedule.
      momentum: Decay of the momentum, or None for none.
      nesterov: Whether to use Nesterov momentum.
      noise_multiplier: See ``privatize``, as for the arguments below.
      expected_batch_size: Examples in a batch on average, > 0.
      key: Scalar typed PRNG key. One key, one run.
      sampling_probability: Poisson sampling probability of a record, for the budget.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1).

    Returns:
      A transformation from a ``ClippedSum`` to updates.

    Raises:
      ValueError: as ``privatize``.

    Guarantee:
      That of ``privatize``.

    Example:
      >>> import jax, jaxdp
      >>> tx = jaxdp.dp_sgd(0.1, noise_multiplier=1.1, expected_batch_size=256,
      ...                   key=jax.random.key(0))

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1.
    """
    return privatize(
        optax.sgd(learning_rate, momentum=momentum, nesterov=nesterov),
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        key=key,
        sampling_probability=sampling_probability,
        target_epsilon=target_epsilon,
        delta=delta,
    )


def dp_adam(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    noise_multiplier: NoiseMultiplier,
    expected_batch_size: Any,
    key: Any,
    sampling_probability: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """DP-Adam: ``optax.adam`` behind Gaussian noise, with an optional budget.

    Args:
      learning_rate: Step size, or an Optax schedule.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      eps: Constant in Adam's denominator.
      noise_multiplier: See ``privatize``, as for the arguments below.
      expected_batch_size: Examples in a batch on average, > 0.
      key: Scalar typed PRNG key. One key, one run.
      sampling_probability: Poisson sampling probability of a record, for the budget.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1).

    Returns:
      A transformation from a ``ClippedSum`` to updates.

    Raises:
      ValueError: as ``privatize``.

    Guarantee:
      That of ``privatize``.

    Example:
      >>> import jax, jaxdp
      >>> tx = jaxdp.dp_adam(1e-3, noise_multiplier=1.1, expected_batch_size=256,
      ...                    key=jax.random.key(0))

    References:
      Kingma and Ba 2015, arXiv:1412.6980; Abadi et al. 2016, arXiv:1607.00133.
    """
    return privatize(
        optax.adam(learning_rate, b1=b1, b2=b2, eps=eps),
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        key=key,
        sampling_probability=sampling_probability,
        target_epsilon=target_epsilon,
        delta=delta,
    )


def dp_adamw(
    learning_rate: LearningRate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    noise_multiplier: NoiseMultiplier,
    expected_batch_size: Any,
    key: Any,
    sampling_probability: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """DP-AdamW: ``optax.adamw`` behind Gaussian noise, with an optional budget.

    Args:
      learning_rate: Step size, or an Optax schedule.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      eps: Constant in Adam's denominator.
      weight_decay: Decoupled weight decay.
      noise_multiplier: See ``privatize``, as for the arguments below.
      expected_batch_size: Examples in a batch on average, > 0.
      key: Scalar typed PRNG key. One key, one run.
      sampling_probability: Poisson sampling probability of a record, for the budget.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1).

    Returns:
      A transformation from a ``ClippedSum`` to updates; ``update`` needs ``params``.

    Raises:
      ValueError: as ``privatize``.

    Guarantee:
      That of ``privatize``: weight decay acts after the noise and clips nothing away.

    Example:
      >>> import jax, jaxdp
      >>> tx = jaxdp.dp_adamw(1e-3, noise_multiplier=1.1, expected_batch_size=256,
      ...                     key=jax.random.key(0))

    References:
      Loshchilov and Hutter 2019, arXiv:1711.05101; Abadi et al. 2016, arXiv:1607.00133.
    """
    return privatize(
        optax.adamw(learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay),
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        key=key,
        sampling_probability=sampling_probability,
        target_epsilon=target_epsilon,
        delta=delta,
    )


def dp_adamw_bc(
    learning_rate: LearningRate,
    *,
    l2_clip_norm: float,
    b1: float = 0.9,
    b2: float = 0.999,
    variance_floor: float = 1e-8,
    weight_decay: float = 1e-4,
    noise_multiplier: NoiseMultiplier,
    expected_batch_size: Any,
    key: Any,
    sampling_probability: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""DP-AdamW whose second moment is corrected for the variance of the noise.

    The noise of one entry has the known variance :math:`(\sigma C / E)^2`, which plain
    DP-Adam mistakes for signal; see ``scale_by_adam_bc``.

    Args:
      learning_rate: Step size, or an Optax schedule.
      l2_clip_norm: The L2 sensitivity of the clipped sums that will come in. It sets the
        correction only: the noise follows the sensitivity of each sum.
      b1: Decay of the first moment.
      b2: Decay of the second moment.
      variance_floor: The least value of the corrected second moment, > 0.
      weight_decay: Decoupled weight decay.
      noise_multiplier: See ``privatize``, as for the arguments below.
      expected_batch_size: Examples in a batch on average, > 0.
      key: Scalar typed PRNG key. One key, one run.
      sampling_probability: Poisson sampling probability of a record, for the budget.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1).

    Returns:
      A transformation from a ``ClippedSum`` to updates; ``update`` needs ``params``.

    Raises:
      ValueError: as ``privatize``, and if ``l2_clip_norm`` is not a finite number > 0.

    Guarantee:
      That of ``privatize``; a wrong ``l2_clip_norm`` costs accuracy, not privacy.

    Example:
      >>> import jax, jaxdp
      >>> tx = jaxdp.dp_adamw_bc(1e-3, l2_clip_norm=1.0, noise_multiplier=1.1,
      ...                        expected_batch_size=256, key=jax.random.key(0))

    References:
      Tang, Shpilevskiy and Lecuyer 2023, arXiv:2312.14334.
    """
    _validate.positive("l2_clip_norm", l2_clip_norm)
    _validate.positive("expected_batch_size", expected_batch_size)

    def noise_stddev(step):
        multiplier = noise_multiplier(step) if callable(noise_multiplier) else noise_multiplier
        return multiplier * l2_clip_norm / expected_batch_size

    optimizer = optax.chain(
        transforms.scale_by_adam_bc(noise_stddev, b1=b1, b2=b2, variance_floor=variance_floor),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )
    return privatize(
        optimizer,
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        key=key,
        sampling_probability=sampling_probability,
        target_epsilon=target_epsilon,
        delta=delta,
    )
