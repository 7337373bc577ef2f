"""The Zarr store, schema version 2: what ingest writes and a scan reads.

One store holds one scan, or several that repeat one measurement (attribute `scans`): of n bins and m scans
the first n/m bins are those of the first scan, and so on. Arrays of the root group share these dimensions:
bin (one (q, phi) region of the detector), t1 = t2 = t (frames).

    c2(bin, t1, t2)       float32, only t2 > t1 filled, NaN elsewhere; chunk (1, T, T)
    q(bin)                1/Å, float64; NaN where unknown
    phi(bin)              degree, float64
    label(bin)            int64, the number the beamline software gave the bin
    n_pixels(bin)         int64, 0 where unknown
    time(t)               s since the first stored frame, float64, increasing, may be uneven
    sigma_row(bin, t)     float64: sigma(t1, t2) = sigma_row(t1) * sigma_row(t2)
    intensity(bin, t)     counts per pixel and analysed frame, float64; NaN where unknown
    frame_mask(t)         bool, True = use
    flux(t)               intensity of each frame in any unit, float64; only where the source has it
    mean_image(y, x)      intensity averaged over the frames, means over squares of pixels; likewise
    beta_ingest(bin)      contrast seen at ingest: near-diagonal mean minus long-lag mean

    cuts/                 c2 averaged over cells of age (frame of t1) and lag, for initial values and plots
        c2(bin, age, lag)     float64, NaN where a cell has no pair
        count(bin, age, lag)  int64, pairs averaged
        frames(bin, t)        c2 averaged over all pairs with a frame, float64; NaN where it has none
        g2(bin, t)            of a table of g2: c2 of the first frame with each, float64; NaN where unknown
        t1(age, lag), t2(age, lag)   s, mean times of all pairs of the cell, masked or not; NaN where none
        age_edges(age_edge), lag_edges(lag_edge)   frames; cell a, l holds edges[a] <= i < edges[a+1]
                                                   and lag_edges[l] <= j - i < lag_edges[l+1]
    level4/, level16/     c2(bin, t1, t2): means over 4x4 and 16x16 pairs, chunked as the root's c2
                          NaN on and below the block diagonal and where fewer than half of the pairs
                          are known; frames after the last whole block are excluded; a level with fewer
                          than 32 frames is absent
    sums/                 of each chunk i, j of c2, over its known pairs t2 > t1 of used frames, with the
                          weight w = 1/sigma(t1, t2)²: a fit need not read a chunk in which the
                          model has decayed to a constant
        weight(bin, i, j)     Σ w, float64; NaN below the diagonal
        first(bin, i, j)      Σ w·(c2 - 1), float64
        second(bin, i, j)     Σ w·(c2 - 1)², float64
        pairs(bin, i, j)      int64, pairs summed; 0 below the diagonal

Root attributes are in `Attributes`; `complete = True` is written last. Of each matrix only the chunks on
and above the diagonal exist. `c2/manifest.json` (beside the metadata of c2, where zarr does not take it
for a stray group member) lists what belongs at each place:

    chunks                of c2 and each level, per bin, the crc32c that each chunk ends with, row by row of
                          the chunks on and above the diagonal
    pairs                 of c2, in the same order, the known pairs in each chunk
    arrays                of every other array the SHA-256 of "type [shape] " and its little-endian values
    attributes            SHA-256 of the root attributes but `store_sha256` and `complete`, as JSON with
                          sorted keys
    sizes                 only in a store with shards: as `chunks`, the bytes of each chunk

In a store with shards (Zarr's `sharding_indexed`) the chunks of c2 and of the levels lie in files of some
rows of chunks of one bin, or of some bins of one chunk (`shard_shape`), one chunk after the other from the
first byte on, with Zarr's index at the end. Where a chunk begins follows from `sizes`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf, ValidationError

VERSION = 5
READ_VERSIONS = (4, VERSION)
"""In stores of version 4 each bin has a chunk of its own in `cuts/`, and no two bins share a shard."""
FORMAT = "homodyne_dask"
MANIFEST = "c2/manifest.json"
WORK_FOLDER = ".ingest"
"""Folder inside the store while it is being made: the lock, the job and one record per bin."""
LEVELS = (4, 16)
MIN_LEVEL_FRAMES = 32
GAPS = (1e4, 1e9)
"""Å: the least and the largest distance of plates; a number outside was meant in another unit."""
RANGES = {
    "q": (1e-9, 1e3, "1/Å"),
    "phi": (0.0, 1e6, "degrees"),
    "time": (0.0, 1e12, "s"),
    "sigma": (1e-15, 1e15, "as of c2"),
    "frame_time": (1e-18, 1e9, "s"),
}
"""The least and the largest size that any measurement has, beyond which squares are no numbers any more."""
MAX_SIDE = 512
SIDE_STEP = 64
"""Frames that the sides of smaller chunks are multiples of: those of the sub-blocks that kernels compute."""
SHARD_BYTES = 1 << 27
"""Most bytes of decoded chunks in a shard, unless one row of chunks has more."""
SHARED_SHARD_BYTES, MANY_BINS = 1 << 22, 128
"""Most bytes of decoded chunks in a shard of several bins, which are one task of an ingest; and from how many
bins of one chunk each on they share shards unless asked not to: to make their files and folders takes longer
than to read and clean them."""
SHARDED = "sharding_indexed"
ENTRY_FIELDS = ("entry_identifier", "scan_number", "start_time", "end_time")
BEAM_FIELDS, SAMPLE_FIELDS = ("incident_energy",), ("temperature", "temperature_set")
DETECTOR_FIELDS = (
    *("description", "count_time", "distance"),
    *("beam_center_x", "beam_center_y", "x_pixel_size", "y_pixel_size"),
)
"""Fields of the groups of NXxpcs that the attribute `experiment` has, where the source has them."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Words = Annotated[str, Field(min_length=1)]
Doubt = Literal["frames-missing", "counts-contradicted", "c2-smoothed"]
AnyWords = Annotated[InstanceOf[str], Field(min_length=1)]
"""Names of files may hold bytes that are no UTF-8."""


def _not_decreasing(edges: list[int]) -> list[int]:
    if edges[0] < 0 or edges != sorted(edges):
        raise ValueError("edges are not in ascending order from 0")
    return edges


Edges = Annotated[list[int], Field(min_length=2), AfterValidator(_not_decreasing)]


class _Truth(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    parameters: dict[str, Finite]
    gap_angstrom: Positive | None = None


def checked_truth(truth: dict[str, Any]) -> dict[str, Any]:
    _Truth.model_validate(truth)
    return truth


class CellEdges(BaseModel):
    """Cell a, l of c2 averaged before: age[a] <= i + j < age[a + 1], lag[l] <= j - i < lag[l + 1]."""

    model_config = ConfigDict(strict=True)

    age: Edges
    """Sums of the frames i and j of a pair: its age is half of that."""
    lag: Edges
    """Frames."""


class Measurement(BaseModel):
    """What a source says of the measurement, and its store, too."""

    model_config = ConfigDict(strict=True, frozen=True)

    frame_time: Positive
    """s, spacing of the stored frames."""
    stride: int = 1
    """Detector frames from one analysed frame to the next, before averaging."""
    avg: int = 1
    """Detector frames averaged into one."""
    begin_frame: int | None = None
    end_frame: int | None = None
    """First and last detector frame, 1-based."""
    gap_angstrom: Positive | None = None
    truth: Annotated[dict[str, Any], AfterValidator(checked_truth)] | None = None
    """Of simulated data: scenario, model, convention, gap_angstrom, parameters, contrast, offset."""
    cells: CellEdges | None = None
    """None where c2 is that of each pair."""
    exposures: bool = False
    """Of a table: whether times are those of exposures, and values 1 + contrast."""
    experiment: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By its names in the NeXus definition NXxpcs: value, units."""


class Attributes(Measurement):
    """The attributes of the root group."""

    format: str
    schema_version: int
    source_file: AnyWords
    source_sha256: Sha256
    source_format: Words
    ingest_options: dict[str, Any]
    """q, phi, frame_time, sigma, time_offset, gap as given to ingest, null where not; trains where given."""
    sigma_source: Literal["counts", "scatter", "constant", "table", "residuals"]
    """table, residuals: of a store of g2(delay), c2 of the first frame with one at each delay; others are not
    known. sigma is that of the table, or, of one without errors, one number from their scatter."""
    baseline_reference: Literal[1]
    populated_elements: Literal["upper_half"]
    scans: Annotated[list[AnyWords], Field(min_length=2)] | None = None
    """Names of the scans that repeat a measurement, whose bins follow one another; absent for one scan."""
    notes: list[InstanceOf[str]]
    """Sentences: what ingest dropped, masked or converted, with counts."""
    doubts: dict[Doubt, dict[str, int | Finite]] = Field(default_factory=dict)
    """What data say against their file: numbers, by the code of the finding that every fit begins with."""
    store_sha256: Sha256
    """SHA-256 of the manifest: the identity of everything in the store."""
    complete: bool


def store_beside(source: Path, content: Literal["c2", "g2"] = "c2") -> Path:
    """Return the name of the store beside its source: A0123_results.hdf → A0123_c2.zarr, or A0123_g2.zarr."""
    stem = source.stem.removesuffix("_results")
    return source.with_name(
        f"{stem.removesuffix('_g2') if content == 'g2' else stem}_{content}.zarr"
    )


def tile_side(n_frames: int) -> int:
    """Return the side of a chunk: the smallest multiple of 64 that holds all frames, at most 512."""
    return min(-(-n_frames // SIDE_STEP) * SIDE_STEP, MAX_SIDE)


def tiles_per_side(n_frames: int, factor: int) -> int:
    rows = n_frames if factor == 1 else level_frames(n_frames, factor)
    return -(-rows // tile_side(n_frames))


def factors(n_frames: int) -> list[int]:
    return [1, *(factor for factor in LEVELS if level_frames(n_frames, factor))]


def shard_shape(n_frames: int, factor: int, version: int = VERSION) -> tuple[int, int]:
    """Return the bins of a shard of c2 or of a level, and its rows of chunks: one of the two is 1."""
    tiles, chunk_bytes = tiles_per_side(n_frames, factor), 4 * tile_side(n_frames) ** 2
    rows = min(tiles, max(1, SHARD_BYTES // (tiles * chunk_bytes)))
    bins = SHARED_SHARD_BYTES // chunk_bytes if is_one_chunk(n_frames) and version > 4 else 1
    return bins, rows


def is_one_chunk(n_frames: int) -> bool:
    """Return whether the matrix of a bin is a single chunk."""
    return tiles_per_side(n_frames, 1) == 1


def matrix_name(factor: int) -> str:
    return "c2" if factor == 1 else f"level{factor}/c2"


def level_frames(n_frames: int, factor: int) -> int:
    """Return the frames of a level of a store, 0 where the store has none."""
    blocks = n_frames // factor
    return blocks if blocks >= MIN_LEVEL_FRAMES else 0


def first_mistake(error: ValidationError) -> tuple[tuple[int | str, ...], Any, str]:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return first["loc"], first["input"], message[0].lower() + message[1:]
