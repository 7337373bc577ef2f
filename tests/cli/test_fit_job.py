"""What a result of an earlier program lacks makes it no other fit."""

import homodyne_dask as hd
from homodyne_dask.cli.fit_job import _from_result
from homodyne_dask.fitting.request import prepare
from tests.synthetic import FLOW, measured, store


def test_a_result_from_before_there_was_a_choice_is_of_the_same_fit(tmp_path):
    data = store(measured(FLOW, 24, [0.0, 40.0]), tmp_path)
    options = {"fixed": {"alpha": 0.0, "D_offset": 0.0}}
    result = hd.fit(data, hd.STATIC, **options)
    assert result.config.pop("device") == "auto"
    del result.config["computed_on"]
    assert not _from_result(result, prepare(data, hd.STATIC, **options))
    assert _from_result(result, prepare(data, hd.STATIC, device="cpu", **options)) == ["device"]
