"""The commands: from options to an answer on the standard output, and an exit status."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxdp import accounting as acc
from jaxdp import report
from jaxdp._rounding import rounded_up
from jaxdp.cli import figure
from jaxdp.cli.options import parser
from jaxdp.cli.run import Run, UsageError, run_of


class Unanswerable(Exception):
    """The question is well put, but there is no answer."""


def _rows(rows: dict[str, str]) -> str:
    width = max(map(len, rows)) + 2
    lines = []
    for name, text in rows.items():
        first, *more = text.split("\n")
        lines.append(f"{name:<{width}}{first}")
        lines += [" " * width + line for line in more]
    return "\n".join(lines)


def _json(answer: dict[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(part) for part in value]
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        # JSON knows no infinity; most languages read this string as one.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(answer), indent=2, allow_nan=False)


def _watched(compute: Callable[[], Any]) -> Any:
    """What is computed, with a word on a terminal while it takes its seconds."""
    words = "computing (the first time, compiling too)"
    (answer,) = [compute() for _ in report.progress([None], words)]
    return answer


def _accountant(name: str) -> str:
    return f"{name} (the tightest certified one that applies)" if name == "auto" else name


def _epsilon(options: argparse.Namespace, run: Run) -> str:
    noise, delta = float(options.noise_multiplier), float(options.delta)
    event = run.event(noise)
    epsilon = _watched(lambda: acc.epsilon(event, delta, accountant=options.accountant))
    if options.json:
        return _json(
            {"epsilon": epsilon, "delta": delta, "accountant": options.accountant}
            | {"noise_multiplier": noise}
            | run.numbers(delta)
        )
    rows = run.words(str(noise), delta) | {"Accountant": _accountant(options.accountant)}
    return f"epsilon = {rounded_up(epsilon)} at delta = {delta}\n\n{_rows(rows)}"


def _calibrate(options: argparse.Namespace, run: Run) -> str:
    target, delta = float(options.target_epsilon), float(options.delta)
    if target <= 0.0:
        raise UsageError("--target-epsilon", f"must be a number > 0, got {target}")
    if run.num_steps == 0 or run.sampling_probability == 0.0:
        raise Unanswerable("a run that releases nothing needs no noise")
    try:
        goal: dict[str, Any] = {"target_epsilon": target, "delta": delta}
        noise = _watched(lambda: acc.calibrate(run.event, **goal, accountant=options.accountant))
    except ValueError as error:
        if str(error).startswith("target_epsilon "):
            raise Unanswerable(
                str(error).replace("target_epsilon", "--target-epsilon", 1)
            ) from None
        raise
    epsilon = acc.epsilon(run.event(noise), delta, accountant=options.accountant)
    if options.json:
        return _json(
            {"noise_multiplier": noise, "epsilon": epsilon, "target_epsilon": target}
            | {"delta": delta, "accountant": options.accountant}
            | run.numbers(delta)
        )
    rows = run.words(rounded_up(noise), delta) | {
        "Accountant": _accountant(options.accountant),
        "Achieved": f"epsilon = {rounded_up(epsilon)} at delta = {delta}",
    }
    return (
        f"noise multiplier = {rounded_up(noise)} for epsilon <= {target} at delta = {delta}"
        f"\n\n{_rows(rows)}"
    )


def _compare(options: argparse.Namespace, run: Run) -> str:
    noise, delta = float(options.noise_multiplier), float(options.delta)
    results = _watched(lambda: acc.compare(run.event(noise), delta))
    if options.json:
        return _json(
            {"accountants": [result._asdict() for result in results], "delta": delta}
            | {"noise_multiplier": noise}
            | run.numbers(delta)
        )
    cells = [("Accountant", "Epsilon", "Certified", "Note")]
    for result in results:
        certified = "yes" if result.certified else "no"
        cells.append((result.accountant, rounded_up(result.epsilon), certified, result.note))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    table = [
        f"{name:<{widths[0]}}  {epsilon:>{widths[1]}}  {certified:<{widths[2]}}  {note}".rstrip()
        for name, epsilon, certified, note in cells
    ]
    return "\n".join([f"At delta = {delta}:", "", *table, "", _rows(run.words(str(noise), delta))])


def _plot(options: argparse.Namespace, run: Run) -> str:
    if run.num_steps == 0:
        raise UsageError("--steps", "must be at least 1, got 0")
    noise, delta = float(options.noise_multiplier), float(options.delta)
    try:
        figure.check_output(options.output)
        picture = figure.draw(run, noise, delta, options.accountants)
        picture.savefig(options.output)
    except ImportError as error:
        raise Unanswerable(str(error)) from None
    except OSError as error:
        raise Unanswerable(f"cannot write {options.output}: {error.strerror}") from None
    return f"Wrote {options.output}."


_COMMANDS = {"epsilon": _epsilon, "calibrate": _calibrate, "compare": _compare, "plot": _plot}


def _named(message: str, options: argparse.Namespace) -> str:
    """The library names arguments, the command line options."""
    name, _, rest = message.partition(" ")
    if name in vars(options):
        return f"argument --{name.replace('_', '-')}: {rest.removesuffix('.')}"
    return message


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers one command line.

    Args:
      arguments: The words after ``jaxdp``; by default those of this process.

    Returns:
      0: answered, on the standard output. 1: there is no answer, and the standard error says
      why.

    Raises:
      SystemExit: with status 2, an option being missing or bad, or 0 for help.
    """
    top = parser()
    options = top.parse_args(arguments)
    prefix = f"jaxdp {options.command}: error: "
    try:
        answer = _COMMANDS[options.command](options, run_of(options))
    except UsageError as error:
        option, problem = error.args
        top.exit(2, f"{prefix}argument {option}: {problem}\n")
    except ValueError as error:
        top.exit(2, f"{prefix}{_named(str(error), options)}\n")
    except Unanswerable as error:
        sys.stderr.write(f"{prefix}{error}\n")
        return 1
    sys.stdout.write(answer + "\n")
    return 0
