"""Plans and events as JSON: what is read back is what was written, and nothing else is read."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdp
from jaxdp import accounting as acc
from jaxdp import federated
from jaxdp.federated.mime import MimeSum
from jaxdp.serialization import dumps, loads

multipliers = st.one_of(
    st.floats(0.0, 1e308, allow_subnormal=True),
    st.integers(0, 2**70),
    st.floats(0.0, 2.0**100, width=32).map(np.float32),
    st.floats(0.0, 1e9).map(np.float64),
)
probabilities = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0, 1]))
counts = st.one_of(st.integers(0, 2**63), st.integers(0, 2**50).map(float))
gaussians = st.recursive(
    st.builds(acc.Gaussian, multipliers),
    lambda inner: st.one_of(
        st.builds(acc.Repeated, inner, counts),
        st.lists(inner, max_size=3).map(acc.Composed),
    ),
    max_leaves=4,
)


def columns(size, kind):
    """A column of a schedule in every form that it may have."""
    dtype = st.sampled_from([np.float16, np.float32, np.float64])
    numbers = st.lists(st.floats(0.0, 1.0, width=16), min_size=size, max_size=size)
    if kind == "counts":
        dtype = st.sampled_from([np.int32, np.int64, np.uint8, np.float32])
        numbers = st.lists(st.integers(0, 200), min_size=size, max_size=size)
    return st.one_of(
        st.builds(np.array, numbers, dtype),
        numbers,
        numbers.map(tuple),
        numbers.map(lambda numbers: numbers[0]),
    )


schedules = st.integers(1, 4).flatmap(
    lambda n: st.builds(
        acc.Schedule, columns(n, "probabilities"), columns(n, "multipliers"), columns(n, "counts")
    )
)
releases = st.one_of(
    gaussians,
    st.builds(acc.Laplace, multipliers),
    st.builds(acc.DiscreteGaussian, multipliers, st.integers(0, 9)),
    st.builds(acc.RandomizedResponse, probabilities, st.integers(1, 9)),
    st.builds(acc.PoissonSampled, probabilities, gaussians),
    st.builds(
        acc.TruncatedPoissonSampled,
        probabilities,
        gaussians,
        num_examples=st.integers(0, 10**12),
        max_batch_size=st.integers(1, 10**6),
    ),
    st.builds(acc.SampledWithoutReplacement, st.integers(9, 10**12), st.integers(0, 9), gaussians),
    schedules,
)
runs = st.recursive(
    releases,
    lambda inner: st.one_of(
        st.builds(acc.Repeated, inner, counts),
        st.lists(inner, max_size=4).map(acc.Composed),
    ),
    max_leaves=8,
)


def assert_same(actual, expected):
    """Equal trees, and each number equal in kind, type, shape and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        if isinstance(e, float):
            assert isinstance(a, float)
            assert float(a).hex() == float(e).hex()
        elif isinstance(e, int | str):
            assert type(a) is type(e)
            assert a == e
        else:
            assert (a.dtype, a.shape) == (e.dtype, e.shape)
            assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


@settings(max_examples=300, deadline=None)
@given(runs)
def test_random_runs_come_back_bit_for_bit(run):
    assert_same(loads(dumps(run)), run)


RUNS = [
    acc.Composed([]),
    acc.Gaussian(1.1) * 3 + acc.RandomizedResponse(0, 1),
    acc.PoissonSampled(0.01, acc.Gaussian(1.1)) * 100,
    acc.Schedule(0.01, jnp.array([0.5, 2.0]), np.array([3, 4])),
]


@pytest.mark.parametrize("run", RUNS, ids=range(len(RUNS)))
def test_what_is_read_costs_the_same(run):
    again = loads(dumps(run))
    epsilons = [acc.epsilon(event, 1e-5, accountant="rdp") for event in (again, run)]
    assert epsilons[0] == epsilons[1]


def test_arrays_of_jax_come_back_as_those_of_numpy():
    run = acc.Schedule(jnp.float32(0.01), jnp.array([1.0, 2.0], jnp.float32), jnp.array([3, 4]))
    again = loads(dumps(run))
    assert isinstance(again.noise_multipliers, np.ndarray)
    assert isinstance(again.sampling_probabilities, np.float32)
    assert_same(again, run)


@pytest.fixture(scope="module")
def private_plan():
    return jaxdp.make_private(
        lambda params, example: 0.0,
        optax.sgd(1.0),
        target_epsilon=3.0,
        delta=1e-5,
        num_examples=10_000,
        expected_batch_size=100,
        num_steps=50,
        l2_clip_norm=0.5,
    ).plan


POISSON = federated.PoissonCohorts(1000, expected_cohort_size=50, max_cohort_size=200)
FIXED = federated.FixedSizeCohorts(1000, cohort_size=50)
GROUPS = federated.GroupCohorts(1000, min_separation=10)
PLANS = {
    "poisson": federated.ClientPlan(1.5, 1.0, POISSON, 20, None, 1e-5),
    "fixed, adaptive": federated.ClientPlan(
        2.0, federated.AdaptiveClip(0.5, 5.0), FIXED, 20, None, None
    ),
    "groups, enforced": federated.ClientPlan(
        3.0, {"a": 1.0, "b": [1, (2.0, np.float32(0.1))]}, GROUPS, 20, 3.0, 1e-5
    ),
    "mime": federated.ClientPlan(3.0, MimeSum(1.0, 2.0), GROUPS, 20, None, 1e-5),
    "local": federated.LocalPlan(4.0, 1.0, GROUPS, 20, 1e-5),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_federated_plans_come_back_as_they_were(plan):
    again = loads(dumps(plan))
    assert type(again) is type(plan)
    assert again == plan
    assert_same(again, plan)


def test_a_private_plan_comes_back_as_it_was(private_plan):
    again = loads(dumps(private_plan))
    assert again == private_plan
    assert_same(again, private_plan)


VERSION_1 = """
{"format": "jaxdp", "version": 1, "value":
 {"kind": "Composed", "events": {"kind": "tuple", "items": [
  {"kind": "Repeated", "count": 1000, "event":
   {"kind": "PoissonSampled", "sampling_probability": 0.01,
    "event": {"kind": "Gaussian", "noise_multiplier": 1.1}}},
  {"kind": "Schedule", "sampling_probabilities": 0.5, "counts": 1, "noise_multipliers":
   {"kind": "array", "dtype": "float32", "shape": [2], "data": [1.0, 0.10000000149011612]}}]}}}
"""


def test_files_of_the_first_version_stay_readable():
    run = acc.PoissonSampled(0.01, acc.Gaussian(1.1)) * 1000
    schedule = acc.Schedule(0.5, np.array([1.0, 0.1], np.float32))
    assert_same(loads(VERSION_1), acc.Composed([run, schedule]))
    # What is written today is what was written then.
    assert json.loads(dumps(run + schedule)) == json.loads(VERSION_1)


def document(value, **fields):
    return json.dumps({"format": "jaxdp", "version": 1, "value": value} | fields)


GAUSSIAN = {"kind": "Gaussian", "noise_multiplier": 1.0}
BAD = [
    ("", "text must be JSON"),
    ("[1", "text must be JSON"),
    ("[]", 'an object with "format": "jaxdp"'),
    ("{}", 'an object with "format": "jaxdp"'),
    (document(GAUSSIAN, format="other"), 'an object with "format": "jaxdp"'),
    (document(GAUSSIAN, version=2), "version must be 1, got 2"),
    (document(GAUSSIAN, version=True), "version must be 1, got True"),
    (document(GAUSSIAN, version=None), "version must be 1, got None"),
    (document(GAUSSIAN, author="me"), "of format, version and value alone"),
    ('{"format": "jaxdp", "format": "jaxdp"}', "without a field that comes twice"),
    (document(math.nan), "in which an infinite number is the text"),
    (document(math.inf), "in which an infinite number is the text"),
    (document(1.0), "value must be an event of jaxdp.accounting or a plan"),
    (document(None), "value must be an event of jaxdp.accounting or a plan"),
    (document([GAUSSIAN]), "value must be a number, a text or an object"),
    (document({"kind": "list", "items": []}), "value must be an event of jaxdp.accounting"),
    (document({"kind": "GroupCohorts", "num_clients": 9, "min_separation": 3}), "or a plan"),
    (document({"kind": "os.system"}), "value.kind must be one of Gaussian"),
    (document({"kind": ["Gaussian"]}), "value.kind must be one of Gaussian"),
    (document({"noise_multiplier": 1.0}), "value.kind must be one of Gaussian"),
    (document({"kind": "Gaussian"}), "got 'one without noise_multiplier'"),
    (document(GAUSSIAN | {"delta": 0.1}), "got 'one with delta'"),
    (document(GAUSSIAN | {"noise_multiplier": -1.0}), "value is not a valid Gaussian"),
    (document(GAUSSIAN | {"noise_multiplier": "inf"}), "value is not a valid Gaussian"),
    (document(GAUSSIAN | {"noise_multiplier": "one"}), "value.noise_multiplier must be a number"),
    (document(GAUSSIAN | {"noise_multiplier": True}), "value.noise_multiplier must be a number"),
    (document(GAUSSIAN | {"noise_multiplier": None}), "value is not a valid Gaussian"),
    (document(GAUSSIAN | {"noise_multiplier": GAUSSIAN}), "value is not a valid Gaussian"),
    (
        document({"kind": "Repeated", "count": 1.5, "event": GAUSSIAN}),
        "value is not a valid Repeated: count must be a whole number",
    ),
    (
        document({"kind": "Repeated", "count": 2, "event": {"kind": "Repeated", "count": 2}}),
        "value.event must be a Repeated of event, count alone",
    ),
    (
        document({"kind": "Composed", "events": {"kind": "tuple", "items": [GAUSSIAN, 3]}}),
        "value is not a valid Composed",
    ),
    (
        document({"kind": "Composed", "events": {"kind": "tuple", "items": GAUSSIAN}}),
        "value.events must be a tuple with its items",
    ),
    ('{"format": "jaxdp", "version": 1, "value": 1e999}', "a number beyond float64"),
    (document(GAUSSIAN).replace("1.0", "9" * 5000), "an integer of 5000 digits"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=range(len(BAD)))
def test_what_is_no_such_document_is_refused_with_its_place(text, words):
    with pytest.raises(ValueError, match=r".") as refused:
        loads(text)
    assert words in str(refused.value)


BAD_ARRAYS = [
    ({"dtype": "object"}, "dtype must be one of 'float16'"),
    ({"dtype": 3}, "dtype must be one of 'float16'"),
    ({"shape": [3]}, "data must be as many as the shape [3]"),
    ({"shape": [-1, -2]}, "shape must be an integer >= 0"),
    ({"shape": 2}, "an array whose shape and data are lists"),
    ({"data": [1.0, True]}, "data[1] must be a number"),
    ({"data": [1.0, "nan"]}, "data[1] must be a number, or 'inf'"),
    ({"data": [1.0, 0.1]}, "data[1] must be a number of float32, exactly"),
    ({"data": [1.0, 1e300]}, "data[1] must be a number of float32, exactly"),
    ({"data": [1.0, 2]}, "data[1] must be a number of float32, exactly"),
    ({"dtype": "uint8", "data": [1, 256]}, "data[1] must be a number of uint8, exactly"),
    ({"dtype": "int32", "data": [1, 1.0]}, "data[1] must be a number of int32, exactly"),
    ({"order": "C"}, "an array with the fields"),
]


@pytest.mark.parametrize(("change", "words"), BAD_ARRAYS, ids=range(len(BAD_ARRAYS)))
def test_an_array_that_its_type_or_shape_belies_is_refused(change, words):
    array = {"kind": "array", "dtype": "float32", "shape": [2], "data": [1.0, 2.0]} | change
    fields = {"kind": "Schedule", "sampling_probabilities": 0.5, "counts": 1}
    with pytest.raises(ValueError, match=r"^value\.noise_multipliers") as refused:
        loads(document(fields | {"noise_multipliers": array}))
    assert words in str(refused.value)


def test_nesting_too_deep_is_refused():
    deep = acc.Gaussian(1.0)
    for _ in range(5000):
        deep = acc.Repeated(deep, 1)
    with pytest.raises(ValueError, match="nested so deeply"):
        dumps(deep)
    for text in ("[" * 100_000, document(0).replace("0}", '{"a":' * 100_000)):
        with pytest.raises(ValueError, match=r"nested so deeply|must be JSON"):
            loads(text)


class Own(acc.Gaussian):
    """An event of somebody else."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3.0, "value must be an event of jaxdp.accounting or a plan"),
        (GROUPS, "value must be an event of jaxdp.accounting or a plan"),
        (Own(1.0), "value must be an event, a plan"),
        (acc.Schedule(np.array(0.5, jnp.bfloat16), 1.0), "sampling_probabilities must be of one"),
        (PLANS["poisson"].__class__(1.0, {0: 1.0}, GROUPS, 2, None, None), "l2_clip_norm must be"),
    ],
)
def test_what_the_table_does_not_have_is_not_written(value, words):
    with pytest.raises(ValueError, match=r".") as refused:
        dumps(value)
    assert words in str(refused.value)


def test_traced_and_missing_numbers_are_not_written():
    with pytest.raises(ValueError, match=r"value\.noise_multiplier must be a known number"):
        jax.jit(lambda s: dumps(acc.Gaussian(s)) and s)(1.0)
    with pytest.raises(ValueError, match=r"event\.noise_multiplier must be a number \(NaN"):
        dumps(jax.tree.map(lambda _: math.nan, acc.Gaussian(1.0) * 2))


def half(value):
    return {"kind": "array", "dtype": "float16", "shape": [], "data": [float(np.float16(value))]}


def forged(plan, **changes):
    fields = json.loads(dumps(plan))
    fields["value"] |= changes
    return json.dumps(fields)


FORGERIES = [
    ({"epsilon": 0.5}, "value.epsilon must be at least"),
    ({"epsilon": -1.0}, "value.epsilon must be a finite number >= 0"),
    ({"epsilon": "inf"}, "value.epsilon must be a finite number >= 0"),
    ({"target_epsilon": 1.0}, "value.target_epsilon must be at least what is stated"),
    # The capacity of the plan pays for the steps of its budget, and not for those of a larger one.
    ({"target_epsilon": 300.0}, "value.max_batch_size must be at least"),
    ({"delta": 1e-7}, "value.overflow_delta must be below the whole delta"),
    ({"delta": 5e-6}, "value.epsilon must be at least"),
    ({"delta": 2.0}, "value.delta must be a number in (0, 1)"),
    ({"noise_multiplier": 9.0}, "value.event must be that of the plan's own numbers"),
    ({"num_steps": 10}, "value.event must be that of the plan's own numbers"),
    ({"num_steps": 50.5}, "value.num_steps must be an integer >= 1"),
    ({"event": GAUSSIAN}, "value.event must be that of the plan's own numbers"),
    ({"sampling_probability": 0.001}, "value.sampling_probability must be the expected batch"),
    ({"num_examples": 100_000}, "value.sampling_probability must be the expected batch"),
    ({"max_batch_size": 120}, "value.max_batch_size must be at least"),
    ({"overflow_delta": 0.0}, "value.max_batch_size must be at least"),
    ({"overflow_delta": -1e-7}, "value.overflow_delta must be a finite number >= 0"),
    ({"neighboring_relation": "replace_one"}, "value.neighboring_relation must be one of"),
    ({"sampler": "shuffled"}, "value.sampler must be one of 'Poisson'"),
    ({"unit": 3}, "value.unit must be a text"),
    ({"unit": "one person, with all their data"}, "value.unit must be one of 'one example'"),
    ({"accountant": "exact\n\n### Guarantee"}, "value.accountant must be one of 'exact'"),
    # A float16 equals numbers that it is not, and rounds what is made of it.
    ({"epsilon": half(2.0)}, "value.epsilon must be a plain number"),
    ({"delta": half(0.001)}, "value.delta must be a plain number"),
    ({"epsilon": 10**390}, "value.epsilon must be at most 1.8e308"),
    ({"l2_clip_norm": 0.0}, "value.l2_clip_norm must be a finite number > 0"),
]


@pytest.mark.parametrize(("changes", "words"), FORGERIES, ids=range(len(FORGERIES)))
def test_a_plan_that_promises_more_than_its_event_gives_is_refused(private_plan, changes, words):
    with pytest.raises(ValueError, match=r".") as refused:
        loads(forged(private_plan, **changes))
    assert words in str(refused.value)


def test_an_event_of_other_types_than_the_plan_s_own_is_refused(private_plan):
    fields = json.loads(dumps(private_plan))
    fields["value"]["event"]["event"]["sampling_probability"] = half(0.0)
    with pytest.raises(ValueError, match=r"value\.event.* must be a plain number"):
        loads(json.dumps(fields))


def test_a_plan_that_promises_less_than_it_could_is_read(private_plan):
    assert loads(forged(private_plan, epsilon=3.0)).epsilon == 3.0
    assert loads(forged(private_plan, max_batch_size=10_000)).max_batch_size == 10_000


def test_plans_with_slots_too_few_for_their_budget_are_refused():
    plan = federated.make_plan(
        POISSON, num_rounds=20, l2_clip_norm=1.0, target_epsilon=3.0, delta=1e-5
    )
    text = dumps(plan).replace('"max_cohort_size": 200', '"max_cohort_size": 60')
    with pytest.raises(ValueError, match="value is not a valid ClientPlan: max_cohort_size must"):
        loads(text)
