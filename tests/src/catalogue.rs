//! The configurations that serve a problem: trials run each of them by its name.

use ferrotile::{Accumulation, Arch, AttentionPlan, Dtype, GemmPlan, Precision};
use variants::ata::{ATA, AtaConfig};
use variants::attention::{ATTENTION, AttentionConfig};
use variants::gemm::{GEMM, GemmConfig};
use variants::study::{ATA_STUDY, ATTENTION_STUDY};

/// Those of attention that serve an element type and head dimensions, of Q and of V, on an architecture: what the
/// library chooses from, and the kernels of the study.
pub fn attention_configs(
    arch: Arch,
    dtype: Dtype,
    head_dims: [usize; 2],
) -> impl Iterator<Item = &'static AttentionConfig> {
    ATTENTION.iter().chain(ATTENTION_STUDY).filter(move |config| config.serves(arch, dtype, head_dims))
}

/// Those of GEMM that multiply these types and sum them at least as exactly.
pub fn gemm_configs(a: Dtype, b: Dtype, accumulation: Accumulation) -> impl Iterator<Item = &'static GemmConfig> {
    GEMM.iter().filter(move |config| config.multiplies(a, b, accumulation))
}

/// Those of ATA that multiply matrices of a precision: what the library chooses from, and the kernels of the study.
pub fn ata_configs(precision: Precision) -> impl Iterator<Item = &'static AtaConfig> {
    ATA.iter().chain(ATA_STUDY).filter(move |config| config.precision == precision)
}

/// The configuration that a plan of attention has chosen.
///
/// # Panics
/// Where the catalogue has none of the plan's name.
#[must_use]
pub fn config_of(plan: &AttentionPlan) -> &'static AttentionConfig {
    let named = ATTENTION.iter().find(|config| plan.kernel_name() == config.name);
    named.expect("a plan runs a kernel of the catalogue")
}

/// The configuration that a plan of GEMM has chosen.
///
/// # Panics
/// As [`config_of`].
#[must_use]
pub fn gemm_config_of(plan: &GemmPlan) -> &'static GemmConfig {
    let named = GEMM.iter().find(|config| plan.kernel_name() == config.name);
    named.expect("a plan runs a kernel of the catalogue")
}
