"""The run that a command line describes: an event, and its description in words."""

import argparse
import math
from fractions import Fraction
from typing import Any, NamedTuple

from jaxdp import accounting as acc
from jaxdp.report import cautions

_CLOSE = Fraction(1, 10**9)  # how far a quotient of rounded decimals may be from a whole number
_MOST_STEPS = 10**15  # every count up to here is a float64
_EVENTS = {"gaussian": acc.Gaussian, "laplace": acc.Laplace}


class UsageError(Exception):
    """A value that an option cannot take: (option, what is wrong)."""


class Run(NamedTuple):
    """Independent noise on Poisson samples, step after step."""

    mechanism: str  # "gaussian" or "laplace"
    sampling_probability: float
    num_steps: int
    num_examples: int | None  # where it was given

    def event(self, noise_multiplier: float, num_steps: int | None = None) -> acc.Event:
        step: acc.Event = _EVENTS[self.mechanism](noise_multiplier)
        if self.sampling_probability != 1.0:
            step = acc.PoissonSampled(self.sampling_probability, step)
        return step * (self.num_steps if num_steps is None else num_steps)

    def words(self, noise_multiplier: str, delta: float) -> dict[str, str]:
        """What the guarantee is about, row by row."""
        sensitivity = "L2" if self.mechanism == "gaussian" else "L1"
        if self.sampling_probability == 1.0:
            sampler = ["none: every step sees every example"]
        else:
            sampler = [
                "Poisson: every step draws each example independently, with probability "
                f"{self.sampling_probability}",
                "(no bound for shuffled or fixed-size batches: they are not Poisson samples)",
            ]
        caution = self.caution(delta)
        return {
            "Mechanism": f"{self.mechanism.capitalize()}, noise multiplier {noise_multiplier} "
            f"(noise over {sensitivity} sensitivity)",
            "Steps": str(self.num_steps),
            "Sampler": "\n".join(sampler),
            "Neighbours": "one example added or removed (the unit of privacy is one example)",
            **({} if caution is None else {"Caution": caution.replace("; ", ";\n")}),
        }

    def caution(self, delta: float) -> str | None:
        """What to say about a large delta."""
        return cautions.of_delta(delta, self.num_examples, "examples")

    def numbers(self, delta: float) -> dict[str, Any]:
        """The same for machines."""
        return {
            "mechanism": self.mechanism,
            "sampling_probability": self.sampling_probability,
            "num_steps": self.num_steps,
            "sampler": "none" if self.sampling_probability == 1.0 else "Poisson",
            "neighboring_relation": "add_or_remove_one",
            "unit": "one example",
            "caution": self.caution(delta),
        }


def _sampling_probability(options: argparse.Namespace) -> Fraction:
    """As a fraction: 1/75 is no float, and 3 epochs at 1/75 are 225 steps."""
    given, batch, total = options.sampling_probability, options.batch_size, options.num_examples
    if given is not None:
        for name, value in (("--batch-size", batch), ("--num-examples", total)):
            if value is not None:
                raise UsageError(name, "not allowed with argument --sampling-probability")
        if not 0 <= given <= 1:
            raise UsageError(
                "--sampling-probability", f"must be a probability in [0, 1], got {float(given):g}"
            )
        return given
    if batch is None and total is None:
        return Fraction(1)
    if batch is None:
        raise UsageError("--num-examples", "needs --batch-size too")
    if total is None:
        raise UsageError("--batch-size", "needs --num-examples too")
    if total < 1:
        raise UsageError("--num-examples", f"must be at least 1, got {total}")
    if batch > total:
        raise UsageError("--batch-size", f"must be at most --num-examples, {total}, got {batch}")
    return Fraction(batch, total)


def _num_steps(options: argparse.Namespace, sampling_probability: Fraction) -> int:
    """Epochs over the sampling probability; a part of a step counts as a step."""
    if options.epochs is None:
        return _counted("--steps", options.steps)
    if options.epochs < 0:
        raise UsageError("--epochs", f"must be a number >= 0, got {float(options.epochs):g}")
    if sampling_probability == 0:
        raise UsageError("--epochs", "needs a sampling probability above 0 (or give --steps)")
    exact = options.epochs / sampling_probability
    nearest = round(exact)
    whole = abs(exact - nearest) <= _CLOSE * exact
    return _counted("--epochs", nearest if whole else math.ceil(exact))


def _counted(option: str, steps: int) -> int:
    if steps > _MOST_STEPS:
        raise UsageError(option, f"must amount to at most {_MOST_STEPS:.0e} steps, got {steps:.3g}")
    return steps


def run_of(options: argparse.Namespace) -> Run:
    """The run that the options describe.

    Raises:
      UsageError: if options are out of range or do not go together.
    """
    probability = _sampling_probability(options)
    num_steps = _num_steps(options, probability)
    return Run(options.mechanism, float(probability), num_steps, options.num_examples)
