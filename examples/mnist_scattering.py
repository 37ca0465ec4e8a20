"""Trains a linear model on scattering features of MNIST, privately.

    python examples/mnist_scattering.py --data-dir FOLDER     # (2.93, 1e-5)-differential privacy

After Tramer and Boneh 2021: fixed wavelets make the features, 3,969 an image, and only a linear
layer is trained. Each image's features are normalised by themselves, place by place; then the mean
of all images, released once with much noise, is taken away, and what is left is scaled to length
one. The mean takes a small part of the budget: it and training are accounted as one composition.

References: Tramer and Boneh 2021, Differentially Private Learning Needs Better Features (or Much
More Data), arXiv:2011.11660. Normalisation by place: Dalal and Triggs 2005, Histograms of Oriented
Gradients for Human Detection.
"""

import jax
import jax.numpy as jnp
import optax
from published import command, composed
from published.scattering import ORIENTATIONS, make_scattering

import jaxdp
from jaxdp import accounting as acc


def unit(vector):
    """The vector scaled to length one; zero stays zero."""
    return vector * jax.lax.rsqrt(jnp.maximum(jnp.sum(vector**2), 1e-12))


def normalise(features):
    """Scattering features of one image, each order even in contrast; a vector of length one.

    At every place, the channels of an order are divided by their length there, as the histograms
    of oriented gradients are. A tenth of the mean length is added, so that empty places stay small.
    """
    orders = jnp.split(features, [1, 1 + 2 * ORIENTATIONS])
    lengths = [jnp.sqrt(jnp.sum(order**2, axis=0, keepdims=True)) for order in orders]
    orders = [
        order / (length + 0.1 * length.mean() + 1e-6)
        for order, length in zip(orders, lengths, strict=True)
    ]
    return unit(jnp.concatenate(orders).reshape(-1))


def features_of(images):
    """Normalised features [examples, 3969]: each row is computed from its own image alone."""
    scatter = make_scattering(images.shape[1])
    transform = jax.jit(
        lambda images: jax.lax.map(lambda image: normalise(scatter(image)), images, batch_size=100)
    )
    return transform(images)


def private_mean(features, noise_multiplier, key):
    """The mean of rows of length one, and the event of its release."""
    # A row is one example's share of the sum, which one row more or less changes by at most 1:
    # the same two links as for gradients. The number of rows is public.
    release = optax.chain(
        jaxdp.clip_per_example(1.0), jaxdp.add_gaussian_noise(noise_multiplier, key=key)
    )
    noisy_sum, _ = release.update(features, release.init(features[0]))
    return noisy_sum / len(features), acc.Gaussian(noise_multiplier)


def centre(features, mean):
    return jax.jit(jax.vmap(lambda row, mean: unit(row - mean), in_axes=(0, None)))(features, mean)


def scores(params, features):
    return features @ params["w"] + params["b"]


def loss_fn(params, example):
    features, label = example
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, features), label)


def main(arguments=None) -> float:
    args = command.parse(
        __doc__,
        arguments,
        target_epsilon=2.93,
        expected_batch_size=2048.0,
        num_steps=2000,
        l2_clip_norm=0.05,
        learning_rate=150.0,
        averaged_steps=80,
        mean_noise_multiplier=20.0,
    )
    (train_images, train_labels), (test_images, test_labels) = command.load(args)
    features, test_features = features_of(train_images), features_of(test_images)

    def run(seed):
        key = jax.random.key(2_000_000 + seed)
        mean, release = private_mean(features, args.mean_noise_multiplier, key)
        params = {"w": jnp.zeros((features.shape[1], 10)), "b": jnp.zeros(10)}
        train_set = centre(features, mean), train_labels
        test_set = centre(test_features, mean), test_labels
        return composed.train_after(
            release, loss_fn, scores, params, train_set, test_set, seed, args
        )

    return command.run_all(args, run)


if __name__ == "__main__":
    main()
