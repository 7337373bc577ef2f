"""What users of `logging` get: records under the names of modules, and no handler set by the package."""

import logging
import subprocess
import sys

import pytest

import homodyne_dask as hd
from tests.synthetic import FLOW, GAP, angles, measured, store

FIXED = dict(zip(hd.LAMINAR_FLOW.names, FLOW, strict=True))


@pytest.mark.slow
def test_a_fit_says_each_pass_at_level_info_under_the_name_of_its_module(tmp_path, caplog):
    scan = store(measured(FLOW, 12, angles(2)), tmp_path)
    before = list(logging.root.handlers)
    with caplog.at_level(logging.INFO, "homodyne_dask"):
        result = hd.fit(scan, "laminar_flow", gap=GAP, fixed=FIXED)
    ours = [one for one in caplog.records if one.name.startswith("homodyne_dask.")]
    assert {one.levelno for one in ours} == {logging.INFO}
    assert {one.name for one in ours} >= {"homodyne_dask.fitting.callbacks"}
    assert sum("χ²" in one.getMessage() for one in ours) >= result.passes
    assert logging.root.handlers == before
    names = [name for name in logging.root.manager.loggerDict if name.startswith("homodyne_dask")]
    assert not [name for name in names if logging.getLogger(name).handlers]


def test_only_a_verbose_command_shows_logs_with_their_levels_on_stderr():
    code = (
        "import logging\n"
        "from homodyne_dask.cli.exit_status import messages\n"
        "for verbose in (False, True):\n"
        "    with messages(False, verbose):\n"
        "        logging.getLogger('homodyne_dask.x').warning('verbose: %s', verbose)\n"
        "        logging.getLogger('homodyne_dask.x').info('verbose: %s', verbose)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = [line.partition(" homodyne_dask.x ")[2] for line in ran.stderr.splitlines()]
    assert lines == ["WARNING: verbose: True", "INFO: verbose: True"]
    assert not ran.stdout
