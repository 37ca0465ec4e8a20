"""A Flax (nnx) MLP-Mixer with layer normalisation and dropout, trained privately on digits.

    python examples/models/flax_nnx.py

- ``nnx.split`` gives three parts: the graph definition, the parameters (a pytree of float arrays)
  and the rest. Parameters are trained; the other two are closed over.
- An ``nnx.Dropout`` with ``Rngs`` of its own keeps a counter in "the rest", which Flax refuses to
  advance from inside the loss ("different trace level"). Hand it the example's key at the call.
- No ``nnx.BatchNorm``: its statistics mix the examples of a batch, so that a single example has no
  gradient of its own. Use LayerNorm or GroupNorm.
"""

import optax
import train_digits
from flax import nnx

WIDTH = 32
PATCHES = 16  # of 2 x 2 pixels


class Mixer(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.embed = nnx.Linear(4, WIDTH, rngs=rngs)
        self.norm_tokens = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mix_tokens = nnx.Linear(PATCHES, PATCHES, rngs=rngs)
        self.norm_channels = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mix_channels = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1)
        self.head = nnx.Linear(PATCHES * WIDTH, 10, rngs=rngs)

    def __call__(self, image, *, rngs: nnx.Rngs | None = None):
        """Image [8, 8] -> scores [10]; with ``rngs``, under dropout."""
        patches = image.reshape(4, 2, 4, 2).swapaxes(1, 2).reshape(PATCHES, 4)
        x = self.embed(patches)
        x = x + nnx.gelu(self.mix_tokens(self.norm_tokens(x).T)).T
        x = x + nnx.gelu(self.mix_channels(self.norm_channels(x)))
        x = self.dropout(x, deterministic=rngs is None, rngs=rngs)
        return self.head(x.reshape(-1))


def build(key):
    """The parameters and the two functions of them: loss of an example, scores of an image."""
    graph, params, *rest = nnx.split(Mixer(rngs=nnx.Rngs(key)), nnx.Param, ...)

    def scores(params, image):
        return nnx.merge(graph, params, *rest)(image)

    def loss_fn(params, example, key):
        # make_private gives each example a key of its own, and with it its own dropout mask.
        image, label = example
        scores = nnx.merge(graph, params, *rest)(image, rngs=nnx.Rngs(dropout=key))
        return optax.softmax_cross_entropy_with_integer_labels(scores, label)

    return params, loss_fn, scores


def load():
    """The digits as this model takes them."""
    return train_digits.load(lambda pixels: pixels.reshape(-1, 8, 8).astype("float32") / 16)


if __name__ == "__main__":
    # nnx.update(model, params) puts trained parameters back into a model object.
    train_digits.run(build, load())
