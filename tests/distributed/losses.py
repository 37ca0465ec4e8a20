"""Losses whose clipped gradients the compiler splits over devices in different ways."""

import jax
import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(0)


def dense(params, x):
    hidden = jnp.tanh(x @ params["in"] + params["bias"][None, :])
    return jnp.sum((hidden @ params["out"]) ** 2)


def convolution(params, x):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x[None], params["kernel"], (1, 1), "SAME", None, None, layout)
    return jnp.sum(jnp.tanh(y) @ params["out"])


def lookup(params, tokens):
    return jnp.sum(jnp.tanh(params["table"][tokens]) @ params["out"])


def _normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


# name: (loss, parameters, examples [batch, ...])
LOSSES = {
    "dense": (
        dense,
        {"in": _normal(20, 64), "bias": jnp.zeros(64), "out": _normal(64, 32)},
        _normal(32, 40, 20),
    ),
    "convolution": (
        convolution,
        {"kernel": _normal(3, 3, 4, 32), "out": _normal(32)},
        _normal(32, 6, 6, 4),
    ),
    "lookup": (
        lookup,
        {"table": _normal(300, 16), "out": _normal(16)},
        jnp.asarray(RNG.integers(0, 300, (32, 12))),
    ),
}
