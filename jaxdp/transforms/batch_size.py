"""Division by the expected batch size as an Optax link."""

from typing import Any

import jax
import optax

from jaxdp import _validate
from jaxdp.clipping.clipped_sum import ClippedSum


def scale_by_batch_size(expected_batch_size: Any) -> optax.GradientTransformation:
    r"""Divides a private sum by the expected batch size.

    Turns the noisy sum :math:`s` into :math:`s / E`, with :math:`E` a public constant: under
    Poisson sampling, the number of records times the sampling probability.

    Args:
      expected_batch_size: Number of examples that a batch holds on average, > 0; need not be
        an integer. Never the number that a batch happened to hold: that number is private
        under Poisson sampling, and dividing by it breaks the guarantee (and gives inf for an
        empty batch).

    Returns:
      A stateless transformation that keeps structure and dtype.

    Raises:
      ValueError: if ``expected_batch_size`` is not a finite number > 0, or the updates are
        still a ``ClippedSum``, which no noise has been added to yet.

    Guarantee:
      Post-processing by a constant: none is added or lost.

    Example:
      >>> import jax.numpy as jnp, jaxdp
      >>> tx = jaxdp.scale_by_batch_size(4)
      >>> mean, _ = tx.update(jnp.asarray([2.0]), tx.init(jnp.asarray([0.0])))
      >>> mean.tolist()
      [0.5]

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1 (L is the expected lot size).
    """
    _validate.positive("expected_batch_size", expected_batch_size)

    def init(params):
        del params
        return optax.EmptyState()

    def update(updates, state, params=None):
        del params
        if isinstance(updates, ClippedSum):
            raise ValueError(
                "scale_by_batch_size expects a private sum, got a ClippedSum: put "
                "add_gaussian_noise (or add_laplace_noise) before it in the chain."
            )
        return jax.tree.map(lambda leaf: leaf / expected_batch_size, updates), state

    return optax.GradientTransformation(init, update)
