"""A private run on the devices of a mesh. As a script: one process of several that share it."""

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdp
from jaxdp import accounting as acc
from jaxdp import checkpoint, distributed, sampling, transforms

STEPS = 4
EXPECTED = 20


def loss_fn(params, x, y, key):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    hidden = jnp.tanh((x * keep) @ params["in"] + params["bias"])
    return (hidden @ params["out"] - y) ** 2


def chain(key):
    z, sigma_b = 1.0, 4.0
    links = optax.chain(
        transforms.adaptive_clip_norm(
            0.5, count_noise_multiplier=sigma_b, expected_batch_size=EXPECTED, key=key
        ),
        jaxdp.add_gaussian_noise(transforms.split_noise_multiplier(z, sigma_b), key=key),
        jaxdp.scale_by_batch_size(EXPECTED),
        optax.adam(1e-2),
    )
    return jaxdp.with_budget(links, event=acc.Gaussian(z), target_epsilon=20.0, delta=1e-5)


def train(num_devices, num_shards, folder=None):
    """Trains on as many devices; with a folder, through a checkpoint in the middle.

    Returns the final params, and for each step the clip norm and the drawn indices.
    """
    mesh = Mesh(np.array(jax.devices()[:num_devices]), "data")
    split, same = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (["data"], []))
    rng = np.random.default_rng(0)
    data = [rng.normal(size=shape).astype(np.float32) for shape in ((100, 10), (100,))]
    first = {
        "in": rng.normal(size=(10, 16)).astype(np.float32),
        "bias": np.zeros(16, np.float32),
        "out": rng.normal(size=16).astype(np.float32),
    }
    key = jax.random.key(5)
    tx = chain(key)

    @jax.jit
    def begin(params):
        return {"params": params, "opt_state": tx.init(params), "step": jnp.int32(0)}

    @jax.jit
    def step(state, x, y):
        batch = sampling.poisson_batch(
            jax.random.fold_in(key, state["step"]),
            num_examples=100,
            sampling_probability=EXPECTED / 100,
            max_batch_size=45,
        )
        norm = transforms.clip_norm(state["opt_state"])
        grad_fn = distributed.sharded_clipped_grad(
            loss_fn,
            l2_clip_norm=norm,
            return_per_example=True,
            batch_sharding=split,
            num_shards=num_shards,
        )
        loss_key = jax.random.fold_in(jax.random.key(6), state["step"])
        clipped, per_example = grad_fn(
            state["params"],
            x[batch.indices],
            y[batch.indices],
            key=loss_key,
            is_padding=batch.is_padding,
        )
        within = transforms.count_within(per_example.norm, norm, batch.is_padding)
        updates, opt_state = tx.update(clipped, state["opt_state"], state["params"], within=within)
        params = optax.apply_updates(state["params"], updates)
        after = {"params": params, "opt_state": opt_state, "step": state["step"] + 1}
        return after, jax.lax.with_sharding_constraint((norm, batch.indices), same)

    def everywhere(tree):
        return jax.tree.map(
            lambda leaf: jax.make_array_from_callback(leaf.shape, same, lambda at: leaf[at]), tree
        )

    x, y = everywhere(data)
    state, seen = begin(everywhere(first)), []
    for number in range(STEPS):
        state, of_step = step(state, x, y)
        seen.append(jax.tree.map(np.asarray, of_step))
        if folder is not None and number == 1:
            checkpoint.save(folder, state)
            state = checkpoint.restore(folder, state)
    return jax.tree.map(np.asarray, state["params"]), seen


def digest(tree):
    leaves = b"".join(leaf.tobytes() for leaf in jax.tree.leaves(tree))
    return hashlib.sha256(leaves).hexdigest()


if __name__ == "__main__":
    port, rank, folder = sys.argv[1:]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(rank))
    found = train(jax.device_count(), num_shards=16, folder=folder)
    print(jax.device_count(), digest(found), flush=True)  # noqa: T201 (what the test reads)
