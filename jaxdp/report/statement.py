"""A privacy statement as one structure, for people in Markdown and for machines in JSON."""

import json
import math
from typing import Any, NamedTuple


class Fact(NamedTuple):
    """One line of a statement."""

    key: str  # for machines
    label: str  # for people
    text: str  # for people
    value: Any  # for machines, plain JSON; None where it was not stated


class Section(NamedTuple):
    """One heading of a statement, and the facts below it."""

    key: str
    title: str
    facts: tuple[Fact, ...]


class Statement(NamedTuple):
    """What ``describe`` says about a run: ``str`` is Markdown, ``to_json()`` the same as JSON."""

    summary: str
    sections: tuple[Section, ...]

    def __str__(self) -> str:
        parts = ["## Privacy statement", self.summary]
        for section in self.sections:
            lines = [f"- **{fact.label}**: {fact.text}" for fact in section.facts]
            parts += [f"### {section.title}", "\n".join(lines)]
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> str:
        """The statement as JSON: an object of sections, each an object from keys to values.

        What was not stated is null, an infinite number the text "inf".
        """
        document: dict[str, Any] = {
            "format": "jaxdp privacy statement",
            "version": 1,
            "summary": self.summary,
        }
        for section in self.sections:
            document[section.key] = {fact.key: _plain(fact.value) for fact in section.facts}
        return json.dumps(document, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """The value with its infinite numbers as texts, which JSON has no others for."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return str(value) if isinstance(value, float) and math.isinf(value) else value
