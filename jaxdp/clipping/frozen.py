"""Arguments of a loss that are neither differentiated nor split into examples."""

from collections.abc import Callable
from typing import Any

from jaxdp import _validate


def places(frozen_argnums: int | tuple[int, ...]) -> tuple[int, ...]:
    """The checked places, in order."""
    given = frozen_argnums if isinstance(frozen_argnums, tuple | list) else (frozen_argnums,)
    for place in given:
        _validate.integer("frozen_argnums", place, minimum=1)
    if len(set(given)) != len(given):
        _validate.refuse("frozen_argnums", frozen_argnums, "different places")
    return tuple(sorted(int(place) for place in given))


def bind(
    loss_fn: Callable[..., Any], frozen: tuple[int, ...], arguments: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Fixes the frozen arguments.

    Args:
      loss_fn: Function ``(params, *arguments)``.
      frozen: Places of the frozen ones, where the first argument after params is 1.
      arguments: All arguments but params.

    Returns:
      The loss as a function of params and the other arguments, and these.
    """
    if frozen and frozen[-1] > len(arguments):
        allowed = f"places from 1 to {len(arguments)}, the arguments given after params"
        _validate.refuse("frozen_argnums", frozen, allowed)
    if frozen and len(frozen) == len(arguments):
        _validate.refuse("frozen_argnums", frozen, "fewer than all arguments after params")
    fixed = {place: arguments[place - 1] for place in frozen}
    others = tuple(
        argument for place, argument in enumerate(arguments, start=1) if place not in fixed
    )

    def loss_of_others(params, *rest, **keyword):
        remaining = iter(rest)
        merged = [
            fixed[place] if place in fixed else next(remaining)
            for place in range(1, len(fixed) + len(rest) + 1)
        ]
        return loss_fn(params, *merged, **keyword)

    return (loss_of_others if frozen else loss_fn), others
