"""Options of commands, from the models that define them."""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import EXCLUSION, SELECTION, FitConfig, read_config
from homodyne_dask.cli.printing import echo
from homodyne_dask.document.blocks import FORMATS
from homodyne_dask.errors import OptionError
from homodyne_dask.request.options import COMMON, OUTPUT, SECTIONS, Option, Options, option
from homodyne_dask.store.files import AnyPath, is_file

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan

Command = Callable[..., Any]
SELECTED = (*SELECTION, *EXCLUSION)
ELSEWHERE = ("scheduler", "key", "scheduler_file", "site", "jobs")
"""Names of the options that choose workers on other machines."""
CLUSTER = ("workers", *ELSEWHERE)
_HELP_ALL = "homodyne_dask.help_all"


class ModelOption(click.Option):
    """An option of a model: a value as it is typed, which the model reads."""

    def __init__(self, option: Option) -> None:
        self.option, name = option, option.name.replace("_", "-")
        self.section = option.section
        look: dict[str, Any] = {"is_flag": True, "default": None}
        if option.type == bool | None:
            name = f"{name}/--no-{name}"
        elif option.type is not bool:
            words = 1 + option.form.metavar.count(" ")
            look = {"metavar": option.form.metavar, "multiple": option.repeatable, "nargs": words}
        text = option.description
        text += (
            f"; example: {option.typed}"
            if option.example and (option.by_name or ":" in option.form.metavar)
            else ""
        )
        if option.repeatable:
            text += "; to give several, repeat the option or separate them with commas"
        super().__init__([option.name, *(option.names or [f"--{name}"])], help=f"{text}.", **look)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if self.option.form.metavar == "PATH":
            return [CompletionItem(incomplete, type="file")]
        words = self.option.choices or self.option.suggestions
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class RunOptions(Options):
    """How one run of a fit goes, and what it prints."""

    resume: bool = option(False, OUTPUT, use=COMMON)
    """Resume an interrupted fit from its checkpoint, if there is one; otherwise start a new fit."""
    as_json: bool = option(False, OUTPUT, use=COMMON, names=("--json",))
    """Print a JSON object for each fit, of several in a line each; everything else goes to stderr. Failed
    fits are in scans.json or series.json."""


class PicturesCommand(click.Command):
    """A command whose option --pictures may have a format after it; --no-pictures stands for none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = ["--pictures=none" if word == "--no-pictures" else word for word in args]
        for n, (word, following) in enumerate(pairwise([*words, ""])):
            if word == "--pictures" and following not in (*FORMATS, "none"):
                words[n] = "--pictures=png"
        return super().parse_args(ctx, words)


class SectionCommand(PicturesCommand):
    """A command whose help lists options under headings, the uncommon ones with --help-all only."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        def print_all(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
            if is_given:
                ctx.meta[_HELP_ALL] = True
                echo(ctx.get_help())
                ctx.exit()

        look: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        look |= {"callback": print_all, "help": "Show all options and exit."}
        return [*super().get_params(ctx), click.Option(["--help-all"], **look)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = [*SECTIONS, ""]
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        params.sort(key=lambda param: sections.index(_section(param)))
        for section, options in groupby(params, key=_section):
            visible = [param for param in options if _HELP_ALL in ctx.meta or _is_common(param)]
            records = [record for param in visible if (record := param.get_help_record(ctx))]
            with formatter.section(section or "Other options"):
                formatter.write_dl(records)


def _section(option: click.Option) -> str:
    return option.option.section if isinstance(option, ModelOption) else ""


def _is_common(option: click.Option) -> bool:
    return not isinstance(option, ModelOption) or COMMON in option.option.use


def options_of(
    model: type[Options], names: Iterable[str] | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a model, or those with these names, to a command."""
    options = model.options()
    click_options = [ModelOption(options[name]) for name in (options if names is None else names)]

    def decorated(command: Command) -> Command:
        params = vars(command).setdefault("__click_params__", [])
        params.extend(reversed(click_options))  # click reads decorators from the last one on
        return command

    return decorated


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, ())}


def configuration(sources: tuple[str, ...], options: dict[str, Any]) -> FitConfig:
    """Return the configuration of stores, or of a YAML file of which options given replace those there.

    Stores are in place of tables of g2, which are written beside these.
    """
    options_given: dict[str, Any] = given_of(options)
    files = [source for source in sources if Path(source).suffix in (".yaml", ".yml")]
    if files and len(sources) > 1:
        raise OptionError(f"{files[0]} specifies its own data: give this file alone")
    of_stores: dict[str, Any] = options_given | {"data": list(sources)}
    config = read_config(files[0], options_given) if files else FitConfig(**of_stores)
    if not any(isinstance(path, Path) and is_file(path) for path in config.data):
        return config
    from homodyne_dask.api import tables_read  # lazy: it loads h5py

    read = tables_read(config.data, config.overwrite)
    for table, store in zip(config.data, read, strict=True):
        for note in hd.open_dataset(store).attributes.notes if store != table else ():
            echo(f"note: {table}: {note}", err=True)
    return config.replaced(data=read)


def workers_of_options(data: str | AnyPath, options: Mapping[str, Any]) -> FitConfig:
    """Return a configuration that chooses workers, for a command that is no fit."""
    return FitConfig(**given_of(options) | {"data": [data], "model": ""})


def selected(config: FitConfig, store: AnyPath) -> "Scan":
    """Return the scan of a store with the selected bins and frames; say where it has fewer than asked."""
    scan = hd.open_dataset(store).select(**config.selection())
    if config.frames and config.frames[1] > scan.n_frames:
        frames = f"{scan.frames[0]} to {scan.frames[1] - 1}"
        echo(f"note: {store} has only {scan.n_frames} frames: {frames} are used", err=True)
    return scan
