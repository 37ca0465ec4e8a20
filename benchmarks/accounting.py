"""What an answer of the accountants costs: jaxdp beside dp_accounting and prv_accountant.

    python benchmarks/accounting.py

Every question goes to all of its tools in one process, in turns. Cold is a tool's first call, with
what it compiles; warm is the median of the later ones; a sweep counts per configuration.
prv_accountant is asked where it is installed.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import dp_accounting
import jax
import numpy as np
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from jaxdp import accounting as acc

Q, SIGMA, STEPS, DELTA = 0.01, 1.0, 1_000, 1e-5
GRID = 1e-4  # of dp_accounting's privacy-loss distributions
PHASES = 0.999 ** np.arange(300)


class Tool(NamedTuple):
    """One way to answer a question: how to ask, the answer, and how many answers a call gives."""

    name: str
    ask: Callable[[], Any]
    answers: int = 1
    warm_calls: int | None = None  # where it is too slow for all repetitions


def run_of(q, sigma, steps=STEPS):
    return acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


def their_event(sigma):
    step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, STEPS)


def their_rdp():
    return RdpAccountant().compose(their_event(SIGMA)).get_epsilon(DELTA)


def their_rdp_schedule():
    accountant = RdpAccountant()
    for sigma in PHASES:
        step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(step)
    return accountant.get_epsilon(DELTA)


def their_pld_accountant():
    return PLDAccountant(value_discretization_interval=GRID)


def their_pld():
    return their_pld_accountant().compose(their_event(SIGMA)).get_epsilon(DELTA)


def their_optimistic_pld():
    step = privacy_loss_distribution.from_gaussian_mechanism(
        SIGMA,
        sampling_prob=Q,
        value_discretization_interval=GRID,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return step.self_compose(STEPS).get_epsilon_for_delta(DELTA)


def their_calibration():
    return dp_accounting.calibrate_dp_mechanism(
        their_pld_accountant, their_event, 1.0, DELTA, dp_accounting.ExplicitBracketInterval(0.5, 4)
    )


def prv_bounds():
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    step = PoissonSubsampledGaussianMechanism(Q, SIGMA)
    accountant = PRVAccountant([step], 1e-3, DELTA * 1e-3, max_self_compositions=[STEPS])
    lower, _, upper = accountant.compute_epsilon(DELTA, [STEPS])
    return lower, upper


def sweep(accountant, num):
    """As many epsilons in one program, on a grid of usual sampling rates and noise multipliers."""
    rates, noises = np.geomspace(1e-4, 0.1, 20), np.linspace(0.6, 4.0, -(-num // 20))
    q, sigma = (part.ravel()[:num] for part in np.meshgrid(rates, noises))

    def one(q, sigma):
        return acc.epsilon(run_of(q, sigma), DELTA, accountant=accountant)

    program = jax.jit(jax.vmap(one))
    return lambda: jax.block_until_ready(program(q, sigma))


def in_float64(ask):
    def wider():
        with jax.enable_x64(True):
            return ask()

    return wider


def questions(smoke, exact_pairs):
    run, schedule = run_of(Q, SIGMA), acc.Schedule(Q, PHASES)
    pairs = 200 if smoke else 10_000

    def ours(event, accountant):
        return Tool(
            f"jaxdp, {accountant}", lambda: acc.epsilon(event, DELTA, accountant=accountant)
        )

    def swept(accountant, num, warm_calls=None):
        ask = sweep(accountant, num)
        return Tool(f"jaxdp, {accountant}, float32", ask, num, warm_calls)

    theirs = Tool("dp_accounting, RDP", their_rdp)
    their_exact = Tool("dp_accounting, PLD", their_pld)
    prv = [Tool("prv_accountant", prv_bounds)] if importlib.util.find_spec("prv_accountant") else []
    asked = {
        "RDP epsilon": [ours(run, "rdp"), theirs],
        f"RDP epsilon, sweep of {pairs:,}": [swept("rdp", pairs), theirs],
        "exact epsilon": [ours(run, "exact"), their_exact],
    }
    if smoke:  # the exact accountant's programs take long to compile
        return asked
    calibration = Tool(
        "jaxdp, exact",
        lambda: acc.calibrate(
            lambda sigma: run_of(Q, sigma), target_epsilon=1.0, delta=DELTA, accountant="exact"
        ),
    )
    wide = Tool(
        "jaxdp, exact, float64",
        in_float64(sweep("exact", exact_pairs)),
        exact_pairs,
        warm_calls=1,
    )
    return asked | {
        "exact epsilon": [*asked["exact epsilon"], *prv],
        f"exact epsilon, sweep of {exact_pairs:,}": [
            swept("exact", exact_pairs, warm_calls=1),
            wide,
            their_exact,
        ],
        "300 phases, RDP": [
            ours(schedule, "rdp"),
            Tool("dp_accounting, RDP", their_rdp_schedule, warm_calls=0),
        ],
        "noise multiplier, exact": [
            calibration,
            Tool("dp_accounting, PLD", their_calibration, warm_calls=0),
        ],
        "300 phases, exact": [
            Tool(
                "jaxdp, exact",
                lambda: acc.epsilon(schedule, DELTA, accountant="exact"),
                warm_calls=1,
            )
        ],
    }


def seconds(tool):
    start = time.perf_counter()
    tool.ask()
    return (time.perf_counter() - start) / tool.answers


def milliseconds(time_taken):
    return f"{1e3 * time_taken:,.3g}" if time_taken < 1 else f"{1e3 * time_taken:,.0f}"


def print_gaps():
    """How far apart the certified bounds are, for the run of the questions."""
    lower, upper = acc.epsilon_bounds(run_of(Q, SIGMA), DELTA)
    theirs, least = their_pld(), their_optimistic_pld()
    print(f"\nCertified gaps: jaxdp {upper - lower:.1e} below {upper:.9f};")
    print(f"dp_accounting's PLD {theirs - least:.1e} below {theirs:.9f};")
    if importlib.util.find_spec("prv_accountant"):
        lower, upper = prv_bounds()
        print(f"prv_accountant {upper - lower:.1e} below {upper:.9f}.")
    else:
        print("prv_accountant is not installed.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--exact-sweep", type=int, default=1_000, help="configurations in it")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    repeats = 1 if args.smoke else args.repeats
    print("| question | tool | cold, ms | warm, ms | times jaxdp's (warm) |")
    print("|---|---|---|---|---|")
    for question, tools in questions(args.smoke, args.exact_sweep).items():
        cold = {tool: seconds(tool) for tool in tools}
        warm: dict[Tool, list[float]] = {tool: [] for tool in tools}
        for i in range(repeats):
            for tool in tools:
                if tool.warm_calls is None or i < tool.warm_calls:
                    warm[tool].append(seconds(tool))
        median = {tool: statistics.median(warm[tool] or [cold[tool]]) for tool in tools}
        for tool in tools:
            first = milliseconds(cold[tool] * tool.answers)
            time_taken = milliseconds(median[tool])
            ratio = f"{median[tool] / median[tools[0]]:,.3g}"
            print(f"| {question} | {tool.name} | {first} | {time_taken} | {ratio} |", flush=True)
    print_gaps()


if __name__ == "__main__":
    main()
