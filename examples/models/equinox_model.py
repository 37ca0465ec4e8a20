"""An Equinox transformer with layer normalisation and dropout, trained privately on digits.

    python examples/models/equinox_model.py

- An Equinox model is a pytree that holds more than parameters: functions, sizes, flags.
  ``eqx.partition(model, eqx.is_inexact_array)`` splits off the float arrays, which are trained; the
  static part is closed over. ``eqx.is_array`` would let integer arrays through, which are refused.
- Equinox layers take one example without a batch axis, just as the loss function does here.
- No ``eqx.nn.BatchNorm``: its statistics mix the examples of a batch, so that a single example has
  no gradient of its own. Use LayerNorm or GroupNorm.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp

WIDTH = 32


class Transformer(eqx.Module):
    """One block of attention over the eight rows of an image."""

    embed: eqx.nn.Linear
    positions: jax.Array
    norm_attention: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm_mlp: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.embed = eqx.nn.Linear(8, WIDTH, key=keys[0])
        self.positions = 0.1 * jax.random.normal(keys[1], (8, WIDTH))
        self.norm_attention = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(num_heads=2, query_size=WIDTH, key=keys[2])
        self.norm_mlp = eqx.nn.LayerNorm(WIDTH)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, depth=1, key=keys[3])
        self.dropout = eqx.nn.Dropout(0.1)
        self.head = eqx.nn.Linear(8 * WIDTH, 10, key=keys[4])

    def __call__(self, image, key=None):
        """Image [8, 8] -> scores [10]; with a key, under dropout."""
        x = jax.vmap(self.embed)(image) + self.positions
        normed = jax.vmap(self.norm_attention)(x)
        x = x + self.attention(normed, normed, normed)
        x = x + jax.vmap(self.mlp)(jax.vmap(self.norm_mlp)(x))
        x = self.dropout(x.reshape(-1), key=key, inference=key is None)
        return self.head(x)


def build(key):
    """The parameters and the two functions of them: loss of an example, scores of an image."""
    params, static = eqx.partition(Transformer(key), eqx.is_inexact_array)

    def scores(params, image):
        return eqx.combine(params, static)(image)

    def loss_fn(params, example, key):
        # make_private gives each example a key of its own, and with it its own dropout mask.
        image, label = example
        scores = eqx.combine(params, static)(image, key)
        return optax.softmax_cross_entropy_with_integer_labels(scores, label)

    return params, loss_fn, scores


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
    num_steps = 4 if parser.parse_args(arguments).smoke else 60

    train, test = load()
    params, loss_fn, scores = build(jax.random.key(0))
    example = jax.tree.map(lambda leaf: leaf[0], train)
    print(jaxdp.clipping.explain(loss_fn, params, example, key=jax.random.key(0)))
    private = jaxdp.make_private(
        loss_fn,
        optax.adam(1e-2),
        target_epsilon=3.0,
        delta=1e-5,
        num_examples=len(train[0]),
        expected_batch_size=512,
        num_steps=num_steps,
        l2_clip_norm=1.0,
        loss_takes_key=True,
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
