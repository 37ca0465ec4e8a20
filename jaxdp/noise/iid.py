"""Independent unit noise of one step, a function of the run's key with the step number."""

from typing import Any

import jax

from jaxdp import _random, _validate


def gaussian(key: jax.Array, step: Any, like: Any) -> Any:
    r"""The standard normal noise of one step of a run.

    Every entry is :math:`z \sim \mathcal{N}(0, 1)`, independent over entries, leaves and
    steps. The same key and step give the same bits on one device or many.

    Args:
      key: Scalar typed PRNG key of the run. One key, one run: two runs that share a key
        share their noise, and the difference of their releases has none.
      step: Integer scalar >= 0, may be traced: the number of the release.
      like: Pytree of floating-point arrays, whose shapes the noise takes.

    Returns:
      A pytree shaped like ``like``, in float32 or wider whatever the dtype of ``like``.

    Raises:
      ValueError: if ``key`` is not a scalar typed key, or a leaf is not floating point.

    Guarantee:
      None by itself: multiply by the noise multiplier times the sensitivity. Samples are
      float32: finite precision is outside the proofs of this package.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp import noise
      >>> z = noise.gaussian(jax.random.key(0), 7, {"w": jnp.zeros((2, 3), jnp.bfloat16)})
      >>> z["w"].shape, z["w"].dtype
      ((2, 3), dtype('float32'))

    References:
      Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (the generator).
    """
    root = jax.random.fold_in(_validate.key("key", key), _random.GAUSSIAN)
    return _random.normal_like(jax.random.fold_in(root, step), like)


def laplace(key: jax.Array, step: Any, like: Any) -> Any:
    r"""The Laplace noise of scale one of one step of a run.

    Every entry has density :math:`e^{-|z|}/2`, so its variance is 2; independent over
    entries, leaves and steps.

    Args:
      key: Scalar typed PRNG key of the run. One key, one run.
      step: Integer scalar >= 0, may be traced: the number of the release.
      like: Pytree of floating-point arrays, whose shapes the noise takes.

    Returns:
      A pytree shaped like ``like``, in float32 or wider.

    Raises:
      ValueError: if ``key`` is not a scalar typed key, or a leaf is not floating point.

    Guarantee:
      None by itself: multiply by the noise multiplier times the L1 sensitivity.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp import noise
      >>> noise.laplace(jax.random.key(0), 0, jnp.zeros(4)).shape
      (4,)

    References:
      Dwork et al. 2006, Calibrating noise to sensitivity in private data analysis.
    """
    root = jax.random.fold_in(_validate.key("key", key), _random.LAPLACE)
    return _random.laplace_like(jax.random.fold_in(root, step), like)
