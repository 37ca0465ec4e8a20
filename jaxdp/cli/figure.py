"""A picture of epsilon against steps, for print and for colour-blind readers."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.cli.run import Run, UsageError

_POINTS = 40
# Colours that stay apart for colour-blind readers (Okabe and Ito 2008); dashes do in print too.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")


def counts_up_to(num_steps: int) -> list[int]:
    """Numbers of steps from 1 to all of them, denser at first, where epsilon bends."""
    spaced = 1.0 + (num_steps - 1) * np.linspace(0.0, 1.0, _POINTS) ** 2
    return sorted({round(count) for count in spaced.tolist()})


def blank(path: str) -> Any:
    """An empty figure, if the library is there and can write such a file.

    Raises:
      ImportError: if matplotlib is not installed.
      UsageError: if the name's ending is of no known kind of picture.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a plot needs matplotlib, which is not installed: pip install 'jaxdp-privacy[plots]'"
        ) from error
    # Without pyplot: no window, no global state, whatever the user's default backend is.
    picture = Figure(figsize=(6.4, 4.2), layout="constrained")
    kinds = picture.canvas.get_supported_filetypes()
    if pathlib.Path(path).suffix[1:].lower() not in kinds:
        raise UsageError("--output", f"must end in one of .{', .'.join(kinds)}, got {path!r}")
    return picture


def draw(
    picture: Any,
    counts: Sequence[int],
    lines: dict[str, list[float]],
    run: Run,
    noise_multiplier: float,
    delta: float,
) -> None:
    """Draws one line an accountant, labelled in the order of their ends."""
    axes = picture.add_subplot()
    order = sorted(lines, key=lambda name: lines[name][-1], reverse=True)
    for index, name in enumerate(order):
        axes.plot(
            counts,
            [value if math.isfinite(value) else math.nan for value in lines[name]],
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=_DASHES[index % len(_DASHES)],
            marker="o" if len(counts) == 1 else None,
            label=name,
        )
    if any(0.0 < value < math.inf for values in lines.values() for value in values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    sampling = (
        "without sampling"
        if run.sampling_probability == 1.0
        else f"on Poisson samples, probability {run.sampling_probability:g}"
    )
    picture.suptitle(
        f"{run.mechanism.capitalize()} noise, multiplier {noise_multiplier:g}, {sampling};\n"
        "neighbours: one example added or removed",
        fontsize="medium",
    )
    axes.grid(True, which="major", alpha=0.3)
    picture.legend(title="accountant", loc="outside right center", frameon=False)
