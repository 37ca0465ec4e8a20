"""The contract that every public transformation keeps, as one fixture."""

import functools
import io
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxdp

STEPS = 3


def pytest_collection_modifyitems(config, items):
    """Leaves out on old versions of JAX what is marked ``newest_only``.

    There nothing that is compiled can be kept for another process (see the conftest.py above),
    and the question is whether the package works with that JAX at all. Doctests run there, every
    loss of the zoo meets the reference, and so does the rest of the suite. Marked are further
    shapes, combinations and random cases of what runs there in another form, examples, and
    arithmetic of the host.
    """
    if jax.__version_info__ < (0, 10):
        left_out = [item for item in items if item.get_closest_marker("newest_only")]
        items[:] = [item for item in items if not item.get_closest_marker("newest_only")]
        config.hook.pytest_deselected(items=left_out)


def is_key(leaf):
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_numpy(tree):
    """Plain arrays, as a file can hold them."""
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


def from_numpy(plain, like):
    def rebuild(array, leaf):
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.array(array), impl=jax.random.key_impl(leaf))
        return jnp.array(array)

    return jax.tree.map(rebuild, plain, like)


def assert_close(actual, expected, rtol, law):
    """Equal bit for bit if rtol is 0, else to rtol of each leaf's largest entry."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected), law
    for a, e in zip(*(jax.tree.leaves(to_numpy(tree)) for tree in (actual, expected)), strict=True):
        assert a.dtype == e.dtype, law
        if rtol == 0 or not jnp.issubdtype(e.dtype, jnp.floating):
            np.testing.assert_array_equal(a, e, err_msg=law)
        else:
            atol = rtol * np.max(np.abs(e), initial=0)
            np.testing.assert_allclose(a, e, rtol=0, atol=atol, err_msg=law)


def signature(tree):
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def scale(tree, factor):
    """Another example of the same kind: a ClippedSum's bounds are no floats and stay."""

    def scale_leaf(leaf):
        return leaf * factor if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(scale_leaf, tree)


def without_entries(tree):
    return jax.tree.map(lambda leaf: leaf[..., :0] if leaf.ndim else leaf, tree)


class Contract:
    """One transformation on one example; each method is one law."""

    def __init__(self, make_tx, updates, params, rtol):
        self.make_tx = make_tx
        self.updates = jax.tree.map(jnp.asarray, updates)
        self.params = jax.tree.map(jnp.asarray, params)
        self.rtol = rtol
        assert all(leaf.ndim for leaf in jax.tree.leaves(self.params)), "use no scalar parameters"
        self.step = jax.jit(make_tx().update)
        self.outputs, self.states = self.run(self.step)

    def run(self, step, state=None, updates=None, steps=STEPS):
        state = self.make_tx().init(self.params) if state is None else state
        outputs, states = [], [state]
        for _ in range(steps):
            output, state = step(self.updates if updates is None else updates, state, self.params)
            outputs.append(output)
            states.append(state)
        return outputs, states

    def outputs_are_shaped_like_the_params_in_float32_or_wider(self):
        for output in self.outputs:
            value = output.value if isinstance(output, jaxdp.ClippedSum) else output
            assert jax.tree.structure(value) == jax.tree.structure(self.params)
            for leaf, param in zip(*map(jax.tree.leaves, (value, self.params)), strict=True):
                assert leaf.shape == param.shape
                assert jnp.issubdtype(leaf.dtype, jnp.floating)
                assert leaf.dtype.itemsize >= 4

    def the_state_keeps_its_structure_shapes_and_types(self):
        for state in self.states:
            assert signature(state) == signature(self.states[0])

    def compiled_or_not_the_result_is_the_same(self):
        outputs, states = self.run(self.make_tx().update)
        law = "compiled or not, the result is the same"
        assert_close(outputs, self.outputs, self.rtol, law)
        assert_close(states, self.states, self.rtol, law)

    def it_runs_inside_scan(self):
        tx = self.make_tx()

        @jax.jit
        def scan(state, updates, params):
            def body(state, _):
                output, state = tx.update(updates, state, params)
                return state, output

            return jax.lax.scan(body, state, length=STEPS)

        last, outputs = scan(tx.init(self.params), self.updates, self.params)
        law = "inside scan, the result is the same"
        unstacked = [jax.tree.map(lambda leaf, i=i: leaf[i], outputs) for i in range(STEPS)]
        assert_close(unstacked, self.outputs, self.rtol, law)
        assert_close(last, self.states[-1], self.rtol, law)

    def it_runs_under_vmap(self):
        examples = [self.updates, scale(self.updates, 0.5)]
        singles = [self.run(self.step, updates=example, steps=1) for example in examples]
        state = self.states[0]
        twice = from_numpy(jax.tree.map(lambda x: np.stack([x, x]), to_numpy(state)), state)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *examples)
        over_both = jax.vmap(self.make_tx().update, in_axes=(0, 0, None))
        # vmap turns cond into both branches and a choice; the checker counts both.
        with jax.debug_key_reuse(False):
            outputs, after = jax.jit(over_both)(stacked, twice, self.params)
        for i, (expected, states) in enumerate(singles):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], (outputs, after))
            law = "under vmap, the result is the same"
            assert_close(one, (expected[0], states[1]), self.rtol, law)

    def its_buffers_may_be_donated(self):
        tx = self.make_tx()
        donating = jax.jit(tx.update, donate_argnums=(0, 1))

        def step(updates, state, params):
            with warnings.catch_warnings():
                # A link may have no use for the buffers; they are given up all the same.
                warnings.filterwarnings("ignore", "Some donated buffers were not usable")
                return donating(jax.tree.map(jnp.copy, updates), state, params)

        law = "donated or not, the result is the same, also in a second run"
        for _ in range(2):
            # The same transformation again: its own arrays must have survived.
            state = tx.init(self.params)
            for expected in self.outputs:
                output, state = step(self.updates, state, self.params)
                assert_close(output, expected, 0, law)

    def it_survives_a_file_of_plain_arrays(self):
        state = self.states[1]
        leaves, treedef = jax.tree.flatten(to_numpy(state))
        file = io.BytesIO()
        np.savez(file, *leaves)
        file.seek(0)
        with np.load(file) as stored:
            back = treedef.unflatten([stored[f"arr_{i}"] for i in range(len(leaves))])
        self.goes_on_from(from_numpy(back, state))

    def it_survives_an_orbax_checkpoint(self, folder):
        if not jax.tree.leaves(self.states[1]):
            return  # Orbax refuses to store nothing
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "state", self.states[1])
            checkpointer.wait_until_finished()
            self.goes_on_from(checkpointer.restore(folder / "state", self.states[0]))

    def goes_on_from(self, state):
        outputs, states = self.run(self.step, state=state, steps=STEPS - 1)
        law = "a resumed run goes on bit for bit"
        assert_close(outputs, self.outputs[1:], 0, law)
        assert_close(states[-1], self.states[-1], 0, law)

    def it_works_on_trees_without_entries_or_leaves(self):
        updates = self.updates
        if isinstance(updates, jaxdp.ClippedSum):
            clip = functools.partial(
                jaxdp.ClippedSum,
                l2_sensitivity=updates.l2_sensitivity,
                l1_sensitivity=updates.l1_sensitivity,
            )
            nothing, no_entries = clip({}), clip(without_entries(updates.value))
        else:
            nothing, no_entries = {}, without_entries(updates)
        for updates, params in ((nothing, {}), (no_entries, without_entries(self.params))):
            tx = self.make_tx()
            output, _ = tx.update(updates, tx.init(params), params)
            value = output.value if isinstance(output, jaxdp.ClippedSum) else output
            assert jax.tree.map(jnp.shape, value) == jax.tree.map(jnp.shape, params)


@pytest.fixture
def check_contract(tmp_path):
    """A function that holds a transformation against every law of the contract.

    ``check_contract(make_tx, example_updates, params, rtol=0.0)``: ``make_tx()`` makes the
    transformation, with the same key each time; ``example_updates`` is one update that it
    takes (a ClippedSum, stacked gradients or plain gradients); ``params`` has leaves with at
    least one axis. Results compiled, not compiled, under scan and under vmap agree to
    ``rtol`` of each leaf's largest entry, and bit for bit if it is 0; donated and
    resumed runs always agree bit for bit.
    """

    def check(make_tx, example_updates, params, *, rtol=0.0):
        contract = Contract(make_tx, example_updates, params, rtol)
        contract.outputs_are_shaped_like_the_params_in_float32_or_wider()
        contract.the_state_keeps_its_structure_shapes_and_types()
        contract.compiled_or_not_the_result_is_the_same()
        contract.it_runs_inside_scan()
        contract.it_runs_under_vmap()
        contract.its_buffers_may_be_donated()
        contract.it_survives_a_file_of_plain_arrays()
        contract.it_survives_an_orbax_checkpoint(tmp_path)
        contract.it_works_on_trees_without_entries_or_leaves()

    return check
