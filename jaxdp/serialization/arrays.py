"""Numbers and arrays as JSON, bit for bit: type, shape and infinities included."""

import math
from typing import Any

import jax
import numpy as np

from jaxdp import _validate

_TYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_LARGEST = int(np.finfo(np.float64).max)
_FIELDS = {"kind", "dtype", "shape", "data"}


def encode_number(value: float, where: str) -> float | str:
    """A Python float or int; JSON knows no infinity, so that one is a text."""
    if math.isnan(value):
        _validate.refuse(where, value, "a number (NaN is none)")
    if isinstance(value, float):
        return str(float(value)) if math.isinf(value) else float(value)
    return value


def decode_number(value: Any, where: str) -> float:
    if isinstance(value, str):
        if value not in _INFINITE:
            _validate.refuse(where, value, "a number, or 'inf' or '-inf'")
        return _INFINITE[value]
    if (isinstance(value, int) and abs(value) > _LARGEST) or not abs(value) < math.inf:
        _validate.refuse(where, "a number beyond float64", "at most 1.8e308, or 'inf'")
    return value


def encode_array(value: Any, where: str) -> dict[str, Any]:
    """An array of JAX or NumPy, or a NumPy scalar."""
    array = np.asarray(value)
    if array.dtype.name not in _TYPES:
        _validate.refuse(where, f"an array of {array.dtype}", f"of one of {', '.join(_TYPES)}")
    return {
        "kind": "array",
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": [encode_number(number, where) for number in array.ravel().tolist()],
    }


def decode_array(fields: dict[str, Any], where: str) -> Any:
    """A NumPy array, or a NumPy scalar for the shape []."""
    if fields.keys() != _FIELDS:
        _validate.refuse(where, sorted(fields), f"an array with the fields {sorted(_FIELDS)}")
    dtype = np.dtype(_validate.choice(f"{where}.dtype", fields["dtype"], _TYPES))
    shape, data = fields["shape"], fields["data"]
    if not isinstance(shape, list) or not isinstance(data, list):
        _validate.refuse(where, fields, "an array whose shape and data are lists")
    for size in shape:
        _validate.integer(f"{where}.shape", size)
    if math.prod(shape) != len(data):
        _validate.refuse(f"{where}.data", f"{len(data)} numbers", f"as many as the shape {shape}")
    numbers = [_entry(number, dtype, f"{where}.data[{i}]") for i, number in enumerate(data)]
    # An index of () makes a scalar of what has no axes.
    return np.array(numbers, dtype).reshape(shape)[()]


def _entry(value: Any, dtype: np.dtype, where: str) -> Any:
    """A number that the type holds exactly, so that nothing is rounded on the way in."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        _validate.refuse(where, value, "a number")
    number = decode_number(value, where)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        fits = isinstance(number, int) and limits.min <= number <= limits.max
    else:
        with np.errstate(over="ignore"):
            fits = isinstance(number, float) and float(dtype.type(number)) == number
    if not fits:
        _validate.refuse(where, value, f"a number of {dtype.name}, exactly")
    return number


def is_array(value: Any) -> bool:
    # float64 scalars of NumPy are Python floats, too, and come back as those.
    return isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, float)
