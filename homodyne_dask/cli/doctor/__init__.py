"""Is this machine, with this environment, set up right for fits: a line for each thing that matters."""

from collections.abc import Iterator

from homodyne_dask.cli.doctor.line import Line

__all__ = ["Line", "examine"]


def examine(cluster: bool = False) -> Iterator[Line]:
    """Yield what is found, each line as soon as it is known; `cluster`: start workers too."""
    from homodyne_dask.cli.doctor import environment, machine, rates, workers

    yield from machine.lines()
    yield from environment.lines()
    yield from rates.lines()
    if cluster:
        yield workers.line()
