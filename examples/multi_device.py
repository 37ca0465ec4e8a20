"""Trains a private convolutional network on several devices and on one: the same bits.

    python examples/multi_device.py                # eight virtual CPU devices
    python examples/multi_device.py --devices 2

Each device clips and sums the gradients of its own share of the batch; the sums are added up,
noise is drawn once, and every device takes the same step. On a machine with GPUs or TPUs the mesh
is made of these. What changes on several machines is in docs/cluster.md.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import jaxdp
from jaxdp import distributed

CHANNELS = 16


def scores(params, image):
    """The network: image [8, 8] -> scores [10]."""
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(
        image[None, :, :, None], params["kernel"], (2, 2), "SAME", dimension_numbers=layout
    )
    return jax.nn.relu(hidden).reshape(-1) @ params["out"]


def loss_fn(params, image, label):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, image), label)


def first_params(key):
    kernel, out = jax.random.split(key)
    return {
        "kernel": jax.random.normal(kernel, (3, 3, 1, CHANNELS)) / 3,
        "out": jax.random.normal(out, (16 * CHANNELS, 10)) * 0.01,
    }


def train(args, num_devices, images, labels):
    """A private run on the first few devices: its parameters, plan and budget spent."""
    mesh = Mesh(np.array(jax.devices()[:num_devices]), "data")
    everywhere, split = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ([], ["data"]))
    private = jaxdp.make_private(
        lambda params, example: loss_fn(params, *example),
        optax.adam(args.learning_rate),
        target_epsilon=args.target_epsilon,
        delta=1e-5,
        num_examples=len(images),
        expected_batch_size=args.expected_batch_size,
        num_steps=args.num_steps,
        l2_clip_norm=args.l2_clip_norm,
    )
    plan = private.plan
    grad_fn = distributed.sharded_clipped_grad(
        loss_fn,
        l2_clip_norm=plan.l2_clip_norm,
        batch_sharding=split,
        # The order of additions must not depend on the number of devices, for the same bits.
        num_shards=2 * args.devices,
    )
    root = jax.random.key(args.seed)
    tx = jaxdp.privatize(
        optax.adam(args.learning_rate),
        noise_multiplier=plan.noise_multiplier,
        expected_batch_size=plan.expected_batch_size,
        key=jax.random.fold_in(root, 1),
        sampling_probability=plan.sampling_probability,
        target_epsilon=plan.target_epsilon,
        delta=plan.delta - plan.overflow_delta,
    )

    @jax.jit
    def step(params, state, number, images, labels):
        # Every device draws the whole sample (it is cheap, and the same), and takes its rows.
        batch = private.sample(jax.random.fold_in(jax.random.fold_in(root, 2), number))
        batch = jax.lax.with_sharding_constraint(batch, everywhere)
        rows = images[batch.indices], labels[batch.indices]
        clipped = grad_fn(params, *rows, is_padding=batch.is_padding)
        updates, state = tx.update(clipped, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.device_put(first_params(jax.random.fold_in(root, 0)), everywhere)
    state = jax.device_put(tx.init(params), everywhere)
    images, labels = jax.device_put((images, labels), everywhere)
    bar = tqdm(range(plan.num_steps), desc=f"{num_devices} device(s)", disable=None)
    for number in bar:
        params, state = step(params, state, number, images, labels)
        # Virtual CPU devices may lock each other out with several steps under way.
        jax.block_until_ready(params)
    return jax.tree.map(np.asarray, params), plan, float(jaxdp.privacy_spent(state))


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=8, help="a power of two")
    parser.add_argument("--target-epsilon", type=float, default=3.0)
    parser.add_argument("--num-steps", type=int, default=200)
    parser.add_argument("--expected-batch-size", type=float, default=256)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--l2-clip-norm", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    args = parser.parse_args(arguments)
    if args.devices < 1 or args.devices & (args.devices - 1):
        parser.error(f"--devices must be a power of two, got {args.devices}")
    if args.smoke:
        args.num_steps = 5
    return args


def main(arguments=None):
    args = parse_arguments(arguments)
    # Both are read when the first device is asked for. JAX 0.6 has the second one off.
    jax.config.update("jax_num_cpu_devices", args.devices)
    jax.config.update("jax_use_shardy_partitioner", True)
    if jax.device_count() < args.devices:
        raise SystemExit(f"--devices {args.devices}, but there are only {jax.device_count()}")
    pixels, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        (pixels / 16).astype(np.float32).reshape(-1, 8, 8),
        labels.astype(np.int32),
        test_size=0.2,
        random_state=0,
        stratify=labels,
    )
    results = [train(args, n, train_images, train_labels) for n in sorted({1, args.devices})]
    params, plan, epsilon = results[-1]
    predicted = jnp.argmax(jax.vmap(scores, (None, 0))(params, test_images), axis=1)
    print(f"test accuracy:            {100 * jnp.mean(predicted == test_labels):.1f} %")
    print(f"epsilon spent:            {epsilon:.4f}")
    for name, leaf in params.items():
        same = leaf.tobytes() == results[0][0][name].tobytes()
        print(f"{name + ' on 1 and on all:':<25} {'the same bits' if same else 'DIFFERENT'}")
        if not same:
            raise SystemExit(1)
    print(f"\n{plan}")


if __name__ == "__main__":
    main()
