"""`hd.posterior` from draws of the errors of the fit, without pictures: real ones take too long on pages."""

import pytest
from matplotlib.figure import Figure

import homodyne_dask as hd
from homodyne_dask.apps.posterior import posterior as posterior_files
from homodyne_dask.apps.posterior import posterior_figures
from homodyne_dask.apps.posterior.priors import posterior_priors
from homodyne_dask.apps.posterior.sample_posterior import request_of
from tests.apps.posterior.made_draws import gaussian, posterior_from


def drawn(result, scan, *, priors=None, draws=4000, seed=1, **_) -> hd.Posterior:
    request = request_of(result, scan)
    posterior_priors(request.parameters, request.search, priors or {})
    return posterior_from(result, gaussian(result, draws), scan, seed=seed)


def use(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hd, "posterior", drawn, raising=False)
    patch.setattr(posterior_files, "_write_pictures", lambda *_: [])
    patch.setattr(posterior_figures, "draw_corner", lambda *_: Figure())
