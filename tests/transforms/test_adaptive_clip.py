"""Adaptive clipping: the quantile is found, the count is private and paid for."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import ClippedSum, noise, transforms
from jaxdp import accounting as acc

KEY = jax.random.key(7)
PARAMS = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)}
SUM = ClippedSum(jax.tree.map(jnp.ones_like, PARAMS), 1.0)
PER_LAYER = {"w": 1.0, "b": 0.5}


def link(initial=1.0, **more):
    arguments = {"count_noise_multiplier": 1.0, "expected_batch_size": 10, "key": KEY} | more
    return transforms.adaptive_clip_norm(initial, **arguments)


def with_norms(tx, norms):
    """The link as one without an extra argument: the examples' norms stay what they are."""

    def update(updates, state, params=None):
        within = transforms.count_within(norms, transforms.clip_norm(state), None)
        return tx.update(updates, state, params, within=within)

    return optax.GradientTransformation(tx.init, update)


def thresholds_of(tx, norms, steps):
    """The thresholds before each step and after the last, ``[steps + 1, ...]``."""
    tx = with_norms(tx, norms)

    def body(state, _):
        _, after = tx.update(SUM, state)
        return after, transforms.clip_norm(state)

    last, before = jax.jit(lambda: jax.lax.scan(body, tx.init(PARAMS), length=steps))()
    return jax.tree.map(
        lambda rows, end: np.append(rows, end[None]), before, transforms.clip_norm(last)
    )


@pytest.mark.parametrize("initial", [1.0, PER_LAYER], ids=["one threshold", "one a layer"])
def test_the_link_passes_the_contract(initial, check_contract):
    norms = jax.tree.map(lambda _: jnp.asarray([0.5, 2.0, 3.0]), initial)
    make_tx = lambda: with_norms(link(initial), norms)  # noqa: E731
    if initial is PER_LAYER:
        # A tree without leaves is no tree that these thresholds are a prefix of.
        with pytest.raises(ValueError, match="initial_clip_norm must be a number, or a pytree"):
            make_tx().init({})
        outputs, state = make_tx().update(SUM, make_tx().init(PARAMS))
        compiled, again = jax.jit(make_tx().update)(SUM, make_tx().init(PARAMS))
        jax.tree.map(np.testing.assert_array_equal, (outputs, state[1:]), (compiled, again[1:]))
    else:
        check_contract(make_tx, SUM, PARAMS)


def test_the_clipped_sum_passes_through_unchanged():
    tx = with_norms(link(), jnp.asarray([0.1]))
    output, _ = tx.update(SUM, tx.init(PARAMS))
    assert output is SUM


def test_without_noise_the_thresholds_are_those_of_the_formula():
    norms = np.asarray([0.1, 0.4, 0.9, 1.5, 6.0, np.nan, np.inf])
    got = thresholds_of(
        link(2.0, count_noise_multiplier=0.0, target_quantile=0.7, learning_rate=0.3),
        jnp.asarray(norms),
        steps=30,
    )
    threshold, expected = 2.0, [2.0]
    for _ in range(30):
        below = sum(1 for norm in norms if norm <= threshold)
        above = len(norms) - below
        fraction = (below - above) / 2 / 10 + 0.5
        threshold *= math.exp(-0.3 * (fraction - 0.7))
        expected.append(threshold)
    # Three float32 roundings a step, of which the steps' add up: 30 * 3 * 6e-8.
    np.testing.assert_allclose(got, expected, rtol=6e-6)


@pytest.mark.parametrize(("norm", "rises"), [(5.0, True), (0.2, False), (math.nan, True)])
def test_the_threshold_rises_when_all_are_clipped_and_falls_when_none_is(norm, rises):
    got = thresholds_of(link(count_noise_multiplier=0.1), jnp.full(10, norm), steps=1)
    # b~ is 0 or 1 against 0.5; the noise on it is 0.01: 50 of its deviations.
    assert (got[1] > got[0]) == rises


def test_the_threshold_converges_to_the_quantile_of_the_norms():
    # Log-uniform norms: the share within is linear in log C, of slope f = 1 / log(100), so
    # that log C is a first-order autoregression around the quantile.
    size, sigma_b, rate, quantile = 2000, 50.0, 0.2, 0.8
    norms = np.exp(np.linspace(0, math.log(100.0), size))
    got = thresholds_of(
        link(
            count_noise_multiplier=sigma_b,
            expected_batch_size=size,
            learning_rate=rate,
            target_quantile=quantile,
        ),
        jnp.asarray(norms, jnp.float32),
        steps=1200,
    )
    shrink = 1 - rate / math.log(100.0)
    settled = np.log(got[400:])
    # The start is forgotten: 3.7 * shrink^400 = 8e-8. The mean of n steps has the standard
    # error (rate sigma_b / E) / (1 - shrink) / sqrt(n), of which 5 fail once in 1.7 million
    # runs; the share is a staircase, whose steps are 1 / size wide.
    standard_error = rate * sigma_b / size / (1 - shrink) / math.sqrt(settled.size)
    tolerance = 5 * standard_error + math.log(100.0) / size
    assert abs(settled.mean() - quantile * math.log(100.0)) < tolerance
    assert tolerance < 0.03


@pytest.mark.parametrize("initial", [1.0, {"w": 1.0, "b": 1.0}], ids=["one", "per layer"])
def test_the_count_noise_has_the_stated_deviation_and_every_step_its_own(initial):
    m = len(jax.tree.leaves(initial))
    norms = jax.tree.map(lambda _: jnp.asarray([0.5, 2.0]), initial)
    steps, sigma_b = 20_000, 3.0
    # A learning rate of 1e-5 keeps C where it is but for 20,000 * 1e-5 * 0.3 * sqrt(2) / 140.
    tx = link(initial, learning_rate=1e-5, count_noise_multiplier=sigma_b, expected_batch_size=1e-3)
    got = jax.tree.leaves(thresholds_of(tx, norms, steps))
    draws = [np.diff(np.log(rows.astype(np.float64))) / -1e-5 * 1e-3 for rows in got]
    # Half are within, so the count is 0: the rest is (b~ - quantile) E, of deviation
    # sigma_b sqrt(m) and resolution 6e-8 / 1e-5 * 1e-3 = 6e-6. Of the std of the sample std,
    # 5 fail once in 1.7 million runs.
    for rows in draws:
        assert abs(rows.std() / (sigma_b * math.sqrt(m)) - 1) < 5 / math.sqrt(2 * steps) + 1e-4
        assert len(np.unique(rows)) > steps * 0.99
    if m == 2:
        # A correlation of independent draws has the deviation 1 / sqrt(n).
        assert abs(np.corrcoef(*draws)[0, 1]) < 5 / math.sqrt(steps)


def test_the_noise_is_scaled_to_the_threshold_that_was_applied():
    tx = optax.chain(link(0.5, learning_rate=3.0), jaxdp.add_gaussian_noise(2.0, key=KEY))
    state = tx.init(PARAMS)
    gradients = jax.tree.map(lambda leaf: jnp.full((10, *leaf.shape), 9.0), PARAMS)
    for step in range(3):
        norm = transforms.clip_norm(state)
        clip = jaxdp.clip_per_example(norm)
        clipped, _ = clip.update(gradients, clip.init(PARAMS))
        within = transforms.count_within(jnp.full(10, 36.0), norm, None)
        noisy, state = tx.update(clipped, state, within=within)
        unit = noise.gaussian(KEY, step, PARAMS)
        for leaf in PARAMS:
            added = np.asarray(noisy[leaf] - clipped.value[leaf], np.float64)
            scale = 2.0 * float(norm)
            # Rounding of the sum that the noise was added to, whose entries are below 10 C.
            np.testing.assert_allclose(added, scale * np.asarray(unit[leaf]), atol=1e-5 * scale)
        assert float(transforms.clip_norm(state)) > 1.5 * float(norm)


def test_the_count_shares_no_stream_with_noise_of_the_same_key():
    tx = with_norms(
        link(learning_rate=1.0, expected_batch_size=1, count_noise_multiplier=1.0),
        jnp.asarray([0.5, 2.0]),
    )
    _, state = tx.update(SUM, tx.init(PARAMS))
    drawn = -math.log(float(transforms.clip_norm(state)))
    for other in (noise.gaussian, noise.laplace):
        for step in range(3):
            for entry in np.asarray(other(KEY, step, jnp.zeros(4))):
                assert abs(drawn - entry) > 1e-5


def test_a_step_without_any_example_only_draws_noise():
    empty = transforms.count_within(jnp.zeros(0), 1.0, None)
    assert float(empty.value) == 0.0
    tx = link(count_noise_multiplier=0.0, target_quantile=0.5)
    _, state = tx.update(SUM, tx.init(PARAMS), within=empty)
    assert float(transforms.clip_norm(state)) == 1.0


@pytest.mark.parametrize(("norm", "end"), [(math.inf, 2.0**99), (0.0, 2.0**-99)])
def test_a_threshold_that_runs_away_stops_inside_the_range_that_clipping_takes(norm, end):
    tx = link(learning_rate=400.0, count_noise_multiplier=0.1)
    got = thresholds_of(tx, jnp.full(10, norm), steps=3)
    assert got[-1] == end
    jaxdp.clipped_grad(jnp.vdot, l2_clip_norm=float(got[-1]))


def test_a_traced_initial_threshold_out_of_range_shows():
    got = jax.jit(lambda norm: transforms.clip_norm(link(norm).init(PARAMS)))(1e33)
    assert np.isnan(got)


def loss_fn(params, x):
    return jnp.sum((x @ params["w"] + params["b"]) ** 2)


def private_chain(initial, optimizer, **budget):
    chain = optax.chain(
        link(initial, count_noise_multiplier=2.0),
        jaxdp.add_gaussian_noise(transforms.split_noise_multiplier(1.0, 2.0), key=KEY),
        jaxdp.scale_by_batch_size(10),
        optimizer,
    )
    return jaxdp.with_budget(chain, event=acc.Gaussian(1.0), delta=1e-5, **budget)


@pytest.mark.parametrize("initial", [1e-2, {"w": 1e-2, "b": 1e3}], ids=["one", "per layer"])
def test_dp_sgd_adapts_inside_a_jitted_scan_until_the_budget_is_gone(initial):
    target = 1.0000001 * acc.epsilon(acc.Gaussian(1.0) * 7, delta=1e-5)
    tx = private_chain(initial, optax.sgd(0.0), target_epsilon=target)
    examples = jax.random.normal(jax.random.key(1), (12, 3))
    is_padding = jnp.arange(12) >= 10
    params = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}

    def step(carry, _):
        params, state = carry
        norm = transforms.clip_norm(state)
        grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=norm, return_per_example=True)
        clipped, per_example = grad_fn(params, examples, is_padding=is_padding)
        within = transforms.count_within(per_example.norm, norm, is_padding)
        updates, after = tx.update(clipped, state, params, within=within)
        return (optax.apply_updates(params, updates), after), (norm, within.value)

    run = jax.jit(lambda: jax.lax.scan(step, (params, tx.init(params)), length=10))
    (_, state), (norms, counts) = run()
    inner = state.inner_state[0]
    assert int(state.step) == int(inner.step) == 7
    assert bool(state.exhausted)
    # The noise is rebuilt from the links of a chain of its own.
    gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(params, examples[:10])
    m, root = len(jax.tree.leaves(initial)), jaxdp._random.ADAPTIVE
    groups = gradients if m == 2 else {"all": gradients}
    named = (lambda tree: tree) if m == 2 else (lambda tree: {"all": tree})
    for index, name in enumerate(sorted(groups)):
        rows = np.concatenate(
            [np.asarray(leaf).reshape(10, -1) for leaf in jax.tree.leaves(groups[name])], axis=1
        )
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
        got, count = np.asarray(named(norms)[name]), np.asarray(named(counts)[name])
        threshold = float(named(initial)[name])
        for t in range(7):
            assert got[t] == pytest.approx(threshold, rel=1e-5)
            below = np.sum(lengths <= threshold)
            assert count[t] == below - 5.0
            key = jax.random.fold_in(jax.random.fold_in(KEY, root), t)
            z = float(jax.random.normal(jax.random.fold_in(key, index)))
            fraction = (below - 5.0 + 2.0 * math.sqrt(m) * z) / 10 + 0.5
            threshold *= math.exp(-0.2 * (fraction - 0.5))
        # From the seventh step on it is frozen, and nothing more is drawn.
        np.testing.assert_array_equal(got[7:], got[7])
        assert float(named(transforms.clip_norm(state))[name]) == got[7]


def test_numbers_of_the_link_may_be_swept_over():
    def run(quantile, rate, sigma_b, size, initial):
        tx = link(
            initial,
            target_quantile=quantile,
            learning_rate=rate,
            count_noise_multiplier=sigma_b,
            expected_batch_size=size,
        )
        within = transforms.count_within(jnp.asarray([0.5, 2.0, 3.0]), initial, None)
        return transforms.clip_norm(tx.update(SUM, tx.init(PARAMS), within=within)[1])

    # An axis of one number each.
    numbers = [
        jnp.asarray([a, b]) for a, b in ((0.5, 0.9), (0.2, 0.1), (1.0, 0.0), (10, 3), (1, 4))
    ]
    swept = jax.jit(jax.vmap(run))(*(jnp.asarray(rows, jnp.float32) for rows in numbers))
    for i in range(2):
        # One or two roundings more, where the program is another one.
        np.testing.assert_allclose(swept[i], run(*(float(rows[i]) for rows in numbers)), rtol=1e-6)


BAD = [
    ("initial_clip_norm", "0", lambda: link(0)),
    ("initial_clip_norm", r"1e\+31", lambda: link(1e31)),
    (r"initial_clip_norm\['w'\]", "nan", lambda: link({"w": math.nan, "b": 1.0})),
    ("target_quantile", "1.5", lambda: link(target_quantile=1.5)),
    ("learning_rate", "-1", lambda: link(learning_rate=-1)),
    ("count_noise_multiplier", "-1", lambda: link(count_noise_multiplier=-1)),
    ("count_noise_multiplier", "Array", lambda: link(count_noise_multiplier=jnp.bfloat16(1))),
    ("expected_batch_size", "0", lambda: link(expected_batch_size=0)),
    ("key", "0", lambda: link(key=0)),
]


@pytest.mark.parametrize(("name", "shown", "call"), BAD)
def test_a_bad_call_is_refused(name, shown, call):
    with pytest.raises(ValueError, match=f"^{name} must be .*, got .*{shown}"):
        call()


@pytest.mark.parametrize(
    ("within", "message"),
    [
        (None, "within must be the ClippedSum that count_within returns.*got a NoneType"),
        (3.0, "got a float: a bare number has no bounded sensitivity"),
        (SUM, "within must be of one count for each threshold"),
        (ClippedSum(jnp.zeros(2), 0.5), "within must be of one count"),
        (jax.tree.map(lambda x: x * 0.5, ClippedSum(jnp.zeros(()), 0.5)), "did arithmetic"),
    ],
)
def test_a_count_without_its_sensitivity_is_refused(within, message):
    tx = link()
    with pytest.raises(ValueError, match=message):
        tx.update(SUM, tx.init(PARAMS), within=within)


def test_a_count_whose_bound_was_tampered_with_shows():
    within = jax.tree.map(lambda x: x + x, transforms.count_within(jnp.zeros(2), 1.0, None))
    tx = link()
    _, state = tx.update(SUM, tx.init(PARAMS), within=within)
    assert np.isnan(transforms.clip_norm(state))


def test_a_gradient_that_is_no_clipped_sum_is_refused():
    tx = link()
    with pytest.raises(ValueError, match="adaptive_clip_norm expects the ClippedSum"):
        tx.update(PARAMS, tx.init(PARAMS), within=ClippedSum(jnp.zeros(()), 0.5))


@pytest.mark.parametrize("links", [0, 2])
def test_a_state_without_one_threshold_is_refused(links):
    state = optax.chain(*[link()] * links, optax.adam(0.1)).init(PARAMS)
    with pytest.raises(ValueError, match=f"exactly one AdaptiveClipState, got {links}"):
        transforms.clip_norm(state)
