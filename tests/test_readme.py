"""Every command and every line of Python in the README runs, in order, on a small scan."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from homodyne_dask.cli import main
from homodyne_dask.results import folder
from homodyne_dask.results.figures import save as plots

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(line: str) -> str:
    program, *words = shlex.split(line, comments=True)
    assert program == "homodyne-dask"
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.output


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    """A folder with a measured file of the README's name and what its commands make of it."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plots, "save_all", lambda *_: [])
        run("homodyne-dask simulate A0123_results.hdf --angles 9 --frames 100")
        for line in "".join(blocks("sh")).splitlines():
            run(line)
    return folder


def test_the_commands_of_the_readme_run(scan):
    assert (scan / "A0123_fit" / "summary.json").exists()
    assert (scan / "B0001.h5").exists()


@pytest.mark.parametrize("name", ["parameters.csv", "scaling.csv"])
def test_the_tables_have_the_columns_the_readme_names(scan, name):
    (named,) = re.findall(rf"{name} +(.*)", README)
    header = (scan / "A0123_fit" / name).read_text().splitlines()[0]
    assert sorted(header.split(",")) == sorted(named.split(", "))


def test_the_folder_holds_what_the_readme_lists(scan):
    listed = re.findall(r"^ {8}(\S+\.\w+)  ", README, re.MULTILINE)
    assert folder.SUMMARY in listed
    for name in listed:
        assert "*" in name or (scan / "A0123_fit" / name).exists(), name


def test_the_python_of_the_readme_runs_as_a_plain_script_with_workers(scan):
    script = "\n".join(blocks("python"))
    # a scan this small would not start workers by itself
    workers = "import homodyne_dask.fitting.fit as fitting\nfitting.IN_PROCESS_PAIRS = 0\n"
    (scan / "script.py").write_text(workers + script)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=scan, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    assert "on Dask" in ran.stdout
    assert "laminar_flow fitted to A0123_c2.zarr" in ran.stdout
    assert "stretched fitted to A0123_c2.zarr" in ran.stdout
    assert re.search(r"compilations +gram 1\n", ran.stdout)
    assert (scan / "A0123.json").exists()
    assert not ran.stderr


def test_the_two_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", "".join(blocks("text")), re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert f"\n{target}:" in makefile


def test_every_command_of_the_guide_to_clusters_exists_with_its_options():
    guide = (ROOT / "deploy" / "README.md").read_text()
    lines = re.findall(r"^homodyne-dask (.*)", guide, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        command, words = main, shlex.split(line, comments=True)
        while isinstance(command, click.Group):
            command = command.commands.get(words.pop(0))
            assert command is not None, line
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
