"""The document around a value: format, version, and nothing that is not plain JSON."""

import json
from typing import Any, NoReturn

from jaxdp import _validate
from jaxdp.plan import PrivacyPlan
from jaxdp.serialization import statements, tree
from jaxdp.serialization.kinds import WHOLE

FORMAT, VERSION = "jaxdp", 1
_MOST_DIGITS = 400  # no float64 has more before the point


def dumps(value: Any) -> str:
    """A plan or a run of events as JSON.

    Args:
      value: An event of ``jaxdp.accounting`` (``Composed`` for a history of what was released), a
        ``PrivacyPlan``, a ``federated.ClientPlan`` or a ``federated.LocalPlan``.

    Returns:
      The JSON, indented: ``{"format": "jaxdp", "version": 1, "value": ...}``. Floats are written
      so that they are read back exactly, arrays with their type and shape, infinities as texts.

    Raises:
      ValueError: if it is of another kind, or a number in it is traced.

    Example:
      >>> from jaxdp import accounting as acc, serialization
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.1)) * 1_000
      >>> serialization.loads(serialization.dumps(run)) == run
      True
    """
    if not isinstance(value, WHOLE):
        _validate.refuse("value", value, "an event of jaxdp.accounting or a plan")
    try:
        content = tree.encode(value, "value")
        document = {"format": FORMAT, "version": VERSION, "value": content}
        return json.dumps(document, indent=2, allow_nan=False)
    except RecursionError:
        raise ValueError("value must not be nested so deeply.") from None


def loads(text: str) -> Any:
    """Reads what ``dumps`` wrote, and checks it.

    Nothing in a file is run or imported: a fixed table says which classes there are. Arrays of
    JAX come back as those of NumPy.

    Args:
      text: The JSON.

    Returns:
      The event or plan.

    Raises:
      ValueError: if the text is no JSON of this format and version; if a kind or field is unknown,
        missing or out of range (the message has the path to it); or if a ``PrivacyPlan`` promises
        more than its own event gives.

    Guarantee:
      A ``PrivacyPlan`` is accounted for again: what it states is at least what its event costs,
      and the event, the sampler and the batch capacity are those of its own numbers. The other
      plans state nothing but their numbers, and compute epsilon from them.

    Example:
      >>> from jaxdp import serialization
      >>> serialization.loads('{"format": "jaxdp", "version": 9, "value": null}')
      Traceback (most recent call last):
      ValueError: version must be 1, got 9.
    """
    if not isinstance(text, str):
        _validate.refuse("text", text, "a text")
    try:
        value = _value_of(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"text must be JSON: {error}.") from None
    except RecursionError:
        raise ValueError("text must not be nested so deeply.") from None
    if isinstance(value, PrivacyPlan):
        statements.check(value, "value")
    return value


def _value_of(text: str) -> Any:
    document = json.loads(
        text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer
    )
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _validate.refuse("text", text, f'an object with "format": "{FORMAT}"')
    version = document.get("version")
    if isinstance(version, bool) or version != VERSION:
        _validate.refuse("version", version, str(VERSION))
    if document.keys() != {"format", "version", "value"}:
        _validate.refuse("text", sorted(document), "of format, version and value alone")
    value = tree.decode(document["value"], "value")
    if not isinstance(value, WHOLE):
        _validate.refuse("value", value, "an event of jaxdp.accounting or a plan")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        _validate.refuse("text", [name for name, _ in pairs], "without a field that comes twice")
    return fields


def _integer(digits: str) -> int:
    # Python takes time that grows with the square of the length, and refuses from 4300 on.
    if len(digits) > _MOST_DIGITS:
        _validate.refuse(
            "text", f"an integer of {len(digits)} digits", f"of integers of at most {_MOST_DIGITS}"
        )
    return int(digits)


def _constant(word: str) -> NoReturn:
    _validate.refuse("text", word, 'JSON, in which an infinite number is the text "inf"')
