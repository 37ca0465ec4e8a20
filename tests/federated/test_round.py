"""The round: what it adds up to, what it refuses, and when it stops."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import accounting as acc
from jaxdp import federated
from jaxdp._rounding import rounded_up
from jaxdp.federated import _streams
from tests.clipping.zoo import compiling

RNG = np.random.default_rng(2)
N = 24
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = RNG.normal(size=N).astype(np.float32)
ONE_EACH = federated.from_clients([(X[i : i + 1], Y[i : i + 1]) for i in range(N)])
RAGGED = federated.from_clients([(X[: 1 + i % 5] * (1 + i), Y[: 1 + i % 5]) for i in range(N)])
PARAMS = {"w": jnp.zeros(3), "b": jnp.zeros(())}
EVERYONE = federated.GroupCohorts(N, min_separation=1)
THIRDS = federated.GroupCohorts(N, min_separation=3)
POISSON = federated.PoissonCohorts(N, expected_cohort_size=8, max_cohort_size=N)
KEY = jax.random.key(5)


def loss_fn(params, example):
    x, y = example
    return 0.5 * (x @ params["w"] + params["b"] - y) ** 2


def local(optimizer=None, **settings):
    settings = {"num_epochs": 1, "batch_size": 4} | settings
    return federated.local_training(loss_fn, optimizer or optax.sgd(0.1), **settings)


def plan_of(cohorts=EVERYONE, **settings):
    settings = {"num_rounds": 4, "l2_clip_norm": 0.5, "noise_multiplier": 1.0} | settings
    return federated.make_plan(cohorts, **settings)


def compiled(fed):
    return jax.jit(lambda carry, f: fed.round(carry, fed.sample(f, carry)))


def compiled_fast(fed):
    """For what is compared by arithmetic alone: no guarantee rests on this machine code."""
    return compiling.compiled(lambda carry, f: fed.round(carry, fed.sample(f, carry)))


def run(fed, federation, num_rounds, step=None):
    """The carries and metrics after every round."""
    step = step or compiled(fed)
    carry, history = fed.init(PARAMS, KEY), []
    for _ in range(num_rounds):
        carry, metrics = step(carry, federation)
        history.append((carry, metrics))
    return history


def assert_close(actual, expected, atol):
    for name in PARAMS:
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=atol)


def test_one_example_a_client_and_one_step_of_sgd_is_dp_sgd():
    plan = plan_of(POISSON, noise_multiplier=0.7)
    fed = federated.make_round(local(optax.sgd(1.0), batch_size=1), optax.sgd(0.3), plan)
    grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=0.5)
    tx = jaxdp.dp_sgd(
        0.3,
        noise_multiplier=0.7,
        expected_batch_size=8,
        key=jax.random.fold_in(KEY, _streams.SERVER),
    )
    params, state = PARAMS, tx.init(PARAMS)
    for carry, _ in run(fed, ONE_EACH, 3, compiled_fast(fed)):
        draw = POISSON.draw(KEY, state[0].step)
        batch = (jnp.asarray(X)[draw.client_ids], jnp.asarray(Y)[draw.client_ids])
        clipped = grad_fn(params, batch, is_padding=draw.is_padding)
        updates, state = tx.update(clipped, state, params)
        params = optax.apply_updates(params, updates)
        # The delta (w - g) - w loses half an ulp of numbers below 2; 24 clients at most,
        # times 0.3 / 8, each round; norms of the two ways differ by 3e-5.
        assert_close(carry.params, params, 3 * 24 * 0.3 / 8 * (3e-5 + 2.0**-23))


def test_a_round_by_hand_with_noise_and_public_denominator():
    plan = plan_of(THIRDS, noise_multiplier=2.0)
    fed = federated.make_round(local(batch_size=8), optax.sgd(1.0), plan)
    (carry, metrics), *_ = run(fed, RAGGED, 1)
    deltas = []
    for client in range(0, N, 3):
        n = 1 + client % 5
        x, y = X[:n].astype(np.float64) * (1 + client), Y[:n].astype(np.float64)
        deltas.append(-0.1 * np.concatenate([x.T @ (-y) / n, [np.mean(-y)]]))
    norms = np.linalg.norm(deltas, axis=1)
    total = np.minimum(1, 0.5 / norms) @ np.array(deltas)
    noise = jaxdp.noise.gaussian(jax.random.fold_in(KEY, _streams.SERVER), 0, PARAMS)
    noise = np.concatenate([noise["w"], noise["b"][None]])
    moved = np.concatenate([carry.params["w"], carry.params["b"][None]])
    # Norms are rounded up by 3e-5 at most, for 8 clients of norm 0.5 at most.
    np.testing.assert_allclose(8 * moved, total - 2.0 * 0.5 * noise, rtol=0, atol=8 * 0.5 * 3e-5)
    assert 0 < np.mean(norms > 0.5) < 1
    np.testing.assert_allclose(metrics.clipped_fraction, np.mean(norms > 0.5))
    np.testing.assert_allclose(metrics.norm[:8], norms, rtol=4e-5)
    np.testing.assert_allclose(
        metrics.signal_to_noise, np.linalg.norm(total) / (2.0 * 0.5 * 4**0.5), rtol=1e-4
    )
    assert int(metrics.num_clients) == 8
    assert math.isinf(metrics.epsilon)  # the plan has no delta to account at


def test_an_empty_cohort_is_pure_noise_over_the_expected_size():
    cohorts = federated.PoissonCohorts(N, expected_cohort_size=1e-6, max_cohort_size=2)
    fed = federated.make_round(local(), optax.sgd(1.0), plan_of(cohorts))
    (carry, metrics), *_ = run(fed, RAGGED, 1, compiled_fast(fed))
    noise = jaxdp.noise.gaussian(jax.random.fold_in(KEY, _streams.SERVER), 0, PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(carry.params[name], -0.5 * noise[name] / 1e-6, rtol=1e-6)
    assert int(metrics.num_clients) == 0
    assert float(metrics.loss) == float(metrics.clipped_fraction) == 0.0


def test_an_adversarial_client_moves_the_released_mean_by_no_more_than_the_clip_norm():
    plan = plan_of(EVERYONE, noise_multiplier=0.0)
    fed = federated.make_round(local(), optax.sgd(1.0), plan)
    base = [(X[i : i + 2], Y[i : i + 2]) for i in range(N - 1)]
    nothing = (np.zeros((0, 3), np.float32), np.zeros(0, np.float32))
    models = []
    step = compiled(fed)
    for attack in (nothing, (X[:3] * 1e18, Y[:3]), (X[:3] * np.nan, Y[:3]), (-9 * X[:3], Y[:3])):
        # The same sampler: a client without data adds what an absent one does.
        (carry, _), *_ = run(fed, federated.from_clients([*base, attack]), 1, step)
        models.append(np.concatenate([carry.params["w"], carry.params["b"][None]]))
    for moved in models[1:]:
        # Rounding of 24 additions of numbers below 24 C.
        assert np.linalg.norm(moved - models[0]) * N <= 0.5 + 2 * 24 * 24 * 0.5 * 2.0**-24
    np.testing.assert_array_equal(models[2], models[0])


@pytest.fixture(scope="module")
def fed_avg():
    """The carry after one round of federated averaging."""
    fed = federated.make_round(local(), optax.sgd(1.0), plan_of())
    return run(fed, RAGGED, 1, compiled_fast(fed))[0][0]


@pytest.mark.parametrize(
    "server_optimizer",
    [
        optax.sgd(1.0, momentum=0.9),
        optax.yogi(0.1),
        optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(1.0)),
    ],
    ids=["FedAvgM", "FedYogi", "clipped"],
)
def test_any_optax_optimizer_serves_as_server(server_optimizer, fed_avg):
    fed = federated.make_round(local(), server_optimizer, plan_of())
    state = server_optimizer.init(PARAMS)
    gradient = jax.tree.map(jnp.negative, fed_avg.params)  # the params were zero
    updates, _ = server_optimizer.update(gradient, state, PARAMS)
    (carry, _), *_ = run(fed, RAGGED, 1, compiled_fast(fed))
    # Adam divides by the gradient's size: some ulps of steps below 1.
    assert_close(carry.params, updates, 1e-5)


@pytest.mark.parametrize("cohorts", [EVERYONE, THIRDS])
def test_the_budget_is_spent_to_the_last_round_and_then_nothing_moves(cohorts):
    plan = plan_of(cohorts, num_rounds=6, noise_multiplier=None, target_epsilon=4.0, delta=1e-4)
    fed = federated.make_round(local(), optax.adam(0.1), plan)
    history = run(fed, RAGGED, 8)
    assert [bool(metrics.exhausted) for _, metrics in history] == [False] * 5 + [True] * 3
    for carry, _ in history[6:]:
        assert_close(carry.params, history[5][0].params, 0.0)
    assert np.any(np.asarray(history[4][0].params["w"]) != np.asarray(history[5][0].params["w"]))
    epsilons = [float(metrics.epsilon) for _, metrics in history]
    assert np.all(np.diff(epsilons) >= 0)
    assert epsilons[-1] <= 4.0
    # A client of the first group has taken part once after the first round, whatever the period.
    one = acc.epsilon(acc.Gaussian(plan.noise_multiplier), 1e-4)
    # Reported by Renyi DP in float32: above the truth, by less than a third here.
    assert one <= epsilons[0] <= 1.34 * one
    participations = cohorts.participations(6)
    # Calibration stops within 1e-6 below the target; float32 rounding of the noise adds 1e-7.
    assert 4.0 * (1 - 3e-6) <= plan.epsilon <= 4.0
    assert plan.event == acc.Repeated(acc.Gaussian(plan.noise_multiplier), participations)


def test_a_fixed_size_run_stops_after_what_its_own_event_affords():
    cohorts = federated.FixedSizeCohorts(N, cohort_size=8)
    settings = {"noise_multiplier": 2.0, "target_epsilon": 4.0, "delta": 1e-4}
    plan = plan_of(cohorts, num_rounds=9, **settings)
    # Half the multiplier: replacing a client moves the sum by twice the clip norm.
    step = acc.SampledWithoutReplacement(N, 8, acc.Gaussian(1.0))
    affordable = acc.affordable_steps(step, target_epsilon=4.0, delta=1e-4)
    assert affordable == 3
    fed = federated.make_round(local(), optax.sgd(1.0), plan)
    history = run(fed, RAGGED, affordable + 1)
    exhausted = [bool(metrics.exhausted) for _, metrics in history]
    assert exhausted == [False] * (affordable - 1) + [True] * 2
    assert_close(history[-1][0].params, history[-2][0].params, 0.0)


def test_a_calibrated_poisson_plan_pays_for_its_slots_out_of_delta():
    cohorts = federated.PoissonCohorts(1000, expected_cohort_size=50)
    plan = plan_of(cohorts, num_rounds=7, noise_multiplier=None, target_epsilon=2.0, delta=1e-5)
    slots = plan.cohorts.max_cohort_size
    assert 50 < slots < 200
    lost = jaxdp.sampling.overflow_probability(
        num_examples=1000, sampling_probability=0.05, max_batch_size=slots, num_steps=7
    )
    assert 0.0 < lost <= plan.overflow_delta == pytest.approx(0.01 * 1e-5)
    step = acc.PoissonSampled(0.05, acc.Gaussian(plan.noise_multiplier))
    assert acc.epsilon(step * 7, 0.99e-5) == pytest.approx(plan.epsilon, rel=1e-12)
    # Calibration stops within 1e-6 below the target; float32 rounding of the noise adds 1e-7.
    assert 2.0 * (1 - 3e-6) <= plan.epsilon <= 2.0
    assert float(np.float32(plan.noise_multiplier)) == plan.noise_multiplier
    few = dataclasses.replace(cohorts, max_cohort_size=slots - 10)
    with pytest.raises(ValueError, match=f"max_cohort_size must be at least {slots}"):
        plan_of(
            few,
            num_rounds=7,
            noise_multiplier=plan.noise_multiplier,
            target_epsilon=2.0,
            delta=1e-5,
        )


def test_without_noise_a_budget_lets_nothing_through():
    plan = plan_of(EVERYONE, noise_multiplier=0.0, target_epsilon=4.0, delta=1e-4)
    fed = federated.make_round(local(), optax.sgd(1.0), plan)
    (carry, metrics), *_ = run(fed, RAGGED, 1)
    assert not np.any(carry.params["w"])
    assert bool(metrics.exhausted)
    assert math.isinf(plan.epsilon)


def test_epsilon_without_a_budget_grows_as_the_accountant_says():
    plan = plan_of(POISSON, num_rounds=3, noise_multiplier=0.9, delta=1e-4)
    fed = federated.make_round(local(), optax.sgd(1.0), plan)
    epsilons = [float(metrics.epsilon) for _, metrics in run(fed, RAGGED, 3)]
    for count, epsilon in enumerate(epsilons, 1):
        exact = acc.epsilon(POISSON.run_event(0.9, count), 1e-4, accountant="rdp")
        # A grid of orders 14 % apart, and float32's margin.
        assert exact <= epsilon <= 1.01 * exact
    assert math.isinf(plan_of(POISSON, noise_multiplier=0.9).epsilon)


def test_overflowing_slots_cost_delta_in_what_is_reported():
    tight = dataclasses.replace(POISSON, max_cohort_size=20)
    lost = tight.overflow_delta(1)
    assert 1e-8 < lost < 1e-4
    plan = plan_of(tight, num_rounds=2, noise_multiplier=3.0, delta=2.5 * lost)
    fed = federated.make_round(local(), optax.sgd(1.0), plan)
    epsilons = [float(metrics.epsilon) for _, metrics in run(fed, RAGGED, 3)]
    for count in (1, 2):
        left = (2.5 - count) * lost
        exact = acc.epsilon(tight.run_event(3.0, count), left, accountant="rdp")
        assert exact <= epsilons[count - 1] <= 1.02 * exact
    assert math.isinf(epsilons[2])
    assert plan.overflow_delta == tight.overflow_delta(2)


def test_adaptive_clipping_follows_the_quantile_at_the_price_of_the_plan():
    adaptive = federated.AdaptiveClip(
        0.01, count_noise_multiplier=3.0, target_quantile=0.5, learning_rate=0.7
    )
    plan = plan_of(l2_clip_norm=adaptive, noise_multiplier=1.0)
    fed = federated.make_round(local(), optax.sgd(0.0), plan)
    history = run(fed, RAGGED, 12, compiled_fast(fed))
    norms = np.asarray(history[0][1].norm)
    clip_norms = [float(metrics.clip_norm) for _, metrics in history]
    assert clip_norms[0] == np.float32(0.01)
    # The first threshold clips everyone, and the first update raises it.
    assert float(history[0][1].clipped_fraction) == 1.0
    assert clip_norms[1] > clip_norms[0]
    # The fraction within is off by 3 / 24 standard deviations: 4 of them around the median.
    low, high = np.quantile(norms, [0.0, 1.0])
    assert low < clip_norms[-1] < high
    # Noise follows the threshold that was applied, and the split multiplier.
    sums = history[0][1].signal_to_noise * clip_norms[0] * 2.0
    split = jaxdp.transforms.split_noise_multiplier(1.0, 3.0)
    assert split > 1.0
    sum_fn = federated.clipped_pseudo_grad(local(), l2_clip_norm=clip_norms[0])
    round_key = _streams.of_round(KEY, _streams.CLIENT, jnp.int32(0))
    total, _ = sum_fn(PARAMS, RAGGED.cohort(jnp.arange(N)), round_key)
    length = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(total.value)))
    np.testing.assert_allclose(sums * split, length, rtol=1e-4)


def test_adaptive_clipping_under_a_budget_stops_with_it():
    adaptive = federated.AdaptiveClip(0.1, count_noise_multiplier=30.0)
    plan = plan_of(
        EVERYONE,
        num_rounds=2,
        l2_clip_norm=adaptive,
        noise_multiplier=None,
        target_epsilon=4.0,
        delta=1e-4,
    )
    fed = federated.make_round(local(), optax.sgd(1.0), plan)
    history = run(fed, RAGGED, 4)
    clip_norms = [float(metrics.clip_norm) for _, metrics in history]
    assert clip_norms[0] != clip_norms[1] != clip_norms[2] == clip_norms[3]
    assert plan.event == acc.Repeated(acc.Gaussian(plan.noise_multiplier), 2)
    with pytest.raises(ValueError, match="noise_multiplier must be below twice"):
        plan_of(
            l2_clip_norm=federated.AdaptiveClip(0.1, count_noise_multiplier=0.2),
            target_epsilon=4.0,
            delta=1e-4,
        )


def test_metrics_can_hold_an_evaluation():
    fed = federated.make_round(
        local(),
        optax.sgd(1.0),
        plan_of(),
        evaluate=lambda params: {"norm": params["w"] @ params["w"]},
    )
    (carry, metrics), *_ = run(fed, RAGGED, 1, compiled_fast(fed))
    w = np.asarray(carry.params["w"])
    np.testing.assert_allclose(metrics.evaluation["norm"], w @ w, rtol=1e-6)


def test_the_sum_over_clients_can_be_split():
    def in_two(sum_fn):
        def split(params, cohort, key):
            left = jnp.arange(cohort.is_padding.shape[0]) < 9
            (one, few), (other, rest) = (
                sum_fn(params, dataclasses.replace(cohort, is_padding=cohort.is_padding | out), key)
                for out in (left, ~left)
            )
            value = jax.tree.map(jnp.add, one.value, other.value)
            return jaxdp.ClippedSum(value, 0.5), jax.tree.map(jnp.add, few, rest)

        return split

    def after(**settings):
        fed = federated.make_round(local(), optax.sgd(1.0), plan_of(), **settings)
        return run(fed, RAGGED, 1, compiled_fast(fed))

    (whole, whole_metrics), *_ = after()
    (split, metrics), *_ = after(wrap_sum=in_two)
    # 24 additions of numbers below 24 C, in another order, over 24.
    assert_close(split.params, whole.params, 24 * 0.5 * 2.0**-23)
    np.testing.assert_array_equal(metrics.norm, whole_metrics.norm)


def test_cohorts_that_the_plan_does_not_account_for_are_refused():
    fed = federated.make_round(local(), optax.sgd(1.0), plan_of(POISSON))
    carry = fed.init(PARAMS, KEY)
    by_hand = RAGGED.cohort(jnp.arange(4))
    other = federated.FixedSizeCohorts(N, cohort_size=8).sample(RAGGED, KEY, 0)
    denser = federated.PoissonCohorts(N, expected_cohort_size=9, max_cohort_size=N)
    for cohort in (by_hand, other, denser.sample(RAGGED, KEY, 0)):
        with pytest.raises(ValueError, match="cohort must be drawn by the plan's PoissonCohorts"):
            fed.round(carry, cohort)


def bits(tree):
    """All of a state, keys included."""
    leaves = [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return [np.asarray(leaf).tobytes() for leaf in leaves]


ENFORCED = {"noise_multiplier": 2.0, "target_epsilon": 4.0, "delta": 1e-4}


def made(cohorts, kind="client", **settings):
    if kind == "client":
        return federated.make_round(local(), optax.adam(0.1), plan_of(cohorts, **settings))
    plan = federated.LocalPlan(2.0, 0.5, cohorts, num_rounds=4, delta=1e-4)
    return federated.make_local_round(local(), optax.adam(0.1), plan)


@functools.cache
def made_and_compiled(cohorts, kind="client", enforced=False, **changed):
    """A round and its program, once for all tests that use the same."""
    fed = made(cohorts, kind, **(ENFORCED if enforced else {"delta": 1e-4}) | changed)
    return fed, compiled(fed)


@pytest.mark.parametrize(
    ("kind", "settings"), [("client", ENFORCED), ("client", {"delta": 1e-4}), ("local", {})]
)
def test_a_cohort_of_another_round_releases_nothing(kind, settings):
    fed = made(THIRDS, kind, **settings)
    start = fed.init(PARAMS, KEY)
    stale = fed.sample(RAGGED, start)
    step = jax.jit(fed.round)
    carry, first = step(start, stale)
    again, metrics = step(carry, stale)
    assert bits(again) == bits(carry)
    assert int(again.round) == 1
    assert bool(metrics.exhausted)
    assert float(metrics.epsilon) == float(first.epsilon)
    with pytest.raises(ValueError, match="cohort must be drawn for the carry's round 1, got 'one"):
        fed.round(carry, stale)
    # The run goes on with the right cohort as if nothing had been.
    after, metrics = step(again, fed.sample(RAGGED, again))
    assert int(after.round) == 2
    assert bits(after.params) != bits(carry.params)
    assert not bool(metrics.exhausted)


@pytest.mark.parametrize(
    ("cohorts", "other", "settings"),
    [
        # More participations than the cycle that was paid for.
        (THIRDS, federated.GroupCohorts(N, min_separation=4), {}),
        # Divergences under two neighbouring relations, which do not add up.
        (EVERYONE, federated.FixedSizeCohorts(N, cohort_size=8), {}),
        (THIRDS, THIRDS, {"noise_multiplier": 5.0}),
        (THIRDS, THIRDS, {"target_epsilon": 5.0}),
        (THIRDS, THIRDS, {"delta": 1e-5}),
    ],
)
def test_an_enforced_budget_is_for_the_plan_that_it_began_under(cohorts, other, settings):
    fed, step = made_and_compiled(cohorts, enforced=True)
    carry, _ = step(fed.init(PARAMS, KEY), RAGGED)
    _, others = made_and_compiled(other, enforced=True, **settings)
    refused, metrics = others(carry, RAGGED)
    assert bits(refused) == bits(carry)
    assert bool(metrics.exhausted)
    assert math.isinf(metrics.epsilon)


@pytest.mark.parametrize("kind", ["client", "local"])
def test_what_another_plan_has_spent_is_not_known_without_a_budget(kind):
    fed, step = made_and_compiled(THIRDS, kind)
    _, others = made_and_compiled(EVERYONE, kind)
    carry, own = step(fed.init(PARAMS, KEY), RAGGED)
    assert math.isfinite(own.epsilon)
    carry, metrics = others(carry, RAGGED)
    assert int(carry.round) == 2
    assert math.isinf(metrics.epsilon)
    # Nor is it once the first plan goes on.
    carry, metrics = step(carry, RAGGED)
    assert math.isinf(metrics.epsilon)


def test_a_plan_for_more_rounds_goes_on_with_the_account():
    fed, step = made_and_compiled(THIRDS, enforced=True)
    _, longer = made_and_compiled(THIRDS, enforced=True, num_rounds=9)
    carry, _ = step(fed.init(PARAMS, KEY), RAGGED)
    carry, metrics = longer(carry, RAGGED)
    assert int(carry.round) == 2
    assert math.isfinite(metrics.epsilon)


def test_turns_go_on_with_the_period_that_they_began_with():
    def turns(period):
        return federated.with_budget_in_turns(
            optax.identity(), event=acc.Gaussian(4.0), period=period, target_epsilon=3.0, delta=1e-4
        )

    update, state = turns(3).update(PARAMS, turns(3).init(PARAMS))
    assert bits(update) == bits(PARAMS)
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    for taken in (state, turns(3).init(PARAMS)):  # within a cycle, and before the first
        update, after = turns(4).update(ones, taken)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(update))
        assert bool(after.exhausted)
        assert int(after.round) == int(taken.round)
        assert bits(after.budget) == bits(taken.budget)


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        ("noise_multiplier must be given", {"noise_multiplier": None}),
        ("delta must be given together", {"target_epsilon": 1.0}),
        ("delta must be a number in", {"delta": 1.0}),
        ("num_rounds must be an integer >= 1", {"num_rounds": 0}),
        ("l2_clip_norm must be a finite number > 0", {"l2_clip_norm": -1.0}),
        ("noise_multiplier must be a finite number >= 0", {"noise_multiplier": -1.0}),
        ("target_epsilon must be a finite number > 0", {"target_epsilon": 0.0, "delta": 1e-5}),
        ("cohorts must be a sampler", {"cohorts": 10}),
    ],
)
def test_bad_plans_are_refused(match, changed):
    with pytest.raises(ValueError, match=match):
        plan_of(**changed)


def test_the_plan_prints_as_a_statement_about_clients():
    plan = plan_of(THIRDS, delta=1e-5)
    text = str(plan)
    for words in ("one client", "add_or_remove_one", "GroupCohorts", "1e-05", "4 rounds"):
        assert words in text
    assert f"({rounded_up(plan.epsilon)}, 1e-05)-differential privacy" in text
    assert "replace_one" in str(plan_of(federated.FixedSizeCohorts(N, cohort_size=8)))
    assert "Guarantee  none" in str(plan_of(noise_multiplier=0.0, delta=1e-5))
    assert "NOT SMALL" not in text
    assert "NOT SMALL" in str(plan_of(THIRDS, delta=1.0 / N))
