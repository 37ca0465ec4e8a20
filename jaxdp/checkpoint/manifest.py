"""The manifest of a checkpoint: what it is of, and the digest of each of its files."""

import hashlib
import json
import os
import pathlib
from typing import Any, NoReturn

import jax
import numpy as np

from jaxdp import _validate
from jaxdp.transforms.budget import BudgetState

# Replacing this file is what makes a save take effect, all at once.
NAME = "jaxdp.json"
FORMAT = "jaxdp checkpoint 1"


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
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, BudgetState))
    budgets = [node for node in nodes if isinstance(node, BudgetState)]
    return {
        "leaves": [[path, *kind] for path, kind in zip(paths, kinds, strict=True)],
        "budgets": [
            {
                field: np.asarray(getattr(budget, field)).tolist()
                for field in ("target_epsilon", "log_delta", "event")
            }
            for budget in budgets
        ],
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
    for one, other in zip(stored["budgets"], given["budgets"], strict=False):
        for field, label in (("target_epsilon", "target epsilon"), ("log_delta", "log of delta")):
            if one[field] != other[field]:
                return f"its budget has {label} {one[field]}, and the state given {other[field]}"
        # The hash is zero once the event has varied; what was spent is then all that is known.
        known = np.any(one["event"]) and np.any(other["event"])
        if known and one["event"] != other["event"]:
            return "its privacy event (noise multiplier, sampling) is another one"
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
