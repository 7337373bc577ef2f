"""homodyne-dask info: the contents of a store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import homodyne_dask as hd
from homodyne_dask.cli.path_arguments import ANY_PATH, LOCAL_PATH, OVERWRITE, check_new
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.errors import in_line
from homodyne_dask.store.arrays import spacing_text
from homodyne_dask.store.files import AnyPath, replace_file

if TYPE_CHECKING:
    from xarray import Dataset


_G2 = "g2 of every bin (c2 averaged over age)"


@click.command()
@click.argument("store", type=ANY_PATH)
@click.option("--csv", "table", type=LOCAL_PATH, help=f"Write {_G2} to this CSV file.")
@OVERWRITE
@AS_JSON
def info(store: AnyPath, table: Path | None, overwrite: bool, as_json: bool) -> None:
    """Print the bins of STORE (label, q, φ, pixels, σ) and the file they were ingested from."""
    check_new(table, overwrite)
    scan = hd.open_dataset(store)
    if table is not None:
        _write_csv(table, scan.attributes.source_file, hd.g2(scan))
    attributes, gap = scan.attributes, scan.attributes.gap_angstrom
    if as_json:
        echo_json(store_values(scan))
        return
    echo(str(scan))
    echo(
        f"from {in_line(attributes.source_file)} ({attributes.source_format}), "
        f"SHA-256 {attributes.source_sha256[:12]}, frames {spacing_text(scan.time, attributes.frame_time)}, "
        + (f"gap {gap / 1e4:g} um" if gap else "no gap")
    )


def _write_csv(path: Path, source: str, table: "Dataset") -> None:
    """Write a row for each bin and lag of g2: lag in s, q in 1/Å, φ in degrees."""
    from homodyne_dask.results.files.csv_and_netcdf import rows_csv  # lazy: it loads xarray

    names, columns = ("scan", "label", "q", "phi", "lag"), ["g2", "stderr", "pairs"]
    rows = table[columns].to_dataframe(dim_order=["bin", "lag"]).reset_index()
    replace_file(path, rows_csv(rows.filter([*names, *columns]).to_dict(orient="records")), source)


def store_values(scan: "hd.Scan") -> dict[str, Any]:
    """Return what `info` prints as values, with units in the names."""
    names = ("source_file", "source_format", "source_sha256", "store_sha256")
    columns = {"label": scan.label, "q_per_angstrom": scan.q, "phi_degree": scan.phi}
    columns |= {"pixels": scan.n_pixels, "sigma": scan.median_sigma}
    columns |= {"scan": scan.scan_number} if scan.has_repeats else {}
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return {
        "store": str(scan.path),
        **{key: getattr(scan.attributes, key) for key in (*names, "sigma_source", "notes")},
        "frames": scan.n_frames,
        "frame_time_s": scan.attributes.frame_time,
        "first_and_last_s": [float(scan.time[0]), float(scan.time[-1])],
        "gap_angstrom": scan.attributes.gap_angstrom,
        "bins": [dict(zip(columns, row, strict=True)) for row in rows],
    }
