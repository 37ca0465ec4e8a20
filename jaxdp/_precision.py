"""Where a formula runs: float64 on the host for numbers, in the program for tracers."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate

# jax.enable_x64 is the newer name of the same scoped context manager.
_enable_x64: Callable[[bool], Any]
if hasattr(jax, "enable_x64"):
    _enable_x64 = jax.enable_x64
else:
    from jax import experimental

    _enable_x64 = getattr(experimental, "enable_x64")  # noqa: B009 (newer JAX lacks it)


# What jaxlib 0.6.0 reads back from a persistent compilation cache computes something else: an
# epsilon of 0.29 where the program that was written there said 0.95. Seen to be right on 0.10.2.
CACHE_IS_RELIABLE = jax.__version_info__ >= (0, 10)


@functools.cache
def _compiled(formula: Callable[..., Any], structure: Any, shapes: Any, static: Any) -> Any:
    arguments = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]

    def only_here(*args, **options):
        # A constant that no other process has keeps a program from being found in the user's cache.
        mark = 0.0 if CACHE_IS_RELIABLE else int.from_bytes(os.urandom(6))
        return formula(*args, **options), jnp.float64(mark)

    jitted = jax.jit(only_here, static_argnames=tuple(name for name, _ in static))
    return jitted.lower(*jax.tree.unflatten(structure, arguments), **dict(static)).compile()


def _to_python(leaf: jax.Array) -> Any:
    array = np.asarray(leaf)
    return array.item() if array.ndim == 0 else array


def evaluate(formula: Callable[..., Any], *args: Any, **static: Any) -> Any:
    """Calls a pure, jittable ``formula`` on pytrees of numbers, at the best precision at hand.

    If no leaf of ``args`` is traced, the formula runs in float64 on the CPU (whatever
    the global x64 flag says, which stays untouched, and also in the middle of tracing a
    float32 program); scalars come back as Python numbers and arrays as NumPy arrays. If
    some leaf is traced, the formula is traced in place in the program's own float type.

    Args:
      formula: A module-level function (it is the key of the compilation cache).
      *args: Pytrees of numbers; every leaf is converted to floating point.
      **static: Hashable arguments by name, passed on as they are.

    Returns:
      What the formula returns.
    """
    if _validate.is_traced(args):
        dtype = jnp.result_type(float)
        return formula(*jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), args), **static)
    leaves, structure = jax.tree.flatten(args)
    numbers = [np.asarray(leaf, np.float64) for leaf in leaves]
    shapes = tuple(number.shape for number in numbers)
    # Compiled ahead of time, so that the call runs now even where a program is being traced.
    with _enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        compiled = _compiled(formula, structure, shapes, tuple(sorted(static.items())))
        outputs, _ = compiled(*jax.tree.unflatten(structure, numbers))
        return jax.tree.map(_to_python, outputs)
