"""Any file of a store damaged or exchanged: a sentence, or every number as before."""

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.flips import bits, directed, files_of, outcomes
from tests.synthetic import FLOW, angles, measured, store


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two scans of 3 angles and 600 frames: 3 chunks of each bin, and one each of two levels."""
    folder = tmp_path_factory.mktemp("flips")
    scans = (measured(FLOW, 600, angles(3), seed=seed) for seed in range(2))
    return [Path(store(scan, folder, f"scan{n}").path) for n, scan in enumerate(scans)]


@pytest.fixture
def copy(stores, tmp_path) -> Path:
    return Path(shutil.copytree(stores[0], tmp_path / "copy.zarr"))


def test_a_bit_turned_or_a_file_exchanged_is_a_sentence_or_changes_nothing(stores, copy):
    """A sample of what the slow test does."""
    every = list(directed(copy, stores[1]))
    some = [*bits(copy, len(files_of(copy)), 1), *random.Random(1).sample(every, 60)]
    counted, differ = outcomes(copy, iter(some))
    assert not differ
    assert counted["sentence"] > counted["same"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_bits_and_every_exchange_are_sentences_or_change_nothing(stores, copy):
    for name, changes in {
        "bits": bits(copy, 6000, 2),
        "directed": directed(copy, stores[1]),
    }.items():
        counted, differ = outcomes(copy, changes)
        print(name, dict(counted), len(differ))
        assert not differ
