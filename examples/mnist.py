"""Trains the convolutional network of Papernot et al. 2021 on MNIST, privately.

    python examples/mnist.py --data-dir FOLDER          # (2.93, 1e-5)-differential privacy

Two convolutions and two dense layers with tanh, 26,010 parameters, from pixels. Large Poisson
batches, few steps, momentum, a learning rate that falls at the end alone, and an average of the
last iterates, which costs nothing: it is computed from models that the guarantee covers anyway.

Reference: Papernot, Thakurta, Song, Chien and Erlingsson 2021, Tempered Sigmoid Activations for
Deep Learning with Differential Privacy, arXiv:2007.14191.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from published import command, training

import jaxdp


def init_params(key):
    """Hidden layers begin small: what they begin with is noise, on top of that for privacy."""
    keys = jax.random.split(key, 4)

    def weight(key, *shape):
        return jax.random.normal(key, shape) / np.sqrt(math.prod(shape[:-1]))

    return {
        "w1": 0.6 * weight(keys[0], 8, 8, 1, 16),
        "b1": jnp.zeros(16),
        "w2": 0.6 * weight(keys[1], 4, 4, 16, 32),
        "b2": jnp.zeros(32),
        "w3": 0.6 * weight(keys[2], 512, 32),
        "b3": jnp.zeros(32),
        "w4": weight(keys[3], 32, 10),
        "b4": jnp.zeros(10),
    }


def convolve(image, kernels):
    """Stride 2, padded to half the size; image [rows, columns, channels]."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        image[None], kernels, (2, 2), "SAME", dimension_numbers=dimensions
    )[0]


def convolve_patches(image, kernels):
    """Stride 2, no padding, as a product with patches: faster than a convolution on a CPU."""
    size = len(kernels)
    side = (len(image) - size) // 2 + 1
    offsets = np.ndindex(size, size)
    patches = [image[i : i + 2 * side - 1 : 2, j : j + 2 * side - 1 : 2] for i, j in offsets]
    return jnp.concatenate(patches, axis=-1) @ kernels.reshape(-1, kernels.shape[-1])


def max_pool(x):
    """The largest of 2 x 2 neighbours, at every pixel."""
    x = jnp.maximum(x[1:], x[:-1])
    return jnp.maximum(x[:, 1:], x[:, :-1])


def scores(params, image):
    x = max_pool(jnp.tanh(convolve(image[..., None], params["w1"]) + params["b1"]))
    x = max_pool(jnp.tanh(convolve_patches(x, params["w2"]) + params["b2"]))
    hidden = jnp.tanh(x.reshape(-1) @ params["w3"] + params["b3"])
    return hidden @ params["w4"] + params["b4"]


def loss_fn(params, example):
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, image), label)


def main(arguments=None) -> float:
    args = command.parse(
        __doc__,
        arguments,
        target_epsilon=2.93,
        expected_batch_size=2048.0,
        num_steps=1000,
        l2_clip_norm=0.05,
        learning_rate=6.0,
        averaged_steps=80,
    )
    train_set, test_set = command.load(args)
    # Equal steps carry the least noise for the way they go: it grows like the root of the sum of
    # the squared learning rates, the way like their sum.
    decay_steps = int(0.3 * args.num_steps)
    schedule = optax.linear_schedule(
        args.learning_rate, 0.0, decay_steps, transition_begin=args.num_steps - decay_steps
    )
    private = jaxdp.make_private(
        loss_fn,
        optax.sgd(schedule, momentum=0.9),
        target_epsilon=args.target_epsilon,
        delta=args.delta,
        num_examples=len(train_set[0]),
        expected_batch_size=args.expected_batch_size,
        num_steps=args.num_steps,
        l2_clip_norm=args.l2_clip_norm,
        microbatch_size=256,
    )

    def run(seed):
        params = init_params(jax.random.key(100 + seed))
        result = training.train(private, scores, params, train_set, test_set, seed, args)
        return result, private.plan

    return command.run_all(args, run)


if __name__ == "__main__":
    main()
