"""The backend of each model, and how often its kernels were compiled."""

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels import transport_evaluation
from homodyne_dask.kernels.backend_interface import COMPILATIONS, Backend, Evaluation
from homodyne_dask.kernels.tied_backend import TiedBackend
from homodyne_dask.models import Convention, Model, TransportModel
from homodyne_dask.models.derived_models import TiedModel
from homodyne_dask.models.rate_forms import RATE
from homodyne_dask.models.stretched_exponentials import SplineModel
from homodyne_dask.models.transport import Shear


@cache
def _loaded() -> tuple[Any, Any, Any]:
    # lazy: they load JAX, which takes a second
    from homodyne_dask.kernels import separable_backend, transport_backend, user_function_checks

    return transport_backend, separable_backend, user_function_checks.check_separable


def backend_of(model: Model) -> Backend:
    transport, separable, _ = _loaded()
    if isinstance(model, TiedModel):
        return cast(Backend, _tied(backend_of(model.base)))
    if isinstance(model, SplineModel) and model.of == RATE:
        rates = {"rates": separable.rates_of_splines}
        return cast(Backend, SimpleNamespace(**vars(separable) | rates))
    return transport if isinstance(model, TransportModel) else separable


def evaluation_of(model: Model) -> Evaluation:
    if isinstance(model, TiedModel):
        return cast(Evaluation, _tied(evaluation_of(model.base)))
    if isinstance(model, TransportModel):
        return cast(Evaluation, transport_evaluation)
    return backend_of(model)


@cache
def _tied(base: Any) -> TiedBackend:
    return TiedBackend(base)


def check_model(model: Model, frames: int, convention: Convention, precision: str) -> bool:
    """Check a model and its options before a fit of so many frames; return whether f uses q."""
    if isinstance(model, TiedModel):
        return check_model(model.base, frames, convention, precision)
    if isinstance(model, TransportModel) and model.shear is not Shear.PARABOLIC:
        return bool(model.shear)
    if convention is not Convention.PHYSICAL:
        raise OptionError(
            f"convention {convention.value!r} applies to the transport models between plates that "
            f"move and of diffusion only: leave it out for {model.name}"
        )
    if isinstance(model, TransportModel):
        return True
    if precision != "float64":
        raise OptionError(f"{model.name} is computed in float64 only: leave out precision")
    return _loaded()[2](model, frames)


def compilations() -> dict[str, int]:
    return {name: number for name, number in COMPILATIONS.items() if name}
