"""What a private run promises, as data that prints as a statement."""

from typing import Any, NamedTuple

from jaxdp._rounding import rounded_down, rounded_up


class PrivacyPlan(NamedTuple):
    """The numbers of a private run and the guarantee that follows from them.

    ``str(plan)`` is the privacy statement to publish with the model; ``event`` is the run
    as an event of ``jaxdp.accounting``, so that anyone can account for it again.
    """

    epsilon: float  # what the run costs at `delta`, at most `target_epsilon`
    delta: float  # all of it: mechanism and sampling overflow
    target_epsilon: float
    noise_multiplier: float  # noise standard deviation over l2_clip_norm
    l2_clip_norm: float  # L2 bound on one example's gradient
    num_steps: int
    num_examples: int
    expected_batch_size: float
    sampling_probability: float  # Poisson, each example independently
    max_batch_size: int  # static capacity of a batch
    overflow_delta: float  # part of delta: some batch of the run overflows its capacity
    accountant: str
    event: Any  # the whole run
    unit: str = "one example"
    neighboring_relation: str = "add_or_remove_one"
    sampler: str = "Poisson"

    def _caution(self) -> str:
        # Publishing an example picked at random is (0, 1/n)-private, too.
        large = self.delta * self.num_examples >= 1.0
        return "; NOT SMALL: at least one over the number of examples" if large else ""

    def __str__(self) -> str:
        rows = {
            "Guarantee": f"({rounded_up(self.epsilon)}, {self.delta!r})-differential privacy",
            "Unit": f"{self.unit}; neighbours: {self.neighboring_relation}",
            "Sampler": f"{self.sampler}, probability {rounded_up(self.sampling_probability)} "
            f"({self.expected_batch_size:g} expected of {self.num_examples}), "
            f"capacity {self.max_batch_size}",
            "Mechanism": f"Gaussian, noise multiplier {rounded_down(self.noise_multiplier)}, "
            f"L2 clip norm {self.l2_clip_norm:g}, {self.num_steps} steps",
            "Accountant": f"{self.accountant}; enforced up to epsilon {self.target_epsilon!r}",
            "Delta": f"{self.delta - self.overflow_delta:.4g} mechanism, "
            f"{self.overflow_delta:.4g} batch overflow{self._caution()}",
            "Covers": "every released model of the run; not losses, norms or other metrics, the "
            "choice of hyperparameters, or floating-point effects; the number of examples is "
            "taken as public",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())
