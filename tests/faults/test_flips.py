"""Any file of a store damaged or exchanged: a sentence, or every number as before."""

import random
import shutil
from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import StoreError
from homodyne_dask.store.chunk_reader import chunk_path
from tests.faults.flips import bits, directed, files_of, outcomes
from tests.synthetic import FLOW, angles, fit_here, measured, started_as_given, store

START = dict(zip(hd.LAMINAR_FLOW.names, FLOW * [1.5, 1, 1, 1.5, 1, 1, 1], strict=True))


@pytest.fixture(scope="module", autouse=True)
def many_passes():
    """Fits start at the poor initial values that they are given."""
    with started_as_given():
        yield


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


EXCHANGES = {
    "of another store": lambda here, other: chunk_path(other, 1, 1, (0, 0)),
    "of another bin": lambda here, other: chunk_path(here, 1, 0, (0, 0)),
    "of another place": lambda here, other: chunk_path(here, 1, 1, (0, 1)),
    "of a level": lambda here, other: chunk_path(here, 4, 1, (0, 0)),
}


@pytest.mark.parametrize("word", EXCHANGES)
def test_a_whole_chunk_in_the_wrong_place_ends_a_fit(stores, copy, word):
    source = EXCHANGES[word](str(copy), str(stores[1]))
    chunk_path(str(copy), 1, 1, (0, 0)).write_bytes(source.read_bytes())
    says = r"chunk \(0, 0\) of the bin labelled 2 .* it was swapped or replaced"
    with pytest.raises(StoreError, match=says):
        fit_here(hd.open_dataset(copy), hd.LAMINAR_FLOW, gap="200 um", initial=START)
