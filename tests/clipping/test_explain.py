"""The table of ways, and what it promises about memory."""

import jax
import jax.numpy as jnp
import pytest

import jaxdp
from jaxdp.clipping import explain


def rules(loss_fn, params, *example, **options):
    rows = explain(loss_fn, params, *example, **options).rows
    return {row.parameter: row.rule for row in rows}


def classifier(params, tokens):
    hidden = jnp.tanh(params["table"][tokens] @ params["w"]) * params["scale"][None]
    pooled = jnp.mean(hidden, axis=0)
    return jax.nn.logsumexp(pooled @ params["out"])


PARAMS = {
    "table": jnp.zeros((1000, 64)),
    "w": jnp.zeros((64, 128)),
    "scale": jnp.zeros(128),
    "out": jnp.zeros((128, 100)),
    "idle": jnp.zeros(5),
}


def test_each_parameter_has_the_way_that_its_use_calls_for():
    assert rules(classifier, PARAMS, jnp.zeros(4, int)) == {
        "['table']": "rows",
        "['w']": "gram",
        "['scale']": "instantiated",
        "['out']": "outer",
        "['idle']": "unused",
    }


def test_many_positions_are_instantiated():
    assert rules(classifier, PARAMS, jnp.zeros(400, int))["['w']"] == "instantiated"


def test_a_fallback_names_its_reason():
    def loss_fn(w, x):
        return jnp.sum(x @ jnp.linalg.inv(w))

    (row,) = explain(loss_fn, jnp.eye(3), jnp.ones(3)).rows
    assert row.fallback
    assert row.reason.startswith("used by")
    with pytest.raises(ValueError, match=r"known form, got params \(used by: "):
        jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, strategy="bookkeeping")(
            jnp.eye(3), jnp.ones((2, 3))
        )


def test_only_the_parameter_without_a_rule_falls_back():
    def loss_fn(params, x):
        return jnp.sum(jnp.tanh(x @ params["plain"]) @ jnp.linalg.inv(params["odd"]))

    params = {"plain": jnp.zeros((200, 300)), "odd": jnp.eye(300)}
    rows = {row.parameter: row for row in explain(loss_fn, params, jnp.ones(200)).rows}
    assert rows["['odd']"].fallback
    assert rows["['plain']"].rule == "outer"


def test_the_table_has_a_line_for_each_parameter_and_says_its_units_and_words():
    explanation = explain(classifier, PARAMS, jnp.zeros(4, int))
    lines = str(explanation).splitlines()
    end = lines.index("")
    assert end == 1 + len(PARAMS)
    assert lines[0].split() == [
        *("parameter", "shape", "rule", "multiplications", "numbers", "kept", "reason")
    ]
    assert lines[end + 1].startswith("Per example: multiplications ")
    explained = {line.partition(":")[0] for line in lines[end + 2 :]}
    assert explained == {row.rule for row in explanation.rows}


def test_a_fallback_is_explained_where_there_is_one():
    text = str(explain(lambda w, x: jnp.sum(x @ jnp.linalg.inv(w)), jnp.eye(3), jnp.ones(3)))
    assert text.splitlines()[-1].startswith("fallback: the loss uses the parameter in a way ")


def test_frozen_arguments_and_keys_are_handed_on():
    def loss_fn(adapter, base, x, key):
        return jnp.sum(x @ (base @ adapter)) * jax.random.uniform(key)

    options = {"frozen_argnums": 1, "key": jax.random.key(0)}
    assert rules(loss_fn, jnp.ones((30, 40)), jnp.ones((20, 30)), jnp.ones(20), **options)


def temporaries(loss_fn, params, batch, **options):
    def total(params, batch):
        return jaxdp.clipped_grad(loss_fn, l2_clip_norm=1.0, **options)(params, batch).value

    return jax.jit(total).lower(params, batch).compile().memory_analysis().temp_size_in_bytes


def test_wide_layers_take_the_memory_of_activations_not_of_gradients():
    def loss_fn(w, x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    params, batch = jnp.zeros((300, 400)), jnp.zeros((64, 300))
    held = temporaries(loss_fn, params, batch, strategy="per_example")
    # All gradients are 64 x 300 x 400 floats, all activations and cotangents 64 x 1100.
    assert held > 64 * 300 * 400 * 4
    assert temporaries(loss_fn, params, batch) < 10 * 64 * 1100 * 4


def test_checkpointed_blocks_save_memory_still():
    def chain(block):
        def loss_fn(params, x):
            def step(x, w):
                return block(x, w), None

            return jnp.sum(jax.lax.scan(step, x, params)[0])

        return loss_fn

    def block(x, w):
        for _ in range(8):
            x = jnp.sin(jnp.exp(jnp.cos(x)))
        return x @ w

    params, batch = jnp.zeros((6, 8, 8)), jnp.zeros((16, 256, 8))
    saving = temporaries(chain(jax.checkpoint(block)), params, batch)
    assert saving < 0.6 * temporaries(chain(block), params, batch)
