//! Launches of kernels.

use crate::backend::{Launch, LaunchConfig};
use crate::checks::same_device;
use crate::error::{Error, Result};
use crate::runtime::module::{Kernel, KernelAttributes};
use crate::runtime::param::KernelParam;
use crate::runtime::stream::StreamRef;

/// The largest grid (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];

/// The largest number of blocks in a cluster that every card with clusters takes.
const MAX_CLUSTER_BLOCKS: u64 = 8;

impl LaunchConfig {
    /// Checks the launch against the limits of a kernel.
    fn check(&self, kernel: &str, attributes: &KernelAttributes) -> Result<()> {
        let within = |what, got: u64, least: u64, most: u64| {
            if (least..=most).contains(&got) {
                Ok(())
            } else {
                Err(Error::LaunchConfig { kernel: kernel.to_owned(), what, got, least, most })
            }
        };
        let product = |dims: [u32; 3]| dims.iter().fold(1_u64, |product, &dim| product.saturating_mul(dim.into()));
        for (what, got, most) in [
            ("grid x", self.grid[0], MAX_GRID[0]),
            ("grid y", self.grid[1], MAX_GRID[1]),
            ("grid z", self.grid[2], MAX_GRID[2]),
        ] {
            within(what, got.into(), 1, most.into())?;
        }
        within("the number of threads of a block", product(self.block), 1, attributes.max_threads.into())?;
        within("the number of blocks of a cluster", product(self.cluster), 1, MAX_CLUSTER_BLOCKS)?;
        for (what, grid, cluster) in [
            ("the remainder of grid x by cluster x", self.grid[0], self.cluster[0]),
            ("the remainder of grid y by cluster y", self.grid[1], self.cluster[1]),
            ("the remainder of grid z by cluster z", self.grid[2], self.cluster[2]),
        ] {
            within(what, (grid % cluster).into(), 0, 0)?;
        }
        within("dynamic shared memory", self.shared_bytes.into(), 0, attributes.max_shared_bytes.into())
    }
}

impl Kernel {
    /// Enqueues the kernel.
    ///
    /// # Safety
    /// `params` must be the kernel's parameters in number, order and type. What they point to must be valid for the
    /// accesses that the kernel makes with this configuration, and stay so until it has finished.
    ///
    /// # Errors
    /// [`Error::LaunchConfig`] where a number is out of the card's or the kernel's range: an empty grid is. An error
    /// while the kernel runs is reported by a later call.
    pub unsafe fn launch<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        config: &LaunchConfig,
        params: &[&dyn KernelParam],
    ) -> Result<()> {
        let stream = stream.into();
        config.check(self.name(), &self.attributes())?;
        same_device("kernel", self.ordinal(), stream.ordinal())?;
        let params: Vec<_> = params.iter().map(|param| param.as_param()).collect();
        let launch = Launch { config: *config, params: &params };
        let stream = stream.enqueue()?;
        // SAFETY: the caller's promise; the driver only reads the parameters, during the call.
        unsafe { self.device().launch(self.function(), stream, launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTRIBUTES: KernelAttributes = KernelAttributes {
        registers: 32,
        local_bytes: 0,
        static_shared_bytes: 0,
        max_shared_bytes: 200 << 10,
        max_threads: 256,
    };

    fn rejected(config: LaunchConfig) -> &'static str {
        match config.check("k", &ATTRIBUTES) {
            Err(Error::LaunchConfig { what, .. }) => what,
            other => panic!("{config:?}: {other:?}"),
        }
    }

    #[test]
    fn launches_within_the_limits_pass() {
        let config = LaunchConfig {
            grid: [1 << 20, 1, 1],
            block: [256, 1, 1],
            cluster: [1; 3],
            shared_bytes: 200 << 10,
            overlaps: false,
        };
        assert_eq!(config.check("k", &ATTRIBUTES), Ok(()));
        assert_eq!(LaunchConfig { cluster: [2, 1, 1], ..config }.check("k", &ATTRIBUTES), Ok(()));
    }

    #[test]
    fn launches_outside_the_limits_are_named() {
        let good = LaunchConfig { grid: [4, 1, 1], ..LaunchConfig::default() };
        assert_eq!(rejected(LaunchConfig { grid: [0, 1, 1], ..good }), "grid x");
        assert_eq!(rejected(LaunchConfig { grid: [1, 65536, 1], ..good }), "grid y");
        assert_eq!(rejected(LaunchConfig { grid: [1, 1, 65536], ..good }), "grid z");
        assert_eq!(rejected(LaunchConfig { block: [257, 1, 1], ..good }), "the number of threads of a block");
        assert_eq!(rejected(LaunchConfig { block: [32, 0, 1], ..good }), "the number of threads of a block");
        assert_eq!(rejected(LaunchConfig { block: [u32::MAX; 3], ..good }), "the number of threads of a block");
        assert_eq!(rejected(LaunchConfig { cluster: [16, 1, 1], ..good }), "the number of blocks of a cluster");
        assert_eq!(rejected(LaunchConfig { cluster: [0, 1, 1], ..good }), "the number of blocks of a cluster");
        assert_eq!(rejected(LaunchConfig { cluster: [3, 1, 1], ..good }), "the remainder of grid x by cluster x");
        assert_eq!(rejected(LaunchConfig { shared_bytes: (200 << 10) + 1, ..good }), "dynamic shared memory");
    }
}
