"""The same federated rounds in Flower's simulation engine (torch on CPU), without privacy.

    pip install torch "flwr[simulation]"      # in an environment of its own
    python benchmarks/federated_flower.py

The data law, models, cohort size (exactly 100 clients a round), batches and optimizers of
``benchmarks/federated.py``. Neither clipping nor noise, and no evaluation. CPU time is that of this
process and of the workers that it starts, by the system's count.
"""

import time

import flwr
import numpy as np
import psutil
import torch
from federated_law import BATCH, COHORT, NUM_CLIENTS, client_sizes, print_row, run_table


def make_network(name):
    nn = torch.nn
    if name == "MLP":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Linear(784, 10)


class Trainer(flwr.client.NumPyClient):
    def __init__(self, name, size, seed):
        torch.set_num_threads(1)
        rng = np.random.default_rng(seed)
        self.network = make_network(name)
        self.x = torch.as_tensor(rng.normal(size=(size, 784)).astype(np.float32))
        self.y = torch.as_tensor(rng.integers(0, 10, size))

    def fit(self, parameters, config):
        state = self.network.state_dict()
        tensors = zip(state, map(torch.as_tensor, parameters), strict=True)
        self.network.load_state_dict(dict(tensors))
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05)
        order = torch.randperm(len(self.y))
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.network(self.x[batch]), self.y[batch])
            loss.backward()
            optimizer.step()
        arrays = [tensor.numpy() for tensor in self.network.state_dict().values()]
        return arrays, len(self.y), {}


def cpu_seconds():
    """Of this process and all below it that are alive."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def measure(name, ragged, num_rounds):
    sizes = client_sizes(np.random.default_rng(0), ragged)
    clock = [(time.perf_counter(), cpu_seconds())]

    def client_fn(context):
        partition = int(context.node_config["partition-id"])
        return Trainer(name, int(sizes[partition]), partition).to_client()

    class Timed(flwr.server.strategy.FedAvg):
        def aggregate_fit(self, *args):
            result = super().aggregate_fit(*args)
            clock.append((time.perf_counter(), cpu_seconds()))
            return result

    def server_fn(context):
        arrays = [tensor.numpy() for tensor in make_network(name).state_dict().values()]
        strategy = Timed(
            fraction_fit=COHORT / NUM_CLIENTS,
            fraction_evaluate=0.0,
            min_available_clients=NUM_CLIENTS,
            initial_parameters=flwr.common.ndarrays_to_parameters(arrays),
        )
        config = flwr.server.ServerConfig(num_rounds=num_rounds)
        return flwr.server.ServerAppComponents(strategy=strategy, config=config)

    flwr.simulation.run_simulation(
        server_app=flwr.server.ServerApp(server_fn=server_fn),
        client_app=flwr.client.ClientApp(client_fn=client_fn),
        num_supernodes=NUM_CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    wall, cpu = np.diff(np.asarray(clock), axis=0).T
    print_row(name, ragged, wall[1:], cpu[1:], wall[0])


if __name__ == "__main__":
    run_table(__doc__.splitlines()[0], ("logistic regression", "MLP"), 5, measure)
