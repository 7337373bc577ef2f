"""Every key of a configuration of homodyne is converted, or named with the reason."""

import pytest

from tests.apps.migration.configurations import translated


def test_every_key_is_converted_or_ignored_for_a_reason(tmp_path):
    translation = translated(tmp_path)
    assert (
        translation.ignored["plotting.dpi"]
        == translation.ignored["plotting.color_scale.mode"]
        != ""
    )
    assert "optimization.nlsq.loss" not in translation.ignored
    assert any(
        remark.startswith("loss soft_l1: a sum of squares") for remark in translation.remarks
    )
    assert "logging.modules.jax._src" in translation.ignored
    assert "phi_filtering.tolerance" in translation.ignored
    assert "analyzer_parameters.dt" in translation.ignored
    text = str(translation)
    assert all(key.rpartition(".")[2] in text for key in translation.ignored)


UNKNOWN = {
    "section": ("plottting", {"dpi": 3}, "did you mean 'plotting'?"),
    "key": ("initial_parameters__fixed_paramters", {}, "did you mean 'fixed_parameters'?"),
    "deep": ("optimization__nlsq__cmaes__popsiz", 3, "did you mean 'popsize'?"),
}


@pytest.mark.parametrize("word", UNKNOWN)
def test_a_key_that_neither_program_knows_is_named_with_the_most_similar_one(tmp_path, word):
    path, value, similar = UNKNOWN[word]
    translation = translated(tmp_path, **{path: value})
    assert translation.unknown == {path.replace("__", "."): similar}
    text = str(translation)
    assert text.index("unknown keys, ignored:") < text.index("converted, with a difference:")
