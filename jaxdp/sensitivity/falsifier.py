r"""A search for neighbours that break a claimed sensitivity.

The sensitivity of a query f is a maximum over *all* neighbours,
:math:`\Delta = \max_{D \sim D'} \|f(D) - f(D')\|`. Around one data set only the local
sensitivity shows, a lower bound: noise scaled to it protects nobody else. So a claim is never
proved by trying, but one pair of neighbours further apart than the claim refutes it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp import _validate
from jaxdp.sensitivity.neighbours import Neighbours

_STARTS = 16  # the random pairs furthest apart, from which gradient ascent starts
_PACES = (0.1, 0.01, 0.001)  # of each start: to cross the cube, of side 1, or climb a narrow peak
_STRETCH = 1e3  # at most: nearly every entry of the point is then 0 or 1


class Falsification(NamedTuple):
    """The neighbours furthest apart that a search has found, and what that says of a claim."""

    found: bool
    """Whether the claim is broken: ``difference`` exceeds ``claimed + margin``, or is infinite."""
    dataset: Any
    """One data set of the pair."""
    neighbour: Any
    """The other one."""
    difference: float
    """How far apart the query's answers are, in the norm and unit of the claim."""
    claimed: float
    """The sensitivity that was claimed."""
    margin: float
    """What rounding in the query is allowed to add."""

    @property
    def ratio(self) -> float:
        """How many times the claim the difference is."""
        return self.difference / self.claimed


def _apart(a: Any, b: Any) -> Any:
    """a - b entry by entry; where only one of them is finite, they are infinitely apart."""
    xp = jnp if isinstance(a, jax.Array) else np
    same = (a == b) | (xp.isnan(a) & xp.isnan(b))
    apart = xp.where(same, 0.0, a) - xp.where(same, 0.0, b)
    return xp.where(xp.isnan(apart), xp.inf, apart)


def _difference(one: Any, other: Any) -> jax.Array:
    """f(D) - f(D') as one vector."""

    def flat(answer: Any) -> jax.Array:
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(answer)]
        return jnp.concatenate([leaf.astype(jnp.result_type(float)) for leaf in leaves])

    return _apart(flat(one), flat(other))


def _norm(vector: jax.Array, norm: str) -> jax.Array:
    size = jnp.abs(vector)
    if norm == "l1":
        return jnp.sum(size)
    # Scaled, so that squares do not overflow, and with a gradient (zero) also at zero.
    largest = jax.lax.stop_gradient(jnp.max(size))
    usable = (largest > 0.0) & (largest < jnp.inf)
    scale = jnp.where(usable, largest, 1.0)
    squares = jnp.sum(jnp.square(size / scale))
    length = scale * jnp.sqrt(jnp.where(usable, squares, 1.0))
    return jnp.where(usable, length, largest)


def _random_points(key: jax.Array, count: int, dimension: int) -> jax.Array:
    """Points all over the cube, the more of them on its faces and corners: extremes move most."""
    in_cube, stretching = jax.random.split(key)
    points = jax.random.uniform(in_cube, (count, dimension))
    stretch = jnp.exp(jax.random.uniform(stretching, (count, 1)) * math.log(_STRETCH))
    stretched = 0.5 + (points - 0.5) * jnp.broadcast_to(stretch, points.shape)
    return jnp.clip(stretched, 0.0, 1.0)


def _climb(
    apart: Callable[[jax.Array], jax.Array], num_steps: int, start: jax.Array, pace: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Projected gradient ascent from one point: the best point on the way, and its value."""
    optimizer = optax.chain(
        optax.scale_by_adam(),
        optax.scale_by_schedule(optax.cosine_decay_schedule(1.0, num_steps + 1)),
    )

    def step(carry, _):
        point, state, best, best_value = carry
        value, gradient = jax.value_and_grad(apart)(point)
        better = value > best_value
        best, best_value = jnp.where(better, point, best), jnp.where(better, value, best_value)
        usable = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
        move, state = optimizer.update(usable, state)
        return (jnp.clip(point + pace * move, 0.0, 1.0), state, best, best_value), None

    carry = (start, optimizer.init(start), start, jnp.full((), -jnp.inf, start.dtype))
    (_, _, best, best_value), _ = jax.lax.scan(step, carry, length=num_steps + 1)
    return best, best_value


def _search(fn, pair, dimension, norm, num_draws, num_steps, key):
    """The pair furthest apart and the query's answers to both."""

    def apart(point):
        return _norm(_difference(*map(fn, pair(point))), norm)

    points = _random_points(key, num_draws, dimension)
    _, best = jax.lax.top_k(jax.vmap(apart)(points), min(_STARTS, num_draws))
    starts = jnp.repeat(points[best], len(_PACES), axis=0)
    paces = jnp.tile(jnp.array(_PACES, starts.dtype), best.size)
    tops, values = jax.vmap(functools.partial(_climb, apart, num_steps))(starts, paces)
    dataset, neighbour = pair(tops[jnp.argmax(values)])
    return dataset, neighbour, fn(dataset), fn(neighbour)


def _check_answers(fn: Callable[[Any], Any], neighbours: Neighbours) -> None:
    point = jax.ShapeDtypeStruct((neighbours.dimension,), jnp.result_type(float))
    one, other = jax.eval_shape(lambda p: tuple(map(fn, neighbours.pair(p))), point)
    shapes = [jax.tree.map(lambda leaf: leaf.shape, answer) for answer in (one, other)]
    if shapes[0] != shapes[1]:
        _validate.refuse(
            "fn", f"{shapes[0]} and {shapes[1]}", "a query with answers of one shape to neighbours"
        )
    leaves = jax.tree.leaves(one)
    if not leaves or any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in leaves):
        _validate.refuse("fn", one, "a query whose answer is a pytree of real arrays")


def _spacing(answer: Any) -> float:
    """The spacing at 1 of the coarsest float type in an answer; whole numbers do not round."""
    floats = [leaf.dtype for leaf in jax.tree.leaves(answer) if leaf.dtype.kind not in "biu"]
    return max((float(jnp.finfo(dtype).eps) for dtype in floats), default=0.0)


def _as_vector(answer: Any) -> np.ndarray:
    leaves = [np.ravel(np.asarray(leaf)).astype(np.float64) for leaf in jax.tree.leaves(answer)]
    return np.concatenate(leaves)


def _length(vector: np.ndarray, norm: str) -> float:
    """The norm, rounded once."""
    entries = vector.tolist()
    return math.fsum(map(abs, entries)) if norm == "l1" else math.hypot(*entries)


def falsify(
    fn: Callable[[Any], Any],
    claimed: Any,
    neighbours: Neighbours,
    key: jax.Array,
    *,
    norm: str = "l2",
    num_draws: int = 1024,
    num_steps: int = 200,
) -> Falsification:
    r"""Searches for neighbouring data sets that break a claimed sensitivity.

    Draws random neighbours, then moves the 16 pairs furthest apart by gradient ascent on
    :math:`\|f(D) - f(D')\|` at three paces, inside the domain, all in one compiled program.

    Args:
      fn: The query f, a traceable function from a data set to a pytree of real arrays, whose
        shapes are the same for neighbours. It must be deterministic: without the noise.
      claimed: The sensitivity claimed, a number > 0 in the unit of the query.
      neighbours: The pairs to search, such as ``neighbours_in_box(...)``; the claim is tested
        for this domain, relation and number of records.
      key: Scalar typed PRNG key; the same key finds the same pair.
      norm: ``"l2"`` (the Gaussian mechanism's) or ``"l1"`` (the Laplace mechanism's), over all
        entries of the answer together.
      num_draws: Random pairs to look at, >= 1; all of them are in memory at once.
      num_steps: Steps of gradient ascent, >= 0. Ascent cannot help where the query is flat or
        jumps, as a count does: there only more draws do.

    Returns:
      The pair furthest apart, as ``Falsification``; ``found`` says whether it breaks the claim.

    Raises:
      ValueError: if an argument is out of range, or the answers to neighbours differ in shape.

    Guarantee:
      ``found`` refutes the claim: the difference of the two answers, taken in float64, exceeds
      it by more than ``margin`` = :math:`4 \sqrt N u (\text{claimed} + \|f(D)\| + \|f(D')\|)`,
      N being the number of entries of D and u the spacing of the answer's float type at 1.
      That covers the rounding of a sum over all entries (independent errors add up like
      :math:`\sqrt N`); a query that loses more digits than a sum may exceed a true claim by its
      own error, with a ``ratio`` close to 1. An answer that is not finite differs infinitely
      from any other. Nothing found is *no* proof of the claim: what was seen is a lower bound
      on the sensitivity.

    Example:
      The median moves little around most data sets, but as far as the range around some:

      >>> import jax, jax.numpy as jnp
      >>> from jaxdp import sensitivity
      >>> pairs = sensitivity.neighbours_in_box(5, 0.0, 1.0, neighboring_relation="replace_one")
      >>> broken = sensitivity.falsify(jnp.median, 0.2, pairs, jax.random.key(0))
      >>> broken.found, round(broken.difference, 3)
      (True, 1.0)
      >>> sensitivity.falsify(jnp.median, 1.0, pairs, jax.random.key(0)).found
      False

    References:
      Nissim, Raskhodnikova and Smith 2007, Smooth sensitivity and sampling in private data
      analysis, Section 1 (local and global sensitivity); Kingma and Ba 2015, arXiv:1412.6980.
    """
    _validate.function("fn", fn)
    if _validate.is_traced(claimed):
        _validate.refuse("claimed", claimed, "a number, not a traced value")
    bound = float(_validate.positive("claimed", claimed))
    if not isinstance(neighbours, Neighbours):
        _validate.refuse("neighbours", neighbours, "Neighbours, such as neighbours_in_box(...)")
    dimension = _validate.integer("neighbours.dimension", neighbours.dimension, minimum=1)
    _validate.key("key", key)
    _validate.choice("norm", norm, ("l1", "l2"))
    num_draws = _validate.integer("num_draws", num_draws, minimum=1)
    num_steps = _validate.integer("num_steps", num_steps, minimum=0)
    _check_answers(fn, neighbours)
    search = functools.partial(_search, fn, neighbours.pair, dimension, norm, num_draws, num_steps)
    dataset, neighbour, *answers = jax.jit(search)(key)
    one, other = (_as_vector(answer) for answer in answers)
    difference = _length(_apart(one, other), norm)
    entries = sum(leaf.size for leaf in jax.tree.leaves(dataset))
    sizes = [_length(answer[np.isfinite(answer)], norm) for answer in (one, other)]
    margin = 4.0 * math.sqrt(entries) * _spacing(answers[0]) * (bound + sum(sizes))
    return Falsification(
        found=difference > bound + margin or math.isinf(difference),
        dataset=dataset,
        neighbour=neighbour,
        difference=difference,
        claimed=bound,
        margin=margin,
    )
