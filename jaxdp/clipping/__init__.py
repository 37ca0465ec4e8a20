"""Per-example clipping: gradients whose sensitivity is bounded and known."""

from jaxdp.clipping.clipped_sum import ClippedSum as ClippedSum
