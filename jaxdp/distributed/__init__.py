"""Private training on many devices, by JAX's own meshes and distributed runtime."""

from jaxdp.distributed.cohorts import sharded_pseudo_grad as sharded_pseudo_grad
from jaxdp.distributed.gradients import sharded_clipped_grad as sharded_clipped_grad
from jaxdp.distributed.sums import sum_over_devices as sum_over_devices
