"""Executes the notebooks from their sources, and saves them with their outputs.

    python notebooks/run.py --smoke            # all of them, at small size: what CI runs
    python notebooks/run.py --save             # full size; writes the .ipynb files
    python notebooks/run.py --save 2_dp_adam   # one of them

The sources are the .py files (jupytext's percent format). A warning in a notebook is an error.
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
# A warning is an error, in cells alone: what the kernel does between them is its own affair.
STRICT = """
import warnings
get_ipython().events.register("pre_run_cell", lambda info: warnings.simplefilter("error"))
get_ipython().events.register("post_run_cell", lambda result: warnings.simplefilter("ignore"))
"""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources() -> list[Path]:
    """The notebooks' sources, in their order."""
    return sorted(FOLDER.glob("[0-9]_*.py"))


def read(source: Path) -> Any:
    """A notebook without outputs, equal for equal sources: its cells are numbered."""
    notebook = jupytext.read(source)
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
    return notebook


def execute(notebook: Any) -> None:
    """Runs all cells in a kernel of their own; raises where one of them fails."""
    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
        extra_arguments=[f"--IPKernelApp.exec_lines={STRICT}", "--IPKernelApp.log_level=ERROR"],
    )
    client.execute()
    # A picture that cannot be drawn does not stop a notebook.
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" or output.get("name") == "stderr":
                raise RuntimeError(f"{cell.source}\n{output.get('evalue', output.get('text'))}")
    # The kernel has filled in its version.
    notebook.metadata = nbformat.from_dict(METADATA)


def run(source: Path, save: bool) -> float:
    """Executes a notebook, and says how many seconds it took."""
    began = time.perf_counter()
    notebook = read(source)
    execute(notebook)
    if save:
        nbformat.write(notebook, source.with_suffix(".ipynb"))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {source.stem: source for source in sources()}
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--smoke", action="store_true", help="small runs (JAXDP_SMOKE=1)")
    parser.add_argument("--save", action="store_true", help="write the .ipynb with its outputs")
    args = parser.parse_args()
    unknown = set(args.names) - set(known)
    if unknown:
        parser.error(f"names must be among {', '.join(known)}, got {', '.join(sorted(unknown))}")
    if args.smoke and args.save:
        parser.error("--save keeps full-size outputs: not together with --smoke")
    os.environ["JAXDP_SMOKE"] = "1" if args.smoke else ""
    with tempfile.TemporaryDirectory() as cache:
        # The notebooks share what they compile.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
        # At full size one by one, for the times that notebooks measure.
        with ThreadPoolExecutor(max_workers=2 if args.smoke else 1) as pool:
            chosen = args.names or list(known)
            taken = pool.map(lambda name: run(known[name], args.save), chosen)
            for name, seconds in zip(chosen, taken, strict=True):
                print(f"{name:<28}{seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
