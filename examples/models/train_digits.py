"""One private training run on the digits, whatever the model is made of.

The examples beside this file differ in their models only, and hand them to ``run``.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp


def load(prepare):
    """The digits, for training and for testing: pairs of prepared images and labels."""
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(prepare(pixels), labels, test_size=0.2, random_state=0)
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)
    return (train_images, train_labels), (test_images, test_labels)


def run(build, data, *, learning_rate=1e-2, num_steps=60, loss_takes_key=True, arguments=None):
    """Trains what ``build`` makes under (3, 1e-5)-differential privacy; the test accuracy.

    Args:
      build: Function of a key that returns parameters, the loss of an example, and the
        scores of an image.
      data: Pairs of images and labels, for training and for testing.
      learning_rate: Of Adam.
      num_steps: Steps of the run.
      loss_takes_key: Whether the loss draws from a key (dropout).
      arguments: The command line, ``--smoke`` or nothing.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    num_steps = 4 if parser.parse_args(arguments).smoke else num_steps

    train, (test_images, test_labels) = data
    params, loss_fn, scores = build(jax.random.key(0))
    example = jax.tree.map(lambda leaf: leaf[0], train)
    key = jax.random.key(0) if loss_takes_key else None
    print(jaxdp.clipping.explain(loss_fn, params, example, key=key))
    private = jaxdp.make_private(
        loss_fn,
        optax.adam(learning_rate),
        target_epsilon=3.0,
        delta=1e-5,
        num_examples=len(train[0]),
        expected_batch_size=512,
        num_steps=num_steps,
        l2_clip_norm=1.0,
        loss_takes_key=loss_takes_key,
    )

    def step(state, key):
        batch = private.sample(key)
        examples = jax.tree.map(lambda leaf: leaf[batch.indices], train)
        return private.step(state, examples, batch.is_padding)

    state = private.init(params, jax.random.key(1))
    keys = jax.random.split(jax.random.key(2), num_steps)
    state, metrics = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)

    test_scores = jax.vmap(scores, in_axes=(None, 0))(state.params, test_images)
    accuracy = float(jnp.mean(jnp.argmax(test_scores, axis=1) == test_labels))
    print(f"\ntest accuracy: {100 * accuracy:.1f} %, epsilon spent: {metrics.epsilon[-1]:.3f}")
    print(f"\n{private.plan}")
    return accuracy
