"""A private training run that shares its budget with a release made before it."""

import jaxdp
from jaxdp import accounting as acc


def make_private_after(release, loss_fn, optimizer, *, target_epsilon, delta, **options):
    """``jaxdp.make_private``, calibrated so that ``release`` and the run together meet the target.

    Args:
      release: The event of what was released before, under the same neighbouring relation.
      loss_fn: Of one example.
      optimizer: Any Optax optimizer.
      target_epsilon: Of both together.
      delta: Of both together.
      options: The other arguments of ``make_private``.

    Returns:
      The ``Private``, whose plan is that of the training alone, and the statement for both.
    """
    rate = options["expected_batch_size"] / options["num_examples"]

    def training(noise_multiplier):
        step = acc.PoissonSampled(rate, acc.Gaussian(noise_multiplier))
        return step * options["num_steps"]

    # What the training may cost alone, with some delta left for batches that overflow.
    mechanism_delta = 0.99 * delta
    noise_multiplier = acc.calibrate(
        lambda sigma: release + training(sigma),
        target_epsilon=target_epsilon,
        delta=mechanism_delta,
    )
    share = acc.epsilon(training(noise_multiplier), delta=mechanism_delta)
    private = jaxdp.make_private(loss_fn, optimizer, target_epsilon=share, delta=delta, **options)
    plan = private.plan
    # The guarantee is that of the run as planned, whatever was aimed at.
    epsilon = acc.epsilon(release + plan.event, delta=plan.delta - plan.overflow_delta)
    if epsilon > target_epsilon:
        raise RuntimeError(f"both together cost {epsilon}, above the target {target_epsilon}")
    statement = (
        f"Together  ({epsilon!r}, {plan.delta!r})-differential privacy for {release} and the "
        f"training below,\n          accounted as one composition\n\nThe training alone:\n{plan}"
    )
    return private, statement
