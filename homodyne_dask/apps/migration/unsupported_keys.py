"""The keys of the YAML of homodyne and xpcsjax that are not converted, and the reasons."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from homodyne_dask.errors import nearest

READ = frozenset(
    {
        "analysis_mode",
        "analyzer_parameters.start_frame",
        "analyzer_parameters.end_frame",
        "analyzer_parameters.scattering.wavevector_q",
        "analyzer_parameters.geometry.stator_rotor_gap",
        "experimental_data.file_path",
        "experimental_data.data_folder_path",
        "experimental_data.data_file_name",
        "phi_filtering.enabled",
        "phi_filtering.target_ranges",
        "initial_parameters.parameter_names",
        "initial_parameters.values",
        "initial_parameters.active_parameters",
        "initial_parameters.fixed_parameters",
        "parameter_space.bounds",
        "optimization.nlsq.loss",
        "optimization.nlsq.anti_degeneracy.per_angle_mode",
        "optimization.nlsq.anti_degeneracy.fourier_order",
    }
)
"""Keys that are converted."""

# section | why it is not converted | the keys that are not, where others of the section are converted
_TABLE = """
 | it has no effect | config_version
metadata | describes the file
analysis_settings | repeats analysis_mode in words
analyzer_parameters | the store holds its times in seconds (`homodyne-dask info`) | dt time_unit
analyzer_parameters.frame_step | neither homodyne nor xpcsjax uses it in a fit
analyzer_parameters.scattering | |
analyzer_parameters.geometry | |
experimental_data | ingest reads format, angles and q from the file, and the store replaces the cache \
| cache_compression cache_directory cache_file_path cache_filename_template data_type exchange_key \
file_format phi_angles_file phi_angles_path use_caching
phi_filtering | the ranges select the angles inside them; if no angle lies inside them, the fit ends \
with an error instead of using all angles | algorithm fallback_to_all_angles tolerance
phi_filtering.quality_control | the report names what the selected angles do not determine
initial_parameters | units are fixed and printed with each value | units
initial_parameters.per_angle_scaling | contrast and offset are eliminated exactly: they have no initial values
initial_parameters.tied_parameters | ties are not converted: give them as tie (D0_ref: D0_sample); otherwise \
the fit differs from that of xpcsjax
parameter_space | repeats analysis_mode | model
parameter_space.priors | normal priors are given as prior (D0: [2500, 300]), priors of contrast and offset \
as contrast and offset (contrast: {prior: [0.2, 0.01]}); bounds and fixed values replace other priors
optimization | there is one method, least squares | method
optimization.angle_filtering | phi_filtering selects the angles
optimization.nlsq | there is one solver, which ends within 1e-4 standard errors of the optimum: no \
tolerances, scales or strategies to choose | goal gtol max_iterations memory_fraction \
memory_threshold_gb tolerance trust_region_scale verbose workflow x_scale xtol
optimization.nlsq.x_scale_map | parameters are scaled by the diagonal of the Hessian
optimization.nlsq.progress | progress is always printed
optimization.nlsq.diagnostics | the report states the outcome and what is not determined
optimization.nlsq.anti_degeneracy | contrast and offset are eliminated exactly, which causes no degeneracy \
| constant_scaling_threshold enable execute_layers fourier_auto_threshold gradient_monitoring hierarchical \
regularization
optimization.nlsq.anti_degeneracy.shear_weighting | angles are weighted by their noise, not by their direction
optimization.nlsq.cmaes | initial values are found by a search on averages of the data (starts)
optimization.nlsq.multi_start | initial values are found by a search on averages of the data (starts)
optimization.nlsq.hybrid_streaming | data of any size are processed in the same way, chunk by chunk
optimization.nlsq.quality_validation | the report states the outcome
optimization.streaming | data of any size are processed in the same way; each pass ends with a checkpoint
optimization.stratification | data of any size are processed in the same way, chunk by chunk
optimization.sequential | all angles are fitted together
optimization.recovery | Dask repeats the tasks of a lost worker; nothing else is repeated
optimization.mcmc | the fit is a least-squares fit; the command posterior draws from the posterior
optimization.cmc | the fit is a least-squares fit; the command posterior draws from the posterior
noise_estimation | ingest estimates the noise from counts or scatter, or takes its --sigma
performance | the plan uses the available memory and threads (`homodyne-dask plan`)
logging | there are no log files; --debug shows warnings and logs
quality_control | ingest reports what it masks or drops
plotting | the figures of a fit have one format
output | the result is written to A0123_fit beside the store, or to --output
validation | every invalid value is an error
"""


class Section(NamedTuple):
    """A section of their YAML, or a single key, that is not converted, or not wholly."""

    reason: str
    """Why."""
    keys: frozenset[str] | None
    """Those that are not converted, where others of the section are; None for a whole section."""


def _sections() -> dict[str, Section]:
    sections: dict[str, Section] = {}
    for line in _TABLE.strip("\n").splitlines():
        name, reason, *keys = (part.strip() for part in line.split("|"))
        sections[name] = Section(reason, frozenset(keys[0].split()) if keys else None)
    return sections


SECTIONS = _sections()


class UnsupportedKey(NamedTuple):
    """A key, or a whole section, that is not converted."""

    key: str
    """With its sections, as 'optimization.nlsq.cmaes'."""
    known: bool
    """Whether it is a key of homodyne or xpcsjax."""
    why: str
    """The reason; for an unknown key the most similar one."""


def unsupported_keys(content: Mapping[str, object], section: str = "") -> Iterator[UnsupportedKey]:
    """Yield the keys and sections of a file that are not converted, in the order of the file."""
    around = SECTIONS[section]
    for name, value in content.items():
        path = f"{section}.{name}" if section else str(name)
        if path in READ:
            continue
        of = SECTIONS.get(path)
        if of is not None and of.keys is not None and (value is None or isinstance(value, Mapping)):
            yield from unsupported_keys(value or {}, path)
        elif of is not None:
            yield UnsupportedKey(path, True, of.reason)
        elif around.keys is not None and str(name) in around.keys:
            yield UnsupportedKey(path, True, around.reason)
        else:
            yield UnsupportedKey(path, False, nearest(str(name), _names_in(section)))


def _names_in(section: str) -> list[str]:
    """Return the names of the keys and sections that a section may contain."""
    start = f"{section}." if section else ""
    paths = (path for path in (*READ, *SECTIONS) if path.startswith(start))
    inside = {path[len(start) :].partition(".")[0] for path in paths}
    return sorted((inside | (SECTIONS[section].keys or frozenset())) - {""})
