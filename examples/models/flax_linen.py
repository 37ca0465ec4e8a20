"""A Flax (linen) convolutional network with group normalisation and dropout, trained privately.

    python examples/models/flax_linen.py

- The parameters are what ``model.init`` returns, ``{"params": ...}``. Collections that are not
  trained ("constants", a cache) must be split off and closed over: all that is passed as
  parameters is differentiated, clipped and noised.
- No batch normalisation: its statistics mix the examples of a batch, so that a single example
  has no gradient of its own, and the "batch_stats" collection would be released without noise.
  Use GroupNorm or LayerNorm.
- The model sees one example at a time, as a batch of one: many layers (GroupNorm among them) take
  the first axis for the batch, whatever it is.
"""

import flax.linen as nn
import jax.numpy as jnp
import optax
import train_digits


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, images, *, train: bool):
        """Images [batch, 8, 8, 1] -> scores [batch, 10]."""
        x = nn.relu(nn.GroupNorm(num_groups=4)(nn.Conv(16, (3, 3))(images)))
        x = nn.relu(nn.GroupNorm(num_groups=4)(nn.Conv(32, (3, 3), strides=2)(x)))
        x = x.reshape(len(x), -1)
        x = nn.Dropout(0.1, deterministic=not train)(x)
        return nn.Dense(10)(x)


def build(key):
    """The parameters and the two functions of them: loss of an example, scores of an image."""
    model = ConvNet()
    variables = model.init(key, jnp.zeros((1, 8, 8, 1)), train=False)

    def scores(variables, image):
        return model.apply(variables, image[None], train=False)[0]

    def loss_fn(variables, example, key):
        # make_private gives each example a key of its own, and with it its own dropout mask.
        image, label = example
        scores = model.apply(variables, image[None], train=True, rngs={"dropout": key})[0]
        return optax.softmax_cross_entropy_with_integer_labels(scores, label)

    return variables, loss_fn, scores


def load():
    """The digits as this model takes them."""
    return train_digits.load(lambda pixels: pixels.reshape(-1, 8, 8, 1).astype("float32") / 16)


if __name__ == "__main__":
    train_digits.run(build, load())
