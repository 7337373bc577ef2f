"""The request of a global fit: which parameter of which scan is which of the fit, and which bins are whose.

Scans, rings, angles or labels are all called scans here, of one store or of several. Some parameters differ
between them, others are shared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import block_diag

from homodyne_dask.errors import OptionError, require_known
from homodyne_dask.fitting.series.subsets import Subset, check_measured_once
from homodyne_dask.fitting.start.averages import Theta
from homodyne_dask.models.parameters import GaussianPriors, Search
from homodyne_dask.request.options import PAIRS
from homodyne_dask.request.request import Request
from homodyne_dask.solver.scaling_modes import Scaling


@dataclass(frozen=True)
class GlobalParameters:
    """Which global parameter each parameter of the model is in each scan."""

    names: tuple[str, ...]
    """'D0 of scan 3' where it differs, 'alpha' where it is shared."""
    place: Int[np.ndarray, "scan p"]
    """Among the global parameters, of each parameter of the model."""
    of_model: Int[np.ndarray, " g"]

    @classmethod
    def of(
        cls, names: Sequence[str], per_scan: Sequence[str], labels: Sequence[str]
    ) -> "GlobalParameters":
        for name in per_scan:
            require_known(name, names, f"per: unknown parameter {name!r}")
        sizes = [len(labels) if name in per_scan else 1 for name in names]
        first = np.cumsum([0, *sizes[:-1]])
        place = first + np.arange(len(labels))[:, None] * (np.array(sizes) > 1)
        global_names: list[str] = []
        for name in names:
            global_names += (
                [f"{name} of {label}" for label in labels] if name in per_scan else [name]
            )
        return cls(tuple(global_names), place, np.repeat(np.arange(len(names)), sizes))

    def search(self, search: Search) -> Search:
        """Return the search of the global parameters from that of the model's.

        Steps are curved along rates that share no parameter with another one.
        """
        take, priors = self.of_model, search.priors
        if priors is not None:
            priors = GaussianPriors(priors.mean[take], priors.sd[take], priors.period[take])
        laws = {
            tuple(places): law._replace(places=tuple(places))
            for law in search.laws
            for places in self.place[:, list(law.places)].tolist()
        }
        uses = Counter(place for places in laws for place in places)
        per_parameter = ("start", "lower", "upper", "free", "period", "log")
        return replace(
            search,
            names=self.names,
            **{name: getattr(search, name)[take] for name in per_parameter},
            laws=tuple(law for places, law in laws.items() if all(uses[n] == 1 for n in places)),
            priors=priors,
        )

    def start(self, thetas: Float[np.ndarray, "*scan p"]) -> Theta:
        theta = np.empty(len(self.names))
        theta[self.place] = thetas
        return theta


class FittedScan(NamedTuple):
    request: Request
    """Contrast and offset that scans share are those of all."""
    number: int
    """Of the scan in results, from 1."""
    store: int
    """Position of its store among the stores."""
    alone: bool
    """Whether its store has no other scan."""
    bins_of_store: list[int]
    """Positions of its bins among those of its store."""
    bins: Int[np.ndarray, " scan_bin"]
    """Positions of its bins among those of all stores, one store after the other."""
    place: Int[np.ndarray, " p"]
    """Of its parameters among the global ones."""


class GlobalRequest(NamedTuple):
    stores: tuple[Request, ...]
    together: Request
    """Of all scans, with the global parameters; its scan is that of the first store."""
    scans: tuple[FittedScan, ...]
    scan_of_bin: Int[np.ndarray, " bin"]
    """The position among them of the scan of each bin."""
    per_scan: tuple[str, ...]
    parameters: GlobalParameters
    group: str
    """What each of them is: 'scan', 'ring', 'angle' or 'label'."""

    @property
    def place(self) -> Int[np.ndarray, "bin p"]:
        return self.parameters.place[self.scan_of_bin]

    def split_by_store(self, values: np.ndarray) -> list[np.ndarray]:
        return np.split(values, np.cumsum([len(store.scan.bins) for store in self.stores[:-1]]))


def global_request(
    stores: Sequence[Request], subsets: Sequence[Subset], per_scan: tuple[str, ...]
) -> GlobalRequest:
    first, *others = stores
    search = first.search
    _check_options(first, per_scan)
    _check_alike(stores)
    labels = [subset.name.partition(": ")[0] for subset in subsets]
    parameters = GlobalParameters.of(search.names, per_scan, labels)
    first_bins = [*accumulate((len(store.scan.bins) for store in stores), initial=0)]
    store_of_subset = [
        next(n for n, store in enumerate(stores) if is_subset_of(subset, store))
        for subset in subsets
    ]
    scans, scan_of_bin = [], np.empty(first_bins[-1], int)
    for n, (subset, store) in enumerate(zip(subsets, store_of_subset, strict=True)):
        whole, bins_of_store = stores[store], list(subset.members(stores[store].scan))
        scaling, fixed = whole.scaling, whole.scaling.fixed_params
        if fixed is not None:
            scaling = replace(scaling, fixed_params=fixed[bins_of_store])
        scan = FittedScan(
            request=replace(whole, scan=subset.scan, scaling=scaling),
            number=int(subset.axis_values.get("scan", n + 1)),
            store=store,
            alone=store_of_subset.count(store) == 1,
            bins_of_store=bins_of_store,
            bins=first_bins[store] + np.array(bins_of_store),
            place=parameters.place[n],
        )
        scans.append(scan)
        scan_of_bin[scan.bins] = n
    times = np.concatenate([store.scan.time[store.scan.use] for store in stores])
    laws = first.problem.model.laws_over(times)
    together = replace(
        first,
        others=tuple(store.scan for store in others),
        search=parameters.search(replace(search, laws=laws)),
        parameters=tuple(first.parameters[n] for n in parameters.of_model),
        scaling=_scaling_of(stores),
    )
    group = {"q": "ring", "φ": "angle"}.get(word := labels[0].partition(" ")[0], word)
    return GlobalRequest(
        tuple(stores), together, tuple(scans), scan_of_bin, per_scan, parameters, group
    )


def _check_options(first: Request, per_scan: tuple[str, ...]) -> None:
    search, how = first.search, "per" if per_scan else "together"
    if first.options.weighting != PAIRS:
        raise OptionError(
            f"weighting speckle is not available with {how}, as weights follow from the noise of one model: "
            f"leave out one of them"
        )
    if first.raw is not None:
        raise OptionError(f"noise_of is not available with {how}: leave out one of them")
    if search.smoothness is not None:
        raise OptionError(
            f"rates is not available with {how}, as the strength of smoothing is that of one curve: leave "
            f"out one of them"
        )
    for name in per_scan:
        if name in search.names and not search.free[search.names.index(name)]:
            raise OptionError(
                f"per: {name} is fixed and cannot differ between groups: remove it from per or fixed"
            )


def is_subset_of(subset: Subset, whole: Request) -> bool:
    alike = subset.scan.selection._replace(bins=()) == whole.scan.selection._replace(bins=())
    return alike and set(subset.scan.bins) <= set(whole.scan.bins)


def _check_alike(stores: Sequence[Request]) -> None:
    model = stores[0].problem.model
    if len(stores) > 1 and model.of_one_record:
        raise OptionError(
            f"the splines of {model.name} are spread over the record of one scan, but {len(stores)} stores "
            f"are given: choose a model whose parameters all scans share"
        )
    if len({tuple(parameter.unit for parameter in store.parameters) for store in stores}) > 1:
        raise OptionError(
            "q is known for some of the stores only, and rates of the others are in 1/s: ingest these "
            "with --q"
        )
    check_measured_once([store.scan for store in stores])


def _scaling_of(stores: Sequence[Request]) -> Scaling:
    """Return the scaling of the bins of all stores: those of one store may share it, stores do not."""
    scalings = [store.scaling for store in stores]
    first = scalings[0]
    if len(scalings) > 1 and first.mode == "shared" and first.prior is not None:
        raise OptionError(
            f"bounds and priors of contrast and offset that bins share are for one store, but "
            f"{len(scalings)} are given: use scaling 'individual'"
        )
    fixed = [scaling.fixed_params for scaling in scalings if scaling.fixed_params is not None]
    columns = [scaling.columns for scaling in scalings if scaling.columns is not None]
    return replace(
        first,
        fixed_params=np.concatenate(fixed) if fixed else None,
        columns=block_diag(*columns) if columns else None,
    )
