"""Settings of a site, and the commands of its batch system.

The settings are those of the template, then the site's own file (both in templates/), then the user's: those
of Dask's configuration under jobqueue.<site>.
"""

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.config
import psutil
import yaml
from dask.utils import parse_bytes, parse_timedelta
from distributed.utils import get_ip

from homodyne_dask.errors import ClusterError, OptionError, one_line, require_known, shown
from homodyne_dask.store.files import absolute

FOLDER = Path(__file__).parent / "templates"
TEMPLATE = "template"
BATCH_SYSTEMS = ("slurm", "pbs")


@dataclass(frozen=True)
class Site:
    """A site, its settings merged; keys as in templates/template.yaml."""

    name: str
    settings: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]

    @property
    def memory(self) -> int:
        """Bytes of a job."""
        return parse_bytes(self["memory"])

    @property
    def shared(self) -> Path:
        """Folder for keys, seen by all nodes."""
        return _path(self["shared-temp-directory"])

    @property
    def logs(self) -> Path:
        """Folder for what jobs print."""
        return _path(self["log-directory"] or f"{self.shared}/logs")


def names() -> list[str]:
    """Return the names of all sites: those of the package and those of the user's configuration."""
    ours = {file.stem for file in FOLDER.glob("*.yaml")} - {TEMPLATE}
    theirs = {
        str(name)
        for name, section in dask.config.get("jobqueue", {}).items()
        if isinstance(section, Mapping) and section.get("batch") in BATCH_SYSTEMS
    }
    return sorted(ours | theirs)


def site_named(name: str, **changes: Any) -> Site:
    """Return a site with some settings changed; raises OptionError for names and keys unknown."""
    require_known(name, names(), f"site {name!r} is unknown")
    template, file = _read(FOLDER / f"{TEMPLATE}.yaml"), FOLDER / f"{name}.yaml"
    arguments = {key: value for key, value in changes.items() if value is not None}
    user = dask.config.get("jobqueue", {}).get(name, {})
    settings = template
    for layer in (_read(file) if file.exists() else {}, user, arguments):
        layer = {key.replace("_", "-"): value for key, value in layer.items()}
        for key in layer:
            require_known(key, template, f"jobqueue.{name}: unknown setting {key!r}")
            if isinstance(layer[key], Mapping) and not isinstance(template[key], Mapping):
                raise OptionError(
                    f"jobqueue.{name}.{key} = {shown(layer[key])} cannot be used: give one value"
                )
        settings = dask.config.merge(settings, layer)
    site = Site(name, settings)
    for key, (usable, such_as) in _CHECKS.items():
        value, good = settings[key], False
        with suppress(ValueError, TypeError, AttributeError, KeyError):
            good = usable(value)
        if not good:
            raise OptionError(
                f"jobqueue.{name}.{key} = {shown(value)} cannot be used: give {such_as}"
            )
    if site["cores"] % site["processes"]:
        raise OptionError(
            f"jobqueue.{name}: {site['cores']} cores cannot be shared equally by {site['processes']} "
            f"processes: give a number of processes that divides the number of cores"
        )
    walltime_seconds(site["walltime"], f"jobqueue.{name}.walltime")
    return site


_COUNT = (lambda value: isinstance(value, int) and value >= 1), "a whole number of at least 1"
_CHECKS: dict[str, tuple[Callable[[Any], object], str]] = {
    "batch": (BATCH_SYSTEMS.__contains__, " or ".join(BATCH_SYSTEMS)),
    "security": (("tls", "none").__contains__, "tls or none"),
    "cores": _COUNT,
    "processes": _COUNT,
    "memory": (parse_bytes, "a size, such as 200GB"),
    "patience": (lambda value: parse_timedelta(value) >= 0, "a duration, such as 10m"),
    "queue-interval": (lambda value: parse_timedelta(value) > 0, "a duration, such as 15s"),
    "driver": (lambda value: isinstance(value, Mapping), "its settings"),
    "scheduler-options": (
        lambda value: isinstance(value, Mapping),
        "options of dask.distributed.Scheduler",
    ),
}


def walltime_seconds(text: str, what: str) -> float:
    """Return the seconds of a walltime as SLURM and PBS write it.

    [hours:]minutes:seconds, or days-hours[:minutes[:seconds]].
    """
    short, long = r"(?:(\d+):)?(\d+):(\d+)", r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"
    found = re.fullmatch(short, str(text).strip()) or re.fullmatch(long, str(text).strip())
    if found is None:
        raise OptionError(f'{what} = {text!r} is not a walltime: write "02:00:00" for two hours')
    days, hours, minutes, seconds = (0, *(int(part or 0) for part in found.groups()))[-4:]
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds


def _path(text: str) -> Path:
    return absolute(Path(os.path.expandvars(text)).expanduser())


def _read(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text()) or {}


def default_interface() -> str:
    """Return the network interface of the default route."""
    address_of_route = get_ip()
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == address_of_route for address in addresses):
            return name
    raise OptionError(
        "no network interface has the address of the default route: set one, "
        "such as DASK_JOBQUEUE__<SITE>__INTERFACE=eth0"
    )


COMMAND_TIMEOUT = 60.0
"""Seconds a command of the batch system may take."""
JOB_NUMBER = r"(?m:^Submitted batch job |^)(?P<job_id>\d+)(?:;\S*| on cluster \S+|\.\S+)?\s*\Z"
"""The number of a job in what sbatch or qsub prints last, below what a site may print."""
_ELSEWHERE = "use a login node of the cluster, or workers on this machine (without --site)"
_NOT_SET_UP = "Could not establish a configuration source"
"""Of a machine that has the commands of SLURM, but no cluster."""


def check_script(script: str) -> str:
    """Return SLURM's answer to a test of a job script; raises ClusterError if it would be refused."""
    return _sbatch("--test-only", script)


def submit_script(script: str) -> str:
    """Submit a job script and return the job's number; raises ClusterError with sbatch's message."""
    printed = _sbatch("--parsable", script)
    if found := re.search(JOB_NUMBER, printed):
        return found["job_id"]
    raise ClusterError(
        f"sbatch printed no number of a job ({shown(printed)}): see `squeue --me` whether it runs, and ask "
        f"your site what its sbatch prints"
    )


def queued_jobs(site: Site) -> dict[str, str]:
    """Return the user's waiting and running jobs: SLURM's state and reason by number, '' of PBS.

    Raises ClusterError if the batch system does not answer.
    """
    command = ["qselect", "-u", getpass.getuser()]
    if site["batch"] == "slurm":
        command = ["squeue", "--noheader", "--format=%A %T (%r)", "--user", str(os.getuid())]
    status, errors, listed = _run(command)
    if status:
        raise ClusterError(f"{command[0]} failed ({one_line(errors)})")
    jobs = (line.partition(" ") for line in listed.splitlines())
    return {number.partition(".")[0]: state for number, _, state in jobs}


def _sbatch(option: str, script: str) -> str:
    status, errors, printed = _run(["sbatch", option], script)
    words = one_line(errors + printed)
    if status and _NOT_SET_UP in words:
        raise ClusterError(f"SLURM is not set up on this machine ({words}): {_ELSEWHERE}")
    if status:
        raise ClusterError(
            f"sbatch rejected the job ({words or f'exit status {status}'}): change the site's settings or "
            f"the options; if SLURM is busy or your queue is full (`squeue --me`), try again later"
        )
    return printed or words


def _run(command: list[str], script: str = "") -> tuple[int, str, str]:
    if shutil.which(command[0]) is None:
        raise ClusterError(f"{command[0]} is not available on this machine: {_ELSEWHERE}")
    streams = {"input": script, "capture_output": True, "text": True}
    try:
        ended = subprocess.run(command, **streams, timeout=COMMAND_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"{command[0]} did not answer within {COMMAND_TIMEOUT:g} s: see `squeue --me` whether a job was "
            f"submitted, and check whether the batch system is down"
        ) from None
    return ended.returncode, ended.stderr, ended.stdout
