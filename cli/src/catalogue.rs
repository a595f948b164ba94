//! Every kernel that the library can launch, by family and name, whether or not a build has it.

use ferrotile::{Arch, embedded_kernels};
use variants::ata::ATA;
use variants::attention::{ATTENTION, COMBINE};
use variants::cg::CG;
use variants::gemm::{GEMM, PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K};
use variants::quantize::{KERNELS, QuantizeKernel};
use variants::rotary::{ROTARY, RotaryKernel};
use variants::study::{ATA_STUDY, ATTENTION_STUDY, STUDY};

/// The families, and the study, whose kernels a caller may name too.
pub(crate) const FAMILIES: [&str; 6] = ["ata", "attention", "gemm", "quantize", "rotary", STUDY];

/// A kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CatalogueKernel {
    /// The family that has it.
    pub(crate) family: &'static str,
    /// The name of its entry.
    pub(crate) name: &'static str,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
}

impl CatalogueKernel {
    const fn new(family: &'static str, name: &'static str, threads: u32, shared_bytes: u32) -> CatalogueKernel {
        CatalogueKernel { family, name, threads, shared_bytes }
    }

    /// Whether the PTX of `arch` in this build has it.
    pub(crate) fn is_embedded(&self, arch: Arch) -> bool {
        embedded_kernels(self.family, arch).any(|name| name == self.name)
    }
}

/// All of them, family by family.
pub(crate) fn kernels() -> impl Iterator<Item = CatalogueKernel> {
    let of_ata = ATA
        .iter()
        .chain(ATA_STUDY)
        .map(|config| CatalogueKernel::new(config.family, config.name, config.threads(), config.smem().total_bytes()));
    let of_cg =
        CG.iter().map(|config| CatalogueKernel::new("ata", config.name, config.threads(), config.smem().total_bytes()));
    let of_attention = ATTENTION
        .iter()
        .chain(ATTENTION_STUDY)
        .map(|config| CatalogueKernel::new(config.family, config.name, config.threads(), config.smem().total_bytes()));
    let of_combine = COMBINE.iter().map(|kernel| CatalogueKernel::new("attention", kernel.name, kernel.threads(), 0));
    let of_gemm = GEMM
        .iter()
        .map(|config| CatalogueKernel::new("gemm", config.name, config.threads(), config.smem().total_bytes()));
    let of_pack = [PACK_8BIT, PACK_16BIT]
        .into_iter()
        .map(|kernel| CatalogueKernel::new("gemm", kernel.name, kernel.threads, kernel.smem().total_bytes()));
    let sum = CatalogueKernel::new("gemm", REDUCE_SPLIT_K.name, REDUCE_SPLIT_K.threads, 0);
    let (threads, shared_bytes) = (QuantizeKernel::THREADS, QuantizeKernel::SHARED_BYTES);
    let of_quantize =
        KERNELS.into_iter().map(move |kernel| CatalogueKernel::new("quantize", kernel.name, threads, shared_bytes));
    let of_rotary =
        ROTARY.into_iter().map(|kernel| CatalogueKernel::new("rotary", kernel.name, RotaryKernel::THREADS, 0));
    let mut all: Vec<_> = of_ata
        .chain(of_cg)
        .chain(of_attention)
        .chain(of_combine)
        .chain(of_gemm)
        .chain([sum])
        .chain(of_pack)
        .chain(of_quantize)
        .chain(of_rotary)
        .collect();
    all.sort_by_key(|kernel| FAMILIES.iter().position(|family| *family == kernel.family));
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_this_build_is_in_the_catalogue() {
        for (family, arch) in FAMILIES.into_iter().flat_map(|family| Arch::ALL.map(|arch| (family, arch))) {
            for name in embedded_kernels(family, arch) {
                let known = kernels().filter(|kernel| (kernel.family, kernel.name) == (family, name)).count();
                assert_eq!(known, 1, "{family}: {name}");
            }
        }
        assert!(kernels().all(|kernel| kernel.threads.is_multiple_of(32) && kernel.threads > 0));
    }
}
