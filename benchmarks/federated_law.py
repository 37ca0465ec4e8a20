"""What the federated benchmarks have in common: the law of the clients' sizes, and the table."""

import argparse
import statistics

import numpy as np

NUM_CLIENTS, COHORT, BATCH = 1_000, 100, 20


def client_sizes(rng, ragged):
    """20 rows each, or a log-normal law cut to 1..160 with the same mean."""
    if not ragged:
        return np.full(NUM_CLIENTS, 20)
    return np.clip(rng.lognormal(2.45, 1.1, NUM_CLIENTS).astype(int), 1, 160)


def print_row(model, ragged, wall, cpu, first_round):
    """Medians of seconds a round as a row of the table."""
    print(
        f"| {model}, {'ragged' if ragged else 'equal'} | {1e3 * statistics.median(wall):.1f} | "
        f"{1e3 * statistics.median(cpu):.1f} | {first_round:.1f} |",
        flush=True,
    )


def run_table(description, models, rounds, measure):
    """Measures every model asked for, with equal and with ragged clients."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", default=",".join(models))
    parser.add_argument("--rounds", type=int, default=rounds)
    args = parser.parse_args()
    print("| model, clients | wall ms a round | CPU ms | first round, s |")
    print("|---|---|---|---|")
    for model in args.models.split(","):
        for ragged in (False, True):
            measure(model, ragged, args.rounds)
