"""The code of docs/cluster.md runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def test_the_code_of_the_cluster_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names = {"__name__": "__cluster__"}
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
    assert int(names["state"][0].step) == 1
