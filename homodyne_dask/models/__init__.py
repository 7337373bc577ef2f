"""Models of f(theta; t1, t2), and of residuals of other data."""

from homodyne_dask.models.registry import (
    MODELS,
    Model,
    as_model,
    model_named,
    model_of_digest,
    scan_model,
)
from homodyne_dask.models.stretched_exponentials import STRETCHED, STRETCHED_AGEING, STRETCHED_Q
from homodyne_dask.models.transport import Convention, TransportModel, convention_named
from homodyne_dask.models.transport_models import (
    BROWNIAN,
    LAMINAR_FLOW,
    LAMINAR_FLOW_FREE,
    LAMINAR_FLOW_FREE_J,
    LAMINAR_FLOW_FREE_SHEAR,
    POWER_LAW,
    STATIC,
    STATIC_FREE,
)
from homodyne_dask.models.two_component import TWO_COMPONENT
from homodyne_dask.models.user_defined import Bin, ResidualModel, SeparableModel, model, separable

__all__ = [
    "BROWNIAN",
    "LAMINAR_FLOW",
    "LAMINAR_FLOW_FREE",
    "LAMINAR_FLOW_FREE_J",
    "LAMINAR_FLOW_FREE_SHEAR",
    "MODELS",
    "POWER_LAW",
    "STATIC",
    "STATIC_FREE",
    "STRETCHED",
    "STRETCHED_AGEING",
    "STRETCHED_Q",
    "TWO_COMPONENT",
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
