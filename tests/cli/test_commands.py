"""The command line in this process: answers, words, errors and exit statuses."""

import decimal
import json
import math
import os
import shlex
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from jaxdp import accounting as acc
from jaxdp import report
from jaxdp._rounding import rounded_up
from jaxdp.cli import figure, main

GAUSSIAN = "--noise-multiplier 1 --steps 1 --delta 1e-5"
SAMPLED = "--noise-multiplier 1 --sampling-probability 0.01 --steps 1000 --delta 1e-5"


@pytest.fixture
def answer(capsys):
    """What a command prints, which must be all, and its status 0."""

    def run(line):
        assert main(shlex.split(line)) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return run


@pytest.fixture
def refusal(capsys):
    """The last line of what a command that fails prints, and its status."""

    def run(line):
        try:
            status = main(shlex.split(line))
        except SystemExit as stopped:
            status = stopped.code
        printed = capsys.readouterr()
        assert printed.out == ""
        return status, printed.err.splitlines()[-1]

    return run


class Accounted(NamedTuple):
    accountant: str
    epsilon: float
    certified: bool
    note: str


@pytest.fixture
def compared(monkeypatch):
    """A stand-in for the comparison, so that its table holds one row of each kind."""
    rows = [
        Accounted("auto", 2.1013221, True, "tightest"),
        Accounted("rdp", 3.0000001, True, ""),
        Accounted("naive", math.inf, True, "no finite answer"),
        Accounted("clt", 1.618, False, "an approximation, no bound"),
    ]
    calls = []

    def compare(event, delta):
        calls.append((event, delta))
        return rows

    monkeypatch.setattr(acc, "compare", compare, raising=False)
    return calls


def test_epsilon_answers_in_a_line_and_says_what_it_is_about(answer):
    lines = answer(f"epsilon {GAUSSIAN}").splitlines()
    # 4.37717809568 by mpmath; rounded up in the sixth digit.
    assert lines[0] == "epsilon = 4.37718 at delta = 1e-05"
    text = "\n".join(lines)
    for words in ("Gaussian", "noise multiplier 1", "added or removed", "none: every step", "auto"):
        assert words in text


def test_sampling_is_said_to_be_poisson_and_not_shuffling(answer):
    text = answer(f"epsilon {SAMPLED}")
    assert "Poisson: every step draws each example independently, with probability 0.01" in text
    assert "no bound for shuffled or fixed-size batches" in text


def test_json_holds_the_numbers_in_full(answer):
    held = json.loads(answer(f"epsilon {SAMPLED} --accountant rdp --json"))
    run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1000
    assert held == {
        "epsilon": acc.epsilon(run, 1e-5, accountant="rdp"),
        "delta": 1e-5,
        "accountant": "rdp",
        "noise_multiplier": 1.0,
        "mechanism": "gaussian",
        "sampling_probability": 0.01,
        "num_steps": 1000,
        "sampler": "Poisson",
        "neighboring_relation": "add_or_remove_one",
        "unit": "one example",
        "caution": None,
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--delta 1e-3", None),
        ("--delta 1e-5 --batch-size 9 --num-examples 99999", None),
        ("--delta 1.1e-3", "delta is large"),
        ("--delta 1e-5 --batch-size 9 --num-examples 100000", "NOT SMALL"),
        ("--delta 0.1 --batch-size 9 --num-examples 9", "delta is large"),
    ],
)
def test_a_large_delta_is_said_to_be_large(answer, options, words):
    for line in (
        f"epsilon --noise-multiplier 9 --accountant rdp {options}",
        f"calibrate --target-epsilon 9 --accountant rdp {options}",
    ):
        text = answer(f"{line} --steps 1")
        held = json.loads(answer(f"{line} --steps 1 --json"))["caution"]
        assert (words is None) == (held is None) == ("Caution" not in text)
        assert words is None or (words in text and words in held)


def test_no_noise_is_infinite_also_in_json(answer):
    assert answer("epsilon --noise-multiplier 0 --steps 1 --delta 1e-5").startswith("epsilon = inf")
    held = json.loads(answer("epsilon --noise-multiplier 0 --steps 1 --delta 1e-5 --json"))
    assert held["epsilon"] == "inf"


def test_no_steps_cost_nothing(answer):
    line = "epsilon --noise-multiplier 1 --sampling-probability 0.01 --steps 0 --delta 1e-5"
    assert answer(line).startswith("epsilon = 0 ")


def test_laplace_noise_is_pure(answer):
    line = "epsilon --mechanism laplace --noise-multiplier 20 --steps 10 --delta 0"
    held = json.loads(answer(line + " --json"))
    assert held["epsilon"] == pytest.approx(0.5, rel=1e-9)
    assert "L1 sensitivity" in answer(line)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ("--sampling-probability 1/75 --epochs 3", 225),
        ("--batch-size 1 --num-examples 75 --epochs 3", 225),
        ("--sampling-probability 0.013333333333333334 --epochs 3", 225),
        ("--batch-size 1 --num-examples 93 --epochs 1", 93),
        ("--sampling-probability 0.1 --epochs 3", 30),
        ("--sampling-probability 0.01 --epochs 0.29", 29),
        # 15 * 60000 / 256 = 3515.625
        ("--batch-size 256 --num-examples 60000 --epochs 15", 3516),
        ("--epochs 7", 7),
        ("--sampling-probability 0.5 --steps 1e3", 1000),
    ],
)
def test_epochs_are_whole_steps(answer, options, steps):
    held = json.loads(answer(f"epsilon --noise-multiplier 2 --delta 1e-5 --json {options}"))
    assert held["num_steps"] == steps


def test_a_batch_of_everyone_is_no_sampling(answer):
    everyone = json.loads(answer(f"epsilon {GAUSSIAN} --batch-size 9 --num-examples 9 --json"))
    assert everyone == json.loads(answer(f"epsilon {GAUSSIAN} --json"))


def test_calibrate_finds_the_known_noise(answer):
    line = "calibrate --target-epsilon 1 --steps 60 --delta 1e-5"
    held = json.loads(answer(line + " --json"))
    # 28.897 by inversion of the exact profile, good to the digits shown.
    assert held["noise_multiplier"] == pytest.approx(28.897, abs=5e-4)
    assert 1.0 - 1e-6 <= held["epsilon"] <= 1.0
    text = answer(line)
    assert text.startswith(f"noise multiplier = {rounded_up(held['noise_multiplier'])} for ")
    assert "Achieved" in text


def test_the_noise_printed_meets_the_target_when_typed_back(answer):
    run = "--sampling-probability 0.01 --steps 1000 --delta 1e-5 --accountant rdp"
    printed = answer(f"calibrate --target-epsilon 2 {run}").split()[3]
    held = json.loads(answer(f"epsilon --noise-multiplier {printed} {run} --json"))
    assert 1.99 < held["epsilon"] <= 2.0


def test_calibrate_without_an_answer_exits_with_1(refusal, monkeypatch):
    assert refusal("calibrate --target-epsilon 1 --steps 0 --delta 1e-5") == (
        1,
        "jaxdp calibrate: error: a run that releases nothing needs no noise",
    )

    def out_of_reach(*_, **__):
        raise ValueError("target_epsilon must be at least 0.5, which noise 1e+06 gives, got 0.1.")

    monkeypatch.setattr(acc, "calibrate", out_of_reach)
    status, line = refusal("calibrate --target-epsilon 0.1 --steps 9 --delta 1e-5")
    assert status == 1
    assert line.startswith("jaxdp calibrate: error: --target-epsilon must be at least 0.5")


def test_compare_prints_a_table_with_approximations_marked(answer, compared):
    lines = answer(f"compare {SAMPLED}").splitlines()
    event, delta = compared[0]
    assert event == acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1000
    assert delta == 1e-5
    assert lines[:7] == [
        "At delta = 1e-05:",
        "",
        "Accountant  Epsilon  Certified  Note",
        "auto        2.10133  yes        tightest",
        "rdp         3.00001  yes",
        "naive           inf  yes        no finite answer",
        "clt         1.61801  no         an approximation, no bound",
    ]
    assert any(line.startswith("Sampler") for line in lines)


def test_compare_in_json_is_a_list(answer, compared):
    held = json.loads(answer(f"compare {SAMPLED} --json"))
    assert [row["accountant"] for row in held["accountants"]] == ["auto", "rdp", "naive", "clt"]
    assert held["accountants"][0]["epsilon"] == 2.1013221
    assert held["accountants"][2]["epsilon"] == "inf"
    assert held["num_steps"] == 1000


def test_compare_and_epsilon_say_the_same_of_every_accountant_that_applies(answer):
    line = "--noise-multiplier 2 --steps 10 --delta 1e-5"
    lines = answer(f"compare {line}").splitlines()
    rows = [row.split()[:3] for row in lines[3 : lines.index("", 3)]]
    assert {certified for _, _, certified in rows} == {"yes"}
    printed = {name: float(epsilon) for name, epsilon, _ in rows}
    theorems = {"naive", "advanced", "optimal", "moments", "rdp", "zcdp"}
    assert printed.keys() == theorems | {"gdp", "pld", "exact"}
    # Ten Gaussians are one with mu = sqrt(10) / 2: 7.51102 by Balle and Wang's profile in SciPy.
    mu = math.sqrt(10.0) / 2.0

    def excess(x):
        above, below = stats.norm.cdf(mu / 2 - x / mu), stats.norm.cdf(-mu / 2 - x / mu)
        return above - math.exp(x) * below - 1e-5

    truth = optimize.brentq(excess, 0.0, 100.0)
    # Six digits, rounded up; the search and the profile's difference leave 1e-9.
    assert truth - 1e-9 <= printed["exact"] == printed["gdp"] <= truth + 1.1e-5
    assert printed["exact"] <= printed["pld"] <= min(printed[name] for name in theorems)
    held = json.loads(answer(f"compare {line} --json"))
    for row in held["accountants"]:
        alone = json.loads(answer(f"epsilon {line} --accountant {row['accountant']} --json"))
        assert row["epsilon"] == alone["epsilon"]
        assert printed[row["accountant"]] == float(rounded_up(alone["epsilon"]))


def test_who_waits_at_a_terminal_is_told_that_something_is_computed(answer, monkeypatch):
    told = []

    def progress(items, words):
        told.append(words)
        return items

    monkeypatch.setattr(report, "progress", progress)
    answer(f"epsilon {GAUSSIAN}")
    answer("calibrate --target-epsilon 1 --steps 60 --delta 1e-5")
    answer(f"compare {GAUSSIAN}")
    assert told == ["computing (the first time, compiling too)"] * 3


BAD = [
    ("epsilon --steps 1 --delta 1e-5", "--noise-multiplier"),
    ("epsilon --noise-multiplier 1 --delta 1e-5", "--steps --epochs"),
    ("epsilon --noise-multiplier 1 --steps 1", "--delta"),
    ("epsilon --noise-multiplier 1 --steps 1 --epochs 1 --delta 1e-5", "argument --epochs"),
    ("epsilon --noise-multiplier -1 --steps 1 --delta 1e-5", "argument --noise-multiplier: must"),
    ("epsilon --noise-multiplier nan --steps 1 --delta 1e-5", "argument --noise-multiplier: must"),
    ("epsilon --noise-multiplier 1e999 --steps 1 --delta .1", "argument --noise-multiplier: must"),
    ("epsilon --noise-multiplier 1/0 --steps 1 --delta .1", "argument --noise-multiplier: must"),
    ("epsilon --noise-multiplier 1/2/3 --steps 1 --delta .1", "argument --noise-multiplier: must"),
    ("epsilon --noise-multiplier 1e300/1e-300 --steps 1 --delta .1", "--noise-multiplier: must"),
    ("epsilon --noise-multiplier one --steps 1 --delta .1", "argument --noise-multiplier: must"),
    ("epsilon --noise-multiplier 1 --steps 1.5 --delta .1", "argument --steps: must"),
    ("epsilon --noise-multiplier 1 --steps -1 --delta .1", "argument --steps: must"),
    ("epsilon --noise-multiplier 1 --steps 1e300 --delta .1", "argument --steps: must"),
    ("epsilon --noise-multiplier 1 --steps 1 --delta 0", "argument --delta: must"),
    ("epsilon --noise-multiplier 1 --steps 1 --delta 1", "argument --delta: must"),
    ("epsilon --noise-multiplier 1 --steps 1 --delta -1e-5", "argument --delta: expected"),
    (f"epsilon {GAUSSIAN} --accountant magic", "argument --accountant: must be one of"),
    (f"epsilon {GAUSSIAN} --sampling-probability 1.5", "argument --sampling-probability: must"),
    (f"epsilon {GAUSSIAN} --sampling-probability -0.1", "argument --sampling-probability: must"),
    (f"epsilon {GAUSSIAN} --sampling-probability .1 --batch-size 2", "--batch-size: not allowed"),
    (f"epsilon {GAUSSIAN} --batch-size 2", "argument --batch-size: needs --num-examples"),
    (f"epsilon {GAUSSIAN} --num-examples 2", "argument --num-examples: needs --batch-size"),
    (f"epsilon {GAUSSIAN} --batch-size 3 --num-examples 2", "argument --batch-size: must be at"),
    (f"epsilon {GAUSSIAN} --batch-size 0 --num-examples 0", "argument --num-examples: must be at"),
    (f"epsilon {GAUSSIAN} --mechanism cauchy", "argument --mechanism"),
    (f"epsilon {GAUSSIAN} --acc rdp", "unrecognized arguments"),
    ("epsilon --noise-multiplier 1 --epochs -1 --delta .1", "argument --epochs: must"),
    (
        "epsilon --noise-multiplier 1 --epochs 1 --sampling-probability 0 --delta .1",
        "argument --epochs: needs a sampling probability above 0",
    ),
    (
        "epsilon --noise-multiplier 1 --epochs 1 --sampling-probability 1e-300 --delta .1",
        "argument --epochs: must amount to at most 1e+15 steps",
    ),
    ("calibrate --target-epsilon 0 --steps 1 --delta .1", "argument --target-epsilon: must"),
    ("calibrate --target-epsilon -2 --steps 1 --delta .1", "argument --target-epsilon: must"),
    ("calibrate --target-epsilon 1 --steps 1 --delta 2", "argument --delta: must"),
    ("calibrate --target-epsilon 1 --noise-multiplier 1 --steps 1 --delta .1", "unrecognized"),
    (f"plot {GAUSSIAN}", "--output"),
    (f"plot {GAUSSIAN} --output picture.xyz", "argument --output: must end in"),
    (f"plot {GAUSSIAN} --output picture", "argument --output: must end in"),
    (f"plot {GAUSSIAN} --output picture.jpg", "must end in one of .pdf, .svg, .png, got"),
    ("plot --noise-multiplier 1 --steps 0 --delta .1 --output a.png", "argument --steps: must be"),
    (f"plot {GAUSSIAN} --output a.png --accountants magic", "accountant must be one of"),
    ("", "COMMAND"),
    ("spend", "argument COMMAND: invalid choice"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_bad_usage_exits_with_2_and_names_the_option(refusal, line, words):
    status, last = refusal(line)
    assert status == 2
    assert words in last
    assert last.startswith("jaxdp")


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_plot_writes_a_picture(answer, tmp_path, kind):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"epsilon.{kind}"
    run = "--noise-multiplier 1 --steps 1000 --delta 1e-5 --accountants auto rdp"
    text = answer(f"plot {run} --output {shlex.quote(str(file))}")
    assert text == f"Wrote {file}.\n"
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    assert file.read_bytes().startswith(starts[kind])


def test_plot_draws_the_certified_accountants_near_the_truth_against_steps(
    answer, compared, monkeypatch
):
    pytest.importorskip("matplotlib")
    drawn, pictures = figure.draw, []

    def draw(*arguments):
        picture = drawn(*arguments)
        picture.savefig = lambda path: pictures.append(picture)
        return picture

    def bounds(event, delta):
        return acc.Bounds(0.5 * event.count, float(event.count))

    monkeypatch.setattr(figure, "draw", draw)
    monkeypatch.setattr(acc, "epsilon", lambda event, delta, accountant: float(event.count))
    monkeypatch.setattr(acc, "epsilon_bounds", bounds)
    answer(f"plot {SAMPLED} --output a.pdf --accountants rdp naive")
    answer(f"plot {SAMPLED} --output a.pdf")
    asked, by_default = (picture.axes[0] for picture in pictures)
    assert {line.get_label() for line in asked.lines} == {"rdp", "naive"}
    axes = by_default
    # "naive" soon squashes the others, "clt" is no bound.
    assert {line.get_label() for line in axes.lines} == {"auto", "rdp"}
    for line in axes.lines:
        steps, epsilons = np.array(line.get_data())
        assert steps[0] == 1
        assert steps[-1] == 1000
        np.testing.assert_array_equal(steps, epsilons)
    assert axes.get_xlabel() == "steps"
    assert axes.get_ylabel() == "epsilon at delta = 1e-05"
    assert "one example added or removed" in axes.get_title()


def test_a_plot_of_infinite_or_zero_epsilons_is_still_a_picture(answer, tmp_path):
    pytest.importorskip("matplotlib")
    for line in (
        "--noise-multiplier 0 --steps 5 --delta 1e-5",
        "--noise-multiplier 1 --sampling-probability 0 --steps 5 --delta 1e-5",
        GAUSSIAN,
    ):
        file = tmp_path / "epsilon.png"
        answer(f"plot {line} --accountants auto --output {shlex.quote(str(file))}")
        assert file.stat().st_size > 0
        file.unlink()


def test_without_matplotlib_the_error_says_what_to_install(refusal, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, line = refusal(f"plot {GAUSSIAN} --output a.png")
    assert status == 1
    assert line.endswith("pip install 'jaxdp-privacy[plots]'")


def test_a_file_that_cannot_be_written_exits_with_1_before_anything_is_computed(
    refusal, monkeypatch, tmp_path
):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figure, "draw", None)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "locked.png").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    for name, problem in (
        ("nowhere/a.png", "No such file or directory"),
        ("file/a.png", "Not a directory"),
        ("folder.png", "Is a directory"),
        ("locked.png", "Permission denied"),
    ):
        file = tmp_path / name
        status, line = refusal(f"plot {GAUSSIAN} --output {shlex.quote(str(file))}")
        assert status == 1
        assert line == f"jaxdp plot: error: cannot write {file}: {problem}"


def test_a_file_that_fails_while_it_is_written_exits_with_1(refusal, monkeypatch, tmp_path):
    class Full:
        def savefig(self, path):
            raise OSError(28, "No space left on device")

    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figure, "draw", lambda *_: Full())
    file = tmp_path / "a.png"
    status, line = refusal(f"plot {GAUSSIAN} --output {shlex.quote(str(file))}")
    assert (status, line.endswith(f"cannot write {file}: No space left on device")) == (1, True)


@pytest.mark.parametrize("command", ["", "epsilon", "calibrate", "compare", "plot"])
def test_help_explains_and_shows_an_example(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "example" in text
    assert f"jaxdp {command}" in text


@pytest.mark.parametrize("command", ["", "epsilon", "calibrate", "plot"])
def test_examples_in_the_help_run(capsys, compared, monkeypatch, tmp_path, command):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out.replace("\\\n", " ")
    examples = [line.strip() for line in text.splitlines() if line.strip().startswith("jaxdp ")]
    examples = [line for line in examples if "--delta" in line]
    assert examples
    monkeypatch.chdir(tmp_path)
    for line in examples:
        if line.startswith("jaxdp plot"):
            pytest.importorskip("matplotlib")
            line += " --accountants auto"
        assert main(shlex.split(line)[1:]) == 0


@settings(max_examples=300, deadline=None)
@given(st.floats(0.0, allow_nan=False, allow_infinity=False))
def test_printed_bounds_are_rounded_up_in_the_sixth_digit(value):
    printed, exact = decimal.Decimal(rounded_up(value)), decimal.Decimal(value)
    # Six digits: one unit of the last is at most 1e-5 of the number.
    assert exact <= printed <= exact * (1 + decimal.Decimal("1e-5"))
    assert len(printed.normalize().as_tuple().digits) <= 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.0, "3"), (2.9999999, "3.00000"), (1e-7 / 3, "3.33334e-8"), (math.inf, "inf")],
)
def test_bounds_are_printed_plainly(value, text):
    assert rounded_up(value) == text
