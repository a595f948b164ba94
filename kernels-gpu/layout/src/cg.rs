//! Conjugate gradient for `A x = b`, all systems of all frames and channels at once: the state of a system, the
//! argument struct and the table of kernels.
//!
//! The kernels are part of the device crate `ata`, with whose product they take turns: an iteration is `q = A p`, then
//! [`CgStage::Step`]. One thread block does all that is to be done for one system. The vectors x, r, p and q lie in
//! memory of the solver, each system's at a multiple of [`CgArgs::row_elems`], with zeros beyond n.

use core::fmt;

use crate::Arch;
use crate::ata::AtaStrides;
use crate::smem::{SmemLayout, SmemRegion};
use crate::text::same_text;

/// Elements of one load or store of a thread; rows of the solver's vectors are a multiple of it.
pub const GROUP: usize = 4;

/// Words of the state of a system in memory.
pub const STATE_WORDS: usize = 8;

/// Whether a system goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CgStatus {
    /// It has not converged yet.
    #[default]
    Active,
    /// The residual is at most the tolerance times the norm of b.
    Converged,
    /// `p^T A p` was 0 or less: A is not positive definite.
    NotPositiveDefinite,
    /// A norm or `p^T A p` is NaN or infinite.
    NotFinite,
}

impl CgStatus {
    const fn of_word(word: u32) -> Self {
        match word {
            0 => CgStatus::Active,
            1 => CgStatus::Converged,
            2 => CgStatus::NotPositiveDefinite,
            _ => CgStatus::NotFinite,
        }
    }
}

/// What is known of one system.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CgState {
    /// Whether it goes on.
    pub status: CgStatus,
    /// Iterations done.
    pub iterations: u32,
    /// The square of the norm of the residual.
    pub residual: f64,
    /// The square of the norm of b.
    pub norm: f64,
    /// `p^T A p` where it stopped the iteration.
    pub curvature: f64,
}

impl CgState {
    /// The words in memory.
    pub const fn encode(self) -> [u32; STATE_WORDS] {
        let [residual, norm, curvature] = [self.residual.to_bits(), self.norm.to_bits(), self.curvature.to_bits()];
        [
            self.status as u32,
            self.iterations,
            residual as u32,
            (residual >> 32) as u32,
            norm as u32,
            (norm >> 32) as u32,
            curvature as u32,
            (curvature >> 32) as u32,
        ]
    }

    /// The state that these words stand for.
    pub const fn decode(words: [u32; STATE_WORDS]) -> Self {
        const fn double(low: u32, high: u32) -> f64 {
            f64::from_bits((high as u64) << 32 | low as u64)
        }
        let [status, iterations, r0, r1, n0, n1, c0, c1] = words;
        CgState {
            status: CgStatus::of_word(status),
            iterations,
            residual: double(r0, r1),
            norm: double(n0, n1),
            curvature: double(c0, c1),
        }
    }
}

/// The one parameter of every kernel of the solver.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CgArgs {
    /// Device address of b, f32 `[frames, channels, n]`.
    pub b: u64,
    /// Device address of the first x, f32 `[frames, channels, n]`; 0 for zeros.
    pub guess: u64,
    /// Device address of the result, f32 `[frames, channels, n]`.
    pub out: u64,
    /// Device address of x, `[systems][row_elems]`.
    pub x: u64,
    /// Device address of the residuals, `[systems][row_elems]`.
    pub r: u64,
    /// Device address of the directions, `[systems][row_elems]`.
    pub p: u64,
    /// Device address of the products: of A with the guess (start), with p (step) or with x (finish),
    /// `[systems][row_elems]`.
    pub q: u64,
    /// Device address of the states, [`STATE_WORDS`] a system.
    pub states: u64,
    /// Strides of b.
    pub b_strides: AtaStrides,
    /// Strides of the guess.
    pub guess_strides: AtaStrides,
    /// Strides of the result.
    pub out_strides: AtaStrides,
    /// The largest norm of the residual, as a share of that of b.
    pub tolerance: f64,
    /// The most iterations.
    pub max_iterations: u32,
    /// Channels: system s is frame `s / channels` and channel `s % channels`.
    pub channels: u32,
    /// Rows of A.
    pub n: u32,
    /// Elements from one system's row to the next in x, r, p and q: n rounded up to [`GROUP`].
    pub row_elems: u32,
}

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CgStage {
    /// `r = p = b - A x`, from a guess or x = 0.
    Start,
    /// After `q = A p`: moves x along p, and makes the next p.
    Step,
    /// After `q = A x`: the residual `b - A x`, and x where the caller wants it.
    Finish,
}

/// One compiled kernel: a thread block a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CgVariant {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// What it does.
    pub stage: CgStage,
    /// Warps of a thread block.
    pub warps: usize,
}

impl CgVariant {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps as u32
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        Arch::Sm80.limits().registers / self.threads()
    }

    /// The map of dynamic shared memory: `sums`, an f64 a warp, a stage for each of the two sums of a kernel.
    pub const fn smem(&self) -> SmemLayout {
        SmemLayout::new().stages("sums", 2, (self.warps * size_of::<f64>()) as u32, 8)
    }

    /// The sums of the warps in shared memory.
    pub const fn sums(&self) -> SmemRegion {
        self.smem().get("sums")
    }
}

impl fmt::Display for CgVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Position of the row called `name` in [`CG`]; does not compile (in a constant) where there is none.
pub const fn row_index(name: &str) -> usize {
    let mut index = 0;
    while index < CG.len() {
        if same_text(CG[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no row of CG has this name")
}

/// The kernel of a stage.
pub const fn of_stage(stage: CgStage) -> &'static CgVariant {
    &CG[stage as usize]
}

/// Every kernel of the solver, in the order of [`CgStage`].
///
/// 32 warps: up to n = 4096 a thread has at most one group of each vector, so that every vector is read once, with all
/// loads in flight together.
pub const CG: &[CgVariant] = &[
    CgVariant { name: "cg_start", stage: CgStage::Start, warps: 32 },
    CgVariant { name: "cg_step", stage: CgStage::Step, warps: 32 },
    CgVariant { name: "cg_finish", stage: CgStage::Finish, warps: 32 },
];

/// A row that is out of place, or whose threads or shared memory do not fit, does not compile. The sums of the warps
/// are added by one warp, a lane each.
const _: () = {
    let mut index = 0;
    while index < CG.len() {
        let row = &CG[index];
        assert!(row.stage as usize == index && row.warps >= 1 && row.warps <= 32);
        let _ = row.smem().assert_fits(Arch::Sm89);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_they_are_written() {
        use CgStatus::{Active, Converged, NotFinite, NotPositiveDefinite};
        for (iterations, status) in [Active, Converged, NotPositiveDefinite, NotFinite].into_iter().enumerate() {
            let state =
                CgState { status, iterations: iterations as u32, residual: 1e-300, norm: 1.5, curvature: -2.5e200 };
            assert_eq!(CgState::decode(state.encode()), state);
        }
        // Memory of zeros is a system at its start.
        assert_eq!(CgState::default().encode(), [0; STATE_WORDS]);
    }

    #[test]
    fn rows_are_found_by_name_and_by_stage() {
        for (index, row) in CG.iter().enumerate() {
            assert_eq!((row_index(row.name), of_stage(row.stage)), (index, row));
        }
    }
}
