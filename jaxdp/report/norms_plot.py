"""Per-example norms and the threshold that they are clipped to."""

from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.report import style

_BINS = 40


def _bins(norms: np.ndarray, l2_clip_norm: float) -> np.ndarray:
    """Edges of equal width on a linear axis, or of equal ratio where norms span decades."""
    positive = norms[norms > 0.0]
    low, high = min(norms.min(), l2_clip_norm), max(norms.max(), l2_clip_norm)
    if positive.size == norms.size and high > 30.0 * low:
        return np.geomspace(low, high, _BINS + 1)
    return np.linspace(0.0, high, _BINS + 1)


def plot_norms(norms: Any, l2_clip_norm: float, *, axes: Any = None) -> Any:
    """Draws a histogram of per-example gradient norms with the clip norm in it.

    Norms are computed from the data without noise: the picture is for the curator's eyes, and
    not covered by the run's guarantee.

    Args:
      norms: Norms of examples (or clients), of any shape, >= 0; one that is not finite is
        counted in the legend, and contributes nothing to a clipped sum.
      l2_clip_norm: The threshold, > 0.
      axes: Matplotlib axes to draw in; None for those of a new figure.

    Returns:
      The Matplotlib axes.

    Raises:
      ValueError: if an argument is out of range, or there is no finite norm.
      ImportError: if matplotlib is not installed.

    Example:
      >>> import numpy as np
      >>> from jaxdp import report
      >>> axes = report.plot_norms(np.array([0.2, 0.5, 3.0, 4.0]), 1.0)
      >>> axes.lines[0].get_label()
      'clip norm 1: 50.0 % of 4 are above'

    References:
      Andrew et al. 2021, arXiv:1905.03871 (clip norms as quantiles).
    """
    _validate.positive("l2_clip_norm", l2_clip_norm)
    flat = np.ravel(np.asarray(norms, float))
    finite = flat[np.isfinite(flat)]
    if finite.size == 0 or finite.min() < 0.0:
        _validate.refuse("norms", norms, "numbers >= 0, at least one of them finite")
    axes = style.new_axes(axes)
    edges = _bins(finite, float(l2_clip_norm))
    axes.hist(finite, bins=edges, color=style.COLOURS[-1], edgecolor="white", linewidth=0.5)
    above = f"{np.mean(finite > l2_clip_norm):.1%}".replace("%", " %")
    lost = flat.size - finite.size
    axes.axvline(
        float(l2_clip_norm),
        color=style.COLOURS[2],
        linestyle="--",
        label=f"clip norm {float(l2_clip_norm):g}: {above} of {finite.size} are above"
        + (f"; {lost} not finite" if lost else ""),
    )
    if edges[0] > 0.0:
        style.log_scale(axes.xaxis, edges)
    return style.finish(
        axes, xlabel="L2 norm", ylabel="count", title="not private: computed without noise"
    )
