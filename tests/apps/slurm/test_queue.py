"""What sbatch prints, a site's own lines included."""

import pytest

from homodyne_dask.apps.slurm import queue
from homodyne_dask.apps.slurm.queue import job_number
from homodyne_dask.errors import ClusterError

BANNER = "--> Verifying login1...OK\n--> Checking allocation (80% used)...OK\n"


@pytest.mark.parametrize("said", ["12", "12;cluster", "Submitted batch job 12", f"{BANNER}12\n",
                                  f"{BANNER}Submitted batch job 12 on cluster a\n"])  # fmt: skip
def test_the_number_of_a_job_is_in_the_last_line(said):
    assert job_number(said) == "12"


@pytest.mark.parametrize("said", ["", BANNER, "job12", "12 jobs are waiting"])
def test_a_banner_is_no_number(said):
    with pytest.raises(ClusterError, match="printed no number"):
        job_number(said)


TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
DOWN = 1, "slurm_load_jobs error: Unable to contact slurm controller", ""
EMPTY = 0, "", "11|RUNNING|None|homodyne-driver\n"
OURS = 0, "", "11|RUNNING|None|homodyne-driver\n12|PENDING|Priority|ours-1\n"
CASES = {
    "submitted in spite of it": ([(1, TIMED_OUT, "")], [OURS, OURS]),
    "submitted, and squeue answers later": ([(1, TIMED_OUT, "")], [DOWN, DOWN, OURS, OURS]),
    "not submitted": ([(1, TIMED_OUT, ""), (0, "", "12\n")], [EMPTY, OURS]),
    "the number is one of a banner": ([(0, "", "12\n 80")], [OURS]),
    "no number is printed": ([(0, "", BANNER)], [OURS]),
    "ended at once": ([(0, "", f"{BANNER}12\n")], [EMPTY]),
    "squeue does not answer": ([(0, "", "12\n")], [DOWN]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_job_is_submitted_once_whatever_sbatch_says(case, monkeypatch):
    sbatch, squeue = map(list, CASES[case])
    answers = {"sbatch": sbatch, "squeue": squeue}
    monkeypatch.setattr(queue, "_run", lambda command, _: answers[command[0]].pop(0))
    monkeypatch.setattr(queue.time, "sleep", lambda _: None)
    assert queue.submit_script("", "ours-1", patience=60.0) == "12"
    assert not sbatch + squeue
