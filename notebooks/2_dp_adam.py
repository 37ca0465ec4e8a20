# %% [markdown]
# # From optax.adam to DP-Adam
#
# A training loop in plain JAX and Optax becomes differentially private in three lines. Then: what
# the budget does, how to choose the clip norm, which hyperparameters matter, and what to publish
# with the model.
#
# The data are real: 1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn. Of
# these, 1,437 are the private training set; the others are for testing.

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

import jaxdp
from jaxdp import accounting as acc
from jaxdp import report, transforms

SMOKE = os.environ.get("JAXDP_SMOKE") == "1"  # a shorter run, to see that all works
NUM_STEPS = 6 if SMOKE else 60
SEEDS = 2 if SMOKE else 5
DELTA = 1e-5

pixels, digits = load_digits(return_X_y=True)
# Image by image: no statistic of the data set is used, which would have to be private, too.
pixels = pixels - pixels.mean(axis=1, keepdims=True)
pixels = (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32)
split = train_test_split(pixels, digits, test_size=0.2, random_state=0, stratify=digits)
images, test_images, labels, test_labels = map(jnp.asarray, split)
NUM_EXAMPLES = len(images)


def init_params(key):
    key_1, key_2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(key_1, (64, 64)) * 1.4,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(key_2, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


def logits(params, image):
    return jnp.tanh(image @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_fn(params, image, label):  # one example, no batch axis
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def test_accuracy(params):
    return jnp.mean(jnp.argmax(logits(params, test_images), axis=-1) == test_labels)


print(f"{NUM_EXAMPLES} images to train on, {len(test_images)} to test")
assert (NUM_EXAMPLES, len(pixels)) == (1437, 1797)

# %% [markdown]
# ## The loop without privacy

# %%
LEARNING_RATE = 0.03
RATE = 1.0 if SMOKE else 0.5  # of the data in a batch


def mean_loss(params, images, labels):
    return jnp.mean(jax.vmap(loss_fn, in_axes=(None, 0, 0))(params, images, labels))


@jax.jit
def train_plain(key):
    init_key, batch_key = jax.random.split(key)
    grad_fn = jax.grad(mean_loss)  # 1
    tx = optax.adam(LEARNING_RATE)  # 2

    def step(carry, key):
        params, opt_state = carry
        rows = jax.random.choice(key, NUM_EXAMPLES, (int(RATE * NUM_EXAMPLES),), replace=False)  # 3
        grads = grad_fn(params, images[rows], labels[rows])
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    params = init_params(init_key)
    carry = (params, tx.init(params))
    (params, _), _ = jax.lax.scan(step, carry, jax.random.split(batch_key, NUM_STEPS))
    return params


plain = jax.vmap(lambda key: test_accuracy(train_plain(key)))(
    jax.random.split(jax.random.key(0), SEEDS)
)
plain_accuracy = float(plain.mean())
print(f"test accuracy without privacy: {plain_accuracy:.1%}, mean of {SEEDS} seeds")

# %% [markdown]
# ## Three lines
#
# 1. **The gradient** becomes a sum of per-example gradients, each clipped to L2 norm 1:
#    `clipped_grad` of the loss of *one* example. What it returns is a `ClippedSum`, which carries
#    its sensitivity.
# 2. **The optimizer** becomes `dp_adam`: noise, division by the *expected* batch size,
#    `optax.adam`, and a budget around it all.
# 3. **The batch** becomes a Poisson sample, in which each example is with probability `RATE`, on
#    its own. Its size varies; shapes do not, so there is padding.
#
# How much noise? `calibrate` finds the noise multiplier with which all steps together cost
# $\varepsilon = 3$ at $\delta = 10^{-5}$.

# %%
TARGET = 3.0


def run_of(noise_multiplier, sampling_probability=RATE):
    return acc.PoissonSampled(sampling_probability, acc.Gaussian(noise_multiplier)) * NUM_STEPS


sigma = acc.calibrate(run_of, target_epsilon=TARGET, delta=DELTA)
print(f"noise multiplier {sigma:.3f}: epsilon {acc.epsilon(run_of(sigma), DELTA):.6f}")


def train_private(key, num_steps):
    init_key, batch_key, noise_key = jax.random.split(key, 3)
    grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0)  # 1
    tx = jaxdp.dp_adam(  # 2
        LEARNING_RATE,
        noise_multiplier=sigma,
        expected_batch_size=RATE * NUM_EXAMPLES,
        key=noise_key,
        sampling_probability=RATE,
        target_epsilon=TARGET,
        delta=DELTA,
    )

    def step(carry, key):
        params, opt_state = carry
        batch = jaxdp.poisson_batch(  # 3
            key,
            num_examples=NUM_EXAMPLES,
            sampling_probability=RATE,
            max_batch_size=NUM_EXAMPLES,
        )
        rows = batch.indices
        grads = grad_fn(params, images[rows], labels[rows], is_padding=batch.is_padding)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        history = (test_accuracy(params), jaxdp.privacy_spent(opt_state), opt_state.exhausted)
        return (params, opt_state), history

    params = init_params(init_key)
    carry = (params, tx.init(params))
    return jax.lax.scan(step, carry, jax.random.split(batch_key, num_steps))


(params, opt_state), history = jax.jit(train_private, static_argnums=1)(
    jax.random.key(1), NUM_STEPS + 10
)
accuracies, spent, exhausted = map(np.asarray, history)
print(
    f"test accuracy {accuracies[-1]:.1%} at epsilon {spent[-1]:.4f}; without: {plain_accuracy:.1%}"
)

# %% [markdown]
# ## The budget is in the state
#
# We asked for ten steps more than the budget allows. `opt_state` counts what is spent, inside the
# compiled program. Once the next step would exceed the budget, the update is exactly zero, the
# optimizer's state is frozen, and no noise is drawn: the accuracy below stands still from there
# on.

# %%
figure = Figure(figsize=(6.4, 3.6), layout="constrained")
axes = figure.add_subplot()
steps = np.arange(1, len(spent) + 1)
axes.plot(steps, 100 * accuracies, color="#0072B2", label="test accuracy (%)")
axes.set(xlabel="step", ylabel="test accuracy (%)", ylim=(0, 100))
other = axes.twinx()
other.plot(steps, spent, "--", color="#D55E00", label="epsilon spent")
other.set(ylabel="epsilon spent", ylim=(0, 1.1 * TARGET))
axes.axvline(NUM_STEPS, color="#888888", linewidth=0.8)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
display(figure)

assert spent[-1] <= TARGET
assert int(np.argmax(exhausted)) + 1 == NUM_STEPS  # after the last step that was planned
assert np.all(accuracies[NUM_STEPS - 1 :] == accuracies[-1])
assert np.all(spent[NUM_STEPS - 1 :] == spent[-1])
assert SMOKE or spent[NUM_STEPS - 5] == TARGET

# %% [markdown]
# The reported epsilon is a Renyi bound, cheap enough to evaluate at each step, and capped at the
# target: it gets there before step 60. When to *stop* is decided by the exact accountant, which
# allows all 60.
#
# ## The same in one call
#
# `make_private` does the above, and chooses how many slots a batch needs: the chance that a batch
# overflows is part of delta.

# %%
private = jaxdp.make_private(
    lambda params, example: loss_fn(params, *example),
    optax.adam(LEARNING_RATE),
    target_epsilon=TARGET,
    delta=DELTA,
    num_examples=NUM_EXAMPLES,
    expected_batch_size=RATE * NUM_EXAMPLES,
    num_steps=NUM_STEPS,
    l2_clip_norm=1.0,
)


@jax.jit
def train_by_plan(key):
    init_key, batch_key, noise_key = jax.random.split(key, 3)

    def step(state, key):
        batch = private.sample(key)
        examples = (images[batch.indices], labels[batch.indices])
        return private.step(state, examples, batch.is_padding)

    state = private.init(init_params(init_key), noise_key)
    return jax.lax.scan(step, state, jax.random.split(batch_key, NUM_STEPS))


state, metrics = train_by_plan(jax.random.key(2))
print(f"test accuracy {test_accuracy(state.params):.1%}, epsilon {metrics.epsilon[-1]:.4f}")
print()
print(private.plan)

# %% [markdown]
# ## Reading the statement
#
# `print(plan)`, above, is the short form. Read it from the top: *what* is guaranteed; for *whom*
# (one example, added or removed); by *which sampler* (batches drawn in another way are not
# covered); by which mechanism and accountant; and what is *not* covered. `report.describe` writes
# the long form, for a paper or a model card, along the checklist of Ponomareva et al. 2023. What
# only you know is an argument; left out, it says "not stated".

# %%
statement = report.describe(
    private.plan,
    unit="one image of a digit; a writer may have several",
    released="the final parameters",
    tuning="on the same data, without privacy: not covered",
    public_data="none",
)
display(Markdown(str(statement)))

# %% [markdown]
# ## Where to clip
#
# The noise is proportional to the clip norm, so it should not be larger than gradients are; the
# smaller it is, the more the direction of the sum is distorted. `return_per_example=True` gives
# the norms. They are computed from the private data without noise: for your eyes only.

# %%
norms_of = jax.jit(
    lambda params: (
        jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, return_per_example=True)(
            params, images, labels
        )[1].norm
    )
)
at_start, at_end = norms_of(init_params(jax.random.key(2))), norms_of(state.params)
figure = Figure(figsize=(9, 3.6), layout="constrained")
for axes, norms, title in zip(
    figure.subplots(1, 2),
    (at_start, at_end),
    ("before the first step", "after the last step"),
    strict=True,
):
    report.plot_norms(np.asarray(norms), 1.0, axes=axes)
    axes.set_title(f"{title} (not private)")
display(figure)

# %% [markdown]
# Norms change during training. `adaptive_clip_norm` follows a quantile of them, privately: a
# noisy count of the examples within the clip norm moves it up or down. The count costs something,
# and `split_noise_multiplier` takes that out of the gradient's share, so that a step costs what
# the accountant was told.

# %%
COUNT_NOISE = 30.0  # standard deviation of the noise on the count, in examples
EXPECTED = RATE * NUM_EXAMPLES


@jax.jit
def train_adaptively(key):
    init_key, batch_key, noise_key = jax.random.split(key, 3)
    tx = optax.chain(
        transforms.adaptive_clip_norm(
            5.0,  # far too large, on purpose
            count_noise_multiplier=COUNT_NOISE,
            expected_batch_size=EXPECTED,
            key=noise_key,
        ),
        jaxdp.add_gaussian_noise(
            transforms.split_noise_multiplier(sigma, COUNT_NOISE), key=noise_key
        ),
        jaxdp.scale_by_batch_size(EXPECTED),
        optax.adam(LEARNING_RATE),
    )

    def step(carry, key):
        params, opt_state = carry
        batch = jaxdp.poisson_batch(
            key,
            num_examples=NUM_EXAMPLES,
            sampling_probability=RATE,
            max_batch_size=NUM_EXAMPLES,
        )
        rows, norm = batch.indices, transforms.clip_norm(opt_state)
        grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=norm, return_per_example=True)
        clipped, per_example = grad_fn(
            params, images[rows], labels[rows], is_padding=batch.is_padding
        )
        within = transforms.count_within(per_example.norm, norm, batch.is_padding)
        updates, opt_state = tx.update(clipped, opt_state, params, within=within)
        return (optax.apply_updates(params, updates), opt_state), norm

    params = init_params(init_key)
    carry = (params, tx.init(params))
    (params, _), norms = jax.lax.scan(step, carry, jax.random.split(batch_key, NUM_STEPS))
    return test_accuracy(params), norms


adaptive_accuracy, clip_norms = train_adaptively(jax.random.key(3))
shown = sorted({0, NUM_STEPS // 4, NUM_STEPS // 2, NUM_STEPS - 1})
print("clip norm by step:", {step + 1: round(float(clip_norms[step]), 3) for step in shown})
print(
    f"noise multiplier {sigma:.3f}, of which the gradient's "
    f"{transforms.split_noise_multiplier(sigma, COUNT_NOISE):.3f}"
)
print(f"test accuracy {adaptive_accuracy:.1%}")
if not SMOKE:
    assert 0.3 < clip_norms[-1] < 0.9

# %% [markdown]
# From 5 the clip norm has come down to about 0.5. Until then there was more noise than needed: a
# first guess nearer to the norms loses less on the way.

# %% [markdown]
# ## Hyperparameters that matter
#
# A training run is a pure function of its key and its settings, so `vmap` trains all runs of a
# sweep at once. Four settings at a time, each with several seeds (a key of its own for every run:
# runs that share a key share their noise). Numbers are test accuracies, mean and standard
# deviation over seeds.


# %%
def train(key, setting):
    init_key, batch_key, noise_key = jax.random.split(key, 3)
    rate = setting["rate"]
    grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=setting["l2_clip_norm"])
    tx = jaxdp.dp_adam(
        setting["learning_rate"],
        noise_multiplier=lambda step: setting["noise_multipliers"][step],
        expected_batch_size=rate * NUM_EXAMPLES,
        key=noise_key,
    )

    def step(carry, key):
        params, opt_state = carry
        batch = jaxdp.poisson_batch(
            key,
            num_examples=NUM_EXAMPLES,
            sampling_probability=rate,
            max_batch_size=NUM_EXAMPLES,
        )
        rows = batch.indices
        grads = grad_fn(params, images[rows], labels[rows], is_padding=batch.is_padding)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    params = init_params(init_key)
    carry = (params, tx.init(params))
    (params, _), _ = jax.lax.scan(step, carry, jax.random.split(batch_key, NUM_STEPS))
    return test_accuracy(params)


train_all = jax.jit(jax.vmap(jax.vmap(train, in_axes=(0, None)), in_axes=(0, 0)))


STANDARD = {
    "rate": RATE,
    "l2_clip_norm": 1.0,
    "learning_rate": LEARNING_RATE,
    "noise_multipliers": np.full(NUM_STEPS, sigma),
}


def sweep(settings, seed):
    """Accuracies [settings, seeds]; what a setting leaves out is as above."""
    complete = [{**STANDARD, **setting} for setting in settings]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *complete)
    keys = jax.random.split(jax.random.key(seed), (len(settings), SEEDS))
    return np.asarray(train_all(keys, stacked))


def show(name, values, accuracies):
    print(f"{name:>24}   test accuracy")
    for value, row in zip(values, accuracies, strict=True):
        print(f"{value!s:>24}   {row.mean():.1%} ± {row.std(ddof=1):.1%}")


# %% [markdown]
# **Batch size.** At a fixed epsilon and number of steps, a larger sampling rate needs a larger
# noise multiplier; but the noise on the *mean* gradient, $\sigma C / (q N)$, falls. With half of
# the data in a batch it is within 5 % of what it is with all of them.

# %%
rates = [1.0] * 4 if SMOKE else [0.02, 0.1, 0.5, 1.0]
sigmas = [
    acc.calibrate(lambda s, q=q: run_of(s, q), target_epsilon=TARGET, delta=DELTA) for q in rates
]
noises = [np.full(NUM_STEPS, s) for s in sigmas]
by_rate = sweep(
    [{"rate": q, "noise_multipliers": s} for q, s in zip(rates, noises, strict=True)], seed=10
)
on_mean = [s / (q * NUM_EXAMPLES) for q, s in zip(rates, sigmas, strict=True)]
show(
    "rate: noise on the mean",
    [f"{q}: {noise:.4f}" for q, noise in zip(rates, on_mean, strict=True)],
    by_rate,
)
if not SMOKE:
    assert np.all(np.diff(on_mean) < 0)
    assert on_mean[2] < 1.05 * on_mean[3]

# %% [markdown]
# **Learning rate and clip norm.** Adam divides by the size of what it gets, so the clip norm
# matters little by itself, as long as it is not far above the norms; with SGD the two multiply.
# The learning rate matters as much as ever.

# %%
learning_rates = [0.003, 0.01, 0.03, 0.1]
by_learning_rate = sweep([{"learning_rate": value} for value in learning_rates], seed=11)
show("learning rate", learning_rates, by_learning_rate)
clips = [0.1, 0.5, 2.0, 8.0]
by_clip = sweep([{"l2_clip_norm": value} for value in clips], seed=12)
show("clip norm", clips, by_clip)
if not SMOKE:
    assert np.ptp(by_learning_rate.mean(axis=1)) > 3 * np.ptp(by_clip.mean(axis=1))

# %% [markdown]
# **Noise schedules.** Noise may change from step to step: an `acc.Schedule` says so to the
# accountant, and its *level* is calibrated so that the whole costs the same. Here are three
# phases of equally many steps.

# %%
PHASES = 3
ratios = [0.5, 1.0, 2.0, 4.0]  # noise in the first phase over that in the last
schedules = []
for ratio in ratios:
    shape = ratio ** np.linspace(1.0, 0.0, PHASES)
    level = acc.calibrate(
        lambda level, shape=shape: acc.Schedule(RATE, level * shape, NUM_STEPS // PHASES),
        target_epsilon=TARGET,
        delta=DELTA,
    )
    schedules.append(np.repeat(level * shape, NUM_STEPS // PHASES))
    print(f"first over last {ratio}: noise multipliers {(level * shape).round(2)}")
by_schedule = sweep([{"noise_multipliers": schedule} for schedule in schedules], seed=13)
show("first over last", ratios, by_schedule)
if not SMOKE:
    assert np.max(by_schedule.mean(axis=1)) < by_schedule[1].mean() + 0.02

# %% [markdown]
# On this small problem no schedule beats constant noise by more than the spread over seeds. Where
# the gradient shrinks a lot during training it can pay: `examples/noise_schedule.py` optimises a
# schedule by gradient descent through the accountant.

# %% [markdown]
# **Epsilon.** And what privacy costs:

# %%
targets = [0.5, 1.0, 3.0, 8.0]
sigmas = [acc.calibrate(run_of, target_epsilon=target, delta=DELTA) for target in targets]
by_epsilon = sweep([{"noise_multipliers": np.full(NUM_STEPS, s)} for s in sigmas], seed=14)
show("epsilon", targets, by_epsilon)
axes = report.plot_utility(targets, by_epsilon, public=plain_accuracy, label="test accuracy")
display(axes.figure)

# %% [markdown]
# ## What the statement does not cover
#
# This notebook has trained dozens of models on the private data. Each of them is
# $(\varepsilon, \delta)$-DP by itself, and choosing the best of them is *not* covered by any of
# their statements: a choice by looking at several private models leaks, too. Honest ways: tune on
# public data of the same kind, take settings known to work, or account for all runs together. Say
# which of these you did: it is the argument `tuning` of `describe`.
