"""Mime and MimeLite under central privacy: clients move by the server's statistics."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _validate
from jaxdp.federated import batches
from jaxdp.federated.client import ClientUpdate, ClientUpdateFn, batch_gradient, difference, widened


class MimeSum(NamedTuple):
    """The two groups that a client sends and that are clipped apart, or anything like them."""

    delta: Any
    gradient: Any


class MimeState(NamedTuple):
    server: Any  # state of the server's optimizer for the deltas
    statistics: Any  # state of the base optimizer, which the clients apply and do not change
    gradient: Any  # pytree like the params: the last mean gradient that was released
    has_gradient: jax.Array  # bool scalar, whether one was released yet


class MimeModel(NamedTuple):
    """What the clients are sent; all of it has been released."""

    params: Any
    statistics: Any
    gradient: Any
    has_gradient: jax.Array


class Mime(NamedTuple):
    """The pieces of a Mime run, for ``simulate`` or ``make_round``, and ``make_plan``."""

    client_update: ClientUpdateFn  # for simulate and make_round
    server_optimizer: optax.GradientTransformation  # the same
    broadcast: Callable[[Any, Any], MimeModel]  # the same
    l2_clip_norm: MimeSum  # for make_plan


def mime(
    loss_fn: Callable[..., jax.Array],
    base_optimizer: optax.GradientTransformation,
    *,
    num_epochs: int,
    batch_size: int,
    delta_clip_norm: float,
    gradient_clip_norm: float,
    server_optimizer: optax.GradientTransformation | None = None,
    control_variate: bool = False,
) -> Mime:
    r"""Makes the pieces of MimeLite, or Mime, for ``make_plan`` and ``simulate``.

    Clients take steps with an optimizer whose statistics (momentum, second moments) are the
    server's and stay fixed during local training. The server updates them with the clients' mean
    gradient at the model that was sent. Both are released together: delta and gradient are one
    sum of two groups, each clipped to its own norm, with the noise scaled to the sensitivity of
    both. The gradient group is scaled to the delta's norm first, so that neither drowns the
    other: the noise on each is :math:`\sqrt 2` times what it would be alone.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` for one example.
      base_optimizer: The optimizer to mimic, such as ``optax.sgd(0.1, momentum=0.9)``.
      num_epochs: Passes over a client's rows, >= 1.
      batch_size: Rows in a local step, >= 1.
      delta_clip_norm: L2 bound on a client's delta, > 0.
      gradient_clip_norm: L2 bound on a client's mean gradient, > 0.
      server_optimizer: For the mean delta; None for ``optax.sgd(1.0)``.
      control_variate: False for MimeLite. True for Mime: local gradients are corrected by what
        the client's gradient was at the model that was sent, against the mean over clients. That
        mean is last round's, the newest that has been released.

    Returns:
      A ``Mime(client_update, server_optimizer, broadcast, l2_clip_norm)``.

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      A client moves the two groups together by at most the sum's sensitivity, and what clients
      are sent has been released: a round is one Gaussian mechanism with the plan's multiplier.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> federation = federated.from_clients([jnp.ones((4, 2))] * 30)
      >>> mime = federated.mime(lambda w, x: 0.5 * jnp.sum((w - x) ** 2),
      ...     optax.sgd(0.2, momentum=0.9), num_epochs=1, batch_size=2,
      ...     delta_clip_norm=1.0, gradient_clip_norm=2.0)
      >>> plan = federated.make_plan(federated.GroupCohorts(30, min_separation=3), num_rounds=9,
      ...     l2_clip_norm=mime.l2_clip_norm, noise_multiplier=1.0, delta=1e-4)
      >>> params, metrics, plan = federated.simulate(mime.client_update, federation, jnp.zeros(2),
      ...     jax.random.key(0), plan=plan, server_optimizer=mime.server_optimizer,
      ...     broadcast=mime.broadcast)
      >>> metrics.loss.shape
      (9,)

    References:
      Karimireddy et al. 2020, arXiv:2008.03606, Algorithm 1.
    """
    _validate.function("loss_fn", loss_fn)
    num_epochs = _validate.integer("num_epochs", num_epochs, minimum=1)
    batch_size = _validate.integer("batch_size", batch_size, minimum=1)
    _validate.positive("delta_clip_norm", delta_clip_norm)
    _validate.positive("gradient_clip_norm", gradient_clip_norm)
    server_optimizer = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    ratio = delta_clip_norm / gradient_clip_norm

    def client_update(model, client, key):
        if not isinstance(model, MimeModel):
            allowed = "mime(...).broadcast, given to simulate or make_round"
            _validate.refuse("broadcast", f"a model of type {type(model).__name__}", allowed)
        params = jax.tree.map(jnp.asarray, _validate.float_tree("params", model.params))

        def add_up(total, batch, _):
            _, gradient = batch_gradient(loss_fn, params, client, batch, None)
            add = lambda t, g: t + batch.num_rows * g.astype(t.dtype)  # noqa: E731
            return jax.tree.map(add, total, gradient)

        def corrected(local, batch):
            loss, gradient = batch_gradient(loss_fn, local, client, batch, None)
            if not control_variate:
                return loss, gradient
            _, at_start = batch_gradient(loss_fn, params, client, batch, None)
            shifted = jax.tree.map(
                lambda g, start, mean: g - start + mean.astype(g.dtype),
                gradient,
                at_start,
                model.gradient,
            )
            return loss, jax.tree.map(
                lambda new, old: jnp.where(model.has_gradient, new, old), shifted, gradient
            )

        def step(state, batch, _):
            local, total = state
            loss, gradient = corrected(local, batch)
            updates, _ = base_optimizer.update(gradient, model.statistics, local)
            return optax.apply_updates(local, updates), total + loss.astype(total.dtype)

        start = params, jnp.zeros((), jnp.result_type(float))
        after, loss = batches.local_steps(
            client, key, step, start, num_epochs=num_epochs, batch_size=batch_size
        )
        sums = batches.local_steps(
            client,
            key,
            add_up,
            jax.tree.map(jnp.zeros_like, widened(params)),
            num_epochs=1,
            batch_size=batch_size,
            shuffle=False,
        )
        rows = jnp.maximum(client.size, 1)
        # The sum over clients is minus what they send.
        gradient = jax.tree.map(lambda leaf: -leaf * (ratio / rows), sums)
        sent = MimeSum(difference(after, params), gradient)
        return ClientUpdate(sent, loss / (num_epochs * rows), client.size)

    server = _server(base_optimizer, server_optimizer, ratio)
    return Mime(client_update, server, _broadcast, MimeSum(delta_clip_norm, delta_clip_norm))


def _server(
    base_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation,
    ratio: Any,
) -> optax.GradientTransformation:
    """The server as an Optax link behind the noise: from a mean ``MimeSum`` to updates."""

    def init(params):
        return MimeState(
            server_optimizer.init(params),
            base_optimizer.init(params),
            jax.tree.map(jnp.zeros_like, widened(params)),
            jnp.zeros((), bool),
        )

    def update(mean, state, params=None):
        gradient = jax.tree.map(lambda leaf: leaf / ratio, mean.gradient)
        _, statistics = base_optimizer.update(gradient, state.statistics, params)
        updates, server = server_optimizer.update(mean.delta, state.server, params)
        return updates, MimeState(server, statistics, gradient, jnp.ones((), bool))

    return optax.GradientTransformation(init, update)


def _broadcast(params: Any, opt_state: Any) -> MimeModel:
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, MimeState))
    (state,) = (node for node in nodes if isinstance(node, MimeState))
    return MimeModel(params, state.statistics, state.gradient, state.has_gradient)
