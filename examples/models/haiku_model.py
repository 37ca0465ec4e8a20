"""A Haiku network over embedded pixel values, with dropout, trained privately on digits.

    python examples/models/haiku_model.py

- ``hk.transform`` turns the model into a pair of pure functions; the parameters are what ``init``
  returns, and ``apply`` takes the example's key for ``hk.next_rng_key``.
- No ``hk.BatchNorm``, which would need ``hk.transform_with_state``: its statistics mix the examples
  of a batch, so that a single example has no gradient of its own. Use LayerNorm or GroupNorm.
"""

import haiku as hk
import jax
import jax.numpy as jnp
import optax
import train_digits

NUM_VALUES = 17  # a pixel is an integer from 0 to 16


def network(pixels, train):
    """Pixel values, int [64] -> scores [10]."""
    x = hk.Embed(NUM_VALUES, 8)(pixels).reshape(-1)
    x = hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)
    x = jax.nn.relu(hk.Linear(64)(x))
    if train:
        x = hk.dropout(hk.next_rng_key(), 0.1, x)
    return hk.Linear(10)(x)


def build(key):
    """The parameters and the two functions of them: loss of an example, scores of an image."""
    model = hk.transform(network)
    params = model.init(key, jnp.zeros(64, jnp.int32), False)

    def scores(params, pixels):
        return model.apply(params, None, pixels, False)

    def loss_fn(params, example, key):
        # make_private gives each example a key of its own, and with it its own dropout mask.
        pixels, label = example
        scores = model.apply(params, key, pixels, True)
        return optax.softmax_cross_entropy_with_integer_labels(scores, label)

    return params, loss_fn, scores


def load():
    """The digits as this model takes them."""
    return train_digits.load(lambda pixels: pixels.astype("int32"))


if __name__ == "__main__":
    train_digits.run(build, load())
