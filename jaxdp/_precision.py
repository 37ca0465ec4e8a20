"""Where a formula runs: float64 on the host for numbers, in the program for tracers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate

# jax.enable_x64 is the newer name of the same scoped context manager.
_enable_x64 = getattr(jax, "enable_x64", None)
if _enable_x64 is None:
    from jax.experimental import enable_x64 as _enable_x64


@functools.cache
def _compiled(formula: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    return jax.jit(formula, static_argnames=static)


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
    with (
        jax.ensure_compile_time_eval(),
        _enable_x64(True),
        jax.default_device(jax.local_devices(backend="cpu")[0]),
    ):
        numbers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), args)
        outputs = _compiled(formula, tuple(static))(*numbers, **static)
        return jax.tree.map(_to_python, outputs)
