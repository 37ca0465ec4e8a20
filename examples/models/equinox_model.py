"""An Equinox transformer with layer normalisation and dropout, trained privately on digits.

    python examples/models/equinox_model.py

- An Equinox model is a pytree that holds more than parameters: functions, sizes, flags.
  ``eqx.partition(model, eqx.is_inexact_array)`` splits off the float arrays, which are trained; the
  static part is closed over. ``eqx.is_array`` would let integer arrays through, which are refused.
- Equinox layers take one example without a batch axis, just as the loss function does here.
- No ``eqx.nn.BatchNorm``: its statistics mix the examples of a batch, so that a single example has
  no gradient of its own. Use LayerNorm or GroupNorm.
"""

import equinox as eqx
import jax
import optax
import train_digits

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
    """The digits as this model takes them."""
    return train_digits.load(lambda pixels: pixels.reshape(-1, 8, 8).astype("float32") / 16)


if __name__ == "__main__":
    train_digits.run(build, load())
