"""A private training run that shares its budget with a release made before it."""

import optax

import jaxdp
from jaxdp import accounting as acc
from published import training


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

    def all_steps(noise_multiplier):
        step = acc.PoissonSampled(rate, acc.Gaussian(noise_multiplier))
        return step * options["num_steps"]

    # What the training may cost alone, with some delta left for batches that overflow.
    mechanism_delta = 0.99 * delta
    noise_multiplier = acc.calibrate(
        lambda sigma: release + all_steps(sigma),
        target_epsilon=target_epsilon,
        delta=mechanism_delta,
    )
    share = acc.epsilon(all_steps(noise_multiplier), delta=mechanism_delta)
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


def train_after(release, loss_fn, scores, params, train_set, test_set, seed, args):
    """Trains with momentum and a decaying learning rate, in one budget with ``release``.

    Args:
      release: The event of what was released before.
      loss_fn: Of one example.
      scores: ``scores(params, input)`` of one example.
      params: The parameters to start from.
      train_set: Pair of inputs and labels, each with a leading example axis.
      test_set: The same.
      seed: Fixes sampling and noise.
      args: What ``command.parse`` returned: the numbers of the recipe.

    Returns:
      The ``training.Result`` and the privacy statement for both.
    """
    schedule = optax.cosine_decay_schedule(args.learning_rate, args.num_steps)
    private, statement = make_private_after(
        release,
        loss_fn,
        optax.sgd(schedule, momentum=0.9),
        target_epsilon=args.target_epsilon,
        delta=args.delta,
        num_examples=len(train_set[0]),
        expected_batch_size=args.expected_batch_size,
        num_steps=args.num_steps,
        l2_clip_norm=args.l2_clip_norm,
    )
    return training.train(private, scores, params, train_set, test_set, seed, args), statement
