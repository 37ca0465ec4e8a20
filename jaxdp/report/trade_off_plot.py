"""The trade-off curve: the errors that no attack can be below."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdp import accounting as acc
from jaxdp.accounting import trade_off
from jaxdp.report import neighbours, profile, style
from jaxdp.report.profile_plot import check_runs
from jaxdp.report.progress import progress

# Denser at the ends, where the curves of weak guarantees bend.
_PLACES = np.linspace(0.0, 1.0, 41)
_TYPE_I_ERRORS = _PLACES**2 / (_PLACES**2 + (1.0 - _PLACES) ** 2)


def plot_trade_off(runs: Mapping[str, acc.Event], *, axes: Any = None) -> Any:
    """Draws the least type II error of any attack on runs, against its type I error.

    An attack sees what was released and tells one data set from a neighbour. The diagonal is
    guessing; the closer a curve is to it, the more private the run.

    Args:
      runs: From labels to events of numbers.
      axes: Matplotlib axes to draw in; None for those of a new figure.

    Returns:
      The Matplotlib axes; the lines join 41 points, each a lower bound on the error (the curve
      being convex, a straight piece between two of them lies a little above it).

    Raises:
      ValueError: if an argument is out of range.
      ImportError: if matplotlib is not installed.

    Example:
      >>> from jaxdp import accounting as acc, report
      >>> axes = report.plot_trade_off({"one Gaussian": acc.Gaussian(1.0)})
      >>> [line.get_label() for line in axes.lines]
      ['one Gaussian', 'guessing']

    References:
      Wasserman and Zhou 2010, arXiv:0811.2501; Dong, Roth and Su 2022, arXiv:1905.02383.
    """
    check_runs(runs)
    axes = style.new_axes(axes, width=7.6)
    pairs = [(label, alpha) for label in runs for alpha in _TYPE_I_ERRORS.tolist()]
    profiles = {label: profile.for_attacks(run) for label, run in runs.items()}
    errors = [
        trade_off.type_ii_error(alpha, profiles[label])
        for label, alpha in progress(pairs, "trade-off curves")
    ]
    rows = np.reshape(errors, (len(runs), len(_TYPE_I_ERRORS)))
    for label, row in zip(neighbours.labels(runs).values(), rows, strict=True):
        axes.plot(_TYPE_I_ERRORS, row, label=label, **style.line(axes))
    axes.plot([0.0, 1.0], [1.0, 0.0], color="0.6", linewidth=1.0, label="guessing")
    axes.set_aspect("equal")
    return style.finish(
        axes,
        xlabel="type I error of an attack",
        ylabel="type II error, at least",
        title=neighbours.title(runs),
        beside="run",
    )
