"""The Gaussian noise of the next steps, drawn ahead in one block."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _control, _validate
from jaxdp.noise import iid


class NoiseBlock(NamedTuple):
    """The noise of the next steps, each row to be used once."""

    key: jax.Array  # scalar PRNG key of the run
    step: jax.Array  # int32 scalar, the step whose noise `take` gives next
    first_step: jax.Array  # int32 scalar, the step of row 0 of the block
    noise: Any  # pytree, leaves [num_steps, ...]: N(0, 1), one row a step


def _rows(key: jax.Array, first_step: jax.Array, like: Any, num_steps: int) -> Any:
    steps = first_step + jnp.arange(num_steps, dtype=jnp.int32)
    return jax.vmap(lambda step: iid.gaussian(key, step, like))(steps)


def precompute(key: jax.Array, like: Any, num_steps: int, *, first_step: Any = 0) -> NoiseBlock:
    r"""Draws the noise of the next ``num_steps`` steps in one block.

    Row :math:`t` of the block is ``noise.gaussian(key, first_step + t, like)``, bit for bit,
    so a run may switch between the two at any step.

    Args:
      key: Scalar typed PRNG key of the run. One key, one run.
      like: Pytree of floating-point arrays, whose shapes the noise takes.
      num_steps: Static integer >= 1: rows of the block. The block takes ``num_steps`` times
        the memory of ``like`` in float32.
      first_step: Integer scalar >= 0, may be traced: the step of the first row.

    Returns:
      A ``NoiseBlock``, to be read by ``take`` alone.

    Raises:
      ValueError: if ``num_steps`` is not an integer >= 1, or an argument of
        ``noise.gaussian`` is bad.

    Guarantee:
      Each row is handed out once: ``take`` returns the block that has moved on, and past
      the last row draws the next block. Reading an old block again repeats noise, and the
      difference of two releases with the same noise is exact: keep the newest block only.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxdp import noise
      >>> key = jax.random.key(0)
      >>> block = noise.precompute(key, jnp.zeros(3), num_steps=2)
      >>> for step in range(5):  # past the end of the block it refills
      ...     z, block = noise.take(block)
      ...     assert (z == noise.gaussian(key, step, jnp.zeros(3))).all()

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Section 3.5
      (independent noise is what composition theorems assume).
    """
    _validate.key("key", key)
    num_steps = _validate.integer("num_steps", num_steps, minimum=1)
    # Two buffers, since a state that holds one twice cannot be donated.
    step, start = (jnp.array(first_step, jnp.int32) for _ in range(2))
    return NoiseBlock(key, step, start, _rows(key, start, like, num_steps))


def take(block: NoiseBlock) -> tuple[Any, NoiseBlock]:
    """Takes the noise of the next step out of a block, refilling it past its end.

    Args:
      block: What ``precompute``, or the last ``take``, returned.

    Returns:
      The unit normal noise of step ``block.step``, shaped like the ``like`` that the block
      was made for, with the block that has moved on by one step.

    Guarantee:
      Successive calls hand out the noise of successive steps; no row is given twice.

    Example:
      See ``precompute``.
    """
    leaves = jax.tree.leaves(block.noise)
    if not leaves:
        return block.noise, block._replace(step=block.step + 1)
    num_steps = leaves[0].shape[0]
    like = jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), block.noise)
    first_step, rows = _control.cond(
        block.step - block.first_step >= num_steps,
        lambda: (block.step, _rows(block.key, block.step, like, num_steps)),
        lambda: (block.first_step, block.noise),
    )
    noise = jax.tree.map(lambda row: row[block.step - first_step], rows)
    return noise, NoiseBlock(block.key, block.step + 1, first_step, rows)
