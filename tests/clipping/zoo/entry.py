"""What an entry of the zoo is, and the register of them."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Every batch has as many examples as the tests have devices.
BATCH = 8


class Problem(NamedTuple):
    loss_fn: Callable[..., Any]
    params: Any
    batch: tuple[Any, ...]


class Entry(NamedTuple):
    """A loss, and what is to be expected of it.

    Args:
      build: Function of ``Draws`` that returns loss_fn, params and batch.
      falls_back: Whether ``strategy="bookkeeping"`` refuses it: some use of some parameter is
        none of the sites with a rule.
      float64: Whether its arithmetic follows the type of its inputs.
      rtol: Relative tolerance between strategies in the entry's own types.
      key: Whether the loss draws from a key.
      options: Arguments of ``clipped_grad`` that it needs.
    """

    build: Callable[..., Any]
    falls_back: bool = False
    float64: bool = True
    rtol: float = 1e-5
    key: bool = False
    options: Any = None


class Draws:
    """Numbers for one entry, the same in every run."""

    def __init__(self, name: str):
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def __call__(self, *shape, scale=1.0):
        return np.float32(scale * self.rng.standard_normal(shape))

    def weights(self, *shape):
        """Scaled so that a product with them keeps the size of its input."""
        fan_in = max(np.prod(shape[:-1]), 1)
        return self(*shape, scale=fan_in**-0.5)

    def inputs(self, *shape):
        """Inputs of examples whose gradients have lengths of several orders."""
        sizes = np.geomspace(0.1, 3, BATCH).astype(np.float32)
        return self(BATCH, *shape) * sizes.reshape(BATCH, *[1] * len(shape))

    def tokens(self, vocabulary, *shape):
        return self.rng.integers(0, vocabulary, (BATCH, *shape)).astype(np.int32)


ENTRIES: dict[str, Entry] = {}


def entry(**expected):
    """Registers a builder under its name."""

    def register(build):
        ENTRIES[build.__name__] = Entry(build, **expected)
        return build

    return register


def build(name: str) -> Problem:
    return Problem(*ENTRIES[name].build(Draws(name)))


def loss_of(outputs):
    """A scalar whose cotangents are neither constant nor sum to zero."""
    return jnp.sum(jnp.sin(outputs) + 0.3 * outputs)


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits) - logits[label]
