"""The public names of the package, for type checkers; `__init__.py` loads each at first use."""

from homodyne_dask import readers as readers
from homodyne_dask.api import ingest as ingest
from homodyne_dask.api import read_g2 as read_g2
from homodyne_dask.apps.curve_fit.curve_fit import CurveFit as CurveFit
from homodyne_dask.apps.curve_fit.curve_fit import curve_fit as curve_fit
from homodyne_dask.apps.design.errors_of_plan import Design as Design
from homodyne_dask.apps.design.errors_of_plan import design as design
from homodyne_dask.apps.design.errors_of_plan import design_like as design_like
from homodyne_dask.apps.guide import user_guide
from homodyne_dask.apps.migration.translate_yaml import from_homodyne_yaml as from_homodyne_yaml
from homodyne_dask.apps.posterior.posterior import Posterior as Posterior
from homodyne_dask.apps.posterior.posterior import load_posterior as load_posterior
from homodyne_dask.apps.posterior.sample_posterior import posterior as posterior
from homodyne_dask.apps.slurm.jobs import slurm_cluster as slurm_cluster
from homodyne_dask.apps.view.view_server import view as view
from homodyne_dask.cluster.connect import connect as connect
from homodyne_dask.cluster.local import local_cluster as local_cluster
from homodyne_dask.errors import HomodyneDaskError as HomodyneDaskError
from homodyne_dask.fitting import events as events
from homodyne_dask.fitting.choose_model import compare_models as compare_models
from homodyne_dask.fitting.fit import iterate as iterate
from homodyne_dask.fitting.fit import plan as plan
from homodyne_dask.fitting.fit_any import fit as fit
from homodyne_dask.fitting.g2 import g2 as g2
from homodyne_dask.fitting.predict import predict as predict
from homodyne_dask.fitting.series.rings_and_windows import fit_each as fit_each
from homodyne_dask.models import BROWNIAN as BROWNIAN
from homodyne_dask.models import COUETTE as COUETTE
from homodyne_dask.models import LAMINAR_FLOW as LAMINAR_FLOW
from homodyne_dask.models import MODELS as MODELS
from homodyne_dask.models import POWER_LAW as POWER_LAW
from homodyne_dask.models import STATIC as STATIC
from homodyne_dask.models import Convention as Convention
from homodyne_dask.models import ResidualModel as ResidualModel
from homodyne_dask.models import SeparableModel as SeparableModel
from homodyne_dask.models import TransportModel as TransportModel
from homodyne_dask.models import model as model
from homodyne_dask.models import separable as separable
from homodyne_dask.models.parameters import Parameter as Parameter
from homodyne_dask.results.result_classes import Comparison as Comparison
from homodyne_dask.results.result_classes import FitResult as FitResult
from homodyne_dask.results.result_classes import FitSeries as FitSeries
from homodyne_dask.results.saved_results import compare as compare
from homodyne_dask.results.saved_results import compare_results as compare_results
from homodyne_dask.results.saved_results import load_comparison as load_comparison
from homodyne_dask.results.saved_results import load_result as load_result
from homodyne_dask.results.saved_results import load_series as load_series
from homodyne_dask.simulation import simulate as simulate
from homodyne_dask.solver.levenberg_marquardt import Outcome as Outcome
from homodyne_dask.store.scan import Scan as Scan
from homodyne_dask.store.scan import open_dataset as open_dataset

__all__: list[str]
__version__: str
guide = user_guide
