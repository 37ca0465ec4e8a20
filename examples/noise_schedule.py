"""Optimises when to add how much noise, by gradient descent through the exact accountant.

    python examples/noise_schedule.py            # a minute, most of it compilation
    python examples/noise_schedule.py --smoke    # few steps of descent

A run has phases of equally many steps. Its signal decays, so noise hurts late steps more: the price
of a schedule is the sum over steps of (noise multiplier / signal)^2. Which schedule has the least
price among those of one epsilon? The shape of the schedule is free, and its level follows from
the budget: a shape is scaled until the run costs the target. How the level moves with the
shape is implicit differentiation of epsilon(level * shape) = target, by the accountant's gradient.
"""

import argparse
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp import accounting as acc

PHASES = 8


def make_problem(args):
    """Price and epsilon of a schedule of noise multipliers, one for each phase [PHASES]."""
    steps_of_a_phase = args.num_steps // PHASES
    signal = jnp.asarray(args.decay ** np.arange(PHASES), float)

    def run(noise_multipliers):
        return acc.Schedule(args.sampling_probability, noise_multipliers, steps_of_a_phase)

    def price(noise_multipliers):
        return jnp.sum((noise_multipliers / signal) ** 2) * steps_of_a_phase

    return run, price


def level_of(run, shape, args) -> float:
    """The factor with which a shape meets the budget, calibrated on the host in float64."""
    shape = np.asarray(shape, np.float64)
    return acc.calibrate(
        lambda level: run(level * shape), target_epsilon=args.target_epsilon, delta=args.delta
    )


def make_slope(run, price, args):
    """The gradient of the log price on the surface of one epsilon, and the way back to it."""

    def log_epsilon(log_noise):
        return jnp.log(acc.epsilon(run(jnp.exp(log_noise)), args.delta))

    def log_price(log_noise):
        return jnp.log(price(jnp.exp(log_noise)))

    def slope(log_noise):
        by_price = jax.grad(log_price)(log_noise)
        spent, by_epsilon = jax.value_and_grad(log_epsilon)(log_noise)
        # How the log level moves with the log shape: -by_epsilon / sum(by_epsilon).
        along = by_price - jnp.sum(by_price) * by_epsilon / jnp.sum(by_epsilon)
        # Newton's step in the level, for what the curvature of the surface has cost.
        back = (math.log(args.target_epsilon) - spent) / jnp.sum(by_epsilon)
        return along, back

    return slope


def descend(run, price, args):
    """Gradient descent from the constant schedule, in one compiled loop; both schedules."""
    slope = make_slope(run, price, args)
    optimizer = optax.adam(args.learning_rate)

    def body(carry, _):
        log_noise, state = carry
        along, back = slope(log_noise)
        updates, state = optimizer.update(along, state)
        return (log_noise + back + updates, state), None

    constant = np.full(PHASES, level_of(run, np.ones(PHASES), args))
    start = jnp.log(jnp.asarray(constant, float))
    descent = jax.jit(lambda carry: jax.lax.scan(body, carry, length=args.iterations)[0])
    log_noise, _ = descent((start, optimizer.init(start)))
    shape = np.exp(np.asarray(log_noise, np.float64))
    return constant, level_of(run, shape, args) * shape


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target-epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--sampling-probability", type=float, default=0.01)
    parser.add_argument("--num-steps", type=int, default=800)
    parser.add_argument("--decay", type=float, default=0.8, help="of the signal, for each phase")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--smoke", action="store_true", help="a short run that only shows it works")
    args = parser.parse_args()
    if args.smoke:
        args.iterations = 5
    return args


def main() -> None:
    args = parse_arguments()
    run, price = make_problem(args)
    constant, optimised = descend(run, price, args)
    phases = "".join(f"{phase:>8}" for phase in range(1, PHASES + 1))
    print(f"noise multiplier in phase{phases}   epsilon     price")
    for name, noise in (("constant", constant), ("optimised", optimised)):
        cells = "".join(f"{multiplier:8.3f}" for multiplier in noise)
        spent = acc.epsilon(run(noise), args.delta)
        print(f"{name:<25}{cells} {spent:9.6f} {float(price(jnp.asarray(noise))):9.0f}")


if __name__ == "__main__":
    main()
