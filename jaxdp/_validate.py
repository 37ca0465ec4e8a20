"""Trace-time checks of arguments, one helper for each kind of argument.

Every helper returns the value it checked. A traced value cannot be looked into,
so only its shape and kind are checked; what depends on its number is then up to
the program, which must stay private whatever the number is.
"""

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
    """Raises the one form of error that this package uses for a bad argument."""
    shown = repr(value)
    if len(shown) > 200:
        shown = shown[:197] + "..."
    raise ValueError(f"{name} must be {allowed}, got {shown}.")


def is_traced(*trees: Any) -> bool:
    """Whether any leaf of the trees is a value that a transformation will fill in."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def _number(name: str, value: Any, allowed: str) -> float | None:
    """The value as a float; None if it is traced, when only its kind can be checked."""
    if isinstance(value, jax.core.Tracer):
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.number):
            refuse(name, value, allowed)
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            refuse(name, value, allowed)
        return None
    if isinstance(value, bool | np.bool_):
        refuse(name, value, allowed)
    if isinstance(value, np.ndarray | jax.Array):
        real = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
        if value.shape != () or not real:
            refuse(name, value, allowed)
        return float(value)
    if not isinstance(value, numbers.Real):
        refuse(name, value, allowed)
    return float(value)


def finite(name: str, value: Any) -> Any:
    """A finite number of either sign."""
    allowed = "a finite number"
    number = _number(name, value, allowed)
    if number is not None and not -math.inf < number < math.inf:
        refuse(name, value, allowed)
    return value


def positive(name: str, value: Any) -> Any:
    """A finite number above zero."""
    allowed = "a finite number > 0"
    number = _number(name, value, allowed)
    if number is not None and not 0.0 < number < math.inf:
        refuse(name, value, allowed)
    return value


def non_negative(name: str, value: Any) -> Any:
    """A finite number, zero included."""
    allowed = "a finite number >= 0"
    number = _number(name, value, allowed)
    if number is not None and not 0.0 <= number < math.inf:
        refuse(name, value, allowed)
    return value


def probability(name: str, value: Any) -> Any:
    """A probability, both ends included."""
    allowed = "a probability in [0, 1]"
    number = _number(name, value, allowed)
    if number is not None and not 0.0 <= number <= 1.0:
        refuse(name, value, allowed)
    return value


def delta(name: str, value: Any, *, allow_zero: bool = False) -> Any:
    """The delta of (epsilon, delta): strictly below one; zero only for pure guarantees."""
    allowed = "a number in [0, 1)" if allow_zero else "a number in (0, 1)"
    number = _number(name, value, allowed)
    if number is not None and not (0.0 < number < 1.0 or (allow_zero and number == 0.0)):
        refuse(name, value, allowed)
    return value


def integer(name: str, value: Any, *, minimum: int = 0, maximum: int | None = None) -> int:
    """A static integer; NumPy integers count, booleans and floats do not."""
    allowed = f"an integer >= {minimum}" + ("" if maximum is None else f" and <= {maximum}")
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        refuse(name, value, allowed)
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        refuse(name, value, allowed)
    return number


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        refuse(name, value, "one of " + ", ".join(repr(word) for word in allowed))
    return value


def function(name: str, value: Any) -> Any:
    """Something that can be called."""
    if not callable(value):
        refuse(name, value, "a function")
    return value


def fitting(name: str, function: Callable[..., Any], allowed: str) -> Callable[..., Any]:
    """The function; a call whose arguments it does not take is refused, with its own arguments."""

    def call(*arguments, **keywords):
        try:
            return function(*arguments, **keywords)
        except TypeError:
            misfit = _misfit(function, arguments, keywords)
            if misfit:
                refuse(name, misfit, allowed)
            raise

    return call


def _misfit(function: Callable[..., Any], arguments: Any, keywords: Any) -> str:
    """Which argument is wrong; empty if a signature is not known, or takes them all."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        return f"{error}, for {name}{signature}"
    return ""


def optimizer(name: str, value: Any) -> Any:
    """An Optax gradient transformation, not the function that makes one."""
    if not all(callable(getattr(value, part, None)) for part in ("init", "update")):
        refuse(name, value, "an Optax optimizer, such as optax.sgd(0.1)")
    return value


def key(name: str, value: Any) -> jax.Array:
    """A scalar typed PRNG key: raw uint32 pairs are refused, since arithmetic passes on them."""
    allowed = "a scalar typed PRNG key, such as jax.random.key(0)"
    if not isinstance(value, jax.Array) or not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        refuse(name, value, allowed)
    if value.shape != ():
        refuse(name, value, allowed)
    return value


def model_params(name: str, tree: Any) -> Any:
    """What is trained of a model: a pytree of real floating-point arrays, at least one."""
    if not jax.tree.leaves(tree):
        refuse(name, tree, "a pytree with at least one floating-point array")
    return float_tree(
        name,
        tree,
        "a floating-point array, as everything that is trained (give what model.init returns in "
        "Flax linen or Haiku, the middle of nnx.split(model, nnx.Param, ...) in Flax nnx, "
        "eqx.partition(model, eqx.is_inexact_array)[0] in Equinox)",
    )


def float_tree(name: str, tree: Any, allowed: str = "a floating-point array") -> Any:
    """A pytree whose leaves are all real floating-point arrays."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = name + jax.tree_util.keystr(path)
        try:
            dtype = jnp.result_type(leaf)
        except (TypeError, ValueError):
            refuse(where, leaf, allowed)
        if not jnp.issubdtype(dtype, jnp.floating):
            refuse(where, f"{type(leaf).__name__} of dtype {dtype}", allowed)
    return tree


def leading_axis(name: str, tree: Any) -> int:
    """The length of the first axis, which all leaves of the tree must share."""
    size, first = None, ""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where, shape = name + jax.tree_util.keystr(path), np.shape(leaf)
        if not shape:
            refuse(where, leaf, "an array whose first axis is the example")
        if size is None:
            size, first = shape[0], where
        if shape[0] != size:
            refuse(where, f"shape {shape}", f"of as many examples as {first}, that is {size}")
    if size is None:
        refuse(name, tree, "a pytree with at least one array")
    return size


def count(name: str, value: Any) -> Any:
    """A whole number of times, zero included; it may be traced, or a float that is whole."""
    allowed = "a whole number >= 0"
    number = _number(name, value, allowed)
    if number is not None and not (0.0 <= number < math.inf and number == math.floor(number)):
        refuse(name, value, allowed)
    return value
