"""Files from strangers: nothing in them is run, and nothing in them reaches beyond them."""

import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.cli.fit_config import read_config
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster.connect import read_scheduler_file
from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError, StoreError
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.solver import checkpoint as checkpoints
from homodyne_dask.store.hdf5_files import object_at, open_hdf5
from ingest.readers import numpy_arrays
from ingest.readers.detect import open_source
from tests.applications import application
from tests.faults.fuzz import small_nexus
from tests.ingest_files import WAYS, moved_elsewhere, simulated
from tests.object_server import Recording, answering
from tests.results.made_results import changed, flow_result_of
from tests.run_command import run
from tests.synthetic import FLOW, angles, fit_here, measured, store

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("homodyne_dask/**/*.py"), *ROOT.glob("ingest/**/*.py")]
FORBIDDEN = {
    "pickle": r"pickle\.loads?\b|Unpickler|import pickle as|from pickle|allow_pickle=True|cloudpickle",
    "unsafe YAML": r"yaml\.(load|unsafe_load|full_load)\(",
    "eval": r"(?<![\w.])(?<!def )(eval|exec)\(",
    "a shell": r"shell=True|os\.system",
}
CARRIED = ROOT / "homodyne_dask/models/user_defined.py"
"""A user's own function travels to workers in memory, pickled as Dask pickles tasks."""
KEPT = ROOT / "homodyne_dask/kernels/compiled.py"
"""Executables are machine code; they lie in a folder that only the user can write to, else it is not used
(tests/kernels/test_devices.py)."""


@pytest.mark.parametrize("word", FORBIDDEN)
def test_no_file_of_ours_runs_what_it_reads(word):
    searched = [path for path in SOURCES if word != "pickle" or path not in (CARRIED, KEPT)]
    found = [str(path) for path in searched if re.search(FORBIDDEN[word], path.read_text())]
    assert not found


class Bomb:
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


HOSTILE = {
    "a call": "data: !!python/object/apply:os.system ['touch bomb']\nmodel: static\n",
    "a name": "data: !!python/name:os.x\nmodel: static\n",
    "an alias": "a: &a [x, x]\nb: [*a, *a]\n",
    "nesting": "[" * 20000,
    "thousands of digits": f"min_lag: {'9' * 5000}\n",
    "a number beyond floats": f"data: A\nmodel: static\nmin_lag: {'9' * 400}\n",
    "a day that is none": "gap: 2024-99-99\n",
    "a tag that does not fit": "gap: !!int ''\n",
    "a zero in a path": 'data: "A\\0.zarr"\n',
    "half a character": 'data: "\\uD800"\n',
    "two million bytes": "#" * 2_000_000,
    "bytes": b"\xff\xfe\0",
}


@pytest.mark.parametrize("reader", ["read_config", "from_homodyne_yaml"])
@pytest.mark.parametrize("word", HOSTILE)
def test_a_configuration_that_is_a_trap_is_one_sentence(tmp_path, monkeypatch, word, reader):
    monkeypatch.chdir(tmp_path)
    ours = reader == "read_config"
    read = read_config if ours else application("migration.translate_yaml").from_homodyne_yaml
    content, file = HOSTILE[word], tmp_path / "fit.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OptionError, match=r"fit\.yaml") as found:
        read(file)
    assert len(str(found.value)) < 1000
    assert not Path("bomb").exists()


READS = {
    "fit.yaml": read_config,
    "scheduler.json": read_scheduler_file,
    tls.CERTIFICATE: lambda file: tls.load_key(file.parent),
    "checkpoint.json": lambda file: checkpoints.load(file, {}),
}


@pytest.mark.parametrize("name", READS)
def test_a_pipe_in_place_of_a_file_is_a_sentence(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(HomodyneDaskError, match=r"is a pipe or a device|damaged or cannot be read"):
        READS[name](tmp_path / name)


def written_npz(path: Path, name: str, shape: tuple[int, ...], content: bytes = b"") -> None:
    """An archive of arrays, one of which claims a shape that it has not the numbers for."""
    held = {"c2": np.full((1, 8, 8), 1.1), "q": 0.1, "phi": 0.0, "dt": 1.0, "sigma": 1.0}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in held.items():
            with archive.open(f"{key}.npy", "w") as member:
                if key != name:
                    np.lib.format.write_array(member, np.asarray(value))
                    continue
                claim = {"descr": "<f8", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, claim)
                member.write(content)


TOO_MUCH = r"q of A\.npz claims 8,000 bytes, more than the limit of 7,999"


@pytest.mark.parametrize(
    ("name", "shape", "content", "says"),
    [*((name, shape, b"", f"{name} of A.npz claims .* it is damaged") for name, shape in [
        ("c2", (1, 10**6, 10**6)), ("c2", (10**12, 8, 8)), ("q", (10**12,)), ("sigma", (10**9, 9))]),
     ("q", (1000,), bytes(8000), TOO_MUCH)],
)  # fmt: skip
def test_an_archive_that_claims_too_much_is_refused(
    tmp_path, monkeypatch, name, shape, content, says
):
    written_npz(tmp_path / "A.npz", name, shape, content)
    if content:
        monkeypatch.setattr(numpy_arrays, "MAX_SMALL_BYTES", 7999)
    with pytest.raises(SourceError, match=says):
        ingest.ingest(tmp_path / "A.npz")


@pytest.mark.parametrize(
    ("shape", "says"),
    [((10**9, 8, 8), "claims 1,000,000,000 bins, more than 100,000"),
     ((2, 10**8, 10**8), "claims 100,000,000 frames: one matrix takes 4e.07 GB")],
)  # fmt: skip
def test_hdf5_that_claims_more_matrices_than_any_is_refused(tmp_path, shape, says):
    path = small_nexus(tmp_path / "A.hdf")
    with h5py.File(path, "r+") as file:
        name = "/entry/twotime/two_time_corr_func"
        held = dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, shape, "f4", chunks=(1, 8, 8))
        file[name].attrs.update(held)
    with pytest.raises(SourceError, match=says):
        open_source(path, IngestOptions())


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("layout", "name"),
    [("aps-u", "/xpcs/twotime/correlation_map/c2_00001"),
     ("aps-u", "/xpcs/qmap/dynamic_v_list_dim0"),
     ("nexus", "/entry/twotime/two_time_corr_func")],
)  # fmt: skip
def test_what_lies_in_another_file_is_not_read(tmp_path, monkeypatch, layout, name, way):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()  # HDF5 would find the other file where the program was started, too
    path = small_nexus(Path("in/A.hdf")) if layout == "nexus" else simulated(Path("in/A.hdf"), n=12)
    moved_elsewhere(path, name, way)
    with pytest.raises(
        SourceError, match=r"of A\.hdf (needs secret\.hdf, which is not|is in raw files)"
    ):
        ingest.ingest(path)


@pytest.mark.parametrize("way", WAYS)
def test_the_command_that_is_advised_writes_a_file_with_all_data(tmp_path, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    with h5py.File("it's A.hdf", "w") as file:
        file["in/c2"] = np.arange(6.0)
    moved_elsewhere(Path("it's A.hdf"), "/in/c2", way)
    with open_hdf5(Path("it's A.hdf")) as file, pytest.raises(SourceError) as refused:
        object_at(file, "/in/c2")
    _, _, command = str(refused.value).partition(": python ")
    subprocess.run([sys.executable, *shlex.split(command)], check=True)
    with open_hdf5(Path("it's A_whole.hdf")) as file:
        assert object_at(file, "/in/c2")[...].tolist() == [*range(6)]


def test_links_within_a_file_are_followed_to_an_end(tmp_path):
    path = small_nexus(tmp_path / "A.hdf")
    with h5py.File(path, "r+") as file:
        file.move("/entry/instrument/masks/dynamic_q_list", "/entry/instrument/masks/q")
        file["/entry/instrument/masks/dynamic_q_list"] = h5py.SoftLink("q")
    ingest.ingest(path, tmp_path / "a.zarr")
    with h5py.File(path, "r+") as file:
        file.move("/entry/instrument/masks/dynamic_phi_list", "/entry/instrument/masks/phi")
        file["/entry/instrument/masks/dynamic_phi_list"] = h5py.SoftLink("dynamic_phi_list")
    with pytest.raises(SourceError, match="in a chain of too many links"):
        ingest.ingest(path, tmp_path / "b.zarr")


@pytest.mark.parametrize("name", ["c2/c/0/0/0", "zarr.json", "q/zarr.json", "q/c/0", "time/c/0"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_a_store_with_a_file_that_never_ends_is_refused(tmp_path, name, kind):
    scan = store(measured(FLOW, 60, angles(3)), tmp_path)
    file = Path(scan.path, name)
    file.unlink()
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="is a pipe or a device"):
        fit_here(hd.open_dataset(scan.path), hd.LAMINAR_FLOW, gap="200 um")


@pytest.mark.parametrize("key", ["output", "checkpoint"])
@pytest.mark.parametrize(
    "path", ["/tmp/there", "../there", "in/../../there", "~/../../there", "out"]
)
def test_a_configuration_writes_nowhere_but_below_its_folder(tmp_path, key, path):
    file = tmp_path / "mine" / "fit.yaml"
    file.parent.mkdir()
    (file.parent / "out").symlink_to(tmp_path)
    file.write_text(f"data: A.zarr\nmodel: static\n{key}: {path}\n")
    with pytest.raises(OptionError, match=f"{key} = '{path}' is outside the folder of the file"):
        read_config(file)


@pytest.mark.parametrize("words", [["show", "--pictures"], ["posterior"], ["view"]])
def test_a_server_that_a_result_names_is_asked_only_if_the_user_names_it(tmp_path, words):
    result = flow_result_of(store(measured(FLOW, 60, angles(3)), tmp_path, "A_c2"))
    with answering(Recording, "127.0.0.1") as there:
        Recording.seen, url = [], f"http://{there}/A_c2.zarr"
        inputs = result.provenance.inputs | {"store_path": url}
        (folder := tmp_path / "A_fit").mkdir()
        changed(result, inputs=inputs).to_json(folder / "summary.json")
        said = run(*words, str(folder))
        assert said.exit_code == 2
        assert f"the data of {folder} are at {url}, which is asked only on request" in said.output
        assert not Recording.seen
        asked = [url] if words == ["view"] else ["--store", url]
        assert f"{url} is not a Zarr store" in run(*words, str(folder), *asked).output
        assert Recording.seen
