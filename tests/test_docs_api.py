"""Every public name is documented, and everything that a page points at exists."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import jaxdp

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "api"
PACKAGES = ["jaxdp"] + [
    f"jaxdp.{module.name}"
    for module in pkgutil.iter_modules(jaxdp.__path__)
    if module.ispkg and not module.name.startswith("_") and module.name != "cli"
]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def exported(package):
    """The names that a package re-exports, ``from x import y as y``, and what they stand for."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    names = [
        alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname == alias.name
    ]
    return {name: getattr(package, name) for name in names}


PUBLIC = [
    (package, name, thing)
    for package in PACKAGES
    for name, thing in exported(importlib.import_module(package)).items()
    if not inspect.ismodule(thing)
]
FUNCTIONS = {
    thing: f"{package}.{name}" for package, name, thing in PUBLIC if inspect.isroutine(thing)
}
CLASSES = {thing: f"{package}.{name}" for package, name, thing in PUBLIC if inspect.isclass(thing)}


def test_the_walk_finds_the_public_names():
    assert jaxdp.clipped_grad in FUNCTIONS
    assert jaxdp.accounting.Gaussian in CLASSES
    assert set(FUNCTIONS) | set(CLASSES) == {thing for _, _, thing in PUBLIC}


@pytest.mark.parametrize("function", FUNCTIONS, ids=FUNCTIONS.values())
def test_a_function_says_what_it_takes_gives_and_refuses(function):
    signature, source = inspect.signature(function), inspect.getsource(function)
    needed = {
        "Args": bool(signature.parameters),
        "Returns": signature.return_annotation is not None,
        "Raises": "_validate." in source or "raise " in source,
        "Example": True,
    }
    sections = re.findall(r"^    (\w+):$", function.__doc__ or "", re.MULTILINE)
    assert [name for name, is_needed in needed.items() if is_needed and name not in sections] == []


@pytest.mark.parametrize("record", CLASSES, ids=CLASSES.values())
def test_a_class_says_what_it_is(record):
    # A named tuple without a docstring is given "Name(field, ...)".
    assert record.__dict__.get("__doc__")
    assert not record.__doc__.startswith(f"{record.__name__}(")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_entry_in_the_reference(package):
    page = (API / f"{package.removeprefix('jaxdp.')}.md").read_text(encoding="utf-8")
    if f".. automodule:: {package}\n   :members:\n   :imported-members:\n" in page:
        return
    entries = re.findall(r"^\.\. (?:auto|py:)(?:function|class):: (?:jaxdp\.)?(\w+)", page, re.M)
    modules = re.findall(r"^\| .*<(\w+)>`", (API / "index.md").read_text(encoding="utf-8"), re.M)
    assert set(exported(importlib.import_module(package))) <= {*entries, *modules}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_points_at_exists(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://|mailto:|#)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    folders = "benchmarks|docs|examples|notebooks|tests"
    paths = re.findall(rf"`(?:python )?((?:{folders})/[\w./]+)", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
