"""Checkpoints of private runs: killed and resumed, they go on bit for bit."""

from jaxdp.checkpoint.runs import exists as exists
from jaxdp.checkpoint.runs import restore as restore
from jaxdp.checkpoint.runs import save as save
