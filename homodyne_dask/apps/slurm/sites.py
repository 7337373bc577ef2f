"""Settings of a site, and the commands of its batch system.

The settings are those of the template, then the site's own file (both in templates/), then the user's: those
of Dask's configuration under jobqueue.<site>.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
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
NANNY_BYTES = 250_000_000
"""Bytes of a job that each worker's nanny takes, with its interpreter."""
Site = dict[str, Any]
"""Settings of a site by the keys of templates/template.yaml, and its name as `site`."""


def site_named(name: str, **changes: Any) -> Site:
    """Return a site with some settings changed; raises OptionError for names, keys and values unknown."""
    files = {file.stem: yaml.safe_load(file.read_text()) or {} for file in FOLDER.glob("*.yaml")}
    template, configured = files.pop(TEMPLATE), dask.config.get("jobqueue", {})
    sections = {key: section for key, section in configured.items() if isinstance(section, Mapping)}
    theirs = [key for key, section in sections.items() if section.get("batch") in BATCH_SYSTEMS]
    require_known(name, sorted({*files, *map(str, theirs)}), f"site {name!r} is unknown")
    arguments = {key: value for key, value in changes.items() if value is not None}
    site = template
    for layer in (files.get(name, {}), configured.get(name, {}), arguments):
        layer = {key.replace("_", "-"): value for key, value in layer.items()}
        for key, value in layer.items():
            require_known(key, template, f"jobqueue.{name}: unknown setting {key!r}")
            usable, such_as = _CHECKS.get(key, (_is_setting, "one value"))
            good = False
            with suppress(ValueError, TypeError, AttributeError):
                good = usable(value) and isinstance(value, Mapping) == isinstance(
                    template[key], Mapping
                )
            if not good:
                raise OptionError(
                    f"jobqueue.{name}.{key} = {shown(value)} cannot be used: give {such_as}"
                )
        site = dask.config.merge(site, layer)
    if site["cores"] % site["processes"]:
        raise OptionError(
            f"jobqueue.{name}: {site['cores']} cores cannot be shared equally by {site['processes']} "
            f"processes: give a number of processes that divides the number of cores"
        )
    memory = parse_bytes(site["memory"])
    of_worker = memory // site["processes"] - NANNY_BYTES
    walltime_seconds(site["walltime"], f"jobqueue.{name}.walltime")
    shared = _path(site["shared-temp-directory"])
    return site | {
        "site": name,
        "memory": memory,
        "worker-memory": of_worker,
        "job-mem": site["job-mem"] or f"{memory // 2**20}M",  # dask-jobqueue rounds up to whole GiB
        "shared-temp-directory": shared,
        "log-directory": _path(site["log-directory"] or shared / "logs"),
    }


def _is_setting(value: Any) -> bool:
    return not isinstance(value, Mapping) or all(isinstance(key, str) for key in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_COUNT = _is_count, "a whole number of at least 1"
_CHECKS: dict[str, Any] = {
    "batch": (BATCH_SYSTEMS.__contains__, " or ".join(BATCH_SYSTEMS)),
    "security": (("tls", "none").__contains__, "tls or none"),
    "cores": _COUNT,
    "processes": _COUNT,
    "memory": (parse_bytes, "a size, such as 200GB"),
    "patience": (lambda value: parse_timedelta(value) >= 0, "a duration, such as 10m"),
    "driver": (_is_setting, "its settings"),
    "scheduler-options": (_is_setting, "options of dask.distributed.Scheduler"),
}
"""Whether a value can be used, and what to give instead; any other setting is one value."""


def walltime_seconds(text: str, what: str) -> float:
    """Return the seconds of [hours:]minutes:seconds, or days-hours[:minutes[:seconds]]."""
    short, long = r"(?:(\d+):)?(\d+):(\d+)", r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"
    matched = re.fullmatch(short, str(text).strip()) or re.fullmatch(long, str(text).strip())
    if matched is None:
        raise OptionError(f'{what} = {text!r} is not a walltime: write "02:00:00" for two hours')
    days, hours, minutes, seconds = (0, *(int(number or 0) for number in matched.groups()))[-4:]
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds


def _path(text: str | Path) -> Path:
    return absolute(Path(os.path.expandvars(text)).expanduser())


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


JOB_NUMBER = r"(?m:^Submitted batch job |^)(?P<job_id>\d+)(?:;\S*| on cluster \S+|\.\S+)?\s*\Z"
"""The number of a job in what sbatch or qsub prints last, below what a site may print."""


COMMAND_TIMEOUT = 60.0
"""Seconds that sbatch may take."""
_ELSEWHERE = "use a login node of the cluster, or workers on this machine (without --site)"


def sbatch(option: str, script: str) -> str:
    """Return the answer of sbatch to a script; raises ClusterError where there is none, or it refuses."""
    if shutil.which("sbatch") is None:
        raise ClusterError(f"sbatch is not available on this machine: {_ELSEWHERE}")
    streams = {"input": script, "capture_output": True, "text": True}
    try:
        ended = subprocess.run(["sbatch", option], **streams, timeout=COMMAND_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"sbatch did not answer within {COMMAND_TIMEOUT:g} s: see `squeue --me` whether a job was "
            f"submitted, and check whether the batch system is down"
        ) from None
    words = one_line(ended.stderr + ended.stdout)
    if ended.returncode and "Could not establish a configuration source" in words:
        raise ClusterError(f"SLURM is not set up on this machine ({words}): {_ELSEWHERE}")
    if ended.returncode:
        raise ClusterError(
            f"sbatch rejected the job ({words or f'exit status {ended.returncode}'}): change the site's "
            f"settings or the options; if SLURM is busy or your queue is full (`squeue --me`), try again "
            f"later"
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
