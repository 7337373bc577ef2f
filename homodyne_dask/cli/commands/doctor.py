"""homodyne-dask doctor: is this machine set up right."""

import json

import click


@click.command()
@click.option("--cluster", is_flag=True, help="Start workers on this machine too.")
@click.option("--flags", is_flag=True, help="Measure what flags people copy do (ten minutes).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(cluster: bool, flags: bool, as_json: bool) -> None:
    """Tell in seconds whether this machine and environment are set up right for fits.

    Versions, cores, memory, folders, variables that JAX reads, float64, the rate of the kernel and
    of decoding. Exit status: 0 all is well, 1 look at the lines that say so.
    """
    from homodyne_dask.cli.doctor import examine
    from homodyne_dask.cli.doctor.audit import audit, collected, table

    found, rows = [], []
    for line in examine(cluster):
        found.append(line)
        if not as_json:
            click.echo(str(line))
    if flags:
        rows, measured = collected(audit())
        for text in table(measured):
            if not as_json:
                click.echo(text)
    well = all(line.ok for line in found)
    if as_json:
        said = {"ok": well, "lines": [line.as_json() for line in found]}
        click.echo(json.dumps(said | ({"flags": rows} if flags else {}), indent=1, allow_nan=False))
    click.get_current_context().exit(0 if well else 1)
