import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError, StoreError
from ingest.simulate import angles
from tests.ingest_files import arrays, attributes, decay, simulated


@pytest.mark.parametrize("layout", ["aps-u", "aps-legacy"])
def test_the_noise_of_a_simulated_file_is_the_sigma_ingest_finds(tmp_path, layout):
    path = simulated(tmp_path / "A.h5", layout, n=150, counts=0.7, n_pixels=4000, seed=3)
    store = arrays(ingest.ingest(path).store)
    upper = np.triu_indices(150, 1)
    for k in range(3):
        row = store["sigma_row"][k]
        z = (store["c2"][k] - decay(150, k))[upper] / np.outer(row, row)[upper]
        assert z.mean() == pytest.approx(0, abs=0.03)
        assert z.std() == pytest.approx(1, rel=0.03)


def test_several_rings_in_any_order_keep_their_matrices_and_truth(tmp_path):
    q, phi = [0.006, 0.003, 0.006, 0.003], np.array([10.0, 10.0, -50.0, -50.0])
    truth = {"scenario": "creep", "contrast": [0.1, 0.2, 0.3, 0.4], "parameters": {"D0": 1.0}}
    options = {
        "layout": "aps-u",
        "contrast": 0.1,
        "n_frames": 30,
        "frame_time": 0.1,
        "truth": truth,
    }
    path = tmp_path / "A.h5"
    ingest.simulate(path, lambda k: np.full((30, 30), 1.0 + k), q=q, phi=phi, **options)
    report = ingest.ingest(path)
    store = arrays(report.store)
    for k, row in enumerate(report.bins):
        made = q.index(row.q) if row.phi == 10 else q.index(row.q) + 2
        assert phi[made] == row.phi
        assert store["c2"][k, 0, 9] == pytest.approx(1 + made, abs=0.2)
        assert attributes(report.store)["truth"]["contrast"][k] == truth["contrast"][made]
    assert attributes(report.store)["truth"]["parameters"] == {"D0": 1.0}


@pytest.mark.long
def test_the_seed_alone_decides_the_noise(tmp_path):
    files = [simulated(tmp_path / f"{n}.h5", n=20, seed=s) for n, s in enumerate([1, 1, 2])]
    first, again, other_seed = (arrays(ingest.ingest(path).store)["c2"] for path in files)
    np.testing.assert_array_equal(first, again)
    assert (np.nan_to_num(first) != np.nan_to_num(other_seed)).any()


def test_a_step_fits_the_record_whatever_its_length():
    step = ingest.SCENARIOS["step"]
    for frames in (40, 300):
        truth = step.over(frames).truth(angles(3), "physical")["parameters"]
        assert truth["t_step"] == pytest.approx(0.05 * frames)
        assert truth["J_after"] == 3 * truth["J_before"]
    assert step.over(40).over(300) == step.over(40)


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    path = simulated(tmp_path / "A.h5", n=20)
    with pytest.raises(StoreError, match=r"A\.h5 exists: give overwrite=True"):
        simulated(path, n=20)
    simulated(path, n=20, overwrite=True)
    with pytest.raises(OptionError, match="did you mean 'aps-u'"):
        simulated(tmp_path / "B.h5", "aps_u")
    with pytest.raises(StoreError, match="cannot be written"):
        simulated(path / "B.h5")
    assert [file.name for file in tmp_path.iterdir()] == ["A.h5"]


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["creep", "step", "brownian"])
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
def test_photons_of_speckle_have_the_c2_of_the_scenario(tmp_path, scenario, convention):
    options = {"angles": 2, "frames": 80, "convention": convention}
    for noise in ("pairs", "speckle"):
        hd.simulate(tmp_path / f"{noise}.h5", scenario, noise=noise, **options)
    pairs, speckle = (
        arrays(ingest.ingest(tmp_path / f"{noise}.h5").store) for noise in ("pairs", "speckle")
    )
    upper = np.triu_indices(80, 1)
    for c2_pairs, c2_speckle, row in zip(
        pairs["c2"], speckle["c2"], speckle["sigma_row"], strict=True
    ):
        away = (c2_speckle - c2_pairs)[upper] / np.outer(row, row)[upper]
        assert abs(away.mean()) < 0.6  # one speckle for all pairs
        assert 1.0 < away.std() < 2.0


def test_photons_of_speckle_make_pairs_that_share_a_frame_correlated(tmp_path):
    hd.simulate(tmp_path / "A.h5", "brownian", angles=3, frames=200, noise="speckle", seed=4)
    store = arrays(ingest.ingest(tmp_path / "A.h5").store)
    for c2 in store["c2"]:
        late = c2[:60, 140:]  # decayed: noise alone
        noise = late - late.mean()
        far = (noise[:, :-20] * noise[:, 20:]).mean() / noise.var()
        near = (noise[:, :-1] * noise[:, 1:]).mean() / noise.var()
        assert near > 0.1
        assert abs(far) < near


@pytest.mark.parametrize("name", ["static", "ageing", "step"])
def test_a_scenario_carries_its_truth(name):
    scenario = ingest.SCENARIOS[name]
    phi = angles(5)
    truth = scenario.truth(phi, "physical")
    assert truth["scenario"] == name
    assert truth["model"] == scenario.model
    assert len(truth["contrast"]) == len(truth["offset"]) == 5
    at_rest = ("brownian", "static", "temperature_step")
    assert (scenario.gap is None) == (scenario.model in at_rest)
