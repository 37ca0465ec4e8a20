"""The scattering transform of an image: two layers of fixed wavelets, nothing learnt.

An image is convolved with Morlet wavelets of two scales and eight orientations; the modulus is
averaged (first order), or convolved once more with the coarser wavelets before its modulus is
averaged (second order). Each image is transformed by itself, so that the features of a private
image are private data of that image alone, and cost no privacy.

References:
  Bruna and Mallat 2013, Invariant Scattering Convolution Networks, arXiv:1203.1513;
  Oyallon and Mallat 2015, arXiv:1412.8659. Filters and grid are those of Kymatio's
  ``Scattering2D(J=2)`` (Andreux et al. 2020, arXiv:1812.11214).
"""

import jax.numpy as jnp
import numpy as np

ORIENTATIONS = 8
STRIDE = 4  # two octaves: one output pixel for 4 x 4 input pixels
CHANNELS = 1 + 2 * ORIENTATIONS + ORIENTATIONS**2


def _gabor(size: int, sigma: float, theta: float, frequency: float, slant: float):
    """A complex wave along ``theta`` under a Gaussian window, on a periodic grid [size, size]."""
    offsets = np.arange(-2 * size, 3 * size)
    x, y = np.meshgrid(offsets, offsets, indexing="ij")
    along = x * np.cos(theta) + y * np.sin(theta)
    across = y * np.cos(theta) - x * np.sin(theta)
    window = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    wave = window * np.exp(1j * frequency * along) * slant / (2 * np.pi * sigma**2)
    return wave.reshape(5, size, 5, size).sum((0, 2))


def _morlet(size: int, scale: int, orientation: int):
    """A wavelet without mean, in the Fourier domain [size, size]."""
    sigma, frequency = 0.8 * 2**scale, 0.75 * np.pi / 2**scale
    theta = (ORIENTATIONS / 2 - 1 - orientation) * np.pi / ORIENTATIONS
    slant = 4 / ORIENTATIONS
    wave = _gabor(size, sigma, theta, frequency, slant)
    window = _gabor(size, sigma, theta, 0.0, slant)
    return np.fft.fft2(wave - wave.sum() / window.sum() * window).real


def _averaging(size: int, subsampled: int):
    """Matrix [outputs, size / subsampled]: Gaussian average at every STRIDE-th inner pixel.

    In Fourier it keeps the frequencies that a grid coarser by ``subsampled`` can hold.
    """
    offsets = np.arange(-2 * size, 3 * size)
    sigma = 0.8 * STRIDE / 2
    window = np.exp(-(offsets**2) / (2 * sigma**2)) / np.sqrt(2 * np.pi * sigma**2)
    spectrum = np.fft.fft(window.reshape(5, size).sum(0)).real
    coarse = size // subsampled
    spectrum = np.concatenate([spectrum[: coarse // 2], spectrum[size - coarse // 2 :]])
    kernel = np.fft.ifft(spectrum).real
    position = np.arange(coarse)
    circulant = kernel[(position[:, None] - position[None, :]) % coarse]
    # The outermost outputs lie in the padding.
    return circulant[:: STRIDE // subsampled][1:-1]


def _halve(spectrum):
    """The spectrum of every second pixel of an image whose spectrum is given."""
    *batch, rows, columns = spectrum.shape
    return spectrum.reshape(*batch, 2, rows // 2, 2, columns // 2).mean((-4, -2))


def make_scattering(side: int):
    """The transform of one image ``[side, side]`` to ``[81, side / 4, side / 4]``.

    ``side`` is a multiple of 4. Channels: the average; first order, fine then coarse scale by
    orientation; second order, by orientation of the fine, then of the coarse wavelet.
    """
    if side % STRIDE or side < 2 * STRIDE:
        raise ValueError(f"side must be a multiple of {STRIDE} and at least 8, got {side}.")
    size = side + 2 * STRIDE
    wavelets = np.stack(
        [[_morlet(size, scale, turn) for turn in range(ORIENTATIONS)] for scale in range(2)]
    )
    fine, coarse = jnp.asarray(wavelets, jnp.float32)
    whole, half = (jnp.asarray(_averaging(size, step), jnp.float32) for step in (1, 2))

    def average(matrix, image):
        return matrix @ image @ matrix.T

    def scatter(image):
        spectrum = jnp.fft.fft2(jnp.pad(image, STRIDE, mode="reflect"))
        fine_modulus = jnp.abs(jnp.fft.ifft2(spectrum[None] * fine))
        coarse_modulus = jnp.abs(jnp.fft.ifft2(_halve(spectrum[None] * coarse)))
        second = jnp.fft.fft2(fine_modulus)[:, None] * coarse[None]
        second_modulus = jnp.abs(jnp.fft.ifft2(_halve(second)))
        features = [
            average(whole, jnp.fft.ifft2(spectrum).real)[None],
            average(whole, fine_modulus),
            average(half, coarse_modulus),
            average(half, second_modulus.reshape(-1, size // 2, size // 2)),
        ]
        return jnp.concatenate(features)

    return scatter
