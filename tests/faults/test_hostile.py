"""Files from strangers: nothing in them is run, and nothing in them reaches beyond them."""

import re
from pathlib import Path

import numpy as np
import pytest

import ingest
from homodyne_dask.config import read_config
from homodyne_dask.errors import OptionError, SourceError

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("homodyne_dask/**/*.py"), *ROOT.glob("ingest/*.py")]
FORBIDDEN = {
    "pickle": r"\bimport pickle|\bpickle\.load|allow_pickle=True|cloudpickle",
    "unsafe YAML": r"yaml\.(load|unsafe_load|full_load)\(",
    "eval": r"(?<![\w.])(eval|exec)\(",
    "a shell": r"shell=True|os\.system",
}


@pytest.mark.parametrize("word", FORBIDDEN)
def test_no_file_of_ours_runs_what_it_reads(word):
    found = [str(path) for path in SOURCES if re.search(FORBIDDEN[word], path.read_text())]
    assert not found


class Bomb:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("bomb"),)


@pytest.mark.parametrize("name", ["c2", "q", "sigma"])
def test_objects_in_arrays_are_refused_and_not_made(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    held = {"c2": np.full((1, 8, 8), 1.1), "q": 0.1, "phi": 0.0, "dt": 1.0, "sigma": 1.0}
    np.savez("A.npz", **(held | {name: np.array([Bomb()], dtype=object)}), allow_pickle=True)
    with pytest.raises(SourceError, match=r"A\.npz"):
        ingest.ingest("A.npz")
    np.save("B.npy", np.array([[Bomb()]], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match=r"B\.npy"):
        ingest.ingest("B.npy", q=0.1, phi=0.0, frame_time=1.0)
    assert not Path("bomb").exists()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system ['touch bomb']", "!!python/name:os.x"]
)
def test_a_configuration_makes_no_objects(tmp_path, monkeypatch, tag):
    monkeypatch.chdir(tmp_path)
    Path("fit.yaml").write_text(f"data: {tag}\nmodel: static\n")
    with pytest.raises(OptionError, match="is not YAML"):
        read_config("fit.yaml")
    assert not Path("bomb").exists()
