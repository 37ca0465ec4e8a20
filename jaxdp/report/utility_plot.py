"""Utility against epsilon: what privacy costs."""

from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.report import style

_MOST_TICKS = 8


def plot_utility(
    epsilons: Any,
    utilities: Any,
    *,
    public: float | None = None,
    label: str = "utility",
    axes: Any = None,
) -> Any:
    """Draws utility against epsilon; over several seeds, their mean with its spread.

    Args:
      epsilons: Shape [n], each > 0 and finite.
      utilities: Shape [n], or [n, seeds] for the mean and one standard deviation either way.
      public: Utility of the same model without privacy, drawn as a level; None for none.
      label: What is measured, such as "test accuracy"; or whose it is, for a second line in
        the same axes. On the vertical axis if that has no label yet, and in the legend.
      axes: Matplotlib axes to draw in; None for those of a new figure.

    Returns:
      The Matplotlib axes.

    Raises:
      ValueError: if an argument is out of range or shapes do not fit together.
      ImportError: if matplotlib is not installed.

    Example:
      >>> from jaxdp import report
      >>> axes = report.plot_utility([1.0, 8.0], [[0.88, 0.9], [0.95, 0.97]], public=0.98,
      ...                            label="test accuracy")
      >>> [round(float(y), 2) for y in axes.lines[0].get_ydata()]
      [0.89, 0.96]
    """
    places = np.asarray(epsilons, float)
    if places.ndim != 1 or places.size == 0:
        _validate.refuse("epsilons", f"shape {places.shape}", "a vector with at least one number")
    for epsilon in places.tolist():
        _validate.positive("epsilons", epsilon)
    values = np.asarray(utilities, float)
    if values.ndim not in (1, 2) or values.shape[0] != places.size or values.size == 0:
        allowed = f"of shape [{places.size}] or [{places.size}, seeds]"
        _validate.refuse("utilities", f"shape {values.shape}", allowed)
    for utility in values.ravel().tolist():
        _validate.finite("utilities", utility)
    if public is not None:
        _validate.finite("public", public)
    axes = style.new_axes(axes)
    look = style.line(axes)
    columns = values.reshape(places.size, -1)
    mean, seeds = columns.mean(axis=1), columns.shape[1]
    if seeds > 1:
        spread = columns.std(axis=1, ddof=1)
        label_of_line = f"{label} (mean ± standard deviation, {seeds} seeds)"
        axes.fill_between(places, mean - spread, mean + spread, color=look["color"], alpha=0.2)
    else:
        label_of_line = label
    axes.plot(places, mean, marker="o", markersize=4, label=label_of_line, **look)
    if public is not None:
        axes.axhline(float(public), color="0.5", linewidth=1.0, label="without privacy")
    style.log_scale(axes.xaxis, places)
    measured = {x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata()}
    if len(measured) <= _MOST_TICKS:
        axes.set_xticks(sorted(measured))  # what was measured can be read off
        axes.set_xticks([], minor=True)
    return style.finish(axes, xlabel="epsilon", ylabel=axes.get_ylabel() or label, title="")
