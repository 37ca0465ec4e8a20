"""The privacy statement says what the plan promises, every point of the checklist, no more."""

import dataclasses
import decimal
import json
import math
import re
import shlex

import jax
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import jaxdp
from jaxdp import accounting as acc
from jaxdp import cli, federated, report, serialization
from jaxdp._rounding import rounded_down, rounded_up
from jaxdp.accounting import trade_off
from jaxdp.report import profile

KEYS = {
    "setting": ["setting"],
    "definition": [
        *("covered", "not_covered", "tuning", "other_accesses", "public_data", "output"),
        *("released", "unit", "unit_meaning", "adjacency"),
    ],
    "accounting": [
        *("guarantee", "enforced_epsilon", "mechanism", "noise_multiplier", "l2_clip_norm"),
        *("num_steps", "sampler", "sampling", "assumptions", "accountant"),
    ],
    "consequences": ["attack_advantage", "type_ii_error_at_0.05"],
    "verification": ["library", "event", "python", "code"],
}
GROUPS = federated.GroupCohorts(1000, min_separation=10)
FIXED = federated.FixedSizeCohorts(1000, cohort_size=50)


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


def group_plan(**changes):
    plan = federated.make_plan(
        GROUPS, num_rounds=20, l2_clip_norm=1.0, target_epsilon=3.0, delta=1e-5
    )
    return dataclasses.replace(plan, **changes)


def check(plan, *, epsilon, missing=(), more=()):
    """Every point is there, what is not stated is null, and the command gives the epsilon."""
    statement = report.describe(plan)
    held = json.loads(statement.to_json())
    assert held["summary"] == statement.summary
    for section, keys in KEYS.items():
        there = {key for key in keys if key not in missing}
        assert there <= held[section].keys() <= {*keys, *more}
    told = ("tuning", "other_accesses", "public_data", "released", "unit_meaning")
    assert all(held["definition"][key] is None for key in told)
    assert held["accounting"]["sampling"] is held["verification"]["code"] is None
    text = str(statement)
    assert text.count("not stated") == 7
    assert held["accounting"]["guarantee"]["epsilon"] == epsilon
    assert serialization.loads(json.dumps(held["verification"]["event"])) == plan.event
    names = {}
    exec("from jaxdp.accounting import *", names)
    call = re.fullmatch(r"from .* import \*; print\((.*)\)", held["verification"]["python"])
    assert eval(call[1], names) == pytest.approx(epsilon, rel=1e-12)
    return text, held


def test_of_examples(private_plan, capsys):
    text, held = check(
        private_plan, epsilon=private_plan.epsilon, more=("overflow_delta", "command")
    )
    assert text.startswith(
        "## Privacy statement\n\n(3.00000, 1e-05)-differential privacy for one example added or "
        "removed, under the assumptions below.\n"
    )
    for words in (
        "central: whoever trains holds all the data",
        "the 50 noisy steps that were planned for one run",
        "the choice of hyperparameters; losses, norms and other metrics",
        "draws each example independently with probability 0.01 (100 of 10000 expected, at most",
        "every batch is a fresh Poisson sample",
        "shuffled epochs and batches of a fixed size are a different mechanism",
        "the program takes none that would make epsilon more than 3.0",
        "1e-07 of delta, for samples beyond what is kept",
    ):
        assert words in text
    assert held["definition"]["adjacency"] == "add_or_remove_one"
    assert held["accounting"]["overflow_delta"] == private_plan.overflow_delta
    assert held["accounting"]["accountant"] == private_plan.accountant == "exact"
    # The real run loses samples beyond its capacity, which no attack gains more from than this.
    advantage = acc.attack_advantage(private_plan.event)
    added = held["consequences"]["attack_advantage"] - advantage
    assert 0.0 < added < 1.1 * private_plan.overflow_delta
    missed = trade_off.type_ii_error(0.05, profile.for_attacks(private_plan.event))
    lost = missed - held["consequences"]["type_ii_error_at_0.05"]
    # At most (1 + e^epsilon) times as much, at the epsilon of the support line: well below 3.
    assert 0.0 < lost < (1.0 + math.exp(3.0)) * private_plan.overflow_delta
    assert cli.main([*shlex.split(held["verification"]["command"])[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == private_plan.epsilon


def test_of_clients_in_turns():
    plan = group_plan()
    text, held = check(plan, epsilon=plan.epsilon, more=("command", "gdp_mu", "zcdp_rho"))
    for words in (
        "the server that adds up the clients' updates and adds the noise is trusted",
        "one client, with all its data",
        "one client added or removed",
        "10 fixed, public groups of 1000 clients take turns; nothing is sampled",
        "ids are public",
        "--steps 2 ",
    ):
        assert words in text
    # Two Gaussians of multiplier z are one with mu = sqrt(2) / z.
    mu = math.sqrt(2.0) / plan.noise_multiplier
    found = held["consequences"]
    assert found["gdp_mu"] == pytest.approx(mu, rel=1e-12)
    assert found["gdp_mu"] >= mu
    assert found["zcdp_rho"] == pytest.approx(mu**2 / 2.0, rel=1e-12)
    missed = stats.norm.cdf(stats.norm.isf(0.05) - mu)
    # The search for the support line ends within 1e-8, on the safe side.
    assert missed - 1e-8 <= found["type_ii_error_at_0.05"] <= missed + 1e-12


def test_of_clients_without_replacement(monkeypatch):
    # What attacks can achieve is looked at elsewhere; by this accountant it takes long.
    monkeypatch.setattr(profile, "for_attacks", lambda run: lambda epsilon: -1.0 - epsilon)
    plan = federated.ClientPlan(4.0, federated.AdaptiveClip(0.5, 9.0), FIXED, 2, None, 1e-5)
    text, held = check(plan, epsilon=plan.epsilon)
    for words in (
        "one client replaced by another",
        "every round draws 50 of 1000 clients without replacement",
        "so that the noise counts half",
        "adaptive: starts at 0.5 and follows the 0.5 quantile by a private count",
        "not enforced: more rounds than planned cost more",
        "SampledWithoutReplacement(num_examples=1000, batch_size=50, event=Gaussian("
        "noise_multiplier=2.0))",
    ):
        assert words in text
    assert held["definition"]["adjacency"] == "replace_one"
    assert held["accounting"]["accountant"] == "pld"
    assert held["accounting"]["enforced_epsilon"] is None
    assert held["accounting"]["l2_clip_norm"]["count_noise_multiplier"] == 9.0
    # No command line draws without replacement.
    assert "jaxdp epsilon" not in text


def test_of_local_privacy():
    plan = federated.LocalPlan(4.0, {"w": 1.0, "b": 2.0}, GROUPS, num_rounds=20, delta=1e-5)
    text, held = check(plan, epsilon=plan.epsilon, more=("command", "gdp_mu", "zcdp_rho"))
    for words in (
        "(1.35647, 1e-05)-local differential privacy for one client's whole data set replaced",
        "adds noise to its own update before it sends it, and trusts nobody",
        "all that one client sends in the run",
        "4.0, standard deviation over twice the clip norm (of all parts together",
        "nothing is claimed from sampling: 2 participations are counted",
        "that a client takes part, which is no secret",
    ):
        assert words in text
    assert held["setting"]["setting"] == "local"
    assert held["definition"]["adjacency"] == "replace_one"
    assert held["accounting"]["l2_clip_norm"] == {"['b']": 2.0, "['w']": 1.0}


def test_of_local_privacy_nothing_is_gained_from_sampling():
    cohorts = federated.PoissonCohorts(1000, expected_cohort_size=5)
    plan = federated.LocalPlan(40.0, 1.0, cohorts, num_rounds=20, delta=1e-5)
    text, held = check(plan, epsilon=plan.epsilon, more=("command", "gdp_mu", "zcdp_rho"))
    assert "with probability 0.005 (5 of 1000 expected); nothing is claimed" in text
    assert "20 participations are counted" in text
    assert "--sampling-probability" not in held["verification"]["command"]


def test_of_everyone_in_every_round():
    everyone = federated.PoissonCohorts(50, expected_cohort_size=50, max_cohort_size=50)
    plan = federated.ClientPlan(9.0, 1.0, everyone, 4, None, 1e-5)
    text, held = check(plan, epsilon=plan.epsilon, more=("command", "gdp_mu", "zcdp_rho"))
    assert "every round has all 50 clients" in text
    assert "Poisson sample" not in text
    assert held["consequences"]["gdp_mu"] == pytest.approx(2.0 / 9.0, rel=1e-12)


def test_a_large_delta_is_called_large():
    assert "delta_caution" not in json.loads(report.describe(group_plan()).to_json())["accounting"]
    statement = report.describe(group_plan(delta=1e-3))
    held = json.loads(statement.to_json())["accounting"]["delta_caution"]
    assert "NOT SMALL: at least one over the number of clients, 1000" in held
    assert f"- **Caution**: {held}\n" in str(statement)
    few = federated.ClientPlan(
        9.0, 1.0, federated.GroupCohorts(30, min_separation=3), 2, None, 2e-3
    )
    assert "**Caution**: delta is large" in str(report.describe(few))


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (federated.ClientPlan(0.0, 1.0, GROUPS, 20, None, 1e-5), "epsilon is infinite"),
        (federated.ClientPlan(1.0, 1.0, GROUPS, 20, None, None), "no delta was given"),
        (federated.LocalPlan(1.0, 1.0, GROUPS, 20, None), "no delta was given"),
    ],
)
def test_without_a_guarantee_none_is_claimed(plan, why):
    statement = report.describe(plan)
    assert statement.summary == f"No differential privacy is claimed: {why}."
    assert "- **Guarantee**: none\n" in str(statement)
    held = json.loads(statement.to_json())
    assert held["accounting"]["guarantee"]["epsilon"] == "inf"
    assert "consequences" not in held
    assert "python" not in held["verification"]


def test_a_budget_that_ends_the_run_early_is_what_is_promised():
    plan = group_plan(target_epsilon=1.0)
    assert plan.epsilon > 2.9
    statement = report.describe(plan)
    assert statement.summary.startswith("(1, 1e-05)-differential privacy")
    assert "over the rounds that the budget allows, fewer than were planned" in str(statement)
    assert "consequences" not in json.loads(statement.to_json())


def test_what_the_author_tells_is_in_both_forms_and_a_line_each():
    facts = {
        "unit": "one phone;\na person may have two",
        "released": "the last model",
        "sampling": "in turns, by id",
        "tuning": "on public data",
        "other_accesses": "none",
        "public_data": "none",
        "code": "https://example.org/code",
    }
    statement = report.describe(group_plan(), **facts)
    text, held = str(statement), json.loads(statement.to_json())
    assert "not stated" not in text
    assert "- **What a unit is here**: one phone; a person may have two\n" in text
    assert held["definition"]["unit_meaning"] == "one phone; a person may have two"
    assert held["accounting"]["sampling"] == facts["sampling"]
    assert held["verification"]["code"] == facts["code"]
    for name in ("released", "tuning", "other_accesses", "public_data"):
        assert held["definition"][name] == facts[name]


@given(st.floats(0.0, 1.0))
def test_lower_bounds_are_printed_rounded_down_and_upper_ones_up(value):
    down, up = (decimal.Decimal(f(value)) for f in (rounded_down, rounded_up))
    # Six digits: one unit of the last is at most 1e-5 of the number.
    unit = decimal.Decimal("1e-5") * up
    assert up - unit <= down <= decimal.Decimal(value) <= up


def test_what_is_no_plan_or_no_fact_is_refused(private_plan):
    with pytest.raises(ValueError, match="plan must be a PrivacyPlan"):
        report.describe(acc.Gaussian(1.0))
    with pytest.raises(ValueError, match="tuning must be a text that is not empty"):
        report.describe(group_plan(), tuning=" ")
    with pytest.raises(ValueError, match="code must be a text"):
        report.describe(group_plan(), code=3)

    def traced(noise_multiplier):
        report.describe(federated.ClientPlan(noise_multiplier, 1.0, GROUPS, 2, None, 1e-5))
        return noise_multiplier

    with pytest.raises(ValueError, match="plan must be a plan of known numbers"):
        jax.jit(traced)(1.0)
    with pytest.raises(ValueError, match=r"plan\.epsilon must be at least"):
        report.describe(private_plan._replace(epsilon=0.1))
