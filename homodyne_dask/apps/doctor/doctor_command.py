"""homodyne-dask doctor: check this machine and its environment."""

import json
from collections.abc import Iterator

import click

from homodyne_dask.apps.doctor import Finding
from homodyne_dask.cli.printing import AS_JSON, echo


@click.command()
@click.option("--cluster", is_flag=True, help="Also start workers on this machine.")
@AS_JSON
def doctor(cluster: bool, as_json: bool) -> None:
    """Check in a few seconds whether this machine and its environment are ready for fits.

    The command checks versions, cores, memory, folders, environment variables that JAX reads, float64, and
    the rates of the kernel and of decoding. Exit status: 0 nothing to do, 1 a line says what to do.
    """
    findings = []
    for finding in examine(cluster):
        findings.append(finding)
        if not as_json:
            echo(str(finding))
    ok = all(finding.ok for finding in findings)
    if as_json:
        lines = [finding.as_json() for finding in findings]
        echo(json.dumps({"ok": ok, "lines": lines}, indent=1, allow_nan=False))
    click.get_current_context().exit(0 if ok else 1)


def examine(cluster: bool = False) -> Iterator[Finding]:
    """Yield each finding as soon as it is known; `cluster`: also start workers."""
    from homodyne_dask.apps.doctor import environment, machine, measured_speed

    yield from machine.machine_findings()
    yield from environment.environment_findings()
    yield from measured_speed.kernel_findings()
    yield measured_speed.decoding()
    if cluster:
        yield measured_speed.local_cluster_start()
