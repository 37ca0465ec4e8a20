"""A Flax (nnx) MLP-Mixer with layer normalisation and dropout, trained privately on digits.

    python examples/models/flax_nnx.py

- ``nnx.split`` gives three parts: the graph definition, the parameters (a pytree of float arrays)
  and the rest. Parameters are trained; the other two are closed over.
- An ``nnx.Dropout`` with ``Rngs`` of its own keeps a counter in "the rest", which Flax refuses to
  advance from inside the loss ("different trace level"). Hand it the example's key at the call.
- No ``nnx.BatchNorm``: its statistics mix the examples of a batch, so that a single example has no
  gradient of its own. Use LayerNorm or GroupNorm.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp

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

    # nnx.update(model, state.params) puts the parameters back into a model object.
    test_images, test_labels = test
    test_scores = jax.vmap(scores, in_axes=(None, 0))(state.params, test_images)
    accuracy = float(jnp.mean(jnp.argmax(test_scores, axis=1) == test_labels))
    print(f"\ntest accuracy: {100 * accuracy:.1f} %, epsilon spent: {metrics.epsilon[-1]:.3f}")
    print(f"\n{private.plan}")
    return accuracy


if __name__ == "__main__":
    main()
