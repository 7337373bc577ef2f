"""The parameters of a global fit of several scans (or rings, angles): some differ, the others are shared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import require_known
from homodyne_dask.models.parameters import GaussianPriors, Search


@dataclass(frozen=True)
class GlobalParameters:
    """Which global parameter each parameter of the model is in each scan."""

    names: tuple[str, ...]
    """'D0 of scan 3' where it differs, 'alpha' where it is shared."""
    place: Int[np.ndarray, "scan p"]
    """Among the global parameters, of each parameter of the model."""
    of_model: Int[np.ndarray, " g"]
    """Position in the model of each global parameter."""

    @classmethod
    def of(
        cls, names: Sequence[str], own: Sequence[str], labels: Sequence[str]
    ) -> "GlobalParameters":
        """Return those of a model with these names, where scans have these labels: 'scan 3'.

        own: parameters that differ. Raises OptionError for a name that the model does not have.
        """
        for name in own:
            require_known(name, names, f"per: unknown parameter {name!r}")
        found: list[str] = []
        of_model: list[int] = []
        place = np.empty((len(labels), len(names)), int)
        for n, name in enumerate(names):
            several = [f"{name} of {label}" for label in labels] if name in own else [name]
            place[:, n] = len(found) + np.arange(len(several))
            found += several
            of_model += [n] * len(several)
        return cls(tuple(found), place, np.array(of_model))

    def search(self, of: Search) -> Search:
        """Return the search with bounds, fixed values and priors of the model's parameters.

        Steps are curved along rates that share no parameter with another one.
        """
        take, priors = self.of_model, of.priors
        if priors is not None:
            priors = GaussianPriors(priors.mean[take], priors.sd[take], priors.period[take])
        rows = [(law, self.place[:, list(law.at)].tolist()) for law in of.laws]  # one for each scan
        laws = {tuple(at): law._replace(at=tuple(at)) for law, each in rows for at in each}
        users = Counter(at for law in laws for at in law)
        per_parameter = ("start", "lower", "upper", "free", "period", "log")
        return replace(
            of,
            names=self.names,
            **{name: getattr(of, name)[take] for name in per_parameter},
            laws=tuple(law for at, law in laws.items() if all(users[n] == 1 for n in at)),
            priors=priors,
        )

    def start(self, thetas: Float[np.ndarray, "scan p"]) -> Float[np.ndarray, " g"]:
        """Return the global parameters of those in each scan, in which shared ones are equal."""
        found = np.empty(len(self.names))
        found[self.place] = thetas
        return found
