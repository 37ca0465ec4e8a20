"""The command line as its own process: entry points, the cache of compiled programs."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from jaxdp import _precision

LINE = ["epsilon", "--noise-multiplier", "1", "--steps", "1", "--delta", "1e-5"]
NO_ANSWER = ["calibrate", "--target-epsilon", "1", "--steps", "0", "--delta", ".1"]
FIRST = "epsilon = 4.37718 at delta = 1e-05"


def started(*, env, line=LINE):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "jaxdp", *line],
        env={key: value for key, value in os.environ.items() if not key.startswith("JAX_")} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_was_compiled_is_kept_and_a_broken_cache_changes_nothing(tmp_path):
    answers = [started(env={"XDG_CACHE_HOME": str(tmp_path)}) for _ in range(2)]
    for answer in answers:
        assert answer.returncode == 0, answer.stderr
        assert answer.stderr == ""
        assert answer.stdout.splitlines()[0] == FIRST
    assert answers[0].stdout == answers[1].stdout
    if not _precision.CACHE_IS_RELIABLE:
        assert list(tmp_path.iterdir()) == []
        return
    (machine,) = (tmp_path / "jaxdp").iterdir()
    kept = list(machine.rglob("*-cache"))
    assert kept
    for path in kept:
        path.write_bytes(b"broken")
    again = started(env={"XDG_CACHE_HOME": str(tmp_path)})
    assert (again.returncode, again.stderr, again.stdout) == (0, "", answers[0].stdout)


def test_what_is_read_back_from_the_users_own_cache_is_the_same(tmp_path):
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    run = ["--noise-multiplier", "4", "--sampling-probability", "0.01", "--steps", "10000"]
    for _ in range(2):
        answer = started(env=env, line=["epsilon", *run, "--delta", "1e-5"])
        # The exact value is 0.94686680...: jaxlib 0.6.0 read back a program that said 0.289682.
        assert answer.stdout.splitlines()[0] == "epsilon = 0.946867 at delta = 1e-05"


def test_a_cache_that_cannot_be_kept_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    answer = started(env={"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[0] == FIRST


def test_the_status_of_the_process_is_that_of_the_command(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    nothing = started(env=env, line=NO_ANSWER)
    assert nothing.returncode == 1
    assert nothing.stdout == ""
    assert started(env=env, line=["epsilon"]).returncode == 2


def test_importing_the_library_configures_nothing():
    code = """if True:
        import jax
        names = ("jax_platforms", "jax_compilation_cache_dir",
                 "jax_persistent_cache_min_compile_time_secs")
        before = [getattr(jax.config, name) for name in names]
        import jaxdp, jaxdp.cli.process
        assert [getattr(jax.config, name) for name in names] == before
    """
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={key: value for key, value in os.environ.items() if not key.startswith("JAX_")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert answer.stderr == ""


def test_the_installed_command_is_the_same_program():
    project = Path(__file__).parents[2] / "pyproject.toml"
    name = tomllib.loads(project.read_text())["project"]["scripts"]["jaxdp"]
    point = metadata.EntryPoint("jaxdp", name, "console_scripts")
    from jaxdp.cli.process import run

    assert point.load() is run


def test_the_version_is_printed(capsys):
    from jaxdp.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip()
