"""The backend of each model, and how often its kernels were compiled.

Backends load JAX, which takes a second: they are imported when one is asked for.
"""

from homodyne_dask.kernels.interface import Backend
from homodyne_dask.models import Model, TransportModel


def backend_of(model: Model) -> Backend:
    """Return how a model is computed."""
    if isinstance(model, TransportModel):
        from homodyne_dask.kernels.transport import TRANSPORT

        return TRANSPORT
    from homodyne_dask.kernels.separable import SEPARABLE

    return SEPARABLE


def compilations() -> dict[str, int]:
    """Return how many times this process has compiled the kernels of all backends, by name.

    A name of which that is unknown is absent.
    """
    from homodyne_dask.kernels.residual import columns_kernel
    from homodyne_dask.kernels.separable import SEPARABLE
    from homodyne_dask.kernels.transport import TRANSPORT

    total: dict[str, int] = {}
    for kernels in (TRANSPORT.kernels, SEPARABLE.kernels, {"gram": columns_kernel}):
        for name, kernel in kernels.items():
            times = kernel.compilations()
            if times is not None:
                total[name] = total.get(name, 0) + times
    return total
