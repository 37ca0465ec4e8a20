"""The documentation site: Sphinx, Markdown pages by MyST, the API from docstrings.

sphinx-build -W --keep-going -n -b html docs out/docs
"""

import pathlib
import sys
from importlib import metadata

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "jaxdp"
author = "the jaxdp authors"
copyright = author
release = metadata.version("jaxdp-privacy")
version = release

extensions = [
    "myst_nb",  # Markdown pages and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "record_fields",
]
exclude_patterns = ["_build", "_ext"]
templates_path: list[str] = []

html_theme = "furo"
html_title = f"jaxdp {release}"
html_static_path: list[str] = []
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the test suite runs the notebooks

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Guarantee", "notes_style"), ("Guarantees", "notes_style")]
napoleon_use_rtype = False

# Types of other libraries and abbreviations of types have no page here to link to.
nitpick_ignore_regex = [
    ("py:.*", r"(jax|jaxlib|numpy|optax|typing|collections)(\..*)?"),
    ("py:.*", r"(Any|Callable|Sequence|Iterable|Array)"),
    ("py:class", r"jaxdp\.report\.progress\.T"),
    # Protocols and records that only other parts of the package have to do with.
    ("py:class", r"jaxdp\.federated\.(data\.Source|stream\.RandomAccess|terms\.Terms)"),
    ("py:class", r"jaxdp\.federated\.mime\.Mime(Model|Sum)"),
]
