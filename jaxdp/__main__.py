"""``python -m jaxdp``: the command line."""

import sys

from jaxdp.cli.process import run

if __name__ == "__main__":
    sys.exit(run())
