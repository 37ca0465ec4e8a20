"""The clipped gradient of any per-example loss."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxdp import _validate
from jaxdp.clipping import bookkeeping, frozen, microbatch, per_example, rescale
from jaxdp.clipping.clipped_sum import ClippedSum

STRATEGIES = ("auto", "bookkeeping", "per_example")


def clipped_grad(
    loss_fn: Callable[..., Any],
    *,
    l2_clip_norm: Any = None,
    l1_clip_norm: Any = None,
    method: str = "clip",
    strategy: str = "auto",
    frozen_argnums: int | tuple[int, ...] = (),
    microbatch_size: int | None = None,
    has_aux: bool = False,
    return_per_example: bool = False,
) -> Callable[..., Any]:
    r"""Makes a function that sums clipped per-example gradients.

    With :math:`g_i` the gradient of example :math:`i`, the sum is

    .. math:: \sum_i g_i \min(1, C / \|g_i\|) \quad\text{or}\quad
              \sum_i g_i \, C / (\|g_i\| + 0.01)

    for ``method="clip"`` and ``method="automatic"`` (normalised clipping). The function
    that is returned is pure and not compiled: call it inside your own ``jax.jit``.

    Args:
      loss_fn: Function ``(params, *example) -> scalar`` of one example (no leading axis),
        or ``-> (scalar, aux)`` with ``has_aux``. It may do anything that ``jax.grad`` and
        ``jax.vmap`` can follow.
      l2_clip_norm: The most that one example adds to the sum in L2 norm over all
        parameters, in the unit of the gradient, in [1e-30, 1e30]. Or a pytree prefix of the
        parameters: each subtree is then clipped by itself to its own norm. Numbers may be
        traced.
      l1_clip_norm: The same in L1 norm (sum of absolute values). Exactly one of the two
        norms must be given.
      method: "clip" shortens long gradients; "automatic" brings every gradient near the
        norm ``C``, so that only the product of ``C`` and the learning rate matters.
      strategy: How the sum is computed. It changes the sum by rounding, and by the room that
        norms have for it: more where positions cancel one another. "auto" finds
        where the loss uses each parameter (products, convolutions, lookups, through any
        control flow) and computes norms and sums from what one backward pass leaves behind,
        holding per-example gradients only where that is cheap or the use is not of a known
        form (``jaxdp.clipping.explain`` says which). "bookkeeping" raises in that last case.
        "per_example" holds the gradient of every example of a (micro)batch.
      frozen_argnums: Places among ``loss_fn``'s arguments (1 or more) of those that are
        handed on as they are: neither differentiated nor split into examples.
      microbatch_size: Examples to differentiate at once, to bound the memory; any integer
        >= 1. None for the whole batch. It changes the sum by rounding only.
      has_aux: Whether ``loss_fn`` returns a pair ``(scalar, aux)``.
      return_per_example: Whether to return each example's loss and gradient norm too.

    Returns:
      A function ``(params, *batch, key=None, is_padding=None)``. ``params`` is a pytree
      of real floating-point arrays; each batch argument (frozen ones excepted) a pytree
      whose leaves share the leading axis ``[batch]``; ``is_padding`` a bool array
      ``[batch]``, True for examples that count for nothing. With ``key`` (a scalar typed
      PRNG key, a fresh one for each call) the loss is called with ``key=fold_in(key, i)``
      for the example at place ``i``.

      It returns a ``ClippedSum`` with sums in float32 or wider, whatever the parameters'
      type. With ``has_aux`` follows aux, stacked over examples; with
      ``return_per_example`` follows last a ``PerExample(loss, norm)``. **Neither aux nor
      PerExample is private: they show single examples, unclipped and without noise.**

    Raises:
      ValueError: if an argument is out of range, not exactly one clip norm is given, the
        leading axes differ, a parameter is not real floating point, the clip norm is not
        a prefix of the parameters, the loss is not a scalar, or strategy="bookkeeping" meets
        a use of a parameter that is not of a known form.

    Guarantee:
      One example's contribution has at most the sensitivity's norm: in exact arithmetic
      on the float32 gradient entries where these are held, and on the float32 activations
      and cotangents that the gradient is a product of where they are not. The norm used is
      rounded up; it exceeds the true one by 3e-5 at most where entries are held, and by a
      bound on the rounding of the products, which grows where positions cancel, elsewhere.
      The sensitivity is for neighbours that differ by adding or removing one example, an
      entry of the leading axis. It supposes that the loss looks at one example at a time,
      which holds here by construction, and rounding in the sum over examples is not
      part of it. A gradient with an entry that is not finite, a padding example, and an empty
      batch contribute exactly zero; so does, where nothing is held, an example whose
      activations times cotangents leave the range of the type, or whose activations are more
      than about 1e25 times the clip norm. A traced clip norm out of range makes the sum zero
      and the sensitivity NaN.

    Example:
      >>> import jax.numpy as jnp, jaxdp
      >>> loss_fn = lambda w, x: jnp.vdot(w, x)
      >>> grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0)
      >>> clipped = grad_fn(jnp.zeros(2), jnp.array([[0.5, 0.0], [0.0, 8.0]]))
      >>> print(clipped.value.round(3), clipped.l2_sensitivity)
      [0.5 1. ] 1.0

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; McMahan et al. 2018,
      arXiv:1812.06210 (per-layer clipping); Bu et al. 2022, arXiv:2206.07136 (automatic
      clipping); Goodfellow 2015, arXiv:1510.01799 (norms without gradients); Li et al. 2022,
      arXiv:2110.05679 (ghost clipping); Bu et al. 2023, arXiv:2210.00038 (book-keeping).
    """
    _validate.function("loss_fn", loss_fn)
    rule = rescale.clip_rule(l2_clip_norm, l1_clip_norm, method)
    _validate.choice("strategy", strategy, STRATEGIES)
    frozen_places = frozen.places(frozen_argnums)
    if microbatch_size is not None:
        _validate.integer("microbatch_size", microbatch_size, minimum=1)

    def grad_fn(params, *arguments, key=None, is_padding=None):
        _validate.float_tree("params", params)
        loss_of_example, batch = frozen.bind(loss_fn, frozen_places, arguments)
        rescale.check_structure(rule, params)
        size = _validate.leading_axis("batch", batch)
        if key is not None:
            _validate.key("key", key)
        mask = jnp.zeros(size, bool) if is_padding is None else jnp.asarray(is_padding)
        if mask.shape != (size,) or mask.dtype != jnp.bool_:
            _validate.refuse("is_padding", is_padding, f"a bool array of shape ({size},)")
        loss_and_aux = per_example.scalar_loss(loss_of_example, has_aux, key)

        def sum_slice(indexed_examples, slice_mask):
            indices, examples = indexed_examples
            operands = (loss_and_aux, rule, params, examples, indices, slice_mask)
            if strategy == "per_example":
                return per_example.clip_and_sum(*operands)
            return bookkeeping.clip_and_sum(*operands, insist=strategy == "bookkeeping")

        indexed = (jnp.arange(size), batch)
        total, (reported, aux) = microbatch.sum_by_slices(sum_slice, indexed, mask, microbatch_size)
        clipped = ClippedSum(total, *rescale.sensitivities(rule))
        extras = [aux] * has_aux + [reported] * return_per_example
        return (clipped, *extras) if extras else clipped

    return grad_fn
