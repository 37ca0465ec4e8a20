"""The models of the federated benchmarks in plain JAX: parameters, shapes, scores of a batch."""

import jax
import jax.numpy as jnp


def dense(rng, rows, columns):
    return jnp.asarray(rng.normal(size=(rows, columns)) / rows**0.5, jnp.float32)


def logistic_regression(rng):
    params = {"w": jnp.zeros((784, 10)), "b": jnp.zeros(10)}
    return params, (784,), 10, lambda params, x: x @ params["w"] + params["b"]


def mlp(rng):
    params = {
        "w1": dense(rng, 784, 128),
        "b1": jnp.zeros(128),
        "w2": dense(rng, 128, 10),
        "b2": jnp.zeros(10),
    }

    def logits(params, x):
        return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    return params, (784,), 10, logits


def cnn(rng):
    """The network of Reddi et al. 2021 for FEMNIST, without dropout: 1.2 million parameters."""
    params = {
        "c1": dense(rng, 9, 32).reshape(3, 3, 1, 32),
        "c2": dense(rng, 288, 64).reshape(3, 3, 32, 64),
        "w1": dense(rng, 9216, 128),
        "b1": jnp.zeros(128),
        "w2": dense(rng, 128, 62),
        "b2": jnp.zeros(62),
    }

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def logits(params, x):
        x = jax.nn.relu(convolve(x, params["c1"]))
        x = jax.nn.relu(convolve(x, params["c2"]))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(x.reshape(len(x), -1) @ params["w1"] + params["b1"])
        return x @ params["w2"] + params["b2"]

    return params, (28, 28, 1), 62, logits


MODELS = {"logistic regression": logistic_regression, "MLP": mlp, "CNN": cnn}
