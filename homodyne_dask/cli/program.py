"""The command homodyne-dask with its subcommands.

Exit status: 0 done (`fit`: converged), 1 a bug (`doctor`: something has to be done), 2 bad input,
3 `fit` ended without converging, 130 interrupted.
"""

import click

from homodyne_dask.apps.doctor.doctor_command import doctor
from homodyne_dask.apps.guide.explain_command import explain
from homodyne_dask.apps.migration.from_homodyne_command import from_homodyne
from homodyne_dask.apps.view.view_command import view
from homodyne_dask.apps.watch.watch_command import watch
from homodyne_dask.cli.commands.cluster import cluster
from homodyne_dask.cli.commands.compare import compare
from homodyne_dask.cli.commands.completion import completion
from homodyne_dask.cli.commands.config import config
from homodyne_dask.cli.commands.fit import fit
from homodyne_dask.cli.commands.info import info
from homodyne_dask.cli.commands.ingest import ingest
from homodyne_dask.cli.commands.key import key
from homodyne_dask.cli.commands.plan import plan
from homodyne_dask.cli.commands.posterior import posterior
from homodyne_dask.cli.commands.preflight import preflight
from homodyne_dask.cli.commands.show import show
from homodyne_dask.cli.commands.simulate import simulate
from homodyne_dask.cli.commands.submit import submit
from homodyne_dask.cli.exit_status import Program
from homodyne_dask.cli.printing import echo

SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}


@click.group(cls=Program, invoke_without_command=True, context_settings=SETTINGS)
@click.option(
    "--debug", is_flag=True, help="Show tracebacks, warnings and logs; accepted by every command."
)
@click.option("--verbose", "-v", is_flag=True, help="Show logs; accepted by every command.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress; accepted by every command.")
@click.version_option(package_name="homodyne-dask", prog_name="homodyne-dask")
@click.pass_context
def main(context: click.Context, debug: bool, verbose: bool, quiet: bool) -> None:
    """Fit transport models to X-ray two-time correlations.

    \b
    Ingest a result file, list its bins, fit, print the report:
      homodyne-dask ingest A0123_results.hdf
      homodyne-dask info A0123_c2.zarr
      homodyne-dask fit A0123_c2.zarr --model laminar_flow --gap "200 um"
      homodyne-dask show A0123_fit
    """
    if context.invoked_subcommand is None:
        echo(context.get_help())


for command in (
    ingest,
    info,
    plan,
    fit,
    watch,
    show,
    view,
    posterior,
    compare,
    explain,
    config,
    from_homodyne,
    simulate,
    key,
    doctor,
    cluster,
    submit,
    preflight,
    completion,
):
    main.add_command(command)
