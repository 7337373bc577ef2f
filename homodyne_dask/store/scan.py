"""A scan: an opened store, its small arrays, and the selected bins and frames; c2 is not read here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.document.blocks import Document, Printed, table_document
from homodyne_dask.errors import (
    OptionError,
    SelectionError,
    StoreError,
    require_count,
    shown,
    why_unreadable,
)
from homodyne_dask.read_only import read_only
from homodyne_dask.store import arrays, files, schema
from homodyne_dask.store.arrays import Manifest, read_manifest
from homodyne_dask.store.cells import Cells
from homodyne_dask.store.chunks import ByteRange, read_decoded
from homodyne_dask.store.files import DAMAGED, AnyPath, absolute, any_path, inside, zarr_store
from homodyne_dask.store.object_stores import UrlPath
from homodyne_dask.store.rings_and_clusters import friedel_clusters
from homodyne_dask.store.selection import (
    BinsAndFrames,
    FrameRange,
    FrameRanges,
    TimeRange,
    excluded_from,
    merged,
    select_bins,
    select_frames,
)
from homodyne_dask.text import known_number, shown_ranges

if TYPE_CHECKING:
    import xarray


_PER_BIN = ("q", "phi", "label", "n_pixels", "sigma_row", "intensity", "beta_ingest")


@dataclass(frozen=True)
class Cuts:
    """c2 averaged over cells of age and lag; cells without pairs in the selection are excluded."""

    c2: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no pair."""
    count: Int[np.ndarray, "bin cell"]
    t1: Float[np.ndarray, " cell"]
    """s, mean over the cell."""
    t2: Float[np.ndarray, " cell"]
    age: Int[np.ndarray, " cell"]
    """Index of the age interval, in frames of `age_edges`."""
    lag: Int[np.ndarray, " cell"]
    age_edges: Int[np.ndarray, " a"]
    lag_edges: Int[np.ndarray, " l"]


class Chunk(NamedTuple):
    factor: int
    """1 is c2 itself, others are its levels."""
    bin: int
    """Position in the store."""
    i: int
    j: int


class Selection(NamedTuple):
    """The identity of selected data, with which a task opens them again."""

    path: str
    digest: str
    """`Scan.digest`, by which a change of the data during a fit is detected."""
    bins: tuple[int, ...]
    frames: tuple[int, int]
    excluded: tuple[Chunk, ...] = ()
    excluded_frames: FrameRanges = ()

    def __hash__(self) -> int:
        """Without each of the bins: caches look selections up for every block of thousands of bins."""
        return hash((self.path, self.digest, len(self.bins), self.frames))


@dataclass(frozen=True, kw_only=True, repr=False)
class Scan(Printed, BinsAndFrames):
    """Store with the bins and frames selected from it; `print(scan)` lists the bins."""

    path: str
    manifest: Manifest
    """Checksums of the parts of the store, with which everything that is read later is compared."""
    frame_mask: Bool[np.ndarray, " t"]
    excluded: tuple[Chunk, ...] = ()
    """Damaged chunks whose pairs count as unknown (see `fit`, on_bad_tile)."""
    excluded_frames: FrameRanges = ()
    """Ranges (first, after the last) of frames that `select` excluded; their pairs count as unknown."""

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the store as they are stored."""
        return read_only(self.attributes.model_dump(exclude_unset=True))

    @property
    def bin_of_scan(self) -> Int[np.ndarray, " bin"]:
        """Position of each selected bin in its scan: bins with the same number are repeats of each other."""
        return np.array(self.bins) % self._bins_per_scan

    def bin_words(self, position: int) -> str:
        """Return 'the bin labelled 5' of a position in the store; of a store of repeats with its scan."""
        words = f" of scan {position // self._bins_per_scan + 1}" * self.has_repeats
        return f"the bin labelled {self.all_bins['label'][position]}{words}"

    @cached_property
    def clusters(self) -> Int[np.ndarray, " bin"]:
        """A number for each selected bin: bins with the same number see the same speckle."""
        return friedel_clusters(self.q, self.phi, self.scan_number)

    @property
    def mean_counts(self) -> Float[np.ndarray, " bin"]:
        """Mean counts of a pixel in a selected frame, of each selected bin; NaN where unknown."""
        if self.attributes.sigma_source != "counts":
            return np.full(len(self.bins), np.nan)
        counts = self.all_bins["intensity"][list(self.bins), slice(*self.frames)]
        known = np.isfinite(counts).any(axis=1)  # not where c2 contradicts them
        mean = np.full(len(counts), np.nan)
        mean[known] = [float(np.nanmean(of_bin)) for of_bin in counts[known]]
        return np.where(mean > 0, mean, np.nan)

    @property
    def smoothed(self) -> bool:
        """Whether ingest found that c2 was smoothed: its noise is then unknown."""
        return "c2-smoothed" in self.attributes.doubts

    @property
    def frame_means(self) -> Float[np.ndarray, "bin t"]:
        """Mean of c2 over all known pairs with each frame, as stored by ingest; NaN where none compares."""
        return self._array("cuts/frames")[list(self.bins)]

    @cached_property
    def table(self) -> Float[np.ndarray, "bin t"]:
        """Of a table of g2: c2 of the first frame with each frame; NaN where it is unknown."""
        return self._array("cuts/g2")[list(self.bins)]

    def _array(self, name: str) -> np.ndarray:
        return self.manifest.read_array(self.path, name)

    @property
    def median_sigma(self) -> Float[np.ndarray, " bin"]:
        """The median of sigma(t, t) over the selected frames; of a table that of its points."""
        frames = slice(1, None) if self.is_table else slice(*self.frames)
        return np.median(self.sigma_row[:, frames], axis=1) ** (1 if self.is_table else 2)

    @property
    def n_frames(self) -> int:
        """Frames in the store, selected or not."""
        return len(self.time)

    @property
    def use(self) -> Bool[np.ndarray, " t"]:
        """Frames that are selected and neither masked nor excluded."""
        return self.selected_frames & self.frame_mask

    @property
    def mean_age(self) -> float:
        """Mean time [s] of the frames in use, or of all selected frames if none is."""
        used = self.time[self.use]
        return float((used if len(used) else self.time[slice(*self.frames)]).mean())

    @property
    def selected_frames(self) -> Bool[np.ndarray, " t"]:
        """Frames that are selected and not excluded."""
        inside = np.zeros(self.n_frames, bool)
        inside[slice(*self.frames)] = True
        for frames in self.excluded_frames:
            inside[slice(*frames)] = False
        return inside

    @property
    def selection_options(self) -> str:
        """Command-line options that select these bins and frames; '' if all are selected."""
        first, stop = self.frames
        words = [f"--frames {first}:{stop}"] * (stop - first < self.n_frames)
        words += [f"--exclude-frames {low}:{end}" for low, end in self.excluded_frames]
        scans = np.unique(self.scan_number).tolist()
        if self.has_repeats and len(scans) < max(len(self.scan_names), 2):
            words += [f"--scan {number}" for number in scans]
        labels = self.all_bins["label"][np.flatnonzero(self.manifest.pairs.sum(axis=(1, 2)))]
        selected, excluded = np.unique(self.label), np.setdiff1d(labels, self.label)
        if len(excluded):  # the shorter list
            shorter = len(selected) <= len(excluded)
            listed, option = (selected, "label") if shorter else (excluded, "exclude-label")
            words.append(f"--{option} {','.join(map(str, listed.tolist()))}")
        return " ".join(words)

    @property
    def digest(self) -> str:
        """SHA-256 of the store's manifest: the identity of everything in the store."""
        return self.attributes.store_sha256

    @cached_property
    def chunk_sums(self) -> Float[np.ndarray, "bin i j 4"]:
        """Σ w, Σ w(c2 - 1), Σ w(c2 - 1)² and the number of pairs of every chunk, from ingest."""
        names = ("weight", "first", "second", "pairs")
        sums = np.stack([self._array(f"sums/{name}").astype(float) for name in names], axis=-1)
        side, most = schema.tile_side(self.n_frames), self.manifest.pairs
        lost = np.add.reduceat(~self.frame_mask, np.arange(0, self.n_frames, side))
        fewest = most - side * (lost[:, None] + lost)  # pairs of masked frames are not in the sums
        if ((sums[..., 3] > most) | (sums[..., 3] < fewest)).any():
            raise arrays.ingest_again(
                self.path, "its sums are not of the pairs that its chunks have"
            )
        return read_only(sums[list(self.bins)])

    @cached_property
    def cells(self) -> Cells | None:
        """The cells over which c2 was averaged before ingest; None if the store has c2 of every pair."""
        edges = self.attributes.cells
        return edges and Cells(np.array(edges.age), np.array(edges.lag), self.n_frames)

    def read_chunk(self, chunk: "Chunk", into: Float32[np.ndarray, "T T"]) -> None:
        """Write the decoded values of a chunk of c2 or of a level into an array; NaN if it is excluded."""
        if chunk in self.excluded:
            into.fill(np.nan)
            return
        checksum = int(self.manifest.checksums[chunk.factor][chunk[1:]])
        try:
            read_decoded(self.place_of(chunk), into, checksum)
        except DAMAGED as e:
            level = "" if chunk.factor == 1 else f" of level{chunk.factor}"
            words = f"chunk {chunk[2:]}{level} of {self.bin_words(chunk.bin)}"
            why = "it is missing" if isinstance(e, FileNotFoundError) else why_unreadable(e)
            raise StoreError(
                f"{self.path}: {words} cannot be read ({why}): "
                f"ingest the source again with --overwrite, or start again if the store was replaced"
            ) from e

    def place_of(self, chunk: "Chunk") -> ByteRange:
        """Return the location of the bytes of a chunk: its own file, or a range of a shard."""
        array, place, span = schema.matrix_name(chunk.factor), chunk[1:], None
        if self.manifest.spans is not None:
            version = self.attributes.schema_version
            bins, rows = schema.shard_shape(self.n_frames, chunk.factor, version)
            span = tuple(self.manifest.spans[chunk.factor][chunk[1:]].tolist())
            place = chunk.bin // bins, chunk.i // rows, 0
        return ByteRange(inside(self.path, array, "c", *map(str, place)), span)

    @property
    def selection(self) -> Selection:
        """The identity of the selected data."""
        chosen = (self.bins, self.frames, self.excluded, self.excluded_frames)
        return Selection(self.path, self.digest, *chosen)

    @cached_property
    def dataset(self) -> "xarray.Dataset":
        """The arrays of the store for the selected bins and frames, as a dataset that is read lazily.

        c2(bin, t1, t2), NaN where t2 <= t1, with the coordinates t1 and t2 [s], q [1/Å], phi [degree],
        label and, of a store of repeats, scan. frame_mask is false for frames that are masked or
        excluded. Its chunks are those of the store; of what is read, only the checksums of the chunks
        are checked.
        """
        import xarray  # takes a second to import; workers do not need it

        whole = xarray.open_zarr(zarr_store(self.path), consolidated=False)
        times = {name: (name, self.time, {"units": "s"}) for name in ("t1", "t2")}
        bins = {
            name: ("bin", self.all_bins[name], whole[name].attrs) for name in ("q", "phi", "label")
        }
        whole = whole.assign_coords(times | bins | {"time": ("t", self.time, {"units": "s"})})
        if self.excluded_frames:
            whole["frame_mask"] = ("t", self.use)
        if self.has_repeats:
            every = replace(self, bins=tuple(range(whole.sizes["bin"])))
            whole = whole.assign_coords(scan=("bin", every.scan_number))
        chosen = whole.isel({name: slice(*self.frames) for name in ("t", "t1", "t2")})
        everything = self.bins == tuple(range(whole.sizes["bin"]))
        return chosen if everything else chosen.isel(bin=list(self.bins))

    def select(
        self,
        q: float | Sequence[float] | None = None,
        phi: float | tuple[float, float] | list[tuple[float, float] | float] | None = None,
        label: int | Sequence[int] | None = None,
        frames: FrameRange | None = None,
        time: TimeRange | None = None,
        exclude: Mapping[str, Any] | None = None,
        scan: int | str | Sequence[int | str] | None = None,
    ) -> "Scan":
        """Return the scan with fewer bins or frames.

        q [1/Å]: the nearest ring within 2 %, or several; bins whose q differ by less than 0.1 % are one
        ring, and a value that matches two rings is rejected. phi [degree]: a number selects the nearest
        angle within 1° on each ring; a pair (low, high) selects the angles from low to high, across ±180°
        if low is above high, but not more than half a turn; a list selects the angles of any of its numbers
        and pairs (a list of two numbers is ambiguous and rejected). label: the beamline's bin numbers;
        their order determines the order of the bins, and of all values given per bin. frames: (first, after
        the last), counted from 0. time: (start, end) in s, end excluded. In both, start or end may be None,
        as in slices. scan: for a store of repeats, numbers (from 1) or names of scans. exclude: bins and
        frames to exclude, {"frames": (51, 61), "time": (3.0, 3.5), "phi": 90, "label": 7}, each as above;
        frames and time may be lists of ranges, frames also a number, a list of numbers and ranges, or a mask
        that is true for them. Raises SelectionError, listing what can be selected, if nothing remains.
        """
        left_out, ranges = (set[int](), ()) if exclude is None else excluded_from(self, exclude)
        bins = select_bins(self, q, phi, label, scan)
        remaining = tuple(bin for bin in bins if bin not in left_out)
        restricted = frames is not None or time is not None
        window = select_frames(self, frames, time) if restricted else self.frames
        ranges = merged([*self.excluded_frames, *ranges], window)
        chosen = replace(self, bins=remaining, frames=window, excluded_frames=ranges)
        if not remaining:
            raise SelectionError("all bins of the selection are excluded: exclude fewer")
        if ranges and chosen.selected_frames.sum() < 3:
            excluded = f"frames {shown_ranges(ranges)} are excluded"
            raise SelectionError(f"{excluded}, which leaves fewer than 3 frames: exclude fewer")
        return chosen

    def cuts(self, min_lag: int = 1) -> Cuts:
        """Return the averages of the selected bins over cells of age and lag inside the selected frames.

        Cells with pairs of excluded frames, or of lags below min_lag, in frames from 1 up, are left out.
        """
        require_count("min_lag", min_lag)
        if self.is_table:
            return self._points()
        names = ("c2", "count", "t1", "t2", "age_edges", "lag_edges")
        stored = {name: self._array(f"cuts/{name}") for name in names}
        age, lag = np.indices([len(stored[name]) - 1 for name in ("age_edges", "lag_edges")])
        # means of times are rounded: those of a cell at the edge may lie an ulp outside
        slack = 1e-3 * np.diff(self.time).min()
        first, last = self.time[self.frames[0]] - slack, self.time[self.frames[1] - 1] + slack
        inside = np.isfinite(stored["t1"]) & (stored["t1"] >= first) & (stored["t2"] <= last)
        begin, end = stored["age_edges"][age], stored["age_edges"][age + 1]
        shortest, longest = stored["lag_edges"][lag], stored["lag_edges"][lag + 1]
        inside &= shortest >= min_lag
        for frames in self.excluded_frames:
            # cells that have no pair with a frame of the range, at t1 or at t2
            at_t1 = (begin < frames[1]) & (end > frames[0])
            inside &= ~(at_t1 | ((begin + shortest < frames[1]) & (end + longest - 1 > frames[0])))
        cells = np.array(self.bins)[:, None], *(axis[None, :] for axis in np.nonzero(inside))
        c2, count = (stored[name][cells] for name in ("c2", "count"))
        t1, t2, age, lag = (values[inside] for values in (stored["t1"], stored["t2"], age, lag))
        return Cuts(c2, count, t1, t2, age, lag, stored["age_edges"], stored["lag_edges"])

    def _points(self) -> Cuts:
        c2, lags = self.table[:, 1:], np.arange(1, self.n_frames)
        t1, edges = np.full(len(lags), self.time[0]), np.arange(1, self.n_frames + 1)
        age, count = np.zeros_like(lags), np.isfinite(c2).astype(int)
        return Cuts(c2, count, t1, self.time[1:], age, lags - 1, np.array([0, 1]), edges)

    def _document(self) -> Document:
        first, stop = self.frames
        without = shown_ranges(self.excluded_frames)
        caption = (
            f"{Path(self.path).name}: {len(self.bins)} of {len(self.all_bins['q'])} bins, "
            f"frames {first} to {stop - 1} of {self.n_frames}{without and f' without {without}'}, "
            f"{self.time[first]:g} to {self.time[stop - 1]:g} s, "
            f"σ {arrays.sigma_words(self.attributes.sigma_source)}"
        )
        table = [["label", "q [1/Å]", "φ [°]", "pixels", "σ"]]
        bins = zip(self.label, self.q, self.phi, self.n_pixels, self.median_sigma, strict=True)
        for label, q, phi, n, s in bins:
            row = [known_number(q, ".6g"), known_number(phi, ".2f"), str(n or "-"), f"{s:.4g}"]
            table.append([str(label), *row])
        if self.has_repeats:
            column = ["scan", *(f"{n} {self.scan_names[n - 1]}" for n in self.scan_number)]
            table = [[name, *row] for name, row in zip(column, table, strict=True)]
        return table_document(
            caption, table, 0, [f"note: {note}" for note in self.attributes.notes]
        )


def with_bins(scan: Scan, labels: Sequence[int], scans: Sequence[int] | None) -> Scan:
    if scans is None:
        return scan.select(label=labels)
    keys = zip(scan.scan_number.tolist(), scan.label.tolist(), strict=True)
    positions = dict(zip(keys, scan.bins, strict=True))
    for number, label in (keys_wanted := list(zip(scans, labels, strict=True))):
        if (number, label) not in positions:
            raise SelectionError(f"{scan.path} has no bin labelled {label} of scan {number}")
    return replace(scan, bins=tuple(positions[key] for key in keys_wanted))


def open_dataset(path: str | AnyPath) -> Scan:
    """Open a store written by `homodyne-dask ingest`; only its small arrays are read.

    path: its folder, or a URL: s3://, gs://, az://, https:// or file://. Raises StoreError if it is no
    complete store of this version, ObjectStoreError for a URL that cannot be used.

    >>> hd.open_dataset("A0123_c2.zarr").select(phi=(-30, 30)).dataset["c2"].sizes["t1"]
    24
    """
    where = any_path("store", path)
    if isinstance(where, Path) and not files.exists(where):
        stores = [store.name for store in where.parent.glob("*.zarr")]
        close = get_close_matches(where.name, stores, 1)
        meant = f"did you mean {close[0]}? Else " if close else ""
        raise StoreError(
            f"{where} does not exist: {meant}run `homodyne-dask ingest SOURCE {where}`"
        )
    if isinstance(where, Path) and files.is_file(where):
        raise StoreError(f"{where} is a file, not a store: run `homodyne-dask ingest {where}`")
    attrs = arrays.read_metadata(where).get("attributes", {})
    attributes = arrays.checked_attributes(where, attrs)
    bins, frames = arrays.check_arrays(where, attributes.schema_version)
    if bins % (scans := len(attributes.scans or [1])):
        raise arrays.ingest_again(where, f"{bins} bins are not those of {scans} scans")
    manifest = read_manifest(where, attrs, bins, frames)
    per_bin = {name: manifest.read_array(where, name) for name in _PER_BIN}
    time, mask = (manifest.read_array(where, name) for name in ("time", "frame_mask"))
    with np.errstate(over="ignore", under="ignore"):
        sigma = per_bin["sigma_row"] ** 2
    sigma = np.copysign(sigma, per_bin["sigma_row"])  # of a root that is not positive
    if wrong := arrays.what_is_wrong(time, per_bin["q"], per_bin["phi"], sigma):
        raise arrays.ingest_again(where, wrong)
    with_data = np.flatnonzero(manifest.pairs.sum(axis=(1, 2)))  # a bin without data is left out
    return Scan(
        path=str(absolute(where)), attributes=attributes, manifest=manifest, time=time, frame_mask=mask,
        bins=tuple(with_data.tolist()), frames=(0, frames), all_bins=read_only(per_bin),
    )  # fmt: skip


def as_scan(data: "Scan | str | AnyPath") -> Scan:
    if isinstance(data, Scan):
        return data
    if not isinstance(data, str | PathLike | UrlPath):
        raise OptionError(
            f"data = {shown(data)} is neither a scan nor the path of a store: this model can only be fitted "
            f"to scans; for other data, see hd.model"
        )
    return open_dataset(data)


@lru_cache(maxsize=128)  # each pass of a global fit goes through the stores of all scans
def open_selection(selection: Selection) -> Scan:
    """Return the scan of a selection, as a worker opens it; raises StoreError if the data changed."""
    scan = open_dataset(selection.path)
    if scan.digest != selection.digest:
        raise StoreError(f"{selection.path} changed while it was being read: start the fit again")
    return replace(scan, **{name: getattr(selection, name) for name in Selection._fields[2:]})


def coarse_use(scan: Scan, factor: int) -> Bool[np.ndarray, " t"]:
    """Return the frames of a level of which all frames are selected, and at least half are in use."""
    if factor == 1:
        return scan.use
    selected = _by_frame(scan, scan.selected_frames, factor).all(-1)
    return (_by_frame(scan, scan.use, factor).sum(-1) >= factor / 2) & selected


def coarse_weights(
    scan: Scan, factor: int, members: Sequence[int]
) -> Float[np.ndarray, "member t"]:
    """Return 1/sigma_row² of some bins, summed over the used frames of each frame of a level."""
    weights = 1 / scan.all_bins["sigma_row"][[scan.bins[b] for b in members]] ** 2
    return weights if factor == 1 else _by_frame(scan, weights * scan.use, factor).sum(-1)


def _by_frame(scan: Scan, values: np.ndarray, factor: int) -> np.ndarray:
    m = schema.level_frames(scan.n_frames, factor)
    return values[..., : m * factor].reshape(*values.shape[:-1], m, factor)


MOST_FRAMES, MOST_BINS = 1_000_000, 100_000


def scan_of_size(bins: int | None, frames: str | None, repeats: int) -> Scan:
    """Return a scan of bins of one q, all frames in use; OptionError for a size that is missing."""
    number = int(frames) if frames and frames.isdecimal() and len(frames) < 8 else 0
    if bins is None or not 3 <= number <= MOST_FRAMES:
        raise OptionError(
            f"without SOURCE, a plan needs the size of the measurement: give a store, or --bins 23 --frames "
            f"3000 (3 to {MOST_FRAMES:,} frames; given: {shown(frames)})"
        )
    if (total := bins * repeats) > MOST_BINS:
        raise OptionError(
            f"{bins} bins × {repeats} repeats are more than {MOST_BINS:,} bins: plan for fewer"
        )
    names = [f"scan {n + 1}" for n in range(repeats)] if repeats > 1 else None
    attributes = schema.Attributes.model_construct(
        source_file="", frame_time=1.0, sigma_source="constant", scans=names
    )
    per_bin = {"q": np.ones(total), "phi": np.zeros(total), "label": np.arange(total) % bins}
    return Scan(
        path="planned", attributes=attributes, manifest=Manifest({}, np.zeros((total, 1, 1), int), {}),
        time=np.arange(float(number)), frame_mask=np.ones(number, bool), bins=tuple(range(total)),
        frames=(0, number), all_bins=per_bin,
    )  # fmt: skip
