"""Settings of the documentation: `make docs` builds the pages of this folder with Sphinx."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import nbformat
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

LONGEST_VALUE = 100  # characters of a constant that the reference shows
logger = logging.getLogger(__name__)
ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

project = "distattn_jax"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    *("docs/*.md", "docs/api/*.md", "experiments/*.md", "notebooks/*.ipynb"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md"),
]
html_theme = "sphinx_book_theme"
html_title = "distattn_jax"
html_theme_options = {"show_toc_level": 2, "use_download_button": False, "navbar_persistent": []}
html_show_copyright = False
html_show_sourcelink = False
default_role = "code"

nb_execution_mode = "off"  # The notebooks hold their outputs; the tests execute them.
nb_custom_formats = {".ipynb": "conf.read_notebook"}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # A notebook may begin a section below its title.

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # The shapes in the annotations of jaxtyping are no Python names.
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # "Attributes" of a docstring list the fields, which are not listed twice.
napoleon_attr_annotations = False


def read_notebook(text: str) -> nbformat.NotebookNode:
    """Read a notebook. Attached pictures become part of the text, because MyST reads no others."""
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        for name, data in cell.get("attachments", {}).items():
            ((kind, content),) = data.items()
            address = f"data:{kind};base64,{content}".replace("\n", "")
            cell["source"] = cell["source"].replace(f"attachment:{name}", address)
    return notebook


def find_name(value) -> str:
    """Return the full name of an object in the module that defines it."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


class PublicNames(SphinxDirective):
    """Document all names in `__all__` of a package."""

    required_arguments = 1

    def run(self):
        """Return the nodes of the docstrings."""
        package = self.arguments[0]
        module = importlib.import_module(package)
        lines = [f".. automodule:: {package}", "   :no-members:", ""]
        for name in module.__all__:
            value = getattr(module, name)
            is_function = inspect.isroutine(value) or hasattr(value, "__wrapped__")
            kind = "class" if isinstance(value, type) else "function" if is_function else "data"
            lines.append(f".. auto{kind}:: {package}.{name}")
            if kind == "class" and find_name(value) in self.env.get_domain("py").objects:
                lines.append("   :no-index:")  # Another package has the same class.
            if kind == "data" and len(repr(value)) > LONGEST_VALUE:
                lines.append("   :no-value:")
            lines.append("")
        return self.parse_text_to_nodes("\n".join(lines))


def edit_docstring(app, what, name, obj, options, lines):
    """Escape | in a docstring. List the keys of a dict instead of the docstring of its type."""
    if what == "data":
        keys = ", ".join(f"`{key}`" for key in obj) if isinstance(obj, dict) else ""
        lines[:] = [f"Dict with the keys {keys}."] if keys else []
    lines[:] = [line.replace("|", r"\|") for line in lines]


def skip_fields(app, what, name, obj, skip, options):
    """Leave out the fields of a NamedTuple, which the docstring of its class describes."""
    return skip or str(getattr(obj, "__doc__", "")).startswith("Alias for field number")


def check_names(app, env):
    """Warn of public names that the reference lacks. `make docs` counts a warning as an error."""
    documented = set(env.get_domain("py").objects)
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for package in re.findall(r"public-names:: (\S+)", page.read_text()):
            module = importlib.import_module(package)
            for name in module.__all__:
                if documented.isdisjoint({f"{package}.{name}", find_name(getattr(module, name))}):
                    logger.warning("%s.%s is missing in %s", package, name, page)


def write_redirect(app, error):
    """Write an index.html that leads to the first page."""
    if error is None:
        content = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(content)


def setup(app):
    """Connect the directive and the functions above to the build."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", edit_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("env-check-consistency", check_names)
    app.connect("build-finished", write_redirect)
