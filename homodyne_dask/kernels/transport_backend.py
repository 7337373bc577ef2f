"""The backend of the transport models: compiled sums over a block at one theta, under a loss, or at several.

f and v = E·S'(x) are the only derivative fields per pair; `Terms.added` has the sums made of them. All tables
are centred on the block first: the expanded sums would cancel otherwise. Each kernel passes
its summand to the loop of `block_sums`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import (
    MAX_CANDIDATES,
    Backend,
    Block,
    GramColumns,
    PairSet,
    PairTimes,
    Problem,
    TileWork,
    sub_blocks,
)
from homodyne_dask.kernels.block_sums import (
    AtFrames,
    BinPairs,
    MeasuredBlock,
    SubBlock,
    cells_kernel,
    grams_of_tiles,
    known_sums,
    measured_block,
    of_bins,
    under_loss,
    wide_kernel,
)
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.devices import computed
from homodyne_dask.kernels.gram import DataSums, Gram, LinearParams
from homodyne_dask.kernels.losses import robust_terms
from homodyne_dask.kernels.transport_evaluation import (
    TRANSPORT_EVALUATION,
    Bins,
    TransportPoint,
    f_between,
)
from homodyne_dask.models.shear_factor import (
    Wave,
    decay,
    nearest_far,
    sheared,
    sin_cos,
    strain,
    unsheared,
    wave,
)
from homodyne_dask.models.transport import (
    BinScales,
    Convention,
    Shear,
    TransportModel,
    bin_scales,
    frame_spacing,
    positive_times,
    rows_of,
    time_steps,
)

MAX_CHANGE_PER_CELL = 0.3
"""A level is used if, over three quarters of its frames, k ΔC and s ΔG stay below this: a mean over a
cell then differs from the value at its middle by about (MAX_CHANGE_PER_CELL²/24)."""
DTYPES = {"float64": jnp.float64, "mixed": jnp.float32}
"""The dtype of values per pair, by precision; sums are float64."""
_NEAR = 1e-4
"""|x| below which sin x / x is 1 - x²/6 to rounding; above, sin x is known to 1e-12 of itself."""


class TransportTables(NamedTuple):
    """The integrals of theta along a block's rows and columns, and the scales of each bin.

    Of several thetas all but k have a first axis over them, and there are only the tables of G and C.
    """

    rows: Float[Any, "tables T"]
    """1, one for each parameter of J, under shear one for each of γ̇ and G, last C."""
    columns: Float[Any, "tables T"]
    k: Float[Any, ""] | Float[Any, " padded"]
    """Of all bins, or, if they differ in q, of each."""
    s: Float[Any, " padded"]
    ds: Float[Any, " padded"]


class Waves(NamedTuple):
    """sin and cos of s·G along rows and columns: those of s·ΔG follow by the sum formulas."""

    rows: tuple[Array, Array]
    columns: tuple[Array, Array]
    """Of shape (bin, T); there may be axes before these, of several thetas."""

    def between(self, b: Array, sub_block: SubBlock) -> tuple[Array, Array]:
        """Return sin and cos of s·(G_j - G_i) of a bin on a sub-block, with their common sign."""
        R, S = sub_block.counted.shape

        def of_bin(wave: Array, first: Array, length: int) -> Array:
            lead = wave.shape[:-2]
            cut = lax.dynamic_slice(wave, (*(0 for _ in lead), b, first), (*lead, 1, length))
            return cut[..., 0, :]

        si, ci = (of_bin(w, sub_block.i, R)[..., :, None] for w in self.rows)
        sj, cj = (of_bin(w, sub_block.j, S)[..., None, :] for w in self.columns)
        return sj * ci - cj * si, cj * ci + sj * si


class Sides(NamedTuple):
    """Tables along rows and columns of a sub-block, and what all bins share there."""

    rows: Float[Array, "tables R"]
    columns: Float[Array, "tables S"]
    E: Float[Array, "R S"]
    """exp(-k ΔC), or ΔC where bins differ in k (`TransportFamily.of_bin`); NaN marks pairs that do not count:
    it propagates to f and is masked there."""
    strain: Float[Array, "R S"]
    """ΔG in the form that f takes, its derivative by ΔG, and 1/ΔG."""
    sign: Float[Array, "R S"]
    inverse: Float[Array, "R S"]
    nearest: Float[Array, ""]
    """No |ΔG| on the sub-block is below this."""


@dataclass(frozen=True)
class TransportFamily:
    """The transport models that one kernel is compiled for: a `block_sums.Family`."""

    shear: Shear
    convention: Convention
    diffusion: int = 0
    """Number of parameters of J, where there are tables of derivatives."""
    precision: str = "float64"
    finite = True

    @property
    def dtype(self) -> DTypeLike:
        return DTYPES[self.precision]

    def waves(self, s: Array, rows: Array, columns: Array) -> Waves:
        # rounded after float64 sines: s·G of many turns has no accurate sine in float32
        pairs = [sin_cos(s[:, None] * G[None, :]) for G in (rows[-2], columns[-2])]
        rounded = [tuple(values.astype(self.dtype) for values in pair) for pair in pairs]
        return Waves(*lax.optimization_barrier(rounded))

    def sides(self, sub_block: SubBlock, k: Any, rows: Array, columns: Array) -> Sides:
        C, G = ((columns[n][None, :] - rows[n][:, None]) for n in (-1, -2))
        E = C if jnp.ndim(k) else decay(self.convention, jnp.asarray(k), C).astype(self.dtype)
        E = jnp.where(sub_block.counted, E, jnp.nan)
        dG, sign = strain(self.convention, G)
        fields = E, *(field.astype(self.dtype) for field in (dG, sign, 1 / dG))
        before, behind = rows[-2], columns[-2]
        # below 0 where the ranges of G overlap, and some ΔG may be 0
        apart = jnp.maximum(behind.min() - before.max(), before.min() - behind.max())
        E, dG, sign, inverse = lax.optimization_barrier(fields)
        return Sides(rows, columns, E, dG, sign, inverse, apart)

    def of_bin(self, k: Any, sides: Sides, bin: Array) -> Sides:
        """Return sides with exp(-k ΔC) of a bin."""
        if not jnp.ndim(k):
            return sides
        E = decay(self.convention, jnp.asarray(k)[bin], sides.E).astype(self.dtype)
        return sides._replace(E=lax.optimization_barrier(E))

    def fields(
        self, s: Array, trig: Waves, sides: Sides, pairs: BinPairs, measured: Bool[Array, "R S"]
    ) -> tuple[Float[Array, "R S"], Float[Array, "R S"]]:
        """Return f and v, 0 where a pair does not count; the series near x = 0 only where that is near."""
        if not self.shear:
            f = jnp.where(measured, unsheared(self.convention, sides.E), 0)
            return f, f
        between, s, E = trig.between(pairs.bin, pairs.sub_block), s[pairs.bin], sides.E

        def of_bin(*, far: bool) -> tuple[Array, Array]:
            x = s.astype(E.dtype) * sides.strain
            if self.convention is Convention.PHYSICAL:
                of_wave = Wave(x, *between, sides.inverse * (1 / s).astype(E.dtype))
            else:
                of_wave = wave(x)
            f, v = sheared(self.shear, self.convention, E, of_wave, far=far)
            if self.convention is not Convention.PHYSICAL:
                v = v * sides.sign
            return jnp.where(measured, f, 0), jnp.where(measured, v, 0)

        is_far = sides.nearest * jnp.abs(s) >= nearest_far(self.shear)
        return lax.cond(is_far, lambda: of_bin(far=True), lambda: of_bin(far=False))

    def at_points(self, tables: TransportTables) -> "SeveralThetas":
        return SeveralThetas(self, tables)

    def at_theta(self, tables: TransportTables) -> "Terms":
        return Terms(self, tables)

    def of_tile(
        self, at_frames: AtFrames, rows: Int[Array, " R"], columns: Int[Array, " S"]
    ) -> TransportTables:
        s, ds, *k = at_frames.of_bin
        s = s if at_frames.tables.ndim == 2 else s[:, None]
        tables = centred(at_frames.tables, rows, columns)
        return TransportTables(*tables, k[0] if k else at_frames.common, s, ds)


class SeveralThetas:
    """f at several thetas: a `block_sums.Columns`; candidates take one after the other."""

    def __init__(self, family: TransportFamily, tables: TransportTables) -> None:
        self.family, self.k = family, tables.k
        self.s, self.rows, self.columns = (
            jnp.asarray(array) for array in (tables.s, tables.rows, tables.columns)
        )
        self.trig = jax.vmap(family.waves)(self.s, self.rows, self.columns)

    def shared(self, sub_block: SubBlock) -> Sides:
        return jax.vmap(lambda rows, columns: self.family.sides(sub_block, self.k, rows, columns))(
            *sub_block.cut(self.rows, self.columns)
        )

    def of_bin(self, sides: Sides, pairs: BinPairs, measured: Bool[Array, "R S"]) -> list[Array]:
        shear, convention = self.family.shear, self.family.convention
        sides = self.family.of_bin(self.k, sides, pairs.bin)
        if not shear:
            return [jnp.where(measured, unsheared(convention, sides.E), 0)]
        scale = self.s[:, pairs.bin, None, None]
        x, sine = scale * sides.strain, self.trig.between(pairs.bin, pairs.sub_block)[0]
        if convention is Convention.PHYSICAL and shear is Shear.LINEAR:
            far = sine * sides.inverse * (1 / scale)
            sinc = jnp.where(jnp.abs(x) < _NEAR, 1 - x * x / 6, far)
            return [jnp.where(measured, sides.E * sinc * sinc, 0)]
        return [jnp.where(measured, sheared(shear, convention, sides.E, wave(x))[0], 0)]

    def shared_at_one(self, sub_block: SubBlock) -> tuple[Array, Waves, Sides]:
        """Return s, waves and sides of the theta whose turn it is."""
        waves, rows, columns = jax.tree.map(
            lambda of_thetas: lax.dynamic_index_in_dim(of_thetas, sub_block.point, keepdims=False),
            (self.trig, self.rows, self.columns),
        )
        s, sides_of = self.s[sub_block.point], self.family.sides
        return s, waves, sides_of(sub_block, self.k, *sub_block.cut(rows, columns))


class BlockSums(NamedTuple):
    by_tables: tuple[Float[Array, "padded u u"], ...]
    """U F Vᵀ of every field F of second order, U and V the tables over the rows and the columns."""
    by_row: Float[Array, "padded F T"]
    by_column: Float[Array, "padded F T"]


class Terms:
    """f and its derivatives at one theta, a `block_sums.Columns`, and the sums of a block made of them.

    Derivatives by parameters of J are f times a table, the others v times a table. The fields that are summed
    are the products of f and v, then those with y, then f and v themselves; without shear there is no v.
    """

    def __init__(self, family: TransportFamily, tables: TransportTables) -> None:
        self.family, self.tables = family, tables
        s, rows, columns = (jnp.asarray(array) for array in (tables.s, tables.rows, tables.columns))
        self.s, self.trig = s, family.waves(s, rows, columns)
        C = slice(1, 1 + family.diffusion)
        self.groups = [C, slice(C.stop, len(rows) - 1)] if family.shear else [C]
        """The tables with which f, and under shear v, make derivatives: phi0 goes with G."""
        fields = range(len(self.groups))
        self.products_of = [(a, b) for a in fields for b in fields[a:]]
        self.multiplied = [
            self.groups[b] if a else slice(0, self.groups[b].stop) for a, b in self.products_of
        ]
        """The tables that multiply each product of two of f and v on both sides."""

    def shared(self, sub_block: SubBlock) -> Sides:
        rows, columns = jnp.asarray(self.tables.rows), jnp.asarray(self.tables.columns)
        return self.family.sides(sub_block, self.tables.k, *sub_block.cut(rows, columns))

    def of_bin(self, sides: Sides, pairs: BinPairs, measured: Bool[Array, "R S"]) -> list[Array]:
        sides = self.family.of_bin(self.tables.k, sides, pairs.bin)
        f, v = self.fields(sides, pairs, jnp.isfinite(sides.E))
        change = sides.columns[:, None, :] - sides.rows[:, :, None]
        C, *of_shear = self.groups
        k = jnp.asarray(self.tables.k)
        columns = [f[None], -(k[pairs.bin] if k.ndim else k) * f * change[C]]
        for G in of_shear:
            s, ds = (jnp.asarray(scale)[pairs.bin] for scale in (self.tables.s, self.tables.ds))
            scales = jnp.stack([*[s] * (G.stop - G.start - 1), ds])
            columns.append(scales[:, None, None] * v * change[G])
        return columns

    def fields(self, sides: Sides, pairs: BinPairs, measured: Array) -> tuple[Array, Array]:
        return self.family.fields(self.s, self.trig, sides, pairs, measured)

    def zero(self, c2: Any) -> BlockSums:
        bins, T, _ = c2.shape
        sizes = [among.stop - among.start for among in self.multiplied]
        by_frame = jnp.zeros((bins, len(sizes) + 2 * len(self.groups), T))
        return BlockSums(tuple(jnp.zeros((bins, u, u)) for u in sizes), by_frame, by_frame)

    def products(self, f: Array, v: Array, y: Array) -> tuple[list[Array], list[Array]]:
        single = [f, v][: len(self.groups)]
        products = [single[a] * single[b] for a, b in self.products_of]
        return [*products, *(field * y for field in single)], single

    def added(
        self, sums: BlockSums, fields: list[Array], sides: Sides, pairs: BinPairs
    ) -> BlockSums:
        w_i, w_j, u, dtype = pairs.w_i, pairs.w_j, self.groups[-1].stop, self.family.dtype
        rows, columns = sides.rows[:u] * w_i, sides.columns[:u] * w_j
        left, right = rows.astype(dtype), columns[0].astype(dtype)
        by_tables, by_column = [], []
        for n, F in enumerate(fields):
            if n < len(self.multiplied):
                among = self.multiplied[n]
                projected = (left[among] @ F).astype(jnp.float64)
                by_tables.append(projected @ columns[among].T)
                by_column.append(projected[0] if among.start == 0 else left[0] @ F)
            else:
                by_column.append(left[0] @ F)
        by_row = jnp.stack([F @ right for F in fields]).astype(jnp.float64)
        by_column = jnp.stack([c.astype(jnp.float64) for c in by_column])
        return BlockSums(
            tuple(pairs.add_to(t, p) for t, p in zip(sums.by_tables, by_tables, strict=True)),
            pairs.add_to(sums.by_row, by_row * w_i, 0, pairs.sub_block.i),
            pairs.add_to(sums.by_column, by_column * w_j, 0, pairs.sub_block.j),
        )

    def assembled(self, sums: BlockSums, data: Array) -> Float[Array, "padded m m"]:
        """Return Xᵀ W X over the columns 1, y - 1, f, ∂f/∂theta from the sums."""
        tables, groups = self.tables, self.groups
        rows, columns, s = tables.rows[:-1], tables.columns[:-1], tables.s
        k = jnp.reshape(tables.k, (-1, 1))
        factors = [-jnp.ones((len(s), groups[0].stop - groups[0].start)) * k]
        for G in groups[1:]:
            factors.append(jnp.stack([*[s] * (G.stop - G.start - 1), tables.ds], axis=1))
        blocks = {}
        for n, ((a, b), among) in enumerate(zip(self.products_of, self.multiplied, strict=True)):
            # Σ w F (u_j - u_i)(v_j - v_i) for every u, v of the tables
            mixed, U, V = sums.by_tables[n], rows[among], columns[among]
            at_i = jnp.einsum("si,ui,vi->suv", sums.by_row[:, n], U, U)
            at_j = jnp.einsum("sj,uj,vj->suv", sums.by_column[:, n], V, V)
            of_pairs = at_i + at_j - mixed - mixed.transpose(0, 2, 1)
            of_pairs = of_pairs if a else of_pairs[:, groups[a], groups[b]]
            blocks[a, b] = of_pairs * factors[a][:, :, None] * factors[b][:, None, :]
            blocks[b, a] = blocks[a, b].transpose(0, 2, 1) if a < b else blocks[a, b]
        fields = range(len(groups))
        gradient = jnp.block([[blocks[a, b] for b in fields] for a in fields])
        at_i = jnp.einsum("sfi,ui->sfu", sums.by_row, rows)
        by_tables = jnp.einsum("sfj,uj->sfu", sums.by_column, columns) - at_i
        ff, fy, of_field = 0, len(self.multiplied), len(self.multiplied) + len(groups)
        f = sums.by_row.sum(2)

        def with_gradient(start: int) -> Array:
            parts = [by_tables[:, start + a, group] for a, group in enumerate(groups)]
            return jnp.concatenate(parts, axis=1) * jnp.concatenate(factors, axis=1)

        w, wy, wyy = (data[:, n] for n in range(3))
        wf, wfy, wff = (f[:, n] for n in (of_field, fy, ff))
        lines = (w, wy, wf), (wy, wyy, wfy), (wf, wfy, wff)
        head = jnp.stack([jnp.stack(line, axis=1) for line in lines], axis=1)
        border = jnp.stack([with_gradient(of_field), with_gradient(fy), with_gradient(ff)], axis=1)
        return jnp.block([[head, border], [border.transpose(0, 2, 1), gradient]])


def centred(rows: Any, i: Any, j: Any) -> tuple[Any, Any]:
    """Return tables at frames i and j (the last where past the end) around one origin, but for the 1."""
    at_i, at_j = (rows.take(frames, axis=-1, mode="clip") for frames in (i, j))
    origin = 0.5 * (at_i[..., len(i) // 2] + at_j[..., len(j) // 2])
    if rows.shape[-2] > 2:  # with derivatives, whose first table is the 1
        origin = origin * (np.arange(len(rows)) > 0)
    return at_i - origin[..., None], at_j - origin[..., None]


@kernel("family")
def gram_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    family: TransportFamily,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return Xᵀ W X and the sums of the data of every bin; fresh: the latter are to be computed."""
    terms = Terms(family, tables)

    def add(sums: BlockSums, sides: Sides, pairs: BinPairs) -> BlockSums:
        sides = family.of_bin(tables.k, sides, pairs.bin)
        y = pairs.c2.astype(family.dtype)
        measured = jnp.isfinite(y + sides.E)  # E is NaN where a pair is too close
        f, v = lax.optimization_barrier(terms.fields(sides, pairs, measured))
        y = jnp.where(jnp.isfinite(y), y - 1, 0)
        products, single = terms.products(f, v, y)
        return terms.added(sums, lax.optimization_barrier(products) + single, sides, pairs)

    sums = block.summed((0, block.n_active), terms.zero(block.c2), terms.shared, add)
    data = lax.cond(fresh, block.data_sums, lambda: data)
    return terms.assembled(sums, data), data


@kernel("family", "loss", counted="robust")
def robust_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    offset: Float[Array, " padded"],
    contrast: Float[Array, " padded"],
    scale: Float[Array, ""],
    *,
    family: TransportFamily,
    loss: str,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 5"]]:
    """Return Xᵀ W X, and the sums of the loss with the pairs; residuals count where f has decayed, too."""
    terms = Terms(family, tables)

    def of_data(weight: Array, y: Array, pairs: BinPairs) -> Array:
        by_row = jnp.stack([F @ pairs.w_j for F in (weight, weight * y, weight * y * y)])
        return by_row @ pairs.w_i

    def add(
        sums: tuple[BlockSums, Array], sides: Sides, pairs: BinPairs
    ) -> tuple[BlockSums, Array]:
        of_f, sums_without_f = sums
        sides = family.of_bin(tables.k, sides, pairs.bin)
        b, measured = pairs.bin, jnp.isfinite(pairs.c2) & pairs.sub_block.counted
        f, v = lax.optimization_barrier(terms.fields(sides, pairs, measured))
        y = jnp.where(measured, pairs.c2.astype(family.dtype) - 1, 0)
        r = y - offset[b] - contrast[b] * f
        weight, row = robust_terms(loss, scale, measured, r, pairs.w_i, pairs.w_j)
        weight, y = lax.optimization_barrier((weight, y))
        products, single = terms.products(f, v, y)
        products = lax.optimization_barrier([weight * F for F in products + single])
        sums_without_f = pairs.add_to(sums_without_f, jnp.append(of_data(weight, y, pairs), row))
        return terms.added(of_f, products, sides, pairs), sums_without_f

    def add_without_f(sums_without_f: Array, counted: Bool[Array, "R S"], pairs: BinPairs) -> Array:
        measured = jnp.isfinite(pairs.c2) & counted
        y = jnp.where(measured, pairs.c2.astype(family.dtype) - 1, 0)
        weight, row = robust_terms(
            loss, scale, measured, y - offset[pairs.bin], pairs.w_i, pairs.w_j
        )
        return pairs.add_to(sums_without_f, jnp.append(of_data(weight, y, pairs), row))

    start = terms.zero(block.c2), jnp.zeros((len(block.c2), 8))
    of_f, sums_without_f = block.summed((0, block.n_active), start, terms.shared, add)
    decayed = block.n_active, block.n_total
    sums_without_f = block.summed(
        decayed, sums_without_f, lambda sub_block: sub_block.counted, add_without_f
    )
    return terms.assembled(of_f, sums_without_f[:, :3]), sums_without_f[:, 3:]


@kernel("family", counted="candidates")
def candidates_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    n_points: Int[Array, ""],
    *,
    family: TransportFamily,
) -> tuple[Float[Array, "padded point 3 3"], Float[Array, " padded"]]:
    """Return Xᵀ W X of every bin and point, and the pairs of every bin; tables: of several thetas."""
    thetas = SeveralThetas(family, tables)

    def add(sums: Array, shared: tuple[Array, Waves, Sides], pairs: BinPairs) -> Array:
        s, trig, sides = shared
        sides = family.of_bin(tables.k, sides, pairs.bin)
        y = pairs.c2.astype(family.dtype)
        measured = jnp.isfinite(y + sides.E)
        f = lax.optimization_barrier(family.fields(s, trig, sides, pairs, measured)[0])
        y = jnp.where(jnp.isfinite(y), y - 1, 0)
        by_row = [(F @ pairs.w_j.astype(F.dtype)).astype(jnp.float64) for F in (f, f * f, f * y)]
        return pairs.add_to(sums, jnp.stack(by_row) @ pairs.w_i, pairs.sub_block.point)

    start = jnp.zeros((len(block.c2), MAX_CANDIDATES, 3))
    of_f = block.summed((0, block.n_active), start, thetas.shared_at_one, add, n_points)
    data = block.data_sums()
    f, ff, fy = (of_f[:, :, n] for n in range(3))
    w, wy, wyy = (jnp.broadcast_to(data[:, None, n], f.shape) for n in range(3))
    lines = [jnp.stack(line, axis=-1) for line in ((w, wy, f), (wy, wyy, fy), (f, fy, ff))]
    return jnp.stack(lines, axis=-2), data[:, 3]


def _centred(rows: Float[np.ndarray, "rows n"], block: Block) -> tuple[np.ndarray, np.ndarray]:
    frame = np.arange(block.c2.shape[-1])
    return centred(rows, block.i0 + frame, block.j0 + frame)


def _family(
    problem: Problem, derivatives: bool = False, mixed_allowed: bool = False
) -> TransportFamily:
    diffusion = problem.model.diffusion.stop if derivatives else 0
    precision = problem.precision if mixed_allowed else "float64"
    return TransportFamily(problem.model.shear, problem.convention, diffusion, precision)


def _arguments_at(point: TransportPoint, block: Block) -> tuple[MeasuredBlock, TransportTables]:
    scales = point.scales(block.q, block.phi)
    cut = point.sub_blocks(block.q.min(), block.i0, block.j0, block.c2.shape[-1])
    s, ds = block.padded(scales.s), block.padded(scales.ds)
    tables = TransportTables(*_centred(point.rows, block), _decays(block, scales), s, ds)
    return measured_block(block, cut, point.min_lag), tables


def _decays(block: Block, scales: BinScales) -> Any:
    """Return k of all bins of a block, or of each where they may differ in q."""
    return block.padded(scales.k) if block.several_q else scales.k[0]


def _arguments_of_points(
    points: Sequence[TransportPoint], block: Block
) -> tuple[MeasuredBlock, TransportTables]:
    T, first = block.c2.shape[-1], points[0]
    rows, columns = zip(*(_centred(point.rows[-2:], block) for point in points), strict=True)
    scales = [point.scales(block.q, block.phi) for point in points]
    kC = scales[0].k.min() * np.array([point.rows[-1] for point in points])
    cut = sub_blocks(block.i0, block.j0, T, first.min_lag, kC, first.frames)
    s = np.array([block.padded(of_point.s) for of_point in scales])
    ds = block.padded(scales[0].ds)
    k = _decays(block, scales[0])
    tables = TransportTables(np.array(rows), np.array(columns), k, s, ds)
    return measured_block(block, cut, first.min_lag), tables


def gram(
    point: TransportPoint, block: Block, data: DataSums | None = None
) -> tuple[Gram, DataSums]:
    """Return the Gram of every bin; data: the sums of a previous call, which do not depend on theta."""
    arguments = *_arguments_at(point, block), *known_sums(block, data)
    family = _family(point.problem, derivatives=True, mixed_allowed=True)
    return of_bins(block, *computed(gram_kernel, *arguments, family=family))


def robust_gram(point: TransportPoint, block: Block, linear_params: LinearParams) -> Gram:
    problem, linear = point.problem, (block.padded(values) for values in linear_params.T)
    static = {"family": _family(problem, derivatives=True), "loss": problem.loss}
    arguments = *_arguments_at(point, block), *linear, problem.loss_scale
    return under_loss(block, *computed(robust_kernel, *arguments, **static))


def candidate_grams(points: Sequence[TransportPoint], block: Block) -> Gram:
    n_points, bins, family = (
        len(points),
        len(block.q),
        _family(points[0].problem, mixed_allowed=True),
    )
    # only n_points of them are evaluated
    points = [*points, *[points[-1]] * (MAX_CANDIDATES - n_points)]
    arguments = *_arguments_of_points(points, block), n_points
    moments, pairs = computed(candidates_kernel, *arguments, family=family)
    return Gram(moments[:bins, :n_points], pairs[:bins].astype(np.int64))


def wide_gram(
    points: Sequence[TransportPoint], block: Block, data: DataSums | None
) -> tuple[Gram, DataSums]:
    arguments = *_arguments_of_points(points, block), *known_sums(block, data)
    return of_bins(block, *computed(wide_kernel, *arguments, family=_family(points[0].problem)))


def tile_grams(
    points: Sequence[TransportPoint], work: TileWork
) -> list[tuple[Gram, Float[np.ndarray, "bin 4"]]]:
    first, block = points[0], work.blocks[0]
    derivatives = work.columns is GramColumns.DERIVATIVES
    problem, scales = first.problem, [point.scales(block.q, block.phi) for point in points]
    mixed = work.columns is not GramColumns.CHANGES and work.linear_params is None
    rows = first.rows if derivatives else np.array([point.rows[-2:] for point in points])
    s, ds = np.stack([of_point.s for of_point in scales], axis=1), scales[0].ds[:, None]
    columns = 2 + (1 + problem.model.size if derivatives else len(points))
    k = scales[0].k
    frames = AtFrames(rows, k[0], (s, ds, k[:, None]) if block.several_q else (s, ds))
    family = _family(problem, derivatives, mixed)
    return grams_of_tiles(family, frames, columns, problem, first.min_lag, work)


def cell_sums(
    point: TransportPoint,
    block: Block,
    cell: Int[np.ndarray, "T T"],
    sums: Float[np.ndarray, "padded cell m"],
) -> Float[np.ndarray, "padded cell m"]:
    arguments, family = _arguments_at(point, block), _family(point.problem, derivatives=True)
    return computed(cells_kernel, *arguments, cell, sums, family=family)[0]


def pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    convention, spacing = problem.convention, frame_spacing(time, problem.convention)
    steps = time_steps(convention, time)
    return PairTimes(positive_times(time, spacing), steps, spacing)


def f_of_theta(theta: Any, pairs: PairSet, model: TransportModel, convention: Convention) -> Array:
    rows: Any = rows_of(model, convention, theta, pairs.times.t, pairs.times.steps)
    scales = bin_scales(
        model, convention, theta, pairs.q, pairs.phi, pairs.gap, pairs.times.spacing
    )
    dC: Any = rows[-1, pairs.j] - rows[-1, pairs.i]
    dG: Any = rows[-2, pairs.j] - rows[-2, pairs.i] if model.shear else dC
    k, s = jnp.asarray(scales.k)[:, None], jnp.asarray(scales.s)[:, None]
    return f_between(dC, dG, k, s, shear=model.shear, convention=convention)


def adequate(
    point: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int
) -> bool:
    first, stop = frames
    steps = np.abs(np.diff(point.rows[-2:, first:stop:factor]))
    if not steps.size:
        return False
    scales = point.scales(q, phi)
    typical = np.quantile(steps, 0.75, axis=1)
    turned = np.abs(scales.s).max() * typical[0] if point.problem.model.shear else 0.0
    return bool(max(turned, scales.k.max() * typical[1]) < MAX_CHANGE_PER_CELL)


def correlation_time(point: TransportPoint, q: Bins, phi: Bins, frames: tuple[int, int]) -> float:
    scales = point.scales(q, phi)
    first, stop = frames
    C, middle = point.rows[-1], (first + stop) // 2
    decay = np.median(scales.k) * (C[middle:] - C[middle])
    if point.problem.model.shear:
        G = point.rows[-2]
        decay = decay + (np.median(np.abs(scales.s)) * (G[middle:] - G[middle])) ** 2 / 3
    decayed = np.flatnonzero(decay > 1)
    return float(decayed[0]) if len(decayed) else float(stop - middle)


TRANSPORT = Backend(
    **vars(TRANSPORT_EVALUATION),
    gram=gram,
    robust_gram=robust_gram,
    candidate_grams=candidate_grams,
    wide_gram=wide_gram,
    tile_grams=tile_grams,
    cell_sums=cell_sums,
    pair_times=pair_times,
    f_of_theta=f_of_theta,
    adequate=adequate,
    correlation_time=correlation_time,
)
