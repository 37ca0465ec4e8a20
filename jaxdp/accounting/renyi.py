"""Renyi differential privacy of a run of events."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _precision, _validate
from jaxdp.accounting import composition, conversion
from jaxdp.accounting.events import Event

# Beyond this a finite sum costs more than the quadrature, which is as accurate.
_LARGEST_SUM = 256


def _rdp(steps: composition.Steps, t: Any, *, integers: tuple[int, ...] | None = None) -> Any:
    t = jnp.asarray(t)
    return composition.log_moment_of(steps, t, integers=integers) / t


def rdp(event: Event, orders: Any) -> Any:
    r"""Renyi differential privacy of a run at given orders.

    At order a, :math:`K(a) / (a - 1)` with :math:`K(a) = \log E_Q[(dP/dQ)^a]`, in closed form for
    the Gaussian and Laplace mechanisms. Under Poisson sampling: a finite sum of positive terms for
    the Gaussian at whole orders up to 256 that are known at trace time, quadrature otherwise.
    Log-moments add up under (adaptive) composition; a repeated step is a count times one value.

    Args:
      event: The run. Its numbers may be traced.
      orders: Real orders, finite and > 1, of any shape.

    Returns:
      Renyi DP, shaped like ``orders``: float64 on the host if nothing is traced, else in the
      program's float type. Jittable, vmappable and differentiable in the event's numbers.

    Raises:
      ValueError: if an order is not finite and above one.

    Guarantee:
      For neighbours that differ by adding or removing one example, both directions: for these
      noise laws, symmetric about 0, removing (mixture over base) dominates (Mironov, Talwar and
      Zhang 2019, Theorem 5). Values are right to 1e-10 relative in float64, and in float32
      at most 1.5e-5 too low and, where large exponents do not cancel, 4e-5 too high (for given
      float32 numbers; the conversion to epsilon rounds outward by that much),
      and never 0 by underflow.

    Example:
      >>> from jaxdp import accounting as acc
      >>> acc.rdp(acc.Gaussian(2.0), [2.0, 8.0])
      array([0.25, 1.  ])
      >>> f"{acc.rdp(acc.PoissonSampled(0.01, acc.Gaussian(1.0)), 1.5):.9e}"
      '1.272537433e-04'

    References:
      Mironov 2017, arXiv:1702.07476; Mironov, Talwar and Zhang 2019, arXiv:1908.10530.
    """
    steps = composition.steps_of(event)
    if _validate.is_traced(orders):
        t = conversion.excess_orders(jnp.ravel(orders), jnp.result_type(float))
        return _precision.evaluate(_rdp, steps, t).reshape(jnp.shape(orders))
    known = conversion.known_orders(orders)
    flat = known.ravel()
    summed = (flat == np.floor(flat)) & (flat <= _LARGEST_SUM)
    if steps.sampled_gaussian is None:
        summed[:] = False
    parts = []
    for chosen, whole in ((summed, True), (~summed, False)):
        if chosen.any():
            integers = tuple(int(a) for a in flat[chosen]) if whole else None
            parts.append(_precision.evaluate(_rdp, steps, flat[chosen] - 1.0, integers=integers))
    back = np.argsort(np.concatenate([np.flatnonzero(summed), np.flatnonzero(~summed)]))
    if any(isinstance(part, jax.Array) for part in parts):
        return jnp.concatenate(parts)[back].reshape(known.shape)
    values = np.concatenate(parts)[back].reshape(known.shape)
    return values if values.ndim else values.item()
