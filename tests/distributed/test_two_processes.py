"""Two processes, joined on loopback, train what one process does, bit for bit."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed import private_run


@pytest.fixture(scope="module")
def on_eight_devices():
    return private_run.train(8, num_shards=16)


def test_a_run_on_one_device_has_the_same_bits_as_on_eight(on_eight_devices):
    assert private_run.digest(private_run.train(1, num_shards=16)) == private_run.digest(
        on_eight_devices
    )


def test_in_any_order_of_summation_the_run_agrees_to_rounding(on_eight_devices):
    params, seen = private_run.train(8, num_shards=None)
    for (norm, indices), (other_norm, other_indices) in zip(seen, on_eight_devices[1], strict=True):
        np.testing.assert_array_equal(indices, other_indices)
        # The counts are of whole examples; another norm bound could move one over the threshold,
        # which it does not for these.
        np.testing.assert_allclose(norm, other_norm, rtol=1e-6)
    for name, leaf in params.items():
        # Adam divides by the root of a second moment near the square of the first: four steps
        # of 0.01, each wrong by the relative rounding of a noisy sum of 45 terms, 45 * 6e-8 * 100.
        np.testing.assert_allclose(leaf, on_eight_devices[0][name], atol=4 * 0.01 * 3e-4)


def test_two_processes_of_four_devices_have_the_same_bits(on_eight_devices, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_USE_SHARDY_PARTITIONER": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, private_run.__file__, str(port), str(rank), str(tmp_path / "run")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    expected = f"8 {private_run.digest(on_eight_devices)}"
    for process, (found, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
        assert found.splitlines()[-1] == expected
