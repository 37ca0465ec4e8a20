"""Events, plans and what they are made of as trees of JSON, and back."""

from typing import Any

import jax

from jaxdp import _validate
from jaxdp.serialization import arrays
from jaxdp.serialization.kinds import KINDS, NAMES


def encode(value: Any, where: str) -> Any:
    """What JSON can hold, for one value.

    Args:
      value: A record of the table of kinds, a number, an array, None, or a list, tuple or dict of
        such.
      where: The path to it, for errors.

    Raises:
      ValueError: if it is of another kind, or traced.
    """
    if type(value) in NAMES:
        kind = KINDS[NAMES[type(value)]]
        parts = {
            name: _encode_field(getattr(value, name), name in kind.texts, f"{where}.{name}")
            for name in kind.fields
        }
        return {"kind": NAMES[type(value)], **parts}
    if value is None:
        return None
    if isinstance(value, jax.core.Tracer):
        _validate.refuse(where, value, "a known number, not a traced value")
    if arrays.is_array(value):
        return arrays.encode_array(value, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return arrays.encode_number(value, where)
    if type(value) in (list, tuple):
        listed = [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {"kind": type(value).__name__, "items": listed}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        named = {name: encode(item, f"{where}[{name!r}]") for name, item in value.items()}
        return {"kind": "dict", "items": named}
    _validate.refuse(where, value, "an event, a plan, or what they are made of")


def _encode_field(value: Any, is_text: bool, where: str) -> Any:
    if not is_text:
        return encode(value, where)
    if not isinstance(value, str):
        _validate.refuse(where, value, "a text")
    return value


def decode(value: Any, where: str) -> Any:
    """The value that ``encode`` made this of.

    Raises:
      ValueError: if it is not what ``encode`` makes, or the constructor of a record refuses it.
    """
    if value is None:
        return None
    if isinstance(value, bool | list):
        _validate.refuse(where, value, "a number, a text or an object")
    if not isinstance(value, dict):
        return arrays.decode_number(value, where)
    kind = value.get("kind")
    if kind == "array":
        return arrays.decode_array(value, where)
    if kind in ("list", "tuple", "dict"):
        return _decode_items(value, where)
    if not isinstance(kind, str) or kind not in KINDS:
        _validate.refuse(f"{where}.kind", kind, f"one of {', '.join(KINDS)}")
    return _decode_record(kind, value, where)


def _decode_items(value: dict[str, Any], where: str) -> Any:
    kind, items = value["kind"], value.get("items")
    if value.keys() != {"kind", "items"} or not isinstance(items, dict if kind == "dict" else list):
        _validate.refuse(where, value, f"a {kind} with its items and nothing else")
    if isinstance(items, dict):
        return {name: decode(item, f"{where}[{name!r}]") for name, item in items.items()}
    decoded = [decode(item, f"{where}[{i}]") for i, item in enumerate(items)]
    return tuple(decoded) if kind == "tuple" else decoded


def _decode_record(name: str, value: dict[str, Any], where: str) -> Any:
    kind = KINDS[name]
    missing = [field for field in kind.fields if field not in value]
    extra = sorted(value.keys() - {"kind", *kind.fields})
    if missing or extra:
        problem = f"without {', '.join(missing)}" if missing else f"with {', '.join(extra)}"
        _validate.refuse(where, f"one {problem}", f"a {name} of {', '.join(kind.fields)} alone")
    parts = {}
    for field in kind.fields:
        place = f"{where}.{field}"
        if field in kind.texts:
            if not isinstance(value[field], str):
                _validate.refuse(place, value[field], "a text")
            parts[field] = value[field]
        else:
            parts[field] = decode(value[field], place)
    try:
        return kind.cls(**parts)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where} is not a valid {name}: {error}") from error
