"""The MNIST examples: what they read, the features they compute, and short runs of each."""

import gzip
import importlib
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp import accounting as acc

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = ["mnist", "mnist_scattering", "mnist_pca"]
RNG = np.random.default_rng(0)


@pytest.fixture
def load(monkeypatch):
    """Imports an example as it imports itself: with the folder of the scripts on the path."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def idx_bytes(array, magic=b"\0\0\x08"):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return magic + bytes([array.ndim]) + shape + array.tobytes()


IMAGES = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
LABELS = np.array([7, 2], np.uint8)


def write_mnist(folder, images=IMAGES, labels=LABELS):
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        compressed = gzip.compress(idx_bytes(labels))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(compressed)


def test_the_four_files_are_read_compressed_or_not(load, tmp_path):
    write_mnist(tmp_path)
    for split in load("published.idx_files").read_mnist(tmp_path):
        np.testing.assert_array_equal(split.images, IMAGES.astype(np.float32) / 255)
        np.testing.assert_array_equal(split.labels, [7, 2])
        assert (split.images.dtype, split.labels.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"<html>not found", "must begin with the bytes 00 00 08"),
        (idx_bytes(LABELS, b"\0\0\x0d"), "must begin with the bytes 00 00 08"),
        (idx_bytes(IMAGES)[:9], "ends within its header of 16 bytes"),
        (idx_bytes(IMAGES)[:-1], "must hold 1568 bytes after its header"),
        (idx_bytes(IMAGES) + b"\0", "must hold 1568 bytes after its header"),
    ],
)
def test_what_is_no_whole_idx_file_is_refused(load, tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load("published.idx_files").read_idx(path)


@pytest.mark.parametrize("damage", [lambda c: c[:-10], lambda c: b"no gzip", lambda c: c[:30] + c])
def test_what_is_no_whole_gzip_file_is_refused(load, tmp_path, damage):
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(idx_bytes(IMAGES))))
    with pytest.raises(ValueError, match="is no whole gzip file"):
        load("published.idx_files").read_idx(path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"labels": np.array([1, 2, 3], np.uint8)}, "as many images as labels, got 2 and 3"),
        ({"labels": np.array([1, 10], np.uint8)}, "labels from 0 to 9, got 10"),
        ({"images": LABELS}, "must hold images, 3 axes"),
        ({"labels": IMAGES}, "must hold labels, 1 axis"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(load, tmp_path, files, message):
    write_mnist(tmp_path, **files)
    with pytest.raises(ValueError, match=message):
        load("published.idx_files").read_mnist(tmp_path)


def test_a_missing_file_is_named(load, tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="neither t10k-labels-idx1-ubyte nor"):
        load("published.idx_files").read_mnist(tmp_path)


def scatter(load, images):
    transform = load("published.scattering").make_scattering(images.shape[-1])
    return np.asarray(jax.jit(jax.vmap(transform))(jnp.asarray(images, jnp.float32)))


@pytest.mark.newest_only
def test_scattering_of_a_constant_image_is_its_average_alone(load):
    features = scatter(load, np.full((1, 28, 28), 0.5))[0]
    # The low-pass filter sums to 1, the wavelets to 0; some thousand float32 roundings of 0.5.
    np.testing.assert_allclose(features[0], 0.5, atol=1e-5)
    np.testing.assert_allclose(features[1:], 0.0, atol=1e-5)


@pytest.mark.newest_only
def test_scattering_of_a_wave_is_largest_along_it(load):
    # A wave down the rows at the coarse wavelets' frequency: orientation 3 of 8 is at angle 0.
    wave = np.cos(0.375 * np.pi * np.arange(28))[:, None] * np.ones(28)
    features = scatter(load, wave[None])[0]
    assert features[1:17].mean(axis=(1, 2)).argmax() == 8 + 3
    # The wave is two complex ones of half the height. The wavelet, whose mean is made 0 by
    # K = exp(-(1.6 * 0.375 pi)^2 / 2) = 0.169, answers them with 1 - K^2 = 0.971 and about
    # -K^2 = -0.029: the modulus lies between (0.971 -+ 0.029) / 2, and so does its average.
    assert 0.471 < features[1 + 8 + 3, 3, 3] < 0.5


@pytest.mark.newest_only
def test_scattering_is_that_of_kymatio(load):
    row, column = np.mgrid[:28, :28]
    (features,) = scatter(load, ((7 * row + 3 * column**2) % 11 / 10)[None])
    # Kymatio 0.3.0, Scattering2D(J=2), at places of every order: (channel, row, column).
    expected = {
        (0, 0, 0): 0.53324,
        (1, 3, 3): 0.05186,
        (6, 2, 5): 0.07415,
        (12, 6, 1): 0.01217,
        (16, 0, 6): 0.04069,
        (17, 3, 3): 0.00678,
        (40, 5, 2): 0.01301,
        (80, 1, 4): 0.00094,
    }
    # Kymatio rounds pi to 3.1415 in its filters, 3e-5 of each value; the list has five digits.
    for place, value in expected.items():
        assert abs(features[place] - value) < 4e-5


def test_the_private_mean_is_the_mean_but_for_its_noise(load):
    example = load("mnist_scattering")
    rows = RNG.normal(size=(400, 50)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    mean, event = example.private_mean(jnp.asarray(rows), 4.0, jax.random.key(0))
    noise = (np.asarray(mean) - rows.mean(axis=0)) * 400
    assert float(event.noise_multiplier) == 4.0
    # Std of the sample std of 50 draws is sigma / sqrt(100): within 5 of them.
    assert abs(noise.std() - 4.0) < 5 * 4.0 / 10


def test_the_private_projection_evens_out_the_components_halfway(load):
    example = load("mnist_pca")
    # Images in a space of 60 dimensions: without noise to speak of, nothing else is left over.
    basis, _ = np.linalg.qr(RNG.normal(size=(784, 60)))
    coordinates = RNG.normal(size=(3000, 60)) * np.geomspace(1.0, 3.0, 60)
    images = jnp.asarray(coordinates @ basis.T, jnp.float32).reshape(-1, 28, 28)
    directions, event = example.private_projection(images, 1e-3, jax.random.key(0))
    assert float(event.noise_multiplier) == 1e-3
    # Noise of spectral norm 2 sqrt(784) 1e-3 = 0.06, and as much again from rounding, against
    # eigenvalues of 13 and more: an angle of 0.01 at most, of which the cosine lacks 5e-5.
    lengths = np.linalg.norm(directions, axis=0)
    np.testing.assert_allclose(np.linalg.norm(basis.T @ directions, axis=0), lengths, rtol=1e-4)
    # Mean squares go like square roots of eigenvalues, which that noise moves by half of 1 %.
    rows = coordinates / np.linalg.norm(coordinates, axis=1, keepdims=True)
    spread = np.sqrt(np.linalg.eigvalsh(rows.T @ rows))
    squares = (np.asarray(example.project(images, directions)) ** 2).mean(axis=0)
    np.testing.assert_allclose(squares, 60 * spread / spread.sum(), rtol=1e-2)


@pytest.mark.newest_only
def test_normalised_features_do_not_change_with_the_contrast_of_the_image(load):
    example = load("mnist_scattering")
    images = jnp.asarray(RNG.uniform(size=(3, 28, 28)), jnp.float32)
    features = np.asarray(example.features_of(images))
    # The 1e-6 that saves an empty image from 0 / 0 shows against lengths of 0.01 and more.
    np.testing.assert_allclose(example.features_of(images / 2), features, atol=2e-4)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, rtol=1e-5)
    empty = np.asarray(example.features_of(jnp.zeros((1, 28, 28))))
    assert np.isfinite(empty).all()
    assert np.linalg.norm(empty) < 1.0 + 1e-5


def test_the_second_convolution_is_that_of_jax(load):
    example = load("mnist")
    image = jnp.asarray(RNG.normal(size=(13, 13, 3)), jnp.float32)
    kernels = jnp.asarray(RNG.normal(size=(4, 4, 3, 5)), jnp.float32)
    (expected,) = jax.lax.conv_general_dilated(
        image[None], kernels, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    # Sums of 48 products in float32.
    np.testing.assert_allclose(example.convolve_patches(image, kernels), expected, atol=1e-4)


def test_the_noise_of_the_covariance_is_that_of_its_event(load, monkeypatch):
    example = load("mnist_pca")
    seen = []
    eigh = jnp.linalg.eigh
    monkeypatch.setattr(jnp.linalg, "eigh", lambda matrix: seen.append(matrix) or eigh(matrix))
    example.private_projection(jnp.zeros((5, 28, 28)), 3.0, jax.random.key(0))
    (noise,) = seen
    np.testing.assert_array_equal(noise, noise.T)
    draws = np.asarray(noise)[np.triu_indices(784)]
    # 307,720 draws: 5 standard deviations of the sample std.
    assert abs(draws.std() - 3.0) < 5 * 3.0 / (2 * draws.size) ** 0.5


@pytest.mark.newest_only
def test_release_and_training_together_meet_the_target(load):
    release = acc.Gaussian(5.0)
    private, statement = load("published.composed").make_private_after(
        release,
        lambda params, example: jnp.sum(params * example),
        optax.sgd(1.0),
        target_epsilon=2.0,
        delta=1e-5,
        num_examples=1000,
        expected_batch_size=100.0,
        num_steps=20,
        l2_clip_norm=1.0,
    )
    plan = private.plan
    together = acc.epsilon(release + plan.event, delta=plan.delta - plan.overflow_delta)
    # Calibration stops within 1e-6 of its target, from below.
    assert 2.0 * (1 - 1e-5) < together <= 2.0
    assert plan.epsilon < 1.99
    assert f"({together!r}, 1e-05)-differential privacy" in statement


# Six steps on 1,500 digits. Guessing gets 10 % of 297, with a deviation of 1.7 %. The convolutional
# network begins with small weights, and takes more steps than that to learn anything.
@pytest.mark.newest_only
@pytest.mark.parametrize(("script", "least"), [("mnist", 0.0), ("mnist_scattering", 0.2)])
def test_a_smoke_run_goes_through_and_learns_where_it_can(load, script, least, capsys, tmp_path):
    picture = tmp_path / "run.png"
    with jax.numpy_rank_promotion("allow"):
        accuracy = load(script).main(["--smoke", "--output", str(picture)])
    assert least < accuracy <= 1.0
    printed = capsys.readouterr().out
    assert f"{100 * accuracy:.2f} %" in printed
    assert "1e-05)-differential privacy" in printed
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_data_a_script_says_where_to_get_them(load, script, capsys):
    with pytest.raises(SystemExit):
        load(script).main([])
    assert "--data-dir is needed" in capsys.readouterr().err


@pytest.mark.newest_only
def test_published_numbers_are_recomputed(load, capsys):
    rows = load("published_epsilons").main(["--smoke"])
    assert "Abadi" in capsys.readouterr().out
    for row in rows:
        assert abs(row.recomputed["moments"] - row.stated) < 0.01 * row.stated
        assert row.recomputed["exact"] < row.recomputed["rdp"] < row.recomputed["moments"]
