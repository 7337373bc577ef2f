"""The command homodyne-dask with its subcommands, each loaded when it is called.

Exit status: 0 done (`fit`: converged), 1 a bug (`doctor`: something has to be done), 2 bad input,
3 `fit` ended without converging, 4 `fit --strict` found a misfit, 130 interrupted.
"""

import os
import sys
import traceback
from ast import FunctionDef, get_docstring, parse
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from homodyne_dask import plugins
from homodyne_dask.cli import exit_status
from homodyne_dask.cli.printing import echo, printing
from homodyne_dask.kernels.gpus import PROCESSORS_ALONE

GROUP = "homodyne_dask.commands"
"""The group of entry points in which installed packages register commands."""
_MODULES = "homodyne_dask.cli.commands"
SECTIONS: dict[str, dict[str, str]] = {
    "Data": {
        "ingest": "Write the matrices of a result file to a Zarr store.",
        "info": "Print the bins and the source of a store.",
        "simulate": "Simulate a result file with known parameters.",
    },
    "Fits": {
        "plan": "Estimate the size, memory and time of a fit.",
        "fit": "Fit a model to stores; write results to folders.",
        "config": "Write a commented template of all options of a fit.",
    },
    "Results": {
        "show": "Print the report of a fit.",
        "compare": "Compare fits of several models to the same data.",
    },
    "Clusters": {"key": "Create the key of an encrypted cluster."},
    "Help": {"doctor": "Check this machine and its environment."},
}
"""The commands of the library, each a module of its name in `cli.commands`: by section the short help.

A section also has the commands that applications register in the group homodyne_dask.commands.SECTION;
their short help is the first line of their docstring.
"""
_LIBRARY = {name for section in SECTIONS.values() for name in section}
ANYWHERE = ({"--debug"}, {"--verbose", "-v"}, {"--quiet", "-q"})
"""Options that every command accepts, before and after its name."""


class Commands(Mapping[str, click.Command]):
    """The commands by name; looking one up imports its module, names and short help do not."""

    @cached_property
    def applications(self) -> dict[str, dict[str, EntryPoint]]:
        return {
            section: {p.name: p for p in plugins.applications_in(f"{GROUP}.{section.lower()}")}
            for section in SECTIONS
        }

    @cached_property
    def _of_applications(self) -> dict[str, EntryPoint]:
        return {name: p for points in self.applications.values() for name, p in points.items()}

    @cached_property
    def installed(self) -> dict[str, list[EntryPoint]]:
        """The commands of other packages by name; one with a name of this package is not among them."""
        points_by_name: dict[str, list[EntryPoint]] = {}
        for point in plugins.offered_in(GROUP):
            if point.name in self._of_applications or point.name in _LIBRARY:
                plugins.warn_of(
                    str(plugins.unusable(point, "homodyne-dask has a command of that name"))
                )
            else:
                points_by_name.setdefault(point.name, []).append(point)
        return points_by_name

    def __contains__(self, name: object) -> bool:
        return name in _LIBRARY or name in self._of_applications or name in self.installed

    def __getitem__(self, name: str) -> click.Command:
        if name in _LIBRARY:
            return resolve_name(f"{_MODULES}.{name}:{name}")
        if point := self._of_applications.get(name):
            return plugins.load_application(point, f"the command {name!r}")
        point, *namesakes = self.installed[name]
        if namesakes:
            raise plugins.unusable(point, f"{namesakes[0].value} has the same name")
        return plugins.loaded(
            point, lambda command: isinstance(command, click.Command), "a click command"
        )

    def __iter__(self) -> Iterator[str]:
        for section, names in SECTIONS.items():
            yield from (*names, *self.applications[section])
        yield from self.installed

    def __len__(self) -> int:
        return len(list(iter(self)))

    def short_help(self) -> dict[str, dict[str, str]]:
        """Return a line on each command, by section and name; no command is imported."""
        sections = {
            section: names | {n: _first_line(p) for n, p in self.applications[section].items()}
            for section, names in SECTIONS.items()
        }
        extras = {}
        for name, (point, *_) in self.installed.items():
            package = point.value.partition(":")[0].partition(".")[0]
            extras[name] = plugins.metadata_of(point, "Summary") or f"From the package {package}."
        return sections | ({"Other packages": extras} if extras else {})


def _first_line(point: EntryPoint) -> str:
    """Return the first line of the docstring of a command, whose module is read but not imported."""
    try:
        spec = find_spec(point.module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return "Not installed."
    for node in parse(Path(spec.origin).read_text()).body:
        if isinstance(node, FunctionDef) and node.name == point.attr:
            return (get_docstring(node) or "").partition("\n")[0]
    return ""


class Program(click.Group):
    """A group of commands that prints an error as one sentence and exits with its status."""

    commands: Commands  # type: ignore[assignment]

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        PROCESSORS_ALONE.set()
        os.environ["MPLBACKEND"] = "agg"  # pictures go to files: that of a notebook may not be here
        debug, verbose, quiet = (not names.isdisjoint(words) for names in ANYWHERE)
        words = [word for word in words if not any(word in names for names in ANYWHERE)]
        try:
            exit_status.check_limits()
            with (
                exit_status.sigterm_interrupts(),
                printing(hidden=quiet),
                exit_status.messages(debug, verbose),
            ):
                extra |= {"standalone_mode": False}
                status = super().main(words, prog_name or "homodyne-dask", **extra)
        # whatever it is becomes one sentence and an exit status; SystemExit has its own
        except (Exception, KeyboardInterrupt, exit_status.Interrupted) as e:
            if debug:
                traceback.print_exc()
            status = exit_status.print_error(e)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; where click names none in a mistake, as of a missing value, it is this one."""
        try:
            return super().invoke(ctx)
        except click.UsageError as e:
            name = ctx.invoked_subcommand
            e.ctx = e.ctx or click.Context(self.commands[name] if name else self, ctx, name)
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = self.commands.short_help()
        width = max(len(name) for commands in sections.values() for name in commands)
        for section, commands in sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        sections = self.commands.short_help().values()
        commands = [item for section in sections for item in section.items()]
        items = [CompletionItem(n, help=text) for n, text in commands if n.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]


SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
_EVERY = "accepted by every command."


@click.group(
    cls=Program, commands=Commands(), invoke_without_command=True, context_settings=SETTINGS
)
@click.option("--debug", is_flag=True, help=f"Show tracebacks, warnings and logs; {_EVERY}")
@click.option("--verbose", "-v", is_flag=True, help=f"Show logs; {_EVERY}")
@click.option("--quiet", "-q", is_flag=True, help=f"Show no progress; {_EVERY}")
@click.version_option(package_name="homodyne-dask", prog_name="homodyne-dask")
@click.pass_context
def main(context: click.Context, debug: bool, verbose: bool, quiet: bool) -> None:
    """Fit transport models to X-ray two-time correlations.

    \b
    Ingest a result file, list its bins, fit, print the report:
      homodyne-dask ingest A0123_results.hdf
      homodyne-dask info A0123_c2.zarr
      homodyne-dask fit A0123_c2.zarr --model laminar_flow --gap "200 um"
      homodyne-dask show A0123_fit
    """
    if context.invoked_subcommand is None:
        echo(context.get_help())
