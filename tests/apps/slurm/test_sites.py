"""What a site's settings come to; nothing here needs SLURM."""

import re
import subprocess
import sys
from pathlib import Path

import dask.config
import dask_jobqueue  # noqa: F401 - its settings are there before tests change them
import pytest
from click.testing import CliRunner

from homodyne_dask.apps.slurm import jobs
from homodyne_dask.apps.slurm.jobs import driver_script, site_named
from homodyne_dask.cli import main
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS
from homodyne_dask.errors import ClusterError, OptionError
from tests.apps.slurm.loopback import HERE

SCRIPTS = HERE / "scripts"
JOBS = ("4:1", "0", "-3")
OURS = ("generic", "perlmutter", "esrf", "alcf")


def anywhere(text: str) -> str:
    """A script, but for what differs from machine to machine."""
    return text.replace(sys.executable, "<python>").replace(str(Path.home()), "/home/user")


def driver(name: str) -> str:
    words = ["fit", "fit.yaml", "--resume"]
    return anywhere(driver_script(site_named(name), words, Path("/scratch/user")))


@pytest.mark.parametrize("name", OURS)
def test_the_job_script_of_each_site_is_the_one_written_down(name):
    changes = {"interface": "eth0"} if site_named(name)["interface"] is None else {}
    text = jobs.script(site_named(name, **changes))
    assert anywhere(text) == (SCRIPTS / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", ["generic", "perlmutter", "esrf"])
def test_the_script_of_a_fits_own_job_is_the_one_written_down(name):
    text = driver(name)
    assert text == (SCRIPTS / f"{name}-driver.txt").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_site_with_pbs_has_no_job_for_a_fit_and_says_what_to_do():
    with pytest.raises(OptionError, match="--site alcf` in your own batch job"):
        driver("alcf")


def test_every_site_that_comes_with_the_package_is_written_down():
    assert {file.stem for file in jobs.FOLDER.glob("*.yaml")} - {"template"} == set(OURS)


def test_the_users_configuration_is_laid_over_a_site_and_options_over_both():
    mine = {"batch": "slurm", "cores": 4, "driver": {"cores": 1}}
    with dask.config.set({"jobqueue.perlmutter": {"account": "m1234"}, "jobqueue.mine": mine}):
        theirs, site = site_named("perlmutter", walltime="03:00:00"), site_named("mine")
    assert (theirs["account"], theirs["walltime"], theirs["cores"]) == ("m1234", "03:00:00", 128)
    assert (site["cores"], site["driver"]["cores"]) == (4, 1)
    assert site["driver"]["walltime"] == "12:00:00"


DURATIONS = (-300, "soon", "", float("nan"), "10min", "1e999s", 0)
WRONG = [
    ({"cors": 4}, "unknown setting 'cors'; did you mean 'cores'"),
    ({"cores": 0}, r"cores = 0 cannot be used \(Input should be greater than 0\): give one such as 8"),
    ({"cores": 5, "processes": 2}, "2 processes cannot share 5 cores"),
    ({"memory": "1GB", "processes": 8}, "8 processes cannot share .* memory of 1GB: .* over 250 MB"),
    ({"walltime": "an hour"}, "walltime = 'an hour' .* give one such as '01:00:00'"),
    ({"memory": "much"}, "memory = 'much' .* give one such as '16GB'"),
    ({"batch": "lsf"}, "should be 'slurm' or 'pbs'"),
    *(({"patience": v}, f"patience = {v!r} cannot be .*: give a duration, such as 10m") for v in DURATIONS),
    ({"death_timeout": "soon"}, "death-timeout = 'soon' cannot be used: give one such as 60"),
    ({"job_extra_directives": "--qos=debug"}, r"valid list\): give a list .* `\['--exclusive'\]`"),
    ({"python": []}, r"python = \[\] .*: give a command, such as python3"),
    ({"shared-temp-directory": 5}, "directory = 5 .*: give one such as '~/.homodyne-dask'"),
    ({"shared-temp-directory": "~nobody_x/y"}, "'~nobody_x/y' cannot be used: give one such as"),
    ({"log-directory": "~nobody_x/y"}, "'~nobody_x/y' cannot be used: give a folder"),
    ({"security": "tls"}, "security = 'tls' cannot be used: remove it: jobs always use TLS"),
    ({"security": "none"}, "remove it: jobs always use TLS"),
    ({"tried": True}, "tried = True cannot be used: remove it$"),
    ({"driver": {"notise": 60}}, "generic.driver: unknown setting 'notise'"),
    ({"scheduler_options": {1: 2}}, "scheduler-options = {1: 2} cannot be used"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"), WRONG, ids=lambda value: "" if isinstance(value, str) else next(iter(value))
)
def test_a_setting_that_cannot_be_used_is_named(given, said):
    with pytest.raises(OptionError, match=said):
        site_named("generic", **given)
    with pytest.raises(OptionError, match="did you mean 'generic'"):
        site_named("generik", **given)


@pytest.mark.parametrize("section", [None, {"generic": {"shared-temp-directory": None}}])
def test_a_section_without_what_it_needs_is_named(section):
    with dask.config.set(jobqueue=section), pytest.raises(OptionError, match="= None cannot be"):
        site_named("generic")


@pytest.mark.parametrize(
    ("given", "passed"), [("60s", "60"), ("1 minute", "60"), (1.5, "1.5"), (None, "60")]
)
def test_a_worker_waits_for_its_scheduler_for_seconds_in_a_form_of_dask(given, passed):
    with dask.config.set({"jobqueue.generic.death-timeout": given}):
        text = jobs.script(site_named("generic", interface="eth0"))
    assert f"--death-timeout {passed} " in text


@pytest.mark.parametrize(("given", "more"), [*((n, "") for n in JOBS), *(("", n) for n in JOBS)])
def test_jobs_that_no_site_can_run_are_refused_before_a_fit_is_submitted(given, more, tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "fit.yaml").write_text(f"data: a.zarr\nmodel: static\njobs: {more}\n")
    words = ["submit", str(tmp_path / "fit.yaml"), "--site", "generic", "--dry-run"]
    ended = CliRunner().invoke(main, [*words, *(["--jobs", given] if given else [])])
    assert ended.exit_code == 2
    assert re.search(r"jobs = \S+( 1\))? cannot be used: give", ended.output)


def test_a_dry_run_shows_the_jobs_of_the_workers_and_what_a_site_must_add(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "fit.yaml").write_text("data: a.zarr\nmodel: static\n")
    words = ["submit", str(tmp_path / "fit.yaml"), "--site", "generic", "--dry-run"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 0, ended.output
    driver, workers = ended.stdout.split("# ---- the jobs of the workers, which that job submits")
    assert "homodyne_dask.cli fit" in driver
    assert "#SBATCH --time=12:00:00" in driver
    for line in ("#SBATCH -t 01:00:00", "#SBATCH --cpus-per-task=8", "dask_worker"):
        assert line in workers
    notes = ended.stderr.splitlines()
    assert ["account" in note for note in notes] == [True, False]
    assert "gives no queue (--partition)" in notes[1]


WALLTIMES = {
    "00:10:00": 600, "1-00:00:30": 86430, "90:00": 5400, "1-12:30": 131400, "2-00": 172800
}  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), WALLTIMES.items())
def test_walltimes_are_read_as_slurm_reads_them(text, seconds):
    assert jobs.walltime_seconds(text) == seconds


TASKS = {"of a few million pairs": 0.5, "of 20 million": 3.4, "of any plan": LONGEST_TASK_SECONDS}


@pytest.mark.parametrize("walltime", [600.0, 1800.0, 3600.0, 86400.0])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_worker_lives_for_some_tasks_and_leaves_in_time_after_another_has_come(
    walltime, task
):
    lives, stagger = jobs.lifetime(walltime, task)
    assert lives - stagger >= jobs.LOST_SECONDS + jobs.START_SECONDS + 3 * task
    assert lives + stagger + task + jobs.CLOSING_SECONDS <= walltime
    assert 2 * stagger >= jobs.LOST_SECONDS + jobs.START_SECONDS + task


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_walltime_too_short_for_work_is_refused_with_one_that_is_not(task):
    with pytest.raises(OptionError, match="too short") as said:
        jobs.lifetime(120, task)
    (minutes,) = re.findall(r"at least (\d+) minutes", str(said.value))
    assert jobs.lifetime(60 * int(minutes), task)
    with pytest.raises(OptionError, match="too short"):
        jobs.lifetime(60 * int(minutes) - 60, task)


def answer(monkeypatch, status: int, words: str) -> None:
    ended = subprocess.CompletedProcess([], status, words * (status == 0), words * bool(status))
    monkeypatch.setattr(jobs.subprocess, "run", lambda *_, **__: ended)


def test_a_job_that_slurm_does_not_take_is_an_error_in_its_words(monkeypatch):
    answer(monkeypatch, 1, "sbatch: error: invalid partition specified: gpux")
    with pytest.raises(
        ClusterError, match=r"rejected the job \(.*gpux\).* busy .* try again later"
    ):
        jobs.sbatch("--test-only", "")


def test_a_machine_without_sbatch_is_none_of_a_cluster(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClusterError, match=r"No such file .*'sbatch'.*: use a login node"):
        jobs.sbatch("--test-only", "")


BANNER = "--> Verifying login1...OK\n--> Checking allocation (80% used)...OK\n"


@pytest.mark.parametrize(
    ("said", "number"),
    [
        *((said, "12") for said in ("12", "12;cluster", "12.pbs-server")),
        (f"{BANNER}Submitted batch job 12 on cluster a\n", "12"),
        *((said, None) for said in (BANNER, "job12", "12 jobs are waiting")),
    ],
)
def test_the_number_of_a_job_is_in_the_last_line(said, number, monkeypatch):
    answer(monkeypatch, 0, said)
    if number:
        assert jobs.submit_script("") == number
    else:
        with pytest.raises(ClusterError, match="printed no number"):
            jobs.submit_script("")


def test_a_job_script_has_the_lifetime_that_the_plans_tasks_ask_for():
    site, lives = site_named("generic", interface="eth0"), jobs.lifetime(3600, 3.4)
    text = jobs.script(site, task=3.4)
    assert f"--lifetime {lives[0]:.0f}s --lifetime-stagger {lives[1]:.0f}s" in text
    assert text != jobs.script(site)
