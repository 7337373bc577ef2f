"""Installed packages add commands, models and readers, each by an entry point."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.documents import blocks

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
        static = hd.separable(swelling, [hd.Parameter("k")], name="static")
        twice = hd.separable(swelling, [hd.Parameter("k")], name="twice")
        fine = hd.separable(swelling, [hd.Parameter("k")], name="alias")
        line = hd.model(lambda theta, x: theta[0] * x, [hd.Parameter("k")])
    """,
    "ends": """
        import sys
        sys.exit()
    """,
    "callbacks": """
        import sys
        import homodyne_dask as hd
        number = 5
        five = lambda client: 5
        late = lambda client: hd.events.Subscriber(lambda event: sys.exit("enough"))
    """,
    "readers": """
        import h5py
        import numpy as np
        from ingest.readers.source import source_of
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
            return source_of(path, "ours", options, read, ("ours",), n, q=0.01, phi=0.0, pixels=100,
                             label=np.array([7]), frame_time=0.5, sigma=0.1)
    """,
}
POINTS = Path(__file__).with_name("entry_points")
"""What each of two packages announces."""


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
    shutil.copy(POINTS / "ours.txt", about / "entry_points.txt")
    (folder / "theirs_models.py").write_text(textwrap.dedent(CODE["models"]))
    half_removed = folder / "theirs-1.0.dist-info"  # without METADATA
    half_removed.mkdir()
    shutil.copy(POINTS / "theirs.txt", half_removed / "entry_points.txt")
    return folder


def python(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the package is installed."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])
    }
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def command(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(installed, folder, "-m", "homodyne_dask.cli", *words)


def test_commands_of_a_package_are_listed_with_its_summary_and_run(installed, tmp_path):
    listed = " ".join(command(installed, tmp_path, "--help").stdout.split())
    assert "Other packages: alone From the package ours_missing. both Greetings" in listed
    assert "broken Greetings of a beamline ends Greetings" in listed
    assert "words From the package not a module." in listed
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


COMMANDS = {
    "broken": "ModuleNotFoundError: No module named 'ours_missing'",
    "ends": "(SystemExit)",
    "both": "ours_missing:other has the same name",
    "number": "it is not a click command",
    "words": "NoneType",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_broken_command_is_one_sentence_when_it_is_called(installed, tmp_path, name):
    ended = command(installed, tmp_path, name, "--some", "words")
    assert ended.returncode == 2
    shadowed, refused = ended.stderr.splitlines()
    assert shadowed.startswith("warning: the command 'fit' (ours_commands:greet) cannot be used")
    assert refused.startswith(f"error: the command '{name}' (")
    assert COMMANDS[name] in refused
    assert "repair or remove the package " in refused


def test_a_model_of_a_package_has_a_name_in_every_process(installed, tmp_path):
    code = (
        "import pickle; from homodyne_dask.models import model_named; m = model_named('swelling');"
        "assert pickle.loads(pickle.dumps(m)) is m; print(m.names)"
    )
    ran = python(installed, tmp_path, "-c", code)
    assert ran.stdout == "('k',)\n", ran.stderr


BROKEN = {
    "ends": "the model 'ends' (ours_ends:model) cannot be used (SystemExit)",
    "missing": "(ModuleNotFoundError: No module named 'ours_missing')",
    "gone": "(AttributeError: module 'ours_models' has no attribute 'gone')",
    "number": "(it is not a model made by hd.separable)",
    "line": "(it is not a model made by hd.separable)",
    "shadow": "(there is another model named 'static')",
    "twice": "(there is another model named 'twice'): repair or remove the package theirs_models",
    "odd": "the model 'odd' (not a module) cannot be used",
}


def test_each_broken_model_is_named_once_and_says_why_it_is_not_there(installed, tmp_path):
    code = (
        "import json, warnings, homodyne_dask as hd\n"
        "from homodyne_dask.models import model_named\n"
        "def error(name):\n"
        "    try: model_named(name)\n"
        "    except hd.errors.OptionError as e: return str(e)\n"
        "with warnings.catch_warnings(record=True) as warned:\n"
        "    warnings.simplefilter('always')\n"
        "    own = [model_named(n) is hd.MODELS[n] for n in ('static', 'brownian')]\n"
        "    own.append(model_named('alias').name == 'alias')\n"
        f"    errors = {{n: error(n) for n in {[*BROKEN]}}} | {{'sum': error('ends + static')}}\n"
        "print(json.dumps([own, errors, [str(of.message) for of in warned]]))"
    )
    ran = python(installed, tmp_path, "-c", code)
    own, errors, warned = json.loads(ran.stdout)
    assert own == [True, True, True]
    assert errors.pop("sum") == errors["ends"]
    for name, why in BROKEN.items():
        assert why in errors[name]
        assert "repair or remove the package" in errors[name]
    others = [f"the model '{n}' (ours_missing:model) cannot be used" for n in ("brownian", "alias")]
    assert all(any(of.startswith(other) for of in warned) for other in others)
    rest = [of for of in warned if not of.startswith(tuple(others))]
    assert sorted(rest) == sorted(errors.values())


@pytest.mark.long
def test_built_in_models_are_fitted_whatever_packages_are_broken(installed, tmp_path):
    for line in ("simulate A.h5 --scenario brownian --angles 2 --frames 20", "ingest A.h5"):
        assert command(installed, tmp_path, *line.split()).returncode == 0
    ended = command(installed, tmp_path, "fit", "A_c2.zarr", "--model", "brownian", "--no-pictures")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "A_fit" / "summary.json").exists()
    warned = [line for line in ended.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warned) == len(set(warned)) == len(BROKEN) + 6
    for name, where, why in (
        ("ends", "ours_ends:callback", "SystemExit"),
        ("number", "ours_callbacks:number", "it is not a function"),
        ("five", "ours_callbacks:five", "it returned int, not a Subscriber"),
        ("late", "ours_callbacks:late", "SystemExit: enough"),
    ):
        sentence = f"the callback '{name}' ({where}) cannot be used ({why})"
        assert [sentence in line for line in warned].count(True) == 1, name
    refused = command(installed, tmp_path, "fit", "A_c2.zarr", "--model", "ends")
    assert refused.returncode == 2
    assert f"error: {BROKEN['ends']}" in refused.stderr


@pytest.mark.long
def test_a_reader_of_a_package_is_asked_about_files_of_unknown_formats(installed, tmp_path):
    c2 = 1 + np.exp(-0.1 * np.abs(np.subtract.outer(np.arange(12), np.arange(12))))
    with h5py.File(tmp_path / "run_results.h5", "w") as file:
        file["ours"] = c2
    ended = command(installed, tmp_path, "ingest", "run_results.h5", "--json")
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert (facts["source_format"], facts["bins"][0]["label"]) == ("ours", 7)
    assert [line.partition(" cannot")[0] for line in ended.stderr.splitlines()] == [
        "warning: the reader 'broken' (ours_missing:reader)",
        "warning: the reader 'ends' (ours_ends:reader)",
    ]
    (tmp_path / "other.dat").write_text("nobody knows this")
    refused = command(installed, tmp_path, "ingest", "other.dat")
    assert refused.returncode == 2
    assert "other.dat is neither HDF5 nor .npy nor .npz" in refused.stderr
    assert "the reader 'broken' (ours_missing:reader) cannot be used" in refused.stderr
    assert "the reader 'ends' (ours_ends:reader) cannot be used (SystemExit)" in refused.stderr


@pytest.mark.parametrize(
    "content", [b"[homodyne_dask.models]\njust words\n", b"[caf\xe9]\nx = y:z\n"]
)
def test_a_package_whose_entry_points_cannot_be_read_is_named(tmp_path, content):
    about = tmp_path / "torn-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: torn\nSummary: \xff\n")
    (about / "entry_points.txt").write_bytes(content)
    passed = command(tmp_path, tmp_path, "not-a-command")
    of = f"the entry points of the package in {tmp_path} cannot be read"
    assert passed.stderr.startswith(f"warning: {of}")
    assert passed.stderr.count("\n") == 2
    refused = command(tmp_path, tmp_path, "fit", "A_c2.zarr", "--model", "static")
    assert refused.returncode == 2  # pydantic reads those of all packages
    assert refused.stderr.startswith(f"error: {of}")
    assert refused.stderr.count("Error: ") == 1


@pytest.mark.long
def test_the_package_of_the_guide_reads_and_fits_its_files(tmp_path):
    page = Path(__file__).parents[1] / "docs/extending.md"
    (code,) = [block for block in blocks("text", page) if "my_beamline.py" in block]
    (project,) = [tomllib.loads(block) for block in blocks("toml", page) if "[project]" in block]
    assert len(code.splitlines()) <= 45
    about = tmp_path / "my_beamline-1.0.dist-info"
    about.mkdir()
    named = project["project"]
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: 1.0\nSummary: {named['description']}\n"
    )
    points = [
        f"[{group}]\n{name} = {value}"
        for group, entries in named["entry-points"].items()
        for name, value in entries.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(points))
    (tmp_path / "my_beamline.py").write_text(code)
    t = np.arange(40.0)
    mean = (t + t[:, None]) / 2
    f = np.exp(-2 * 0.01**2 * 100 * np.abs(t - t[:, None]) * (1 + 0.05 * mean))
    noise = np.triu(np.random.default_rng(0).normal(0, 1e-3, (2, 40, 40)))
    noise += np.swapaxes(np.triu(noise, 1), 1, 2)
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file["c2"], file["q"], file["dt"] = 1 + 0.2 * f + noise, [0.1, 0.1], 1.0
    ingested = command(tmp_path, tmp_path, "ingest", "A.h5")
    assert ingested.returncode == 0, ingested.stderr
    fitted = command(
        tmp_path, tmp_path, "fit", "A_c2.zarr", "--model", "swelling", "--no-pictures", "--json"
    )
    assert fitted.returncode == 0, fitted.stderr
    parameters = json.loads(fitted.stdout)["parameters"]
    assert parameters["rate"]["optimum"] == pytest.approx(100, rel=0.05)
    assert parameters["growth"]["optimum"] == pytest.approx(0.05, rel=0.1)
    with h5py.File(tmp_path / "B.h5", "w") as file:
        file["c2"], file["q"], file["dt"] = 1 + 0.2 * f + noise, [0.1], 1.0
    refused = command(tmp_path, tmp_path, "ingest", "B.h5")
    assert refused.returncode == 2
    assert "has 2 matrices, but 1 values of q" in refused.stderr
