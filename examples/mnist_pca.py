"""Trains the network of Abadi et al. 2016 on MNIST, privately: 60 components, 1,000 units.

    python examples/mnist_pca.py --data-dir FOLDER          # (2, 1e-5)-differential privacy

A larger budget affords larger steps: docs/published.md has the command for epsilon 8.
The projection is private too: it comes from a covariance matrix with Gaussian noise, which takes
its part of the budget. Projection and training are accounted as one composition.

Reference: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang 2016, Deep Learning with
Differential Privacy, arXiv:1607.00133, Section 5.
"""

import math

import jax
import jax.numpy as jnp
import optax
from published import command, composed

import jaxdp
from jaxdp import accounting as acc

COMPONENTS = 60
HIDDEN = 1000


def unit_rows(rows):
    """Rows scaled to length just below one, whatever the rounding."""
    lengths = jnp.sqrt(jnp.sum(rows**2, axis=1, keepdims=True))
    return rows * ((1 - 1e-5) / jnp.maximum(lengths, 1e-6))


def private_projection(images, noise_multiplier, key):
    """Scaled directions [pixels, 60] from a noisy covariance matrix, and the event of it."""
    rows = unit_rows(images.reshape(len(images), -1))
    covariance = jnp.matmul(rows.T, rows, precision="highest")
    # One image more adds the outer product of a unit vector with itself, of length 1. Noise on
    # one triangle, mirrored, tells as much: the other entries are the same numbers.
    triangle = jaxdp.ClippedSum(jnp.triu(covariance), l2_sensitivity=1.0)
    noise = jaxdp.add_gaussian_noise(noise_multiplier, key=key)
    noisy, _ = noise.update(triangle, noise.init(triangle.value))
    noisy = jnp.triu(noisy) + jnp.triu(noisy, 1).T
    eigenvalues, directions = jnp.linalg.eigh(noisy)
    # Halfway to whitening: small components, noisy ones among them, stay smaller than large ones.
    # The squares of all components together are about 60, one each on average.
    spread = jnp.sqrt(jnp.maximum(eigenvalues[-COMPONENTS:], 1.0))
    scales = jnp.sqrt(COMPONENTS * len(images) / (spread * spread.sum()))
    return directions[:, -COMPONENTS:] * scales[None], acc.Gaussian(noise_multiplier)


def project(images, directions):
    """Components of each image, as a vector of length one [examples, 60]."""
    return unit_rows(images.reshape(len(images), -1)) @ directions


def init_params(key):
    key_hidden, key_out = jax.random.split(key)

    def weight(key, *shape):
        return jax.random.normal(key, shape) / math.sqrt(shape[0])

    return {
        "hidden": {"w": weight(key_hidden, COMPONENTS, HIDDEN), "b": jnp.zeros(HIDDEN)},
        "out": {"w": weight(key_out, HIDDEN, 10), "b": jnp.zeros(10)},
    }


def scores(params, components):
    hidden = jax.nn.relu(components @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def loss_fn(params, example):
    components, label = example
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, components), label)


def main(arguments=None) -> float:
    args = command.parse(
        __doc__,
        arguments,
        target_epsilon=2.0,
        expected_batch_size=4096.0,
        num_steps=1000,
        l2_clip_norm=1.0,
        learning_rate=1.0,
        averaged_steps=50,
        pca_noise_multiplier=7.0,
    )
    (train_images, train_labels), (test_images, test_labels) = command.load(args)

    def run(seed):
        pca_key, params_key = jax.random.split(jax.random.key(1_000_000 + seed))
        directions, release = private_projection(train_images, args.pca_noise_multiplier, pca_key)
        params = init_params(params_key)
        train_set = project(train_images, directions), train_labels
        test_set = project(test_images, directions), test_labels
        return composed.train_after(
            release, loss_fn, scores, params, train_set, test_set, seed, args
        )

    return command.run_all(args, run)


if __name__ == "__main__":
    main()
