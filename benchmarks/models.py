"""The models that clipping.py measures: losses of one example on plain pytrees, random data."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

VOCABULARY = 256


class Model(NamedTuple):
    loss_fn: Callable[..., jax.Array]  # (params, *frozen, *example) -> scalar
    params: Any
    batch: tuple[jax.Array, ...]
    frozen: tuple[Any, ...] = ()


class Keys:
    """A new random key at every call."""

    def __init__(self, seed):
        self.key = jax.random.key(seed)

    def __call__(self):
        self.key, key = jax.random.split(self.key)
        return key


def weight(key, *shape):
    """Normal entries of variance one over the number of inputs."""
    return jax.random.normal(key, shape) / math.sqrt(math.prod(shape[:-1]))


def dense(keys, d_in, d_out):
    return {"w": weight(keys(), d_in, d_out), "b": jnp.zeros(d_out)}


def linear(layer, x):
    return x @ layer["w"] + layer["b"]


def cross_entropy(logits, label):
    """Mean over positions, if there are any."""
    chosen = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def images(keys, batch, shape):
    labels = jax.random.randint(keys(), (batch,), 0, 10)
    return jax.random.normal(keys(), (batch, *shape)), labels


def mlp(batch, widths=(784, 512, 256, 10)):
    keys = Keys(0)

    def loss_fn(params, x, y):
        for layer in params[:-1]:
            x = jax.nn.relu(linear(layer, x))
        return cross_entropy(linear(params[-1], x), y)

    params = [dense(keys, *sizes) for sizes in itertools.pairwise(widths)]
    return Model(loss_fn, params, images(keys, batch, widths[:1]))


def conv(x, kernel, stride, padding):
    """``[height, width, channels]`` of one example to the same, more or fewer of each."""
    numbers = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    return jax.lax.conv_general_dilated(
        x[None], kernel, strides, padding, dimension_numbers=numbers
    )[0]


def max_pool(x):
    window, strides = (2, 2, 1), (1, 1, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "VALID")


def cnn(batch, side=28):
    """The MNIST network of Papernot et al. 2021, arXiv:2007.14191."""
    keys = Keys(0)

    def features(kernels, x):
        x = max_pool(jnp.tanh(conv(x, kernels["w1"], 2, "SAME") + kernels["b1"]))
        x = max_pool(jnp.tanh(conv(x, kernels["w2"], 2, "VALID") + kernels["b2"]))
        return x.reshape(-1)

    def loss_fn(params, x, y):
        hidden = jnp.tanh(linear(params["hidden"], features(params["conv"], x)))
        return cross_entropy(linear(params["out"], hidden), y)

    kernels = {
        "w1": weight(keys(), 8, 8, 1, 16),
        "b1": jnp.zeros(16),
        "w2": weight(keys(), 4, 4, 16, 32),
        "b2": jnp.zeros(32),
    }
    batch_data = images(keys, batch, (side, side, 1))
    (width,) = jax.eval_shape(features, kernels, batch_data[0][0]).shape
    params = {"conv": kernels, "hidden": dense(keys, width, 32), "out": dense(keys, 32, 10)}
    return Model(loss_fn, params, batch_data)


def affine(channels):
    return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}


def group_norm(norm, x, groups=8):
    grouped = x.reshape(*x.shape[:-1], groups, -1)
    centred = grouped - jnp.mean(grouped, (0, 1, 3), keepdims=True)
    variance = jnp.mean(jnp.square(centred), (0, 1, 3), keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * norm["scale"] + norm[
        "shift"
    ]


def wide_resnet(batch, depth=16, widen=4, side=32):
    """WRN-16-4 with group norm, as in De et al. 2022, arXiv:2204.13650."""
    keys = Keys(0)
    widths = [16, *(16 * widen * 2**stage for stage in range(3))]
    blocks_in_stage = (depth - 4) // 6

    def block(d_in, d_out):
        params = {
            "norm1": affine(d_in),
            "conv1": weight(keys(), 3, 3, d_in, d_out),
            "norm2": affine(d_out),
            "conv2": weight(keys(), 3, 3, d_out, d_out),
        }
        shortcut = {} if d_in == d_out else {"shortcut": weight(keys(), 1, 1, d_in, d_out)}
        return params | shortcut

    def apply_block(params, x, stride):
        y = jax.nn.relu(group_norm(params["norm1"], x))
        if "shortcut" in params:
            x = conv(y, params["shortcut"], stride, "SAME")
        y = jax.nn.relu(group_norm(params["norm2"], conv(y, params["conv1"], stride, "SAME")))
        return x + conv(y, params["conv2"], 1, "SAME")

    def loss_fn(params, x, y):
        x = conv(x, params["stem"], 1, "SAME")
        for i, stage in enumerate(params["stages"]):
            for j, one_block in enumerate(stage):
                x = apply_block(one_block, x, stride=2 if i > 0 and j == 0 else 1)
        x = jnp.mean(jax.nn.relu(group_norm(params["norm"], x)), axis=(0, 1))
        return cross_entropy(linear(params["out"], x), y)

    stages = [
        [block(d_in, d_out)] + [block(d_out, d_out) for _ in range(blocks_in_stage - 1)]
        for d_in, d_out in itertools.pairwise(widths)
    ]
    params = {
        "stem": weight(keys(), 3, 3, 3, widths[0]),
        "stages": stages,
        "norm": affine(widths[-1]),
        "out": dense(keys, widths[-1], 10),
    }
    return Model(loss_fn, params, images(keys, batch, (side, side, 3)))


def layer_norm(norm, x):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["shift"]


def attention(block, x, project, heads=4):
    q, k, v = (
        project(block, name, x).reshape(len(x), heads, -1) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[1:], bool))
    weights = jax.nn.softmax(jnp.where(causal[None], scores, -1e9), axis=-1)
    return project(block, "mix", jnp.einsum("hts,shd->thd", weights, v).reshape(x.shape))


def transformer_block(block, x, project):
    x = x + attention(block, layer_norm(block["norm1"], x), project)
    hidden = jax.nn.gelu(project(block, "up", layer_norm(block["norm2"], x)))
    return x + project(block, "down", hidden)


def transformer_params(keys, length, d, layers):
    sizes = {"query": (d, d), "key": (d, d), "value": (d, d), "mix": (d, d)}
    sizes |= {"up": (d, 4 * d), "down": (4 * d, d)}
    blocks = [
        {"norm1": affine(d), "norm2": affine(d)}
        | {name: dense(keys, *size) for name, size in sizes.items()}
        for _ in range(layers)
    ]
    return {
        "tokens": weight(keys(), VOCABULARY, d) * math.sqrt(VOCABULARY),
        "places": weight(keys(), length, d),
        "blocks": blocks,
        "norm": affine(d),
        "out": dense(keys, d, VOCABULARY),
    }


def text(keys, batch, length):
    tokens = jax.random.randint(keys(), (batch, length + 1), 0, VOCABULARY)
    return tokens[:, :-1], tokens[:, 1:]


def plain_projection(block, name, x):
    return linear(block[name], x)


def transformer(batch, length, d=128, layers=2, scan=False, remat=False):
    """A causal language model; its layers in a scan, or recomputed in the backward pass."""
    keys = Keys(0)
    one_block = functools.partial(transformer_block, project=plain_projection)
    apply_block = jax.checkpoint(one_block) if remat else one_block

    def loss_fn(params, tokens, targets):
        x = params["tokens"][tokens] + params["places"]
        if scan:
            x, _ = jax.lax.scan(lambda x, block: (apply_block(block, x), None), x, params["blocks"])
        else:
            for block in params["blocks"]:
                x = apply_block(block, x)
        return cross_entropy(linear(params["out"], layer_norm(params["norm"], x)), targets)

    params = transformer_params(keys, length, d, layers)
    if scan:
        params["blocks"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["blocks"])
    return Model(loss_fn, params, text(keys, batch, length))


def lora(batch, length, d=128, layers=2, rank=8):
    """The transformer, frozen, with trained adapters of low rank beside its matrices."""
    keys = Keys(0)

    def loss_fn(adapters, base, tokens, targets):
        def project(block_and_adapter, name, x):
            block, adapter = block_and_adapter["base"], block_and_adapter["adapter"][name]
            return linear(block[name], x) + (x @ adapter["down"]) @ adapter["up"]

        x = base["tokens"][tokens] + base["places"]
        for block, adapter in zip(base["blocks"], adapters, strict=True):
            both = {"base": block, "adapter": adapter, "norm1": block["norm1"]}
            x = transformer_block(both | {"norm2": block["norm2"]}, x, project)
        return cross_entropy(linear(base["out"], layer_norm(base["norm"], x)), targets)

    def adapter(matrix):
        d_in, d_out = matrix["w"].shape
        # A random second factor, since zeros would make half of the gradient zero.
        return {"down": weight(keys(), d_in, rank), "up": weight(keys(), rank, d_out) * 0.1}

    base = transformer_params(keys, length, d, layers)
    names = ("query", "key", "value", "mix", "up", "down")
    adapters = [{name: adapter(block[name]) for name in names} for block in base["blocks"]]
    return Model(loss_fn, adapters, text(keys, batch, length), frozen=(base,))


def lstm(batch, length, d=128):
    """A language model, scanned over time; all four gates in one matrix."""
    keys = Keys(0)

    def loss_fn(params, tokens, targets):
        def step(state, x):
            hidden, cell = state
            gates = linear(params["gates"], jnp.concatenate([x, hidden]))
            forget, update, output, candidate = jnp.split(gates, 4)
            cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(update) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(output) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros(d)
        _, hiddens = jax.lax.scan(step, (zeros, zeros), params["tokens"][tokens])
        return cross_entropy(linear(params["out"], hiddens), targets)

    params = {
        "tokens": weight(keys(), VOCABULARY, d) * math.sqrt(VOCABULARY),
        "gates": dense(keys, 2 * d, 4 * d),
        "out": dense(keys, d, VOCABULARY),
    }
    return Model(loss_fn, params, text(keys, batch, length))


def embedding_classifier(batch, length, vocabulary=50_000, d=64):
    """The mean of a text's embeddings through one hidden layer."""
    keys = Keys(0)

    def loss_fn(params, tokens, label):
        x = jnp.mean(params["tokens"][tokens], axis=0)
        hidden = jax.nn.relu(linear(params["hidden"], x))
        return cross_entropy(linear(params["out"], hidden), label)

    params = {
        "tokens": jax.random.normal(keys(), (vocabulary, d)),
        "hidden": dense(keys, d, d),
        "out": dense(keys, d, 10),
    }
    # Squared uniform numbers: frequent tokens repeat within a text, as words do.
    uniform = jax.random.uniform(keys(), (batch, length))
    tokens = (jnp.square(uniform) * vocabulary).astype(jnp.int32)
    return Model(loss_fn, params, (tokens, jax.random.randint(keys(), (batch,), 0, 10)))


MODELS: dict[str, Callable[[], Model]] = {
    "mlp_256": lambda: mlp(256),
    "mlp_2048": lambda: mlp(2048),
    "cnn_256": lambda: cnn(256),
    "wrn_32": lambda: wide_resnet(32),
    "transformer_64": lambda: transformer(32, 64),
    "transformer_64_scan": lambda: transformer(32, 64, scan=True),
    "transformer_64_remat": lambda: transformer(32, 64, remat=True),
    "transformer_512": lambda: transformer(8, 512),
    "transformer_512_scan_remat": lambda: transformer(8, 512, scan=True, remat=True),
    "lstm_64": lambda: lstm(64, 64),
    "embedding_256": lambda: embedding_classifier(256, 64),
    "lora_64": lambda: lora(32, 64),
}

SMALL_MODELS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: mlp(8, (20, 16, 10)),
    "cnn": lambda: cnn(4, side=16),
    "lstm": lambda: lstm(4, 8, d=16),
    "embedding": lambda: embedding_classifier(8, 8, vocabulary=100, d=8),
    "lora": lambda: lora(4, 8, d=16, layers=1, rank=2),
}
