"""What a model refuses of the options of a fit and of its data, before a pass: each mistake in a sentence."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.models.derived_models import with_ties
from tests.synthetic import FLOW, angles, measured, module_scan

scan = module_scan(lambda: measured(FLOW[:3], 12, angles(3)))

SPLINES = [
    ("cumulant", {"rates": "spline"}, "cumulant cannot be splines"),
    ("distribution_of_rates", {"rates": "spline"}, "distribution_of_rates cannot be splines"),
    ("static", {"rates": "gamma_dot=spline"}, "unknown for static"),
    ("stretched", {"rates": "J=spline"}, "unknown for stretched"),
    ("static", {"knots": 9}, "static has no splines: add rates"),
    ("static_free", {"knots": 3}, "give a number from 4 to 12"),
    ("distribution_of_rates", {"knots": 3}, "give a number from 4"),
    ("static", {"smoothness": {"J": 1.0}}, "smoothness is given, but static has no splines"),
    ("static_free", {"smoothness": {"j": 1.0}}, "no splines for a rate 'j'"),
    ("distribution_of_rates", {"smoothness": {"rate": 1.0}}, "no splines for a rate 'rate'"),
    ("static_free", {"smoothness": {"J": -1.0}}, "smoothness J = -1.0 cannot be used"),
    ("static_free", {"bounds": {"J": (-1, 1)}}, "bounds of J begin at -1"),
    ("stretched_free", {"bounds": {"rate": (-1.0, 9.0)}}, "bounds of rate begin at -1"),
    ("static_free", {"profile": ["J_1"]}, "would change along the profile"),
    ("static_free", {"profile": ["J"]}, "would change along the profile"),
    ("static_free", {"prior": {"J": (2500, 10)}}, "give bounds of J, or priors of J_1 to J_"),
    ("distribution_of_rates", {"prior": {"log_density": (0, 1)}}, "one prior cannot describe"),
    ("static_free", {"fixed": {"J": 1.0, "J_1": 2.0}}, "J_1 is given twice"),
]
TIE = {"tie": {"alpha": "0"}}
TIES = [
    ("static", {"tie": {"x": "alpha"}}, "tie: unknown parameter 'x'"),
    ("static", {"tie": {"D0": "alhpa"}}, "unknown parameter 'alhpa'"),
    *(
        ("static", {"tie": {"D0": text}}, "tie of D0 = .* cannot be read")
        for text in (
            "alpha +", "__import__('os')", "alpha.real", "exp(alpha, 2)", "alpha if 1 else 2"
        )
    ),
    ("static", {"tie": {"D0": "alpha", "alpha": "D0"}}, "refer to each other"),
    ("static", {"tie": {"D0": "1", "alpha": "0", "D_offset": "0"}}, "leaves no parameter to fit"),
    ("static", {"tie": ["alpha"]}, "tie = .* cannot be used"),
    ("brownian", {"tie": {"alpha": "1"}}, "tie: alpha is 0 by the definition of brownian"),
    ("static", TIE | {"initial": {"alpha": 1.0}}, "initial: alpha is tied to 0"),
    ("static", TIE | {"prior": {"alpha": (0, 1)}}, "prior: alpha is tied to 0"),
    ("static", TIE | {"profile": ("alpha",)}, "profile: alpha is tied to 0"),
    ("static", TIE | {"rates": "spline"}, "cannot be tied"),
]  # fmt: skip
OTHERS = [
    ("brownian", {"fixed": {"alpha": 0.1}}, "fixed: alpha is 0 by the definition of this model"),
    ("brownian", {"initial": {"D_offset": 3.0}}, "initial: D_offset is 0 by the definition"),
    ("brownian", {"bounds": {"alpha": (-1, 1)}}, "bounds: alpha is 0 by the definition"),
    ("brownian", {"profile": "alpha"}, "alpha is fixed"),
    ("static", {"profile": "D_ofset"}, "profile: unknown parameter 'D_ofset'; did you mean"),
    (
        "static",
        {"prior": {"D0": "lognormal:2e4:0.1"}},
        "is lognormal: give it to posterior instead",
    ),
    ("static", {"prior": {"D": (1, 2)}}, "prior: unknown parameter 'D'"),
    ("static", {"prior": {"D0": (2e4, -1)}}, "prior of D0 .*: sd = -1 is not positive"),
    ("static", {"prior": {"D0": (2e4, 1e-13)}}, "prior of D0: sd = 1e-13 is below the rounding"),
    ("static", {"prior": {"D0": (2e4, 1e-300)}}, "prior of D0 .* is not between 1e-60 and 1e60"),
    (
        "static",
        {"prior": {"alpha": (0, 1)}, "fixed": {"alpha": -0.4}},
        "prior of alpha: .* is fixed",
    ),
    ("static", {"prior": {"D0": "2500"}}, "normal takes mean, sd"),
    ("static", {"prior": {"D0": 5}}, "prior of D0 = 5 cannot be used"),
    (
        "static",
        {"loss_scale": 1.0},
        "loss_scale = 1.0 is given, but the loss is the sum of squares",
    ),
    ("static", {"loss": "huber", "precision": "mixed"}, "too coarse for the loss 'huber'"),
    ("static", {"loss": "huber", "weighting": "speckle"}, "minimizes squares"),
]


@pytest.mark.parametrize(("model", "options", "sentence"), [*SPLINES, *TIES, *OTHERS], ids=str)
def test_options_that_a_model_cannot_have_are_refused(scan, model, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        prepare(scan, model, **options)


NO_LAW_LEFT = {"D_offset": "0.04*D0", "gamma_dot_t_offset": "0"}


@pytest.mark.parametrize("tie", [{}, NO_LAW_LEFT], ids=["", "tied"])
def test_a_tied_model_needs_of_data_what_the_model_itself_needs(tie):
    """Ties lost the power laws of a model, with them the check of times, and the angles of fringes."""
    flow = with_ties(hd.LAMINAR_FLOW, tie)
    beating = with_ties(hd.MODELS["beating"], tie and {"v_beta": "alpha_sample"})
    time, unknown = np.arange(3.0), np.array([0.0, np.nan])
    with pytest.raises(SelectionError, match="begin at -1 s, but the rates of laminar_flow"):
        flow.check_data(np.zeros(2), time - 1)
    with pytest.raises(SelectionError, match="laminar_flow needs φ, which is unknown for 1 of 2"):
        flow.check_data(unknown, time)
    with pytest.raises(SelectionError, match=r"beating needs φ.* or fit damped_cosine"):
        beating.check_data(unknown, time)
    with pytest.raises(OptionError, match="laminar_flow needs the gap between the plates"):
        flow.require_gap(None, "")
