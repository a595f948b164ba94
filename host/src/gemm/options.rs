//! How a product is computed.

use variants::gemm::{Accumulation, Activation, GemmLayout};

use super::problem::OP;
use crate::checks::argument;
use crate::error::Result;

/// How to compute a product.
///
/// ```
/// use ferrotile::{Activation, GemmLayout, GemmOptions};
///
/// // A linear layer: weights stored n x k, a GELU behind the product.
/// let options = GemmOptions { activation: Activation::Gelu, ..GemmOptions::new(GemmLayout::Nt) };
/// options.check()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GemmOptions {
    /// How A and B are stored.
    pub layout: GemmLayout,
    /// What the product is multiplied by. With 0, neither A and B nor their scales are read, as in BLAS: NaN and
    /// infinity in them do not reach D.
    pub alpha: f32,
    /// What C is multiplied by. With 0, C is not read; otherwise it must be there.
    pub beta: f32,
    /// What is applied to each element before it is rounded.
    pub activation: Activation,
    /// How exactly FP8 products are summed at least, by accumulators of 13 bits on some cards ([`Accumulation`]): a
    /// kernel that sums them more exactly may run.
    pub accumulation: Accumulation,
    /// The kernel to run, by name; `None` picks one by the sizes.
    pub kernel: Option<String>,
    /// The splits of k, each summed by blocks of its own; `None` picks by the sizes.
    pub splits: Option<usize>,
    /// Whether each kernel starts only when what is before it on the stream has ended. Otherwise, on sm_90, a kernel
    /// starts while the one before still runs, and waits for its results before it reads or writes anything.
    pub isolated: bool,
    /// The most workspace that a plan may ask for. With 0 k is not split, and operands that would have to be
    /// copied first are refused where there is no other way.
    pub max_workspace_bytes: usize,
}

impl GemmOptions {
    /// `D = A B` without workspace.
    #[must_use]
    pub const fn new(layout: GemmLayout) -> Self {
        Self {
            layout,
            alpha: 1.0,
            beta: 0.0,
            activation: Activation::None,
            accumulation: Accumulation::TwoLevel,
            kernel: None,
            splits: None,
            isolated: false,
            max_workspace_bytes: 0,
        }
    }

    /// Whether products take these numbers; [`GemmPlan::new`](crate::GemmPlan::new) checks it too. Needs no card. The
    /// named kernel is not looked at.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) that names the option and what is allowed.
    pub fn check(&self) -> Result<()> {
        for (name, factor) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !factor.is_finite() {
                return Err(argument(OP, name, factor, "a finite number"));
            }
        }
        if self.splits == Some(0) {
            return Err(argument(OP, "splits", 0, "at least 1, or none"));
        }
        Ok(())
    }
}
