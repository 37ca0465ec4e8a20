"""What a run promised when it began, carried along so that no other plan goes on in its name."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate
from jaxdp.federated.data import Cohort


class Terms(NamedTuple):
    digest: jax.Array  # uint32 [2], a hash of the kind of plan, its sampler and its budget; 0
    # once a round of another plan has been added
    noise_multiplier: jax.Array  # float scalar, the plan's; it may differ between runs of a sweep


def of_plan(plan: Any) -> Terms:
    """The terms of a ``ClientPlan`` or a ``LocalPlan``."""
    target = getattr(plan, "target_epsilon", None)
    # A delta that is only reported at may be another one: what was spent is known at each.
    budget = None if target is None else (float(target), float(plan.delta))
    content = (type(plan).__name__, _sampler(plan.cohorts), budget)
    digest = hashlib.sha256(repr(content).encode()).digest()[:8]
    return Terms(
        jnp.asarray(np.frombuffer(digest, np.uint32)),
        jnp.array(plan.noise_multiplier, jnp.result_type(float), copy=True),
    )


def _sampler(cohorts: Any) -> Any:
    """A sampler by its numbers, equal for samplers that are equal, in any process."""
    if not dataclasses.is_dataclass(cohorts):
        return repr(cohorts)
    fields = [(field.name, getattr(cohorts, field.name)) for field in dataclasses.fields(cohorts)]
    return type(cohorts).__qualname__, [(name, _number(value)) for name, value in fields]


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)


def hold(terms: Terms, plan: Any) -> jax.Array:
    """Whether a run that began under these terms is one of this plan (bool scalar)."""
    own = of_plan(plan)
    return jnp.all(terms.digest == own.digest) & (terms.noise_multiplier == own.noise_multiplier)


def after_round(terms: Terms, is_own: jax.Array) -> Terms:
    """The terms after a round: none that any plan has, once it was another plan's."""
    return terms._replace(digest=jnp.where(is_own, terms.digest, 0))


def is_current(cohort: Cohort, cohorts: Any, round_number: jax.Array) -> jax.Array:
    """Whether a cohort is the one to use in a round (bool scalar).

    Raises:
      ValueError: if another sampler drew it, or where both rounds are known and differ.
    """
    if cohort.drawn_by != cohorts:
        _validate.refuse("cohort", cohort.drawn_by, f"drawn by the plan's {cohorts}")
    current = jnp.asarray(cohort.round_number == round_number)
    if not _validate.is_traced(current) and not bool(current):
        given = f"one of round {int(cohort.round_number)}"
        _validate.refuse("cohort", given, f"drawn for the carry's round {int(round_number)}")
    return current


def select(taken: jax.Array, new: Any, old: Any) -> Any:
    """The new state where the round was taken, else the old one, bit for bit."""
    if not _validate.is_traced(taken):
        return new if bool(taken) else old

    def leaf(one, other):
        if one is other:
            return one
        if not jnp.issubdtype(jnp.result_type(one), jax.dtypes.prng_key):
            return jnp.where(taken, one, other)
        # By their numbers: a choice between keys would count as a use of both.
        data = jnp.where(taken, jax.random.key_data(one), jax.random.key_data(other))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(one))

    return jax.tree.map(leaf, new, old)
