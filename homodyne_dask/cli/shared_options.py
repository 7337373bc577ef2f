"""Options that commands share, and how they become a configuration."""

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.options import Option, fit_options
from homodyne_dask.store.files import AnyPath, any_path
from homodyne_dask.store.url_path import is_url, local_path

if TYPE_CHECKING:
    from homodyne_dask.cli.configuration import FitConfig
    from homodyne_dask.models import Model
    from homodyne_dask.store.scan import Scan


Command = Callable[..., Any]


class _AnyPath(click.ParamType):
    """A path or a URL."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> AnyPath:
        return any_path(param.name if param else "path", value)


ANY_PATH = _AnyPath()
SELECTION = (
    click.option(
        "--q", multiple=True, help="Ring at this q in 1/Å, the nearest within 2 %; repeatable."
    ),
    click.option(
        "--phi",
        help="Angle φ in degrees, the nearest within 1° (5), or a range (-30:30; 150:-150).",
    ),
    click.option("--label", multiple=True, help="Bin number of the beamline; repeatable."),
    click.option(
        "--frames", help="First frame, counted from 0, and the frame after the last: 0:300."
    ),
    click.option(
        "--time", help="Start and end of the selected times in seconds, without the end: 0:30."
    ),
)
MODEL = click.option(
    "--model",
    help="brownian, power_law, static, laminar_flow, two_component, stretched, stretched_q, "
    "stretched_ageing, one of a package, or auto, the simplest that the data ask for.",
)
WORKERS = (
    click.option("--scheduler", help="Address of a running Dask scheduler: tls://host:8786."),
    click.option(
        "--key", help="Folder of its TLS key, from `homodyne-dask key`; none: unencrypted."
    ),
    click.option("--scheduler-file", help="File of a persistent scheduler: see `cluster start`."),
    click.option(
        "--site", help="Workers as jobs of a batch system at this site: generic, perlmutter, ..."
    ),
    click.option(
        "--jobs", help="With --site: number of jobs, or least and most: 1:20; default: 1."
    ),
)


def of_fit(options: Sequence[Option]) -> tuple[Callable[[Command], Command], ...]:
    """Return the options of a fit as options of a command."""
    return tuple(
        click.option(_flag(option), multiple=option.repeatable, help=_help(option))
        for option in options
    )


def _flag(option: Option) -> str:
    return f"--{option.key.replace('_', '-')}"


def _help(option: Option) -> str:
    text = option.description[0].upper() + option.description[1:]
    more = [f"as {option.typed}"] if option.typed else []
    more += ["repeatable"] if option.repeatable else []
    return "; ".join([text, *more]) + "."


FIT = of_fit(fit_options())
"""Every option of a fit."""


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options in the order given."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


def values_by_name(what: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """Return {name: value} from words 'name=value'."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise OptionError(f"--{what} {pair!r} is not NAME=VALUE: write --{what} D0=1e4")
        values[name.strip()] = value.strip()
    return values


def numbers_of_option(what: str, words: tuple[str, ...]) -> list[float] | None:
    """Return the numbers of an option that may be repeated or contain commas; None if not given."""
    parts = [part for word in words for part in word.split(",")]
    try:
        return [float(part) for part in parts] or None
    except ValueError:
        raise OptionError(
            f"--{what} {','.join(parts)!r} is not a number, or several with commas between"
        ) from None


def jobs_asked(text: str) -> int | tuple[int, int]:
    """Return the number of jobs from '20', or the least and the most from '1:20'; by default 1."""
    try:
        least, _, most = text.partition(":")
        return (int(least), int(most)) if most else int(least or 1)
    except ValueError:
        raise OptionError(f"--jobs {text!r} is not a number, or least and most: 1:20") from None


def options_given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a fit that were given on the command line."""
    mappings = {option.key for option in fit_options() if option.by_name} & set(options)
    options = options | {key: values_by_name(key, options[key]) for key in mappings}
    return {key: value for key, value in options.items() if value not in (None, (), {}, False)}


def configuration(sources: tuple[str, ...], options: dict[str, Any]) -> "FitConfig":
    """Return the configuration of stores, or of a YAML file of which options given replace those there."""
    from homodyne_dask.cli.configuration import from_options, read_config

    given = options_given(options)
    files = [source for source in sources if Path(source).suffix in (".yaml", ".yml")]
    if not files:
        return from_options({"data": list(sources)} | given)
    if len(sources) > 1:
        raise OptionError(f"{files[0]} names its own data: give the file alone")
    return read_config(files[0], given)


def selected(config: "FitConfig", store: AnyPath) -> "Scan":
    """Return the scan of a store with the selected bins and frames."""
    from homodyne_dask.store.scan import open_dataset

    return open_dataset(store).select(**config.selection())


def configured_model(config: "FitConfig") -> "Model":
    """Return the model of a configuration; raises OptionError for an unknown one."""
    from homodyne_dask.models import model_named

    return model_named(config.model)


class _LocalPath(click.Path):
    """A path; file:///folder/name is one, too."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_url(value):
            return super().convert(value, param, ctx)
        here = local_path("the path", value)
        if here is None:
            self.fail("it is a URL: give a path of this machine", param, ctx)
        return super().convert(here, param, ctx)


LOCAL_PATH = _LocalPath()
