"""What a round of private federated averaging costs, and whether a million clients fit.

    python benchmarks/federated.py
    python benchmarks/federated.py --million      # the memory of a million generated clients

1,000 clients, 100 in a round on average, one epoch in batches of 20, clip, noise and FedAvg, all in
``federated.simulate``. Equal clients have 20 examples each; ragged ones from 1 to 160, 20 on
average. Wall and CPU milliseconds are medians over runs of some rounds, compiled ahead; the time to
the first round counts tracing and compiling.
"""

import argparse
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from federated_law import BATCH, COHORT, NUM_CLIENTS, client_sizes, print_row
from federated_models import MODELS

from jaxdp import federated


def make_run(model, ragged, num_rounds, chunk):
    rng = np.random.default_rng(0)
    params, shape, labels, logits = MODELS[model](rng)
    sizes = client_sizes(rng, ragged)
    total = int(sizes.sum())
    rows = (
        rng.normal(size=(total, *shape)).astype(np.float32),
        rng.integers(0, labels, total).astype(np.int32),
    )
    federation = federated.from_client_ids(rows, np.repeat(np.arange(NUM_CLIENTS), sizes))

    def loss_fn(params, example):
        x, y = example
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x[None])[0], y)

    client_update = federated.local_training(
        loss_fn, optax.sgd(0.05), num_epochs=1, batch_size=BATCH
    )
    plan = federated.make_plan(
        federated.PoissonCohorts(NUM_CLIENTS, expected_cohort_size=COHORT),
        num_rounds=num_rounds,
        l2_clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
    )

    def simulate(federation, params, key):
        return federated.simulate(
            client_update,
            federation,
            params,
            key,
            plan=plan,
            server_optimizer=optax.sgd(1.0),
            client_chunk_size=chunk,
        )[:2]

    return jax.jit(simulate), federation, params


def measure(model, ragged, num_rounds, repeats, chunk):
    start = time.perf_counter()
    run, federation, params = make_run(model, ragged, num_rounds, chunk)
    compiled = run.lower(federation, params, jax.random.key(0)).compile()
    compile_seconds = time.perf_counter() - start
    wall, cpu = [], []
    for seed in range(repeats + 1):
        key = jax.random.key(seed)
        before = time.perf_counter(), time.process_time()
        _, metrics = jax.block_until_ready(compiled(federation, params, key))
        wall.append((time.perf_counter() - before[0]) / num_rounds)
        cpu.append((time.process_time() - before[1]) / num_rounds)
    print_row(model, ragged, wall[1:], cpu[1:], compile_seconds + wall[0])
    return metrics


def million(num_clients, num_rounds):
    """Peak memory of a run over clients that are generated when their turn comes."""
    true = jax.random.normal(jax.random.key(1), (784,)) / 28

    def make_client(client_id):
        key = jax.random.fold_in(jax.random.key(2), client_id)
        x = jax.random.normal(key, (20, 784))
        return (x, (x @ true > 0).astype(jnp.int32)), 20

    def loss_fn(params, example):
        x, y = example
        return optax.softmax_cross_entropy_with_integer_labels(x @ params, y)

    federation = federated.GeneratedFederation(make_client, num_clients=num_clients)
    client_update = federated.local_training(
        loss_fn, optax.sgd(0.05), num_epochs=1, batch_size=BATCH
    )
    plan = federated.make_plan(
        federated.PoissonCohorts(num_clients, expected_cohort_size=1_000),
        num_rounds=num_rounds,
        l2_clip_norm=0.5,
        noise_multiplier=1.0,
        delta=1e-8,
    )
    start = time.perf_counter()
    _, metrics, _ = jax.block_until_ready(
        federated.simulate(
            client_update,
            federation,
            jnp.zeros((784, 2)),
            jax.random.key(0),
            plan=plan,
            server_optimizer=optax.sgd(1.0),
        )
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{num_clients:,} generated clients, {num_rounds} rounds of about 1,000: "
        f"{time.perf_counter() - start:.1f} s with compiling, peak memory {peak:.2f} GiB, "
        f"loss {metrics.loss[0]:.3f} to {metrics.loss[-1]:.3f}, epsilon {metrics.epsilon[-1]:.3f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk", type=int, default=1, help="clients that train side by side")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.million:
        return million(1_000_000, args.rounds)
    if args.smoke:
        args.models, args.rounds, args.repeats = "logistic regression", 2, 1
    print("| model, clients | wall ms a round | CPU ms | first rounds, s |")
    print("|---|---|---|---|")
    for model in args.models.split(","):
        for ragged in (False, True):
            measure(model, ragged, args.rounds, args.repeats, args.chunk)
    if args.smoke:
        million(10_000, 1)


if __name__ == "__main__":
    main()
