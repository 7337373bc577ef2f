"""`ingest` and `read_g2`: from files of measured data and arrays to stores."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ingest as data
from homodyne_dask.errors import OptionError, StoreInUse
from homodyne_dask.request.option_types import gap_in_angstrom
from homodyne_dask.store.files import AnyPath, any_path, path_of
from homodyne_dask.store.object_stores import UrlPath
from homodyne_dask.store.scan import Scan, open_dataset
from homodyne_dask.store.schema import store_beside

if TYPE_CHECKING:
    from distributed import Client
    from numpy.typing import ArrayLike

MOST_WAIT = 20.0
"""s to wait for another process that reads a table, which takes less than one."""


def ingest(
    source: "str | Path | Sequence[str | Path] | ArrayLike",
    store: str | AnyPath | None = None,
    *,
    q: float | str | Sequence[float | str] | None = None,
    phi: float | str | Sequence[float | str] | None = None,
    dt: float | str | None = None,
    frame_time: float | str | None = None,
    counts: "ArrayLike | None" = None,
    pixels: int | Sequence[int] | None = None,
    sigma: float | Sequence[float] | None = None,
    time_offset: float = 0.0,
    gap: str | float | None = None,
    trains: str | tuple[int, int] | None = None,
    dataset: str | None = None,
    q_dataset: str | None = None,
    phi_dataset: str | None = None,
    time_dataset: str | None = None,
    counts_dataset: str | None = None,
    pixels_dataset: str | None = None,
    frames: str | tuple[int, int] | None = None,
    exclude_frames: str | Sequence[str] = (),
    axes: str | Sequence[str] | None = None,
    follow: str | Path | None = None,
    half: str | None = None,
    column_is: str | None = None,
    average: str | None = None,
    reject_scans: bool = False,
    keep: str | Sequence[str] = (),
    keep_copies: bool = False,
    keep_outliers: bool = False,
    sharded: bool | None = None,
    strict: bool = False,
    overwrite: bool = False,
    client: "Client | None" = None,
    progress: Callable[[int, int], None] | None = None,
) -> data.IngestReport:
    """Write the two-time matrices c2(bin, t1, t2) of a result file or of an array into a Zarr store.

    A list of files contains repeats of one measurement: the store has the bins of every scan, which must
    agree in bins and frames. average: 'scans' writes the mean of the scans instead, with the noise estimated
    from their scatter; reject_scans: True to leave out scans that differ from the others. source: HDF5
    (APS-U, APS legacy, NXxpcs, CHX, ESRF, midtools, or any layout with `dataset`), .npy of shape (t, t) or
    (bin, t, t), or .npz with c2, q, phi, dt or time or t1 and t2, sigma, counts, pixels; or an array (NumPy,
    xarray, torch) with `store` given. store: a folder, or a URL such as s3://bucket/A0123_c2.zarr; by default
    beside the source, A0123_results.hdf → A0123_c2.zarr. q [1/Å], phi [degree], dt [s, also frame_time]: for
    plain arrays, which do not contain them; one number, or for q and phi one per bin, or text with a unit
    ('0.22 1/nm', '443 ns'). counts: mean counts per pixel and frame of an array, one number, (bin,), (t,) or
    (bin, t); together with pixels, the number of pixels of each bin (one number or one per bin), they
    determine sigma. sigma: standard deviation of c2 of one pair, one number or one per bin; by default from
    counts or scatter. time_offset [s] is added to all times. gap: '200 um', or a number in Å; kept with the
    data. trains: the first train, counted from 0, and the one after the last, such as (0, 500), for a file
    with one matrix per train, whose groups become scans; by default all. dataset: name of the matrices in an
    HDF5 file (a dataset, or a group with one for each bin) or .npz of another layout; q_dataset, phi_dataset:
    names of q and φ; time_dataset: name of the times of the frames, or of their spacing, in s; a unit may
    follow, '/q[1/nm]', '/t[ms]'. counts_dataset, pixels_dataset: names of counts and pixels. frames: (first,
    after the last) of those to store, at the times that they have. exclude_frames: numbers of frames in the
    file to leave out, '51-60', or '3:51-60' in scan 3. axes: such as 't,t,q', if shape and symmetry do not
    show which axes are the times. follow: the folder below which an HDF5 file may lead to other files, by
    external links and virtual datasets; by default its own. half: 'upper', 'lower' or 'mean', for matrices
    that are not symmetric. column_is: what the columns of a table are (`read_g2`). keep: paths of numbers in
    an HDF5 file, such as '/entry/sample/humidity', for fits over scans. keep_copies: True for bins that hold
    the data of another bin, keep_outliers: True for pairs that are no measurement, such as fill values of
    holes, which else are left out, with a note. sharded: whether to store many chunks per file; by default
    only at a URL, and for 128 or more bins of at most 512 frames. strict: reject a file that has a bin
    without data; by default the bin is left out, with a note. overwrite: replace a store that has different
    contents. client: a Dask client; by default two threads are used. progress: called with (bins done, bins)
    after each bin, or after the bins of a file.

    The same call continues an interrupted ingest. Returns a report, which prints the bins; `report.store`
    is the path for `open_dataset`. Raises a HomodyneDaskError for invalid input.

    >>> hd.ingest("A0123_results.hdf", "A0123_c2.zarr", overwrite=True).store.name
    'A0123_c2.zarr'
    """
    workers: AbstractContextManager[object] = nullcontext()
    if client is not None:
        from homodyne_dask.sweep.preflight import checked_workers  # lazy: it loads Dask

        workers = checked_workers(client)
    if dt is not None and frame_time is not None:
        raise OptionError(
            f"dt = {dt} and frame_time = {frame_time} have the same meaning: give only one of them"
        )
    frame_time = dt if frame_time is None else frame_time
    with workers, _files_of(source, store, counts, pixels) as path:
        return data.ingest(
            path, store, q=q, phi=phi, frame_time=frame_time, sigma=sigma, time_offset=time_offset,
            gap=None if gap is None else gap_in_angstrom(gap), trains=trains, sharded=sharded,
            strict=strict, overwrite=overwrite, client=client, progress=progress, dataset=dataset,
            q_dataset=q_dataset, phi_dataset=phi_dataset, time_dataset=time_dataset, axes=axes, half=half,
            counts_dataset=counts_dataset, pixels_dataset=pixels_dataset, frames=frames,
            exclude_frames=exclude_frames, follow=follow, column_is=column_is, average=average, keep=keep,
            keep_copies=keep_copies, keep_outliers=keep_outliers, reject_scans=reject_scans,
        )  # fmt: skip


def _files_of(
    source: Any, store: str | AnyPath | None, counts: Any, pixels: Any
) -> AbstractContextManager[Any]:
    """Return a context of the source as files: those it names, or one of an array, removed at the end."""
    files = (str, PathLike, UrlPath)
    several = isinstance(source, list | tuple) and all(isinstance(file, files) for file in source)
    if isinstance(source, files) or several:
        for name, value in (("counts", counts), ("pixels", pixels)):
            if value is not None:
                raise OptionError(
                    f"{name} applies to arrays only: a file contains its own (an .npz file under that name)"
                )
        return nullcontext(source)
    if store is None:
        raise OptionError(
            "store is missing, and an array has no file name: give the folder to write, such as "
            "A0123_c2.zarr"
        )
    target = any_path("store", store)
    # on the disk of its store: that of temporary files may be too small for the array
    folder = None if isinstance(target, UrlPath) else target
    return data.saved_arrays(source, folder, counts=counts, pixels=pixels)


def tables_read(paths: Sequence[AnyPath], overwrite: bool) -> list[AnyPath]:
    """Return paths of data, in place of tables of g2 the stores beside them, into which these are read."""
    return [
        Path(read_g2(path, overwrite=overwrite).path)
        if isinstance(path, Path) and path.is_file() and data.is_table(path)
        else path
        for path in paths
    ]


def read_g2(
    source: "str | Path | Sequence[str | Path]",
    store: str | AnyPath | None = None,
    *,
    q: float | str | Sequence[float | str] | None = None,
    phi: float | str | Sequence[float | str] | None = None,
    dt: float | str | None = None,
    sigma: float | Sequence[float] | None = None,
    column_is: str | None = None,
    gap: str | float | None = None,
    overwrite: bool = False,
) -> Scan:
    """Return the one-time correlations g2(delay) in a table, or in a result file, as a scan that fits take.

    source: a text (csv, tsv, txt, dat) whose columns are the delay, and for each q g2, g2 - 1 or g1 and
    perhaps its error, which their names in one line say, or column_is ('g2', 'g2-1', 'g1', 'f' for g1, or
    'contrast', of speckle against exposure), or an HDF5 result with multi-tau g2 (APS-U, APS legacy,
    NXxpcs); a list of files has one for each q. store: the folder in which the curves are kept, or its URL;
    by default NAME_g2.zarr beside the source. q [1/Å], phi [degree]: one number or one per curve, if the
    file does not contain them, or text with a unit. dt [s]: of a table whose delays are in frames. sigma:
    standard deviation of a point, one number or one per curve, of a table without errors; by default it is
    estimated from the residuals. gap: '200 um', or a number in Å. overwrite: replace a store of another file.

    Raises a HomodyneDaskError for invalid input, and for a table that can be read in two ways.

    >>> np.savetxt("B0002_g2.csv", [[1, 1.2], [2, 1.1], [9, 1.0]], header="delay(ms)  g2(q=0.005)")
    >>> hd.read_g2("B0002_g2.csv").q
    array([0.005])
    """
    file = source if isinstance(source, str | PathLike) else next(iter(source), "")
    file = path_of("source", file)
    dataset = data.g2_dataset(file)
    options: dict[str, Any] = {"q": q, "phi": phi, "dt": dt, "sigma": sigma, "gap": gap}
    options |= {"column_is": column_is}
    if store is None and dataset is not None:
        # A0123_c2.zarr is that of the two-time data in the same file
        store = store_beside(file, "g2")
    deadline = time.monotonic() + MOST_WAIT
    while True:
        try:
            report = ingest(source, store, dataset=dataset, overwrite=overwrite, **options)
            return open_dataset(report.store)
        except StoreInUse:  # another fit of the table is reading it: of both one reads
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
