"""Models by name: the built-in ones, those of installed packages, those made in this process."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from homodyne_dask.errors import OptionError, nearest, shown
from homodyne_dask.models.parameters import Parametrized

if TYPE_CHECKING:
    from homodyne_dask.models import Model

GROUP = "homodyne_dask.models"
"""The group of entry points in which installed packages register models."""
_BUILT_IN: dict[str, Any] = {}
"""Filled when `homodyne_dask.models` is imported."""
_USER_DEFINED: dict[str, Any] = {}
"""By `separable`, the last of each name: figures of a stored result find their model there."""


def register_built_in(models: "Iterable[Model]") -> None:
    """Register models that every process finds by name."""
    _BUILT_IN.update({model.name: model for model in models})


def remember(model: Parametrized) -> None:
    """Register a model that this process finds by name."""
    _USER_DEFINED[model.name] = model


@cache
def importable_models() -> Mapping[str, Any]:
    """Return the models that every process finds by name: built in, and of installed packages.

    Raises OptionError for an entry point that gives no model, or one of a name that exists.
    """
    found: dict[str, Any] = dict(_BUILT_IN)
    for point in entry_points(group=GROUP):
        model = point.load()
        if not isinstance(model, Parametrized) or not model.of_scans:
            raise OptionError(
                f"the entry point {point.name!r} of {GROUP} ({point.value}) is not a model: it must "
                f"name a model made by hd.separable"
            )
        if found.get(model.name, model) is not model:
            raise OptionError(
                f"the entry point {point.name!r} of {GROUP} ({point.value}) gives a model named "
                f"{model.name!r}, and there is another of that name: rename it"
            )
        found[model.name] = model
    return found


def model_of_digest(name: str, digest: str) -> "Model | None":
    """Return the model of that name and digest, None where this process has none."""
    known = [models[name] for models in (importable_models(), _USER_DEFINED) if name in models]
    return next((now for model in known if (now := model.current()).digest == digest), None)


def as_model(model: Any) -> Any:
    """Return a model that is given itself or by its name; raises OptionError for anything else."""
    if isinstance(model, str) and model == "auto":
        raise OptionError(
            "model 'auto' is one of the command line: in Python hd.compare_models(scan) chooses a model, and "
            "its .result is the fit"
        )
    if isinstance(model, str):
        return model_named(model)
    if isinstance(model, Parametrized):
        return model
    remedy = (
        "make one of a function with hd.separable"
        if callable(model)
        else "give the name of one, as 'static', or one made by hd.separable"
    )
    raise OptionError(f"model = {shown(model)} is not a model: {remedy}")


def scan_model(model: Any) -> "Model":
    """Return a model of scans, as `as_model`; raises OptionError for one of other data, too."""
    found = as_model(model)
    if not found.of_scans:
        raise OptionError(
            f"model {found.name!r} is made by hd.model, for data that are not scans: make one of "
            f"f(theta, t1, t2, bin) with hd.separable"
        )
    return found


def model_named(name: str) -> "Model":
    """Return the model of that name; raises OptionError with the nearest name."""
    models = {**_USER_DEFINED, **importable_models()}
    if name not in models:
        raise OptionError(f"model {name!r} is unknown; {nearest(name, models)}")
    return models[name]
