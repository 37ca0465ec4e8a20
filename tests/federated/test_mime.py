"""Mime and MimeLite against a loop by hand, and the joint sensitivity of what they release."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import federated
from jaxdp.federated import _streams

RNG = np.random.default_rng(6)
N = 12
CENTRES = [RNG.normal(size=(n, 3)).astype(np.float32) for n in (3, 1, 4, 2) * 3]
FEDERATION = federated.from_clients(CENTRES)
COHORTS = federated.GroupCohorts(N, min_separation=2)
RATE, MOMENTUM = 0.2, 0.5
PARAMS = jnp.array([0.5, -1.0, 2.0])


def loss_fn(w, x):
    return 0.5 * jnp.sum((w - x) ** 2)


def mime_of(control_variate=False, delta_clip_norm=100.0, gradient_clip_norm=10.0, num_epochs=2):
    return federated.mime(
        loss_fn,
        optax.sgd(RATE, momentum=MOMENTUM),
        num_epochs=num_epochs,
        batch_size=4,
        delta_clip_norm=delta_clip_norm,
        gradient_clip_norm=gradient_clip_norm,
        control_variate=control_variate,
    )


def simulate(mime, num_rounds=4, noise_multiplier=0.0):
    plan = federated.make_plan(
        COHORTS,
        num_rounds=num_rounds,
        l2_clip_norm=mime.l2_clip_norm,
        noise_multiplier=noise_multiplier,
    )
    run = jax.jit(
        lambda federation: federated.simulate(
            mime.client_update,
            federation,
            PARAMS,
            jax.random.key(0),
            plan=plan,
            server_optimizer=mime.server_optimizer,
            broadcast=mime.broadcast,
        )
    )
    return run(FEDERATION)


def by_hand(control_variate, num_rounds=4):
    w = np.asarray(PARAMS, np.float64)
    momentum, mean_gradient = np.zeros(3), None
    for number in range(num_rounds):
        delta, gradient = np.zeros(3), np.zeros(3)
        for client in range(number % 2, N, 2):
            centre = CENTRES[client].astype(np.float64).mean(0)
            at_start = w - centre
            local = w.copy()
            for _ in range(2):  # one full batch an epoch
                step = local - centre
                if control_variate and mean_gradient is not None:
                    step = step - at_start + mean_gradient
                local = local - RATE * (step + MOMENTUM * momentum)
            delta += local - w
            gradient += at_start
        w = w + delta / 6
        mean_gradient = gradient / 6
        momentum = mean_gradient + MOMENTUM * momentum
    return w


@pytest.mark.parametrize("control_variate", [False, True], ids=["MimeLite", "Mime"])
def test_without_noise_it_is_the_algorithm_by_hand(control_variate):
    params = simulate(mime_of(control_variate)).params
    # Float32 over 4 rounds of 6 clients of numbers near 1.
    np.testing.assert_allclose(params, by_hand(control_variate), rtol=0, atol=2e-5)


def test_the_two_groups_are_clipped_apart_with_one_joint_sensitivity():
    mime = mime_of(delta_clip_norm=0.25, gradient_clip_norm=0.5)
    fed = federated.make_round(
        mime.client_update,
        mime.server_optimizer,
        federated.make_plan(
            COHORTS, num_rounds=1, l2_clip_norm=mime.l2_clip_norm, noise_multiplier=0.0
        ),
        broadcast=mime.broadcast,
    )
    carry = fed.init(PARAMS, jax.random.key(0))
    model = mime.broadcast(carry.params, carry.opt_state)
    sum_fn = federated.clipped_pseudo_grad(mime.client_update, l2_clip_norm=mime.l2_clip_norm)
    totals = []
    for members in ([0, 2, 4], [0, 2, 4, 6]):
        cohort = FEDERATION.cohort(jnp.array(members))
        totals.append(jax.jit(sum_fn)(model, cohort, jax.random.key(1))[0])
    moved = jax.tree.map(lambda a, b: np.asarray(a) - b, totals[1].value, totals[0].value)
    lengths = [np.linalg.norm(group) for group in moved]
    # Every client is far away and clipped in both groups: to 3e-5, and rounding of the sums.
    np.testing.assert_allclose(lengths, 0.25, rtol=1e-4)
    sensitivity = float(totals[0].l2_sensitivity)
    np.testing.assert_allclose(sensitivity, 0.25 * 2**0.5, rtol=1e-5)
    # The gradient is that of the loss at the model that was sent, whatever the scaling.
    far = np.asarray(PARAMS) - CENTRES[6].mean(0)
    np.testing.assert_allclose(moved.gradient, 0.25 * far / np.linalg.norm(far), atol=1e-4)


def test_noise_reaches_both_groups_at_the_joint_sensitivity():
    mime = mime_of(delta_clip_norm=0.25, gradient_clip_norm=0.5, num_epochs=1)
    quiet = simulate(mime, num_rounds=1).params
    noisy = simulate(mime, num_rounds=1, noise_multiplier=3.0).params
    like = type(mime.l2_clip_norm)(PARAMS, PARAMS)
    key = jax.random.fold_in(jax.random.key(0), _streams.SERVER)
    noise = jaxdp.noise.gaussian(key, 0, like).delta
    expected = -3.0 * 0.25 * 2**0.5 * noise / 6
    np.testing.assert_allclose(noisy - quiet, expected, rtol=1e-4, atol=1e-6)


def test_clip_norms_that_adapt_or_are_shared_by_the_groups_are_refused():
    mime = mime_of()
    settings = {"num_rounds": 1, "noise_multiplier": 1.0}
    both = federated.AdaptiveClip(mime.l2_clip_norm, 5.0)
    with pytest.raises(ValueError, match=r"l2_clip_norm must be mime\(...\).l2_clip_norm"):
        federated.make_plan(COHORTS, l2_clip_norm=both, **settings)
    for norm in (1.0, federated.AdaptiveClip(1.0, 5.0)):
        plan = federated.make_plan(COHORTS, l2_clip_norm=norm, **settings)
        fed = federated.make_round(
            mime.client_update, mime.server_optimizer, plan, broadcast=mime.broadcast
        )
        carry = fed.init(PARAMS, jax.random.key(0))
        with pytest.raises(ValueError, match=r"l2_clip_norm must be mime\(...\).l2_clip_norm"):
            fed.round(carry, fed.sample(FEDERATION, carry))


@pytest.mark.parametrize("name", ["delta_clip_norm", "gradient_clip_norm"])
def test_bad_clip_norms_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be a finite number > 0"):
        mime_of(**{name: -1.0})


def test_clients_that_are_not_sent_the_servers_statistics_are_refused():
    mime = mime_of()
    client = FEDERATION.cohort(jnp.array([0])).client(0)
    with pytest.raises(ValueError, match=r"broadcast must be mime\(...\).broadcast"):
        mime.client_update(PARAMS, client, jax.random.key(0))
