"""What results do outside of their data: figures, evaluated models, files.

Each is a generic function of the type of its first argument. Data declare and call it, views and files do
it; the package `results` brings them together when an operation is first called for a type, so that printing
a result loads neither templates nor matplotlib.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import singledispatch, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from xarray import DataTree

    from homodyne_dask.store.scan import Scan

_registrars: list[Callable[[str], None]] = []


def set_registrar(register: Callable[[str], None]) -> None:
    """Let a function register what stands for the operations of a group when one is first called."""
    _registrars[:] = [register]


def _operation(group: str):
    """Let a declared function find what is registered for the type of its first argument."""

    def declare[R](declared: Callable[..., R]):
        @singledispatch
        def operation(result: object, *args: Any, **options: Any) -> R:
            for register in _registrars:
                register(group)
            found = operation.dispatch(type(result))
            if found is operation.dispatch(object):
                raise TypeError(f"{declared.__name__} is not defined for {type(result).__name__}")
            return found(result, *args, **options)

        update_wrapper(operation, declared)
        return operation

    return declare


@_operation("figures")
def figure_of(result: object, name: str = "", scan: "Scan | None" = None) -> Any:
    """Return a figure by its name; scan: what was fitted, by default from where its store was."""
    raise NotImplementedError


AXES: ContextVar["Axes | None"] = ContextVar("AXES", default=None)
"""The axes in whose place a figure is drawn; None for a figure of its own."""


def drawn(result: object, *which: Any, ax: "Axes | None" = None) -> Any:
    """Return a figure, or draw it in the place of axes of another one, which then are a SubFigure."""
    token = AXES.set(ax)
    try:
        return figure_of(result, *which)
    finally:
        AXES.reset(token)


@_operation("evaluation")
def rates_of(result: object) -> "xarray.Dataset":
    """Return J, gamma_dot and their integrals over t [s] with bands."""
    raise NotImplementedError


@_operation("evaluation")
def c2_of(result: object, scan: "Scan | None") -> "xarray.DataArray":
    """Return the fitted c2 (bin, t1, t2), lazily."""
    raise NotImplementedError


@_operation("evaluation")
def c2_at_times(
    result: object,
    t1: "ArrayLike",
    t2: "ArrayLike",
    label: int | None,
    scan: "Scan | None",
    **more: Any,
) -> Any:
    """Return the fitted c2 at pairs of times [s], with its band where one is asked for."""
    raise NotImplementedError


@_operation("files")
def save_json(values: Mapping[str, object], path: str | Path) -> None:
    """Write plain values as JSON with a checksum, atomically."""
    raise NotImplementedError


@_operation("posterior files")
def save_netcdf(tree: "DataTree", path: str | Path) -> None:
    """Write a tree as one netCDF-4 file, atomically."""
    raise NotImplementedError


@_operation("folders")
def save_nexus(result: object, path: str | Path, scan: "Scan | None") -> None:
    """Write a NeXus file with maps of all bins and the fit."""
    raise NotImplementedError


@_operation("folders")
def save_into_folder(posterior: object, folder: str | Path) -> list[Path]:
    """Write a posterior into the folder of its fit, the report and summary.json again; return the files."""
    raise NotImplementedError


class Plots:
    """The figures of a result, `result.plot`, as matplotlib Figures that notebooks show.

    scan: what was fitted; by default it is opened where it was then. ax: axes made by `plt.subplots`, in
    whose place in their figure the picture is drawn. Each raises SelectionError where the scan's bins are not
    those of the result, and a HomodyneDaskError where no scan is given and the store is not there as it was.
    """

    def __init__(self, result: object) -> None:
        self.result = result

    def maps(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """Data, model and residuals of single bins against both times."""
        return drawn(self.result, "maps", scan, ax=ax)

    def cuts(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """c2 against lag at several ages: data with error bars, model as lines."""
        return drawn(self.result, "cuts", scan, ax=ax)

    def angles(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """Contrast, offset, reduced χ², decay time and the decay at one lag, by angle."""
        return drawn(self.result, "angles", scan, ax=ax)

    def rates(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """J(t), the shear rate and the strain, with bands of 68 and 95 %."""
        return drawn(self.result, "rates", scan, ax=ax)

    def passes(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """Convergence of the fit: χ², estimated distance to the minimum and time of each pass."""
        return drawn(self.result, "passes", scan, ax=ax)

    def residuals(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """Distribution of the residuals, and their dependence on lag."""
        return drawn(self.result, "residuals", scan, ax=ax)

    def influence(self, scan: "Scan | None" = None, ax: "Axes | None" = None) -> Any:
        """Change of each parameter, in standard errors, when one bin is excluded."""
        return drawn(self.result, "influence", scan, ax=ax)


class PosteriorPlots:
    """The figures of a posterior, `posterior.plot`, as matplotlib Figures that notebooks show.

    ax: as in `Plots`.
    """

    def __init__(self, posterior: object) -> None:
        self.posterior = posterior

    def corner(self, ax: "Axes | None" = None) -> Any:
        """Densities of each parameter and each pair, with 68 and 95 % contours and the fit's Gaussian."""
        return drawn(self.posterior, "corner", ax=ax)

    def rates(self, ax: "Axes | None" = None) -> Any:
        """J(t), the shear rate and the strain: median with 68 and 95 % bands, with the bands of the fit."""
        return drawn(self.posterior, "rates", ax=ax)
