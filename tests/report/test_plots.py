"""What is drawn is what was computed, and the labels say what it is about."""

import math

import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp import report

pytest.importorskip("matplotlib")

SAMPLED = acc.PoissonSampled(0.01, acc.Gaussian(1.1))


def lines_of(axes):
    return {line.get_label(): np.array(line.get_data()) for line in axes.lines}


def band_of(axes):
    """The corners of the band: (x, lower and upper)."""
    (band,) = axes.collections
    return band.get_label(), {
        x: sorted(y for at, y in band.get_paths()[0].vertices if at == x)
        for x in {at for at, _ in band.get_paths()[0].vertices}
    }


@pytest.mark.parametrize(
    ("release", "num_steps", "tightest"),
    [(acc.Gaussian(4.0), 100, "exact"), (acc.Laplace(2.0), 3, "pld"), (SAMPLED, 1, "exact")],
)
def test_epsilon_against_steps_is_what_the_accountants_say_inside_of_the_bounds(
    release, num_steps, tightest
):
    def run(count):
        return release * count

    axes = report.plot_epsilon(run, num_steps, 1e-5, accountants=["rdp", tightest])
    lines = lines_of(axes)
    for name, (counts, epsilons) in lines.items():
        assert counts[0] == 1
        assert counts[-1] == num_steps
        said = [acc.epsilon(run(int(count)), 1e-5, accountant=name) for count in counts]
        np.testing.assert_array_equal(epsilons, said)
    label, band = band_of(axes)
    assert "certified bounds" in label
    for count, epsilon in lines[tightest].T:
        bounds = acc.epsilon_bounds(run(int(count)), 1e-5)
        assert min(band[count]) == bounds.lower <= epsilon == bounds.upper == max(band[count])
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "epsilon at delta = 1e-05"


def test_lines_are_labelled_in_the_order_of_their_ends_and_the_title_names_the_neighbours():
    axes = report.plot_epsilon(lambda n: SAMPLED * n, 1, 1e-5, accountants=["exact", "rdp"])
    assert list(lines_of(axes)) == ["rdp", "exact"]
    assert axes.get_title() == "neighbours: one unit added or removed"
    axes = report.plot_epsilon(lambda n: acc.Gaussian(1.0) * n, 1, 1e-5, accountants=["gdp"])
    assert axes.get_title() == "neighbours: those that the noise's sensitivity is for"


def test_by_default_the_certified_accountants_near_the_truth_are_drawn_once():
    axes = report.plot_epsilon(lambda n: acc.Gaussian(4.0) * n, 4, 1e-5)
    # "gdp" and "pld" are the same line as "exact"; "naive" and its like are soon far above.
    assert lines_of(axes).keys() == {"moments", "rdp", "zcdp", "exact"}
    axes = report.plot_epsilon(lambda n: acc.Laplace(2.0) * n, 1, 1e-5)
    assert {"rdp", "pld"} <= lines_of(axes).keys()


def test_infinite_epsilons_are_gaps_and_the_legend_says_so():
    def run(count):
        return acc.Gaussian(4.0 if count < 3 else 0.0) * count

    axes = report.plot_epsilon(run, 4, 1e-5, accountants=["exact"])
    counts, epsilons = lines_of(axes)["exact (gaps: infinite)"]
    np.testing.assert_array_equal(np.isnan(epsilons), counts >= 3)
    _, band = band_of(axes)
    assert max(band) == 2
    axes = report.plot_epsilon(lambda n: acc.Gaussian(0.0) * n, 4, 1e-5, accountants=["exact"])
    assert list(lines_of(axes)) == ["exact (infinite)"]
    assert not axes.collections
    axes.figure.canvas.draw()


def test_a_profile_is_the_log_of_delta_between_bounds_also_where_it_is_no_float():
    runs = {"ten": acc.Gaussian(5.0) * 10, "other": acc.Laplace(1.0)}
    axes = report.plot_privacy_profile(runs, [0.0, 0.5, 0.9])
    for label, run in runs.items():
        epsilons, powers = lines_of(axes)[label]
        logs = [acc.log_delta(run, epsilon) for epsilon in epsilons]
        # Bounds are looked for anew where they are further apart than 0.01.
        np.testing.assert_allclose(powers * math.log(10.0), logs, rtol=0.0, atol=0.01)
        assert np.all(powers * math.log(10.0) >= logs - 1e-9 * np.abs(logs))
    tiny = report.plot_privacy_profile({"strong": acc.Gaussian(10.0)}, [10.0])
    assert lines_of(tiny)["strong"][1][0] < -400.0
    assert axes.yaxis.get_major_formatter()(-400.0) == "1e-400"


def test_where_delta_is_zero_a_profile_has_a_gap():
    axes = report.plot_privacy_profile({"pure": acc.RandomizedResponse(0.5, 2)}, [0.5, 2.0])
    (label, (_, powers)), *_ = lines_of(axes).items()
    assert label == "pure (gaps: delta is 0)"
    assert np.isnan(powers).tolist() == [False, True]
    assert axes.get_title() == "neighbours: one unit replaced"


def test_a_trade_off_curve_is_the_least_error_and_lies_below_guessing():
    run = acc.Gaussian(1.0)
    axes = report.plot_trade_off({"one": run})
    lines = lines_of(axes)
    errors, missed = lines["one"]
    picked = [0, 3, 20, 33, 40]
    np.testing.assert_array_equal(missed[picked], acc.type_ii_error(run, errors[picked]))
    np.testing.assert_array_equal(lines["guessing"], [[0.0, 1.0], [1.0, 0.0]])
    assert np.all(missed <= 1.0 - errors)
    assert np.all(np.diff(missed) <= 0.0)


def test_runs_of_other_neighbours_are_labelled_by_them():
    runs = {
        "sampled": acc.PoissonSampled(0.1, acc.Laplace(1.0)),
        "answer": acc.RandomizedResponse(0.5, 2),
    }
    axes = report.plot_privacy_profile(runs, [0.1])
    assert axes.get_title() == "neighbours: not the same for all"
    labels = ["sampled (one unit added or removed)", "answer (one unit replaced)"]
    assert list(lines_of(axes)) == labels


def test_norms_are_counted_and_the_clipped_ones_named():
    norms = np.array([[0.5, 1.0, 2.0], [4.0, math.nan, math.inf]])
    axes = report.plot_norms(norms, 1.0)
    assert sum(patch.get_height() for patch in axes.patches) == 4
    assert list(lines_of(axes)) == ["clip norm 1: 50.0 % of 4 are above; 2 not finite"]
    assert lines_of(axes).popitem()[1][0].tolist() == [1.0, 1.0]
    assert "not private" in axes.get_title()
    assert axes.get_xscale() == "linear"
    assert report.plot_norms([0.01, 1.0, 50.0], 1.0).get_xscale() == "log"
    assert report.plot_norms([0.0, 1.0, 50.0], 1.0).get_xscale() == "linear"
    report.plot_norms([0.0, 0.0], 1.0).figure.canvas.draw()


def test_utility_is_the_mean_with_its_spread_over_seeds():
    utilities = np.array([[0.8, 0.9], [0.9, 0.92]])
    axes = report.plot_utility([1.0, 8.0], utilities, public=0.95, label="accuracy")
    (label, (epsilons, mean)), (_, (_, public)) = lines_of(axes).items()
    assert label == "accuracy (mean ± standard deviation, 2 seeds)"
    assert epsilons.tolist() == [1.0, 8.0]
    np.testing.assert_allclose(mean, [0.85, 0.91], rtol=1e-12)
    assert public.tolist() == [0.95, 0.95]
    _, band = band_of(axes)
    # The standard deviation of two numbers is their distance over sqrt(2).
    np.testing.assert_allclose(sorted(band[1.0])[0], 0.85 - 0.1 / 2**0.5, rtol=1e-12)
    assert axes.get_ylabel() == "accuracy"
    assert axes.get_xticks().tolist() == [1.0, 8.0]
    more = report.plot_utility([3.0], [0.7], label="other", axes=axes)
    assert more.get_ylabel() == "accuracy"
    assert more.get_xticks().tolist() == [1.0, 3.0, 8.0]
    colours = {line.get_color() for line in more.lines}
    assert len(colours) == 3


RUN = {"a": acc.Gaussian(1.0)}
BAD = [
    (lambda: report.plot_epsilon(acc.Gaussian(1.0), 3, 1e-5), "run_of_steps must be a function"),
    (lambda: report.plot_epsilon(lambda n: acc.Gaussian(1.0), 0, 1e-5), "num_steps must be"),
    (lambda: report.plot_epsilon(lambda n: acc.Gaussian(1.0), 3, 0.0), "delta must be"),
    (lambda: report.plot_epsilon(lambda n: 3.0, 3, 1e-5), "event must be an event"),
    (
        lambda: report.plot_epsilon(lambda n: acc.Gaussian(1.0), 3, 0.1, accountants=["magic"]),
        "accountant must be one of",
    ),
    (lambda: report.plot_privacy_profile(acc.Gaussian(1.0), [1.0]), "runs must be a dict"),
    (lambda: report.plot_privacy_profile({}, [1.0]), "runs must be a dict"),
    (lambda: report.plot_privacy_profile({"a": 3}, [1.0]), r"runs\['a'\] must be an event"),
    (lambda: report.plot_privacy_profile(RUN, [-1.0]), "epsilons must be a finite number >= 0"),
    (lambda: report.plot_privacy_profile(RUN, []), "epsilons must be at least one number"),
    (lambda: report.plot_trade_off([acc.Gaussian(1.0)]), "runs must be a dict"),
    (lambda: report.plot_norms([1.0], 0.0), "l2_clip_norm must be a finite number > 0"),
    (lambda: report.plot_norms([], 1.0), "norms must be numbers >= 0"),
    (lambda: report.plot_norms([-1.0], 1.0), "norms must be numbers >= 0"),
    (lambda: report.plot_norms([math.nan], 1.0), "norms must be numbers >= 0"),
    (lambda: report.plot_utility([0.0], [1.0]), "epsilons must be a finite number > 0"),
    (lambda: report.plot_utility([math.inf], [1.0]), "epsilons must be a finite number > 0"),
    (lambda: report.plot_utility([], []), "epsilons must be a vector"),
    (lambda: report.plot_utility([1.0], [1.0, 2.0]), r"utilities must be of shape \[1\]"),
    (lambda: report.plot_utility([1.0], [math.nan]), "utilities must be a finite number"),
    (lambda: report.plot_utility([1.0], [1.0], public=math.nan), "public must be a finite"),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=range(len(BAD)))
def test_bad_arguments_are_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
