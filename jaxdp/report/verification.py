"""How anybody can account for a claim again."""

import json
from importlib import metadata

import jax
import numpy as np

from jaxdp import accounting as acc
from jaxdp import serialization
from jaxdp.report.claims import Claim
from jaxdp.report.statement import Fact


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from a folder of sources
        return "unknown"


def _command(claim: Claim) -> str | None:
    """The command line that gives the mechanism's epsilon, for the runs that it knows."""
    if not isinstance(claim.event, acc.Repeated):
        return None
    step, sampling = claim.event.event, ""
    if isinstance(step, acc.PoissonSampled):
        sampling = f" --sampling-probability {step.sampling_probability!r}"
        step = step.event
    if not isinstance(step, acc.Gaussian):
        return None
    return (
        f"jaxdp epsilon --noise-multiplier {step.noise_multiplier!r}{sampling} "
        f"--steps {claim.event.count} --delta {claim.mechanism_delta!r}"
    )


def _python(claim: Claim) -> str | None:
    if any(np.ndim(leaf) for leaf in jax.tree.leaves(claim.event)):
        return None  # an array is written with too few digits
    return (
        "from jaxdp.accounting import *; "
        f"print(epsilon({claim.event!r}, delta={claim.mechanism_delta!r}))"
    )


def facts_of(claim: Claim) -> list[Fact]:
    """Versions, the event, and the commands that account for it at the mechanism's delta."""
    version = _version("jaxdp-privacy")
    facts = [
        Fact(
            "library",
            "Library",
            f"jaxdp-privacy {version}, with JAX {jax.__version__}",
            {"jaxdp-privacy": version, "jax": jax.__version__},
        ),
        Fact(
            "event",
            "The run as an event",
            f"`{claim.event!r}`",
            json.loads(serialization.dumps(claim.event)),
        ),
    ]
    if not claim.is_finite or not claim.is_affordable:
        return facts
    for key, label, words in (
        ("command", "To verify, on the command line", _command(claim)),
        ("python", "To verify, in Python", _python(claim)),
    ):
        if words is not None:
            facts.append(Fact(key, label, f"`{words}`", words))
    return facts
