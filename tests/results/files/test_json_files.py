"""Files of results: a damaged one is a sentence; their folder is of one fit; netCDF has numbers and maps."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.cli.commands.info import _write_csv
from homodyne_dask.cli.path_arguments import write_new
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_result import table_of
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files import csv_and_netcdf as export
from homodyne_dask.results.files import result_folder as folders
from homodyne_dask.results.result_classes import FitSeries
from homodyne_dask.results.saved_results import load_result
from homodyne_dask.store import files
from homodyne_dask.store.files import locked
from tests.ingest_files import simulated
from tests.results import made_results as made
from tests.results.made_results import changed, flow_result, result_of_model

READ = {
    "summary.json": load_result,
    "series.json": hd.load_series,
    "comparison.json": hd.load_comparison,
}
SAMPLE = 150


def series() -> FitSeries:
    window = {"age": 5.0, "from": 0.0, "to": 10.0}
    at = ({"q": 0.003} | window, {"q": 0.005} | window)
    entries = (fit_row(f"part {n}", None, flow_result(), "", at[n]) for n in range(2))
    return FitSeries("q", tuple(entries))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("json")
    flow_result().to_json(made / "summary.json")
    series().to_json(made / "series.json")
    fits = [result_of_model("laminar_flow", 7), result_of_model("static", 3, 10.0)]
    hd.compare(fits).to_json(made / "comparison.json")
    return made


def content(path: Path):
    read = READ[path.name](path)
    if isinstance(read, FitSeries):
        return [
            (e.name, e.message, dict(e.at), e.result and e.result.to_dict()) for e in read.entries
        ]
    return read.to_dict()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(READ))
def test_a_flipped_bit_is_a_sentence_or_changes_nothing(folder, tmp_path, name, all_of_them):
    whole, damaged = (folder / name).read_bytes(), tmp_path / name
    before, refused = content(folder / name), 0
    flips = [(byte, bit) for byte in range(len(whole)) for bit in range(8)]
    for byte, bit in flips if all_of_them else random.Random(1).sample(flips, SAMPLE):
        damaged.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
        try:
            assert content(damaged) == before, (byte, bit)
        except SourceError as e:
            refused += str(damaged) in str(e)
    assert refused > 100


@pytest.mark.parametrize("name", list(READ))
def test_a_file_written_otherwise_is_read_and_an_edited_one_only_without_its_checksum(
    folder, tmp_path, name
):
    file, before = tmp_path / name, content(folder / name)
    read = json.loads((folder / name).read_text())
    file.write_text(json.dumps(read, sort_keys=True, ensure_ascii=False))
    assert content(file) == before
    edited = read | {"version": "mine", "store": "mine"}
    if name == "series.json":
        edited = read | {"over": "age"}
    file.write_text(json.dumps(edited))
    with pytest.raises(SourceError, match=r"changed after it was written.*remove its last entry"):
        content(file)
    del edited["sha256"]
    file.write_text(json.dumps(edited))
    assert "mine" in str(content(file)) or READ[name](file).over == "age"


OTHERS = {
    "a value is missing": lambda read: read.pop("parameters"),
    "a value is text": lambda read: read.update(scaling_per_bin="none"),
    "an unknown outcome": lambda read: read.update(outcome="GOOD"),
    "columns of two lengths": lambda read: read["scaling_per_bin"]["q"].pop(),
    "no version": lambda read: read.pop("format_version"),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=list(OTHERS))
def test_a_file_without_checksum_that_lacks_something_is_a_sentence(folder, tmp_path, change):
    read = json.loads((folder / "summary.json").read_text())
    del read["sha256"]
    change(read)
    (tmp_path / "summary.json").write_text(json.dumps(read))
    with pytest.raises(SourceError, match="fit again"):
        load_result(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "\xff"])
def test_what_is_no_result_is_a_sentence(tmp_path, text):
    (tmp_path / "summary.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError, match="give a folder made by fit"):
        load_result(tmp_path)


@pytest.mark.parametrize("name", ["../precious", "/precious", "..", "", "a/b", 7])
def test_a_fit_of_a_series_in_a_folder_elsewhere_is_refused(folder, tmp_path, name):
    read = json.loads((folder / "series.json").read_text())
    del read["sha256"]
    read["fits"][0]["folder"] = name
    (tmp_path / "series.json").write_text(json.dumps(read))
    with pytest.raises(SourceError, match="ValueError: folder = "):
        hd.load_series(tmp_path)


def test_every_number_of_a_result_is_read_back(tmp_path):
    columns = {"direction": {"eigenvalue": []}, "direction param": {"vector": np.empty((0, 7))}}
    none = table_of(columns, param=flow_result().parameters["param"].values)
    made = changed(flow_result(), identifiability=none)
    made.to_json(tmp_path / "summary.json")
    read = load_result(tmp_path)
    assert read.to_dict() == made.to_dict()
    xarray.testing.assert_identical(read.parameters, made.parameters)
    xarray.testing.assert_identical(read.diagnosis.identifiability, none)


OLD = ("parameters.csv", "report.txt", "result.nc", "result.nx.h5", "maps.png")
NEW = ("parameters.csv", "scaling.csv", "report.txt", "rates.png")
MINE = "notes.txt"


class Killed(BaseException):
    """Stands for the end of the process."""


def filled(folder: Path, names: tuple[str, ...], content: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    flow_result().to_json(folder / folders.SUMMARY)
    return folder


def visible(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in found}
    return {name: p.read_text() for name, p in names.items() if ".partial" not in name}


def killed_after(steps: int, folder: Path, aside: Path, monkeypatch) -> bool:
    """Exchange two results and end after so many files were removed or moved; return whether it ended."""
    left = steps

    def counted(real):
        def step(*args, **options):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*args, **options)

        return step

    with monkeypatch.context() as patch:
        for name in ("unlink", "replace"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        try:
            folders._exchange(aside, folder)
        except Killed:
            return True
    return False


def test_a_fit_killed_at_any_step_of_replacing_a_result_leaves_files_of_one(tmp_path, monkeypatch):
    steps = 0
    while True:
        folder = filled(tmp_path / f"{steps}" / "A_fit", OLD, "old")
        (folder / MINE).write_text("mine")
        aside = filled(folder / ".partial-x", NEW, "new")
        if not killed_after(steps, folder, aside, monkeypatch):
            break
        found = visible(folder)
        assert found.pop(MINE) == "mine"
        whole = found.pop(folders.SUMMARY, None)
        assert len(set(found.values())) <= 1
        if whole is None:
            with pytest.raises(SourceError, match=r"summary\.json cannot be read"):
                load_result(folder)
            with pytest.raises(
                OptionError, match=r"contains an incomplete result.*give overwrite=True"
            ):
                folders.check_folder(folder, folder / "c.json", overwrite=False, resume=False)
        else:
            assert steps == 0
            assert set(found) == set(OLD)
        folders.check_folder(folder, folder / "c.json", overwrite=True, resume=False)
        again = filled(folder / ".partial-y", NEW, "newer")
        folders._exchange(again, folder)
        assert visible(folder).keys() == {MINE, folders.SUMMARY, *NEW}
        assert not aside.exists()
        steps += 1
    assert steps == len(OLD) + len(NEW) + 2
    shutil.rmtree(aside)
    assert set(visible(folder)) == {MINE, folders.SUMMARY, *NEW}


def test_one_fit_at_a_time_writes_a_folder(tmp_path):
    folder, checkpoint = tmp_path / "A_fit", tmp_path / "A_fit/checkpoint.json"
    with folders.claimed_folder(folder, checkpoint, overwrite=False, resume=False):
        for _ in range(2):  # the one that is refused takes no lock away
            with (
                pytest.raises(
                    OptionError, match=r"another fit is writing .*A_fit: wait until it has ended"
                ),
                folders.claimed_folder(folder, checkpoint, overwrite=True, resume=False),
            ):
                raise AssertionError
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_lock_that_a_killed_fit_left_is_taken(tmp_path):
    (tmp_path / folders.LOCK).touch()
    folders.check_folder(tmp_path, tmp_path / "c.json", overwrite=False, resume=False)
    with locked(tmp_path / folders.LOCK) as held:
        assert held
    assert not list(tmp_path.iterdir())


PLACES = {
    "A.zarr/c2/zarr.json": lambda path: (path.parent.mkdir(parents=True), path.write_text("{}")),
    "pipe": os.mkfifo,
    "A": Path.mkdir,
    "g2.csv": lambda path: path.write_text("tau [s],g2\n0.1,1.2\n"),
    "A.npz": lambda path: np.savez(path, c2=1.0),
    "A.hdf": lambda path: simulated(path, n=20),
}
G2 = {name: (("bin", "lag"), [[1.0]]) for name in ("g2", "stderr", "pairs")}
WRITERS = {
    "JSON": lambda path: flow_result().to_json(path),
    "series": lambda path: series().to_json(path),
    "picture": lambda path: write_new(path, b"\x89PNG", True),
    "CSV": lambda path: _write_csv(path, "g2.csv", xarray.Dataset(G2)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_data_folders_and_stores_are_not_replaced(tmp_path, write, place):
    path = tmp_path / place
    if place.startswith("A.zarr"):
        (tmp_path / "A.zarr").mkdir()
        (tmp_path / "A.zarr/zarr.json").write_text("{}")
    PLACES[place](path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(OptionError, match=r"give a(nother)? name"):
        write(path)
    assert before is None or path.read_bytes() == before
    assert [*tmp_path.iterdir()] in ([path], [tmp_path / "A.zarr"])


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_file_of_its_kind_is_replaced_and_stays_where_the_disk_is_full(
    tmp_path, write, monkeypatch
):
    path = tmp_path / "made"
    write(path)
    write(path)
    held = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_sync", full)
    with pytest.raises(OSError, match="No space"):
        write(path)
    assert path.read_bytes() == held
    assert [*tmp_path.iterdir()] == [path]


INPUTS = made.inputs_of(
    3, store="F_c2.zarr", source_file="A0123_results.hdf", source_sha256="ab" * 32, labels=[1, 2, 3]
)


def test_a_dataset_holds_every_number_of_the_result():
    result = made.flow_result()
    found = result.to_dataset()
    for name in ("value", "stderr", "stderr_naive", "dof", "at_bound", "fixed"):
        np.testing.assert_array_equal(found[name], result.parameters[name])
    for name, given in (("contrast", "contrast"), ("redchi_per_bin", "redchi")):
        np.testing.assert_array_equal(found[name], result.scaling[given])
    assert found["unit"].values.tolist()[0] == "Å²/s"
    assert found["q"].attrs["units"] == "1/angstrom"
    assert found["phi"].attrs["units"] == "degree"
    assert float(found["redchi"]) == result.redchi
    assert float(found["covariance"].sel(cov_i="D0", cov_j="D0")) == 1.0
    assert found.attrs["outcome"] == "CONVERGED"
    assert found.attrs["convention"] == "physical"
    assert Findings.from_plain(json.loads(found.attrs["findings"])) == result.findings


@pytest.mark.parametrize("make", [made.flow_result, made.static_result])
def test_a_dataset_survives_netcdf_and_zarr(make, tmp_path):
    whole = make().to_dataset()
    assert ("covariance" in whole) == (make is made.flow_result)
    whole.to_netcdf(tmp_path / "r.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "r.nc", engine="h5netcdf") as read:
        xarray.testing.assert_identical(read.load(), whole)
    whole.to_zarr(tmp_path / "r.zarr", zarr_format=2)
    with xarray.open_zarr(tmp_path / "r.zarr") as read:
        xarray.testing.assert_equal(read.load(), whole)


def test_the_maps_of_a_file_are_those_of_the_pictures_and_say_what_they_are(tmp_path):
    scan = made.scan_of(tmp_path, made.FLOW, dead=[30])
    result = made.result_for(scan, made.FLOW, covariance=made.FLOW_COVARIANCE, inputs=INPUTS)
    (tmp_path / "result.nc").write_bytes(export.result_netcdf(FitView(result, scan)))
    with xarray.open_dataset(tmp_path / "result.nc", engine="h5netcdf") as read:
        found = read.load()
    assert found["param"].values.tolist() == list(LAMINAR_FLOW.names)
    assert found["map_label"].values.tolist() == scan.label.tolist()
    for n in range(3):
        view = FitView(result, scan).map_of(n)
        for part in ("data", "model", "residual"):
            wanted = getattr(view, part).astype(np.float32)
            np.testing.assert_array_equal(found[f"two_time_{part}"][n], wanted)
    np.testing.assert_allclose(found["t1"], scan.time + 0.05)
    assert found["t1"].attrs["units"] == "s"
    for part in ("data", "model"):
        assert export.NXXPCS.items() <= found[f"two_time_{part}"].attrs.items()
    assert found.attrs["pairs_per_block_side"] == 1
