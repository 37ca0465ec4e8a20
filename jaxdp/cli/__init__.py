"""The command line: epsilon, calibrate, compare, plot."""

from jaxdp.cli.commands import main as main
