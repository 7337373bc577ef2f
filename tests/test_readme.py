"""What README and docs/ show runs, in their order, on a small scan; what they name exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

import homodyne_dask as hd
from homodyne_dask.apps.guide import user_guide as guide
from homodyne_dask.apps.posterior import posterior as posterior_files
from homodyne_dask.apps.posterior import posterior_figures as corner_figure
from homodyne_dask.apps.posterior.posterior import posterior_of
from homodyne_dask.apps.posterior.priors import posterior_priors
from homodyne_dask.apps.posterior.sample_posterior import request_of
from homodyne_dask.cli import main
from homodyne_dask.results.files import result_folder as folder
from homodyne_dask.results.views import fit_figures as plots
from tests.apps.posterior.made_draws import draws_of, gaussian
from tests.benchmarks import __main__ as benchmarks
from tests.documents import ALL, README, ROOT, blocks, code_spans, commands, links

RESULTS = (ROOT / "docs" / "results.md").read_text()


def run(line: str) -> str:
    program, *words = shlex.split(line, comments=True)
    assert program == "homodyne-dask"
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.output


def drawn(result, scan, *, priors=None, draws=4000, seed=1, **_) -> hd.Posterior:
    """What `hd.posterior` returns, from draws of the errors of the fit: real ones take too long here."""
    request = request_of(result, scan)
    posterior_priors(request.parameters, request.search, priors or {})
    return posterior_of(result, draws_of(result, gaussian(result, draws), seed=seed), scan)


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    """A folder with a measured file of the README's name and what the commands make of it."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plots, "save_all", lambda *_: [])
        patch.setattr(posterior_files, "_write_pictures", lambda *_: [])
        patch.setattr(hd, "posterior", drawn, raising=False)
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


def test_the_python_of_the_posterior_runs(scan, monkeypatch, capsys):
    monkeypatch.chdir(scan)
    monkeypatch.setattr(hd, "posterior", drawn, raising=False)
    monkeypatch.setattr(posterior_files, "_write_pictures", lambda *_: [])
    monkeypatch.setattr(corner_figure, "draw_corner", lambda _: Figure())
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
        while isinstance(command, click.Group):
            command = command.commands.get(words.pop(0))
            assert command is not None, line
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def options(command: click.Command) -> set[str]:
    """Return the options of a command and of those below it."""
    own = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    below = command.commands.values() if isinstance(command, click.Group) else []
    return own.union(*map(options, below))


@pytest.mark.parametrize("file", ALL, ids=lambda file: str(file.relative_to(ROOT)))
def test_options_and_names_in_a_sentence_exist(file):
    known = options(main) | {"--help", "--help-all"}
    for span in code_spans(file):
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
        if not span.startswith(("dask ", "ssh ", "homodyne --", "python -m tests.benchmarks --")):
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
    for link in links(file):
        assert (file.parent / link).is_file(), link


def test_the_index_lists_every_page_and_the_readme_leads_to_each():
    there = {file.stem for file in (ROOT / "docs").glob("*.md")} - {guide.INDEX, "index"}
    assert set(guide.PAGES) == there
    assert {f"docs/{name}.md" for name in there} <= set(links(README))
