"""The Gaussian mechanism with its exact privacy profile."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _gaussian_profile, _precision, _random, _validate


def _log(delta: Any) -> Any:
    """The log, in double precision where delta is a number: 1e-300 is no float32."""
    return jnp.log(delta) if _validate.is_traced(delta) else math.log(delta)


def _up(value: jax.Array) -> jax.Array:
    """Moves a value up past the rounding of the last few operations."""
    return value * (1.0 + 8.0 * float(jnp.finfo(value.dtype).eps))


def release(key: jax.Array, value: Any, *, stddev: Any) -> Any:
    r"""Adds independent Gaussian noise to every entry of a pytree.

    Returns :math:`v + z` with :math:`z \sim \mathcal{N}(0, s^2 I)`, s the standard deviation.

    Args:
      key: Scalar typed PRNG key. One key, one release.
      value: Pytree of floating-point arrays.
      stddev: Scalar >= 0, in the unit of the value.

    Returns:
      Pytree shaped like ``value``, float32 or wider whatever the dtype of the leaves.

    Raises:
      ValueError: if a leaf is not floating point, or ``stddev`` is negative or not finite.

    Guarantee:
      (epsilon, delta)-DP for every pair with delta at least ``delta(epsilon=...,
      noise_multiplier=stddev / l2_sensitivity)``, for the neighbours and the unit of privacy
      of that sensitivity, which bounds the whole pytree in L2 norm. Noise is drawn in float32
      at least, and no two leaves share it; finite precision is not part of the proof.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp.mechanisms import gaussian
      >>> noisy = gaussian.release(jax.random.key(0), {"mean": jnp.zeros(3)}, stddev=2.0)
      >>> noisy["mean"].shape
      (3,)

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Appendix A.
    """
    _validate.key("key", key)
    _validate.float_tree("value", value)
    _validate.non_negative("stddev", stddev)
    noise = _random.normal_like(key, value)
    return jax.tree.map(lambda leaf, z: leaf + jnp.asarray(stddev, z.dtype) * z, value, noise)


def _classical_formula(epsilon: jax.Array, log_delta: jax.Array, sensitivity: jax.Array):
    stddev = jnp.sqrt(2.0 * (math.log(1.25) - log_delta)) * sensitivity / epsilon
    # A traced epsilon cannot be refused; outside the proof no finite noise is promised.
    return jnp.where((epsilon > 0.0) & (epsilon < 1.0), _up(stddev), jnp.inf)


def classical_stddev(*, epsilon: Any, delta: Any, l2_sensitivity: Any = 1.0) -> Any:
    r"""The standard deviation by the classical formula, proved for epsilon < 1 only.

    :math:`s = \Delta_2 \sqrt{2 \ln(1.25 / \delta)} / \varepsilon`. The exact ``stddev`` is
    never larger, and holds for every epsilon.

    Args:
      epsilon: Scalar in (0, 1).
      delta: Scalar in (0, 1).
      l2_sensitivity: Scalar > 0, in the unit of the value.

    Returns:
      Scalar, in the unit of the value: a float, or traced if an argument is. For a traced
      epsilon outside (0, 1) it is infinity.

    Raises:
      ValueError: if epsilon is 1 or more, or an argument is outside its range.

    Guarantee:
      Noise of this size is (epsilon, delta)-DP for the neighbours that ``l2_sensitivity`` is
      for. Rounded up, by 8 units in the last place.

    Example:
      >>> from jaxdp.mechanisms import gaussian
      >>> round(gaussian.classical_stddev(epsilon=0.5, delta=1e-5), 4)
      9.6896

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Theorem A.1.
    """
    _validate.positive("epsilon", epsilon)
    if not _validate.is_traced(epsilon) and epsilon >= 1.0:
        _validate.refuse(
            "epsilon",
            epsilon,
            "below 1, where the classical formula is proved (gaussian.stddev is exact for every "
            "epsilon, and needs less noise)",
        )
    _validate.delta("delta", delta)
    _validate.positive("l2_sensitivity", l2_sensitivity)
    return _precision.evaluate(_classical_formula, epsilon, _log(delta), l2_sensitivity)


def _analytic_formula(epsilon: jax.Array, log_delta: jax.Array, sensitivity: jax.Array):
    return _up(sensitivity / _gaussian_profile.mu(epsilon, log_delta))


def stddev(*, epsilon: Any, delta: Any, l2_sensitivity: Any = 1.0) -> Any:
    """The smallest standard deviation that is (epsilon, delta)-DP, for every epsilon.

    The analytic calibration: inverts the exact profile, instead of a tail bound.

    Args:
      epsilon: Scalar >= 0.
      delta: Scalar in (0, 1).
      l2_sensitivity: Scalar > 0, in the unit of the value.

    Returns:
      Scalar, in the unit of the value: a float, or traced if an argument is (then jittable
      and differentiable).

    Raises:
      ValueError: if an argument is negative, not finite, or outside its range.

    Guarantee:
      Noise of this size is (epsilon, delta)-DP for the neighbours that ``l2_sensitivity`` is
      for. Rounded up: by less than 1e-9 relative in float64, 1e-4 in float32.

    Example:
      >>> from jaxdp.mechanisms import gaussian
      >>> round(gaussian.stddev(epsilon=1.0, delta=1e-5), 4)
      3.7306

    References:
      Balle and Wang 2018, arXiv:1805.06530, Theorem 9.
    """
    _validate.non_negative("epsilon", epsilon)
    _validate.delta("delta", delta)
    _validate.positive("l2_sensitivity", l2_sensitivity)
    return _precision.evaluate(_analytic_formula, epsilon, _log(delta), l2_sensitivity)


def _log_delta_formula(epsilon: jax.Array, noise_multiplier: jax.Array):
    return _gaussian_profile.log_delta(epsilon, 1.0 / noise_multiplier)


def _delta_formula(epsilon: jax.Array, noise_multiplier: jax.Array):
    log_delta = _log_delta_formula(epsilon, noise_multiplier)
    # Up to the smallest normal number where it would underflow, below the truth.
    value = jnp.maximum(_up(jnp.exp(log_delta)), jnp.finfo(log_delta.dtype).tiny)
    return jnp.where(log_delta > -jnp.inf, jnp.minimum(value, 1.0), 0.0)


def _epsilon_formula(log_delta: jax.Array, noise_multiplier: jax.Array):
    return _gaussian_profile.epsilon(log_delta, 1.0 / noise_multiplier)


def log_delta(*, epsilon: Any, noise_multiplier: Any) -> Any:
    """The log of the smallest delta at epsilon, for deltas too small for a float.

    Args:
      epsilon: Scalar >= 0.
      noise_multiplier: Scalar >= 0, standard deviation over L2 sensitivity. 0 gives 0.

    Returns:
      Scalar <= 0: a float, or traced if an argument is.

    Raises:
      ValueError: if an argument is negative or not finite.

    Guarantee:
      As for ``delta``.

    Example:
      >>> from jaxdp.mechanisms import gaussian
      >>> round(gaussian.log_delta(epsilon=100.0, noise_multiplier=1.0), 3)
      -4960.255

    References:
      Balle and Wang 2018, arXiv:1805.06530, Theorem 8.
    """
    _validate.non_negative("epsilon", epsilon)
    _validate.non_negative("noise_multiplier", noise_multiplier)
    return _precision.evaluate(_log_delta_formula, epsilon, noise_multiplier)


def delta(*, epsilon: Any, noise_multiplier: Any) -> Any:
    r"""The smallest delta at epsilon: the exact privacy profile.

    :math:`\delta(\varepsilon) = \Phi(\frac{\mu}{2} - \frac{\varepsilon}{\mu}) -
    e^\varepsilon \Phi(-\frac{\mu}{2} - \frac{\varepsilon}{\mu})`, with :math:`\mu` one over
    the noise multiplier, in a form that neither cancels nor overflows.

    Args:
      epsilon: Scalar >= 0.
      noise_multiplier: Scalar >= 0, standard deviation over L2 sensitivity. 0 gives 1.

    Returns:
      Scalar in [0, 1]: a float, or traced if an argument is (then jittable and
      differentiable). The smallest normal number of its dtype where it would underflow.

    Raises:
      ValueError: if an argument is negative or not finite.

    Guarantee:
      Never below the truth. With u the dtype's epsilon (2.2e-16 or 1.2e-7), the log exceeds
      it by at most 20 u (1 + \|log delta\|) + 2 u (a + 2) b, where b = epsilon / mu + mu / 2
      and a = max(0, epsilon / mu - mu / 2): the last term is what one rounding of the
      arguments does. Neighbours and unit are those of the sensitivity.

    Example:
      >>> from jaxdp.mechanisms import gaussian
      >>> round(gaussian.delta(epsilon=1.0, noise_multiplier=1.0), 6)
      0.126937

    References:
      Balle and Wang 2018, arXiv:1805.06530, Theorem 8.
    """
    _validate.non_negative("epsilon", epsilon)
    _validate.non_negative("noise_multiplier", noise_multiplier)
    return _precision.evaluate(_delta_formula, epsilon, noise_multiplier)


def epsilon(*, delta: Any, noise_multiplier: Any) -> Any:
    r"""The smallest epsilon at delta: the inverse of the exact privacy profile.

    Args:
      delta: Scalar in (0, 1).
      noise_multiplier: Scalar >= 0, standard deviation over L2 sensitivity. 0 gives infinity.

    Returns:
      Scalar >= 0: a float, or traced if an argument is (then jittable and differentiable).

    Raises:
      ValueError: if an argument is outside its range.

    Guarantee:
      Never below the truth, never negative. With u the dtype's epsilon, it is the exact
      epsilon of a delta smaller by 16 u (1 + \|log delta\|) relative, increased by 17 u: within
      1e-9 relative in float64 and 1e-4 in float32, unless epsilon is far below
      1 / noise_multiplier, where a rounding of delta itself moves it by more. Neighbours and
      unit are those of the sensitivity.

    Example:
      >>> from jaxdp.mechanisms import gaussian
      >>> round(gaussian.epsilon(delta=1e-5, noise_multiplier=1.0), 6)
      4.377178

    References:
      Balle and Wang 2018, arXiv:1805.06530, Theorem 8.
    """
    _validate.delta("delta", delta)
    _validate.non_negative("noise_multiplier", noise_multiplier)
    return _precision.evaluate(_epsilon_formula, _log(delta), noise_multiplier)
