"""Clipping as its formula says: every example's gradient by JAX, the rest in NumPy's float64."""

import jax
import numpy as np

from tests.clipping.zoo.compiling import compiled
from tests.clipping.zoo.entry import BATCH, Entry, Problem

KEY = 7


def keywords(entry: Entry):
    return {"key": jax.random.key(KEY)} if entry.key else {}


def frozen_places(entry: Entry):
    """Which of the batch arguments are no batch."""
    frozen = (entry.options or {}).get("frozen_argnums", ())
    return {position - 1 for position in ((frozen,) if isinstance(frozen, int) else frozen)}


def per_example_gradients(entry: Entry, problem: Problem):
    """Float64 gradients with a leading example axis, computed in the types of the problem."""
    has_aux = (entry.options or {}).get("has_aux", False)

    def loss_fn(params, index, *example):
        drawn = {} if not entry.key else {"key": jax.random.fold_in(jax.random.key(KEY), index)}
        return problem.loss_fn(params, *example, **drawn)

    def gradients(params, *batch):
        axes = [None if i in frozen_places(entry) else 0 for i in range(len(batch))]
        grad = jax.grad(loss_fn, has_aux=has_aux)
        return jax.vmap(grad, in_axes=(None, 0, *axes))(params, np.arange(BATCH), *batch)

    result = compiled(gradients)(problem.params, *problem.batch)
    result = result[0] if has_aux else result
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), result)


def norms(gradients, order=2):
    """The norm of each example over all leaves together."""
    rows = [leaf.reshape(BATCH, -1) for leaf in jax.tree.leaves(gradients)]
    return np.linalg.norm(np.concatenate(rows, axis=1), order, axis=1)


def weighted_sum(gradients, weights):
    return jax.tree.map(lambda leaf: np.tensordot(weights, leaf, axes=1), gradients)


def weights(gradients, threshold, order=2, method="clip"):
    """What each example's gradient is multiplied with."""
    length = norms(gradients, order)
    if method == "automatic":
        return threshold / (length + 0.01)
    return threshold / np.maximum(length, threshold)
