"""The budget: never overspent, spent to the last affordable step, then frozen."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import ClippedSum
from jaxdp import accounting as acc

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
CLIPPED = ClippedSum(jax.tree.map(jnp.zeros_like, PARAMS), 1.0)


def chain_with_budget(
    event, target_epsilon=2.0, delta=1e-5, noise_multiplier=1.0, accountant="auto"
):
    inner = optax.chain(
        jaxdp.add_gaussian_noise(noise_multiplier, key=jax.random.key(0)),
        jaxdp.scale_by_batch_size(10),
        optax.adam(0.1),
    )
    return jaxdp.with_budget(
        inner, event=event, target_epsilon=target_epsilon, delta=delta, accountant=accountant
    )


def run_in_scan(tx, length):
    def body(state, _):
        updates, state = tx.update(CLIPPED, state, PARAMS)
        moved = jnp.stack([jnp.any(leaf != 0.0) for leaf in jax.tree.leaves(updates)])
        return state, (moved, state.step, state.exhausted, jaxdp.privacy_spent(state))

    return jax.jit(lambda state: jax.lax.scan(body, state, length=length))(tx.init(PARAMS))


def test_with_budget_passes_the_contract(check_contract):
    event = acc.PoissonSampled(0.1, acc.Gaussian(1.0))
    # Optax's arithmetic may be contracted when compiled: a few units in the last place.
    check_contract(lambda: chain_with_budget(event), CLIPPED, PARAMS, rtol=2e-6)


def test_a_scheduled_budget_passes_the_contract(check_contract):
    def event(step):
        return acc.PoissonSampled(0.1, acc.Gaussian(1.0 + 0.1 * step))

    check_contract(
        lambda: chain_with_budget(event, noise_multiplier=lambda step: 1.0 + 0.1 * step),
        CLIPPED,
        PARAMS,
    )


def steps_by_renyi(event_at, target_epsilon, delta):
    """The last affordable step: float64 sums over a dense grid of orders, converted by hand."""
    orders = 1.0 + np.geomspace(1e-2, 1e3, 2000)
    spent, steps = np.zeros(2000), 0
    while True:
        spent = spent + acc.rdp(event_at(steps), orders)
        epsilons = spent + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        if epsilons.min() > target_epsilon:
            return steps
        steps += 1


def steps_by_pld(event_at, target_epsilon, delta):
    """The last affordable step: dp_accounting's privacy-loss distributions, pessimistic."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    spent, steps = None, 0
    while True:
        event = event_at(steps)
        one = pld.from_gaussian_mechanism(
            event.event.noise_multiplier,
            sampling_prob=event.sampling_probability,
            value_discretization_interval=1e-3,
        )
        spent = one if spent is None else spent.compose(one)
        if spent.get_epsilon_for_delta(delta) > target_epsilon:
            return steps
        steps += 1


def constant(step):
    return acc.PoissonSampled(0.2, acc.Gaussian(1.0))


def scheduled(step):
    return acc.PoissonSampled(0.2, acc.Gaussian(1.2 + 0.05 * step))


def falling(step):
    return acc.PoissonSampled(0.2, acc.Gaussian(1.5 - 0.04 * step))


@pytest.mark.parametrize(
    ("event_at", "accountant", "steps_by"),
    [
        (constant, "rdp", steps_by_renyi),
        (scheduled, "auto", steps_by_renyi),
        (constant, "auto", steps_by_pld),
        (constant, "exact", steps_by_pld),
        (falling, "exact", steps_by_pld),
    ],
)
def test_the_run_stops_after_exactly_the_last_affordable_step(event_at, accountant, steps_by):
    target_epsilon, delta = 4.0, 1e-5
    last = steps_by(event_at, target_epsilon, delta)
    assert 3 <= last <= 40
    event = event_at(0) if event_at is constant else event_at
    tx = chain_with_budget(event, target_epsilon, delta, accountant=accountant)
    _, (moved, steps, exhausted, spent) = run_in_scan(tx, last + 3)
    np.testing.assert_array_equal(moved.all(axis=1), [True] * last + [False] * 3)
    np.testing.assert_array_equal(moved.any(axis=1), [True] * last + [False] * 3)
    np.testing.assert_array_equal(steps, [*range(1, last + 1), last, last, last])
    np.testing.assert_array_equal(exhausted, [False] * (last - 1) + [True] * 4)
    assert np.all(np.diff(spent) >= 0.0)
    assert float(spent[-1]) <= target_epsilon


@pytest.mark.newest_only
def test_exact_lines_report_what_was_spent_tightly_and_from_above():
    # Measured excess 2e-5 at the end of the budget and 5e-4 on the way, where the lines suit less.
    length = 100
    for q, s, count in [(0.01, 1.0, 10), (0.1, 0.6, 3), (1.0, 20.0, 1)]:
        run = acc.PoissonSampled(q, acc.Gaussian(s)) * count
        delta = 1e-5
        target = acc.epsilon(run * length, delta)
        tx = jaxdp.with_budget(
            optax.identity(),
            event=lambda _, run=run: run,
            target_epsilon=target * 1.0001,
            delta=delta,
            accountant="exact",
        )

        def body(state, _, tx=tx):
            _, state = tx.update(jnp.zeros(()), state)
            return state, jaxdp.privacy_spent(state)

        state, spent = jax.jit(lambda s, body=body: jax.lax.scan(body, s, length=length + 2))(
            tx.init(jnp.zeros(()))
        )
        assert int(state.step) == length
        for steps in (10, 50, 100):
            lower, upper = acc.epsilon_bounds(run * steps, delta)
            assert lower <= spent[steps - 1] <= upper * (1 + 2e-3)


def test_exact_lines_fall_back_on_renyi_where_a_few_large_losses_decide():
    run = acc.PoissonSampled(1e-3, acc.Gaussian(0.7)) * 300
    tx = jaxdp.with_budget(
        optax.identity(), event=lambda _: run, target_epsilon=3.0, delta=1e-6, accountant="exact"
    )
    _, state = jax.jit(tx.update)(jnp.zeros(()), tx.init(jnp.zeros(())))
    spent = float(jaxdp.privacy_spent(state))
    assert acc.epsilon(run, 1e-6) <= spent <= acc.epsilon(run, 1e-6, accountant="rdp") * 1.03


@pytest.mark.parametrize("accountant", ["exact", "rdp"])
def test_numbers_out_of_range_and_steps_without_noise_are_never_affordable(accountant):
    def taken(q, s, count):
        tx = jaxdp.with_budget(
            optax.identity(),
            event=acc.PoissonSampled(q, acc.Gaussian(s)) * count,
            target_epsilon=1e3,
            delta=1e-5,
            accountant=accountant,
        )
        return tx.update(jnp.zeros(()), tx.init(jnp.zeros(())))[1].step

    taken = jax.jit(taken)
    assert int(taken(0.1, 1.0, 1.0)) == 1
    for bad in [(0.1, 0.0, 1.0), (0.1, 1.0, -1.0), (0.1, -1.0, 1.0), (0.1, math.nan, 1.0)]:
        assert int(taken(*bad)) == 0
    for bad in [(-0.1, 1.0, 1.0), (1.5, 1.0, 1.0), (math.nan, 1.0, 1.0), (0.1, 1.0, math.nan)]:
        assert int(taken(*bad)) == 0


@pytest.mark.newest_only
@pytest.mark.parametrize(
    "event",
    [
        acc.Laplace(20.0),
        acc.DiscreteGaussian(20.0),
        acc.RandomizedResponse(0.9, 4),
        acc.TruncatedPoissonSampled(
            0.01, acc.Gaussian(2.0), num_examples=10_000, max_batch_size=200
        ),
        acc.SampledWithoutReplacement(1000, 10, acc.Gaussian(3.0)),
        acc.Schedule([0.01, 0.02], [1.0, 2.0]),
        acc.PoissonSampled(0.1, acc.Laplace(5.0)) + acc.Gaussian(20.0) * 2,
    ],
)
def test_every_kind_of_event_is_accounted_fixed_or_varying(event):
    fixed = jaxdp.with_budget(
        optax.identity(), event=event, target_epsilon=1.0, delta=1e-5, accountant="rdp"
    )
    varying = jaxdp.with_budget(
        optax.identity(), event=lambda _: event, target_epsilon=1.0, delta=1e-5
    )
    host = acc.epsilon(event * 2, 1e-5, accountant="rdp")
    for tx in (fixed, varying):
        state = tx.init(jnp.zeros(()))
        for _ in range(2):
            _, state = tx.update(jnp.zeros(()), state)
        assert int(state.step) == 2
        # Away from the end of the budget orders are up to 5 % apart.
        assert host * (1 - 1e-6) <= float(jaxdp.privacy_spent(state)) <= host * 1.05
    with pytest.raises(ValueError, match=r"^accountant must be"):
        jaxdp.with_budget(
            optax.identity(),
            event=lambda _: acc.Laplace(2.0),
            target_epsilon=1.0,
            delta=1e-5,
            accountant="exact",
        ).init(jnp.zeros(()))


def test_a_state_with_steps_of_another_event_goes_on_by_renyi():
    target = 2.0
    cheap, costly = acc.Gaussian(30.0), acc.Gaussian(4.0)
    most = acc.affordable_steps(costly, target_epsilon=target, delta=1e-5)
    state = chain_with_budget(costly, target).init(PARAMS)
    for event, steps in ((costly, 1), (cheap, 1), (costly, most)):
        update = jax.jit(chain_with_budget(event, target).update)
        for _ in range(steps):
            _, state = update(CLIPPED, state, PARAMS)
    taken = costly * (int(state.step) - 1) + cheap
    assert bool(state.exhausted)
    assert acc.epsilon(taken, 1e-5, accountant="rdp") <= target
    assert int(state.step) - 1 < most


ADDING = acc.PoissonSampled(0.2, acc.Gaussian(4.0))
REPLACING = acc.SampledWithoutReplacement(1000, 200, acc.Gaussian(4.0))


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        (ADDING, REPLACING, False),
        (REPLACING, ADDING, False),
        # A Gaussian's sensitivity is that of adding or removing: replacing moves it by twice that.
        (acc.Gaussian(4.0), REPLACING, False),
        (acc.Gaussian(4.0), ADDING, True),
        (ADDING, ADDING * 2, True),
    ],
)
def test_steps_under_different_neighbouring_relations_are_not_added_up(before, after, goes_on):
    first, second = chain_with_budget(before, 4.0), chain_with_budget(lambda _: after, 4.0)
    _, state = first.update(CLIPPED, first.init(PARAMS), PARAMS)
    # A state whose event has varied before.
    for taken in (state, state._replace(event=jnp.zeros(2, jnp.uint32))):
        updates, then = jax.jit(second.update)(CLIPPED, taken, PARAMS)
        assert np.any(updates["w"]) == goes_on
        assert int(then.step) == 1 + goes_on
        assert bool(then.exhausted) != goes_on
        np.testing.assert_array_equal(then.relation, taken.relation)


def test_an_event_of_two_neighbouring_relations_is_refused():
    with pytest.raises(ValueError, match="event must be an event of one neighbouring relation"):
        chain_with_budget(ADDING + REPLACING, accountant="rdp")
    with pytest.raises(ValueError, match="event must be an event of one neighbouring relation"):
        chain_with_budget(lambda _: ADDING + REPLACING).init(PARAMS)


@pytest.mark.parametrize("event_at", [constant, scheduled])
def test_a_python_loop_jit_and_scan_take_the_same_steps(event_at):
    event = event_at(0) if event_at is constant else event_at
    tx = chain_with_budget(event, target_epsilon=3.0)
    scanned, (_, steps, _, _) = run_in_scan(tx, 15)
    update = jax.jit(tx.update)
    plain, jitted = tx.init(PARAMS), tx.init(PARAMS)
    for _ in range(15):
        _, plain = tx.update(CLIPPED, plain, PARAMS)
        _, jitted = update(CLIPPED, jitted, PARAMS)
    assert int(plain.step) == int(jitted.step) == int(scanned.step) == int(steps[-1]) < 15
    assert bool(plain.exhausted)
    assert bool(jitted.exhausted)
    assert bool(scanned.exhausted)


def test_an_exhausted_budget_freezes_everything_inside():
    tx = chain_with_budget(constant(0), target_epsilon=3.0)
    state, _ = run_in_scan(tx, 30)
    assert bool(state.exhausted)
    updates, after = jax.jit(tx.update)(CLIPPED, state, PARAMS)
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_array_equal(np.asarray(leaf), np.zeros(leaf.shape))

    def as_data(leaf):
        return (
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )

    jax.tree.map(
        lambda old, new: np.testing.assert_array_equal(as_data(old), as_data(new)), state, after
    )


def test_a_budget_too_small_for_one_step_takes_none():
    tx = chain_with_budget(acc.Gaussian(0.5), target_epsilon=0.1)
    state = tx.init(PARAMS)
    assert bool(state.exhausted)
    updates, state = tx.update(CLIPPED, state, PARAMS)
    assert int(state.step) == 0
    assert all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(updates))
    assert float(jaxdp.privacy_spent(state)) == 0.0


def test_no_noise_is_never_affordable():
    tx = chain_with_budget(acc.PoissonSampled(0.1, acc.Gaussian(0.0)), target_epsilon=1e6)
    assert bool(tx.init(PARAMS).exhausted)
    scheduled_tx = chain_with_budget(
        lambda step: acc.PoissonSampled(0.1, acc.Gaussian(0.0 * step)), target_epsilon=1e6
    )
    assert bool(scheduled_tx.init(PARAMS).exhausted)


def test_a_plan_calibrated_to_the_budget_gets_all_its_steps():
    for num_steps, sampling_probability in ((1, 1.0), (60, 1.0), (1000, 0.01), (313, 0.1)):
        noise_multiplier = acc.calibrate(
            lambda s, q=sampling_probability, n=num_steps: (
                acc.PoissonSampled(q, acc.Gaussian(s)) * n
            ),
            target_epsilon=2.0,
            delta=1e-5,
        )
        tx = chain_with_budget(
            acc.PoissonSampled(sampling_probability, acc.Gaussian(noise_multiplier))
        )
        state = tx.init(PARAMS)
        at_the_end = state._replace(step=jnp.asarray(num_steps - 1, jnp.int32))
        _, after = tx.update(CLIPPED, at_the_end, PARAMS)
        assert int(after.step) == num_steps
        assert bool(after.exhausted)


def renyi_by_trapezoid(orders, probability, noise_multiplier):
    """Renyi DP of the sampled Gaussian from its definition, on a dense grid; NumPy only."""
    x = np.linspace(-15 * noise_multiplier, orders.max() + 15 * noise_multiplier, 6001)
    loss = np.logaddexp(
        np.log1p(-probability) if probability < 1 else -np.inf,
        np.log(probability) + (2 * x - 1) / (2 * noise_multiplier**2),
    )
    density = -(x**2) / (2 * noise_multiplier**2) - np.log(noise_multiplier * np.sqrt(2 * np.pi))
    log_terms = orders[:, None] * loss + density + np.log(x[1] - x[0])
    return np.logaddexp.reduce(log_terms, axis=1) / (orders - 1)


@pytest.mark.newest_only
def test_random_budgets_are_never_exceeded_by_an_independent_account():
    # 100 random configurations, half of them with scheduled noise, in one compiled program
    # with the numbers traced. Both bounds convert Renyi DP, so the independent one can exceed
    # the target only by its coarser grid: 60 orders with ratio 1.065, (ln 1.065)^2 / 8 = 5e-4.
    rng = np.random.default_rng(0)
    length = 25

    def steps_taken(target_epsilon):
        def run(start, slope, probability):
            def event(step):
                return acc.PoissonSampled(probability, acc.Gaussian(start + slope * step))

            tx = chain_with_budget(event, target_epsilon)

            def body(state, _):
                return tx.update(CLIPPED, state, PARAMS)[1], None

            return jax.lax.scan(body, tx.init(PARAMS), length=length)[0].step

        return jax.jit(run)

    bound = 0
    for target_epsilon in (0.5, 4.0):
        run = steps_taken(target_epsilon)
        orders = 1.0 + np.log(1e5) / target_epsilon * np.geomspace(0.3, 12.0, 60)
        for trial in range(50):
            probability = float(np.float32(np.exp(rng.uniform(np.log(0.02), 0.0))))
            start = float(np.float32(np.exp(rng.uniform(np.log(0.7), np.log(3.0)))))
            slope = float(np.float32(rng.uniform(-0.02, 0.1))) if trial % 2 else 0.0
            taken = int(run(start, slope, probability))
            spent = sum(
                (renyi_by_trapezoid(orders, probability, start + slope * t) for t in range(taken)),
                np.zeros(60),
            )
            epsilons = spent + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)
            assert taken == 0 or epsilons.min() <= target_epsilon * (1 + 6e-4)
            bound += taken < length
    assert bound > 30  # the budget did bind


def test_events_may_be_traced_and_mapped():
    def steps(noise_multiplier):
        tx = chain_with_budget(acc.PoissonSampled(0.2, acc.Gaussian(noise_multiplier)), 4.0)

        def body(state, _):
            return tx.update(CLIPPED, state, PARAMS)[1], None

        return jax.lax.scan(body, tx.init(PARAMS), length=40)[0].step

    multipliers = jnp.asarray([0.8, 1.0, 1.3])
    # Under vmap a branch on a key becomes a selection, which the checker takes for a reuse.
    with jax.debug_key_reuse(False):
        mapped = jax.jit(jax.vmap(steps))(multipliers)
    host = [
        acc.affordable_steps(
            acc.PoissonSampled(0.2, acc.Gaussian(float(m))),
            target_epsilon=4.0,
            delta=1e-5,
            accountant="rdp",
        )
        for m in multipliers
    ]
    np.testing.assert_array_equal(np.asarray(mapped), np.minimum(host, 40))


def test_a_multiplier_lowered_between_steps_is_accounted_as_it_is():
    def take(state, noise_multiplier):
        tx = chain_with_budget(
            acc.Gaussian(noise_multiplier), 5.0, noise_multiplier=noise_multiplier
        )
        return tx.update(CLIPPED, state, PARAMS)[1]

    state = chain_with_budget(acc.Gaussian(4.0), 5.0).init(PARAMS)
    state = jax.jit(take)(state, 4.0)
    state = jax.jit(take)(state, 2.0)
    truth = acc.epsilon(acc.Composed([acc.Gaussian(4.0), acc.Gaussian(2.0)]), delta=1e-5)
    assert int(state.step) == 2
    assert float(jaxdp.privacy_spent(state)) >= truth
    # 1 / 0.1^2 = 100 of mu^2 costs far more than the budget: refused.
    state = jax.jit(take)(state, 0.1)
    assert int(state.step) == 2
    assert bool(state.exhausted)


def test_privacy_spent_is_an_upper_bound_close_to_the_host_accountant():
    event = acc.PoissonSampled(0.01, acc.Gaussian(1.1))
    tx = chain_with_budget(event, target_epsilon=8.0)
    for steps in (1, 100, 1000, 4000):
        state = tx.init(PARAMS)
        one_step = np.asarray(acc.rdp(event, np.asarray(state.orders, np.float64)))
        state = state._replace(
            step=jnp.int32(steps), spent=state.spent._replace(rdp=steps * one_step)
        )
        for delta in (1e-5, 1e-8):
            spent = float(jax.jit(lambda s, d=delta: jaxdp.privacy_spent(s, delta=d))(state))
            host = acc.epsilon(event * steps, delta=delta, accountant="rdp")
            # The best order is missed by half a grid step, 2.5 %, and epsilon is about 1 / t.
            assert host * (1 - 1e-6) <= spent <= host * 1.03


def test_a_million_small_steps_are_not_lost_in_float32():
    state = chain_with_budget(lambda step: acc.Gaussian(1e3 + 0 * step), 8.0).init(PARAMS)
    from jaxdp.transforms.budget import _add_compensated

    def body(carry, _):
        return _add_compensated(*carry, jnp.float32(1e-6)), None

    (total, residue), _ = jax.jit(
        lambda: jax.lax.scan(body, (jnp.float32(64.0), jnp.float32(0.0)), length=1_000_000)
    )()
    assert state.spent.rdp.dtype == jnp.float32
    # A plain float32 sum stays at 64; the pair is good to a unit in the last place.
    assert abs(float(total) + float(residue) - 65.0) < 65.0 * 2**-22


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_epsilon", 0.0),
        ("target_epsilon", -1.0),
        ("target_epsilon", math.nan),
        ("target_epsilon", math.inf),
        ("target_epsilon", "3"),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", 1.5),
        ("delta", math.nan),
        ("event", 1.0),
        ("event", None),
        ("accountant", "pld"),
        ("accountant", None),
    ],
)
def test_bad_budgets_are_refused(name, value):
    arguments = {"event": acc.Gaussian(1.0), "target_epsilon": 1.0, "delta": 1e-5, name: value}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        jaxdp.with_budget(optax.sgd(0.1), **arguments)


def test_a_traced_target_is_refused():
    with pytest.raises(ValueError, match="target_epsilon must be a number that is known"):
        jax.jit(lambda e: chain_with_budget(acc.Gaussian(1.0), e).init(PARAMS))(1.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_privacy_spent_refuses_a_bad_delta(delta):
    state = chain_with_budget(acc.Gaussian(1.0)).init(PARAMS)
    with pytest.raises(ValueError, match="delta must be"):
        jaxdp.privacy_spent(state, delta=delta)


def test_privacy_spent_needs_one_budget():
    with pytest.raises(ValueError, match="exactly one BudgetState, got 0"):
        jaxdp.privacy_spent(optax.adam(0.1).init(PARAMS))
    state = chain_with_budget(acc.Gaussian(1.0)).init(PARAMS)
    with pytest.raises(ValueError, match="exactly one BudgetState, got 2"):
        jaxdp.privacy_spent((state, state))
