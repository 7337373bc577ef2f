"""What f(theta; t1, t2) is."""

from homodyne_dask.models.transport import (
    LAMINAR_FLOW,
    MODELS,
    STATIC,
    Convention,
    TransportModel,
    convention_named,
    model_named,
)

__all__ = [
    "LAMINAR_FLOW",
    "MODELS",
    "STATIC",
    "Convention",
    "TransportModel",
    "convention_named",
    "model_named",
]
