"""What any attack on a run can achieve: its errors and its advantage."""

from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.accounting import guarantee, trade_off
from jaxdp.accounting.events import Event


def _profile(event: Event):
    if _validate.is_traced(event):
        _validate.refuse("event", event, "an event of numbers, not of traced values")
    return guarantee.profile(event)


def type_ii_error(event: Event, type_i_error: Any) -> Any:
    r"""The trade-off curve: the least type II error of any attack at a type I error.

    An attack takes the output and decides between two neighbouring data sets.

    .. math:: f(\alpha) = \sup_{\epsilon \ge 0} \max\{0, 1 - \delta(\epsilon) - e^\epsilon \alpha,
        e^{-\epsilon} (1 - \delta(\epsilon) - \alpha)\}.

    Args:
      event: The run; no number may be traced.
      type_i_error: Probability in [0, 1] of taking the first for the second, a scalar or an array.

    Returns:
      The probability of taking the second for the first, at least; shaped like ``type_i_error``.

    Raises:
      ValueError: if a type I error is outside [0, 1], or a number in the event is traced.

    Guarantee:
      A lower bound, for the events' neighbours, by their exact or privacy-loss profile; rounded
      down.

    Example:
      >>> from jaxdp import accounting as acc
      >>> round(acc.type_ii_error(acc.Gaussian(1.0), 0.05), 4)  # Phi(Phi^-1(0.95) - 1)
      0.7405

    References:
      Wasserman and Zhou 2010, arXiv:0811.2501; Dong, Roth and Su 2022, arXiv:1905.02383.
    """
    for number in () if _validate.is_traced(type_i_error) else np.ravel(type_i_error).tolist():
        _validate.probability("type_i_error", number)
    return trade_off.type_ii_error(type_i_error, _profile(event))


def attack_advantage(event: Event) -> float:
    """The most that an attack's true positive rate can exceed its false positive rate.

    Args:
      event: The run; no number may be traced.

    Returns:
      The advantage in [0, 1]: delta at epsilon 0, the total variation of the two outputs.

    Raises:
      ValueError: if a number in the event is traced.

    Guarantee:
      An upper bound for the events' neighbours, rounded up.

    Example:
      >>> from jaxdp import accounting as acc
      >>> round(acc.attack_advantage(acc.Gaussian(1.0)), 4)
      0.3829

    References:
      Yeom, Giacomelli, Fredrikson and Jha 2018, arXiv:1709.01604.
    """
    return trade_off.attack_advantage(_profile(event))
