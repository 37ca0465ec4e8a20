"""The map from each example's gradient to a contribution of bounded norm."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _tree, _validate

# Thresholds for which a float32 quotient by a float32 norm is a normal number.
_SMALLEST, _LARGEST = 1e-30, 1e30
# Room for the roundings of the threshold, the quotient, the product and the cast.
_MARGIN = 2.0**-19
# Keeps the size of small gradients in normalised clipping, as in Bu et al. 2022.
_STABILITY = 0.01
# Examples that are added up at once where a batch cannot be summed in one contraction.
_SLICE = 8
# Below this many entries an example, arrays are scaled before they are added up.
_SMALL = 1024
METHODS = ("clip", "automatic")


class ClipRule(NamedTuple):
    """How gradients are clipped: the checked arguments of ``clip_rule``."""

    norms: Any  # pytree prefix of the parameters, one threshold for each subtree
    order: int  # 2 for the L2 norm, 1 for the L1 norm
    method: str

    @property
    def name(self) -> str:
        return f"l{self.order}_clip_norm"


def clip_rule(l2_clip_norm: Any, l1_clip_norm: Any, method: str) -> ClipRule:
    """Checks the arguments that say how to clip."""
    _validate.choice("method", method, METHODS)
    if (l2_clip_norm is None) == (l1_clip_norm is None):
        raise ValueError(
            "exactly one of l2_clip_norm and l1_clip_norm must be given, got "
            f"l2_clip_norm={l2_clip_norm!r}, l1_clip_norm={l1_clip_norm!r}."
        )
    rule = (
        ClipRule(l2_clip_norm, 2, method)
        if l1_clip_norm is None
        else ClipRule(l1_clip_norm, 1, method)
    )
    for path, norm in jax.tree_util.tree_leaves_with_path(rule.norms):
        where = rule.name + jax.tree_util.keystr(path)
        _validate.positive(where, norm)
        if not _validate.is_traced(norm) and not _SMALLEST <= float(norm) <= _LARGEST:
            _validate.refuse(where, norm, f"a number in [{_SMALLEST}, {_LARGEST}]")
    return rule


def check_structure(rule: ClipRule, params: Any) -> None:
    """Refuses thresholds that do not cover the parameters."""
    treedef: Any = jax.tree.structure(rule.norms)
    try:
        treedef.flatten_up_to(params)
    except ValueError:
        structure = jax.tree.structure(params)
        allowed = f"a number, or a pytree prefix of the parameters' structure {structure}"
        _validate.refuse(rule.name, rule.norms, allowed)


def _usable(norm: jax.Array) -> jax.Array:
    """Whether a threshold is one that ``clip_rule`` would have let pass (NaN is not)."""
    return (norm >= _SMALLEST) & (norm <= _LARGEST)


class Shrink(NamedTuple):
    """What each example's gradient of one subtree is multiplied by; arrays ``[batch]``.

    Two products, by ``down`` and then by ``factor``, since the product of the two may
    underflow; by ``factor`` alone where not ``clips``.
    """

    down: jax.Array  # power of two
    factor: jax.Array
    clips: jax.Array  # bool
    keep: jax.Array  # bool: whether the example contributes at all
    coefficient: jax.Array  # the product of the two, or zero for examples that add nothing
    is_plain: jax.Array  # bool: whether multiplying by the coefficient does it


def _shrink_subtree(
    rule: ClipRule, threshold: jax.Array, bound: _tree.NormBound, keep: jax.Array
) -> Shrink:
    dtype = threshold.dtype
    down = _tree.reciprocal(bound.scale)
    # A scaled norm below 1 is the norm of zeros, which any finite factor leaves alone.
    scaled = jnp.maximum(bound.scaled, 1)
    if rule.method == "clip":
        clips = ~(bound.value <= threshold)
        factor = jnp.where(clips, threshold * (1 - _MARGIN) / scaled, 1)
    else:
        clips = bound.scaled > 0
        factor = threshold * (1 - _MARGIN) / (scaled + _STABILITY * down)
    info = jnp.finfo(dtype)
    tiny, largest = float(info.tiny), float(info.max) / 4
    adds = keep & (bound.scaled > 0)
    coefficient = jnp.where(adds, jnp.where(clips, down * factor, factor), jnp.zeros((), dtype))
    # Next to a norm above the root of the smallest normal number, subnormal entries are
    # nothing. Zero times a row is zero if the row is finite, and stays so where the
    # accelerator splits it into several bfloat16.
    normal = (coefficient >= tiny) & (bound.value >= tiny**0.5)
    is_plain = (bound.value <= largest) & (normal | ~adds)
    return Shrink(down, factor, clips, keep, coefficient, is_plain)


def shrink(
    rule: ClipRule, bounds: Sequence[_tree.NormBound], is_padding: jax.Array
) -> tuple[list[Shrink], Any]:
    r"""What to multiply each example's gradient by, and the norms before clipping.

    With :math:`C` the threshold, :math:`\gamma = 0.01`, and the norm of the rule's order,
    the contribution of a subtree :math:`g` is :math:`g \min(1, C / \|g\|)` ("clip") or
    :math:`g\, C / (\|g\| + \gamma)` ("automatic").

    Args:
      rule: The thresholds, order and method.
      bounds: For each threshold, in the order of the tree's leaves, bounds ``[batch]`` on
        the norms of each example's gradient of that subtree, in the rule's order.
      is_padding: Bool ``[batch]``.

    Returns:
      For each threshold how to shrink its subtree, for ``scaled`` and ``weighted_sum``;
      and a pytree like the rule's thresholds of norms ``[batch]`` (the bounds).

    Guarantee:
      Each example's contribution has, in each subtree, at most its threshold as norm, in
      exact arithmetic on the values that ``scaled`` returns, and within 3e-5 of it where
      "clip" clips. If a bound is not finite, a threshold is not in the accepted range (a
      traced one cannot be refused), or the example is padding, the example's whole
      contribution is exactly zero.
    """
    bounds = [
        _tree.NormBound(*(jnp.broadcast_to(part, is_padding.shape) for part in bound))
        for bound in bounds
    ]
    thresholds = [
        jnp.asarray(norm, bound.scaled.dtype)
        for norm, bound in zip(jax.tree.leaves(rule.norms), bounds, strict=True)
    ]
    keep = ~is_padding
    for threshold, bound in zip(thresholds, bounds, strict=True):
        keep &= jnp.isfinite(bound.scaled) & _usable(threshold)
    shrinks = [
        _shrink_subtree(rule, threshold, bound, keep)
        for threshold, bound in zip(thresholds, bounds, strict=True)
    ]
    treedef: Any = jax.tree.structure(rule.norms)
    norms = treedef.unflatten([bound.value for bound in bounds])
    return shrinks, norms


def scaled(shrink: Shrink, rows: jax.Array) -> jax.Array:
    """Each example's row multiplied by what its gradient is, in float32 or wider.

    Args:
      shrink: What ``shrink`` returned for the subtree.
      rows: Floating-point array with a leading axis ``[batch]``.

    Returns:
      The products: exactly zero for examples that are dropped, whatever their rows hold.
    """
    down, factor, clips, keep = (_tree.along(part, rows) for part in shrink[:4])
    flushed = _tree.flush(rows, jnp.promote_types(rows.dtype, factor.dtype))
    # The choice between the products keeps the compiler from making them one.
    product = jnp.where(clips, flushed * down, flushed) * factor
    # Subnormal products may have been rounded up, by much of their size.
    product = _tree.flush(product, jnp.promote_types(rows.dtype, jnp.float32))
    return jnp.where(keep, product, jnp.zeros((), product.dtype))


def _weigh(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """The weighted sum over examples, in one pass at the speed of memory."""
    flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    total = jnp.matmul(weights, flat, precision=jax.lax.Precision.HIGHEST)
    return total.reshape(rows.shape[1:])


def _contract(shrink: Shrink, leaves: list[jax.Array]) -> list[jax.Array]:
    """The sums of ``scaled`` leaves of the coefficients' type."""
    if not shrink.keep.size:
        return [jnp.zeros(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    if sum(math.prod(leaf.shape[1:]) for leaf in leaves) < _SMALL:
        # A copy of them costs less than a longer program.
        ones = jnp.ones(shrink.keep.shape, shrink.factor.dtype)
        return [_weigh(ones, scaled(shrink, leaf)) for leaf in leaves]

    def any_left(state):
        return jnp.any(state[0])

    def scale_one(state):
        left, leaves = state
        i = jnp.argmax(left)
        one = jax.tree.map(lambda array: array[i][None], shrink)

        def scale_row(leaf):
            row = jax.lax.dynamic_index_in_dim(leaf, i)
            return jax.lax.dynamic_update_index_in_dim(leaf, scaled(one, row), i, 0)

        return left.at[i].set(False), [scale_row(leaf) for leaf in leaves]

    # Rows that are not finite, or whose coefficient underflows, are scaled first, one by
    # one in place, so that the contraction is the same whatever they hold: no example's
    # content may change, by a rounding, what the others add.
    _, leaves = jax.lax.while_loop(any_left, scale_one, (~shrink.is_plain, leaves))
    weights = jnp.where(shrink.is_plain, shrink.coefficient, 1)
    return [_weigh(weights, leaf) for leaf in leaves]


def _sum_by_slices(shrink: Shrink, rows: jax.Array) -> jax.Array:
    """The sum of the ``scaled`` rows, a few examples at a time to spare the memory."""
    size = rows.shape[0]
    length = max(d for d in range(1, _SLICE + 1) if size % d == 0)

    def body(total, one_slice):
        added = scaled(*one_slice)
        return total + _weigh(jnp.ones(length, total.dtype), added).astype(total.dtype), None

    zero = jnp.zeros(rows.shape[1:], jnp.promote_types(rows.dtype, jnp.float32))
    slices = jax.tree.map(
        lambda array: array.reshape(size // length, length, *array.shape[1:]), (shrink, rows)
    )
    return jax.lax.scan(body, zero, slices)[0]


def weighted_sum(shrink: Shrink, gradients: Any) -> Any:
    """The sum over examples of gradients that are each ``scaled``.

    Args:
      shrink: What ``shrink`` returned for the subtree.
      gradients: Pytree of arrays with a leading axis ``[batch]``: the gradients that the
        bounds were taken of, all of them or some leaves, best as ``_tree.rows`` gives them.

    Returns:
      The sums, in float32 or wider.

    Guarantee:
      What one example adds is a function of that example alone, besides the rounding of
      the sum; what a dropped example holds changes no bit.
    """
    treedef: Any = jax.tree.structure(gradients)
    leaves = jax.tree.leaves(gradients)
    # A product with narrower rows would write them all out in the wider type.
    is_narrow = [leaf.dtype != shrink.coefficient.dtype for leaf in leaves]
    wide = [leaf for leaf, narrow in zip(leaves, is_narrow, strict=True) if not narrow]
    contracted = iter(_contract(shrink, wide))
    return treedef.unflatten(
        _sum_by_slices(shrink, leaf) if narrow else next(contracted)
        for leaf, narrow in zip(leaves, is_narrow, strict=True)
    )


def clip_and_sum(rule: ClipRule, gradients: Any, is_padding: jax.Array) -> tuple[Any, Any]:
    """The sum of clipped per-example gradients, and the norms before clipping.

    Args:
      rule: The thresholds, order and method.
      gradients: Pytree of gradients with a leading example axis.
      is_padding: Bool ``[batch]``.

    Returns:
      The sum over examples, and a pytree of norms ``[batch]``.
    """
    treedef: Any = jax.tree.structure(rule.norms)
    subtrees = treedef.flatten_up_to(jax.tree.map(_tree.rows, gradients))
    norm_bounds = _tree.l2_norm_bounds if rule.order == 2 else _tree.l1_norm_bounds
    shrinks, norms = shrink(rule, [norm_bounds(subtree) for subtree in subtrees], is_padding)
    sums = [weighted_sum(*pair) for pair in zip(shrinks, subtrees, strict=True)]
    return jax.tree.map(
        lambda total, leaf: total.reshape(leaf.shape[1:]), treedef.unflatten(sums), gradients
    ), norms


def sensitivities(rule: ClipRule) -> tuple[jax.Array, jax.Array | None]:
    """The L2 and L1 norms that one contribution cannot exceed over all subtrees together.

    Returns:
      The L2 and the L1 sensitivity, rounded up; None where no L1 bound is known; NaN,
      which shows, where a traced threshold is out of range (nothing is summed then).
    """
    dtype = jnp.result_type(float)
    thresholds = jax.tree.leaves(rule.norms)
    norms = jnp.stack([jnp.asarray(norm, dtype) for norm in thresholds] or [jnp.zeros((), dtype)])
    usable = jnp.all(_usable(norms)) | (not thresholds)

    def total(bound):
        value = norms[0] if norms.size == 1 else bound(norms).value
        return jnp.where(usable, value, jnp.nan)

    l1 = total(_tree.l1_norm_bound) if rule.order == 1 else None
    # A vector's L2 norm is at most its L1 norm, so the same thresholds bound both.
    return total(_tree.l2_norm_bound), l1
