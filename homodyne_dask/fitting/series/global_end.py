"""The end of a global fit: the noise of its scans, the covariance that counts, and each scan alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial

import numpy as np
from jaxtyping import Float

from homodyne_dask.assessment.assess import (
    DETERMINED,
    Assessment,
    assess_end,
    assess_parameters,
    errors_by_bins,
)
from homodyne_dask.assessment.cell_residuals import AveragedCells, averaged_cells
from homodyne_dask.assessment.decay_test import Signal, frame_moments, mean_signal, signal_of
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.profile_likelihood import ProfilePoint, profile
from homodyne_dask.assessment.result_of import table_of_parameters
from homodyne_dask.assessment.shared_speckle import SMALLEST, SharedSpeckle
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, errors_of_scans, speckle_errors
from homodyne_dask.assessment.speckle_noise import NoiseCache
from homodyne_dask.assessment.which_covariance import Candidates, NoiseErrors, counted, used_of
from homodyne_dask.fitting.series.global_request import FittedScan, GlobalRequest
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.results.data.findings import Finding, Findings, finding
from homodyne_dask.results.data.fit_result import covariance_table, table_of
from homodyne_dask.results.data.series import GlobalFit
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.cluster_robust import IMPROBABLE, MIN_CLUSTERS
from homodyne_dask.solver.covariance import Uncertainty, clusters_in, determined_at
from homodyne_dask.solver.normal_matrix import solved
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.sweep.sweep import Sweep

OUTWEIGHED = 0.05
"""Share by which the error of one scan alone is smaller than that of all, from which it is said."""


@dataclass(frozen=True)
class GlobalEnd:
    request: GlobalRequest
    state: lm.State
    sweeps: Sequence[Sweep]
    gram_at: Callable[..., Gram]
    averages: dict[int, tuple[AveragedCells, NoiseCache]] = field(default_factory=dict)
    """Of each store whose noise was asked for."""

    @cached_property
    def whole(self) -> FitEnd:
        """The end of the fit in the global parameters."""
        return FitEnd(self.request.together, self.state)

    @cached_property
    def scans(self) -> list[FitEnd]:
        """The end of the fit as each scan sees it, with its parameters and bins alone."""
        linear = self.state.reduced.linear_params
        gram = self.gram_at(self.state.theta, linear)
        return [self._end_of_scan(scan, gram, linear[scan.bins]) for scan in self.request.scans]

    def _end_of_scan(
        self, scan: FittedScan, gram: Gram, linear_params: Float[np.ndarray, "bin 2"]
    ) -> FitEnd:
        bins, scaling = scan.bins, scan.request.scaling
        if scaling.columns is not None and not scan.alone:  # bins of other scans share them, too
            scaling = Scaling("fixed", fixed_params=linear_params)
        loss = None if gram.loss is None else gram.loss[bins]
        moments = Gram(gram.moments[bins], gram.pairs[bins], loss)
        rounding = scan.request.sum_rounding
        reduced = reduce(moments, scaling, rounding, linear_params=linear_params)
        values = {"theta": self.state.theta[scan.place], "reduced": reduced}
        state = replace(self.state, best=None, second_order_term=None, **values)
        return FitEnd(scan.request, state)

    def assessments(self) -> tuple[GlobalFit, list[Assessment]]:
        """Return the global fit and what is known of each scan, in the stages of `assess`."""
        candidates, noise_of = self._candidates()
        signal = self._signal(noise_of)
        candidates = candidates._replace(decay=signal is None or signal.seen)
        _, errors = counted(candidates)
        search = self.request.together.search
        determined = np.isin(search.names, determined_at(search, self.state).determined)
        errors = replace(errors, determined_by_all=determined)
        profiles, assessments, alone = self._profiles(errors), [], []
        for n, (scan, end) in enumerate(zip(self.request.scans, self.scans, strict=True)):
            noise = noise_of(n) if candidates.decay else None
            alone.append(_from_scan_alone(end, noise))
            of_scan, made = _errors_of_scan(errors, scan), {"profiles": profiles[n]}
            assessments.append(assess_end(end, noise, signal, lambda _, made=made: made, of_scan))
        assessment = assess_parameters(self.whole, candidates, signal)
        return self._global_fit(assessment, np.array(alone)), assessments

    def _candidates(self) -> tuple[Candidates, Callable[[int], SpeckleErrors | None]]:
        """Return the covariances that may count, and the noise of each scan, by its position."""
        # clusters of bins of one scan alone determine its own parameters
        fewest = min(clusters_in(end.reduced, end.request.clusters) for end in self.scans)
        few = bool(self.request.per_scan) and fewest < MIN_CLUSTERS
        candidates = Candidates(errors_by_bins(self.whole), others_enough=lambda: not few)
        by_bins = candidates.by_bins
        if few or by_bins.robust is None or by_bins.of_few(self.request.together.search.names):
            noises = [self._noise(n) for n in range(len(self.scans))]
            return candidates._replace(by_noise=self._errors_by_noise(noises)), noises.__getitem__
        # the noise of many bins is large: of one scan at a time
        return candidates, lru_cache(1)(self._noise)

    def _noise(self, n: int) -> SpeckleErrors | None:
        scan, end = self.request.scans[n], self.scans[n]
        moved = self.whole.moved[scan.place]
        determined = end.state.outcome in DETERMINED and moved.any()
        if not determined or scan.request.scan.cells is not None:
            return None
        if scan.store not in self.averages:
            averaged = averaged_cells(self.sweeps[scan.store], self.request.stores[scan.store])
            self.averages[scan.store] = averaged, NoiseCache()
        averaged, cache_of_store = self.averages[scan.store]
        return speckle_errors(
            end,
            end.equations_of(moved),
            averaged.of_bins(scan.bins_of_store),
            cache=cache_of_store,
            bins_together=len(self.request.scan_of_bin),
        )

    def _errors_by_noise(self, noises: Sequence[SpeckleErrors | None]) -> NoiseErrors | None:
        certain = [noise for noise in noises if noise and not noise.objection]
        if len(certain) < len(noises):
            return None
        joint = (
            self.whole.equations
        )  # of sums that are not finite, which have no noise, there are none
        if not joint.determined.all():
            return None
        noise_of_bin, columns_of_bin, column = {}, {}, np.cumsum(joint.which) - 1
        neighbours: dict[int, dict[int, float]] = {}
        for scan, noise in zip(self.request.scans, certain, strict=True):
            columns = column[scan.place[noise.joint.which]]
            size = noise.joint.size[: len(columns)]
            for b, noise_of_this_bin in noise.bins.items():
                noise_of_bin[scan.bins[b]] = noise_of_this_bin
                columns_of_bin[scan.bins[b]] = columns, size
            for b, shares in noise.shared.neighbours.items():
                neighbours[scan.bins[b]] = {scan.bins[a]: share for a, share in shares.items()}
        shares = tuple(share for noise in certain for share in noise.shared.shares)
        sums = [
            sum(sum(parts.values()) for parts in noise.shared.neighbours.values())
            for noise in certain
        ]
        weighted = zip(certain, sums, strict=True)
        deviation = sum(noise.shared.uncertainty * share for noise, share in weighted)
        uncertainty = deviation / max(sum(sums), SMALLEST)
        clusters = self.request.together.clusters
        shared = SharedSpeckle(clusters, neighbours, shares, uncertainty)
        return errors_of_scans(joint, noise_of_bin, columns_of_bin, shared)

    def _signal(self, noise_of: Callable[[int], SpeckleErrors | None]) -> Signal | None:
        """Return the test for a decay, None where the noise of a scan shows a decay without it.

        None, too, where a scan has no test, as scans of one store with parameters of their own: each would
        need a pass over the whole store.
        """
        request, reduced = self.request, self.whole.reduced
        signals, free = [], int(request.stores[0].search.free.sum())
        scans = list(zip(request.scans, self.scans, strict=True))

        @cache
        def moments(store: int) -> Float[np.ndarray, "bin block block 3 3"]:
            theta = next(end.theta for scan, end in scans if scan.store == store)
            robust = reduced.linear_step is not None
            params = request.split_by_store(reduced.linear_params)[store] if robust else None
            return frame_moments(self.sweeps[store], request.stores[store], theta, params)

        for n, (scan, end) in enumerate(scans):
            noise = noise_of(n)
            if noise is not None and noise.sees_decay(end.reduced.contrast):
                return None
            blocks = None
            if not scan.request.scan.is_table:
                blocks = partial(lambda scan: moments(scan.store)[scan.bins_of_store], scan)
            scaling, clusters = scan.request.scaling, scan.request.clusters
            signal = signal_of(end.state, scaling, free, clusters, blocks)
            if signal is None or (request.per_scan and not scan.alone):
                return None
            signals.append(signal)
        return mean_signal(signals, free, len(request.scan_of_bin))

    def _profiles(self, errors: Uncertainty) -> list[dict[str, list[ProfilePoint]]]:
        together, used = self.request.together, used_of(errors)
        search, first = together.search, self.request.stores[0]
        inside = self.whole.inside & np.isfinite(used)

        @cache
        def profile_of(n: int) -> list[ProfilePoint]:
            return profile(together, self.gram_at, self.state, search.names[n], float(used[n]))

        return [
            {
                name: [point._replace(theta=point.theta[place]) for point in profile_of(n)]
                for name in first.options.profile
                if inside[n := int(place[first.search.names.index(name)])]
            }
            for place in self.request.parameters.place
        ]

    def _global_fit(
        self, assessment: Assessment, alone: Float[np.ndarray, "scan 3 p"]
    ) -> GlobalFit:
        request, state, errors = self.request, self.state, assessment.errors
        search, reduced = request.together.search, state.reduced
        names, names_of_model = list(search.names), list(request.stores[0].search.names)
        units = [parameter.unit for parameter in request.together.parameters]
        value, stderr, dof = np.moveaxis(alone, 1, 0)
        columns = {"value": value, "stderr": stderr, "dof": dof}
        numbers = [scan.number for scan in request.scans]
        fit = GlobalFit(
            per_scan=request.per_scan,
            outcome=state.outcome if assessment.decay else lm.Outcome.NO_DECAY,
            parameters=table_of_parameters(
                search, state.theta, errors, assessment.at_bound, units, assessment.findings
            ),
            covariance=covariance_table(errors.robust, names),
            covariance_naive=covariance_table(errors.naive, names),
            chisqr=reduced.fit_chisqr,
            redchi=reduced.redchi(int(search.free.sum())),
            ndata=reduced.ndata,
            findings=assessment.findings,
            each=table_of({"scan param": columns}, scan=numbers, param=names_of_model),
        )
        shared = [name for name in names if name in names_of_model]
        return replace(
            fit, findings=Findings([*fit.findings, *disagreement(shared, fit, request.group)])
        )


def _errors_of_scan(errors: Uncertainty, scan: FittedScan) -> Uncertainty:
    place, bins = scan.place, scan.bins
    block = np.ix_(place, place)
    index = {"naive": block, "robust": block, "dof": place, "withheld": place, "few": place}
    index |= {"determined_by_all": place}
    index |= {"scaling_naive": bins, "scaling_robust": bins, "directions": np.s_[:, place]}
    values = {name: getattr(errors, name) for name in index}
    return replace(errors, **{name: v[index[name]] for name, v in values.items() if v is not None})


def _from_scan_alone(end: FitEnd, noise: SpeckleErrors | None) -> Float[np.ndarray, "3 p"]:
    """Return value, error and freedom of each parameter from one scan alone, to first order; else NaN."""
    alone, reduced, moved = np.full((3, len(end.theta)), np.nan), end.reduced, end.moved
    _, errors = counted(Candidates(errors_by_bins(end), noise and noise.of_theta))
    fixed = end.request.scaling.mode == "fixed"
    if errors.robust is None or (reduced.columns.shape[1] == 0) != fixed:
        return alone
    step = solved(reduced.hessian[np.ix_(moved, moved)], reduced.gradient[moved])
    stderr = np.sqrt(np.diag(errors.robust))
    alone[:, moved] = end.theta[moved] + step, stderr[moved], errors.dof[moved]
    return alone


def disagreement(names: Sequence[str], fit: GlobalFit, group: str = "scan") -> Iterator[Finding]:
    """Yield in which parameters groups disagree that share them, and which error one alone makes smaller."""
    for name in names:
        alone, stderr = fit.each.sel(param=name)["stderr"], fit.parameters["stderr"].sel(param=name)
        if (alone < (1 - OUTWEIGHED) * stderr).any():
            best = alone["scan"][alone.argmin("scan")]
            numbers = {"stderr": float(stderr), "least": float(alone.min()), "scan": int(best)}
            yield finding("scan-outweighed", [name], **numbers, group=group)
            break
    tests = {name: fit.agreement_in(name) for name in names}
    differ = {n: test.p for n, test in tests.items() if test is not None and test.p < IMPROBABLE}
    if not differ:
        return
    worst = min(differ, key=lambda name: differ[name])
    without_one = {n: fit.agreement_in(worst, but=n) for n in fit.each["scan"].values.tolist()}
    without = [n for n, test in without_one.items() if test is not None and test.p >= IMPROBABLE]
    scan = without[0] if len(without) == 1 else None
    advice, numbers = f"--per {group} {','.join(differ)}", {"scan": scan, "group": group}
    yield finding("scans-disagree", differ, advice, p=differ[worst], **numbers)
