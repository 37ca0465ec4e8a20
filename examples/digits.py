"""Trains a small network on real handwritten digits under (epsilon, delta)-differential privacy.

    python examples/digits.py                      # epsilon 3, about half a minute
    python examples/digits.py --target-epsilon 1 --seed 7

The data ship inside scikit-learn: 1,797 images of 8 x 8 pixels, each of one digit. The network is
a fixed random layer of cosine units with a trained linear layer on top. The whole run is a
jax.lax.scan, in chunks between updates of the progress bar.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import jaxdp

WIDTH = 1024
BANDWIDTH = 0.5


def make_logits(key):
    """The network: image [64], pixels in [0, 1] -> scores [10]; only ``params`` is trained."""
    key_directions, key_phases = jax.random.split(key)
    directions = jax.random.normal(key_directions, (64, WIDTH)) / BANDWIDTH
    phases = jax.random.uniform(key_phases, (WIDTH,), maxval=2 * jnp.pi)

    def logits(params, image):
        # Each image is centred and scaled by itself: no statistic of the private data set.
        image = image - image.mean()
        image = image * jax.lax.rsqrt(jnp.sum(image**2) + 1e-6)
        return jnp.sqrt(2 / WIDTH) * jnp.cos(image @ directions + phases) @ params

    return logits


def half_pixel_views(image):
    """The image with its four shifts by half a pixel: [64] -> [5, 64]."""
    grid = jnp.pad(image.reshape(8, 8), 1)
    here, *shifted = (
        grid[1:9, 1:9],
        grid[2:, 1:9],
        grid[:8, 1:9],
        grid[1:9, 2:],
        grid[1:9, :8],
    )
    return jnp.stack([here, *((here + other) / 2 for other in shifted)]).reshape(5, 64)


def make_loss(logits):
    def loss_fn(params, example):
        # The views of one image are one example: its gradient is clipped once.
        image, label = example
        scores = jax.vmap(logits, in_axes=(None, 0))(params, half_pixel_views(image))
        labels = jnp.full(5, label)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    return loss_fn


def evaluate(logits, params, images, labels):
    scores = jax.vmap(logits, in_axes=(None, 0))(params, images)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return losses.mean(), jnp.mean(jnp.argmax(scores, axis=1) == labels)


def train_privately(args, logits, train, test) -> tuple[jaxdp.PrivacyPlan, Any]:
    """The private run: its plan, and a history of (step, epsilon, test accuracy)."""
    images, labels = train
    private = jaxdp.make_private(
        make_loss(logits),
        optax.sgd(args.learning_rate, momentum=0.9),
        target_epsilon=args.target_epsilon,
        delta=args.delta,
        num_examples=len(images),
        expected_batch_size=args.sampling_probability * len(images),
        num_steps=args.num_steps,
        l2_clip_norm=args.l2_clip_norm,
    )
    plan = private.plan

    def step(state, key):
        batch = private.sample(key)
        examples = (images[batch.indices], labels[batch.indices])
        return private.step(state, examples, batch.is_padding)

    @jax.jit
    def run_chunk(state, keys):
        state, metrics = jax.lax.scan(step, state, keys)
        loss, accuracy = evaluate(logits, state.params, *test)
        return state, (loss, accuracy, metrics.epsilon[-1], metrics.steps_left[-1])

    init_key, sample_key = jax.random.split(jax.random.key(args.seed))
    state = private.init(jnp.zeros((WIDTH, 10)), init_key)
    keys = jax.random.split(sample_key, plan.num_steps)
    history = [(0, 0.0, float(evaluate(logits, state.params, *test)[1]))]
    # disable=None: quiet where the output is no terminal.
    with tqdm(total=plan.num_steps, desc="private training", disable=None) as bar:
        for start in range(0, plan.num_steps, args.chunk):
            chunk = keys[start : start + args.chunk]
            state, (loss, accuracy, epsilon, steps_left) = run_chunk(state, chunk)
            history.append((start + len(chunk), float(epsilon), float(accuracy)))
            bar.update(len(chunk))
            # The test set is no part of the private data: its loss may be shown.
            bar.set_postfix(
                test_loss=f"{loss:.3f}", epsilon=f"{epsilon:.3f}", steps_left=int(steps_left)
            )
    return plan, np.asarray(history)


def train_publicly(args, logits, train, test) -> float:
    """Test accuracy of the same model, loss, optimizer and steps without clipping or noise."""
    optimizer = optax.sgd(args.learning_rate, momentum=0.9)
    loss_fn = make_loss(logits)

    def mean_loss(params):
        return jax.vmap(loss_fn, in_axes=(None, 0))(params, train).mean()

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(mean_loss)(params), state)
        return (optax.apply_updates(params, updates), state), None

    params = jnp.zeros((WIDTH, 10))
    carry = (params, optimizer.init(params))
    (params, _), _ = jax.jit(lambda c: jax.lax.scan(step, c, length=args.num_steps))(carry)
    return float(evaluate(logits, params, *test)[1])


def save_picture(path: Path, history, public_accuracy: float, target_epsilon: float):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps, epsilons, accuracies = history.T
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    axis.plot(steps, 100 * accuracies, "o-", color="#0072B2", label="private test accuracy")
    axis.axhline(100 * public_accuracy, ls=":", color="#000000", label="same model, not private")
    axis.set(xlabel="step", ylabel="test accuracy (%)", ylim=(0, 100))
    spent = axis.twinx()
    spent.plot(steps, epsilons, "s--", color="#D55E00", label="epsilon spent")
    # What the program itself can tell; the exact accountant, which ends the run, is below it.
    spent.set(ylabel="epsilon spent (Rényi bound)", ylim=(0, 1.1 * target_epsilon))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target-epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--num-steps", type=int, default=60)
    parser.add_argument("--sampling-probability", type=float, default=0.5)
    parser.add_argument("--l2-clip-norm", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=20.0)
    parser.add_argument("--chunk", type=int, default=5, help="steps between progress updates")
    parser.add_argument("--seed", type=int, default=0, help="fixes the run bit for bit")
    parser.add_argument("--output", type=Path, default=Path("out/digits.png"), help="the picture")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    args = parser.parse_args(arguments)
    if args.chunk < 1:
        parser.error(f"--chunk must be at least 1, got {args.chunk}")
    if args.smoke:
        args.num_steps, args.chunk = 4, 2
    return args


def main(arguments=None) -> tuple[float, float]:
    args = parse_arguments(arguments)
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(
        (pixels / 16).astype(np.float32),
        labels.astype(np.int32),
        test_size=0.2,
        random_state=0,
        stratify=labels,
    )
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)
    train, test = (train_images, train_labels), (test_images, test_labels)
    logits = make_logits(jax.random.key(1_000_000 + args.seed))

    plan, history = train_privately(args, logits, train, test)
    public_accuracy = train_publicly(args, logits, train, test)
    save_picture(args.output, history, public_accuracy, args.target_epsilon)

    private_accuracy = history[-1, 2]
    print(f"test accuracy, private:      {100 * private_accuracy:.1f} %")
    print(f"test accuracy, not private:  {100 * public_accuracy:.1f} % (the same model)")
    print(f"picture:                     {args.output}")
    print(f"\n{plan}")
    return float(private_accuracy), public_accuracy


if __name__ == "__main__":
    main()
