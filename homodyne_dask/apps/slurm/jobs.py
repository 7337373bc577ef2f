"""Sites: their settings, scripts of their jobs, and clusters of dask-jobqueue whose workers are such jobs.

The settings are those of the template, then the site's own file (both in templates/), then the user's: those
of Dask's configuration under jobqueue.<site>.

A worker with a lifetime leaves the cluster before its job's walltime, passes its tasks on, and a new
job replaces it. The end of a lifetime interrupts the task being computed: a lifetime must be many times
as long as a task, and workers must not all leave at once.
"""

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from numbers import Real
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal

import dask.config
import psutil
import yaml
from dask.utils import parse_bytes, parse_timedelta
from distributed import SpecCluster
from distributed.utils import get_ip
from pydantic import AfterValidator, Field, PositiveInt, TypeAdapter, ValidationError

from homodyne_dask import errors
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster import local as scratch
from homodyne_dask.cluster import workers as worker_settings
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS, JobCluster, Workers
from homodyne_dask.errors import ClusterError, OptionError, one_line, shown
from homodyne_dask.machine.running_code import SAFE_PATH, python_command
from homodyne_dask.store.files import absolute, path_of

FOLDER = Path(__file__).parent / "templates"
TEMPLATE = "template"
NANNY_BYTES = 250_000_000
"""Bytes of a job that each worker's nanny takes, with its interpreter."""
COMMAND_TIMEOUT = 60.0
"""Seconds that sbatch may take."""
START_SECONDS = 30.0
"""Seconds from the start of a job to its first task, with its libraries on a shared file system."""
CLOSING_SECONDS = 60.0
"""Seconds a worker is given to leave: SLURM looks at walltimes every 30 s."""
LOST_SECONDS = 15.0
"""Seconds after which a job whose workers have left is replaced: longer than a nanny takes to restart one."""
STAGGER_SHARE = 0.1
"""Spread of lifetimes as a fraction of the walltime, where that is longer than a new worker takes."""
IDLE_SECONDS = 60
"""Seconds without work after which workers above the least number are released."""
_PASSED = """cores processes memory walltime queue account job-extra-directives job-directives-skip
shebang death-timeout """
"""Settings that are options of dask-jobqueue; further ones by batch system."""
_PASSED_BY_BATCH = {"slurm": "job-cpu job-mem", "pbs": "resource-spec"}
JOB_NUMBER = r"(?m:^Submitted batch job |^)(?P<job_id>\d+)(?:;\S*| on cluster \S+|\.\S+)?\s*\Z"
"""The number of a job in what sbatch or qsub prints last, below what a site may print."""
Site = dict[str, Any]
"""Settings of a site by the keys of templates/template.yaml, and its name as `site`."""


def site_named(name: str, **changes: Any) -> Site:
    """Return a site with some settings changed; raises OptionError for names, keys and values unknown."""
    files = {file.stem: yaml.safe_load(file.read_text()) or {} for file in FOLDER.glob("*.yaml")}
    template, configured = files.pop(TEMPLATE), dask.config.get("jobqueue", {})
    errors.require_type("jobqueue", configured, Mapping, "sites by name")
    theirs = [str(key) for key, s in configured.items() if isinstance(s, Mapping) and "batch" in s]
    errors.require_known(name, sorted({*files, *theirs}), f"site {name!r} is unknown")
    arguments = {key: value for key, value in changes.items() if value is not None}
    layers = files.get(name, {}), configured.get(name, {}), arguments
    for layer in layers:
        _check(layer, template, f"jobqueue.{name}")
    site = dask.config.merge(template, *layers)
    memory, shared = parse_bytes(site["memory"]), _path(site["shared-temp-directory"])
    if site["cores"] % site["processes"] or memory // site["processes"] <= NANNY_BYTES:
        raise OptionError(
            f"jobqueue.{name}: {site['processes']} processes cannot share {site['cores']} cores and memory "
            f"of {site['memory']}: give a divisor of the cores, leaving each over {NANNY_BYTES // 10**6} MB"
        )
    return site | {
        "site": name,
        "memory": memory,
        "worker-memory": memory // site["processes"] - NANNY_BYTES,
        "job-mem": site["job-mem"] or f"{memory // 2**20}M",  # dask-jobqueue rounds up to whole GiB
        "death-timeout": parse_timedelta(site["death-timeout"]),
        "shared-temp-directory": shared,
        "log-directory": _path(site["log-directory"] or shared / "logs"),
    }


def walltime_seconds(text: str) -> float:
    """Return the seconds of [hours:]minutes:seconds, or days-hours[:minutes[:seconds]]; else ValueError."""
    short, long = r"(?:(\d+):)?(\d+):(\d+)", r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"
    matched = re.fullmatch(short, str(text).strip()) or re.fullmatch(long, str(text).strip())
    if matched is None:
        raise ValueError("not a walltime")
    days, hours, minutes, seconds = (0, *(int(number or 0) for number in matched.groups()))[-4:]
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds


def _path(text: str | Path) -> Path:
    return absolute(Path(os.path.expandvars(text)).expanduser())


_ONE_VALUE = str | int | float | Path | None
type _Duration = Annotated[str | float, AfterValidator(parse_timedelta), Field(gt=0)]
type _Folder = Annotated[str | Path, AfterValidator(_path)]
_SETTINGS: dict[Any, tuple[Any, str]] = {
    "batch": (Literal["slurm", "pbs"], ""),
    "memory": (Annotated[str | int, AfterValidator(parse_bytes), Field(gt=NANNY_BYTES)], ""),
    "walltime": (Annotated[str, AfterValidator(walltime_seconds)], ""),
    "patience": (_Duration, "a duration, such as 10m"),
    "death-timeout": (_Duration | None, ""),
    "shared-temp-directory": (_Folder, ""),
    "log-directory": (_Folder | None, "a folder, such as ~/logs"),
    "python": (_ONE_VALUE, "a command, such as python3"),
    int: (PositiveInt, ""),
    list: (list | tuple, "a list of text, such as `['--exclusive']`"),
    dict: (dict[str, Any], ""),
    str: (_ONE_VALUE, ""),
    type(None): (_ONE_VALUE, "text"),
}
"""Type of a setting by its name, or by that of its default; what to give, '' for one such as the default."""
_GONE = {"security": "remove it: jobs always use TLS", "tried": "remove it"}


def _check(layer: Any, defaults: Site, section: str) -> None:
    """Raise OptionError for settings that have no default, or whose values cannot be used."""
    errors.require_type(section, layer, Mapping, "settings by name")
    for name, value in layer.items():
        key = str(name).replace("_", "-")
        wrong = f"{section}.{key} = {shown(value)} cannot be used"
        if key in _GONE:
            raise OptionError(f"{wrong}: {_GONE[key]}")
        errors.require_known(key, defaults, f"{section}: unknown setting {key!r}")
        default = defaults[key]
        setting, form = _SETTINGS.get(key) or _SETTINGS[type(default)]
        try:
            TypeAdapter(setting).validate_python(value, strict=True)
        except (ValueError, LookupError, OverflowError, RuntimeError) as e:
            why = f" ({e.errors()[0]['msg']})" if isinstance(e, ValidationError) else ""
            raise OptionError(f"{wrong}{why}: give {form or f'one such as {default!r}'}") from None
        if key == "driver":
            _check(value, default, f"{section}.{key}")


def default_interface() -> str:
    """Return the network interface of the default route: without one, Dask listens on all of them."""
    route = get_ip()
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == route for address in addresses):
            return name
    raise OptionError(
        "no network interface has the address of the default route: set one, such as "
        "DASK_JOBQUEUE__<SITE>__INTERFACE=eth0"
    )


def sbatch(option: str, script: str) -> str:
    """Return the answer of sbatch to a script; raises ClusterError where there is none, or it refuses."""
    streams = {"input": script, "capture_output": True, "text": True}
    try:
        ended = subprocess.run(["sbatch", option], **streams, timeout=COMMAND_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ClusterError(
            f"sbatch did not answer ({e}): use a login node of the cluster, or workers on this machine "
            f"(without --site); if SLURM is busy, see `squeue --me` whether a job was submitted"
        ) from None
    words = one_line(ended.stderr + ended.stdout)
    if ended.returncode:
        raise ClusterError(
            f"sbatch rejected the job ({words or f'exit status {ended.returncode}'}): change the site's "
            f"settings or the options; if SLURM is busy or your queue is full (`squeue --me`), try again "
            f"later; if SLURM is not set up on this machine, use a login node of the cluster"
        )
    return ended.stdout or words


def submit_script(script: str) -> str:
    printed = sbatch("--parsable", script)
    if number := re.search(JOB_NUMBER, printed):
        return number["job_id"]
    raise ClusterError(
        f"sbatch printed no number of a job ({shown(printed)}): see `squeue --me` whether it runs, and ask "
        f"your site what its sbatch prints"
    )


def lifetime(walltime: float, task: float) -> tuple[float, float]:
    """Return the lifetime of workers whose jobs have a walltime, and its largest deviation [s].

    Every worker has time for three tasks of `task` seconds at least, and where one leaves, another has
    usually joined and computed a task before the next one leaves.
    """
    replaced = LOST_SECONDS + START_SECONDS + task
    work = replaced + 3 * task + CLOSING_SECONDS
    least_walltime = max(work + replaced, work / (1 - 2 * STAGGER_SHARE))
    if walltime < least_walltime:
        raise OptionError(
            f"a walltime of {walltime:g} s is too short for workers to start, compute tasks of up "
            f"to {task:.2g} s and stop in time: give at least {-(-least_walltime // 60):.0f} minutes"
        )
    stagger = max(STAGGER_SHARE * walltime, replaced / 2)
    return walltime - CLOSING_SECONDS - task - stagger, stagger


def job_options(site: Site, task: float) -> dict[str, Any]:
    """Return the options of dask-jobqueue's jobs, but for security; task: seconds that a task may take."""
    seconds, stagger = lifetime(walltime_seconds(site["walltime"]), task)
    arguments = (
        f"--memory-limit {site['worker-memory']} --lifetime {seconds:.0f}s --lifetime-stagger {stagger:.0f}s "
        f"--no-dashboard --dashboard-address 127.0.0.1:0 --preload-nanny {scratch.__name__}"
    )
    passed = (_PASSED + _PASSED_BY_BATCH[site["batch"]]).split()
    return {key.replace("-", "_"): site[key] for key in passed} | {
        "job_name": site["name"],
        # the worker is the batch process, so that it hears SIGTERM
        "python": site["python"] or f"exec {shlex.join(python_command())}",
        "interface": site["interface"] or default_interface(),
        "local_directory": f'"${scratch.SCRATCH}"',
        "log_directory": str(site["log-directory"]),
        "job_script_prologue": [
            *site["job-script-prologue"],
            *environment(site["cores"] // site["processes"]),
            *scratch.script_lines(site["local-directory"]),
        ],
        "worker_extra_args": [*arguments.split(), *site["worker-extra-args"]],
    }


def script(site: Site, task: float = LONGEST_TASK_SECONDS) -> str:
    """Return the job script of a site, with placeholders for its key, the scheduler and the worker."""
    options, key = job_options(site, task), tls.key_at(site["shared-temp-directory"] / "<key>")
    job = cluster_class(site["batch"]).job_cls
    return job("<scheduler>", "<worker>", security=key, protocol="tls://", **options).job_script()


def environment(threads: int) -> list[str]:
    settings = worker_settings.worker_environment(threads) | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    settings |= worker_settings.monitor_environment() | SAFE_PATH
    return [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]


def driver_script(site: Site, words: Sequence[str], folder: Path) -> str:
    """Return the script of a job that runs the command `words` in a folder, itself submitting workers."""
    if site["batch"] != "slurm":
        raise OptionError(
            f"submit needs SLURM, but site {site['site']} has {site['batch']}: run `homodyne-dask fit "
            f"--site {site['site']}` in your own batch job"
        )
    driver = site["driver"]
    options_of_sbatch = {"partition": driver["queue"] or site["queue"], "account": site["account"]}
    directives = [f"--{option}={value}" for option, value in options_of_sbatch.items() if value]
    template = (FOLDER / "driver.sbatch").read_text()
    return template.format(
        site=site,
        driver=driver,
        memory=f"{parse_bytes(driver['memory']) // 2**20}M",
        seconds=f"{walltime_seconds(driver['walltime']):.0f}",
        directives="\n#SBATCH ".join(["", *driver["job-extra-directives"], *directives]),
        prologue="\n".join([*site["job-script-prologue"], *environment(driver["cores"])]),
        folder=shlex.quote(str(folder)),
        command=shlex.join(python_command("-m", "homodyne_dask.cli", *words)),
    )


@contextmanager
def slurm_cluster(
    site: str = "generic",
    jobs: int | tuple[int, int] = 1,
    *,
    folder: str | Path | None = None,
    task: float = LONGEST_TASK_SECONDS,
    **settings: Any,
) -> Iterator[Any]:
    """Start workers as jobs of a site for the duration of a `with` block; yields the cluster at once.

    jobs: number of jobs to keep running, or (least, most): as many as the work needs. A job whose workers
    are lost is replaced. settings: changes to the settings of the site (templates/template.yaml),
    such as `walltime="02:00:00"`. folder: for the cluster's key, on a file system that all nodes share; by
    default a new one. task: maximum time of a task in seconds, so that workers run many tasks and stop
    before their walltime; `hd.plan(...).longest_task` allows shorter walltimes than the default, which is
    valid for every plan. At a site with PBS, jobs are submitted to PBS. `cluster.get_client()` connects.

    Raises OptionError for a site or setting that cannot be used, ClusterError with the batch system's
    message for a job it refuses, PackageError without dask-jobqueue.

    >>> with hd.slurm_cluster("generic", jobs=(1, 4)) as cluster:  # doctest: +SKIP
    ...     hd.fit("A0123_c2.zarr", "laminar_flow", client=cluster.get_client())
    """
    errors.require_type("task", task, Real, "seconds")
    config, (least, most) = site_named(site, **settings), bounds(jobs)
    options, shared = job_options(config, task), config["shared-temp-directory"]
    key_folder = path_of("folder", folder) if folder else shared / f"{site}-{token_hex(3)}"
    configured = worker_settings.SCHEDULER_SETTINGS | worker_settings.MONITOR_SETTINGS
    configured |= {
        "distributed.deploy.lost-worker-timeout": LOST_SECONDS,
        "distributed.scheduler.no-workers-timeout": config["patience"],
        "homodyne-dask.no-progress": config["patience"],
        "homodyne-dask.first-worker": config["patience"],
    }
    config["log-directory"].mkdir(parents=True, exist_ok=True)
    with ExitStack() as resources:
        resources.enter_context(dask.config.set(configured))
        local = resources.enter_context(scratch.scratch_folder())
        cluster = cluster_class(config["batch"])(
            security=resources.enter_context(tls.new_key(key_folder)),
            name=key_folder.name,
            shared_temp_directory=str(shared),
            scheduler_options={"local_directory": str(local), **config["scheduler-options"]},
            **options,
        )
        resources.enter_context(tls.closing_logged(cluster))
        if config["batch"] == "slurm":
            sbatch("--test-only", cluster.job_script())
        processes, threads = most * config["processes"], most * config["cores"]
        cluster.expected = Workers(processes, threads, processes * config["worker-memory"])
        cluster.task, cluster.logs = task, config["log-directory"]
        cluster.adapt(minimum_jobs=least, maximum_jobs=most, interval="1s", wait_count=IDLE_SECONDS)
        cluster.scale(jobs=least)
        try:
            cluster.sync(asyncio.wait_for, cluster, None)  # until the batch system has answered
        except (RuntimeError, ValueError) as e:
            before, _, words = str(e).partition("stderr:")
            raise ClusterError(f"the job was refused: {one_line(words or before)}") from e
        yield cluster


def bounds(jobs: int | tuple[int, int]) -> tuple[int, int]:
    least, most = jobs if isinstance(jobs, tuple | list) and len(jobs) == 2 else (jobs, jobs)
    for number in (least, most):
        errors.require_count("jobs", number, 1)
    if least > most:
        raise OptionError(f"jobs = {shown(jobs)} cannot be used: give (least, most)")
    return least, most


class _Jobs(SpecCluster, JobCluster):
    """The part of a cluster of dask-jobqueue that is ours: it says what is missing."""

    logs: Path
    given_up = property(lambda _: False)  # type: ignore[assignment]  # Dask goes on to replace jobs

    def missing(self) -> str:
        number, planned = len(self.plan - self.observed), len(self.plan)
        advice = f"see the queue, and the logs of jobs in {self.logs}"
        return f"{number} of {planned} workers are missing: {advice}" * bool(number)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Drop, so that it is replaced, a job of several workers with the last; Dask does of one."""
        if op == "remove":
            job, _, _ = str(self.scheduler_info["workers"][msg]["name"]).rpartition("-")

            def drop() -> None:
                has_workers = any(str(worker).startswith(f"{job}-") for worker in self.observed)
                if job in self.workers and not has_workers:
                    self._futures.add(asyncio.ensure_future(self.workers.pop(job).close()))

            asyncio.get_running_loop().call_later(LOST_SECONDS, drop)
        super()._update_worker_status(op, msg)


def cluster_class(batch: str) -> Any:
    errors.require_package("a site", "dask_jobqueue", "slurm")
    cluster = getattr(import_module("dask_jobqueue"), f"{batch.upper()}Cluster")
    job = type("Job", (cluster.job_cls,), {"job_id_regexp": JOB_NUMBER})
    return type(cluster.__name__, (_Jobs, cluster), {"job_cls": job})
