"""Poisson sampling: its law, its shapes, and what truncation costs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import sampling
from jaxdp.sampling import poisson


def draw(key, q, num_examples=100, max_batch_size=40):
    return sampling.poisson_batch(
        key,
        num_examples=num_examples,
        sampling_probability=q,
        max_batch_size=max_batch_size,
    )


@pytest.fixture(scope="module")
def many():
    """20,000 batches of 40 records at q = 0.3 with room for all, as 0/1 rows."""
    keys = jax.random.split(jax.random.key(11), 20_000)
    batches = jax.jit(jax.vmap(lambda key: draw(key, 0.3, 40, 40)))(keys)
    indices, is_padding = np.asarray(batches.indices), np.asarray(batches.is_padding)
    rows = np.zeros((len(keys), 40), bool)
    which, slot = np.nonzero(~is_padding)
    rows[which, indices[which, slot]] = True
    assert not np.asarray(batches.overflowed).any()
    return rows


def test_each_record_is_drawn_as_often_as_stated(many):
    # 40 binomial counts: five standard deviations, false alarms 40 x 6e-7 = 2e-5.
    deviations = (many.mean(axis=0) - 0.3) / math.sqrt(0.3 * 0.7 / len(many))
    assert np.abs(deviations).max() < 5


def test_records_are_drawn_independently_of_one_another(many):
    # Correlations of 780 pairs: sqrt(n) r is normal; six standard deviations, false alarms
    # 780 x 2e-9 = 2e-6.
    correlations = np.corrcoef(many.T)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() * math.sqrt(len(many)) < 6


def test_the_batch_size_is_binomial(many):
    sizes = np.clip(many.sum(axis=1), 4, 21)
    observed = np.bincount(sizes, minlength=22)[4:]
    expected = scipy.stats.binom.pmf(np.arange(4, 22), 40, 0.3)
    expected[0], expected[-1] = scipy.stats.binom.cdf(4, 40, 0.3), scipy.stats.binom.sf(20, 40, 0.3)
    # Every cell expects more than 50 draws; false alarm once in a million keys, which is fixed.
    assert scipy.stats.chisquare(observed, expected * len(many)).pvalue > 1e-6


def words_below(q, traced):
    """How the comparison treats the words around q 2^32, through the private seam."""
    edge = math.floor(q * 2**32)
    words = [
        word for word in (0, edge - 2, edge - 1, edge, edge + 1, 2**32 - 1) if 0 <= word < 2**32
    ]
    bits = jnp.asarray(np.array(words, np.uint32))
    compare = lambda p: poisson._is_included(bits, p)  # noqa: E731
    included = jax.jit(compare)(q) if traced else compare(q)
    return dict(zip(words, np.asarray(included).tolist(), strict=True)), edge


@pytest.mark.parametrize("traced", [False, True])
def test_no_record_is_drawn_with_more_than_the_stated_probability(traced):
    # float32 numbers, so that the traced q is the same number.
    for q in np.float32([1e-6, 2.0**-32, 3e-4, 0.01, 1 / 3, 0.5, 0.9999999]).tolist():
        words, edge = words_below(q, traced)
        # Exactly floor(q 2^32) of the 2^32 words are below: the probability is at most q and
        # within 2^-32 of it.
        assert {word: word < edge for word in words} == words


def test_the_uniform_of_jax_would_draw_more_often_than_stated():
    # Why raw words are compared: a float32 uniform is a multiple of 2^-23, and the number of
    # multiples below 1e-6 is 9, not 8.39.
    multiples = np.arange(20, dtype=np.float32) * np.float32(2.0**-23)
    assert (multiples < np.float32(1e-6)).sum() * 2.0**-23 > 1.07e-6


@pytest.mark.parametrize("traced", [False, True])
def test_probability_zero_draws_nothing_and_one_draws_everything(traced):
    one = (
        (lambda q: jax.jit(lambda p: draw(jax.random.key(0), p))(q))
        if traced
        else (lambda q: draw(jax.random.key(0), q))
    )
    empty, full = one(0.0), one(1.0)
    assert bool(empty.is_padding.all())
    assert not bool(empty.overflowed)
    np.testing.assert_array_equal(empty.indices, np.zeros(40, np.int32))
    np.testing.assert_array_equal(full.indices, np.arange(40))
    assert bool(full.overflowed)
    assert not bool(full.is_padding.any())


def test_a_traced_probability_that_is_none_draws_nothing():
    batch = jax.jit(lambda q: draw(jax.random.key(0), q))
    assert bool(batch(math.nan).is_padding.all())
    assert bool(batch(-0.5).is_padding.all())


def test_batches_are_ascending_with_padding_last():
    batches = jax.vmap(lambda key: draw(key, 0.2))(jax.random.split(jax.random.key(1), 200))
    for indices, is_padding in zip(*map(np.asarray, batches[:2]), strict=True):
        size = int((~is_padding).sum())
        assert (np.diff(indices[:size]) > 0).all()
        assert not is_padding[:size].any()
        assert (indices[size:] == 0).all()
    assert batches.indices.dtype == jnp.int32
    assert batches.is_padding.dtype == batches.overflowed.dtype == bool


def test_truncation_keeps_the_first_records_and_says_so():
    whole, cut = (draw(jax.random.key(4), 0.3, max_batch_size=size) for size in (100, 10))
    size = int((~whole.is_padding).sum())
    assert size > 10
    np.testing.assert_array_equal(cut.indices, whole.indices[:10])
    assert bool(cut.overflowed)
    # At exactly the capacity nothing is lost.
    assert not bool(draw(jax.random.key(4), 0.3, max_batch_size=size).overflowed)
    assert bool(draw(jax.random.key(4), 0.3, max_batch_size=size - 1).overflowed)


def test_a_batch_is_the_same_in_scan_under_jit_and_by_hand():
    def step(_, index):
        return None, draw(jax.random.fold_in(jax.random.key(2), index), 0.1)

    _, scanned = jax.lax.scan(step, None, jnp.arange(5))
    for index in range(5):
        by_hand = draw(jax.random.fold_in(jax.random.key(2), index), 0.1)
        jax.tree.map(lambda x, y, i=index: np.testing.assert_array_equal(x[i], y), scanned, by_hand)


def overflow(n, q, capacity, steps=1):
    return sampling.overflow_probability(
        num_examples=n, sampling_probability=q, max_batch_size=capacity, num_steps=steps
    )


def test_the_overflow_bound_holds_against_exact_binomial_tails():
    for n, q in [(10, 0.5), (100, 0.01), (1000, 0.3), (50_000, 0.005), (60_000, 1e-5)]:
        for capacity in np.unique(np.linspace(1, min(n - 1, 4 * n * q + 30), 40).astype(int)):
            exact = scipy.stats.binom.sf(capacity - 1, n, q)
            bound = overflow(n, q, int(capacity))
            # scipy's tail has a relative error below 1e-10.
            assert exact * (1 - 1e-10) <= bound <= 1.0
            # Chernoff is loose by a factor near sqrt(2 pi n q) log(k / n q), no more.
            if capacity > n * q + 1:
                assert bound <= exact * 50 * math.sqrt(n * q + 1)


def test_small_capacities_cost_more_than_delta_and_must_not_be_ignored():
    # sigma 0.8, q 0.005, 50,000 records, 1000 steps, delta 1e-5.
    costs = {c: overflow(50_000, 0.005, c, 1000) for c in (250, 300, 325, 400)}
    assert costs[250] == 1.0
    assert costs[300] > 1e-5
    assert costs[325] > 1e-5
    assert costs[400] < 1e-12
    # And truly so: the exact chance that some batch of the run is cut.
    for capacity in (250, 300, 325):
        assert 1000 * scipy.stats.binom.sf(capacity - 1, 50_000, 0.005) > 1e-5


def test_nothing_overflows_where_every_record_has_a_slot():
    assert overflow(100, 0.9, 100, 10**9) == 0.0
    assert overflow(100, 1.0, 100) == 0.0
    assert overflow(100, 1.0, 99) == 1.0
    assert overflow(100, 0.0, 1) == 0.0


def capacity(n, q, steps, overflow_delta):
    return sampling.poisson_capacity(
        num_examples=n, sampling_probability=q, num_steps=steps, overflow_delta=overflow_delta
    )


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 10**7),
    st.floats(0, 1),
    st.integers(1, 10**6),
    st.floats(-30, -1).map(lambda exponent: 10.0**exponent),
)
def test_the_capacity_is_the_smallest_that_is_enough(n, q, steps, overflow_delta):
    slots = capacity(n, q, steps, overflow_delta)
    assert 1 <= slots <= n
    assert overflow(n, q, slots, steps) <= overflow_delta
    assert slots == 1 or overflow(n, q, slots - 1, steps) > overflow_delta


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 10**6), st.floats(1e-6, 1), st.integers(1, 10**6))
def test_the_overflow_bound_falls_with_capacity_and_rises_with_steps(n, q, slots):
    slots = min(slots, n - 1)
    assert overflow(n, q, slots + 1, 10) <= overflow(n, q, slots, 10)
    assert overflow(n, q, slots, 10) <= overflow(n, q, slots, 11)


def test_truncation_adds_no_more_than_stated_to_the_exact_divergence():
    # One step releases the size of the batch, cut at the capacity: each record weighs as much
    # as it may. The law of the size is exact, and so are both divergences up to the grid.
    n, q, noise = 12, 0.3, scipy.stats.norm(scale=1.0)
    x = np.linspace(-10, 25, 20_001)

    def density(records, slots):
        sizes = np.arange(records + 1)
        weights = scipy.stats.binom.pmf(sizes, records, q)
        return (weights[:, None] * noise.pdf(x - np.minimum(sizes, slots)[:, None])).sum(axis=0)

    def divergence(p, r, epsilon):
        return np.maximum(p - math.exp(epsilon) * r, 0).sum() * (x[1] - x[0])

    for slots in (3, 5, 7):
        lost = overflow(n, q, slots)
        for epsilon in (0.1, 0.5, 1.0):
            # 12 records against 11, with the cut.
            with_it, without = density(n, slots), density(n - 1, slots)
            # Without the cut the common batch shifts both alike, so the pair of the one record
            # alone, which takes part with probability q, bounds it.
            alone, nothing = (1 - q) * noise.pdf(x) + q * noise.pdf(x - 1), noise.pdf(x)
            assert divergence(with_it, without, epsilon) <= (
                divergence(alone, nothing, epsilon) + lost + 1e-9
            )
            assert divergence(without, with_it, epsilon) <= (
                divergence(nothing, alone, epsilon) + lost + 1e-9
            )


GOOD = {"num_examples": 10, "sampling_probability": 0.5, "max_batch_size": 5}
RUN = {"num_examples": 10, "sampling_probability": 0.5, "num_steps": 5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_examples", 0),
        ("num_examples", 10.0),
        ("num_examples", True),
        ("num_examples", 2**31),
        ("sampling_probability", -0.1),
        ("sampling_probability", 1.5),
        ("sampling_probability", math.nan),
        ("sampling_probability", 2.0**-33),
        ("sampling_probability", "0.5"),
        ("sampling_probability", np.full(2, 0.5)),
        ("max_batch_size", 0),
        ("max_batch_size", 2.5),
        ("key", 0),
    ],
)
def test_a_bad_draw_is_refused_by_name(name, value):
    arguments = GOOD | {"key": jax.random.key(0), name: value}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        sampling.poisson_batch(arguments.pop("key"), **arguments)


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (function, name, value)
        for function, own in [
            ("overflow_probability", [("max_batch_size", 0), ("max_batch_size", 1.0)]),
            (
                "poisson_capacity",
                [("overflow_delta", value) for value in (0.0, 1.0, -1e-9, math.nan)],
            ),
        ]
        for name, value in [
            ("num_examples", 0),
            ("num_steps", 0),
            ("num_steps", 1.5),
            ("sampling_probability", 1.01),
            ("sampling_probability", math.nan),
            *own,
        ]
    ],
)
def test_a_bad_overflow_question_is_refused_by_name(function, name, value):
    last = {
        "overflow_probability": {"max_batch_size": 5},
        "poisson_capacity": {"overflow_delta": 0.1},
    }
    with pytest.raises(ValueError, match=f"^{name} must be"):
        getattr(sampling, function)(**(RUN | last[function] | {name: value}))
