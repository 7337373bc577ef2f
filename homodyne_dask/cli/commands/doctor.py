"""homodyne-dask doctor: check this machine and its environment."""

import click

from homodyne_dask.cli.printing import AS_JSON, echo, echo_json


@click.command()
@AS_JSON
def doctor(as_json: bool) -> None:
    """Check in a few seconds whether this machine and its environment are ready for fits.

    The command checks versions, cores, memory, folders, environment variables that JAX reads, and the rate of
    the kernel. Exit status: 0 nothing to do, 1 a line says what to do.
    """
    from homodyne_dask.cli.doctor_checks import examine  # it loads JAX

    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            echo(str(finding))
    ok = all(finding.ok for finding in findings)
    if as_json:
        lines = [finding._asdict() | {"ok": finding.ok} for finding in findings]
        echo_json({"ok": ok, "lines": lines})
    click.get_current_context().exit(0 if ok else 1)
