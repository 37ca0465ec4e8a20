"""Neighbours in a box: every point of the cube gives a pair, inside the box, of the relation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import sensitivity

RELATIONS = ("add_or_remove_one", "replace_one", "replace_special")
LOW = {"label": 0, "x": np.array([-0.1, 0.3, 7.0]), "weight": 0.1}
HIGH = {"label": 2, "x": np.array([0.7, 0.3, 7.3]), "weight": 0.3}


def changed_rows(dataset, neighbour):
    return [i for i, (a, b) in enumerate(zip(dataset, neighbour, strict=True)) if (a != b).any()]


def is_neighbour(dataset, neighbour, relation):
    """By looking for the one row that explains the pair. Rows: float [n, d]."""
    if relation == "add_or_remove_one":
        return any(
            np.array_equal(np.delete(dataset, i, axis=0), neighbour) for i in range(len(dataset))
        )
    rows = changed_rows(dataset, neighbour)
    if relation == "replace_special" and any(neighbour[i].any() for i in rows):
        return False
    return len(rows) <= 1


def as_rows(dataset):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(dataset)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


@pytest.mark.parametrize("relation", RELATIONS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_point_gives_neighbours_of_the_relation_in_the_box(relation, data):
    pairs = sensitivity.neighbours_in_box(4, LOW, HIGH, neighboring_relation=relation)
    assert pairs.dimension == (4 + 1) * 5 + 1
    entry = st.sampled_from([0.0, 1.0, 0.5]) | st.floats(0.0, 1.0, width=32)
    size = pairs.dimension
    point = data.draw(st.lists(entry, min_size=size, max_size=size))
    dataset, neighbour = pairs.pair(jnp.array(point, jnp.float32))
    assert is_neighbour(as_rows(dataset), as_rows(neighbour), relation)
    for leaf, low, high in zip(*map(jax.tree.leaves, (dataset, LOW, HIGH)), strict=True):
        leaf = np.asarray(leaf)
        # The box in the records' own type: 0.1 in float32 is not 0.1.
        assert (leaf >= np.asarray(low, leaf.dtype)).all()
        assert (leaf <= np.asarray(high, leaf.dtype)).all()
    assert dataset["label"].dtype == jnp.int32


def test_the_ends_of_the_box_and_every_place_are_reached():
    pairs = sensitivity.neighbours_in_box(3, 0.1, 0.3)
    for place in range(3):
        point = jnp.array([0.0, 1.0, 0.5, 0.5, (place + 0.5) / 3.0])
        dataset, neighbour = pairs.pair(point)
        np.testing.assert_array_equal(dataset[:2], np.array([0.1, 0.3], np.float32))
        np.testing.assert_array_equal(neighbour, np.delete(dataset, place))


def test_whole_numbers_are_drawn_evenly():
    pairs = sensitivity.neighbours_in_box(1, -1, 1)
    points = (jnp.arange(300, dtype=jnp.float32) + 0.5) / 300.0
    drawn = [int(pairs.pair(jnp.array([u, 0.0, 0.0]))[0][0]) for u in points]
    assert [drawn.count(k) for k in (-1, 0, 1)] == [100, 100, 100]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0.0, 1.0), "num_records must be an integer >= 1"),
        ((2, 1.0, 0.0), "low must be in"),
        ((2, float("nan"), 0.0), "low must be in"),
        ((2, 0.0, float("inf")), "low must be in"),
        ((2, 0, 2**40), "low must be in"),
        ((2, -1e300, 1e300), "low must be in"),
        ((2, "a", "b"), "low must be a pytree of real numbers"),
        ((2, np.zeros(2), np.ones(3)), "high must be of a shape that fits low"),
        ((2, {"a": 0.0}, {"b": 1.0}), "high must be a pytree of numbers or arrays like low"),
        ((2, {}, {}), "high must be a pytree of numbers or arrays like low"),
    ],
)
def test_bad_boxes_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        sensitivity.neighbours_in_box(*arguments)


def test_an_unknown_relation_is_refused():
    with pytest.raises(ValueError, match="neighboring_relation must be one of"):
        sensitivity.neighbours_in_box(2, 0.0, 1.0, neighboring_relation="swap")
