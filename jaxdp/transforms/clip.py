"""Per-example clipping as an Optax link, for gradients that are already per example."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdp import _validate
from jaxdp.clipping import rescale
from jaxdp.clipping.clipped_sum import ClippedSum
from jaxdp.transforms import _checks


def clip_per_example(
    l2_clip_norm: Any = None, *, l1_clip_norm: Any = None, method: str = "clip"
) -> optax.GradientTransformation:
    r"""Clips stacked per-example gradients, then sums them over the examples.

    The same map as ``clipped_grad``, for callers who hold every example's gradient, as
    ``jax.vmap(jax.grad(loss_fn), in_axes=(None, 0))`` gives them. With :math:`g_i` the
    gradient of example :math:`i` it computes :math:`\sum_i g_i \min(1, C / \|g_i\|)`.

    Args:
      l2_clip_norm: The most that one example adds to the sum in L2 norm, in the unit of
        the gradient, in [1e-30, 1e30]; or a pytree prefix of the parameters, to clip each
        subtree by itself. Numbers may be traced (``optax.inject_hyperparams`` works).
      l1_clip_norm: The same in L1 norm. Exactly one of the two must be given.
      method: "clip", or "automatic" for :math:`\sum_i g_i\, C / (\|g_i\| + 0.01)`.

    Returns:
      A stateless transformation from a pytree of gradients ``[batch, *param.shape]`` to
      a ``ClippedSum`` in float32 or wider. Pass the parameters to ``update`` to have the
      shapes checked: a gradient that was already summed or averaged over the batch
      cannot be told from a stacked one otherwise.

    Raises:
      ValueError: if an argument is out of range, an update is a ``ClippedSum``, a leaf is
        masked away (by ``optax.masked`` or ``optax.multi_transform``: it would pass
        unclipped), not real floating point, or not shaped ``[batch, *param.shape]``.

    Guarantee:
      As for ``clipped_grad``, provided that row ``i`` of every leaf depends on example
      ``i`` alone (as it does under ``jax.vmap``; not with batch normalisation).

    Example:
      >>> import jax, jax.numpy as jnp, jaxdp
      >>> clip = jaxdp.clip_per_example(1.0)
      >>> params, gradients = jnp.zeros(2), jnp.array([[0.5, 0.0], [0.0, 8.0]])
      >>> clipped, _ = clip.update(gradients, clip.init(params), params)
      >>> print(clipped.value.round(3), clipped.l2_sensitivity)
      [0.5 1. ] 1.0

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; Bu et al. 2022, arXiv:2206.07136.
    """
    rule = rescale.clip_rule(l2_clip_norm, l1_clip_norm, method)

    def init(params: Any) -> optax.EmptyState:
        _checks.no_masked_leaves("clip_per_example", params)
        rescale.check_structure(rule, params)
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if isinstance(updates, ClippedSum):
            raise ValueError(
                "clip_per_example expects stacked per-example gradients, got a ClippedSum: "
                "clipped_grad has clipped it already, so leave this link out."
            )
        _checks.no_masked_leaves("clip_per_example", updates)
        _validate.float_tree("updates", updates)
        rescale.check_structure(rule, updates)
        # A tree without leaves has no batch, and its sum is itself.
        size = _validate.leading_axis("updates", updates) if jax.tree.leaves(updates) else 0
        if params is not None:
            _check_shapes(updates, params, size)
        value, _ = rescale.clip_and_sum(rule, updates, jnp.zeros(size, bool))
        return ClippedSum(value, *rescale.sensitivities(rule)), state

    return optax.GradientTransformation(init, update)


def _check_shapes(updates: Any, params: Any, size: int) -> None:
    given: Any = jax.tree.structure(updates)
    expected: Any = jax.tree.structure(params)
    if given != expected:
        _validate.refuse("updates", given, f"of the params' structure {expected}")
    leaves = jax.tree_util.tree_leaves_with_path(updates)
    for (path, leaf), param in zip(leaves, jax.tree.leaves(params), strict=True):
        expected = (size, *jnp.shape(param))
        if jnp.shape(leaf) != expected:
            where = "updates" + jax.tree_util.keystr(path)
            allowed = f"of shape {expected}: one gradient of the parameter for each example"
            _validate.refuse(where, f"shape {jnp.shape(leaf)}", allowed)
