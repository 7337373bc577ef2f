"""The workers a command is told to use: a running scheduler's, jobs of a site, or none yet."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from homodyne_dask.errors import OptionError

if TYPE_CHECKING:
    from distributed import Client

    from homodyne_dask.config import FitConfig


@contextmanager
def connected(config: "FitConfig") -> "Iterator[Client | None]":
    """Yield a client of the workers that a configuration names, None where it names none."""
    from homodyne_dask.connecting import connect

    ways = [name for name in ("scheduler", "scheduler_file", "site") if getattr(config, name)]
    if len(ways) > 1:
        raise OptionError(f"{ways[0]} and {ways[1]} are both given: one of them says who computes")
    if config.jobs and not config.site:
        raise OptionError("jobs are of a site: give --site too, or leave --jobs out")
    if config.scheduler:
        with connect(config.scheduler, config.key) as client:
            yield client
    elif config.scheduler_file:
        from homodyne_dask.batch.standing import connection_by

        with connection_by(config.scheduler_file) as client:
            yield client
    elif config.site:
        from homodyne_dask.batch.clusters import slurm_cluster

        jobs = config.jobs or 1
        with slurm_cluster(config.site, jobs) as cluster, cluster.get_client() as client:
            yield client
    else:
        yield None
