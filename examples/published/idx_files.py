"""Reads MNIST, or a data set of the same form, from its four IDX files.

The files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte``
and ``t10k-labels-idx1-ubyte``, gzipped (``.gz``) or not: the names under which Yann LeCun, Corinna
Cortes and Christopher Burges published them. ``docs/published.md`` says where to find them.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

_UNSIGNED_BYTE = 0x08  # the third byte of an IDX file; the fourth is the number of axes


class Split(NamedTuple):
    images: np.ndarray  # float32 [examples, rows, columns], in [0, 1]
    labels: np.ndarray  # int32 [examples], in [0, 10)


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an IDX file, gzipped if its name ends in ``.gz``."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file ({error}): fetch it again.") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise ValueError(
            f"{path} must begin with the bytes 00 00 08, an IDX file of unsigned bytes, "
            f"got {content[:4].hex(' ') or 'an empty file'}."
        )
    num_axes = content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise ValueError(f"{path} ends within its header of {start} bytes.")
    shape = struct.unpack(f">{num_axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path} must hold {math.prod(shape)} bytes after its header, for the shape {shape} "
            f"that it states, got {len(content) - start}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"neither {name} nor {name}.gz is in {folder}: see docs/published.md for where to get them."
    )


def _read_split(folder: Path, prefix: str) -> Split:
    image_file = _find(folder, f"{prefix}-images-idx3-ubyte")
    label_file = _find(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3:
        raise ValueError(f"{image_file} must hold images, 3 axes, got the shape {images.shape}.")
    if labels.ndim != 1:
        raise ValueError(f"{label_file} must hold labels, 1 axis, got the shape {labels.shape}.")
    if len(images) != len(labels):
        raise ValueError(
            f"{image_file} and {label_file} must hold as many images as labels, "
            f"got {len(images)} and {len(labels)}."
        )
    if np.any(labels > 9):
        raise ValueError(f"{label_file} must hold labels from 0 to 9, got {labels.max()}.")
    return Split(images.astype(np.float32) / 255, labels.astype(np.int32))


def read_mnist(folder: Path) -> tuple[Split, Split]:
    """The training and the test split in a folder."""
    return _read_split(Path(folder), "train"), _read_split(Path(folder), "t10k")
