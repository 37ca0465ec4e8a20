"""How lines look: told apart in print, in grey and by colour-blind readers."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

# Colours that stay apart for colour-blind readers (Okabe and Ito 2008); dashes do in print too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (6, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (3, 2)),
    (0, (6, 2, 1, 2, 1, 2)),
    (0, (10, 3)),
)


def new_axes(axes: Any, *, width: float = 6.4) -> Any:
    """The axes that were given, or those of a new figure, its width in inches.

    Raises:
      ImportError: if matplotlib is not installed.
    """
    if axes is not None:
        return axes
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a plot needs matplotlib, which is not installed: pip install 'jaxdp-privacy[plots]'"
        ) from error
    # Without pyplot: no window, no global state, whatever the user's default backend is.
    return Figure(figsize=(width, 4.2), layout="constrained").add_subplot()


def line(axes: Any) -> dict[str, Any]:
    """Colour and dashes of the next line in the axes, unlike those of the lines before."""
    index = len(axes.lines)
    return {
        "color": COLOURS[index % len(COLOURS)],
        # Past the last colour the dashes move on by one, so that no pair comes twice for long.
        "linestyle": DASHES[(index + index // len(COLOURS)) % len(DASHES)],
        "linewidth": 1.6,
    }


def with_gaps(values: Any) -> np.ndarray:
    """Infinite values as gaps in a line."""
    numbers = np.asarray(values, float)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def note_infinite(label: str, values: Any) -> str:
    """A line's label, which says so if some of its values are infinite."""
    numbers = np.asarray(values, float)
    if np.all(np.isfinite(numbers)):
        return label
    return (
        f"{label} (infinite)" if not np.any(np.isfinite(numbers)) else f"{label} (gaps: infinite)"
    )


def log_scale(axis: Any, values: Iterable[float]) -> None:
    """A logarithmic axis with plain numbers, if some value is fit for one."""
    fit = [value for value in values if 0.0 < value < math.inf]
    if not fit:
        return
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter("{x:g}")
    # Over less than two decades, powers of ten are too few to read a value from.
    shown = "25" if max(fit) < 100.0 * min(fit) else ""
    axis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in shown else "")


def finish(axes: Any, *, xlabel: str, ylabel: str, title: str, beside: str | None = None) -> Any:
    """Labels, a faint grid and a legend clear of the lines: below, or with a title beside them."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize="medium")
    axes.grid(True, which="major", alpha=0.3)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
    if beside is not None:
        place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "title": beside}
    # Handles long enough for the longest dashes.
    axes.legend(frameon=False, handlelength=3.5, **place)
    return axes
