"""The sources of the documentation site: every public name, tutorials that parse; `make docs` builds it."""

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location

import pytest

import homodyne_dask as hd
from tests.documents import ROOT, blocks, broken_links

DOCS = ROOT / "docs"
SECTIONS = {
    name: sorted((DOCS / name).glob("*.md")) for name in ("tutorials", "explanation", "reference")
}
PAGES = [file for files in SECTIONS.values() for file in files]


def test_every_public_name_is_in_the_reference_once():
    text = "\n".join(file.read_text() for file in SECTIONS["reference"])
    described = re.findall(
        r"^\.\. (?:py:data|auto(?!summary)\w+):: homodyne_dask\.(\w+)$", text, re.MULTILINE
    )
    assert sorted(described) == sorted(hd.__all__)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_page_is_in_the_contents_of_its_section(section):
    index = (DOCS / section / "index.md").read_text()
    listed = re.search(r"```{toctree}\n(?::.*\n)*\n?((?:\w+\n)*)```", index)
    assert listed is not None
    assert sorted(listed[1].split()) == [f.stem for f in SECTIONS[section] if f.stem != "index"]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_cells_are_python_and_links_lead_to_files(file):
    for cell in blocks(r"{code-cell} ipython3", file):
        ast.parse(
            re.sub(r"\A---\n.*?^---\n|\A(?::[^\n]*\n)+", "", cell, flags=re.DOTALL | re.MULTILINE)
        )
    assert broken_links(file) == []


def test_docstrings_become_what_sphinx_reads():
    spec = spec_from_file_location("plain_docstrings", DOCS / "extensions" / "plain_docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(converter := module_from_spec(spec))
    text = [
        "Return a*b of `q`.", "", "q [1/Å]: of a bin,", "    or of all.", "on: a flag.", "",
        "    shown as it is", "", ">>> 1", "1",
    ]  # fmt: skip
    assert converter.converted(text) == [
        r"Return a\*b of ``q``.", "", ":param q: [1/Å] of a bin, or of all.", ":param on: a flag.", "",
        "::", "", "    shown as it is", "", ">>> 1", "1", "",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("myst_nb") is None, reason="make docs installs sphinx and myst-nb")
def test_the_site_is_built_without_a_warning(tmp_path):
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path)]
    built = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert built.returncode == 0, built.stderr
