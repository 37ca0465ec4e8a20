"""Sampling: batches drawn inside the program, with shapes that do not depend on the draw."""

from jaxdp.sampling.poisson import PoissonBatch as PoissonBatch
from jaxdp.sampling.poisson import overflow_probability as overflow_probability
from jaxdp.sampling.poisson import poisson_batch as poisson_batch
from jaxdp.sampling.poisson import poisson_capacity as poisson_capacity
