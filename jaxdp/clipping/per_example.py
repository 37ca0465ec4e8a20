"""Clipped sums by way of every example's own gradient, the reference strategy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _validate
from jaxdp.clipping import rescale


class PerExample(NamedTuple):
    """What ``clipped_grad`` can report about single examples. Not private.

    Args:
      loss: Loss of each example, ``[batch]``, zero for padding.
      norm: Norm of each example's gradient before clipping, ``[batch]`` or a pytree of
        such arrays shaped like the clip norm, in the clip norm's order (L2 or L1): an upper
        bound within 3e-5 of the true norm, or by book-keeping within a bound on the rounding
        of products. Not finite if the example is left out. Zero for padding.
    """

    loss: jax.Array
    norm: Any


def scalar_loss(
    loss_fn: Callable[..., Any], has_aux: bool, key: jax.Array | None
) -> Callable[..., tuple[jax.Array, Any]]:
    """The loss as a function of parameters, one example and its index, with auxiliary output."""

    def loss_and_aux(params, example, index):
        keyword = {} if key is None else {"key": jax.random.fold_in(key, index)}
        output = loss_fn(params, *example, **keyword)
        if has_aux and not (isinstance(output, tuple) and len(output) == 2):
            _validate.refuse("loss_fn's output", output, "a pair (loss, aux), since has_aux=True")
        loss, aux = output if has_aux else (output, None)
        allowed = "a real floating-point scalar for each example"
        if not isinstance(loss, float | jax.Array):
            hint = "" if has_aux else ", or has_aux=True if it is a pair (loss, aux)"
            _validate.refuse("loss_fn's output", loss, allowed + hint)
        loss = jnp.asarray(loss)
        if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            _validate.refuse("loss_fn's output", f"{loss.dtype}{list(loss.shape)}", allowed)
        return loss, aux

    return loss_and_aux


def report(losses: jax.Array, norms: Any, is_padding: jax.Array) -> PerExample:
    """Losses and norms as they are reported, zero for padding."""
    losses = losses.astype(jnp.promote_types(losses.dtype, jnp.float32))
    return jax.tree.map(
        lambda leaf: jnp.where(is_padding, jnp.zeros((), leaf.dtype), leaf),
        PerExample(losses, norms),
    )


def clip_and_sum(
    loss_and_aux: Callable[..., tuple[jax.Array, Any]],
    rule: rescale.ClipRule,
    params: Any,
    batch: tuple[Any, ...],
    indices: jax.Array,
    is_padding: jax.Array,
) -> tuple[Any, tuple[PerExample, Any]]:
    """Differentiates each example by itself, clips, then sums.

    Args:
      loss_and_aux: Function of parameters, one example and its index.
      rule: How to clip.
      params: Pytree of parameters.
      batch: Pytrees of examples with a leading axis ``[batch]``.
      indices: Int ``[batch]``: each example's place in the whole batch.
      is_padding: Bool ``[batch]``.

    Returns:
      The sum, shaped like the parameters, and per example the loss, norm and aux.
    """
    grad = jax.value_and_grad(loss_and_aux, has_aux=True)
    (losses, aux), gradients = jax.vmap(grad, in_axes=(None, 0, 0))(params, batch, indices)
    total, norms = rescale.clip_and_sum(rule, gradients, is_padding)
    return total, (report(losses, norms, is_padding), aux)
