"""Mechanisms: noise calibrated to a sensitivity, with the privacy profile that it gives."""

from jaxdp.mechanisms import gaussian as gaussian
from jaxdp.mechanisms import laplace as laplace
from jaxdp.mechanisms.choose import choose as choose
