"""The README's code runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(code):
    exec(compile(code, str(README), "exec"), {"__name__": "__readme__"})


def test_dp_sgd_takes_twelve_lines_without_imports():
    def count(code):
        lines = [line for line in code.splitlines() if line.strip()]
        return sum(not line.startswith(("import ", "from ")) for line in lines)

    assert len(BLOCKS) >= 3
    assert count(BLOCKS[0]) <= 12
