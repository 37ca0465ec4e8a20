"""Unit noise shaped like a pytree, every leaf from a key of its own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _validate

Sampler = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


def _noise_like(sampler: Sampler, key: jax.Array, tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(_validate.float_tree("tree", tree))
    # float32 at least: in bfloat16 a normal sample takes 128 values, none beyond 2.9 sigma.
    noise = [
        sampler(
            jax.random.fold_in(key, index),
            jnp.shape(leaf),
            jnp.promote_types(jnp.result_type(leaf), jnp.float32),
        )
        for index, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, noise)


# Roots of the streams that the package draws from. split(key, n)[i] is fold_in(key, i): without
# a root of its own a stream would meet keys that the caller has split from the same parent.
GAUSSIAN, LAPLACE, POISSON = 0x6A78_6701, 0x6A78_6702, 0x6A78_6703
ADAPTIVE = 0x6A78_6704


def copy(key: jax.Array) -> jax.Array:
    """The same key in a buffer of its own, so that a donated state does not delete the caller's."""
    data = jnp.array(jax.random.key_data(key), copy=True)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def normal_like(key: jax.Array, tree: Any) -> Any:
    """Independent N(0, 1) entries in the shapes of ``tree``, float32 or wider."""
    return _noise_like(jax.random.normal, key, tree)


def laplace_like(key: jax.Array, tree: Any) -> Any:
    """Independent Laplace(0, 1) entries in the shapes of ``tree``, float32 or wider."""
    return _noise_like(jax.random.laplace, key, tree)
