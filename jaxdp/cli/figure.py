"""The picture of a run that a command line describes: the report's, with the run in its title."""

import pathlib
from collections.abc import Sequence
from typing import Any

from jaxdp import report
from jaxdp.cli.run import Run, UsageError
from jaxdp.report import style


def check_output(path: str) -> None:
    """Refuses a file that no picture can be written to, before any of it is computed.

    Raises:
      ImportError: if matplotlib is not installed.
      UsageError: if the name's ending is of no known kind of picture.
    """
    kinds = style.new_axes(None).figure.canvas.get_supported_filetypes()
    if pathlib.Path(path).suffix[1:].lower() not in kinds:
        raise UsageError("--output", f"must end in one of .{', .'.join(kinds)}, got {path!r}")


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
