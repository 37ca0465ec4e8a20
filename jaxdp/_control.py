"""Branching that costs nothing outside a compiled program."""

from collections.abc import Callable
from typing import Any

import jax

from jaxdp import _validate


def cond(predicate: jax.Array, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
    """``lax.cond``, but a predicate that is known is branched on in Python.

    ``lax.cond`` traces and compiles both branches on every call outside jit.
    """
    if _validate.is_traced(predicate):
        return jax.lax.cond(predicate, if_true, if_false)
    return if_true() if bool(predicate) else if_false()
