"""False alarms: verdicts of a misfit on the true model, over scenarios, frames, angles and both noises."""

from itertools import product

import pytest

import homodyne_dask as hd
from homodyne_dask.models import MODELS
from ingest import NOISE, SCENARIOS, ingest
from tests.synthetic import fit_here

TRUE = [name for name, made in SCENARIOS.items() if made.model in MODELS]
"""The scenarios that a model of the package describes."""
SIZES = [*product((100, 300, 1000), (1, 2, 5, 12, 23)), (2000, 12), (3000, 1), (3000, 3)]
"""Frames and angles."""
MOST_COUNTED = 3000
"""Frames times angles up to which photons are simulated: they take time in proportion to pairs and pixels."""
ALARMS = ("chisqr-high-in-bins", "decay-outside-record")
"""Warnings that a right model should not have, beside contrasts that change with q: all do with φ."""


def alarm(folder, scenario: str, frames: int, angles: int, noise: str, seed: int) -> str:
    """Return what a fit of the true model is blamed for, '' where it is not."""
    scan = {"angles": angles, "frames": frames, "seed": seed, "noise": noise}
    hd.simulate(folder / "s.h5", scenario, **scan, overwrite=True)
    ingest(folder / "s.h5", folder / "s.zarr", overwrite=True)
    model = MODELS[SCENARIOS[scenario].model]
    result = fit_here(hd.open_dataset(folder / "s.zarr"), model)
    found = [*result.findings.at_least("error"), *result.findings.of(*ALARMS)]
    found += [one for one in result.findings.of("contrast-changes") if "q" in one.about]
    return "; ".join(map(str, found))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", TRUE)
def test_the_true_model_is_called_wrong_in_hardly_more_than_one_fit_of_a_hundred(
    scenario, tmp_path
):
    cases = [
        (scenario, *size, noise, seed)
        for size in SIZES
        for noise in NOISE
        for seed in range(3)
        if noise == "pairs" or size[0] * size[1] <= MOST_COUNTED
    ]
    found = {case: words for case in cases if (words := alarm(tmp_path, *case))}
    assert len(found) <= 4, found  # 1.3 are expected of 87 at 1.5 %; more than 4 in 1 of 90
