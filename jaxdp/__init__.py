"""Differential privacy for JAX and Optax."""

from jaxdp.clipping.clipped_sum import ClippedSum as ClippedSum
