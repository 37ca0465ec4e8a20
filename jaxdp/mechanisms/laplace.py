"""The Laplace mechanism with its exact privacy profile."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _precision, _random, _special, _validate


def _ulps(count: float, like: jax.Array) -> float:
    return count * float(jnp.finfo(like.dtype).eps)


def release(key: jax.Array, value: Any, *, scale: Any) -> Any:
    r"""Adds independent Laplace noise to every entry of a pytree.

    The noise has density :math:`e^{-|z| / s} / (2 s)`, s the scale: its standard deviation
    is :math:`s \sqrt 2`.

    Args:
      key: Scalar typed PRNG key. One key, one release.
      value: Pytree of floating-point arrays.
      scale: Scalar >= 0, in the unit of the value.

    Returns:
      Pytree shaped like ``value``, float32 or wider whatever the dtype of the leaves.

    Raises:
      ValueError: if a leaf is not floating point, or ``scale`` is negative or not finite.

    Guarantee:
      (l1_sensitivity / scale)-DP, for the neighbours and the unit of privacy of that
      sensitivity, which bounds the whole pytree in L1 norm. Noise is drawn in float32 at
      least, and no two leaves share it; finite precision is not part of the proof.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp.mechanisms import laplace
      >>> laplace.release(jax.random.key(0), jnp.zeros(3), scale=2.0).shape
      (3,)

    References:
      Dwork, McSherry, Nissim and Smith 2006, Calibrating Noise to Sensitivity in Private Data
      Analysis.
    """
    _validate.key("key", key)
    _validate.float_tree("value", value)
    _validate.non_negative("scale", scale)
    noise = _random.laplace_like(key, value)
    return jax.tree.map(lambda leaf, z: leaf + jnp.asarray(scale, z.dtype) * z, value, noise)


def _scale_formula(epsilon: jax.Array, sensitivity: jax.Array):
    return sensitivity / epsilon * (1.0 + _ulps(4.0, epsilon))


def scale(*, epsilon: Any, l1_sensitivity: Any = 1.0) -> Any:
    r"""The smallest scale that is epsilon-DP: :math:`\Delta_1 / \varepsilon`.

    Args:
      epsilon: Scalar > 0.
      l1_sensitivity: Scalar > 0, in the unit of the value.

    Returns:
      Scalar, in the unit of the value: a float, or traced if an argument is.

    Raises:
      ValueError: if an argument is not a finite number above zero.

    Guarantee:
      Noise of this scale is epsilon-DP (delta = 0) for the neighbours that ``l1_sensitivity``
      is for. Rounded up, by 4 units in the last place.

    Example:
      >>> from jaxdp.mechanisms import laplace
      >>> round(laplace.scale(epsilon=0.5, l1_sensitivity=2.0), 12)
      4.0

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Theorem 3.6.
    """
    _validate.positive("epsilon", epsilon)
    _validate.positive("l1_sensitivity", l1_sensitivity)
    return _precision.evaluate(_scale_formula, epsilon, l1_sensitivity)


def _delta_formula(epsilon: jax.Array, noise_multiplier: jax.Array):
    largest_loss = (1.0 + _ulps(2.0, epsilon)) / noise_multiplier
    gap = largest_loss - epsilon
    value = -jnp.expm1(-0.5 * gap) * (1.0 + _ulps(4.0, epsilon))
    # Written so that a NaN that was traced in comes out as 1.
    return jnp.where(gap <= 0.0, 0.0, jnp.where(value < 1.0, value, 1.0))


def delta(*, epsilon: Any, noise_multiplier: Any) -> Any:
    r"""The smallest delta at epsilon: the exact privacy profile.

    With b the noise multiplier,
    :math:`\delta(\varepsilon) = \max(0, 1 - e^{(\varepsilon - 1/b) / 2})`.

    This is the profile of one coordinate that moves by the whole L1 sensitivity, and no way
    to split the move over more coordinates is worse. For moves :math:`s_1 \le s_2` (in units
    of the scale, :math:`s = s_1 + s_2`) in two coordinates, integrating one coordinate's
    profile over the other's privacy loss gives, for :math:`0 \le \varepsilon \le s`,

    .. math:: 1 - \delta(\varepsilon) =
        e^{(\varepsilon - s) / 2} (1 + \min(2 s_1, s - \varepsilon) / 4)
        \ge e^{(\varepsilon - s) / 2},

    which is the single coordinate's value; negative epsilons follow because the pair is
    symmetric. A pair that is dominated at every epsilon stays dominated when independent
    coordinates are added, so coordinates merge two at a time, by induction.

    Args:
      epsilon: Scalar >= 0.
      noise_multiplier: Scalar >= 0, scale over L1 sensitivity. 0 gives 1.

    Returns:
      Scalar in [0, 1]: a float, or traced if an argument is.

    Raises:
      ValueError: if an argument is negative or not finite.

    Guarantee:
      Never below the truth, for the neighbours that the sensitivity is for: moved up by 2
      units in the last place of 1/b, then by 4 of its own. So at epsilon = 1/b, where the
      truth may be exactly 0, it is a rounding of 1/b; at the epsilon that ``scale`` was
      asked for, it is 0.

    Example:
      >>> from jaxdp.mechanisms import laplace
      >>> round(laplace.delta(epsilon=0.5, noise_multiplier=1.0), 6)
      0.221199

    References:
      Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, Theorem 3 (one coordinate); Zhu, Dong
      and Wang 2022, arXiv:2106.08567 (dominating pairs compose).
    """
    _validate.non_negative("epsilon", epsilon)
    _validate.non_negative("noise_multiplier", noise_multiplier)
    return _precision.evaluate(_delta_formula, epsilon, noise_multiplier)


def _epsilon_formula(delta: jax.Array, noise_multiplier: jax.Array):
    largest_loss = (1.0 + _ulps(2.0, delta)) / noise_multiplier
    # The log is negative: what it takes off is rounded towards zero.
    value = largest_loss + 2.0 * _special.log_complement(delta) * (1.0 - _ulps(8.0, delta))
    value = value * (1.0 + _ulps(2.0, delta))
    # Written so that a NaN (a traced delta that is none) comes out as infinity.
    return jnp.where(value <= 0.0, 0.0, jnp.where(value < jnp.inf, value, jnp.inf))


def epsilon(*, delta: Any, noise_multiplier: Any) -> Any:
    r"""The smallest epsilon at delta: the inverse of the exact privacy profile.

    With b the noise multiplier,
    :math:`\varepsilon(\delta) = \max(0, 1/b + 2 \log(1 - \delta))`.

    Args:
      delta: Scalar in [0, 1). 0 gives the pure guarantee 1/b.
      noise_multiplier: Scalar >= 0, scale over L1 sensitivity. 0 gives infinity.

    Returns:
      Scalar >= 0: a float, or traced if an argument is.

    Raises:
      ValueError: if an argument is outside its range.

    Guarantee:
      Never below the truth, never negative, for the neighbours that the sensitivity is for.
      Rounded up: by at most 2 units in the last place of 1/b, 8 of 2 log(1 - delta) and 2 of
      itself.

    Example:
      >>> from jaxdp.mechanisms import laplace
      >>> round(laplace.epsilon(delta=1e-5, noise_multiplier=1.0), 12)
      0.9999799999

    References:
      Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, Theorem 3.
    """
    _validate.delta("delta", delta, allow_zero=True)
    _validate.non_negative("noise_multiplier", noise_multiplier)
    return _precision.evaluate(_epsilon_formula, delta, noise_multiplier)
