"""Which XLA_FLAGS and JAX_* variables the installed jaxlib knows, and how a process starts with them."""

import difflib
import json
import os
import re
import subprocess
from functools import cache
from typing import NamedTuple

from homodyne_dask.apps.doctor.kernel_process import fatal_line, plain_environment
from homodyne_dask.store.processes import python_command

_START = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
_LIST = "import jax, json; print(json.dumps(sorted(jax.config.values)))"
_TIMEOUT = 60.0


class StartWithFlags(NamedTuple):
    """How JAX started with some XLA_FLAGS."""

    alive: bool
    reason: str
    """The fatal line of a process that died."""
    warnings: tuple[str, ...]


@cache
def known_flags() -> dict[str, str]:
    """Return XLA's flags with its descriptions, as far as its `--help` lists them."""
    text = _ran("--help").stderr
    rows = re.findall(r"^\s*--(\w+)=[^\t]*\t[^\t]*\t(.*)$", text, re.MULTILINE)
    return {name: text.strip() for name, text in rows}


@cache
def jax_variables() -> frozenset[str]:
    """Return the names of the environment variables that are options of JAX."""
    names = json.loads(_ran("", _LIST).stdout)
    return frozenset(name.upper() for name in names)


@cache
def start_with_flags(words: str) -> StartWithFlags:
    """Return how a process starts with these XLA_FLAGS."""
    done = _ran(words)
    lines = re.findall(r"^[WE]\d{4} .*?\] (.*)$", done.stderr, re.MULTILINE)
    alive = done.returncode == 0
    return StartWithFlags(
        alive, "" if alive else fatal_line(done.stderr), tuple(dict.fromkeys(lines))
    )


def fatal_flags(words: str) -> list[tuple[str, str]]:
    """Return the words of XLA_FLAGS that end a process, each with the reason."""
    if start_with_flags(words).alive:
        return []
    good, fatal = [], []
    for word in words.split():
        start = start_with_flags(" ".join([*good, word]))
        if start.alive:
            good.append(word)
        else:
            fatal.append((word, start.reason))
    return fatal


def advice_on_flag(word: str) -> str:
    """Return what to do about a flag that ends processes."""
    near = difflib.get_close_matches(flag_name(word), known_flags(), n=1)
    return f"take it out of XLA_FLAGS{f', or is it --{near[0]}?' if near else ''}"


def flag_state(word: str) -> str:
    """Return whether this jaxlib knows a flag: known, deprecated or ends the process."""
    start = start_with_flags(word)
    if not start.alive:
        return "ends the process"
    texts = [known_flags().get(flag_name(word), ""), *start.warnings]
    old = any(word in text.lower() for text in texts for word in ("deprecated", "no longer"))
    return "deprecated" if old else "known"


def flag_name(word: str) -> str:
    """Return the name of the flag in '--name=value'."""
    return word.removeprefix("--").partition("=")[0]


def _ran(words: str, code: str = _START) -> subprocess.CompletedProcess[str]:
    flags = {"XLA_FLAGS": words} if words else {}
    return subprocess.run(
        python_command("-c", code),
        env=plain_environment() | {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")} | flags,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
