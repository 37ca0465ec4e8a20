"""The picture of a run that a command line describes: the report's, with the run in its title."""

import errno
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxdp import report
from jaxdp.cli.run import Run, UsageError
from jaxdp.report import style

# What Matplotlib writes without further programs, and people and LaTeX read.
KINDS = ("pdf", "svg", "png")


def check_output(path: str) -> None:
    """Refuses a file that no picture can be written to, before any of it is computed.

    Raises:
      ImportError: if matplotlib is not installed.
      UsageError: if the name's ending is none of ``KINDS``.
      OSError: if the folder is missing, or the file or the folder cannot be written.
    """
    file = pathlib.Path(path)
    if file.suffix[1:].lower() not in KINDS:
        raise UsageError("--output", f"must end in one of .{', .'.join(KINDS)}, got {path!r}")
    style.new_axes(None)
    problem = None
    if not file.parent.exists():
        problem = errno.ENOENT
    elif not file.parent.is_dir():
        problem = errno.ENOTDIR
    elif file.is_dir():
        problem = errno.EISDIR
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        problem = errno.EACCES
    if problem is not None:
        raise OSError(problem, os.strerror(problem))


def draw(run: Run, noise: float, delta: float, accountants: Sequence[str] | None) -> Any:
    """Epsilon against steps, as a Matplotlib figure."""
    axes = report.plot_epsilon(
        lambda num_steps: run.event(noise, num_steps),
        run.num_steps,
        delta,
        accountants=accountants,
    )
    sampling = (
        "without sampling"
        if run.sampling_probability == 1.0
        else f"on Poisson samples, probability {run.sampling_probability:g}"
    )
    axes.set_title(
        f"{run.mechanism.capitalize()} noise, multiplier {noise:g}, {sampling};\n"
        "neighbours: one example added or removed",
        fontsize="medium",
    )
    return axes.figure
