"""Which neighbours the runs in a picture are about, in words."""

from collections.abc import Iterable, Mapping

from jaxdp.accounting import events
from jaxdp.accounting.events import Event

_WORDS = {
    events.ADD_OR_REMOVE_ONE: "one unit added or removed",
    events.REPLACE_ONE: "one unit replaced",
}


def _of(runs: Iterable[Event]) -> list[str]:
    """The relations that all of the runs allow."""
    allowed = [events.relations_of(run) for run in runs]
    return [words for name, words in _WORDS.items() if all(name in names for names in allowed)]


def title(runs: Mapping[str, Event]) -> str:
    """The neighbours of all the runs, or that they differ."""
    common = _of(runs.values())
    if len(common) == 2:
        return "neighbours: those that the noise's sensitivity is for"
    return f"neighbours: {common[0] if common else 'not the same for all'}"


def labels(runs: Mapping[str, Event]) -> dict[str, str]:
    """What to call each run: by its neighbours, too, if they are not the same for all."""
    if _of(runs.values()):
        return {label: label for label in runs}
    return {label: f"{label} ({' or '.join(_of([run]))})" for label, run in runs.items()}
