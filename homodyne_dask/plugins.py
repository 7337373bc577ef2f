"""Plugins: what installed packages, and the applications of this one, offer by entry points.

Groups: homodyne_dask.commands (and .commands.data, .fits, .results, .clusters, .help: a section of the
help), .readers, .models, .callbacks, and .applications: functions that the library calls by name.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import (
    Distribution,
    EntryPoint,
    PackageNotFoundError,
    distribution,
    distributions,
)
from importlib.util import find_spec
from typing import Any

from homodyne_dask.errors import OptionError, PackageError, first_cause, in_line, one_line

APPLICATIONS = "homodyne_dask.apps"
DISTRIBUTION = "homodyne-dask"


class PackageWarning(UserWarning):
    """What an installed package or a user offers cannot be used and is passed over."""


class EntryPointError(OptionError):
    """A plugin that was asked for cannot be used."""


@cache
def offered_in(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group in an order that is the same in every process."""
    points, broken = _installed()
    for sentence in broken:
        warn_of(f"{sentence}: repair or remove the package")
    offered = [point for point in points if point.group == group and _is_present(point)]
    return tuple(sorted(offered, key=lambda point: (point.name, point.value)))


def _is_present(point: EntryPoint) -> bool:
    folder = ".".join(point.value.partition(":")[0].split(".")[:3])
    if not folder.startswith(APPLICATIONS):
        return True
    return bool(find_spec(APPLICATIONS) and find_spec(folder))


def broken_packages() -> tuple[str, ...]:
    return _installed()[1]


@cache
def _installed() -> tuple[tuple[EntryPoint, ...], tuple[str, ...]]:
    points_by_package: dict[str, list[EntryPoint]] = {}
    broken = []
    for package in distributions():
        try:
            points = [p for p in package.entry_points if p.group.startswith("homodyne_dask.")]
        except Exception as e:  # whatever a file that is no text, or no list, raises
            broken.append(
                f"the entry points of the package {_name_of(package)} cannot be read ({first_cause(e)})"
            )
        else:
            if points:  # of two of one name the first is imported
                points_by_package.setdefault(_name_of(package), points)
    all_points = tuple(point for points in points_by_package.values() for point in points)
    return all_points, tuple(dict.fromkeys(broken))  # a folder may be searched twice


def _name_of(package: Distribution) -> str:
    return _metadata_of(package, "Name") or in_line(f"in {package.locate_file('')}")


def loaded(point: EntryPoint, fits: Callable[[Any], bool], form: str) -> Any:
    with package_errors(point):
        plugin = point.load()
    if not fits(plugin):
        raise unusable(point, f"it is not {form}")
    return plugin


@contextmanager
def package_errors(point: EntryPoint, *passed: type[Exception]) -> Iterator[None]:
    """Raise EntryPointError for whatever a package raises, sys.exit included; Ctrl-C is passed on."""
    try:
        yield
    except (KeyboardInterrupt, EntryPointError, *passed):
        raise
    except BaseException as e:  # of code that is not ours; a package may even call sys.exit
        raise unusable(point, f"{type(e).__name__}: {e}".removesuffix(": ")) from e


@contextmanager
def passed_over(point: EntryPoint) -> Iterator[None]:
    try:
        with package_errors(point):
            yield
    except EntryPointError as e:
        warn_of(str(e))


@cache
def warn_of(sentence: str) -> None:
    """Warn of a package, once in a process."""
    warnings.warn(sentence, PackageWarning, stacklevel=2)


def unusable(point: EntryPoint, reason: str) -> EntryPointError:
    group = point.group.rpartition(".")[2].removesuffix("s")
    return EntryPointError(
        f"the {group} {point.name!r} ({point.value}) cannot be used ({one_line(reason)}): repair or "
        f"remove the package {metadata_of(point, 'Name') or point.value.partition(':')[0]}"
    )


def metadata_of(point: EntryPoint, key: str) -> str | None:
    return _metadata_of(point.dist, key) if point.dist else None


def _metadata_of(package: Distribution, key: str) -> str | None:
    try:
        text = package.metadata.get(key)
    except Exception:  # whatever a file that is no text, or no metadata, raises
        return None
    return in_line(text) if text else None


@cache
def applications_in(group: str) -> tuple[EntryPoint, ...]:
    """Only the metadata of this package are read, which takes a tenth of the time of `offered_in`."""
    try:
        points = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:  # a checkout that is not installed
        return ()
    return tuple(point for point in points if point.group == group)


def application(name: str, feature: str) -> Any:
    """Return a function that an application registers; PackageError, which begins with `what`, without it."""
    for point in applications_in("homodyne_dask.applications"):
        if point.name == name:
            return load_application(point, feature)
    raise PackageError(f"{feature} needs the application {name!r}, which is not installed")


def load_application(point: EntryPoint, need: str) -> Any:
    folder = ".".join(point.module.split(".")[:3])
    try:
        import_module(folder)
    except ModuleNotFoundError as e:
        raise PackageError(f"{need} needs the application {folder}, which is not installed") from e
    return point.load()
