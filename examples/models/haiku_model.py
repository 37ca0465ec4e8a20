"""A Haiku network over embedded pixel values, with dropout, trained privately on digits.

    python examples/models/haiku_model.py

- ``hk.transform`` turns the model into a pair of pure functions; the parameters are what ``init``
  returns, and ``apply`` takes the example's key for ``hk.next_rng_key``.
- No ``hk.BatchNorm``, which would need ``hk.transform_with_state``: its statistics mix the examples
  of a batch, so that a single example has no gradient of its own. Use LayerNorm or GroupNorm.
"""

import argparse

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp

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
    """The digits, for training and for testing: pairs of pixels and labels."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.astype("int32")
    split = train_test_split(pixels, labels, test_size=0.2, random_state=0)
    train_pixels, test_pixels, train_labels, test_labels = map(jnp.asarray, split)
    return (train_pixels, train_labels), (test_pixels, test_labels)


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

    test_pixels, test_labels = test
    test_scores = jax.vmap(scores, in_axes=(None, 0))(state.params, test_pixels)
    accuracy = float(jnp.mean(jnp.argmax(test_scores, axis=1) == test_labels))
    print(f"\ntest accuracy: {100 * accuracy:.1f} %, epsilon spent: {metrics.epsilon[-1]:.3f}")
    print(f"\n{private.plan}")
    return accuracy


if __name__ == "__main__":
    main()
