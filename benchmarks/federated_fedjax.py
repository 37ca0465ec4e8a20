"""The same federated rounds in FedJAX, without privacy, for ``benchmarks/federated.py`` to compare.

    pip install fedjax "jax==0.6.0"      # in an environment of its own
    python benchmarks/federated_fedjax.py

Same data law, models, cohort sizes (exactly 100 clients a round), batches and optimizers; federated
averaging as FedJAX has it, with neither clipping nor noise, so it has less to do.
"""

import time

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from federated_law import BATCH, COHORT, NUM_CLIENTS, client_sizes, print_row, run_table
from federated_models import MODELS


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
    half = num_rounds // 2
    print_row(model, ragged, wall[half:], cpu[half:], first_round)


if __name__ == "__main__":
    run_table(__doc__.splitlines()[0], MODELS, 12, measure)
