"""Convert a configuration of homodyne or xpcsjax."""

from pathlib import Path

import click

import homodyne_dask as hd
from homodyne_dask.apps.migration.compare_results import compare_with_homodyne
from homodyne_dask.cli.path_arguments import LOCAL_PATH, write_new
from homodyne_dask.cli.printing import echo
from homodyne_dask.document.blocks import as_text
from homodyne_dask.errors import OptionError
from homodyne_dask.results.files.result_folder import default_folder


@click.command("from-homodyne")
@click.argument("config", metavar="HOMODYNE.yaml", type=LOCAL_PATH)
@click.option("--output", "-o", type=LOCAL_PATH, help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--compare",
    metavar="RESULTS",
    type=LOCAL_PATH,
    help="Folder of homodyne's results: show them beside those of `fit`, and what explains the difference.",
)
@click.option(
    "--fit",
    metavar="FOLDER",
    type=LOCAL_PATH,
    help="With --compare: folder of the result of `fit`; default: A0123_fit beside the data.",
)
def from_homodyne(
    config: Path, output: Path | None, overwrite: bool, compare: Path | None, fit: Path | None
) -> None:
    """Convert a YAML file of homodyne 2.x or xpcsjax to one for `fit`, with remarks on what differs.

    Without --output, the file goes to standard output, and the remarks go to standard error. When the fit
    is done, --compare shows both results side by side.
    """
    translation = hd.from_homodyne_yaml(config)
    if compare is None:
        if fit is not None:
            raise OptionError("--fit is the result to compare with: give --compare, too")
        if output is None:
            echo(str(translation), err=True)
            echo(translation.yaml(), nl=False)
            return
        write_new(output, translation.yaml(output.parent), overwrite)
        echo(f"{translation}\nthen:  homodyne-dask fit {output}")
        return
    if output is not None or overwrite:
        raise OptionError("--compare writes no file: leave out --output and --overwrite")
    (store,) = translation.config.data
    ours = hd.load_result(fit or default_folder(Path(str(store))))
    echo(as_text(compare_with_homodyne(translation.config, compare, ours)))
