"""Directives that show what the program says of itself: `commands`, `fit-options`, `store-schema`."""

import re
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from homodyne_dask.cli import main
from homodyne_dask.cli.fit_config import template
from homodyne_dask.store import schema


class Commands(SphinxDirective):
    """A section for each command: its usage, what it does, and its options."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        text = "\n\n".join(
            _section(command, ctx) for command, ctx in _commands(main, _context(main, None))
        )
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class FitOptions(SphinxDirective):
    """The commented template of fit.yaml, as `homodyne-dask config -` prints it."""

    def run(self) -> list[nodes.Node]:
        """Return it as a block of YAML."""
        return [nodes.literal_block(template(), template(), language="yaml")]


class StoreSchema(SphinxDirective):
    """The arrays and attributes of a store, as the module that checks them says."""

    def run(self) -> list[nodes.Node]:
        """Return them as a block of text."""
        text = (schema.__doc__ or "").split("\n", 2)[2].strip()
        return [nodes.literal_block(text, text, language="text")]


def _context(command: click.Command, parent: click.Context | None) -> click.Context:
    name = "homodyne-dask" if parent is None else command.name
    return click.Context(command, parent, info_name=name, max_content_width=100, terminal_width=100)


def _commands(
    command: click.Command, ctx: click.Context
) -> list[tuple[click.Command, click.Context]]:
    below = command.commands.values() if isinstance(command, click.Group) else []
    of_group = [pair for one in below for pair in _commands(one, _context(one, ctx))]
    return [(command, ctx), *of_group]


def _section(command: click.Command, ctx: click.Context) -> str:
    """Return the section of one command as Markdown."""
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    words = [f"## {ctx.command_path}", f"```text\n{usage}\n```", _help(command)]
    options = [
        one for one in command.get_params(ctx) if isinstance(one, click.Option) and not one.hidden
    ]
    words.append("\n\n".join(_option(one, ctx) for one in options))
    if isinstance(command, click.Group):
        below = (
            f"- `{ctx.command_path} {name}`: {one.get_short_help_str(200)}"
            for name, one in command.commands.items()
        )
        words.append("\n".join(below))
    return "\n\n".join(word for word in words if word)


def _help(command: click.Command) -> str:
    """Return what a command says of itself; blocks that click does not wrap are shown as they are."""
    blocks = (command.help or "").split("\n\n")
    shown = (
        f"```text\n{block.removeprefix('\b').strip('\n')}\n```"
        if block.startswith("\b")
        else _escaped(block)
        for block in blocks
    )
    return "\n\n".join(shown)


def _option(option: click.Option, ctx: click.Context) -> str:
    record = option.get_help_record(ctx)
    assert record is not None, f"{option.name} has no help"
    names, text = record
    return f"`{names}`\n: {_escaped(' '.join(text.split()))}"


def _escaped(text: str) -> str:
    """Return text in which nothing is markup but code between backquotes."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if at % 2 else re.sub(r"([*_<>\[\]#$])", r"\\\1", part)
        for at, part in enumerate(parts)
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    app.add_directive("commands", Commands)
    app.add_directive("fit-options", FitOptions)
    app.add_directive("store-schema", StoreSchema)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
