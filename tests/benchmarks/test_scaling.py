"""The table of large clusters in docs/performance.md is the one that its command prints."""

from pathlib import Path

import pytest

from tests.benchmarks.scaling import CASES, line

PAGE = Path(__file__).parents[2] / "docs/performance.md"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_of_the_page_is_what_the_plan_says(case):
    assert line(*case) in PAGE.read_text().splitlines()
