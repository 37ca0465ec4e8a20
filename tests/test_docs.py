"""The pages of the documentation: their code runs, and what they show is what comes out."""

import contextlib
import doctest
import io
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

from jaxdp.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# cluster.md has a test among those of jaxdp.distributed, for every version of JAX.
PAGES = [
    path.relative_to(DOCS).as_posix()
    for path in sorted(DOCS.rglob("*.md"))
    if path.name != "cluster.md"
]


class Block(NamedTuple):
    language: str
    line: int
    text: str


def blocks_of(path):
    """The fenced blocks of a page that are to be run, in order."""
    text = path.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(python|pycon|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], text.count("\n", 0, m.start()) + 2, m[2]) for m in fences]


def run_python(block, names, page):
    # Blank lines first, so that an error names the line of the page.
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, str(DOCS / page), "exec"), names)


def run_session(block, names, page):
    """What a session shows is what its statements print."""
    session = doctest.DocTestParser().get_doctest(
        block.text, names, page, str(DOCS / page), block.line
    )
    said = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(session, out=said.write, clear_globs=False)
    assert runner.failures == 0, said.getvalue()
    names.update(session.globs)


def run_commands(block, names, page):
    """What a terminal shows is what our command prints; other programs are not run."""
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        program, *arguments = shlex.split(command)
        assert program == "jaxdp", "put the commands of other programs in a bash block"
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(arguments) == 0
        assert said.getvalue().strip() == shown.strip()


RUN = {"python": run_python, "pycon": run_session, "console": run_commands}


@pytest.mark.newest_only  # the README's code runs on every version
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(DOCS / page)])
def test_the_code_of_a_page_runs_and_shows_what_it_prints(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__docs__"}
    for block in blocks_of(DOCS / page):
        # vmap turns cond into both branches and a choice; the checker counts both.
        with jax.debug_key_reuse("jax.vmap(" not in block.text):
            RUN[block.language](block, names, page)
