"""Local training: what one client makes of the model with its own data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _validate
from jaxdp.federated import batches, convolutions
from jaxdp.federated.data import Client


class ClientUpdate(NamedTuple):
    """What a client sends. NOT private before it is clipped, added up and noised."""

    delta: Any  # pytree of float arrays, after minus before; float32 or wider
    loss: jax.Array  # float scalar, mean over the rows that were visited
    num_examples: jax.Array  # int32 scalar, the client's rows


ClientUpdateFn = Callable[[Any, Client, jax.Array], ClientUpdate]


def difference(after: Any, before: Any) -> Any:
    """after - before, leaf by leaf, in float32 or wider."""

    def subtract(a, b):
        dtype = jnp.promote_types(a.dtype, jnp.float32)
        return a.astype(dtype) - b.astype(dtype)

    return jax.tree.map(subtract, after, before)


def widened(params: Any) -> Any:
    """The params in float32 or wider, as pseudo-gradients and what is made of them are."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), params
    )


def batch_gradient(
    loss_fn: Callable[..., jax.Array],
    params: Any,
    client: Client,
    batch: batches.LocalBatch,
    key: jax.Array | None,
) -> tuple[jax.Array, Any]:
    """The summed loss over a local batch's rows, and the gradient of their mean loss."""

    def on_rows(examples, counts, positions):
        def mean_loss(params):
            if key is None:
                losses = jax.vmap(loss_fn, in_axes=(None, 0))(params, examples)
            else:
                keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(positions)
                with_key = lambda example, key: loss_fn(params, example, key=key)  # noqa: E731
                losses = jax.vmap(with_key)(examples, keys)
            if losses.ndim != 1 or not jnp.issubdtype(losses.dtype, jnp.floating):
                given = f"{losses.dtype}{list(losses.shape[1:])}"
                _validate.refuse("loss_fn's output", given, "a float scalar for one example")
            total = jnp.sum(losses.astype(jnp.promote_types(losses.dtype, jnp.float32)) * counts)
            # The divisor is inside one client, whose whole update is clipped.
            return total / jnp.maximum(jnp.sum(counts), 1), total

        value_and_grad = jax.value_and_grad(mean_loss, has_aux=True)
        (_, total), gradient = convolutions.in_fast_layout(value_and_grad)(params)
        return total, gradient

    return batches.over_rows(client, batch, on_rows)


def local_training(
    loss_fn: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    *,
    num_epochs: int,
    batch_size: int,
    proximal: Any = 0.0,
    loss_takes_key: bool = False,
) -> ClientUpdateFn:
    r"""Makes the client update of FedAvg and FedProx: some epochs with any Optax optimizer.

    From the model :math:`w` that it is sent, a client minimises its own mean loss plus
    :math:`\tfrac{\mu}{2} \|v - w\|^2` over :math:`v`, batch by batch, and returns :math:`v - w`.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` for one example, a pytree without batch
        axis; called with ``key=`` as well if ``loss_takes_key``.
      optimizer: The clients' optimizer, whose state every client starts afresh.
      num_epochs: Passes over a client's rows, in a new random order each, >= 1.
      batch_size: Rows in a local step; the last batch of an epoch may hold fewer, >= 1.
      proximal: The FedProx weight :math:`\mu`, >= 0; it may be traced.
      loss_takes_key: Whether to pass each row a PRNG key of its own (dropout).

    Returns:
      A pure function ``client_update(params, client, key) -> ClientUpdate(delta, loss,
      num_examples)``; ``client`` is a ``Client``, ``key`` a scalar PRNG key. A client without
      data returns zeros. Its cost follows the client's real number of rows.

    Raises:
      ValueError: if an argument is out of range, a parameter is not floating point, or the loss
        is not a float scalar.

    Guarantee:
      The update depends on the client's own rows alone. It is NOT private: clip and noise come
      after it, in ``clipped_pseudo_grad`` and the server's chain.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> loss_fn = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
      >>> client_update = federated.local_training(
      ...     loss_fn, optax.sgd(1.0), num_epochs=1, batch_size=4)
      >>> cohort = federated.from_clients([jnp.ones((4, 2))]).cohort(jnp.array([0]))
      >>> client_update(jnp.zeros(2), cohort.client(0), jax.random.key(0)).delta.tolist()
      [1.0, 1.0]

    References:
      McMahan et al. 2017, arXiv:1602.05629, Algorithm 1; Li et al. 2020, arXiv:1812.06127.
    """
    _validate.function("loss_fn", loss_fn)
    _validate.optimizer("optimizer", optimizer)
    num_epochs = _validate.integer("num_epochs", num_epochs, minimum=1)
    batch_size = _validate.integer("batch_size", batch_size, minimum=1)
    _validate.non_negative("proximal", proximal)
    has_proximal = _validate.is_traced(proximal) or float(proximal) > 0.0
    arguments = "(params, example, key)" if loss_takes_key else "(params, example)"
    loss_of_row = _validate.fitting(
        "loss_fn",
        loss_fn,
        f"a function {arguments} -> scalar, where an example is one pytree such as (x, y), and "
        "key there if and only if loss_takes_key=True",
    )

    def client_update(params, client, key):
        _validate.float_tree("params", params)
        params = jax.tree.map(jnp.asarray, params)

        def step(state, batch, step_key):
            local, opt_state, total = state
            row_key = step_key if loss_takes_key else None
            loss, gradient = batch_gradient(loss_of_row, local, client, batch, row_key)
            if has_proximal:
                gradient = jax.tree.map(
                    lambda g, here, start: g + jnp.asarray(proximal, g.dtype) * (here - start),
                    gradient,
                    local,
                    params,
                )
            updates, opt_state = optimizer.update(gradient, opt_state, local)
            return optax.apply_updates(local, updates), opt_state, total + loss.astype(total.dtype)

        state = params, optimizer.init(params), jnp.zeros((), jnp.result_type(float))
        after, _, total = batches.local_steps(
            client, key, step, state, num_epochs=num_epochs, batch_size=batch_size
        )
        visited = jnp.maximum(num_epochs * client.size, 1)
        return ClientUpdate(
            difference(after, params), total / visited.astype(total.dtype), client.size
        )

    return client_update
