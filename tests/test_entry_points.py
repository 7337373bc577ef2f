"""Installed packages add commands, models and readers, each by an entry point."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest

CODE = {
    "commands": """
        import click
        @click.command()
        @click.argument("name")
        def greet(name):
            "Greet NAME."
            click.echo(f"hello {name}")
        nothing = 5
    """,
    "models": """
        import homodyne_dask as hd
        def swelling(theta, t1, t2, bin):
            return theta[0] * (t2 - t1)
        model = hd.separable(swelling, [hd.Parameter("k")])
    """,
    "readers": """
        import h5py
        import numpy as np
        from ingest.readers.source import Source
        def read(path, name):
            with h5py.File(path) as file:
                return file[name][:]
        def open_ours(path, options):
            if not h5py.is_hdf5(path):
                return None
            with h5py.File(path) as file:
                if "ours" not in file:
                    return None
                n = file["ours"].shape[0]
            one = np.ones(1)
            return Source(path, "ours", read, ("ours",), np.array([7]), 0.01 * one, 0 * one,
                          np.array([100]), n, 0.5, 0.5 * np.arange(n), sigma=0.1 * one)
    """,
}
POINTS = """
    [homodyne_dask.commands]
    greet = ours_commands:greet
    broken = ours_missing:command
    number = ours_commands:nothing
    fit = ours_commands:greet
    [homodyne_dask.models]
    swelling = ours_models:model
    [homodyne_dask.readers]
    broken = ours_missing:reader
    ours = ours_readers:open_ours
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """What pip leaves of a package: its modules and its metadata."""
    folder = tmp_path_factory.mktemp("installed")
    for name, code in CODE.items():
        (folder / f"ours_{name}.py").write_text(textwrap.dedent(code))
    about = folder / "ours-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ours\nVersion: 1.0\nSummary: Greetings of a beamline\n"
    )
    (about / "entry_points.txt").write_text(textwrap.dedent(POINTS))
    return folder


def python(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the package is installed."""
    path = os.pathsep.join([str(installed), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip


def command(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(installed, folder, "-m", "homodyne_dask.cli", *words)


def test_commands_of_a_package_are_listed_with_its_summary_and_run(installed, tmp_path):
    listed = " ".join(command(installed, tmp_path, "--help").stdout.split())
    assert "Other packages: broken Greetings of a beamline greet Greetings" in listed
    assert command(installed, tmp_path, "greet", "you").stdout == "hello you\n"
    assert "Greet NAME." in command(installed, tmp_path, "greet", "--help").stdout
    assert "Fit a model" in command(installed, tmp_path, "fit", "--help").stdout


def test_no_command_of_a_package_is_imported_for_the_list(installed, tmp_path):
    code = (
        "import sys; from homodyne_dask.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([n for n in sys.modules if n.startswith(('ours', 'homodyne_dask.cli.commands.'))])"
    )
    assert python(installed, tmp_path, "-c", code).stdout.endswith("\n[]\n")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "ModuleNotFoundError: No module named 'ours_missing'"),
        ("number", "it is not a click command"),
    ],
)
def test_a_broken_command_is_one_sentence_when_it_is_called(installed, tmp_path, name, why):
    ended = command(installed, tmp_path, name, "--some", "words")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: the command '{name}' (ours_")
    assert why in ended.stderr
    assert "repair or remove the package ours" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_model_of_a_package_has_a_name_in_every_process(installed, tmp_path):
    code = (
        "import pickle; from homodyne_dask.models import model_named; m = model_named('swelling');"
        "assert pickle.loads(pickle.dumps(m)) is m; print(m.names)"
    )
    ran = python(installed, tmp_path, "-c", code)
    assert ran.stdout == "('k',)\n", ran.stderr


def test_a_reader_of_a_package_is_asked_about_files_of_unknown_formats(installed, tmp_path):
    c2 = 1 + np.exp(-0.1 * np.abs(np.subtract.outer(np.arange(12), np.arange(12))))
    with h5py.File(tmp_path / "run_results.h5", "w") as file:
        file["ours"] = c2
    ended = command(installed, tmp_path, "ingest", "run_results.h5", "--json")
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert (facts["source_format"], facts["bins"][0]["label"]) == ("ours", 7)
    (tmp_path / "other.dat").write_text("nobody knows this")
    refused = command(installed, tmp_path, "ingest", "other.dat")
    assert refused.returncode == 2
    assert "other.dat is neither HDF5 nor .npy nor .npz" in refused.stderr
    assert "the reader 'broken' (ours_missing:reader) failed" in refused.stderr
