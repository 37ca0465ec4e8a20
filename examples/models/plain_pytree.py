"""A recurrent network in plain JAX, its parameters a nested dict, trained privately on digits.

    python examples/models/plain_pytree.py

A GRU reads the image row by row in a jax.lax.scan, so that every weight is used eight times.
Any pytree of floating-point arrays will do as parameters: dicts, tuples, dataclasses. What is
not trained (sizes, index tables, functions) stays outside, in the loss function's closure.
"""

import jax
import jax.numpy as jnp
import optax
import train_digits

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
    """The digits as this model takes them."""
    return train_digits.load(lambda pixels: pixels.reshape(-1, 8, 8).astype("float32") / 16)


if __name__ == "__main__":
    train_digits.run(build, load(), learning_rate=3e-2, num_steps=100, loss_takes_key=False)
