"""Models by name: the built-in ones, those of installed packages, those made in this process."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from homodyne_dask.errors import OptionError, nearest
from homodyne_dask.models.separable import SeparableModel
from homodyne_dask.models.static_variants import STRETCHED, STRETCHED_AGEING
from homodyne_dask.models.transport import LAMINAR_FLOW, STATIC, TransportModel
from homodyne_dask.models.two_component import TWO_COMPONENT

GROUP = "homodyne_dask.models"
"""The entry points under which installed packages offer models."""
Model = TransportModel | SeparableModel
MODELS: dict[str, Model] = {
    model.name: model
    for model in (STATIC, LAMINAR_FLOW, TWO_COMPONENT, STRETCHED, STRETCHED_AGEING)
}
_MADE: dict[str, SeparableModel] = {}
"""By `separable`, the last of each name: pictures of a result find their model by its name."""


def remember(model: SeparableModel) -> None:
    """Let a model be found by its name in this process."""
    _MADE[model.name] = model


@cache
def importable_models() -> Mapping[str, Any]:
    """Return the models that every process finds by name: built in, and of installed packages.

    Raises OptionError for an entry point that gives no model.
    """
    found: dict[str, Any] = dict(MODELS)
    for point in entry_points(group=GROUP):
        model = point.load()
        if not isinstance(model, Model):
            raise OptionError(
                f"the entry point {point.name!r} of {GROUP} ({point.value}) is not a model: let it "
                f"name what hd.separable returns"
            )
        found[model.name] = model
    return found


def model_named(name: str) -> Model:
    """Return the model of that name; raises OptionError with the nearest name."""
    models = {**_MADE, **importable_models()}
    if name not in models:
        raise OptionError(f"model {name!r} is unknown; {nearest(name, models)}")
    return models[name]
