"""Adam's rescaling with the noise's own variance taken out of the second moment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _validate


class AdamBCState(NamedTuple):
    step: jax.Array  # int32 scalar, updates so far
    mu: Any  # pytree like the updates: moving average of the gradient
    nu: Any  # pytree like the updates: moving average of its square
    noise_variance: jax.Array  # float scalar: moving average of the noise's variance


def scale_by_adam_bc(
    noise_stddev: float | Callable[[jax.Array], Any],
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    variance_floor: float = 1e-8,
) -> optax.GradientTransformation:
    r"""Rescales a noisy gradient as Adam does, correcting for the noise's known variance.

    With bias-corrected moving averages :math:`\hat m` of the gradient, :math:`\hat v` of its
    square and :math:`\hat \Phi` of the noise's variance, the update is
    :math:`\hat m / \sqrt{\max(\hat v - \hat \Phi, \gamma)}`. Without the correction
    :math:`\hat v` is mostly noise, the same for every parameter, and Adam becomes SGD.

    Args:
      noise_stddev: Standard deviation of the noise in one entry of the incoming gradient
        (noise multiplier times sensitivity over expected batch size), >= 0; or a function
        from the step (int32 scalar) to it.
      b1: Decay of the first moment, in [0, 1).
      b2: Decay of the second moment, in [0, 1).
      variance_floor: The least value of the corrected second moment, > 0: what stands below
        it is noise as far as the optimizer is concerned.

    Returns:
      A transformation that keeps structure; moments are in the updates' dtype.

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      Post-processing of a private gradient by public constants.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxdp.transforms import scale_by_adam_bc
      >>> tx = scale_by_adam_bc(3.0)
      >>> gradient = jnp.asarray([5.0])
      >>> update, _ = tx.update(gradient, tx.init(gradient))  # 5 / sqrt(25 - 9)
      >>> round(float(update[0]), 4)
      1.25

    References:
      Tang, Shpilevskiy and Lecuyer 2023, arXiv:2312.14334, Algorithm 1.
    """
    if not callable(noise_stddev):
        _validate.non_negative("noise_stddev", noise_stddev)
    for name, decay in (("b1", b1), ("b2", b2)):
        _validate.probability(name, decay)
        if not _validate.is_traced(decay) and float(decay) == 1.0:
            _validate.refuse(name, decay, "a number in [0, 1)")
    _validate.positive("variance_floor", variance_floor)

    def init(params):
        # Private gradients come in float32 or wider, whatever the parameters are.
        mu, nu = (
            jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)),
                params,
            )
            for _ in range(2)
        )
        return AdamBCState(jnp.zeros((), jnp.int32), mu, nu, jnp.zeros((), jnp.result_type(float)))

    def update(updates, state, params=None):
        del params
        stddev = noise_stddev(state.step) if callable(noise_stddev) else noise_stddev
        count = state.step + 1
        mu = optax.tree_utils.tree_update_moment(updates, state.mu, b1, 1)
        nu = optax.tree_utils.tree_update_moment(updates, state.nu, b2, 2)
        noise_variance = b2 * state.noise_variance + (1 - b2) * jnp.square(stddev)
        mu_hat = optax.tree_utils.tree_bias_correction(mu, b1, count)
        nu_hat = optax.tree_utils.tree_bias_correction(nu, b2, count)
        noise_hat = optax.tree_utils.tree_bias_correction(noise_variance, b2, count)
        scaled = jax.tree.map(
            lambda m, v: m / jnp.sqrt(jnp.maximum(v - noise_hat.astype(v.dtype), variance_floor)),
            mu_hat,
            nu_hat,
        )
        return scaled, AdamBCState(count, mu, nu, noise_variance)

    return optax.GradientTransformation(init, update)
