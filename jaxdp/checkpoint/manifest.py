"""The manifest of a checkpoint: what it is of, and the digest of each of its files."""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _validate

# Replacing this file is what makes a save take effect, all at once.
NAME = "jaxdp.json"
FORMAT = "jaxdp checkpoint 2"

# What a state of this package must go on with, by its type, and how to call it.
_TERMS = {
    "BudgetState": {
        "target_epsilon": "its budget has target epsilon",
        "log_delta": "its budget has log of delta",
        "relation": "its budget is for neighbouring relation number",
        "event": "its privacy event (noise multiplier, sampling) is another one: its hash is",
    },
    "TurnsState": {"period": "its clients take turns with period"},
    "Terms": {
        "digest": "its federated plan (sampler, budget) is another one: its hash is",
        "noise_multiplier": "its federated plan has noise multiplier",
    },
}
_HASHES = ("event", "digest")
# How far a state of this package has come, which no later state takes back.
_COUNTS = ("step", "round")


def _kind(leaf: Any, where: str) -> list[Any]:
    """The type and shape of a leaf, as the manifest has them."""
    if isinstance(leaf, bool | int | float):
        return [type(leaf).__name__, []]
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        _validate.refuse(where, leaf, "an array or a number")
    return [str(leaf.dtype), list(leaf.shape)]


def describe(name: str, state: Any) -> dict[str, Any]:
    """What must agree between a checkpoint and the state that is to go on from it."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    kinds = [_kind(leaf, name + path) for path, (_, leaf) in zip(paths, leaves, strict=True)]
    return {
        "leaves": [[path, *kind] for path, kind in zip(paths, kinds, strict=True)],
        "states": [_promises(where, node) for where, node in _own_states("", state)],
    }


def _own_states(where: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The states of this package in a pytree, however deep, and where they are."""

    def is_own(node):
        return hasattr(node, "_fields") and type(node).__module__.split(".")[0] == "jaxdp"

    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_own):
        if is_own(node):
            here = where + jax.tree_util.keystr(path)
            yield here, node
            for field in node._fields:
                yield from _own_states(f"{here}.{field}", getattr(node, field))


def _promises(where: str, state: Any) -> dict[str, Any]:
    """What one state has to go on with: its terms, its key, and how far it has come."""
    # With several processes: what one of them does not hold is not compared.
    held = {
        field: getattr(state, field)
        for field in state._fields
        if getattr(getattr(state, field), "is_fully_replicated", True)
    }
    terms = {
        field: np.asarray(held[field]).tolist()
        for field in _TERMS.get(type(state).__name__, {})
        if field in held
    }
    keys = {
        field: hashlib.sha256(np.asarray(jax.random.key_data(leaf)).tobytes()).hexdigest()
        for field, leaf in held.items()
        if jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)
    }
    counts = {field: np.asarray(held[field]).tolist() for field in _COUNTS if field in held}
    # A state with neither is post-processing, which may be begun again at any time.
    counts = counts if keys or terms else {}
    return {
        "where": where,
        "type": type(state).__name__,
        "terms": terms,
        "keys": keys,
        "counts": counts,
    }


def differs(stored: dict[str, Any], given: dict[str, Any]) -> str | None:
    """Why a state is not of the run that was stored, or None if it may be."""
    leaves = {path: kind for path, *kind in stored["leaves"]}
    wanted = {path: kind for path, *kind in given["leaves"]}
    for path in [*leaves, *wanted]:
        if leaves.get(path) != wanted.get(path):
            has, asked = (
                "no such leaf" if kind is None else f"{kind[0]}{kind[1]}"
                for kind in (leaves.get(path), wanted.get(path))
            )
            return f"at {path or 'the root'} it holds {has}, and the state given has {asked}"
    if list(leaves) != list(wanted):
        return "its leaves are in another order"
    places, asked_places = (
        [f"{state['type']} at {state['where'] or 'the root'}" for state in described["states"]]
        for described in (stored, given)
    )
    if places != asked_places:
        return f"its private states are {places}, and those of the state given {asked_places}"
    for one, other in zip(stored["states"], given["states"], strict=True):
        for field, has in one["terms"].items():
            asked = other["terms"].get(field, has)
            # A hash is zero once what it is of has varied, and says nothing any more.
            known = field not in _HASHES or (np.any(has) and np.any(asked))
            if known and has != asked:
                return f"{_TERMS[one['type']][field]} {has}, and the state given {asked}"
    return None


def turns_back(stored: dict[str, Any], given: dict[str, Any]) -> str | None:
    """Why a state does not come after the one that was stored, or None if it may.

    The keys of this package's states are fixed for a run, and their counts only grow. A run's
    other keys and counts are its own affair.
    """
    for one, other in zip(stored["states"], given["states"], strict=True):
        for field, has in one["keys"].items():
            if other["keys"].get(field, has) != has:
                return f"its key at {one['where']}.{field} is another one"
        for field, has in one["counts"].items():
            if np.any(np.asarray(other["counts"].get(field, has)) < np.asarray(has)):
                came = other["counts"][field]
                return f"it came to {field} {has} at {one['where']}, and the state given to {came}"
    return None


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def file_digest(path: pathlib.Path, *, flush: bool = False) -> list[Any]:
    """Size and hash of a file; ``flush`` makes sure that it is on the disk."""
    with path.open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def refuse(folder: pathlib.Path, why: str) -> NoReturn:
    """Raises the error that says why nothing is read or written."""
    raise ValueError(
        f"path must hold a checkpoint of this run, got {str(folder)!r}: {why}. "
        "Nothing was overwritten."
    )


def read(folder: pathlib.Path) -> dict[str, Any]:
    """The manifest of a folder, refused if it is missing, damaged or of another format."""
    try:
        content = json.loads((folder / NAME).read_bytes())
        body = content["body"]
        intact = content["sha256"] == _digest(body)
    except FileNotFoundError:
        refuse(folder, f"there is no {NAME}, so no save has finished there")
    except (ValueError, KeyError, TypeError, OSError):
        intact = False
    if not intact:
        refuse(folder, f"its {NAME} is damaged")
    if body["format"] != FORMAT:
        refuse(folder, f"its format is {body['format']!r}, and this version reads {FORMAT!r}")
    return body


def write(folder: pathlib.Path, body: dict[str, Any]) -> None:
    """Puts a manifest in the place of the one before, all at once."""
    new = folder / f"{NAME}.new"
    with new.open("w") as file:
        json.dump({"body": body, "sha256": _digest(body)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder / NAME)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
