"""Differential privacy for JAX and Optax."""

from jaxdp.clipping.api import clipped_grad as clipped_grad
from jaxdp.clipping.clipped_sum import ClippedSum as ClippedSum
from jaxdp.transforms.clip import clip_per_example as clip_per_example
