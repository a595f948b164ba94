//! How attention is run, whatever it computes.

use variants::gemm::Accumulation;

use super::sizes::OP;
use crate::checks::argument;
use crate::error::Result;

/// How attention is run. The result does not depend on it, but for rounding: kernels and splits sum in another order.
///
/// ```
/// use ferrotile::AttentionOptions;
///
/// let options = AttentionOptions { max_workspace_bytes: 64 << 20, ..AttentionOptions::default() };
/// options.check()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttentionOptions {
    /// The kernel to run, by name; `None` picks the one that measures best.
    pub kernel: Option<String>,
    /// How P V of FP8 inputs is summed: tensor cores add such products with 13 bits. [`Accumulation::TwoLevel`], the
    /// default, adds the sum of every 256 keys, or fewer, to O in f32; [`Accumulation::Direct`] takes less time on
    /// Hopper. It has no kernels of its own elsewhere, nor for sequences of several lengths, softcap and bias. Inputs
    /// of other types are always summed in f32.
    pub accumulation: Accumulation,
    /// The parts that the keys are split into where a few query rows see many keys, each for blocks of its own; `None`
    /// picks by the sizes.
    pub splits: Option<usize>,
    /// Whether each kernel starts only when the work before it on the stream has ended. Otherwise, on sm_90, a kernel
    /// that copies by TMA or decodes starts while the kernel before it still runs, and waits for the end of that kernel
    /// before it reads or writes any memory. Results are the same.
    pub isolated: bool,
    /// The most workspace that a plan may ask for. With 0 keys are not split between blocks, and a few rows of a few
    /// heads leave most of the card idle.
    pub max_workspace_bytes: usize,
}

impl AttentionOptions {
    /// Whether plans take these options; they check it too. Needs no card. The named kernel is not looked at.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) that names the option and what is allowed.
    pub fn check(&self) -> Result<()> {
        if self.splits == Some(0) {
            return Err(argument(OP, "splits", 0, "at least 1, or none"));
        }
        Ok(())
    }
}
