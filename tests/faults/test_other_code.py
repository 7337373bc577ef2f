"""Workers, schedulers and files with other code than this program, of the same version, compute nothing."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster import local
from homodyne_dask.errors import ClusterError
from homodyne_dask.machine import running_code
from homodyne_dask.machine.running_code import OUR_CODE, code_digest
from homodyne_dask.results.views.report_content import facts
from tests.applications import public
from tests.faults.processes import ENVIRONMENT, ROOT, dask, scheduler_at
from tests.synthetic import CREEP, angles, fit_here, measured, module_scan

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
JOINING = "worker", "--host", "127.0.0.1", "--nthreads", "1"
GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}


def copied(folder: Path) -> Path:
    """A copy of the packages, as a wheel would install them."""
    left_out = shutil.ignore_patterns("__pycache__")
    for package in ("homodyne_dask", "ingest"):
        shutil.copytree(ROOT / package, folder / package, ignore=left_out)
    return folder


def digest_in(folder: Path) -> str:
    """The digest of a process that imports the packages from a folder."""
    code = "from homodyne_dask.machine.running_code import code_digest; print(code_digest())"
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=ENVIRONMENT | {"PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A copy in which data are read otherwise, of the same version."""
    folder = copied(tmp_path_factory.mktemp("other"))
    file = folder / "homodyne_dask" / "store" / "chunks.py"
    file.write_text(f"{file.read_text()}\nSOMETHING_ELSE = True\n")
    return folder


scan = module_scan(lambda: measured(CREEP, 60, angles(8), dt=0.1))


@pytest.fixture(scope="module")
def odd_worker(tmp_path_factory, other) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("odd")
    with scheduler_at(folder) as (_, address):
        odd = dask(folder, *JOINING, address, "--name", "odd", PYTHONPATH=str(other))
        with odd, hd.connect(address) as client:
            client.wait_for_workers(1, timeout=60)
            yield address


def test_the_digest_is_that_of_the_files_wherever_they_are(tmp_path):
    folder = copied(tmp_path / "copy")
    assert digest_in(folder) == code_digest()  # which has made __pycache__ there
    assert digest_in(folder) == code_digest()


CHANGES = {
    "a line": lambda at: (at / "text.py").write_text(f"{(at / 'text.py').read_text()}#\n"),
    "a name": lambda at: (at / "text.py").rename(at / "words.py"),
    "a file more": lambda at: (at / "more.py").touch(),
    "a file of ingest": lambda at: (at.parent / "ingest" / "clean.py").write_text("\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_differs_by_any_change_of_the_sources(tmp_path, monkeypatch, change):
    package = copied(tmp_path / "copy") / "homodyne_dask"
    CHANGES[change](package)
    monkeypatch.setattr(running_code, "__file__", str(package / "machine" / "running_code.py"))
    assert running_code.digest_of_sources() != code_digest()


@pytest.mark.long
def test_a_result_and_its_report_tell_the_code(scan):
    result = fit_here(scan, hd.STATIC, **GIVEN)
    assert result.provenance.versions[OUR_CODE] == code_digest()
    assert f"{OUR_CODE} {code_digest()}" in dict(facts(result))["version"]


CALLS = {
    "fit": lambda client, scan, _: hd.fit(scan, hd.STATIC, **GIVEN, client=client),
    "posterior": lambda client, scan, fit: public("posterior")(fit, scan, draws=200, client=client),
    "compare_models": lambda client, scan, _: hd.compare_models(scan, client=client),
    "ingest": lambda client, scan, _: hd.ingest(
        Path(scan.path).with_name("new.npz"), client=client, overwrite=True
    ),
}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("call", CALLS)
def test_workers_of_other_code_are_refused_with_both_digests(odd_worker, scan, other, call):
    times = np.arange(30) * 0.1
    c2 = 1 + 0.1 * np.exp(-np.abs(times[:, None] - times))
    np.savez(Path(scan.path).with_name("new.npz"), c2=c2[None], q=[0.01], phi=[0.0], dt=0.1)
    result = fit_here(scan, hd.STATIC, **GIVEN)
    sentence = re.escape(
        f"worker odd has {OUR_CODE} {digest_in(other)}, but this program has {code_digest()}: start the "
        f"workers, or this program, again from the same environment"
    )
    with hd.connect(odd_worker) as client, pytest.raises(ClusterError, match=sentence):
        CALLS[call](client, scan, result)


@pytest.mark.long
def test_a_scheduler_of_other_code_is_refused(tmp_path, scan, other):
    match = f"the scheduler has {OUR_CODE} {digest_in(other)}, but this program has {code_digest()}"
    with (
        scheduler_at(tmp_path, PYTHONPATH=str(other)) as (_, address),
        dask(tmp_path, *JOINING, address),
        hd.connect(address) as client,
        pytest.raises(ClusterError, match=match),
    ):
        hd.fit(scan, hd.STATIC, **GIVEN, client=client)


def test_files_that_changed_since_this_program_began_start_no_workers(monkeypatch):
    monkeypatch.setattr(local, "digest_of_sources", lambda: "new files")
    with (
        pytest.raises(ClusterError, match=r"changed since .*: restart this program"),
        local.local_cluster(processes=1, threads=1),
    ):
        pass


@pytest.mark.long
def test_a_checkpoint_of_other_code_is_not_resumed(scan, tmp_path, monkeypatch):
    file = tmp_path / "checkpoint.json"
    fit_here(scan, hd.STATIC, **GIVEN, checkpoint=file)
    monkeypatch.setattr("homodyne_dask.fitting.minimize.code_digest", lambda: "other code")
    with pytest.raises(hd.errors.OptionError, match=f"version of the {OUR_CODE}"):
        fit_here(scan, hd.STATIC, **GIVEN, checkpoint=file, resume=True)
