"""Lines are told apart in print, in grey and by colour-blind readers."""

import itertools
import sys

import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp import report
from jaxdp.report import style

pytest.importorskip("matplotlib")

# Machado, Oliveira and Fernandes 2009, A physiologically-based model for simulation of color
# vision deficiency: what is left of linear RGB without one kind of cone.
BLIND = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear_rgb(colour):
    encoded = np.array([int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def looks(number):
    axes = style.new_axes(None)
    for _ in range(number):
        axes.plot([0.0, 1.0], [0.0, 1.0], **style.line(axes))
    return [(line.get_color(), str(line._dash_pattern)) for line in axes.lines]


def test_seven_lines_differ_in_dashes_alone_and_in_colour_alone():
    colours, dashes = zip(*looks(7), strict=True)
    assert len(set(colours)) == len(set(dashes)) == 7


def test_more_lines_than_colours_still_differ():
    assert len(set(looks(49))) == 49


@pytest.mark.parametrize("blindness", BLIND)
def test_colours_stay_apart_for_colour_blind_readers(blindness):
    seen = [np.array(BLIND[blindness]) @ linear_rgb(colour) for colour in style.COLOURS]
    apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    # In linear RGB, where a step of 8 bits is at most 0.009: ten of them.
    assert min(apart) > 0.09


def test_neighbouring_lines_differ_in_grey_or_in_dashes_and_none_is_too_light_to_print():
    grey = [linear_rgb(colour) @ [0.2126, 0.7152, 0.0722] for colour in style.COLOURS]
    # WCAG 2 asks for a contrast of 3 for graphics at 1.5 pt; dashes carry the two light ones.
    contrasts = [1.05 / (y + 0.05) for y in grey]
    assert sum(contrast >= 3.0 for contrast in contrasts) >= 5
    assert min(contrasts) > 2.0


PLOTS = {
    "epsilon": lambda: report.plot_epsilon(lambda n: acc.Gaussian(1.0) * n, 3, 1e-5),
    "profile": lambda: report.plot_privacy_profile({"a": acc.Gaussian(1.0)}, [1.0]),
    "trade-off": lambda: report.plot_trade_off({"a": acc.Gaussian(1.0)}),
    "norms": lambda: report.plot_norms([1.0], 1.0),
    "utility": lambda: report.plot_utility([1.0], [1.0]),
}


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS)
def test_without_matplotlib_a_plot_says_what_to_install(plot, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdp-privacy\[plots\]'"):
        plot()


def test_plots_keep_their_hands_off_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for plot in PLOTS.values():
        plot().figure.canvas.draw()


@pytest.mark.parametrize("plot", ["norms", "utility"])
def test_a_plot_fits_into_axes_that_are_given(plot):
    axes = style.new_axes(None)
    drawn = {
        "norms": lambda: report.plot_norms([1.0], 1.0, axes=axes),
        "utility": lambda: report.plot_utility([1.0], [1.0], axes=axes),
    }[plot]()
    assert drawn is axes
