"""Compiled sums of the transport models over a block: at one theta, under a loss, and at several thetas.

f and v = E·S'(x) are the only derivative fields per pair; `Family.added` has the sums made of them. All
tables are centred on the block first: the expanded sums would cancel otherwise. Each kernel passes
its summand to the loop of `subblock_loop`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES
from homodyne_dask.kernels.column_sums import AtFrames
from homodyne_dask.kernels.compiled import kernel
from homodyne_dask.kernels.losses import robust_terms
from homodyne_dask.kernels.subblock_loop import BinPairs, MeasuredBlock, SubBlock
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
from homodyne_dask.models.transport import Convention, Shear

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
    k: Float[Array, ""] | float
    s: Float[Any, " padded"]
    ds: Float[Any, " padded"]


class Waves(NamedTuple):
    """sin and cos of s·G along rows and columns: those of s·ΔG follow by the sum formulas."""

    rows: tuple[Array, Array]
    columns: tuple[Array, Array]
    """Of shape (bin, T); there may be axes before these, of several thetas."""

    def between(self, b: Array, at: SubBlock) -> tuple[Array, Array]:
        """Return sin and cos of s·(G_j - G_i) of a bin on a sub-block, with their common sign."""
        R, S = at.counted.shape

        def of_bin(wave: Array, first: Array, length: int) -> Array:
            lead = wave.shape[:-2]
            cut = lax.dynamic_slice(wave, (*(0 for _ in lead), b, first), (*lead, 1, length))
            return cut[..., 0, :]

        si, ci = (of_bin(w, at.i, R)[..., :, None] for w in self.rows)
        sj, cj = (of_bin(w, at.j, S)[..., None, :] for w in self.columns)
        return sj * ci - cj * si, cj * ci + sj * si


class CommonFields(NamedTuple):
    """Factors common to all bins of one q on a sub-block."""

    E: Float[Array, "R S"]
    """exp(-k ΔC); NaN marks pairs that do not count: it propagates to f and is masked there."""
    strain: Float[Array, "R S"]
    """ΔG in the form that f takes."""
    sign: Float[Array, "R S"]
    """Derivative of the ΔG that f takes by ΔG."""
    inverse: Float[Array, "R S"]
    """1/ΔG."""
    nearest: Float[Array, ""]
    """No |ΔG| on the sub-block is below this."""


class _Sides(NamedTuple):
    """Tables along rows (here) and columns (there) of a sub-block, and what all bins share there."""

    here: Float[Array, "tables R"]
    there: Float[Array, "tables S"]
    on: CommonFields


class BlockSums(NamedTuple):
    """Sums over all sub-blocks of a block, per bin."""

    by_tables: tuple[Float[Array, "padded u u"], ...]
    """Uᵀ F U of every field of second order, U the rows of the tables."""
    by_row: Float[Array, "padded F T"]
    """Weighted row sums of every field."""
    by_column: Float[Array, "padded F T"]


type FieldsOfBin = Callable[[CommonFields, BinPairs, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Family:
    """The models that one kernel is compiled for.

    Derivatives by parameters of J are f times a table, the others v times a table. The fields that are summed
    are the products of f and v, then those with y, then f and v themselves; without shear there is no v.
    """

    shear: Shear
    convention: Convention
    diffusion: int = 0
    """Number of parameters of J, where there are tables of derivatives."""
    precision: str = "float64"
    finite = True

    @property
    def dtype(self) -> DTypeLike:
        """That of values per pair."""
        return DTYPES[self.precision]

    def groups(self, tables: TransportTables) -> list[slice]:
        """Return the tables with which f, and under shear v, make derivatives: phi0 goes with G."""
        C = slice(1, 1 + self.diffusion)
        return [C, slice(C.stop, len(tables.rows) - 1)] if self.shear else [C]

    def _second_order(self, groups: list[slice]) -> list[tuple[int, int, slice]]:
        """Return the products of two of f and v, and the tables that multiply each on both sides."""
        pairs = [(a, b) for a in range(len(groups)) for b in range(a, len(groups))]
        return [(a, b, groups[b] if a else slice(0, groups[b].stop)) for a, b in pairs]

    def zero(self, c2: Any, groups: list[slice]) -> BlockSums:
        """Return the sums before the first sub-block."""
        bins, T, _ = c2.shape
        second = [among for *_, among in self._second_order(groups)]
        sizes = [among.stop - among.start for among in second]
        by_frame = jnp.zeros((bins, len(second) + 2 * len(groups), T))
        return BlockSums(tuple(jnp.zeros((bins, u, u)) for u in sizes), by_frame, by_frame)

    def products(self, f: Array, v: Array, y: Array) -> tuple[list[Array], list[Array]]:
        """Return the fields that are products, and f and v themselves."""
        single = [f, v] if self.shear else [f]
        second = [a * b for n, a in enumerate(single) for b in single[n:]]
        return second + [a * y for a in single], single

    def added(
        self, sums: BlockSums, fields: list[Array], sides: _Sides, groups: list[slice], on: BinPairs
    ) -> BlockSums:
        """Return the sums with those of the fields of a bin on a sub-block added."""
        i, j, w_i, w_j, u = on.at.i, on.at.j, on.w_i, on.w_j, groups[-1].stop
        here, there = sides.here[:u] * w_i, sides.there[:u] * w_j
        left, right = here.astype(self.dtype), there[0].astype(self.dtype)
        second = [among for *_, among in self._second_order(groups)]
        by_tables, by_column = [], []
        for n, F in enumerate(fields):
            if n < len(second):
                projected = (left[second[n]] @ F).astype(jnp.float64)
                by_tables.append(projected @ there[second[n]].T)
                by_column.append(projected[0] if second[n].start == 0 else left[0] @ F)
            else:
                by_column.append(left[0] @ F)
        by_row = jnp.stack([F @ right for F in fields]).astype(jnp.float64)
        by_column = jnp.stack([c.astype(jnp.float64) for c in by_column])
        return BlockSums(
            tuple(on.add_to(t, p) for t, p in zip(sums.by_tables, by_tables, strict=True)),
            on.add_to(sums.by_row, by_row * w_i, 0, i),
            on.add_to(sums.by_column, by_column * w_j, 0, j),
        )

    def assembled(
        self, sums: BlockSums, data: Array, tables: TransportTables, groups: list[slice]
    ) -> Float[Array, "padded m m"]:
        """Return Xᵀ W X over the columns 1, y - 1, f, ∂f/∂theta from the sums."""
        rows, columns, k, s, ds = tables._replace(
            rows=tables.rows[:-1], columns=tables.columns[:-1]
        )
        n_c = groups[0].stop - groups[0].start
        to = [-jnp.ones((len(s), n_c)) * k]
        if self.shear:
            n_g = groups[1].stop - groups[1].start - 1
            to.append(jnp.stack([*[s] * n_g, ds], axis=1))
        second, blocks = self._second_order(groups), {}
        for n, (a, b, among) in enumerate(second):
            both = _second_order_sums(sums, rows, columns, n, among)
            both = both if a else both[:, groups[a], groups[b]]
            blocks[a, b] = both * to[a][:, :, None] * to[b][:, None, :]
            blocks[b, a] = blocks[a, b].transpose(0, 2, 1) if a < b else blocks[a, b]
        each = range(len(groups))
        gradient = jnp.block([[blocks[a, b] for b in each] for a in each])
        at_i = jnp.einsum("sfi,ui->sfu", sums.by_row, rows)
        first = jnp.einsum("sfj,uj->sfu", sums.by_column, columns) - at_i
        ff, fy, of_f = 0, len(second), len(second) + len(groups)
        f = sums.by_row.sum(2)

        def with_gradient(start: int) -> Array:
            parts = [first[:, start + a, group] for a, group in enumerate(groups)]
            return jnp.concatenate(parts, axis=1) * jnp.concatenate(to, axis=1)

        w, wy, wyy = (data[:, n] for n in range(3))
        wf, wfy, wff = (f[:, n] for n in (of_f, fy, ff))
        lines = (w, wy, wf), (wy, wyy, wfy), (wf, wfy, wff)
        head = jnp.stack([jnp.stack(line, axis=1) for line in lines], axis=1)
        border = jnp.stack([with_gradient(of_f), with_gradient(fy), with_gradient(ff)], axis=1)
        return jnp.block([[head, border], [border.transpose(0, 2, 1), gradient]])

    def waves(self, s: Array, rows: Array, columns: Array) -> Waves:
        """Return the waves of every bin, from the tables of G and C along rows and columns."""
        of = [sin_cos(s[:, None] * G[None, :]) for G in (rows[-2], columns[-2])]
        rounded = [tuple(part.astype(self.dtype) for part in pair) for pair in of]
        return Waves(*lax.optimization_barrier(rounded))

    def sides(self, at: SubBlock, k: Array | float, rows: Any, columns: Any) -> _Sides:
        """Return the tables of a sub-block and what all bins share there."""
        here, there = at.cut(jnp.asarray(rows), jnp.asarray(columns))
        return _Sides(here, there, self.common(at, k, here, there))

    def common(self, at: SubBlock, k: Array | float, here: Array, there: Array) -> CommonFields:
        """Return the common factors, from tables along the rows (here) and the columns (there)."""
        C, G = ((there[n][None, :] - here[n][:, None]) for n in (-1, -2))
        E = decay(self.convention, jnp.asarray(k), C)
        E = jnp.where(at.counted, E, jnp.nan).astype(self.dtype)
        dG, sign = strain(self.convention, G)
        of_all = E, *(part.astype(self.dtype) for part in (dG, sign, 1 / dG))
        E, dG, sign, inverse = lax.optimization_barrier(of_all)
        before, behind = here[-2], there[-2]
        apart = jnp.maximum(behind.min() - before.max(), before.min() - behind.max())
        return CommonFields(E, dG, sign, inverse, apart)

    def fields(
        self, s: Array, trig: Waves, on: CommonFields, pairs: BinPairs, known: Bool[Array, "R S"]
    ) -> tuple[Float[Array, "R S"], Float[Array, "R S"]]:
        """Return f and v = E·S'(x) of a bin, 0 where a pair does not count; without shear f twice.

        The series near x = 0 are evaluated only on sub-blocks that come near it.
        """
        if not self.shear:
            f = jnp.where(known, unsheared(self.convention, on.E), 0)
            return f, f
        between, s = trig.between(pairs.bin, pairs.at), s[pairs.bin]

        def of_bin(*, far: bool) -> tuple[Array, Array]:
            x = s.astype(on.E.dtype) * on.strain
            if self.convention is Convention.PHYSICAL:
                at = Wave(x, *between, on.inverse * (1 / s).astype(on.E.dtype))
            else:
                at = wave(x)
            f, v = sheared(self.shear, self.convention, on.E, at, far=far)
            if self.convention is not Convention.PHYSICAL:
                v = v * on.sign
            return jnp.where(known, f, 0), jnp.where(known, v, 0)

        is_far = on.nearest * jnp.abs(s) >= nearest_far(self.shear)
        return lax.cond(is_far, lambda: of_bin(far=True), lambda: of_bin(far=False))

    def at(self, tables: TransportTables) -> tuple[FieldsOfBin, Callable[[SubBlock], _Sides]]:
        """Return what gives f and v of a bin at one theta, and what gives the tables of a sub-block."""
        s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
        trig = self.waves(s, rows, columns)
        return (
            lambda on, pairs, known: self.fields(s, trig, on, pairs, known),
            lambda at: self.sides(at, tables.k, tables.rows, tables.columns),
        )

    def at_points(
        self, tables: TransportTables
    ) -> tuple[Callable[[SubBlock], CommonFields], Callable[..., Float[Array, "point R S"]]]:
        """Return what all bins share on a sub-block, and f of a bin at each of several thetas."""
        s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
        trig = jax.vmap(self.waves)(s, rows, columns)

        def common(at: SubBlock) -> CommonFields:
            return jax.vmap(lambda here, there: self.common(at, tables.k, here, there))(
                *at.cut(rows, columns)
            )

        def f_of(on: CommonFields, pairs: BinPairs, known: Bool[Array, "R S"]) -> Array:
            if not self.shear:
                return jnp.where(known, unsheared(self.convention, on.E), 0)
            scale = s[:, pairs.bin, None, None]
            x, sine = scale * on.strain, trig.between(pairs.bin, pairs.at)[0]
            if self.convention is Convention.PHYSICAL and self.shear is Shear.LINEAR:
                sinc = jnp.where(jnp.abs(x) < _NEAR, 1 - x * x / 6, sine * on.inverse * (1 / scale))
                return jnp.where(known, on.E * sinc * sinc, 0)
            return jnp.where(known, sheared(self.shear, self.convention, on.E, wave(x))[0], 0)

        return common, f_of

    def columns(
        self, tables: TransportTables
    ) -> tuple[Callable[[SubBlock], _Sides], Callable[[_Sides, BinPairs], list[Array]]]:
        """Return what all bins share on a sub-block, and f and ∂f/∂theta of a bin at one theta, in parts."""
        fields_of, sides_at = self.at(tables)
        C, *of_shear = self.groups(tables)

        def columns_of(sides: _Sides, pairs: BinPairs) -> list[Float[Array, "some R S"]]:
            f, v = fields_of(sides.on, pairs, jnp.isfinite(sides.on.E))
            change = sides.there[:, None, :] - sides.here[:, :, None]
            columns = [f[None], -tables.k * f * change[C]]
            for G in of_shear:
                s, ds = jnp.asarray(tables.s)[pairs.bin], jnp.asarray(tables.ds)[pairs.bin]
                n_shear = G.stop - G.start - 1
                columns.append(jnp.stack([*[s] * n_shear, ds])[:, None, None] * v * change[G])
            return columns

        return sides_at, columns_of

    def of_tile(
        self, at: AtFrames, rows: Int[Array, " R"], columns: Int[Array, " S"]
    ) -> TransportTables:
        """Return the tables of one bin at frames t1 (rows) and t2."""
        s, ds = at.of_bin
        s = s if at.tables.ndim == 2 else s[:, None]
        return TransportTables(*centred(at.tables, rows, columns), at.common, s, ds)


def centred(rows: Any, i: Any, j: Any) -> tuple[Any, Any]:
    """Return tables at frames i and j around one common origin, but for the constant 1; of NumPy or JAX.

    Past the end the last frame is repeated.
    """
    here, there = (rows.take(frames, axis=-1, mode="clip") for frames in (i, j))
    origin = 0.5 * (here[..., len(i) // 2] + there[..., len(j) // 2])
    if rows.shape[-2] > 2:
        origin = origin * (np.arange(len(rows)) > 0)
    return here - origin[..., None], there - origin[..., None]


def _second_order_sums(
    sums: BlockSums, rows: Array, columns: Array, field: int, among: slice
) -> Array:
    """Return Σ w F (u_j - u_i)(v_j - v_i) of a field of second order for every u, v of its rows."""
    by_tables, rows, columns = sums.by_tables[field], rows[among], columns[among]
    at_i = jnp.einsum("si,ui,vi->suv", sums.by_row[:, field], rows, rows)
    at_j = jnp.einsum("sj,uj,vj->suv", sums.by_column[:, field], columns, columns)
    return at_i + at_j - by_tables - by_tables.transpose(0, 2, 1)


@kernel("of")
def gram_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    data: Float[Array, "padded 4"],
    fresh: Bool[Array, ""],
    *,
    of: Family,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 4"]]:
    """Return Xᵀ W X and the sums of the data of every bin; fresh: the latter are to be computed."""
    (fields_of, sides_at), groups = of.at(tables), of.groups(tables)

    def add(sums: BlockSums, sides: _Sides, pairs: BinPairs) -> BlockSums:
        y = pairs.c2.astype(of.dtype)
        known = jnp.isfinite(y + sides.on.E)
        f, v = lax.optimization_barrier(fields_of(sides.on, pairs, known))
        y = jnp.where(jnp.isfinite(y), y - 1, 0)
        products, single = of.products(f, v, y)
        return of.added(sums, lax.optimization_barrier(products) + single, sides, groups, pairs)

    start = of.zero(block.c2, groups)
    sums = block.summed((0, block.n_active), start, sides_at, add)
    data = lax.cond(fresh, block.data_sums, lambda: data)
    return of.assembled(sums, data, tables, groups), data


@kernel("of", "loss", counted="robust")
def robust_kernel(
    block: MeasuredBlock,
    tables: TransportTables,
    offset: Float[Array, " padded"],
    contrast: Float[Array, " padded"],
    scale: Float[Array, ""],
    *,
    of: Family,
    loss: str,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 5"]]:
    """Return Xᵀ W X, and the four sums of the loss with the pairs, of every bin.

    offset: the linear parameter, that is less 1. Where f has decayed to zero the residual still
    counts, so that no sub-block is skipped.
    """
    (fields_of, sides_at), groups = of.at(tables), of.groups(tables)

    def of_data(weight: Array, y: Array, pairs: BinPairs) -> Array:
        by_row = jnp.stack([F @ pairs.w_j for F in (weight, weight * y, weight * y * y)])
        return by_row @ pairs.w_i

    def add(
        sums: tuple[BlockSums, Array], sides: _Sides, pairs: BinPairs
    ) -> tuple[BlockSums, Array]:
        of_f, alone = sums
        b, known = pairs.bin, jnp.isfinite(pairs.c2) & pairs.at.counted
        f, v = lax.optimization_barrier(fields_of(sides.on, pairs, known))
        y = jnp.where(known, pairs.c2.astype(of.dtype) - 1, 0)
        r = y - offset[b] - contrast[b] * f
        weight, row = robust_terms(loss, scale, known, r, pairs.w_i, pairs.w_j)
        weight, y = lax.optimization_barrier((weight, y))
        products, single = of.products(f, v, y)
        products = lax.optimization_barrier([weight * F for F in products + single])
        alone = pairs.add_to(alone, jnp.append(of_data(weight, y, pairs), row))
        return of.added(of_f, products, sides, groups, pairs), alone

    def add_without_f(alone: Array, counted: Bool[Array, "R S"], pairs: BinPairs) -> Array:
        known = jnp.isfinite(pairs.c2) & counted
        y = jnp.where(known, pairs.c2.astype(of.dtype) - 1, 0)
        weight, row = robust_terms(loss, scale, known, y - offset[pairs.bin], pairs.w_i, pairs.w_j)
        return pairs.add_to(alone, jnp.append(of_data(weight, y, pairs), row))

    start = of.zero(block.c2, groups), jnp.zeros((len(block.c2), 8))
    of_f, alone = block.summed((0, block.n_active), start, sides_at, add)
    decayed = block.n_active, block.n_total
    alone = block.summed(decayed, alone, lambda at: at.counted, add_without_f)
    return of.assembled(of_f, alone[:, :3], tables, groups), alone[:, 3:]


@kernel("of", counted="candidates")
def candidates_kernel(
    block: MeasuredBlock, tables: TransportTables, n_points: Int[Array, ""], *, of: Family
) -> tuple[Float[Array, "padded point 3 3"], Float[Array, " padded"]]:
    """Return Xᵀ W X of every bin and point, and the pairs of every bin; tables: of several thetas."""
    s, rows, columns = (jnp.asarray(part) for part in (tables.s, tables.rows, tables.columns))
    trig = jax.vmap(of.waves)(s, rows, columns)

    def common(at: SubBlock) -> tuple[Array, Waves, CommonFields]:
        own, here, there = jax.tree.map(
            lambda part: lax.dynamic_index_in_dim(part, at.point, keepdims=False),
            (trig, rows, columns),
        )
        return s[at.point], own, of.sides(at, tables.k, here, there).on

    def add(sums: Array, common: tuple[Array, Waves, CommonFields], pairs: BinPairs) -> Array:
        s, trig, on = common
        y = pairs.c2.astype(of.dtype)
        known = jnp.isfinite(y + on.E)
        f = lax.optimization_barrier(of.fields(s, trig, on, pairs, known)[0])
        y = jnp.where(jnp.isfinite(y), y - 1, 0)
        by_row = [(F @ pairs.w_j.astype(F.dtype)).astype(jnp.float64) for F in (f, f * f, f * y)]
        return pairs.add_to(sums, jnp.stack(by_row) @ pairs.w_i, pairs.at.point)

    start = jnp.zeros((len(block.c2), MAX_CANDIDATES, 3))
    of_f = block.summed((0, block.n_active), start, common, add, n_points)
    data = block.data_sums()
    f, ff, fy = (of_f[:, :, n] for n in range(3))
    w, wy, wyy = (jnp.broadcast_to(data[:, None, n], f.shape) for n in range(3))
    lines = [jnp.stack(line, axis=-1) for line in ((w, wy, f), (wy, wyy, fy), (f, fy, ff))]
    return jnp.stack(lines, axis=-2), data[:, 3]
