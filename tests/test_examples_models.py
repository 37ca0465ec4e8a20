"""Models of every framework, as the examples build them, are clipped as they are."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from tests.clipping.zoo.compiling import compiled

EXAMPLES = Path(__file__).parents[1] / "examples"
KEYED = ["models/flax_linen", "models/flax_nnx", "models/equinox_model", "models/haiku_model"]
MODELS = ["models/plain_pytree", *KEYED]
BATCH = 12


def load(name, monkeypatch):
    # As for a script: what is beside it can be imported.
    monkeypatch.syspath_prepend((EXAMPLES / name).parent)
    module_name = "example_" + Path(name).name
    spec = importlib.util.spec_from_file_location(module_name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module_name, module)
    spec.loader.exec_module(module)
    return module


def build(example):
    # JAX 0.6.0 takes keys[0] and keys[-1] of two keys, as Equinox does, for the same one.
    with jax.debug_key_reuse(False):
        return example.build(jax.random.key(0))


def some(examples):
    return jax.tree.map(lambda leaf: leaf[:BATCH], examples)


def assert_strategies_agree(loss_fn, params, *arguments, key=None, **options):
    """Bookkeeping, without a fallback, against the gradients of single examples."""

    def clip(strategy):
        grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, strategy=strategy, **options)
        return compiled(lambda params: grad_fn(params, *arguments, key=key).value)(params)

    expected, actual = clip("per_example"), clip("bookkeeping")
    assert jax.tree.structure(actual) == jax.tree.structure(params)
    whole = np.linalg.norm([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(expected)])
    assert whole > 0.1  # of at most BATCH: the gradients do not vanish
    for a, e in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        # Each strategy sums some hundred products in float32: sqrt(100) * 6e-8 of the whole.
        # Rounding, and the room that norms of products of many positions have for it.
        assert np.linalg.norm(a - e) <= 5e-5 * whole


@pytest.mark.parametrize("name", MODELS)
def test_a_framework_s_model_is_clipped_as_it_is(name, monkeypatch):
    example = load(name, monkeypatch)
    with jax.numpy_rank_promotion("allow"):  # frameworks add biases to batches
        params, loss_fn, _ = build(example)
        train, _ = example.load()
        key = jax.random.key(1) if name in KEYED else None
        assert_strategies_agree(loss_fn, params, some(train), key=key)


@pytest.mark.parametrize("name", KEYED)
def test_dropout_masks_differ_between_examples(name, monkeypatch):
    example = load(name, monkeypatch)
    with jax.numpy_rank_promotion("allow"):
        params, loss_fn, _ = build(example)
        one, _ = jax.tree.map(lambda leaf: leaf[0], example.load())
        copies = jax.tree.map(lambda leaf: jnp.stack([leaf] * BATCH), one)
        grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, return_per_example=True)
        _, per_example = compiled(grad_fn)(params, copies, key=jax.random.key(1))
    assert len(np.unique(per_example.loss)) > BATCH // 2


def test_adapters_are_clipped_with_the_base_frozen(monkeypatch):
    lora = load("lora", monkeypatch)
    base_key, adapter_key = jax.random.split(jax.random.key(0))
    base = lora.init_base(base_key)
    # b = 0 would leave a without a gradient.
    adapters = jax.tree.map(lambda leaf: leaf + 0.05, lora.init_adapters(adapter_key))
    train, _ = lora.load(range(5, 10))
    assert_strategies_agree(lora.loss_fn, adapters, base, some(train), frozen_argnums=1)
