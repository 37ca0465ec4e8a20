# %% [markdown]
# # Federated learning, private for every client
#
# In federated learning many clients, such as phones, each hold some data, and a server only ever
# sees sums of what they send. Here the unit of privacy is a *client with all its data*. The
# notebook trains on real digits split over 150 clients, in one compiled program; sweeps seeds,
# learning rates and noise with `vmap`; and shows what the statement means, and what a simulation
# with the noise of a larger deployment may say about itself.

# %%
# %matplotlib inline
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from IPython.display import Markdown, display
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from jaxdp import accounting as acc
from jaxdp import federated, report

SMOKE = os.environ.get("JAXDP_SMOKE") == "1"  # a shorter run, to see that all works
NUM_CLIENTS = 150
NUM_ROUNDS = 4 if SMOKE else 60
SEEDS = 2 if SMOKE else 4
DELTA = 1e-3  # below one over the number of clients

pixels, digits = load_digits(return_X_y=True)
split = train_test_split(
    (pixels / 16).astype(np.float32), digits, test_size=0.2, random_state=0, stratify=digits
)
train_images, test_images, train_labels, test_labels = split

# %% [markdown]
# ## Clients that are not alike
#
# Every label is dealt out to the clients in random proportions of its own. So clients have mostly
# a few of the digits, and some have far more images than others. `from_client_ids` takes rows and
# their owners; nothing is padded to the size of the largest client.

# %%
rng = np.random.default_rng(0)
popularity = rng.lognormal(sigma=0.5, size=NUM_CLIENTS)
owners = np.empty(len(train_labels), int)
for digit in range(10):
    shares = rng.dirichlet(0.3 * popularity / popularity.mean())
    mine = np.nonzero(train_labels == digit)[0]
    owners[mine] = rng.choice(NUM_CLIENTS, size=len(mine), p=shares)
federation = federated.from_client_ids(
    (train_images, train_labels), owners, num_clients=NUM_CLIENTS
)

sizes = np.asarray(federation.sizes)
kinds = [len(set(train_labels[owners == client])) for client in range(NUM_CLIENTS)]
print(
    f"{sizes.sum()} images; of a client {sizes.min()} to {sizes.max()}, median {np.median(sizes):g}"
)
print(f"different digits of a client: median {np.median(kinds):g}")
assert (sizes.sum(), sizes.min(), sizes.max()) == (1437, 0, 35)


# %%
def logits(params, images):
    images = images - images.mean(-1, keepdims=True)  # image by image: no statistic of the data
    images = images / jnp.sqrt(jnp.sum(images**2, -1, keepdims=True) + 1e-6)
    return images @ params["w"] + params["b"]


def loss_fn(params, example):  # one example
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def test_accuracy(params):
    # The test images are nobody's in the federation.
    return jnp.mean(jnp.argmax(logits(params, test_images), axis=-1) == test_labels)


params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}

# %% [markdown]
# ## What a statement about clients means
#
# Suppose the same data were trained on with privacy for each *image*: full batches, 60 steps,
# noise for $\varepsilon = 2$ at $\delta = 10^{-3}$. What does that promise a client that has $m$
# images, all of them taken away at once? They move a sum $m$ times as far, so the noise
# multiplier counts $1/m$:

# %%
per_image = acc.calibrate(lambda s: acc.Gaussian(s) * 60, target_epsilon=2.0, delta=DELTA)
print("images of a client    epsilon of the client")
for images_of_client in (1, 5, 10, 35):
    spent = acc.epsilon(acc.Gaussian(per_image / images_of_client) * 60, DELTA)
    print(f"{images_of_client:18}{spent:25.1f}")
assert abs(spent - 367.1) < 0.1

# %% [markdown]
# For the largest client 367 is no promise at all. A client-level statement holds for every client
# alike, however many images it has: what is clipped is the client's whole contribution, its
# *delta*.
#
# ## Plan, then run
#
# `PoissonCohorts` is the sampler: in each round every client takes part with probability 1/2.
# `make_plan` calibrates the noise to $(\varepsilon, \delta) = (8, 10^{-3})$ and says what is
# promised.

# %%
SHARE = 1.0 if SMOKE else 0.5
cohorts = federated.PoissonCohorts(NUM_CLIENTS, expected_cohort_size=SHARE * NUM_CLIENTS)
plan = federated.make_plan(
    cohorts, num_rounds=NUM_ROUNDS, l2_clip_norm=0.5, target_epsilon=8.0, delta=DELTA
)
print(plan)
assert plan.epsilon <= 8.0

# %% [markdown]
# A run is a pure function: draw a cohort, let each client train on its own data, clip and add up
# the deltas, add noise, step the server's optimizer; sixty rounds of it in one `jax.lax.scan`,
# budget included. (Pass the federation as an argument; closed over, its data would be written
# into the program.)


# %%
def run(federation, key, plan, learning_rate=1.0):
    client_update = federated.local_training(
        loss_fn, optax.sgd(learning_rate), num_epochs=2, batch_size=16
    )
    return federated.simulate(
        client_update,
        federation,
        params,
        key,
        plan=plan,
        server_optimizer=optax.sgd(1.0, momentum=0.9),
        evaluate=test_accuracy,
    )


run_plan = jax.jit(lambda federation, key: run(federation, key, plan).metrics)
metrics = run_plan(federation, jax.random.key(0))
print(f"test accuracy {metrics.evaluation[-1]:.1%}, epsilon {metrics.epsilon[-1]:.3f}")

# %%
figure = Figure(figsize=(6.4, 3.6), layout="constrained")
axes = figure.add_subplot()
rounds = np.arange(1, NUM_ROUNDS + 1)
axes.plot(rounds, 100 * metrics.evaluation, color="#0072B2", label="test accuracy (%)")
axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
other = axes.twinx()
other.plot(rounds, metrics.epsilon, "--", color="#D55E00", label="epsilon spent, for one client")
other.set(ylabel="epsilon", ylim=(0, 9))
figure.legend(loc="outside upper center", ncols=2, frameon=False)
display(figure)

# %% [markdown]
# The norms of the clients' deltas, in the last round; such metrics look at the clients without
# noise, and are marked NOT private.

# %%
took_part = np.asarray(metrics.norm[-1])
took_part = took_part[took_part > 0]
axes = report.plot_norms(took_part, 0.5)
display(axes.figure)

# %% [markdown]
# The statement to publish, with what only the curator knows filled in:

# %%
statement = report.describe(
    plan,
    unit="one client with all its images",
    released="the final model",
    tuning="on the same clients, without privacy: not covered",
    public_data="none",
)
display(Markdown(str(statement)))

# %% [markdown]
# ## Sweeps by vmap
#
# Keys, learning rates and noise multipliers may be traced, so a grid of runs is one program.
# Below: four noise multipliers by three learning rates of the clients by four seeds, 48 runs. A
# plan whose noise is given, and not calibrated, enforces no budget; what each costs is computed
# beside it.

# %%
noise_multipliers = jnp.array([0.5, 1.0, 2.0, 4.0])
learning_rates = jnp.array([0.3, 1.0, 3.0])


def plan_with(noise_multiplier):
    return federated.make_plan(
        cohorts,
        num_rounds=NUM_ROUNDS,
        l2_clip_norm=0.5,
        noise_multiplier=noise_multiplier,
        delta=DELTA,
    )


def accuracy(federation, key, noise_multiplier, learning_rate):
    plan_of_run = plan_with(noise_multiplier)
    return run(federation, key, plan_of_run, learning_rate).metrics.evaluation[-1]


over_seeds = jax.vmap(accuracy, in_axes=(None, 0, None, None))
over_rates = jax.vmap(over_seeds, in_axes=(None, 0, None, 0))
over_noises = jax.vmap(over_rates, in_axes=(None, 0, 0, None))
keys = jax.random.split(jax.random.key(1), (len(noise_multipliers), len(learning_rates), SEEDS))
accuracies = np.asarray(jax.jit(over_noises)(federation, keys, noise_multipliers, learning_rates))

epsilons = [plan_with(noise).epsilon for noise in noise_multipliers.tolist()]
print("epsilon   noise" + "".join(f"   client rate {rate:g}" for rate in learning_rates))
for epsilon, noise, row in zip(epsilons, noise_multipliers, accuracies, strict=True):
    cells = [f"{cell.mean():.1%} ± {cell.std(ddof=1):.1%}" for cell in row]
    print(f"{epsilon:7.2f}{noise:8.1f}" + "".join(f"{cell:>17}" for cell in cells))
assert accuracies.shape == (4, 3, SEEDS)

# %%
figure = Figure(figsize=(7.0, 4.4), layout="constrained")
axes = figure.add_subplot(ylabel="test accuracy")
rounded_up = np.ceil(10 * np.array(epsilons)) / 10
for index, rate in enumerate(learning_rates.tolist()):
    report.plot_utility(rounded_up, accuracies[:, index], label=f"client rate {rate:g}", axes=axes)
axes.legend(loc="lower right", frameon=False)
display(figure)

# %% [markdown]
# ## Who takes part
#
# The statement depends on how cohorts are drawn, and each sampler knows its own event. Noise
# multipliers for the same (8, 0.001) over 60 rounds with 75 clients a round:
#
# - `PoissonCohorts`: random participation hides who takes part, which amplifies privacy; the draw
#   must stay secret.
# - `GroupCohorts`: fixed public groups in turn. No secrecy needed; but each client is known to
#   take part in every second round.

# %%
samplers = {
    "PoissonCohorts": federated.PoissonCohorts(NUM_CLIENTS, expected_cohort_size=75),
    "GroupCohorts": federated.GroupCohorts(NUM_CLIENTS, min_separation=2),
}
if SMOKE:
    del samplers["PoissonCohorts"]  # its accountant compiles for some seconds
found = {}
for name, sampler in samplers.items():
    planned = federated.make_plan(
        sampler, num_rounds=60, l2_clip_norm=0.5, target_epsilon=8.0, delta=DELTA
    )
    found[name] = planned.noise_multiplier
    print(f"{name:16} noise multiplier {planned.noise_multiplier:.3f}")
if not SMOKE:
    assert found["PoissonCohorts"] < found["GroupCohorts"]

# %% [markdown]
# ## The noise of a larger deployment
#
# A deployment with 7,500 clients in a round can afford a noise multiplier of 1: on the *mean*
# over the cohort that is a hundred times less than with 75 clients. A simulation can be given the
# noise that the deployment's mean would have, to predict its accuracy. It then has **two**
# epsilons, and only one of them is true of the people whose data are simulated on.

# %%
deployment = federated.PoissonCohorts(1_000_000, expected_cohort_size=7_500)
both = federated.noise_cohort(
    cohorts, deployment, noise_multiplier=1.0, num_rounds=NUM_ROUNDS, delta=1e-6
)
print(both)
assert both.real_epsilon > 1_000 * both.hypothetical_epsilon

# %% [markdown]
# The first line is the one to publish. The second is a promise that the *deployment* could make
# to its million clients; nobody in this simulation has it.
#
# ## What to remember
#
# - A client-level epsilon holds for all the data of a client together; an example-level epsilon
#   says next to nothing about a client with many examples.
# - The plan knows the sampler. Cohorts drawn in another way are not covered.
# - Runs are pure functions: sweep them with `vmap`, a key for each.
# - A sweep on private data leaks as well, and no single run's statement covers it.
