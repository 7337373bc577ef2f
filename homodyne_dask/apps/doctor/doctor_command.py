"""homodyne-dask doctor: check this machine and its environment."""

import json
from collections.abc import Iterator

import click

from homodyne_dask.apps.doctor import Finding
from homodyne_dask.cli.printing import AS_JSON, echo


@click.command()
@AS_JSON
def doctor(as_json: bool) -> None:
    """Check in a few seconds whether this machine and its environment are ready for fits.

    The command checks versions, cores, memory, folders, environment variables that JAX reads, and the rate of
    the kernel. Exit status: 0 nothing to do, 1 a line says what to do.
    """
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            echo(str(finding))
    ok = all(finding.ok for finding in findings)
    if as_json:
        lines = [finding._asdict() | {"ok": finding.ok} for finding in findings]
        echo(json.dumps({"ok": ok, "lines": lines}, indent=1, allow_nan=False))
    click.get_current_context().exit(0 if ok else 1)


def examine() -> Iterator[Finding]:
    """Yield each finding as soon as it is known."""
    from homodyne_dask.apps.doctor import environment, machine

    yield from machine.machine_findings()
    variables = environment.environment_findings()
    yield from variables
    if not any(finding.value.startswith("no fit starts") for finding in variables):
        yield machine.kernel_rate()
