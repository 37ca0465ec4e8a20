"""The same federated rounds in FedJAX, without privacy, for ``benchmarks/federated.py`` to compare.

    pip install fedjax "jax==0.6.0"      # in an environment of its own
    python benchmarks/federated_fedjax.py

Same data law, models, cohort sizes (exactly 100 clients a round), batches and optimizers; federated
averaging as FedJAX has it, with neither clipping nor noise, so it has less to do.
"""

import argparse
import statistics
import time

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

NUM_CLIENTS, COHORT, BATCH = 1_000, 100, 20


def dense(rng, rows, columns):
    return jnp.asarray(rng.normal(size=(rows, columns)) / rows**0.5, jnp.float32)


def logistic_regression(rng):
    params = {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)}
    return params, (784,), 10, lambda params, x: x @ params["w"] + params["b"]


def mlp(rng):
    params = {
        "w1": dense(rng, 784, 128),
        "b1": jnp.zeros(128),
        "w2": dense(rng, 128, 10),
        "b2": jnp.zeros(10),
    }

    def logits(params, x):
        return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    return params, (784,), 10, logits


def cnn(rng):
    params = {
        "c1": dense(rng, 9, 32).reshape(3, 3, 1, 32),
        "c2": dense(rng, 288, 64).reshape(3, 3, 32, 64),
        "w1": dense(rng, 9216, 128),
        "b1": jnp.zeros(128),
        "w2": dense(rng, 128, 62),
        "b2": jnp.zeros(62),
    }

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def logits(params, x):
        x = jax.nn.relu(convolve(x, params["c1"]))
        x = jax.nn.relu(convolve(x, params["c2"]))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(x.reshape(len(x), -1) @ params["w1"] + params["b1"])
        return x @ params["w2"] + params["b2"]

    return params, (28, 28, 1), 62, logits


MODELS = {"logistic regression": logistic_regression, "MLP": mlp, "CNN": cnn}


def client_sizes(rng, ragged):
    if not ragged:
        return np.full(NUM_CLIENTS, 20)
    return np.clip(rng.lognormal(2.45, 1.1, NUM_CLIENTS).astype(int), 1, 160)


def measure(model, ragged, num_rounds):
    rng = np.random.default_rng(0)
    params, shape, labels, logits = MODELS[model](rng)
    datasets = [
        fedjax.ClientDataset(
            {
                "x": rng.normal(size=(size, *shape)).astype(np.float32),
                "y": rng.integers(0, labels, size).astype(np.int32),
            }
        )
        for size in client_sizes(rng, ragged)
    ]

    def loss(params, batch, _):
        scores = jax.nn.log_softmax(logits(params, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(0.05),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, drop_remainder=False),
    )
    start = time.perf_counter()
    state, wall, cpu = algorithm.init(params), [], []
    for number in range(num_rounds):
        chosen = rng.choice(NUM_CLIENTS, COHORT, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(number), COHORT)
        clients = [(str(i).encode(), datasets[i], key) for i, key in zip(chosen, keys, strict=True)]
        before = time.perf_counter(), time.process_time()
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state)
        wall.append(time.perf_counter() - before[0])
        cpu.append(time.process_time() - before[1])
        if number == 0:
            first_round = time.perf_counter() - start
    # The last half: ragged clients compile a program for each size of a last batch.
    name = f"{model}, {'ragged' if ragged else 'equal'}"
    half = num_rounds // 2
    print(
        f"| {name} | {1e3 * statistics.median(wall[half:]):.1f} | "
        f"{1e3 * statistics.median(cpu[half:]):.1f} | {first_round:.1f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    print("| model, clients | wall ms a round | CPU ms | first round, s |")
    print("|---|---|---|---|")
    for model in args.models.split(","):
        for ragged in (False, True):
            measure(model, ragged, args.rounds)


if __name__ == "__main__":
    main()
