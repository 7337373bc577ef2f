"""Modules import each other one way, and inside functions seldom and for a reason."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter

from tests.documents import ROOT

REASON = re.compile(r"# lazy: \S+ +\S+")
INDENTED = re.compile(r"^ +(?:from|import) (?:homodyne_dask|ingest)\b", re.MULTILINE)


def is_own_import(node: ast.AST) -> bool:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    return any(name.partition(".")[0] in ("homodyne_dask", "ingest") for name in modules)


@cache
def imports_in_functions() -> dict[str, bool]:
    """Where each stands, and whether its line or the one above says why."""
    places = {}
    for file in [*ROOT.glob("homodyne_dask/**/*.py"), *ROOT.glob("ingest/**/*.py")]:
        if not INDENTED.search(text := file.read_text()):
            continue
        nodes, lines = ast.walk(ast.parse(text)), text.splitlines()
        functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in filter(is_own_import, (n for f in functions for n in ast.walk(f))):
            near = lines[node.lineno - 2 : node.end_lineno]
            places[f"{file.relative_to(ROOT)}:{node.lineno}"] = any(map(REASON.search, near))
    return places


def test_each_import_inside_a_function_gives_a_reason():
    assert [place for place, has_reason in imports_in_functions().items() if not has_reason] == []


def test_there_are_few_imports_inside_functions():
    assert len(imports_in_functions()) <= 40


def test_no_modules_import_each_other_in_a_circle_not_even_for_types():
    files = [*ROOT.glob("homodyne_dask/**/*.py"), *ROOT.glob("ingest/**/*.py")]
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }
    imported: dict[str, set[str]] = {}
    for module, file in modules.items():
        nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
        names = {
            name for n in nodes for name in (n.module, *(f"{n.module}.{a.name}" for a in n.names))
        }
        # a package that holds a module names it
        imported[module] = {
            name for name in names & modules.keys() if not f"{module}.".startswith(f"{name}.")
        }
    assert len(list(TopologicalSorter(imported).static_order())) == len(modules)
