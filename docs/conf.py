"""How sphinx makes the documentation site of the pages in this folder: `make docs`."""

import hashlib
import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "extensions"))


def _digest_of_the_program() -> str:
    """Return what changes with any line of code: what other code printed is no longer true."""
    files = [*(ROOT / "homodyne_dask").rglob("*.py"), *(ROOT / "ingest").rglob("*.py")]
    content = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(content).hexdigest()[:16]


project = "homodyne_dask"
author = "the homodyne_dask developers"
copyright = author
release = version = version_of("homodyne-dask")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "command_pages",
    "guide_index",
    "mathml",
    "plain_docstrings",
]
exclude_patterns = ["extensions"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages, whose pages are not looked up

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "docs" / "executed" / _digest_of_the_program())
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_ipywidgets_js = {}  # nothing is loaded from elsewhere
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autosummary_generate = False
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 80

html_domain_indices = False  # two modules need no index: names are in the general one
html_theme = "pydata_sphinx_theme"
html_title = f"homodyne_dask {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "homodyne_dask"},
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
