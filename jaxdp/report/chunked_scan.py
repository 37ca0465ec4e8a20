"""A long scan, compiled in pieces so that its progress can be shown."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _validate
from jaxdp.report.progress import progress


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    inputs: Any,
    *,
    description: str,
    num_chunks: int = 20,
) -> tuple[Any, Any]:
    """``jax.lax.scan`` with a progress bar on a terminal.

    The inputs are cut into chunks of equal length and a rest; each is one call of a compiled scan,
    and the bar moves between them. So a private training, or rounds of a federated simulation,
    stay a few compiled calls. Not for use inside ``jax.jit``: there is nobody to show a bar to.

    Args:
      step: ``(carry, input) -> (carry, output)``, as for ``jax.lax.scan``.
      carry: Pytree, what the first step gets.
      inputs: Pytree of arrays with one leading axis of the same length, such as the keys of all
        steps.
      description: A few words in front of the bar.
      num_chunks: How many times the bar moves at least, where there are as many steps.

    Returns:
      The last carry, and the outputs stacked along a leading axis: what ``jax.lax.scan`` returns.

    Raises:
      ValueError: if there are no inputs, their leading axes differ, or ``num_chunks`` is not a
        whole number >= 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp import report
      >>> def step(total, x):
      ...     return total + x, total
      >>> total, before = report.scan(step, jnp.int32(0), jnp.arange(5), description="adding")
      >>> int(total), before.tolist()
      (10, [0, 0, 1, 3, 6])
    """
    _validate.integer("num_chunks", num_chunks, minimum=1)
    length = _validate.leading_axis("inputs", inputs)
    if length == 0:
        _validate.refuse("inputs", "no steps", "arrays with a leading axis >= 1")
    size = max(length // num_chunks, 1)
    run = jax.jit(lambda carry, chunk: jax.lax.scan(step, carry, chunk))
    outputs = []
    for start in progress(range(0, length, size), description):
        chunk = jax.tree.map(lambda leaf, start=start: leaf[start : start + size], inputs)
        carry, output = run(carry, chunk)
        # Otherwise the bar would show what has been sent off, not what is done.
        outputs.append(jax.block_until_ready(output))
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
