"""What README and docs/ show runs, in their order, on a small scan; what they name exists."""

import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner

import homodyne_dask as hd
from homodyne_dask.cli import main
from homodyne_dask.results.data.derived_quantities import Quantity
from homodyne_dask.results.files import result_folder as folder
from homodyne_dask.results.views import fit_figures as plots
from tests.applications import made_for
from tests.benchmarks import __main__ as benchmarks
from tests.documents import (
    ALL,
    LISTED,
    PROMISED,
    README,
    ROOT,
    blocks,
    broken_links,
    code_spans,
    commands,
    links,
)

RESULTS = (ROOT / "docs" / "results.md").read_text()


def run(line: str) -> None:
    program, command, *words = shlex.split(line, comments=True)
    assert program == "homodyne-dask"
    if command in PROMISED - set(main.commands):
        return  # of an application that was taken out
    result = CliRunner().invoke(main, [command, *words])
    assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    """A folder with a measured file of the README's name and what the commands make of it."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plots, "save_all", lambda *_: [])
        with suppress(ModuleNotFoundError):
            import_module("tests.apps.posterior.instant_draws").use(patch)
        run("homodyne-dask simulate A0123_results.hdf --angles 9 --frames 100")
        for line in "".join(blocks("sh")).splitlines():
            run(line)
    return folder


def test_the_commands_run(scan):
    assert (scan / "A0123_fit" / "summary.json").exists()
    assert (scan / "A0123_fit_q" / "series.csv").exists()
    assert (scan / "B0001.h5").exists()


@pytest.mark.parametrize("name", ["parameters.csv", "scaling.csv"])
def test_the_tables_have_the_columns_that_are_named(scan, name):
    (named,) = re.findall(rf"{re.escape(name)} +((?:\w+, *\n? *)+\w+)", RESULTS)
    header = (scan / "A0123_fit" / name).read_text().splitlines()[0]
    assert sorted(header.split(",")) == sorted(re.split(r",\s+", named))


def test_the_folder_holds_what_is_listed(scan):
    # files that an option asks for are not there without it
    listed = re.findall(r"^ {8}(\S+\.\w+)  (?!.*`fit --)", RESULTS, re.MULTILINE)
    assert folder.SUMMARY in listed
    for name in listed:
        assert "*" in name or (scan / "A0123_fit" / name).exists(), name


@pytest.mark.long
def test_the_python_runs_as_a_plain_script_with_workers(scan):
    script = "\n".join(blocks("python"))
    # a scan this small would not start workers by itself
    workers = "import homodyne_dask.sweep.plan as plans\n"
    workers += "plans.IN_PROCESS_PAIRS = plans.RESIDENT_SHARE = 0\n"
    (scan / "script.py").write_text(workers + script)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=scan, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    assert "on Dask" in ran.stdout
    assert "laminar_flow fitted to A0123_c2.zarr" in ran.stdout
    assert "my_stretched fitted to A0123_c2.zarr" in ran.stdout
    assert (scan / "A0123.json").exists()
    assert not ran.stderr


def test_the_radius_of_the_guide_is_that_of_stokes_and_einstein(capsys):
    (block,) = (block for block in blocks("python") if "6 * np.pi" in block)
    # of a sphere of 100 nm in water at 25 °C: 2.453e-12 m²/s
    D = Quantity("Å²/s", 2.453e8, 2.453e6)
    fit = SimpleNamespace(fit=lambda *_: SimpleNamespace(derived={"D_SE": D}))
    exec(block, {"hd": fit, "np": np, "scan": None})
    assert capsys.readouterr().out == "R = 100 ± 1 nm\n"


def test_the_python_of_the_posterior_runs(scan, monkeypatch, capsys):
    monkeypatch.chdir(scan)
    made_for("posterior.instant_draws").use(monkeypatch)
    (block,) = blocks("py")
    exec(block, names := {})
    assert "posterior of laminar_flow fitted to A0123_c2.zarr" in capsys.readouterr().out
    assert names["posterior"].summary["sd"].sel(param="D0") > 0
    assert (scan / "A0123_corner.png").exists()


def test_every_command_exists_with_its_options():
    lines = commands()
    assert len(lines) >= 20
    for line in lines:
        command, words = main, shlex.split(line, comments=True)
        if words[0] in PROMISED - set(main.commands):
            continue
        while isinstance(command, click.Group):
            command = command.commands.get(words.pop(0))
            assert command is not None, line
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def options(command: click.Command) -> set[str]:
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    below = command.commands.values() if isinstance(command, click.Group) else []
    return names.union(*map(options, below))


@pytest.mark.parametrize("file", ALL, ids=lambda file: str(file.relative_to(ROOT)))
def test_options_and_names_in_a_sentence_exist(file):
    known = options(main) | {"--help", "--help-all"}
    for span in code_spans(file):
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
        if not span.startswith(
            ("dask ", "ssh ", "squeue ", "homodyne --", "python -m tests.benchmarks --")
        ):
            assert {name for name in named if not name.endswith("-")} <= known, span
        for name in re.findall(r"\bhd\.(\w+)", span):
            assert name in hd.__all__, span
        for target in re.findall(r"^make ([a-z-]+)", span):
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), span
        for row in re.findall(r'^python -m tests\.benchmarks "?([\w ]+)"?$', span):
            assert any(name.startswith(row) for name in benchmarks.ROWS), span
        if re.fullmatch(r"(?:docs|deploy|tests|homodyne_dask|ingest)/[\w./*-]+", span):
            assert list(ROOT.glob(span)), span


@pytest.mark.parametrize("file", ALL, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_files(file):
    assert broken_links(file) == []


def test_the_index_lists_every_page_and_the_readme_leads_to_each():
    there = {file for file in (ROOT / "docs").glob("*.md") if file.stem not in ("README", "index")}
    assert there <= set(LISTED)
    assert {f"docs/{file.name}" for file in there} <= set(links(README))
