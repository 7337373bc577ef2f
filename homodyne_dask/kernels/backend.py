"""What the engine asks of a model: the one seam between sweeps and f.

A sweep turns blocks into Grams and knows nothing of f; a kind of model answers the questions below.
There are two: `transport`, with a kernel made by hand, and `separable`, differentiated by JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from homodyne_dask.kernels._jax_internals import compilations_of
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.subblocks import SubBlocks
from homodyne_dask.models import Model, TransportModel

Numbers = Float[np.ndarray, " n"]


class ModelPoint(Protocol):
    """A model at one theta, on all frames of a level: made once, used by every block."""

    @property
    def problem(self) -> Problem:
        """What is fitted."""
        ...

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block of bins of one q, those with something to compute first."""
        ...


class Backend(NamedTuple):
    """How models of one kind are computed. Arrays are NumPy's, float64."""

    point: Callable[..., ModelPoint]
    """(problem, theta, time, factor=1, frames=None): times of the full resolution, of which `factor`
    are averaged; frames that are selected, the first and the one after the last, by default all."""
    gram: Callable[..., tuple[Gram, Float[np.ndarray, "slot 4"]]]
    """(point, block, sums or None): Gram over 1, y - 1, f, ∂f/∂theta, and the sums of the data alone."""
    robust_gram: Callable[..., Gram]
    """(point, block, (offset - 1, contrast) of its bins): Gram under the loss of the problem."""
    candidate_grams: Callable[..., Gram]
    """(points, block): moments (bin, point, 3, 3) over 1, y - 1, f at several points."""
    f_at: Callable[..., Float[np.ndarray, "bin ..."]]
    """(point of the full resolution, time, q, phi, t1, t2): f of any bins at times that broadcast."""
    adequate: Callable[..., bool]
    """(point, q, phi, frames, factor): whether f changes little enough over `factor` frames for
    means over that many to show it; frames are the first selected and the one after the last."""
    correlation_time: Callable[..., float]
    """(point, q, phi, frames): frames after which f is down to 1/e, in the middle of the record."""
    kernels: dict[str, Callable[..., Any]]
    """The compiled functions behind the fields above, by name."""


def backend_of(model: Model) -> Backend:
    """Return how a model is computed."""
    if isinstance(model, TransportModel):
        from homodyne_dask.kernels.transport_backend import TRANSPORT

        return TRANSPORT
    from homodyne_dask.kernels.separable import SEPARABLE

    return SEPARABLE


def compilations() -> dict[str, int]:
    """Return how many times this process has compiled the kernels of all backends, by name.

    A name of which that is unknown is absent.
    """
    from homodyne_dask.kernels.residual import columns_kernel
    from homodyne_dask.kernels.separable import SEPARABLE
    from homodyne_dask.kernels.transport_backend import TRANSPORT

    total: dict[str, int] = {}
    for kernels in (TRANSPORT.kernels, SEPARABLE.kernels, {"gram": columns_kernel}):
        for name, kernel in kernels.items():
            times = compilations_of(kernel)
            if times is not None:
                total[name] = total.get(name, 0) + times
    return total
