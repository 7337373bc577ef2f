"""What is promised to users is what tests/public_api.txt says: names, arguments, defaults, options.

To accept a change: HOMODYNE_DASK_ACCEPT=1 python -m pytest tests/test_public_api.py, then read the
difference. docs/stability.md says which changes need which version.
"""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.apps.guide import user_guide as guide
from homodyne_dask.cli import main
from tests.documents import kept_in

PROMISED = Path(__file__).with_name("public_api.txt")
CONSTRUCTED = {"Parameter"}
"""Classes that users call; others come from functions."""
MODEL = {"name", "names", "parameters"}
SOME = {
    "Scan": {"attrs", "dataset", "frames", "label", "median_sigma", "n_frames", "n_pixels", "path", "phi",
             "q", "select", "time"},
    "ResidualModel": MODEL | {"residual"},
    "SeparableModel": MODEL | {"f"},
    "TransportModel": MODEL | {"shear"},
}  # fmt: skip
"""What is promised of classes with members that other modules use; of others it is every member."""


def signature(of: Any) -> str:
    """Return names, order and defaults of arguments: annotations are written differently by each Python."""
    whole = inspect.signature(of)
    arguments = [one.replace(annotation=one.empty) for one in whole.parameters.values()]
    return str(whole.replace(parameters=arguments, return_annotation=whole.empty))


def members(of: type) -> Iterator[str]:
    """Yield the public members of a class, those of its libraries' base classes left out."""
    ours = [one for one in of.__mro__ if one.__module__.startswith("homodyne_dask")]
    names = {name for one in ours for name in (*vars(one), *vars(one).get("__annotations__", {}))}
    names |= set(getattr(of, "__dataclass_fields__", ()))
    for name in sorted(name for name in names if not name.startswith("_")):
        member = inspect.getattr_static(of, name, None)
        if name not in SOME.get(of.__name__, {name}):
            continue
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        yield name + (signature(member) if inspect.isfunction(member) else "")


def described(name: str) -> Iterator[str]:
    """Yield the lines on a public name of Python."""
    value = getattr(hd, name)
    if isinstance(value, type) and issubclass(value, Enum):
        yield f"hd.{name}: " + ", ".join(one.name for one in value)
    elif isinstance(value, type):
        yield f"hd.{name}" + (signature(value) if name in CONSTRUCTED else "")
        yield from (f"    .{member}" for member in members(value))
    elif inspect.isfunction(value):
        yield f"hd.{name}{signature(value)}"
    elif isinstance(value, dict):
        yield f"hd.{name}: {', '.join(value)}"
    else:
        yield f"hd.{name}"


def commands(command: click.Command, words: str) -> Iterator[str]:
    """Yield a line for each command: its arguments and its options."""
    if isinstance(command, click.Group):
        for name, one in sorted(command.commands.items()):
            yield from commands(one, f"{words} {name}")
        return
    options = sorted(
        name
        for one in command.params
        if isinstance(one, click.Option)
        for name in (*one.opts, *one.secondary_opts)
    )
    arguments = [str(one.name) for one in command.params if isinstance(one, click.Argument)]
    yield " ".join([words, *arguments, *options])


def test_public_names_arguments_and_options_are_those_that_are_promised():
    lines = [line for name in sorted(hd.__all__) for line in described(name)]
    found = "\n".join([*lines, *commands(main, "homodyne-dask")]) + "\n"
    assert found == kept_in(PROMISED, found)


def test_type_checkers_find_each_public_name_where_it_is_loaded_from():
    stub = Path(hd.__file__).with_suffix(".pyi").read_text()
    found = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)
    assert {name for _, name in found} | {"__version__", "guide"} == set(hd.__all__)
    for module, name in found:
        assert getattr(hd, name) is getattr(import_module(module), name)


def test_the_page_lists_every_public_name_and_every_command():
    rows = re.findall(r"^\| (.*?) \|", guide.page("stability"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {name for name in listed if name.startswith("hd.")} == {f"hd.{n}" for n in hd.__all__}
    assert set(main.commands) <= {name for name in listed if not name.startswith("hd.")}
