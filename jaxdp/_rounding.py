"""Numbers as text that keeps a bound a bound: rounded outward in the last digit shown."""

import decimal
import math

_UP = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
_DOWN = decimal.Context(prec=6, rounding=decimal.ROUND_FLOOR)


def _digits(value: float, context: decimal.Context) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{context.create_decimal(decimal.Decimal(value)):g}"


def rounded_up(value: float) -> str:
    """Six significant digits, rounded up: an upper bound stays one when it is copied."""
    return _digits(value, _UP)


def rounded_down(value: float) -> str:
    """Six significant digits, rounded down: a lower bound stays one when it is copied."""
    return _digits(value, _DOWN)
