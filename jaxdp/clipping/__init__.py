"""Per-example clipping: gradients whose sensitivity is bounded and known."""

from jaxdp.clipping.api import clipped_grad as clipped_grad
from jaxdp.clipping.clipped_sum import ClippedSum as ClippedSum
from jaxdp.clipping.explain import Explanation as Explanation
from jaxdp.clipping.explain import explain as explain
from jaxdp.clipping.per_example import PerExample as PerExample
