"""Options that commands share: defined in `fit_config`, shown and typed here, returned as a "
"configuration."""

import os
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import SELECTION, FitConfig, config_options
from homodyne_dask.cli.printing import echo
from homodyne_dask.cli.read_options import from_options, read_config, read_value
from homodyne_dask.errors import OptionError
from homodyne_dask.request.options import (
    DATA,
    ERRORS,
    MODEL,
    NUMERICS,
    OUTPUT,
    SCALING,
    WORKERS,
    Option,
)
from homodyne_dask.store.files import AnyPath, any_path, path_of, write_atomic

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan

Command = Callable[..., Any]
EXCLUSION = ("exclude_frames", "exclude_time", "exclude_phi", "exclude_label")
"""Names of the options that exclude bins and frames of a store."""
SELECTED = (*SELECTION, *EXCLUSION)
"""Names of the options that select bins and frames of a store."""
CLUSTER = ("scheduler", "key", "scheduler_file", "site", "jobs")
"""Names of the options that choose workers."""
_HELP_ALL = "homodyne_dask.help_all"
_SECTIONS = (DATA, MODEL, SCALING, NUMERICS, ERRORS, WORKERS, OUTPUT, "")


class SectionOption(click.Option):
    """An option that the help lists under a heading; an uncommon one with --help-all only."""

    def __init__(self, *names: Any, section: str = "", common: bool = True, **more: Any) -> None:
        super().__init__(*names, **more)
        self.section, self.common = section, common


class SectionCommand(click.Command):
    """A command whose help lists options under headings, the uncommon ones with --help-all only."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters, --help and --help-all."""

        def print_all(ctx: click.Context, _: click.Parameter, given: bool) -> None:
            if given:
                ctx.meta[_HELP_ALL] = True
                echo(ctx.get_help())
                ctx.exit()

        everything = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False,
            callback=print_all, help="Show all options and exit.",
        )  # fmt: skip
        return [*super().get_params(ctx), everything]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        of = [
            (one.section if isinstance(one, SectionOption) else "", one)
            for one in self.get_params(ctx)
            if isinstance(one, click.Option)
            and (not isinstance(one, SectionOption) or one.common or _HELP_ALL in ctx.meta)
        ]
        of.sort(key=lambda pair: _SECTIONS.index(pair[0]))
        for section, options in groupby(of, key=lambda pair: pair[0]):
            records = [record for _, one in options if (record := one.get_help_record(ctx))]
            with formatter.section(section or "Other options"):
                formatter.write_dl(records)


class Text(click.ParamType):
    """A value as it is typed, read and checked later; a shell completes the words known for it, or "
    "paths."""

    name = "text"

    def __init__(self, known: Iterable[str], path: bool = False) -> None:
        self.known, self.path = known, path

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the choices that begin with what is typed, or a request for names of files."""
        if self.path:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in self.known if word.startswith(incomplete)]


def config_parameters(names: Iterable[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a configuration with these names to a command."""
    known = config_options()
    options = [_click_option(known[name]) for name in names]

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def _click_option(option: Option) -> Callable[[Command], Command]:
    names = [f"--{option.name.replace('_', '-')}", *([option.short] if option.short else [])]
    more: dict[str, Any] = {"is_flag": True}
    if option.value_type is not bool:
        more = {
            "type": Text(option.choices or option.suggestions, option.placeholder == "PATH"),
            "metavar": option.placeholder,
            "multiple": option.repeatable,
        }
    return click.option(
        *names, cls=SectionOption, section=option.section, common=option.common, help=_help(option), **more
    )  # fmt: skip


def _help(option: Option) -> str:
    text = [option.description[0].upper() + option.description[1:]]
    text += [f"example: {option.typed}"] * bool(option.typed)
    text += ["to give several, repeat the option or separate them with commas"] * option.repeatable
    return "; ".join(text) + "."


def words(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of an option that is repeated, or has several with commas between."""
    return tuple(word.strip() for part in given for word in part.split(",") if word.strip())


def values_by_name(what: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """Return {name: value} from words 'name=value'."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            option = config_options().get(what)
            example = option.typed if option else "D0=1e4"
            raise OptionError(f"--{what} {pair!r} is not NAME=VALUE: write --{what} {example}")
        values[name.strip()] = value.strip()
    return values


def numbers_of_option(what: str, words: tuple[str, ...]) -> list[float] | None:
    """Return the numbers of an option that may be repeated or contain commas; None if not given."""
    parts = [part for word in words for part in word.split(",")]
    try:
        return [float(part) for part in parts] or None
    except ValueError:
        raise OptionError(
            f"--{what} {','.join(parts)!r} is neither a number nor a list of numbers separated by commas"
        ) from None


def options_given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a fit that were given on the command line."""
    known, given = config_options(), dict(options)
    for name in known.keys() & options.keys():
        if known[name].repeatable:
            given[name] = words(given[name])
        if known[name].by_name:
            given[name] = values_by_name(name, given[name])
    return {key: value for key, value in given.items() if value not in (None, (), {}, False)}


def configuration(sources: tuple[str, ...], options: dict[str, Any]) -> FitConfig:
    """Return the configuration of stores, or of a YAML file of which options given replace those there."""
    given = options_given(options)
    files = [source for source in sources if Path(source).suffix in (".yaml", ".yml")]
    if not files:
        return from_options({"data": list(sources)} | given)
    if len(sources) > 1:
        raise OptionError(f"{files[0]} specifies its own data: give this file alone")
    return read_config(files[0], given)


def exclusions(options: dict[str, Any]) -> dict[str, Any]:
    """Return what `Scan.select` is to exclude, from options of the command line."""
    known, given = config_options(), options_given(options)
    return {
        name.removeprefix("exclude_"): read_value(known[name], given[name])
        for name in EXCLUSION
        if name in given
    }


def write_new(path: Path, text: str, overwrite: bool) -> None:
    """Write a file; raises OptionError where there is one that is not to be replaced."""
    if os.path.lexists(path) and not overwrite:
        raise OptionError(f"{path} exists: give --overwrite to replace it, or another name")
    write_atomic(path, text)


def selected(config: FitConfig, store: AnyPath) -> "Scan":
    """Return the scan of a store with the selected bins and frames; say where it has fewer than asked."""
    scan = hd.open_dataset(store).select(**config.selection())
    if config.frames and config.frames[1] > scan.n_frames:
        taken = f"{scan.frames[0]} to {scan.frames[1] - 1}"
        echo(f"note: {store} has only {scan.n_frames} frames: {taken} are used", err=True)
    return scan


class _PathType(click.ParamType):
    """A path, as `any_path` or `path_of` reads it; a shell completes it."""

    name = "path"

    def __init__(self, read: Callable[[str, str], AnyPath]) -> None:
        self.read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> AnyPath:
        return self.read(param.name if param else "path", value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


ANY_PATH, LOCAL_PATH = _PathType(any_path), _PathType(path_of)
STORE = click.option(
    "--store", type=ANY_PATH,
    help="Store of the fitted data, if it is neither beside the folder of the fit nor owned by you.",
)  # fmt: skip
