"""The backend of models given as f with a rate of free form: that of all such models, and their rate."""

from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels import separable_backend
from homodyne_dask.kernels.autodiff import SeparablePoint
from homodyne_dask.kernels.backend_interface import RateCurve
from homodyne_dask.models.spline_rates import SplineModel
from homodyne_dask.models.transport import frame_spacing, positive_times


def __getattr__(name: str) -> Any:
    """Return the other parts of a backend: those of all models given as f."""
    return getattr(separable_backend, name)


def rates(
    at: SeparablePoint, time: Float[np.ndarray, " n"], frames: tuple[int, int]
) -> dict[str, RateCurve]:
    """Return the rate [1/s] at the selected frames."""
    model = at.problem.model
    assert isinstance(model, SplineModel)
    place, t = model.places[model.of], positive_times(time, frame_spacing(time))[slice(*frames)]
    basis = model.form.basis(t)
    return {model.of: RateCurve(t, at.theta[place] @ basis, basis, model.names[place])}
