"""The notebooks as saved are those of their sources, executed from top to bottom.

``python notebooks/run.py --smoke`` executes them.
"""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9]_*.py"))
LARGEST = 500_000  # bytes: what GitHub still shows


def cells_of_source(path):
    """The (type, text) of the cells of a file in jupytext's percent format."""
    cells = []
    for block in re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        header, _, text = block.partition("\n")
        if header.strip() == "[markdown]":
            lines = [re.sub(r"^# ?", "", line) for line in text.strip().splitlines()]
            cells.append(("markdown", "\n".join(lines)))
        else:
            # Magic commands are comments in the source.
            cells.append(("code", re.sub(r"^# %", "%", text.strip(), flags=re.MULTILINE)))
    return cells


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


@pytest.fixture
def saved(source):
    return json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))


def test_there_are_four_notebooks():
    assert [path.stem for path in SOURCES] == [
        "1_gaussian_mechanism",
        "2_dp_adam",
        "3_federated",
        "4_which_accountant",
    ]
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SOURCES}


def test_the_saved_notebook_has_the_cells_of_its_source(source, saved):
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in saved["cells"]]
    assert cells == cells_of_source(source)


def test_every_code_cell_was_executed_in_order_without_error_or_noise(saved):
    code = [cell for cell in saved["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_what_is_saved_is_small_and_tells_nothing_about_a_machine(source, saved):
    path = source.with_suffix(".ipynb")
    assert path.stat().st_size < LARGEST
    assert set(saved["metadata"]) == {"kernelspec", "language_info"}
    assert all(cell["metadata"] == {} for cell in saved["cells"])
    shown = [
        "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))
        for cell in saved["cells"]
        for output in cell.get("outputs", [])
    ]
    assert not [text for text in shown if re.search(r"/(home|root|tmp|usr|work|Users)/", text)]
