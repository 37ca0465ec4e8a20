"""Refusals that the private links share."""

from typing import Any

import jax
import optax

from jaxdp.clipping.clipped_sum import ClippedSum


def clipped_sum(link: str, updates: Any) -> ClippedSum:
    """The updates, if they are a ClippedSum."""
    if not isinstance(updates, ClippedSum):
        raise ValueError(
            f"{link} expects the ClippedSum that clipped_grad or clip_per_example returns, got a "
            f"{type(updates).__name__}: an unclipped gradient has no bounded sensitivity."
        )
    return updates


def no_masked_leaves(link: str, tree: Any) -> None:
    """Refuses a tree from which optax.masked or multi_transform has taken leaves away."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, optax.MaskedNode))
    if any(isinstance(leaf, optax.MaskedNode) for leaf in leaves):
        raise ValueError(
            f"{link} must see every leaf, got a tree with leaves masked away: the leaves left out "
            "would pass without clipping or noise. Mask the transformations that come after the "
            "noise instead, as in chain(add_gaussian_noise(...), masked(adam(...), mask))."
        )
