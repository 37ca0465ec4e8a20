"""The fixed table of what a file may hold: each kind's name, class and fields."""

import dataclasses
from typing import Any, NamedTuple

from jaxdp import accounting as acc
from jaxdp import federated
from jaxdp.federated.mime import MimeSum
from jaxdp.plan import PrivacyPlan


class Kind(NamedTuple):
    """A record: a class whose constructor takes its fields by name."""

    cls: type
    fields: tuple[str, ...]
    texts: frozenset[str]  # fields that hold text; everywhere else a text is an infinite number


def _fields(cls: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(cls._fields)


_CLASSES: tuple[type, ...] = (
    acc.Gaussian,
    acc.Laplace,
    acc.DiscreteGaussian,
    acc.RandomizedResponse,
    acc.Repeated,
    acc.Composed,
    acc.PoissonSampled,
    acc.TruncatedPoissonSampled,
    acc.SampledWithoutReplacement,
    acc.Schedule,
    PrivacyPlan,
    federated.ClientPlan,
    federated.LocalPlan,
    federated.AdaptiveClip,
    federated.PoissonCohorts,
    federated.FixedSizeCohorts,
    federated.GroupCohorts,
    MimeSum,
)
_TEXTS: dict[type, frozenset[str]] = {
    PrivacyPlan: frozenset({"accountant", "unit", "neighboring_relation", "sampler"})
}

KINDS = {cls.__name__: Kind(cls, _fields(cls), _TEXTS.get(cls, frozenset())) for cls in _CLASSES}
NAMES = {cls: cls.__name__ for cls in _CLASSES}

# What a whole file may be; the rest stands inside of one of these.
WHOLE = (acc.Event, PrivacyPlan, federated.ClientPlan, federated.LocalPlan)
