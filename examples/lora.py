"""Low-rank adapters trained privately on top of a transformer that was trained on public data.

    python examples/lora.py

The public data are the digits 0 to 4, the private data the digits 5 to 9. The base weights are
trained on the former without privacy, then frozen and handed to ``clipped_grad`` through
``frozen_argnums``: they are neither differentiated nor clipped nor noised. Only the adapters of
rank 4 (LoRA) see the private data. Here the private step is written out as an Optax chain; see
digits.py for ``make_private``, which makes the same from one call.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxdp
from jaxdp import accounting as acc
from jaxdp import sampling

WIDTH, HEADS, LAYERS, RANK = 64, 4, 2, 4
SHAPES = {
    **dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH)),
    "up": (WIDTH, 2 * WIDTH),
    "down": (2 * WIDTH, WIDTH),
}


def init_base(key):
    def block(key):
        keys = jax.random.split(key, len(SHAPES))
        return {
            name: jax.random.normal(key, shape) * shape[0] ** -0.5
            for key, (name, shape) in zip(keys, SHAPES.items(), strict=True)
        }

    embed_key, positions_key, head_key, *block_keys = jax.random.split(key, 3 + LAYERS)
    return {
        "embed": jax.random.normal(embed_key, (8, WIDTH)) * 8**-0.5,
        "positions": 0.1 * jax.random.normal(positions_key, (8, WIDTH)),
        "blocks": [block(key) for key in block_keys],
        "head": jax.random.normal(head_key, (WIDTH, 5)) * WIDTH**-0.5,
    }


def init_adapters(key):
    """A pair (a, b) for each matrix of each block; b = 0, so that nothing changes at first."""

    def adapter(key, shape):
        rows, columns = shape
        return {
            "a": jax.random.normal(key, (rows, RANK)) * rows**-0.5,
            "b": jnp.zeros((RANK, columns)),
        }

    shapes = {"blocks": [SHAPES] * LAYERS, "head": (WIDTH, 5)}
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda node: isinstance(node, tuple))
    keys = jax.random.split(key, len(leaves))
    adapters = [adapter(*pair) for pair in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, adapters)


def dense(weight, adapter, x):
    # Not x @ (weight + a @ b): that is no linear use of a and b, which costs a slower gradient.
    return x @ weight + (x @ adapter["a"]) @ adapter["b"]


def normalise(x):
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def apply_block(weights, adapters, x):
    layer = {name: partial(dense, weights[name], adapters[name]) for name in SHAPES}
    normed = normalise(x)
    query, key, value = (
        layer[name](normed).reshape(8, HEADS, WIDTH // HEADS) for name in ("query", "key", "value")
    )
    attended = jax.nn.dot_product_attention(query, key, value).reshape(8, WIDTH)
    x = x + layer["out"](attended)
    return x + layer["down"](jax.nn.gelu(layer["up"](normalise(x))))


def scores(adapters, base, image):
    """The transformer over the rows of an image: [8, 8] -> scores [5]."""
    x = image @ base["embed"] + base["positions"]
    for weights, pairs in zip(base["blocks"], adapters["blocks"], strict=True):
        x = apply_block(weights, pairs, x)
    return dense(base["head"], adapters["head"], normalise(x).mean(axis=0))


def loss_fn(adapters, base, example):
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(scores(adapters, base, image), label)


def train_base(base, adapters, examples, num_steps):
    """Adam on the public data, all of it in each step; nothing private here."""
    optimizer = optax.adam(3e-3)

    def mean_loss(base):
        return jax.vmap(loss_fn, in_axes=(None, None, 0))(adapters, base, examples).mean()

    def step(carry, _):
        base, state = carry
        updates, state = optimizer.update(jax.grad(mean_loss)(base), state)
        return (optax.apply_updates(base, updates), state), None

    carry = (base, optimizer.init(base))
    (base, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, length=num_steps))(carry)
    return base


def train_adapters(adapters, base, examples, *, num_steps, target_epsilon, delta, key):
    """DP-Adam on the adapters: what they became, and the epsilon that it took."""
    num_examples, sampling_probability = len(examples[0]), 0.5
    # A part of delta pays for batches too large for their static shape, the rest for the noise.
    overflow_delta = 0.01 * delta
    mechanism_delta = delta - overflow_delta
    noise_multiplier = acc.calibrate(
        lambda sigma: acc.PoissonSampled(sampling_probability, acc.Gaussian(sigma)) * num_steps,
        target_epsilon=target_epsilon,
        delta=mechanism_delta,
    )
    max_batch_size = sampling.poisson_capacity(
        num_examples=num_examples,
        sampling_probability=sampling_probability,
        num_steps=num_steps,
        overflow_delta=overflow_delta,
    )

    noise_key, sample_key = jax.random.split(key)
    grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, frozen_argnums=1)
    optimizer = jaxdp.dp_adam(
        1e-2,
        noise_multiplier=noise_multiplier,
        expected_batch_size=sampling_probability * num_examples,
        key=noise_key,
        sampling_probability=sampling_probability,
        target_epsilon=target_epsilon,
        delta=mechanism_delta,
    )

    def step(carry, key):
        adapters, state = carry
        batch = jaxdp.poisson_batch(
            key,
            num_examples=num_examples,
            sampling_probability=sampling_probability,
            max_batch_size=max_batch_size,
        )
        drawn = jax.tree.map(lambda leaf: leaf[batch.indices], examples)
        clipped = grad_fn(adapters, base, drawn, is_padding=batch.is_padding)
        updates, state = optimizer.update(clipped, state, adapters)
        return (optax.apply_updates(adapters, updates), state), None

    keys = jax.random.split(sample_key, num_steps)
    carry = (adapters, optimizer.init(adapters))
    (adapters, state), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))(carry)
    return adapters, jaxdp.privacy_spent(state)


def accuracy(adapters, base, examples):
    images, labels = examples
    all_scores = jax.vmap(scores, in_axes=(None, None, 0))(adapters, base, images)
    return float(jnp.mean(jnp.argmax(all_scores, axis=1) == labels))


def load(digits):
    """Training and test examples of five digits, labelled 0 to 4."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.isin(labels, digits)
    images = images[chosen].reshape(-1, 8, 8).astype("float32") / 16
    split = train_test_split(images, labels[chosen] - min(digits), test_size=0.2, random_state=0)
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)
    return (train_images, train_labels), (test_images, test_labels)


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def main(arguments=None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target-epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    args = parser.parse_args(arguments)
    num_steps = 4 if args.smoke else 60

    public, public_test = load(range(5))
    private, private_test = load(range(5, 10))
    base_key, adapter_key, run_key = jax.random.split(jax.random.key(0), 3)
    adapters = init_adapters(adapter_key)
    base = train_base(init_base(base_key), adapters, public, num_steps)
    base_before = jax.tree.map(np.array, base)
    accuracy_before = accuracy(adapters, base, private_test)

    one_example = jax.tree.map(lambda leaf: leaf[0], private)
    print(jaxdp.clipping.explain(loss_fn, adapters, base, one_example, frozen_argnums=1))
    trained, epsilon = train_adapters(
        adapters,
        base,
        private,
        num_steps=num_steps,
        target_epsilon=args.target_epsilon,
        delta=args.delta,
        key=run_key,
    )

    # Every adapter has moved, and no base weight has.
    assert not any(jax.tree.leaves(jax.tree.map(jnp.array_equal, adapters, trained)))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, base_before, base)))

    accuracy_after = accuracy(trained, base, private_test)
    public_accuracy = accuracy(adapters, base, public_test)
    print(f"\nparameters:   {count(adapters):,} trained, {count(base):,} frozen")
    print(f"base:         {100 * public_accuracy:.1f} % on public test digits 0 to 4")
    print(f"private test: {100 * accuracy_before:.1f} % before, {100 * accuracy_after:.1f} % after")
    print(
        f"guarantee:    ({epsilon:.3g}, {args.delta:g})-differential privacy, one private example"
    )
    return accuracy_before, accuracy_after


if __name__ == "__main__":
    main()
