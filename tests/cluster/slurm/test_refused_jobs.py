"""A job that SLURM does not take: its words reach the user at once, and nothing is left."""

import pytest

from homodyne_dask.cluster.slurm.cluster import slurm_cluster
from homodyne_dask.errors import ClusterError
from tests.run_command import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"queue": "nix"}, "invalid partition"),
        ({"memory": "100GB"}, "configuration is not available"),
        ({"cores": 64}, "configuration is not available"),
    ],
    ids=["partition", "memory", "cores"],
)
def test_what_sbatch_refuses_is_told_at_once_in_its_words(slurm, settings, said):
    with pytest.raises(ClusterError, match=said), slurm_cluster("loopback", **settings):
        pass
    assert not list((slurm.folder / "shared").rglob("key.pem"))


def test_a_refused_job_ends_the_command_line_with_2(slurm, small, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(slurm.section, "queue", "nix")
    words = ["fit", small.path, "--model", "laminar_flow", "--site", "loopback", "--gap", "200 um"]
    ended = run(*words)
    assert ended.exit_code == 2
    assert "error: sbatch refuses the job" in ended.stderr
    assert "invalid partition" in ended.stderr
