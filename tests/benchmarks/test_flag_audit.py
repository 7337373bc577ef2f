"""The audit of flags compares each with the plain environment."""

import pytest

from homodyne_dask.apps.doctor import environment as jax_settings
from homodyne_dask.apps.doctor.workload import Workload
from tests.apps.doctor.fake_kernel_process import FakeKernelProcess
from tests.benchmarks import flag_audit as audit
from tests.benchmarks import static_arguments as static
from tests.benchmarks.flag_audit import Setting


def test_the_audit_compares_each_setting_with_the_plain_environment(monkeypatch):
    monkeypatch.setattr(audit, "KernelProcess", FakeKernelProcess)
    monkeypatch.setattr(jax_settings, "flag_state", lambda words: "ends the process")
    harm, gone = (
        Setting("HARM=1", {"HARM": "1"}, ""),
        Setting("--gone", {"XLA_FLAGS": "--gone"}, ""),
    )
    good = Setting("OMP_NUM_THREADS=1", {"OMP_NUM_THREADS": "1"}, "")
    rows = list(audit.flag_rows([good, harm, gone], rounds=3))
    assert [row.get("rate x2") for row in rows] == [1.0, 0.5, None]
    assert [row.get("bits x1") for row in rows] == ["same", "WRONG", None]
    assert rows[2]["ends with"].endswith("--gone")
    rows += audit.thread_rows([good, harm], rounds=3)
    assert rows[-2]["M pairs/s, 2 calling"] == pytest.approx(100)
    text = "\n".join(audit.table(rows))
    assert "ends the process: Unknown flag" in text
    assert text.count("NPROC=1") == 1


@pytest.mark.long
def test_static_constants_compile_for_every_theta_and_traced_ones_once(monkeypatch):
    monkeypatch.setattr(static, "THETAS", 2)
    monkeypatch.setattr(static, "CALLS", 1)
    traced, constant = static.rows(Workload(bins=2, side=64))
    assert traced["compilations"] == 1
    assert constant["compilations"] == 2
