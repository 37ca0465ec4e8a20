"""Checkpoints of a whole run, by Orbax: written atomically, verified before they are read."""

import os
import pathlib
import re
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxdp import _validate
from jaxdp.checkpoint import manifest

# A checkpoint is a folder that holds a manifest and the Orbax checkpoint that it names.
_DATA = re.compile(r"jaxdp-state-(\d+)(\.orbax-checkpoint-tmp.*)?")


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            "jaxdp.checkpoint needs Orbax: pip install 'jaxdp-privacy[checkpoint]'."
        ) from error
    return ocp


def _folder(path: Any) -> pathlib.Path:
    if not isinstance(path, str | os.PathLike):
        _validate.refuse("path", path, "the path of a folder")
    # Orbax takes absolute paths only.
    return pathlib.Path(path).absolute()


def exists(path: Any) -> bool:
    """Whether a save has ever finished at ``path``.

    Args:
      path: The folder of a checkpoint, a string or ``os.PathLike``.

    Returns:
      True if there is one to ``restore``, damaged or not. A save that was killed before it
      finished counts for nothing.

    Raises:
      ValueError: if ``path`` is no path.

    Example:
      >>> from jaxdp import checkpoint
      >>> checkpoint.exists("/nowhere/run")
      False
    """
    return (_folder(path) / manifest.NAME).exists()


def _data(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"jaxdp-state-{number}"


def _foreign(folder: pathlib.Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir())
    return [name for name in names if not (_DATA.fullmatch(name) or name.startswith(manifest.NAME))]


def _remove_data(folder: pathlib.Path, *, keep: int) -> None:
    for entry in list(folder.iterdir()):
        if _DATA.fullmatch(entry.name) and entry != _data(folder, keep):
            shutil.rmtree(entry)


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"jaxdp.checkpoint {name}")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _fits_host(leaf: Any) -> bool:
    """Whether this process has all of an array."""
    if not isinstance(leaf, jax.Array):
        return True
    return leaf.is_fully_addressable or leaf.is_fully_replicated


def _stored(state: Any) -> dict[str, Any]:
    """The leaves as Orbax takes them: keys as numbers, nothing of size zero."""
    leaves = [
        jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(state)
    ]
    # From the host where that can be: Orbax's way of sharing the work of writing an array that
    # several devices hold does not run on JAX 0.6.
    return {
        f"{i:06d}": np.asarray(leaf) if _fits_host(leaf) else leaf
        for i, leaf in enumerate(leaves)
        if np.size(leaf)
    }


def _target(leaf: Any) -> Any:
    """What tells Orbax the type and place of a stored leaf."""
    if isinstance(leaf, np.ndarray):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _as_in(leaf: Any, value: Any) -> Any:
    """A restored value as the leaf that it takes the place of, on the same devices."""
    if value is None:  # of size zero, and so not stored
        return leaf
    if not isinstance(leaf, jax.Array):
        return value if isinstance(leaf, np.ndarray) else type(leaf)(value.item())
    if _is_key(leaf):
        data = _as_in(jax.random.key_data(leaf), value)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(value, jax.Array):
        return value
    if not leaf.committed:
        return jnp.array(value)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda at: value[at])


def save(path: Any, state: Any) -> None:
    """Writes the state of a run, in place of the one that was written before.

    Save *everything that the next step reads*: parameters, optimizer state (noise keys and
    steps, adaptive threshold, budget), and the sampler's key or step. A run that resumes with
    the noise of a step it has taken, on another batch than it had then, uses that noise
    twice: if both results are released, their difference has none.

    Args:
      path: The folder of the checkpoint, made if it does not exist.
      state: Pytree of arrays (typed PRNG keys included) and numbers. With several processes,
        global arrays, a shared file system, and a call by every process.

    Raises:
      ValueError: if ``state`` has a leaf that is no array or number, or none at all; if
        ``path`` holds something that is not a checkpoint, a damaged one, or one of another
        structure, privacy budget or run (another key), or of a later step: it is then left
        as it is. To start anew, save in another folder or delete this one.
      ImportError: if Orbax is not installed (the extra ``checkpoint``).

    Guarantee:
      Atomic: killed at any moment, the folder holds the last state that was saved or this one,
      whole. Any bit that changes afterwards is noticed by ``restore``. The state is the
      curator's: it holds the keys of the noise and is NOT private. Release parameters only.

    Example:
      >>> import tempfile, jax, jax.numpy as jnp
      >>> from jaxdp import checkpoint
      >>> state = {"params": jnp.ones(3), "key": jax.random.key(0)}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     checkpoint.save(folder, state)
      ...     back = checkpoint.restore(folder, state)
      >>> back["params"].tolist()
      [1.0, 1.0, 1.0]
    """
    ocp = _orbax()
    folder = _folder(path)
    described = manifest.describe("state", state)
    arrays = _stored(state)
    if not arrays:
        _validate.refuse("state", state, "a pytree with at least one number in it")
    number = 0
    if exists(folder):
        before = manifest.read(folder)
        if why := manifest.differs(before, described):
            manifest.refuse(folder, f"another one is there: {why}")
        if why := manifest.turns_back(before, described):
            anew = "To start anew, save in another folder or delete this one"
            manifest.refuse(folder, f"a later state, or another run, is there: {why}. {anew}")
        number = before["number"] + 1
    elif folder.exists() and _foreign(folder):
        manifest.refuse(
            folder, f"{_foreign(folder)[0]!r} is there, which is no part of a checkpoint"
        )
    _barrier("has read")
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        # What a killed save left behind, and nothing that a manifest names.
        _remove_data(folder, keep=number - 1)
    _barrier("has cleared")
    data = _data(folder, number)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(data, arrays)
        checkpointer.wait_until_finished()
    _barrier("has written")
    if jax.process_index() == 0:
        files = {
            file.relative_to(data).as_posix(): manifest.file_digest(file, flush=True)
            for file in sorted(data.rglob("*"))
            if file.is_file()
        }
        body = {"format": manifest.FORMAT, "number": number, "files": files, **described}
        manifest.write(folder, body)
        _remove_data(folder, keep=number)
    _barrier("has finished")


def restore(path: Any, like: Any) -> Any:
    """Reads the state of a run, after verifying all of it.

    Args:
      path: The folder of the checkpoint.
      like: A state of the same run, such as the one that it begins with: its structure,
        shapes, types, shardings and privacy budget are what the checkpoint must have (shardings
        excepted: arrays come back in those of ``like``, whatever they were written from).

    Returns:
      A pytree like ``like`` with the stored values, bit for bit.

    Raises:
      ValueError: if there is no finished checkpoint, a file of it is missing or has changed
        since it was written, or it does not fit ``like``: another structure, shape, type or
        kind of key, another target epsilon, delta, privacy event or federated plan. To go on
        under another event on purpose, restore with the state of the old chain.
      ImportError: if Orbax is not installed (the extra ``checkpoint``).

    Guarantee:
      A run that goes on from what it has saved is the run that was never interrupted, bit
      for bit, on the same devices and versions. Nothing on disk is changed.

    Example:
      See ``save``.
    """
    ocp = _orbax()
    folder = _folder(path)
    body = manifest.read(folder)
    if why := manifest.differs(body, manifest.describe("like", like)):
        manifest.refuse(folder, why)
    data = _data(folder, body["number"])
    for name, digest in body["files"].items():
        try:
            intact = manifest.file_digest(data / name) == digest
        except OSError:
            manifest.refuse(folder, f"its file {data.name}/{name} is missing or cannot be read")
        if not intact:
            manifest.refuse(folder, f"its file {data.name}/{name} has changed since it was written")
    leaves = jax.tree.leaves(like)
    targets = {name: _target(leaf) for name, leaf in _stored(like).items()}
    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(data, targets)
    values = [_as_in(leaf, found.get(f"{i:06d}")) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(jax.tree.structure(like), values)
