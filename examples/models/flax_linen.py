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

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp


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
    """The digits, for training and for testing: pairs of images and labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    split = train_test_split(images, labels, test_size=0.2, random_state=0)
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)
    return (train_images, train_labels), (test_images, test_labels)


def main(arguments=None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    num_steps = 4 if parser.parse_args(arguments).smoke else 60

    train, test = load()
    variables, loss_fn, scores = build(jax.random.key(0))
    example = jax.tree.map(lambda leaf: leaf[0], train)
    print(jaxdp.clipping.explain(loss_fn, variables, example, key=jax.random.key(0)))
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

    state = private.init(variables, jax.random.key(1))
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
