"""What a client's rows must be like, so that no client changes what the others' become."""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdp import _validate


class RowKind(NamedTuple):
    """Structure, types and shapes of a client's rows, whatever their number."""

    structure: Any  # of the pytree
    leaves: tuple[tuple[np.dtype, tuple[int, ...]], ...]  # type and shape of a row, leaf by leaf

    def check(self, name: str, rows: Any) -> int:
        """A client's number of rows, if they are of this kind."""
        size = _validate.leading_axis(name, rows)
        structure: Any = jax.tree.structure(rows)
        if structure != self.structure:
            allowed = f"of the first client's structure {self.structure}"
            _validate.refuse(name, structure, allowed)
        paths = jax.tree_util.tree_leaves_with_path(rows)
        for (path, _), found, own in zip(paths, rows_like(rows).leaves, self.leaves, strict=True):
            if found != own:
                given = f"{found[0]} rows of shape {found[1]}"
                allowed = f"{own[0]} rows of shape {own[1]}, as the first client has them"
                _validate.refuse(name + jax.tree_util.keystr(path), given, allowed)
        return size


def rows_like(rows: Any) -> RowKind:
    """The kind of some rows, arrays ``[n, ...]``."""
    arrays = [
        leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in jax.tree.leaves(rows)
    ]
    kinds = tuple((np.dtype(array.dtype), array.shape[1:]) for array in arrays)
    return RowKind(jax.tree.structure(rows), kinds)
