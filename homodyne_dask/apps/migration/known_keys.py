"""The keys of the YAML of homodyne and xpcsjax: which are converted, and why the others are not."""

from collections.abc import Mapping

from homodyne_dask.errors import nearest

# section | why it is not converted | in a section of which some keys are: those that are not | and that are
_TABLE = """
 | it has no effect | config_version | analysis_mode
metadata | describes the file
analysis_settings | repeats analysis_mode in words
analyzer_parameters | the store holds its times in seconds (`homodyne-dask info`) | dt time_unit dt_unit \
| start_frame end_frame
analyzer_parameters.frame_step | neither homodyne nor xpcsjax uses it in a fit
analyzer_parameters.scattering | | | wavevector_q q_unit
analyzer_parameters.geometry | | | stator_rotor_gap gap_unit
experimental_data | ingest reads format, angles and q from the file, and the store replaces the cache \
| cache_compression cache_directory cache_file_path cache_filename_template data_type exchange_key \
file_format phi_angles_file phi_angles_path use_caching | file_path data_folder_path data_file_name
phi_filtering | the ranges select the angles inside them; if no angle lies inside them, the fit ends \
with an error instead of using all angles | algorithm fallback_to_all_angles tolerance \
| enabled target_ranges
phi_filtering.quality_control | the report names what the selected angles do not determine
initial_parameters | units are fixed and printed with each value | units \
| parameter_names values active_parameters fixed_parameters
initial_parameters.per_angle_scaling | contrast and offset are eliminated exactly: they have no initial values
initial_parameters.tied_parameters | ties are not converted: give them as tie (D0_ref: D0_sample); otherwise \
the fit differs from that of xpcsjax
parameter_space | repeats analysis_mode | model | bounds
parameter_space.priors | normal priors are given as prior (D0: [2500, 300]), priors of contrast and offset \
as contrast and offset (contrast: {prior: [0.2, 0.01]}); bounds and fixed values replace other priors
optimization | there is one method, least squares | method
optimization.angle_filtering | phi_filtering selects the angles
optimization.nlsq | there is one solver, which ends within 1e-4 standard errors of the optimum: no \
tolerances, scales or strategies to choose | goal gtol max_iterations memory_fraction \
memory_threshold_gb tolerance trust_region_scale verbose workflow x_scale xtol | loss
optimization.nlsq.x_scale_map | parameters are scaled by the diagonal of the Hessian
optimization.nlsq.progress | progress is always printed
optimization.nlsq.diagnostics | the report states the outcome and what is not determined
optimization.nlsq.anti_degeneracy | contrast and offset are eliminated exactly, which causes no degeneracy \
| constant_scaling_threshold enable execute_layers fourier_auto_threshold gradient_monitoring hierarchical \
regularization | per_angle_mode fourier_order
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


WHICH_DATA = ("analyzer_parameters", "phi_filtering")
"""Sections of which an unknown key may decide which data are fitted."""


_ROWS = ([part.strip() for part in line.split("|")] for line in _TABLE.strip("\n").splitlines())
SECTIONS = {name: fields for name, *fields in _ROWS}
"""The fields of each line of the table, by the name of the section."""


def unconverted_keys(
    content: Mapping[str, object], section: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keys and sections of a file that are not converted, with their sections.

    First those of homodyne or xpcsjax, with the reason; then unknown ones, with the most similar key.
    """
    ignored: dict[str, str] = {}
    unknown: dict[str, str] = {}
    why, left, converted = (*SECTIONS[section], "")[:3]
    start = f"{section}." if section else ""
    for name, value in content.items():
        path = f"{start}{name}"
        inner = SECTIONS.get(path)
        if inner and len(inner) > 1 and (value is None or isinstance(value, Mapping)):
            inside = unconverted_keys(value or {}, path)
            ignored |= inside[0]
            unknown |= inside[1]
        elif inner:
            ignored[path] = inner[0]
        elif str(name) in left.split():
            ignored[path] = why
        elif str(name) not in converted.split():
            sections = (of.removeprefix(start) for of in SECTIONS if of and of.startswith(start))
            names = {of.partition(".")[0] for of in sections} | {*left.split(), *converted.split()}
            unknown[path] = nearest(str(name), sorted(names))
    return ignored, unknown
