"""Federated learning under user-level differential privacy, in one compiled program.

The pieces are pure functions: ``local_training`` (what a client does), ``clipped_pseudo_grad`` (the
clipped sum over clients, a ``ClippedSum`` as the private Optax chains take it), the cohort
samplers, ``make_plan`` (their noise and what it promises), ``make_round`` and ``simulate``.

Example:
  DP-FedAvg for a model of your own.

  >>> import jax, jax.numpy as jnp, numpy as np, optax
  >>> from jaxdp import federated
  >>> rng = np.random.default_rng(0)
  >>> def make_client(num_rows):  # your data: for each client a pytree of arrays [rows, ...]
  ...     x = rng.normal(size=(num_rows, 5)).astype(np.float32)
  ...     return {"x": x, "y": (x.sum(1) > 0).astype(np.float32)}
  >>> federation = federated.from_clients([make_client(n) for n in rng.integers(1, 60, 300)])
  >>> def loss_fn(params, example):  # one example
  ...     score = example["x"] @ params["w"] + params["b"]
  ...     return optax.sigmoid_binary_cross_entropy(score, example["y"])
  >>> client_update = federated.local_training(
  ...     loss_fn, optax.sgd(0.5), num_epochs=1, batch_size=16)
  >>> plan = federated.make_plan(federated.GroupCohorts(300, min_separation=3), num_rounds=15,
  ...     l2_clip_norm=0.5, target_epsilon=3.0, delta=1e-4)
  >>> params, metrics, plan = federated.simulate(
  ...     client_update, federation, {"w": jnp.zeros(5), "b": jnp.zeros(())}, jax.random.key(0),
  ...     plan=plan, server_optimizer=optax.sgd(1.0, momentum=0.5))
  >>> bool(metrics.loss[-1] < 0.5 * metrics.loss[0]), bool(metrics.epsilon[-1] <= 3.0)
  (True, True)
"""

from jaxdp.federated.client import ClientUpdate as ClientUpdate
from jaxdp.federated.client import local_training as local_training
from jaxdp.federated.cohort import CohortSampler as CohortSampler
from jaxdp.federated.cohort import Draw as Draw
from jaxdp.federated.cohort import FixedSizeCohorts as FixedSizeCohorts
from jaxdp.federated.cohort import GroupCohorts as GroupCohorts
from jaxdp.federated.cohort import PoissonCohorts as PoissonCohorts
from jaxdp.federated.data import Client as Client
from jaxdp.federated.data import Cohort as Cohort
from jaxdp.federated.data import Federation as Federation
from jaxdp.federated.data import GeneratedFederation as GeneratedFederation
from jaxdp.federated.data import from_client_ids as from_client_ids
from jaxdp.federated.data import from_clients as from_clients
from jaxdp.federated.local import LocalPlan as LocalPlan
from jaxdp.federated.local import make_local_round as make_local_round
from jaxdp.federated.metrics import RoundMetrics as RoundMetrics
from jaxdp.federated.mime import Mime as Mime
from jaxdp.federated.mime import mime as mime
from jaxdp.federated.noise_cohort import NoiseCohort as NoiseCohort
from jaxdp.federated.noise_cohort import noise_cohort as noise_cohort
from jaxdp.federated.plan import AdaptiveClip as AdaptiveClip
from jaxdp.federated.plan import ClientPlan as ClientPlan
from jaxdp.federated.plan import make_plan as make_plan
from jaxdp.federated.pseudo_grad import PerClient as PerClient
from jaxdp.federated.pseudo_grad import clipped_pseudo_grad as clipped_pseudo_grad
from jaxdp.federated.round import Carry as Carry
from jaxdp.federated.round import FederatedRound as FederatedRound
from jaxdp.federated.round import make_round as make_round
from jaxdp.federated.simulate import Simulation as Simulation
from jaxdp.federated.simulate import run_rounds as run_rounds
from jaxdp.federated.simulate import simulate as simulate
from jaxdp.federated.stream import HostFederation as HostFederation
from jaxdp.federated.stream import stream_rounds as stream_rounds
from jaxdp.federated.turns import with_budget_in_turns as with_budget_in_turns
