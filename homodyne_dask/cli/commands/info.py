"""homodyne-dask info: the contents of a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import homodyne_dask as hd
from homodyne_dask.cli.path_arguments import ANY_PATH, LOCAL_PATH, OVERWRITE, check_new
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.errors import OptionError, in_line
from homodyne_dask.store.arrays import spacing_text
from homodyne_dask.store.files import AnyPath, replace_file

if TYPE_CHECKING:
    from xarray import Dataset


@click.command()
@click.argument("store", type=ANY_PATH)
@click.option(
    "--csv",
    "table",
    type=LOCAL_PATH,
    help="Write g2 of every bin (c2 averaged over age) to this CSV file.",
)
@click.option(
    "--dynamics",
    type=LOCAL_PATH,
    help="Write the variance of c2 over age at each lag of every bin, and the part explained by "
    "noise, to this CSV file; this reads c2.",
)
@click.option(
    "--mean-counts",
    type=float,
    help="With --dynamics: mean counts per pixel and frame, which determine the noise; default: the stored "
    "counts.",
)
@OVERWRITE
@AS_JSON
def info(
    store: AnyPath,
    table: Path | None,
    dynamics: Path | None,
    mean_counts: float | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Print the bins of STORE (label, q, φ, pixels, σ) and the file they were ingested from."""
    for path in (table, dynamics):
        check_new(path, overwrite)
    scan = hd.open_dataset(store)
    if table is not None:
        _write_csv(table, scan.attrs["source_file"], hd.g2(scan), "g2", "stderr", "pairs")
    if dynamics is not None:
        names = ("mean", "variance", "noise", "excess", "stderr", "ages")
        _write_csv(dynamics, scan.attrs["source_file"], hd.age_variance(scan, mean_counts), *names)
    elif mean_counts is not None:
        raise OptionError(
            "--mean-counts applies only with --dynamics: also give --dynamics, or leave out --mean-counts"
        )
    attrs, gap = scan.attrs, scan.attrs["gap_angstrom"]
    if as_json:
        echo_json(store_values(scan))
        return
    echo(str(scan))
    echo(
        f"from {in_line(attrs['source_file'])} ({attrs['source_format']}), "
        f"SHA-256 {attrs['source_sha256'][:12]}, frames {spacing_text(scan.time, attrs['frame_time'])}, "
        + (f"gap {gap / 1e4:g} um" if gap else "no gap")
    )
    known = mean_counts is not None or np.isfinite(scan.mean_counts).any()
    if dynamics is not None and not known:
        echo(
            f"the columns noise and excess of {in_line(str(dynamics))} are empty: they are computed from the "
            "counts per pixel, which the store does not contain; give --mean-counts (the report of a fit "
            "has an estimate)"
        )


def _write_csv(path: Path, source: str, table: "Dataset", *columns: str) -> None:
    """Write a row for each bin and lag of a table: lag in s, q in 1/Å, φ in degrees."""
    from homodyne_dask.results.files.csv_tables import rows_csv  # it loads xarray and pandas

    names = [name for name in ("scan", "label", "q", "phi") if name in table.coords]
    rows = table[list(columns)].to_dataframe(dim_order=["bin", "lag"]).reset_index()
    kept = rows.filter([*names, "lag", *columns])
    replace_file(path, rows_csv(kept.to_dict(orient="records")), source)


def store_values(scan: "hd.Scan") -> dict[str, Any]:
    """Return what `info` prints as values, with units in the names."""
    source = ("source_file", "source_format", "source_sha256")
    kept = (*source, "store_sha256", "sigma_source", "notes")
    columns = {
        "label": scan.label,
        "q_per_angstrom": scan.q,
        "phi_degree": scan.phi,
        "pixels": scan.n_pixels,
        "sigma": scan.median_sigma,
    }
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return {
        "store": str(scan.path),
        **{key: scan.attrs[key] for key in kept},
        "frames": scan.n_frames,
        "frame_time_s": scan.attrs["frame_time"],
        "first_and_last_s": [float(scan.time[0]), float(scan.time[-1])],
        "gap_angstrom": scan.attrs["gap_angstrom"],
        "bins": [dict(zip(columns, row, strict=True)) for row in rows],
    }
