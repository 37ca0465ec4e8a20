"""The same private federated rounds in pfl-research (torch on CPU), to compare.

    pip install torch pfl      # in an environment of its own
    python benchmarks/federated_pfl.py

The data law, models, cohort size (exactly 100 clients a round), batches and optimizers of
``benchmarks/federated.py``, with pfl's clipping and central Gaussian noise. Nothing is evaluated in
the rounds that are timed.
"""

import time

import numpy as np
import torch
from federated_law import BATCH, COHORT, client_sizes, print_row, run_table
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


class Network(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, x, y):
        return {}


def logistic_regression():
    return torch.nn.Linear(784, 10), (784,), 10


def mlp():
    nn = torch.nn
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), (784,), 10


def cnn():
    nn = torch.nn
    layers = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, bias=False), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62)),
    )
    return layers, (1, 28, 28), 62


MODELS = {"logistic regression": logistic_regression, "MLP": mlp, "CNN": cnn}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.times = [(time.perf_counter(), time.process_time())]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


def measure(name, ragged, num_rounds):
    rng = np.random.default_rng(0)
    layers, shape, labels = MODELS[name]()
    datasets = {
        user: Dataset(
            (
                torch.as_tensor(rng.normal(size=(size, *shape)).astype(np.float32)),
                torch.as_tensor(rng.integers(0, labels, size)),
            )
        )
        for user, size in enumerate(client_sizes(rng, ragged))
    }
    sampler = get_user_sampler("random", list(datasets))
    federation = FederatedDataset(datasets.__getitem__, sampler)
    network = Network(layers)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    backend = SimulatedBackend(federation, federation, postprocessors=[mechanism])
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=num_rounds,
            evaluation_frequency=10**9,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend,
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.05, local_batch_size=BATCH),
        callbacks=[clock],
    )
    wall, cpu = np.diff(np.asarray(clock.times), axis=0).T
    # The first round evaluates before it trains: it is left out.
    print_row(name, ragged, wall[1:], cpu[1:], wall[0])


if __name__ == "__main__":
    run_table(__doc__.splitlines()[0], MODELS, 8, measure)
