"""Epsilon against the number of steps, one line an accountant."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp import accounting as acc
from jaxdp.accounting import composition, exact
from jaxdp.report import neighbours, style
from jaxdp.report.progress import progress

_POINTS = 30
_SAME_AS_EXACT = ("gdp", "pld")  # where it applies, no eye could tell their lines from its
# After some steps so far above that the others would look like one line.
_COMPOSITION_THEOREMS = ("naive", "advanced", "optimal")


def _counts_up_to(num_steps: int) -> list[int]:
    """Numbers of steps from 1 to all of them, denser at first, where epsilon bends."""
    spaced = 1.0 + (num_steps - 1) * np.linspace(0.0, 1.0, _POINTS) ** 2
    return sorted({round(count) for count in spaced.tolist()})


def _accountants(run: acc.Event, delta: float) -> list[str]:
    names = [row.accountant for row in acc.compare(run, delta) if row.certified]
    left_out = _COMPOSITION_THEOREMS + (_SAME_AS_EXACT if "exact" in names else ())
    return [name for name in names if name not in left_out]


def plot_epsilon(
    run_of_steps: Callable[[int], acc.Event],
    num_steps: int,
    delta: float,
    *,
    accountants: Sequence[str] | None = None,
    axes: Any = None,
) -> Any:
    """Draws what a run costs as it goes on: epsilon against steps, by several accountants.

    The shaded band lies between certified bounds on the true epsilon; the legend says how far
    they are apart at most, since mostly a line is wider than that.

    Args:
      run_of_steps: From a number of steps to the run of so many, an event.
      num_steps: Steps on the right, >= 1.
      delta: The delta of every epsilon, in (0, 1).
      accountants: Names as ``accounting.epsilon`` takes them; by default the certified ones that
        apply to the whole run, without "pld" and "gdp" where they agree with "exact", and without
        the composition theorems "naive", "advanced" and "optimal", which are soon far above.
      axes: Matplotlib axes to draw in; None for those of a new figure.

    Returns:
      The Matplotlib axes.

    Raises:
      ValueError: if an argument is out of range.
      ImportError: if matplotlib is not installed.

    Guarantee:
      Every line is an upper bound on epsilon, that of ``accounting.epsilon``.

    Example:
      >>> from jaxdp import accounting as acc, report
      >>> axes = report.plot_epsilon(
      ...     lambda n: acc.Gaussian(4.0) * n, 100, 1e-5, accountants=["rdp", "gdp"])
      >>> [line.get_label() for line in axes.lines]
      ['rdp', 'gdp']
      >>> axes.figure.savefig("epsilon.pdf")  # doctest: +SKIP
    """
    _validate.function("run_of_steps", run_of_steps)
    num_steps = _validate.integer("num_steps", num_steps, minimum=1)
    _validate.delta("delta", delta)
    whole = run_of_steps(num_steps)
    axes = style.new_axes(axes, width=7.6)
    names = _accountants(whole, delta) if accountants is None else list(accountants)
    counts = _counts_up_to(num_steps)
    bounds: list[acc.Bounds] = []
    epsilons: dict[str, list[float]] = {name: [] for name in names}
    for count in progress(counts, "epsilon against steps"):
        run = run_of_steps(count)
        bounds.append(acc.epsilon_bounds(run, delta))
        tightest = "exact" if exact.applies(composition.steps_of(run)) else "pld"
        for name, values in epsilons.items():
            # The upper bound is this one's answer already, and the slowest to compute.
            is_known = name in ("auto", tightest)
            known = bounds[-1].upper
            values.append(known if is_known else acc.epsilon(run, delta, accountant=name))
    _draw_band(axes, counts, bounds)
    # In the order of their ends, as the eye meets them.
    for name in sorted(names, key=lambda name: epsilons[name][-1], reverse=True):
        axes.plot(
            counts,
            style.with_gaps(epsilons[name]),
            marker="o" if len(counts) == 1 else None,
            label=style.note_infinite(name, epsilons[name]),
            **style.line(axes),
        )
    style.log_scale(axes.yaxis, [value for values in epsilons.values() for value in values])
    return style.finish(
        axes,
        xlabel="steps",
        ylabel=f"epsilon at delta = {delta:g}",
        title=neighbours.title({"": whole}),
        beside="accountant",
    )


def _draw_band(axes: Any, counts: Sequence[int], bounds: Sequence[acc.Bounds]) -> None:
    """The band, with gaps where a bound says nothing: infinite above, or 0 below."""
    lower, upper = np.transpose(bounds)
    is_shown = (lower > 0.0) & np.isfinite(upper)
    if not np.any(is_shown):
        return
    apart = 100.0 * np.max(1.0 - lower[is_shown] / upper[is_shown])
    axes.fill_between(
        counts,
        lower,
        upper,
        where=is_shown,
        color="0.75",
        linewidth=0.0,
        label=f"certified bounds\n(at most {apart:{'.0f' if apart >= 1.0 else '.1g'}} % apart)",
    )
