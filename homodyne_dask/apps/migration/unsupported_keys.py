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

ANY = "*"
"""In a section whose keys are user-defined."""

# section | reason, empty: that of the section around it | keys that are not converted
_TABLE = """
 | | config_version
metadata | describes the file; no effect | analysis_mode complexity config_version description \
diagonal_correction generated_at generated_by integration_method nlsq_cmc_physics_match \
parameter_count physics_model shear_model template_type
analysis_settings | repeats analysis_mode in words |
analysis_settings.model_description | | parameters per_angle_scaling physics type
analyzer_parameters | the store holds its times in seconds (`homodyne-dask info`) | \
dt time_unit
analyzer_parameters.scattering | |
analyzer_parameters.geometry | |
experimental_data | ingest reads format, angles and q from the file, and the store replaces the \
cache | cache_compression cache_directory cache_file_path cache_filename_template data_type \
exchange_key file_format phi_angles_file phi_angles_path use_caching
phi_filtering | the ranges select the angles inside them; if no angle lies inside them, the fit ends \
with an error instead of using all angles | algorithm fallback_to_all_angles tolerance
phi_filtering.quality_control | the report names what the selected angles do not determine | \
max_angle_spread min_angles_required require_orthogonal_angles validate_coverage
initial_parameters | units are fixed and printed with each value | units
initial_parameters.per_angle_scaling | contrast and offset are eliminated exactly: they have \
no initial values | contrast offset
parameter_space | repeats analysis_mode | model
parameter_space.priors | normal priors are given as prior (D0: [2500, 300]), priors of contrast and \
offset as contrast_prior and offset_prior; bounds and fixed values replace other priors | *
optimization | |
optimization.angle_filtering | phi_filtering selects the angles | enabled target_angle_ranges
optimization.nlsq | there is one solver, which ends within 1e-4 standard errors of the optimum: no \
tolerances, scales or strategies to choose | goal gtol max_iterations memory_fraction \
memory_threshold_gb tolerance trust_region_scale verbose workflow x_scale xtol
optimization.nlsq.x_scale_map | parameters are scaled by the diagonal of the Hessian | *
optimization.nlsq.progress | progress is always printed | enable log_interval verbose
optimization.nlsq.diagnostics | the report states the outcome and what is not determined | \
check_gradients enabled log_jacobian_norms sample_size
optimization.nlsq.anti_degeneracy | contrast and offset are eliminated exactly, which causes no \
degeneracy | constant_scaling_threshold enable execute_layers fourier_auto_threshold
optimization.nlsq.anti_degeneracy.gradient_monitoring | | consecutive_triggers enable \
ratio_threshold response
optimization.nlsq.anti_degeneracy.hierarchical | | enable max_outer_iterations outer_tolerance \
per_angle_max_iterations physical_max_iterations
optimization.nlsq.anti_degeneracy.regularization | | auto_tune_lambda enable lambda max_cv mode \
target_contribution target_cv
optimization.nlsq.anti_degeneracy.shear_weighting | angles are weighted by their noise, not \
by their direction | alpha enable min_weight normalize update_frequency
optimization.nlsq.cmaes | initial values are found by a search on averages of the data (starts) | \
auto_select data_chunk_size enable max_generations max_restarts memory_limit_gb n_seeds \
normalization_epsilon normalize popsize population_batch_size preset refine_with_nlsq \
refinement_ftol refinement_gtol refinement_loss refinement_max_nfev refinement_workflow \
refinement_xtol restart_strategy scale_threshold sigma sigma_warmstart tol_fun tol_x \
warmstart_auto_skip warmstart_skip_threshold
optimization.nlsq.multi_start | initial values are found by a search on averages of the data (starts) | \
degeneracy_threshold enable n_starts n_workers refine_top_k refinement_ftol sampling_strategy \
screen_keep_fraction seed use_screening
optimization.nlsq.hybrid_streaming | data of any size are processed in the same way, chunk by chunk | \
checkpoint_frequency chunk_size cost_increase_tolerance enable enable_adaptive_warmup_lr \
enable_checkpoints enable_cost_guard enable_step_clipping enable_warm_start_detection \
gauss_newton_max_iterations gauss_newton_tol log_frequency max_warmup_iterations \
max_warmup_step_size normalization_strategy normalize regularization_factor trust_region_initial \
validate_numerics verbose warm_start_threshold warmup_iterations warmup_learning_rate \
warmup_lr_careful warmup_lr_refinement
optimization.nlsq.quality_validation | the report states the outcome | bounds_tolerance \
enable reduced_chi_squared_threshold warn_on_bounds_hit warn_on_convergence_failure \
warn_on_max_restarts
optimization.streaming | data of any size are processed in the same way; each pass ends with a \
checkpoint | adaptive_batching batch_size checkpoint_dir checkpoint_frequency enable_checkpoints \
enable_fault_tolerance keep_last_checkpoints max_retries_per_batch min_success_rate \
resume_from_checkpoint
optimization.stratification | data of any size are processed in the same way, chunk by chunk | \
check_memory_safety collect_diagnostics enabled force_sequential_fallback log_diagnostics \
max_imbalance_ratio target_chunk_size use_index_based
optimization.sequential | all angles are fitted together | min_success_rate weighting
optimization.recovery | Dask repeats the tasks of a lost worker; nothing else is repeated | \
enable lambda_growth log_retries lr_decay max_attempts trust_decay
optimization.mcmc | the fit is a least-squares fit; the command posterior draws from the posterior | backend \
dense_mass_matrix max_tree_depth num_chains num_samples num_warmup progress_bar target_accept_prob
optimization.mcmc.initial_values | | *
optimization.cmc | the fit is a least-squares fit; the command posterior draws from the posterior | backend \
constant_scaling_threshold enable heartbeat_timeout min_points_for_cmc per_angle_mode \
per_shard_timeout prior_tempering run_id
optimization.cmc.backend_config | | checkpoint_dir checkpoint_frequency enable_checkpoints \
keep_last_checkpoints name resume_from_checkpoint
optimization.cmc.combination | | method min_success_rate min_success_rate_warning validate_results
optimization.cmc.per_shard_mcmc | | adaptive_sampling chain_method enable_jax_profiling \
jax_profile_dir max_tree_depth min_samples min_warmup num_chains num_samples num_warmup \
target_accept_prob
optimization.cmc.reparameterization | | bimodal_min_separation bimodal_min_weight enable_d_total \
enable_log_gamma
optimization.cmc.sharding | | max_points_per_shard min_points_per_param min_points_per_shard \
num_shards seed_base strategy
optimization.cmc.validation | | heterogeneity_abort max_between_shard_kl max_divergence_rate \
max_parameter_cv max_per_shard_rhat min_per_shard_ess min_success_rate nlsq_prior_width_factor \
require_nlsq_warmstart strict_mode use_nlsq_informed_priors
noise_estimation | ingest estimates the noise from counts or scatter, or takes its --sigma | \
enabled model posterior_samples
noise_estimation.adam_config | | convergence_threshold early_stopping learning_rate max_epochs
noise_estimation.per_angle | | min_angles_required validate_coverage
noise_estimation.validation | | check_convergence reasonable_range warn_outliers
performance | the plan uses the available memory and threads (`homodyne-dask plan`) | \
enable_progress memory_limit_gb strategy_override
performance.computation | | cpu_threads enable_jit vectorization_level
performance.memory_optimization | | cache_strategy chunk_size enable_caching enabled \
max_memory_usage_gb
logging | there are no log files; --debug shows warnings and logs | enabled level
logging.console | | colors enabled format level show_progress
logging.file | | backup_count enabled filename level max_size_mb path
logging.modules | | *
quality_control | ingest reports what it masks or drops | enabled
quality_control.angle_quality | | check_angle_distribution min_angles_per_range \
validate_angle_coverage
quality_control.multi_angle_validation | | check_correlation_consistency detect_anomalous_angles \
validate_angle_dependencies
plotting | the figures of a fit have one format; `fit --homodyne-output` adds those of homodyne | \
angle_correlation angle_coverage correlation_function dpi fit_quality fit_surface format \
parameter_distributions preview_mode residual_analysis save_plots show_plots style
plotting.color_scale | | fixed_max fixed_min mode percentile_max percentile_min pin_legacy_range
plotting.datashader | | canvas_height canvas_width
plotting.matplotlib | | interpolation use_tight_layout
plotting.matplotlib.savefig_kwargs | | *
output | the result is written to A0123_fit beside the store, or to --output | base_directory \
compress_hdf5 compression_level create_subdirs directory include_diagnostics timestamp_dirs
output.formats | | csv hdf5 json npz yaml
validation | every invalid value is an error | check_file_existence \
check_mode_compatibility strict_mode validate_parameter_ranges
validation.angle_validation | | min_angle_count require_multiple_angles validate_angle_ranges
"""

_OF_ONE_KEY = {
    "config_version": "describes the file; no effect",
    "optimization.method": "there is one method, least squares",
    "analyzer_parameters.frame_step": "neither homodyne nor xpcsjax uses it in a fit",
    "initial_parameters.tied_parameters": "ties are not converted: give them as tie (D0_ref: D0_sample); "
    "otherwise the fit differs from that of xpcsjax",
}


class Section(NamedTuple):
    """The keys of a section of their YAML that are not converted."""

    reason: str
    """Why they are not converted; single keys may have one of their own."""
    keys: frozenset[str]


def _sections() -> dict[str, Section]:
    sections: dict[str, Section] = {}
    for line in _TABLE.strip("\n").splitlines():
        name, reason, keys = (part.strip() for part in line.split("|"))
        parent = name.rpartition(".")[0]
        inherited = sections[parent].reason if parent in sections else ""
        sections[name] = Section(reason or inherited, frozenset(keys.split()))
    for path in _OF_ONE_KEY:
        section, _, key = path.rpartition(".")
        sections[section] = sections[section]._replace(keys=sections[section].keys | {key})
    return sections


SECTIONS = _sections()


class UnsupportedKey(NamedTuple):
    """A key that is not converted."""

    key: str
    """With its sections, as 'plotting.dpi'."""
    known: bool
    """Whether it is a key of homodyne or xpcsjax."""
    why: str
    """The reason; for an unknown key the most similar one."""


def unsupported_keys(content: Mapping[str, object], section: str = "") -> Iterator[UnsupportedKey]:
    """Yield the keys of a file that are not converted, in the order of the file."""
    for name, value in content.items():
        path = f"{section}.{name}" if section else str(name)
        if path in READ:
            continue
        if path in SECTIONS and (value is None or isinstance(value, Mapping)):
            yield from unsupported_keys(value or {}, path)
        elif path in SECTIONS:
            yield UnsupportedKey(path, True, SECTIONS[path].reason)
        elif {str(name), ANY} & SECTIONS[section].keys:
            yield UnsupportedKey(path, True, _OF_ONE_KEY.get(path, SECTIONS[section].reason))
        else:
            yield UnsupportedKey(path, False, nearest(str(name), _names_in(section)))


def _names_in(section: str) -> list[str]:
    """Return the names of the keys and sections that a section may contain."""
    start = f"{section}." if section else ""
    inside = {
        path[len(start) :].partition(".")[0]
        for path in (*READ, *SECTIONS)
        if path.startswith(start)
    }
    return sorted((inside | SECTIONS[section].keys) - {""})
