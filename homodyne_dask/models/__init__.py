"""What f(theta; t1, t2) is."""

from homodyne_dask.models.registry import MODELS, Model, model_named
from homodyne_dask.models.residual import ResidualModel, model
from homodyne_dask.models.separable import Bin, SeparableModel, separable
from homodyne_dask.models.static_variants import STRETCHED, STRETCHED_AGEING
from homodyne_dask.models.transport import (
    LAMINAR_FLOW,
    STATIC,
    Convention,
    TransportModel,
    convention_named,
)
from homodyne_dask.models.two_component import TWO_COMPONENT

__all__ = [
    "LAMINAR_FLOW",
    "MODELS",
    "STATIC",
    "STRETCHED",
    "STRETCHED_AGEING",
    "TWO_COMPONENT",
    "Bin",
    "Convention",
    "Model",
    "ResidualModel",
    "SeparableModel",
    "TransportModel",
    "convention_named",
    "model",
    "model_named",
    "separable",
]
