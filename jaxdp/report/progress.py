"""A progress bar where somebody watches, and nothing anywhere else."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress(iterable: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """The same items, with a progress bar on the standard error if that is a terminal.

    In a pipe, a notebook or a log file nothing is printed. The bar is ``tqdm``'s; without that
    library there is none.

    Args:
      iterable: What to go through.
      description: A few words in front of the bar.
      total: Number of items, where ``len(iterable)`` does not say.

    Returns:
      An iterable of the same items in the same order.

    Example:
      >>> from jaxdp import report
      >>> sum(report.progress([1, 2, 3], "adding"))
      6
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return iterable
    # None: shown only where the standard error is a terminal; and gone when it is full.
    return tqdm(iterable, desc=description, total=total, disable=None, leave=False)
