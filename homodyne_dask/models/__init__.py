"""Models of f(theta; t1, t2), and of residuals of other data; by name the built-in ones, those of installed
packages, and those made in this process.
"""

from contextlib import suppress
from functools import partial

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.models import stretched_exponentials, transport, two_component
from homodyne_dask.models.derived_models import FROZEN, WRAPPERS, TiedModel, composed, parsed
from homodyne_dask.models.exposure import exposure
from homodyne_dask.models.parametrized import OPERATORS, Parametrized
from homodyne_dask.models.transport import (
    BROWNIAN,
    COUETTE,
    LAMINAR_FLOW,
    POWER_LAW,
    STATIC,
    Convention,
    TransportModel,
    convention_named,
)
from homodyne_dask.models.user_defined import (
    AMBIGUOUS,
    BUILT_IN,
    USER_DEFINED,
    Bin,
    ResidualModel,
    SeparableModel,
    importable_models,
    model,
    separable,
    unknown_model,
)

__all__ = [
    "BROWNIAN",
    "COUETTE",
    "LAMINAR_FLOW",
    "MODELS",
    "POWER_LAW",
    "STATIC",
    "Bin",
    "Convention",
    "Model",
    "ResidualModel",
    "SeparableModel",
    "TransportModel",
    "as_model",
    "convention_named",
    "model",
    "model_named",
    "model_of_digest",
    "scan_model",
    "separable",
]

Model = TransportModel | SeparableModel | TiedModel
MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        *transport.MODELS,
        *two_component.MODELS,
        *stretched_exponentials.MODELS,
        *transport.FREE_MODELS,
        *stretched_exponentials.SPLINE_MODELS,
        FROZEN,
    )
}
BUILT_IN.update(MODELS)
WRAPPERS["exposure"] = exposure
OPERATORS.update({"+": partial(composed, "+"), "*": partial(composed, "*")})


def model_of_digest(name: str, digest: str) -> Model | None:
    candidates = [models[name] for models in (importable_models(), USER_DEFINED) if name in models]
    with suppress(OptionError):
        candidates += [model_named(name)] if not candidates else []
    current = (_of_scans(model).current() for model in candidates)
    return next((model for model in current if model.digest == digest), None)


def as_model(model: object) -> Model | ResidualModel:
    """Return a model that is given itself or by its name; raises OptionError for anything else."""
    if isinstance(model, str) and model == "auto":
        raise OptionError(
            "model 'auto' is available on the command line only: in Python, hd.compare_models(scan) chooses "
            "a model, and its .result is the fit"
        )
    if isinstance(model, str):
        model = model_named(model)
    if isinstance(model, Model | ResidualModel) and not model.parameters:
        raise OptionError(
            f"{model.name} alone has no decay: add a model, as in 'frozen + brownian'"
        )
    if isinstance(model, Model | ResidualModel):
        return model
    remedy = (
        "make one from a function with hd.separable"
        if callable(model)
        else "give the name of a model, such as 'static', or a model made by hd.separable"
    )
    raise OptionError(f"model = {shown(model)} is not a model: {remedy}")


def scan_model(model: object) -> Model:
    """Return a model of scans, as `as_model`; raises OptionError for one of other data, too."""
    return _of_scans(as_model(model))


def model_named(name: str) -> Model:
    """Return the model of that name; raises OptionError with the nearest name."""
    every = {**USER_DEFINED, **importable_models()}
    models = {key: m for key, m in every.items() if key in BUILT_IN or key not in AMBIGUOUS}
    if name not in models and (combination := parsed(name, models)) is not None:
        return combination
    if name not in models:
        raise unknown_model(name, models)
    return _of_scans(models[name])


def _of_scans(model: Parametrized) -> Model:
    if not isinstance(model, Model):
        raise OptionError(
            f"model {model.name!r} was made by hd.model, for data other than scans: make "
            f"one from f(theta, t1, t2, bin) with hd.separable"
        )
    return model
