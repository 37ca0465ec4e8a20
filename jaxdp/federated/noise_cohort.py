"""Simulating the noise of a larger deployment, with both epsilons under their right names."""

from typing import NamedTuple

from jaxdp import _validate
from jaxdp._rounding import rounded_down, rounded_up
from jaxdp.federated.cohort import CohortSampler
from jaxdp.federated.plan import make_plan


class NoiseCohort(NamedTuple):
    """A simulation that has the noise of a larger deployment; ``print`` says what is real.

    Args:
      noise_multiplier: What to run the simulation with (``make_plan(simulated, ...)``), as
        float32 has it where that is less.
      real_epsilon: What the models of the simulation really cost the simulated clients.
      hypothetical_epsilon: What the same models would cost in the deployment. NOT a guarantee
        for anyone whose data are simulated on.
      delta: The delta of both.
    """

    noise_multiplier: float
    real_epsilon: float
    hypothetical_epsilon: float
    delta: float

    def __str__(self) -> str:
        return (
            f"REAL epsilon {rounded_up(self.real_epsilon)}: of the simulated clients, "
            f"noise multiplier {rounded_down(self.noise_multiplier)}, delta {float(self.delta)!r}\n"
            f"HYPOTHETICAL epsilon {rounded_up(self.hypothetical_epsilon)}: of the deployment; "
            "nobody in the simulation has it"
        )


def noise_cohort(
    simulated: CohortSampler,
    hypothetical: CohortSampler,
    *,
    noise_multiplier: float,
    num_rounds: int,
    delta: float,
) -> NoiseCohort:
    r"""Gives a small simulation the noise on the mean that a larger cohort would have.

    The mean over :math:`M` clients has noise :math:`z C / M`. A simulation with :math:`m` clients
    in a round has as much with the multiplier :math:`z m / M`: it predicts the deployment's
    accuracy, at a real privacy cost that is far higher.

    Args:
      simulated: The cohorts that will be drawn.
      hypothetical: The cohorts of the deployment, of a larger expected size.
      noise_multiplier: z, that of the deployment, > 0.
      num_rounds: Rounds of both, >= 1.
      delta: The delta of both, in (0, 1).

    Returns:
      A ``NoiseCohort`` with the multiplier to simulate with, and both epsilons.

    Raises:
      ValueError: if an argument is out of range, or the hypothetical cohorts are the smaller.

    Guarantee:
      ``real_epsilon`` holds for one client of the simulation. ``hypothetical_epsilon`` holds
      for nobody in it, whatever else is printed: publish the real one with the model.

    Example:
      >>> from jaxdp import federated
      >>> both = federated.noise_cohort(
      ...     federated.GroupCohorts(1_000, min_separation=10),
      ...     federated.GroupCohorts(1_000_000, min_separation=100),
      ...     noise_multiplier=2.0, num_rounds=50, delta=1e-6)
      >>> print(both)
      REAL epsilon 6780.47: of the simulated clients, noise multiplier 0.0199999, delta 1e-06
      HYPOTHETICAL epsilon 2.25409: of the deployment; nobody in the simulation has it

    References:
      McMahan et al. 2018, arXiv:1710.06963, Section 4 (extrapolation to larger cohorts).
    """
    for name, cohorts in (("simulated", simulated), ("hypothetical", hypothetical)):
        if not isinstance(cohorts, CohortSampler):
            _validate.refuse(name, cohorts, "a sampler such as PoissonCohorts(...)")
    for name, value in (("noise_multiplier", noise_multiplier), ("delta", delta)):
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number, not a traced value")
    _validate.positive("noise_multiplier", noise_multiplier)
    _validate.delta("delta", delta)
    num_rounds = _validate.integer("num_rounds", num_rounds, minimum=1)
    share = simulated.expected_cohort_size / hypothetical.expected_cohort_size
    if share > 1.0:
        allowed = f"of at least the simulated size, {simulated.expected_cohort_size:g} a round"
        _validate.refuse("hypothetical", hypothetical, allowed)

    # The plans that will run: the noise as it is drawn, slots that overflow included.
    real, imagined = (
        make_plan(
            cohorts,
            num_rounds=num_rounds,
            l2_clip_norm=1.0,
            noise_multiplier=multiplier,
            delta=delta,
        )
        for cohorts, multiplier in (
            (simulated, float(noise_multiplier) * share),
            (hypothetical, float(noise_multiplier)),
        )
    )
    return NoiseCohort(real.noise_multiplier, real.epsilon, imagined.epsilon, float(delta))
