"""The privacy profile: delta against epsilon."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp import accounting as acc
from jaxdp.report import neighbours, profile, style
from jaxdp.report.progress import progress


def check_runs(runs: Any) -> None:
    """Refuses what is no dict from labels to events of numbers."""
    if not isinstance(runs, Mapping) or not runs:
        _validate.refuse("runs", runs, "a dict from labels to events, with at least one")
    for label, run in runs.items():
        if not isinstance(run, acc.Event) or _validate.is_traced(run):
            _validate.refuse(f"runs[{label!r}]", run, "an event of numbers such as Gaussian(1.0)")


def _log10(logs: Sequence[float]) -> np.ndarray:
    """In powers of ten, with gaps where delta is 0."""
    return style.with_gaps(np.asarray(logs) / math.log(10.0))


def plot_privacy_profile(
    runs: Mapping[str, acc.Event], epsilons: Sequence[float], *, axes: Any = None
) -> Any:
    """Draws the delta of runs at every epsilon: all (epsilon, delta) that each of them satisfies.

    Delta is drawn as its logarithm to base 10, so that 1e-400 is a point like any other. The
    bands lie between certified bounds.

    Args:
      runs: From labels to events of numbers.
      epsilons: Where to look, each >= 0, ascending.
      axes: Matplotlib axes to draw in; None for those of a new figure.

    Returns:
      The Matplotlib axes; the lines are upper bounds.

    Raises:
      ValueError: if an argument is out of range.
      ImportError: if matplotlib is not installed.

    Example:
      >>> from jaxdp import accounting as acc, report
      >>> axes = report.plot_privacy_profile({"one Gaussian": acc.Gaussian(1.0)}, [0.0, 1.0, 2.0])
      >>> round(float(axes.lines[0].get_ydata()[1]), 3)  # log10 of delta at epsilon 1
      -0.896

    References:
      Balle, Barthe and Gaboardi 2018, arXiv:1807.01647 (privacy profiles).
    """
    check_runs(runs)
    places = [float(_validate.non_negative("epsilons", epsilon)) for epsilon in np.ravel(epsilons)]
    if not places:
        _validate.refuse("epsilons", epsilons, "at least one number")
    axes = style.new_axes(axes, width=7.6)
    pairs = [(label, epsilon) for label in runs for epsilon in places]
    bounds = [
        profile.log_delta_bounds(runs[label], epsilon)
        for label, epsilon in progress(pairs, "privacy profiles")
    ]
    by_run = np.reshape(bounds, (len(runs), len(places), 2))
    for label, (lower, upper) in zip(
        neighbours.labels(runs).values(), np.moveaxis(by_run, 2, 1), strict=True
    ):
        look = style.line(axes)
        zero = "" if np.all(np.isfinite(upper)) else " (gaps: delta is 0)"
        axes.plot(places, _log10(upper), label=f"{label}{zero}", **look)
        axes.fill_between(
            places, _log10(lower), _log10(upper), color=look["color"], alpha=0.25, linewidth=0.0
        )
    axes.yaxis.set_major_formatter(lambda power, _: f"1e{power:g}")
    return style.finish(
        axes,
        xlabel="epsilon",
        ylabel="delta",
        title=neighbours.title(runs),
        beside="run",
    )
