"""A denoised c2 that is fitted with the noise of the data as measured."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError
from tests.photons import photographed
from tests.synthetic import fit_here, store

D0 = 3e4
"""Å²/s: c2 decays within 10 frames."""


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """The measured data, and c2 smoothed by 1.5 frames."""
    folder = tmp_path_factory.mktemp("noise_of")
    measured = photographed([D0, 0.0, 0.0], 80, [0, 40, 100], seed=4)
    both = np.where(np.isnan(measured.c2), np.swapaxes(measured.c2, 1, 2), measured.c2)
    frames = np.arange(80)
    both[:, frames[1:], frames[1:]] = both[:, frames[1:], frames[:-1]]
    both[:, 0, 0] = both[:, 0, 1]
    smooth = np.array([gaussian_filter(matrix, 1.5) for matrix in both])
    smooth = replace(measured, c2=smooth.astype(np.float32))
    other = replace(measured, phi=np.array([0.0, 40.0, 110.0]))
    short = photographed([D0, 0.0, 0.0], 60, [0, 40, 100], seed=5)
    named = {"raw": measured, "smooth": smooth, "other": other, "short": short}
    return {name: store(scan, folder, name, sigma=None) for name, scan in named.items()}


def test_errors_and_checks_are_those_of_the_measured_data(scans):
    raw, alone, fit = (
        fit_here(scans[name], "brownian", **options)
        for name, options in (
            ("raw", {}),
            ("smooth", {}),
            ("smooth", {"noise_of": scans["raw"].path}),
        )
    )
    assert fit.params["D0"].value == alone.params["D0"].value
    assert fit.params["D0"].stderr == pytest.approx(raw.params["D0"].stderr, rel=0.1)
    assert fit.redchi == pytest.approx(raw.redchi, rel=0.01)
    assert fit.redchi > 1.3 * alone.redchi or alone.params["D0"].stderr != fit.params["D0"].stderr
    assert abs(fit.params["D0"].value - D0) < 4 * fit.params["D0"].stderr
    assert not fit.misfit


def test_a_part_of_the_scan_has_the_noise_of_the_same_part(scans):
    part = {"phi": 40, "frames": (10, 70)}
    fit = fit_here(scans["smooth"].select(**part), "brownian", noise_of=scans["raw"].path)
    raw = fit_here(scans["raw"].select(**part), "brownian")
    assert fit.redchi == pytest.approx(raw.redchi, rel=0.01)


@pytest.mark.parametrize(
    ("noise_of", "options", "says"),
    [("other", {}, r"noise_of = .*other.zarr has 3 bins of 80 frames, and .*smooth.zarr has 3 of 80, with"),
     ("short", {}, r"short.zarr has 3 bins of 60 frames, and .*smooth.zarr has 3 of 80"),
     ("smooth", {}, "is what is fitted: leave it out"),
     ("raw", {"loss": "huber"}, "noise_of gives errors to a fit of squares"),
     ("raw", {"weighting": "speckle"}, "noise_of gives errors to a fit of squares")],
)  # fmt: skip
def test_other_bins_or_frames_and_what_has_no_such_noise_are_refused(
    scans, noise_of, options, says
):
    with pytest.raises(HomodyneDaskError, match=says):
        fit_here(scans["smooth"], "brownian", noise_of=scans[noise_of].path, **options)


def test_a_fit_of_several_stores_takes_no_noise_of_one(scans):
    with pytest.raises(HomodyneDaskError, match="noise_of"):
        hd.fit([scans["smooth"], scans["short"]], "brownian", noise_of=scans["raw"].path)
