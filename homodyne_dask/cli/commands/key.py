"""homodyne-dask key: make the key of an encrypted cluster."""

from pathlib import Path

import click

from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import echo
from homodyne_dask.cluster import connect as tls
from homodyne_dask.errors import OptionError


@click.command()
@click.argument("folder", type=LOCAL_PATH)
def key(folder: Path) -> None:
    """Write the key of a cluster to FOLDER, readable only by you, and print how to use it.

    Whoever has the key can run programs under your name on every machine of the cluster.
    """
    if folder.exists() and any(folder.iterdir()):
        raise OptionError(f"{folder} is not empty: give the name of a new folder")
    tls.make_key(folder)
    certificate, secret = folder / tls.CERTIFICATE, folder / tls.KEY
    files = f"--tls-ca-file {certificate} --tls-cert {certificate} --tls-key {secret}"
    echo(
        f"{folder}/ written. To use it:\n"
        f"  export PYTHONSAFEPATH=1    # no process imports from the folder it is started in\n"
        f"  dask scheduler --protocol tls {files} --dashboard-address 127.0.0.1:8787\n"
        f"  dask worker tls://HOST:8786 {files} --dashboard-address 127.0.0.1:0\n"
        f"  homodyne-dask fit STORE --scheduler tls://HOST:8786 --key {folder}"
    )
