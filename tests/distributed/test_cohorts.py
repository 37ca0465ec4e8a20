"""Clients split over devices: the sum of one device, and its bits if asked."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp import distributed, federated

RNG = np.random.default_rng(3)
# Clients of 0 to 12 rows.
FEDERATION = federated.from_clients(
    [RNG.normal(size=(size, 5)).astype(np.float32) for size in RNG.integers(0, 13, 40)]
)
PARAMS = {"w": jnp.ones((5, 3)), "b": jnp.zeros(3)}


def loss_fn(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)


def sum_fn(**more):
    client_update = federated.local_training(
        loss_fn, optax.sgd(0.1, momentum=0.9), num_epochs=2, batch_size=4
    )
    return federated.clipped_pseudo_grad(client_update, l2_clip_norm=0.05, **more)


def over(devices):
    return NamedSharding(
        Mesh(np.array(jax.devices()[:devices]), "clients"), PartitionSpec("clients")
    )


@pytest.fixture(scope="module")
def cohort():
    ids = jnp.asarray(RNG.permutation(40)[:21], jnp.int32)
    return FEDERATION.cohort(ids, jnp.arange(21) >= 18)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_eight_devices_sum_what_one_does_client_by_client(cohort):
    key = jax.random.key(0)
    expected, report = jax.jit(sum_fn())(PARAMS, cohort, key)
    split_fn = distributed.sharded_pseudo_grad(sum_fn(), over(8))
    clipped, split_report = jax.jit(split_fn)(PARAMS, cohort, key)
    # Sums of 18 in another order: 18 * 6e-8 of 18 * 0.05.
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6),
        clipped.value,
        expected.value,
    )
    assert float(clipped.l2_sensitivity) == float(expected.l2_sensitivity)
    np.testing.assert_array_equal(split_report.num_examples, report.num_examples)
    np.testing.assert_allclose(split_report.norm, report.norm, rtol=1e-5)
    np.testing.assert_allclose(split_report.loss, report.loss, rtol=1e-5)


def test_a_fixed_number_of_shards_gives_the_same_bits_on_any_number_of_devices(cohort):
    found = []
    for devices in (1, 8):
        split_fn = distributed.sharded_pseudo_grad(sum_fn(), over(devices), num_shards=16)
        clipped, report = jax.jit(split_fn)(PARAMS, cohort, jax.random.key(0))
        found.append(bits((clipped, report)))
    assert found[0] == found[1]


def test_whole_rounds_on_eight_devices_are_those_of_one():
    plan = federated.make_plan(
        federated.GroupCohorts(40, min_separation=2),
        num_rounds=4,
        l2_clip_norm=0.05,
        noise_multiplier=0.3,
        delta=1e-3,
    )
    client_update = federated.local_training(
        loss_fn, optax.sgd(0.1, momentum=0.9), num_epochs=2, batch_size=4
    )

    def rounds(devices, num_shards):
        def wrap(pseudo_grad_fn):
            return distributed.sharded_pseudo_grad(
                pseudo_grad_fn, over(devices), num_shards=num_shards
            )

        fed = federated.make_round(client_update, optax.sgd(1.0), plan, wrap_sum=wrap)

        @jax.jit
        def run(carry, federation):
            def body(carry, _):
                return fed.round(carry, fed.sample(federation, carry))

            return jax.lax.scan(body, carry, length=4)

        same = NamedSharding(over(devices).mesh, PartitionSpec())
        carry = fed.init(PARAMS, jax.random.key(1))
        carry, metrics = run(*jax.device_put((carry, FEDERATION), same))
        return carry.params, metrics.loss

    expected, on_eight, in_order = (rounds(*how) for how in ((1, None), (8, None), (8, 16)))
    for found in (on_eight, in_order):
        # Four sums of 20 in another order, each a part in 20 of sums up to 20 * 0.05 + noise, and
        # what the first differences grow to in training: 10 times as much.
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-5),
            found,
            expected,
        )
