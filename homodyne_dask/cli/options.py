"""Options that several commands share, and how they become a configuration."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homodyne_dask.errors import OptionError

if TYPE_CHECKING:
    from homodyne_dask.cli.config import FitConfig
    from homodyne_dask.store.scan import Scan

Command = Callable[..., Any]

SELECTION = (
    click.option("--q", multiple=True, help="Ring in 1/Å, the nearest within 2 %; repeatable."),
    click.option("--phi", help="Angle in degrees (5), or a range (-30:30)."),
    click.option("--label", multiple=True, help="The beamline's bin number; repeatable."),
    click.option("--frames", help="First frame and the one after the last: 0:300."),
    click.option("--time", help="From and to, in seconds: 0:30."),
)
PROBLEM = (
    click.option(
        "--model",
        help="static, laminar_flow, two_component, stretched, stretched_ageing, or a package's.",
    ),
    click.option("--gap", help='Distance of the plates with its unit: "200 um".'),
    click.option("--convention", help="physical (default) or homodyne."),
    click.option("--min-lag", help="Leave out pairs closer than this many frames (default 1)."),
    click.option("--memory", help="auto (default), resident or stream."),
    click.option("--scheduler", help="A running Dask scheduler: tls://host:8786."),
    click.option("--key", help="Folder of its key, from `homodyne-dask key`; none: unencrypted."),
    click.option("--scheduler-file", help="Of a standing scheduler: see `cluster start`."),
    click.option("--site", help="Workers as jobs of a batch system: generic, perlmutter, ..."),
    click.option("--jobs", help="Of --site: how many, or least and most: 1:20 (default 1)."),
)
LOSS = (
    click.option("--loss", help="linear (default), or against outliers huber, soft_l1 or cauchy."),
    click.option("--loss-scale", help="Standard deviations from which on it counts (default 1)."),
)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options in the order given."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


def named(what: str, pairs: tuple[str, ...]) -> dict[str, str]:
    """Return {name: value} from 'name=value' words."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise OptionError(f"--{what} {pair!r} is not NAME=VALUE: write --{what} D0=1e4")
        found[name.strip()] = value.strip()
    return found


def numbers(what: str, words: tuple[str, ...]) -> list[float] | None:
    """Return the numbers of an option that may be repeated or hold commas; None where not given."""
    parts = [part for word in words for part in word.split(",")]
    try:
        return [float(part) for part in parts] or None
    except ValueError:
        raise OptionError(
            f"--{what} {','.join(parts)!r} is not a number, or several with commas between"
        ) from None


def jobs_asked(text: str) -> int | tuple[int, int]:
    """Return the number of jobs of '20', or the least and the most of '1:20'; 1 where not given."""
    try:
        least, _, most = text.partition(":")
        return (int(least), int(most)) if most else int(least or 1)
    except ValueError:
        raise OptionError(f"--jobs {text!r} is not a number, or least and most: 1:20") from None


def configuration(sources: tuple[str, ...], options: dict[str, Any]) -> "FitConfig":
    """Return the configuration of stores or of a YAML file, with the options given put over it."""
    from homodyne_dask.cli.config import from_options, read_config

    given = {key: value for key, value in options.items() if value not in (None, (), {}, False)}
    files = [source for source in sources if Path(source).suffix in (".yaml", ".yml")]
    if not files:
        return from_options({"data": list(sources)} | given)
    if len(sources) > 1:
        raise OptionError(f"{files[0]} names its own data: give the file alone")
    return read_config(files[0], given)


def selected(config: "FitConfig", store: Path) -> "Scan":
    """Return the scan of a store with the bins and frames that are asked for."""
    from homodyne_dask.store.scan import open_dataset

    return open_dataset(store).select(**config.selection())
