//! How a product is computed.

use layout::Arch;

/// What errors call the operation.
pub(super) const OP: &str = "ata";

/// How to compute a product.
///
/// ```
/// use ferrotile::{AtaOptions, Precision, ata_kernels};
///
/// let name = ata_kernels(Precision::F16).next().unwrap();
/// let options = AtaOptions { kernel: Some(name.to_string()), ..AtaOptions::default() };
/// assert!(!options.isolated);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AtaOptions {
    /// The kernel to run, by name; `None` picks one by the number of frames, and by whether all its blocks
    /// are on the card at once.
    pub kernel: Option<String>,
    /// Whether the product starts only when the work before it on the stream has ended. Otherwise, on sm_90, the
    /// product loads its first blocks of A while the kernel before it still runs, and then waits for that kernel's
    /// results.
    pub isolated: bool,
    /// The architecture whose kernel runs; `None` for the newest one. An older one serves to compare kernels.
    pub arch: Option<Arch>,
}
