"""A table that says how each parameter's clipped gradient is computed, and why."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _validate
from jaxdp.clipping import bookkeeping, frozen, per_example, strategy

_HEADINGS = ("parameter", "shape", "rule", "multiplications", "numbers kept", "reason")
_UNITS = (
    "Per example: multiplications for the norm and the share of the sum; numbers kept in memory "
    "from the one to the other."
)
_RULES = {
    "outer": "norm from the two factors of the gradient, which has one position",
    "gram": "norm from products between positions, without the gradient",
    "rows": "the gradient is kept as the rows that were looked up",
    "kept": "each example's gradient is made, and kept until the sum",
    "recomputed": "each example's gradient is made for its norm, in turn, and not kept",
    "instantiated": "each example's gradient is made by the backward pass, and kept until the sum",
    "unused": "no gradient",
}


class Row(NamedTuple):
    """One parameter.

    Args:
      parameter: Its path in the pytree.
      shape: Its shape.
      uses: At how many places a rule was found for it; 0 if instantiated.
      rule: "outer", "gram", "rows", "kept", "recomputed" (see ``jaxdp.clipping.pieces``),
        "instantiated" by the backward pass, or "unused".
      flops: Multiplications for one example's norm and its share of the sum.
      floats_held: Numbers kept in memory for one example from the norm to the sum.
      fallback: Whether a use of unknown form is why it is instantiated.
      reason: Why.
    """

    parameter: str
    shape: tuple[int, ...]
    uses: int
    rule: str
    flops: int
    floats_held: int
    fallback: bool
    reason: str


class Explanation(NamedTuple):
    """How a loss's parameters are computed; prints as a table with its units and words."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        lines = [_HEADINGS] + [
            (
                row.parameter,
                "x".join(map(str, row.shape)) or "scalar",
                row.rule,
                f"{row.flops:,}",
                f"{row.floats_held:,}",
                ("fallback: " if row.fallback else "") + row.reason,
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        used = {rule for row in self.rows for rule in row.rule.split("+")}
        words = [f"{rule}: {meaning}." for rule, meaning in _RULES.items() if rule in used]
        if any(row.fallback for row in self.rows):
            words.append("fallback: the loss uses the parameter in a way that has no rule.")
        return "\n".join([*table, "", _UNITS, *words])

    def __repr__(self) -> str:
        return str(self)


def explain(
    loss_fn: Callable[..., Any],
    params: Any,
    *example: Any,
    key: jax.Array | None = None,
    has_aux: bool = False,
    frozen_argnums: int | tuple[int, ...] = (),
    batch_size: int = 1,
) -> Explanation:
    """Says how ``clipped_grad`` computes each parameter's part for an L2 clip norm.

    Args:
      loss_fn: The loss, as for ``clipped_grad``.
      params: Pytree of parameters.
      *example: The loss's other arguments: one example, without a batch axis; and the
        frozen arguments.
      key: A key, if the loss takes one.
      has_aux: Whether the loss returns a pair.
      frozen_argnums: As for ``clipped_grad``.
      batch_size: Examples differentiated at once: much memory is held differently.

    Returns:
      A named tuple of rows, one for each parameter; its ``str`` is a table. Costs are those
      of one example, beyond the forward pass and the backward pass to activations.

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      None: nothing is computed. Shapes only are looked at, so the table shows no data.

    Example:
      >>> import jax.numpy as jnp, jaxdp
      >>> params = {"w": jnp.zeros((800, 400)), "b": jnp.zeros(400)}
      >>> loss_fn = lambda p, x: jnp.sum((x @ p["w"] + p["b"]) ** 2)
      >>> print(jaxdp.clipping.explain(loss_fn, params, jnp.zeros(800)))  # doctest: +ELLIPSIS
      parameter  shape    rule          multiplications  numbers kept  reason
      ['b']      400      instantiated  400              400           bias or scale: add
      ['w']      800x400  outer         321,200          1,200         one position
      <BLANKLINE>
      Per example: multiplications for the norm and the share of the sum; numbers kept ...
      outer: norm from the two factors of the gradient, which has one position.
      instantiated: each example's gradient is made by the backward pass, and kept until the sum.

    References:
      Bu et al. 2023, arXiv:2210.00038, section 3 (Gram against instantiated norms).
    """
    _validate.function("loss_fn", loss_fn)
    _validate.float_tree("params", params)
    _validate.integer("batch_size", batch_size, minimum=1)
    loss_of_example, rest = frozen.bind(loss_fn, frozen.places(frozen_argnums), example)
    loss_and_aux = per_example.scalar_loss(loss_of_example, has_aux, key)
    params = jax.tree.map(jnp.asarray, params)
    index = jax.ShapeDtypeStruct((), jnp.int32)
    traced = bookkeeping.trace(loss_and_aux, params, rest, index)
    shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
    plan = strategy.plan(traced.closed.jaxpr, len(shapes), 2, batch_size)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return Explanation(tuple(map(_row, paths, shapes, plan.leaves)))


def _row(path: str, shape: tuple[int, ...], chosen: strategy.LeafPlan) -> Row:
    size = math.prod(shape)
    path = path or "params"
    if chosen.rule != "sites":
        cost = size if chosen.rule == "instantiated" else 0
        return Row(path, shape, 0, chosen.rule, cost, cost, chosen.fallback, chosen.reason)
    rule = "+".join(sorted({way.way for way in chosen.ways}))
    uses = sum(len(way.group.sites) for way in chosen.ways)
    flops = sum(map(strategy.flops, chosen.ways))
    held = sum(map(strategy.held_entries, chosen.ways))
    return Row(path, shape, uses, rule, flops, held, False, chosen.reason)
