"""Numbers that the command line gives as text."""

import argparse
from fractions import Fraction


def number(text: str) -> Fraction:
    """A finite number such as 0.01, 1e-5 or 1/75, exactly: 3 / (1/75) is then 225."""
    try:
        parts = [Fraction(float(part)) for part in text.split("/")]
        if len(parts) > 2:
            raise ValueError
        value = parts[0] / parts[1] if len(parts) == 2 else parts[0]
        float(value)  # too large a quotient is refused here
        return value
    except (ValueError, OverflowError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(
            f"must be a finite number such as 0.01, 1e-5 or 1/75, got {text!r}"
        ) from None


def whole(text: str) -> int:
    """A whole number such as 1000 or 1e4."""
    value = number(text)
    if value.denominator != 1 or value < 0:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 0, got {text!r}")
    return int(value)
