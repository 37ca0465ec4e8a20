"""Checkpoints: killed and resumed is never interrupted; what is damaged or foreign is refused.

Run as a script, this file is the training run that the tests kill.
"""

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdp
from jaxdp import accounting as acc
from jaxdp import checkpoint, federated, sampling, transforms
from jaxdp.checkpoint import manifest, runs

STEPS = 20
KEY = jax.random.key(5)


def loss_fn(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) ** 2)


def chain(noise_multiplier=1.0, target_epsilon=20.0, delta=1e-5):
    left = transforms.split_noise_multiplier(noise_multiplier, 2.0)
    links = optax.chain(
        transforms.adaptive_clip_norm(
            0.1, count_noise_multiplier=2.0, expected_batch_size=8, key=KEY
        ),
        jaxdp.add_gaussian_noise(left, key=KEY, precompute_steps=3),
        jaxdp.scale_by_batch_size(8),
        optax.adam(1e-2),
    )
    event = acc.Gaussian(noise_multiplier)
    return jaxdp.with_budget(links, event=event, target_epsilon=target_epsilon, delta=delta)


def first_state(**more):
    params = {"w": jnp.ones((6, 4)), "b": jnp.zeros(4)}
    return {
        "params": params,
        "opt_state": chain(**more).init(params),
        "sampler": jax.random.clone(KEY),
        "step": jnp.int32(0),
    }


@jax.jit
def train_step(state):
    examples = jax.random.normal(jax.random.key(0), (40, 6))
    batch = sampling.poisson_batch(
        jax.random.fold_in(state["sampler"], state["step"]),
        num_examples=40,
        sampling_probability=0.2,
        max_batch_size=24,
    )
    norm = transforms.clip_norm(state["opt_state"])
    grad_fn = jaxdp.clipped_grad(loss_fn, l2_clip_norm=norm, return_per_example=True)
    clipped, per_example = grad_fn(
        state["params"], examples[batch.indices], is_padding=batch.is_padding
    )
    within = transforms.count_within(per_example.norm, norm, batch.is_padding)
    updates, opt_state = chain().update(clipped, state["opt_state"], state["params"], within=within)
    params = optax.apply_updates(state["params"], updates)
    return {**state, "params": params, "opt_state": opt_state, "step": state["step"] + 1}


def train(folder):
    """Trains to the end from where the folder says, saving every step."""
    state = jax.jit(first_state)()
    if checkpoint.exists(folder):
        state = checkpoint.restore(folder, state)
    while int(state["step"]) < STEPS:
        print(int(state["step"]), flush=True)  # noqa: T201 (it is what the parent waits for)
        state = train_step(state)
        checkpoint.save(folder, state)


def bits(tree):
    leaves = [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return [(leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()) for leaf in leaves]


def everything_in(folder):
    """Names and contents of all files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


SMALL = {"w": jnp.arange(6.0).reshape(2, 3), "key": jax.random.key(1), "step": jnp.int32(3)}


def test_a_run_that_was_killed_and_resumed_is_the_run_that_never_was(tmp_path):
    """CASES 30: sampler, noise block, adaptive threshold, optimizer and budget included."""
    command = [sys.executable, __file__, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        for line in killed.stdout:
            if line == "7\n":
                break
        killed.send_signal(signal.SIGKILL)
        # It was somewhere between the steps 7 and 8, in a save or in the step.
        assert killed.wait() == -signal.SIGKILL
    resumed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    first = int(resumed.stdout.split()[0])
    assert 7 <= first < STEPS
    assert resumed.stdout.split() == [str(step) for step in range(first, STEPS)]
    expected = jax.jit(first_state)()
    for _ in range(STEPS):
        expected = train_step(expected)
    state = checkpoint.restore(tmp_path / "run", expected)
    assert bits(state) == bits(expected)
    # The budget ran out on the way, so that its refusal is part of what was resumed.
    assert bool(state["opt_state"].exhausted)
    assert 7 < int(state["opt_state"].step) < STEPS
    assert float(transforms.clip_norm(state["opt_state"])) != 0.1


class Killed(BaseException):
    """What a kill looks like from inside: nothing that follows is run."""


@pytest.mark.parametrize(
    ("where", "name", "survivor"),
    [
        (runs.shutil, "rmtree", "new"),
        (manifest, "file_digest", "old"),
        (manifest.json, "dump", "old"),
        (os, "replace", "old"),
        (os, "close", "new"),
    ],
)
def test_a_kill_during_a_save_leaves_the_old_state_or_the_new_one(
    where, name, survivor, tmp_path, monkeypatch
):
    old, new = SMALL, {**SMALL, "w": SMALL["w"] + 1, "step": jnp.int32(4)}
    folder = tmp_path / "run"
    checkpoint.save(folder, old)

    def kill(*args, **kwargs):
        if name != "close" or os.path.samestat(os.fstat(args[0]), folder.stat()):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(where, name, kill)
        with pytest.raises(Killed):
            checkpoint.save(folder, new)
    found = checkpoint.restore(folder, SMALL)
    assert bits(found) == bits(old if survivor == "old" else new)
    checkpoint.save(folder, new)
    assert bits(checkpoint.restore(folder, SMALL)) == bits(new)
    assert len(list(folder.iterdir())) == 2  # nothing is left of the killed save


def test_a_first_save_that_was_killed_counts_for_nothing(tmp_path, monkeypatch):
    def kill(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", kill)
        with pytest.raises(Killed):
            checkpoint.save(tmp_path, SMALL)
    assert not checkpoint.exists(tmp_path)
    with pytest.raises(ValueError, match="no save has finished there"):
        checkpoint.restore(tmp_path, SMALL)
    checkpoint.save(tmp_path, SMALL)
    assert bits(checkpoint.restore(tmp_path, SMALL)) == bits(SMALL)


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path):
    state = {
        "keys": jax.random.split(jax.random.key(1), 3),
        "other generator": jax.random.key(1, impl="rbg"),
        "float": 0.1,
        "int": 2**40 + 1,
        "bool": True,
        "numpy": np.arange(3) / 3,
        "numpy scalar": np.float64(0.1),
        "empty": jnp.zeros((0, 3)),
        "half": jnp.arange(3, dtype=jnp.bfloat16) / 3,
        "not finite": jnp.asarray([jnp.nan, -0.0, jnp.inf, 1e-45]),
        "none": None,
        "nested": (optax.EmptyState(), [jnp.asarray(True)]),
    }
    checkpoint.save(tmp_path, state)
    back = checkpoint.restore(tmp_path, state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
        assert type(one) is type(other)
        assert getattr(one, "committed", None) == getattr(other, "committed", None)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
    arrays = [
        [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")] for tree in (back, state)
    ]
    assert bits(arrays[0]) == bits(arrays[1])
    assert [back[name] for name in ("float", "int", "bool")] == [0.1, 2**40 + 1, True]


def test_arrays_come_back_in_the_sharding_of_the_state_that_goes_on(tmp_path):
    def on(devices):
        mesh = Mesh(np.array(jax.devices()[:devices]), "model")
        sharding = NamedSharding(mesh, PartitionSpec("model"))
        return {"w": jax.device_put(jnp.arange(32.0).reshape(8, 4), sharding)}

    checkpoint.save(tmp_path, on(8))
    back = checkpoint.restore(tmp_path, on(2))
    assert bits(back) == bits(on(2))
    assert back["w"].sharding == on(2)["w"].sharding


def damage(path, kind):
    content = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(content[:-1])
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(flipped)


@pytest.mark.parametrize("kind", ["missing", "truncated", "flipped"])
def test_a_damaged_checkpoint_is_refused_and_left_alone(kind, tmp_path):
    checkpoint.save(tmp_path / "good", SMALL)
    files = [path.relative_to(tmp_path / "good") for path in everything_in(tmp_path / "good")]
    assert len(files) > 5
    for number, name in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", folder)
        if not (folder / name).read_bytes() and kind != "missing":
            continue  # an empty file has no bit to flip
        damage(folder / name, kind)
        before = everything_in(folder)
        with pytest.raises(ValueError, match=r"path must hold .*Nothing was overwritten\."):
            checkpoint.restore(folder, SMALL)
        if name == pathlib.Path("jaxdp.json") and kind != "missing":
            with pytest.raises(ValueError, match=r"its jaxdp\.json is damaged"):
                checkpoint.save(folder, SMALL)
        assert everything_in(folder) == before


OTHERS = {
    "another leaf": ({**SMALL, "more": jnp.zeros(2)}, r"at \['more'\] it holds no such leaf"),
    "a leaf less": ({"w": SMALL["w"], "step": SMALL["step"]}, r"\['key'\] .* has no such leaf"),
    "another shape": ({**SMALL, "w": jnp.zeros((3, 2))}, r"float32\[2, 3\], .* float32\[3, 2\]"),
    "another type": ({**SMALL, "w": SMALL["w"].astype(jnp.bfloat16)}, r"bfloat16\[2, 3\]"),
    "another kind of key": ({**SMALL, "key": jax.random.key(1, impl="rbg")}, r"key<fry>\[\]"),
    "a number": ({**SMALL, "step": 3}, r"it holds int32\[\], and the state given has int\[\]"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_structure_is_refused_and_left_alone(name, tmp_path):
    other, message = OTHERS[name]
    checkpoint.save(tmp_path, SMALL)
    before = everything_in(tmp_path)
    for call in (checkpoint.restore, checkpoint.save):
        with pytest.raises(ValueError, match=f"{message}.*Nothing was overwritten"):
            call(tmp_path, other)
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"noise_multiplier": 0.9}, "its privacy event .* is another one"),
        ({"target_epsilon": 40.0}, "target epsilon 20.0, and the state given 40.0"),
        ({"delta": 1e-6}, "its budget has log of delta -11.5"),
    ],
)
def test_a_checkpoint_of_another_privacy_plan_is_refused_and_left_alone(more, message, tmp_path):
    checkpoint.save(tmp_path, first_state())
    before = everything_in(tmp_path)
    for call in (checkpoint.restore, checkpoint.save):
        with pytest.raises(ValueError, match=message):
            call(tmp_path, first_state(**more))
    assert everything_in(tmp_path) == before


def test_a_run_whose_event_has_varied_may_be_resumed(tmp_path):
    state = first_state()
    varied = state["opt_state"]._replace(event=jnp.zeros(2, jnp.uint32))
    checkpoint.save(tmp_path, {**state, "opt_state": varied})
    back = checkpoint.restore(tmp_path, state)
    np.testing.assert_array_equal(back["opt_state"].event, [0, 0])


def spent_state(key=KEY, step=3, **more):
    """A run that has taken some steps, beside a key and a count of its owner's own."""
    links = optax.chain(
        jaxdp.add_gaussian_noise(1.0, key=key),
        transforms.scale_by_adam_bc(0.1),
    )
    tx = jaxdp.with_budget(links, event=acc.Gaussian(1.0), target_epsilon=50.0, delta=1e-5)
    params = {"w": jnp.ones(3)}
    opt_state = tx.init(params)
    for _ in range(step):
        _, opt_state = tx.update(jaxdp.ClippedSum(params, 1.0), opt_state, params)
    return {"params": params, "opt_state": opt_state, "key": jax.random.key(1), **more}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": jax.random.key(6)}, r"its key at \['opt_state'\]\.inner_state\[0\]\.key"),
        ({"step": 2}, r"it came to step 3 at \['opt_state'\], and the state given to 2"),
        ({"step": 0}, r"it came to step 3 at \['opt_state'\], and the state given to 0"),
    ],
)
def test_another_run_or_an_earlier_step_never_takes_the_place_of_a_spent_one(
    changed, message, tmp_path
):
    checkpoint.save(tmp_path, spent_state())
    before = everything_in(tmp_path)
    with pytest.raises(ValueError, match=f"{message}.*save in another folder or delete this one"):
        checkpoint.save(tmp_path, spent_state(**changed))
    assert everything_in(tmp_path) == before
    # It may be the state to restore with: its values are not looked at.
    back = checkpoint.restore(tmp_path, spent_state(**changed))
    assert bits(back) == bits(spent_state())


def test_what_is_the_owners_own_may_change_between_saves(tmp_path):
    """A key that is split, a count that begins again, a fresh optimizer behind the noise."""
    state = {**spent_state(), "count": jnp.int32(7)}
    checkpoint.save(tmp_path, state)
    checkpoint.save(tmp_path, state)
    budget = spent_state(step=4)["opt_state"]
    fresh = spent_state(step=0)["opt_state"].inner_state[1]
    inner = (budget.inner_state[0], fresh)
    other = {
        **state,
        "opt_state": budget._replace(inner_state=inner),
        "key": jax.random.key(2),
        "count": jnp.int32(0),
    }
    checkpoint.save(tmp_path, other)
    assert bits(checkpoint.restore(tmp_path, state)) == bits(other)


def federated_carry(cohorts, key=KEY, round_number=2, **settings):
    settings = {"noise_multiplier": 4.0, "target_epsilon": 3.0, "delta": 1e-5} | settings
    plan = federated.make_plan(cohorts, num_rounds=4, l2_clip_norm=1.0, **settings)
    fed = federated.make_round(lambda *_: None, optax.sgd(1.0), plan)
    return fed.init(jnp.zeros(2), key)._replace(round=jnp.int32(round_number))


TURNS = federated.GroupCohorts(40, min_separation=10)


@pytest.mark.parametrize(
    ("cohorts", "settings", "message"),
    [
        (federated.GroupCohorts(40, min_separation=20), {}, "take turns with period 10, .* 20"),
        (federated.GroupCohorts(50, min_separation=10), {}, "its federated plan .* is another"),
        (TURNS, {"noise_multiplier": 5.0}, "its privacy event .* is another one"),
    ],
)
def test_a_federated_run_is_resumed_under_its_own_plan_alone(cohorts, settings, message, tmp_path):
    checkpoint.save(tmp_path, federated_carry(TURNS))
    before = everything_in(tmp_path)
    for call in (checkpoint.restore, checkpoint.save):
        with pytest.raises(ValueError, match=message):
            call(tmp_path, federated_carry(cohorts, **settings))
    for changed in ({"key": jax.random.key(6)}, {"round_number": 1}):
        with pytest.raises(ValueError, match="a later state, or another run, is there"):
            checkpoint.save(tmp_path, federated_carry(TURNS, **changed))
    assert everything_in(tmp_path) == before


def test_a_federated_run_without_a_budget_is_resumed_under_its_own_plan_alone(tmp_path):
    free = {"target_epsilon": None}
    checkpoint.save(tmp_path, federated_carry(TURNS, **free))
    with pytest.raises(ValueError, match=r"has noise multiplier 4\.0, and the state given 10\.0"):
        checkpoint.restore(tmp_path, federated_carry(TURNS, noise_multiplier=10.0, **free))
    everyone = federated_carry(federated.GroupCohorts(40, min_separation=1), **free)
    with pytest.raises(ValueError, match=r"its federated plan .* is another one"):
        checkpoint.restore(tmp_path, everyone)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    (tmp_path / "jaxdp-state-of-the-art").mkdir()
    before = everything_in(tmp_path)
    with pytest.raises(ValueError, match="'jaxdp-state-of-the-art' is there"):
        checkpoint.save(tmp_path, SMALL)
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("state", [{}, {"a": jnp.zeros((0, 2))}, None])
def test_a_state_with_nothing_in_it_is_refused(state, tmp_path):
    with pytest.raises(ValueError, match="state must be a pytree with at least one number"):
        checkpoint.save(tmp_path, state)


def test_what_is_no_number_or_path_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"state\['f'\] must be an array or a number, got 'x'"):
        checkpoint.save(tmp_path, {"f": "x"})
    with pytest.raises(ValueError, match="path must be the path of a folder, got 3"):
        checkpoint.restore(3, SMALL)


def test_without_orbax_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdp-privacy\[checkpoint\]'"):
        checkpoint.save(tmp_path, SMALL)


if __name__ == "__main__":
    train(sys.argv[1])
