"""A recurrent network in plain JAX, its parameters a nested dict, trained privately on digits.

    python examples/models/plain_pytree.py

A GRU reads the image row by row in a jax.lax.scan, so that every weight is used eight times.
Any pytree of floating-point arrays will do as parameters: dicts, tuples, dataclasses. What is
not trained (sizes, index tables, functions) stays outside, in the loss function's closure.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp

WIDTH = 64


def init(key):
    def dense(key, rows, columns):
        return {
            "weight": jax.random.normal(key, (rows, columns)) * rows**-0.5,
            "bias": jnp.zeros(columns),
        }

    keys = jax.random.split(key, 3)
    return {
        "cell": {
            "gates": dense(keys[0], 8 + WIDTH, 2 * WIDTH),
            "candidate": dense(keys[1], 8 + WIDTH, WIDTH),
        },
        "output": dense(keys[2], WIDTH, 10),
    }


def apply_dense(layer, x):
    return x @ layer["weight"] + layer["bias"]


def scores(params, image):
    """The network: image [8, 8] -> scores [10]."""

    def read_row(hidden, row):
        gates = jax.nn.sigmoid(apply_dense(params["cell"]["gates"], jnp.concatenate([row, hidden])))
        update, reset = jnp.split(gates, 2)
        candidate = jnp.tanh(
            apply_dense(params["cell"]["candidate"], jnp.concatenate([row, reset * hidden]))
        )
        return update * hidden + (1 - update) * candidate, None

    hidden, _ = jax.lax.scan(read_row, jnp.zeros(WIDTH), image)
    return apply_dense(params["output"], hidden)


def loss_fn(params, example):
    """The loss of one example, without a batch axis."""
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, image), label)


def build(key):
    """The parameters and the two functions of them: loss of an example, scores of an image."""
    return init(key), loss_fn, scores


def load():
    """The digits, for training and for testing: pairs of images and labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype("float32") / 16
    split = train_test_split(images, labels, test_size=0.2, random_state=0)
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)
    return (train_images, train_labels), (test_images, test_labels)


def main(arguments=None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    num_steps = 4 if parser.parse_args(arguments).smoke else 100

    train, test = load()
    params, loss_fn, scores = build(jax.random.key(0))
    example = jax.tree.map(lambda leaf: leaf[0], train)
    print(jaxdp.clipping.explain(loss_fn, params, example))
    private = jaxdp.make_private(
        loss_fn,
        optax.adam(3e-2),
        target_epsilon=3.0,
        delta=1e-5,
        num_examples=len(train[0]),
        expected_batch_size=512,
        num_steps=num_steps,
        l2_clip_norm=1.0,
    )

    def step(state, key):
        batch = private.sample(key)
        examples = jax.tree.map(lambda leaf: leaf[batch.indices], train)
        return private.step(state, examples, batch.is_padding)

    state = private.init(params, jax.random.key(1))
    keys = jax.random.split(jax.random.key(2), num_steps)
    state, metrics = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)

    test_images, test_labels = test
    test_scores = jax.vmap(scores, in_axes=(None, 0))(state.params, test_images)
    accuracy = float(jnp.mean(jnp.argmax(test_scores, axis=1) == test_labels))
    print(f"\ntest accuracy: {100 * accuracy:.1f} %, epsilon spent: {metrics.epsilon[-1]:.3f}")
    print(f"\n{private.plan}")
    return accuracy


if __name__ == "__main__":
    main()
