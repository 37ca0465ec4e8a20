"""Noise for one step of a run, drawn step by step or in blocks."""

from jaxdp.noise.iid import gaussian as gaussian
from jaxdp.noise.iid import laplace as laplace
from jaxdp.noise.precompute import NoiseBlock as NoiseBlock
from jaxdp.noise.precompute import precompute as precompute
from jaxdp.noise.precompute import take as take
