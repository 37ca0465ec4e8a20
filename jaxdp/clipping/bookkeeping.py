"""Clipped sums without per-example gradients, from what one backward pass leaves behind."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _tree
from jaxdp.clipping import factors, gram, groups, pieces, rescale, strategy, tapping, views
from jaxdp.clipping.per_example import PerExample, report


class Trace(NamedTuple):
    """A loss of one example as a jaxpr.

    Args:
      closed: The jaxpr, from the parameters' leaves and the example's to the loss and aux.
      outputs: The pytree of shapes that it returns.
    """

    closed: Any
    outputs: Any


def trace(loss_and_aux: Callable[..., Any], params: Any, *example: Any) -> Trace:
    """Traces the loss on parameters and one example (arrays or their shapes)."""
    closed, outputs = jax.make_jaxpr(loss_and_aux, return_shape=True)(params, *example)
    return Trace(closed, outputs)


def clip_and_sum(
    loss_and_aux: Callable[..., tuple[jax.Array, Any]],
    rule: rescale.ClipRule,
    params: Any,
    batch: tuple[Any, ...],
    indices: jax.Array,
    is_padding: jax.Array,
    *,
    insist: bool,
) -> tuple[Any, tuple[PerExample, Any]]:
    """Does what ``per_example.clip_and_sum`` does, parameter by parameter in the best way.

    Args:
      loss_and_aux: Function of parameters, one example and its index.
      rule: How to clip.
      params: Pytree of parameters.
      batch: Pytrees of examples with a leading axis ``[batch]``.
      indices: Int ``[batch]``: each example's place in the whole batch.
      is_padding: Bool ``[batch]``.
      insist: Whether to refuse a parameter whose use is not of a known form.

    Returns:
      The sum, shaped like the parameters, and per example the loss, norm and aux.
    """
    params = jax.tree.map(jnp.asarray, params)
    traced = trace(loss_and_aux, params, *jax.tree.map(_one_example, (batch, indices)))
    treedef: Any = jax.tree.structure(params)
    (size,) = is_padding.shape
    plan = strategy.plan(traced.closed.jaxpr, treedef.num_leaves, rule.order, size)
    if insist:
        _refuse_fallbacks(plan, params)
    losses, aux, gradients, found = _differentiate(traced, plan, params, batch, indices)
    leaves = jax.tree.leaves(params)
    parts = [
        _pieces(leaf, leaves[leaf].shape, plan, rule.order, gradients, found)
        for leaf in range(len(leaves))
    ]
    subtrees = _subtrees(rule, treedef)
    bounds = [
        _bound(rule.order, threshold, [piece for leaf in subtree for piece in parts[leaf]], size)
        for threshold, subtree in zip(jax.tree.leaves(rule.norms), subtrees, strict=True)
    ]
    shrinks, norms = rescale.shrink(rule, bounds, is_padding)
    terms: list[list[jax.Array]] = [[] for _ in leaves]
    for subtree, shrink in zip(subtrees, shrinks, strict=True):
        owners = [leaf for leaf in subtree for _ in parts[leaf]]
        found_sums = pieces.sums([piece for leaf in subtree for piece in parts[leaf]], shrink)
        for leaf, total in zip(owners, found_sums, strict=True):
            terms[leaf].append(total)
    totals = [_add_up(leaf, of_leaf) for leaf, of_leaf in zip(leaves, terms, strict=True)]
    return treedef.unflatten(totals), (report(losses, norms, is_padding), aux)


def _add_up(leaf: jax.Array, terms: list[jax.Array]) -> jax.Array:
    """The sum of terms, none of them for an unused parameter, in float32 or wider."""
    dtype = jnp.promote_types(leaf.dtype, jnp.float32)
    if not terms:
        return jnp.zeros(leaf.shape, dtype)
    return sum(terms[1:], start=terms[0]).astype(dtype)


def _one_example(leaf: Any) -> jax.ShapeDtypeStruct:
    leaf = jnp.asarray(leaf)
    # Typed keys are never weakly typed, and do not say so.
    weak_type = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, weak_type=weak_type)


def _differentiate(traced, plan, params, batch, indices):
    """One backward pass: losses, aux, gradients of instantiated leaves, factors of sites."""
    leaves = jax.tree.leaves(params)
    direct = {
        leaf: leaves[leaf]
        for leaf, chosen in enumerate(plan.leaves)
        if chosen.rule == "instantiated"
    }

    def loss_of(direct, taps, example, index):
        values = [direct.get(leaf, value) for leaf, value in enumerate(leaves)]
        inputs = [*values, *jax.tree.leaves((example, index))]
        outputs, operands = tapping.evaluate(
            traced.closed.jaxpr,
            traced.closed.consts,
            inputs,
            plan.found.actions,
            plan.found.sites,
            taps,
        )
        loss, aux = jax.tree.unflatten(jax.tree.structure(traced.outputs), outputs)
        return loss, (aux, operands)

    grad = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)
    taps = tapping.zeros(plan.found.sites)
    (losses, (aux, operands)), (gradients, cotangents) = jax.vmap(grad, in_axes=(None, None, 0, 0))(
        direct, taps, batch, indices
    )
    found = {number: (operands[number], cotangents[number]) for number in cotangents}
    return losses, aux, gradients, found


def _pieces(leaf, shape, plan, order, gradients, found) -> list[pieces.Piece]:
    """What one parameter is made of."""
    chosen = plan.leaves[leaf]
    if chosen.rule == "instantiated":
        return [pieces.held(gradients[leaf], lambda total: total)]
    result = []
    for way in chosen.ways:
        sites = {number: plan.found.sites[number] for number in way.group.sites}
        first = sites[way.group.sites[0]]

        def from_view(total, first=first):
            return views.put_back(first.view, shape, total)

        def from_factors(total, first=first):
            return views.put_back(first.view, shape, factors.to_view(first, total))

        if _is_plain_convolution(way, first):
            data, cotangent = found[way.group.sites[0]]
            piece = pieces.of_convolution(way.way, order, first, data, cotangent, from_view)
            result.append(piece)
            continue
        of_sites = {number: factors.of_site(site, *found[number]) for number, site in sites.items()}
        joined = groups.join(way.group, of_sites)
        result.append(pieces.of_factors(way.way, order, joined, way.sizes.d, from_factors))
    return result


def _is_plain_convolution(way: strategy.Way, site: Any) -> bool:
    return (
        site.rule == "conv_general_dilated"
        and len(way.group.sites) == 1
        and not site.loops
        and way.way != "recomputed"
    )


def _subtrees(rule: rescale.ClipRule, treedef: Any) -> list[list[int]]:
    """The leaves that each threshold is for."""
    places = treedef.unflatten(range(treedef.num_leaves))
    thresholds: Any = jax.tree.structure(rule.norms)
    return [jax.tree.leaves(subtree) for subtree in thresholds.flatten_up_to(places)]


def _bound(order: int, threshold: Any, parts: list[pieces.Piece], size: int) -> _tree.NormBound:
    """The norm of all pieces together, not finite where they cannot be clipped safely."""
    of_tree, combine = (
        (_tree.l2_norm_bounds, _tree.combine_l2)
        if order == 2
        else (_tree.l1_norm_bounds, _tree.combine_l1)
    )
    held = [piece.held for piece in parts if piece.held is not None]
    bounds: Any = [piece.bound for piece in parts if piece.bound is not None]
    if bounds and order == 2:
        bounds = gram.norms(bounds)
    if held:
        bounds.append(of_tree(held))
    if not bounds:
        return _tree.NormBound(jnp.zeros(size, jnp.float32), jnp.ones(size, jnp.float32))
    bound = combine(bounds)
    for piece in parts:
        if piece.smallest_threshold is not None:
            safe = piece.smallest_threshold <= jnp.asarray(threshold, bound.scaled.dtype)
            bound = bound._replace(scaled=jnp.where(safe, bound.scaled, jnp.nan))
    return bound


def _refuse_fallbacks(plan: strategy.Plan, params: Any) -> None:
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    refused = [
        f"{jax.tree_util.keystr(path) or 'params'} ({chosen.reason})"
        for path, chosen in zip(paths, plan.leaves, strict=True)
        if chosen.fallback
    ]
    if refused:
        raise ValueError(
            "strategy='bookkeeping' needs every use of every parameter to be of a known form, "
            f"got {', '.join(refused)}. strategy='auto' differentiates these for each example."
        )
