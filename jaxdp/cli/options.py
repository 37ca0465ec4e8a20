"""The options of the command line, with the help that a newcomer reads."""

import argparse
from importlib import metadata

from jaxdp.cli.text import number, whole

_ABOUT = """\
What does a differentially private training run cost, and how much noise does it need?

Epsilon bounds how much one example can change what a run releases; smaller is more private.
Delta is the slack that is added to the bound: well below 1 / (number of examples)."""

_EXAMPLES = """\
examples:
  The epsilon of DP-SGD on 60,000 examples in batches of 256 for 15 epochs:
    jaxdp epsilon --noise-multiplier 1.1 --batch-size 256 --num-examples 60000 \\
        --epochs 15 --delta 1e-5
  The noise that it needs for epsilon 3:
    jaxdp calibrate --target-epsilon 3 --batch-size 256 --num-examples 60000 \\
        --epochs 15 --delta 1e-5
  Without sampling, 10 releases of Laplace noise, for a script:
    jaxdp epsilon --mechanism laplace --noise-multiplier 20 --steps 10 --delta 0 --json

exit status:
  0: answered; 1: there is no answer (no noise meets the target, a file cannot be written);
  2: an option is missing or has a bad value."""


def _examples(command: str, *lines: str) -> str:
    return "example:\n" + "\n".join(f"  jaxdp {command} {line}" for line in lines)


def _add_run(parser: argparse.ArgumentParser, *, with_noise: bool) -> None:
    run = parser.add_argument_group("the run")
    if with_noise:
        run.add_argument(
            "--noise-multiplier",
            type=number,
            required=True,
            metavar="S",
            help="standard deviation of the noise over the clip norm (Laplace: scale over L1 "
            "sensitivity)",
        )
    run.add_argument(
        "--mechanism",
        choices=("gaussian", "laplace"),
        default="gaussian",
        help="the distribution of the noise (default: gaussian, as in DP-SGD)",
    )
    run.add_argument(
        "--sampling-probability",
        type=number,
        metavar="Q",
        help="probability with which each example joins a batch, independently: 0.01 or 1/75 "
        "(default: 1, every example in every step)",
    )
    run.add_argument(
        "--batch-size", type=whole, metavar="B", help="instead: the expected batch size, and"
    )
    run.add_argument(
        "--num-examples", type=whole, metavar="N", help="the number of examples; Q is then B / N"
    )
    length = run.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=whole, metavar="T", help="number of noisy updates")
    length.add_argument(
        "--epochs", type=number, metavar="E", help="instead: T is E / Q, rounded up"
    )
    run.add_argument(
        "--delta", type=number, required=True, metavar="D", help="in (0, 1), such as 1e-5"
    )


def _add_accountant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accountant",
        default="auto",
        metavar="NAME",
        help="how privacy is accounted for (default: auto, the tightest certified bound; "
        "'jaxdp compare' lists the others)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help='print JSON, numbers at full precision (an infinite one as the string "inf")',
    )


def _version() -> str:
    try:
        return metadata.version("jaxdp-privacy")
    except metadata.PackageNotFoundError:  # run from a folder of sources
        return "unknown"


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="jaxdp",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=_layout,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=_version())
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, purpose: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            epilog=_examples(name, example),
            formatter_class=_layout,
            allow_abbrev=False,
        )

    run = "--sampling-probability 0.01 --steps 10000 --delta 1e-5"
    epsilon = command("epsilon", "the epsilon that a run costs", f"--noise-multiplier 1.1 {run}")
    calibrate = command(
        "calibrate", "the least noise with which a run meets a target", f"--target-epsilon 3 {run}"
    )
    compare = command(
        "compare",
        "a run's epsilon by every accountant that applies",
        f"--noise-multiplier 1.1 {run}",
    )
    plot = command(
        "plot",
        "epsilon against the number of steps, as a picture",
        f"--noise-multiplier 1.1 {run} --output epsilon.pdf",
    )
    calibrate.add_argument(
        "--target-epsilon",
        type=number,
        required=True,
        metavar="EPS",
        help="the most that the run may cost",
    )
    for each in (epsilon, compare, plot, calibrate):
        _add_run(each, with_noise=each is not calibrate)
    plot.add_argument(
        "--accountants",
        nargs="+",
        metavar="NAME",
        help="which lines to draw (default: the certified ones of 'jaxdp compare' but for those "
        "that repeat another, and for naive, advanced and optimal, which are soon far above)",
    )
    plot.add_argument(
        "--output", required=True, metavar="FILE", help="a .pdf, .svg or .png file to write"
    )
    for each in (epsilon, calibrate):
        _add_accountant(each)
    for each in (epsilon, calibrate, compare):
        _add_json(each)
    return top
