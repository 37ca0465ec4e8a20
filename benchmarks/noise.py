"""When does drawing the noise of k steps ahead pay? One private update, step by step and in blocks.

    python benchmarks/noise.py

Runs both interleaved in one process and prints the medians as ratios to drawing step by step. A
block is timed over whole cycles of k steps, its refill included.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

import jaxdp


def make_run(num_leaves, leaf_size, precompute_steps, length):
    params = [jnp.zeros(leaf_size) for _ in range(num_leaves)]
    tx = jaxdp.add_gaussian_noise(1.0, key=jax.random.key(0), precompute_steps=precompute_steps)
    clipped = jaxdp.ClippedSum(params, 1.0)

    @jax.jit
    def run(state):
        def body(carry, _):
            state, total = carry
            noisy, state = tx.update(clipped, state)
            return (state, jax.tree.map(jnp.add, total, noisy)), None

        return jax.lax.scan(body, (state, params), length=length)[0]

    state = tx.init(params)
    jax.block_until_ready(run(state))

    def seconds():
        start = time.perf_counter()
        jax.block_until_ready(run(state))
        return (time.perf_counter() - start) / length

    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    length, repeats = (16, 1) if args.smoke else (64, args.repeats)
    shapes = [(1, 1_000)] if args.smoke else [(1, 1_000), (30, 1_000), (1, 100_000), (4, 500_000)]
    print("| leaves x size | step by step, ms | k = 4 | k = 16 |")
    print("|---|---|---|---|")
    for num_leaves, leaf_size in shapes:
        runs = {k: make_run(num_leaves, leaf_size, k, length) for k in (1, 4, 16)}
        times: dict[int, list[float]] = {k: [] for k in runs}
        for _ in range(repeats):
            for k, run in runs.items():
                times[k].append(run())
        median = {k: statistics.median(values) for k, values in times.items()}
        ratios = " | ".join(f"{median[k] / median[1]:.2f}" for k in (4, 16))
        print(f"| {num_leaves} x {leaf_size:,} | {1e3 * median[1]:.3f} | {ratios} |")


if __name__ == "__main__":
    main()
