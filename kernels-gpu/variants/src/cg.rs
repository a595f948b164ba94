//! Conjugate gradient for `A x = b`, all systems of all frames and channels at once: the state of a system, the
//! argument struct and the table of kernels.
//!
//! The kernels are part of the device crate `ata`, with whose product they alternate: an iteration is `q = A p`, then
//! [`CgStage::Step`]. One thread block does all that is to be done for one system. The vectors x, r, p and q lie in
//! memory of the solver, each system's at a multiple of [`CgArgs::row_elems`], with zeros beyond n.
//!
//! The method carries a residual along. It drifts from the true residual `b - A x`, by rounding and by what the
//! precision of the products makes of A. So a system [waits](CgStatus::Waiting) where the carried residual is small: at
//! the tolerance, or against the largest since the two residuals were last equal. [`CgStage::Replace`] then puts the
//! true residual in its place (van der Vorst and Ye 2000, Sleijpen and van der Vorst 1996). What a system does depends
//! on its own numbers alone: while it waits nothing of it changes, however long that is.

use core::fmt;

use layout::Arch;
use layout::smem::{SmemLayout, SmemRegion};
use layout::text::same_text;

use crate::ata::{AtaStrides, BLOCK};

/// Elements of one load or store of a thread; rows of the solver's vectors are a multiple of it.
pub const GROUP: usize = 4;

/// Words of the state of a system in memory.
pub const STATE_WORDS: usize = 16;

/// Rows of vectors start at a multiple of it: a block of A, whose part of r the preconditioner takes as a whole.
pub const ROW_ALIGN: usize = BLOCK;

/// For the method to have made progress, the square of the residual must fall to this share of what it was when the
/// residual was last the true one: three quarters of the norm.
pub const PROGRESS: f64 = 0.5625;

/// The share of the square of the last true residual that the carried one has fallen to before progress is judged: half
/// of the norm.
pub const JUDGED: f64 = 0.25;

/// Directions are kept while the difference of carried and true residual is small: while its square is at most this
/// share of the square of the true residual, a tenth of the norm. Beyond that the method starts again from the true
/// residual.
pub const PARTED: f64 = 0.01;

/// Whether a system goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CgStatus {
    /// It has not converged yet.
    #[default]
    Active,
    /// The true residual is at most the tolerance times the norm of b.
    Converged,
    /// `p^T A p` was 0 or less: A is not positive definite.
    NotPositiveDefinite,
    /// A norm or `p^T A p` is NaN or infinite.
    NotFinite,
    /// It waits for its true residual.
    Waiting,
    /// The true residual falls no further, whatever the carried one does.
    Stagnated,
}

impl CgStatus {
    const fn of_word(word: u32) -> Self {
        match word {
            0 => CgStatus::Active,
            1 => CgStatus::Converged,
            2 => CgStatus::NotPositiveDefinite,
            3 => CgStatus::NotFinite,
            4 => CgStatus::Waiting,
            _ => CgStatus::Stagnated,
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
    /// How often the carried residual was at the tolerance and the true one was not.
    pub refuted: u32,
    /// The square of the norm of the carried residual; of the true one where it has just been put in its place.
    pub residual: f64,
    /// The square of the norm of b.
    pub norm: f64,
    /// `p^T A p` where it stopped the iteration.
    pub curvature: f64,
    /// `r^T z`, where z is r as the preconditioner makes it; of the r before while it waits.
    pub scaled: f64,
    /// The largest square of the carried residual since it was last the true one.
    pub peak: f64,
    /// The least square of a true residual.
    pub reached: f64,
}

impl CgState {
    /// The words in memory.
    pub const fn encode(self) -> [u32; STATE_WORDS] {
        const fn low(number: f64) -> u32 {
            number.to_bits() as u32
        }
        const fn high(number: f64) -> u32 {
            (number.to_bits() >> 32) as u32
        }
        [
            self.status as u32,
            self.iterations,
            self.refuted,
            0,
            low(self.residual),
            high(self.residual),
            low(self.norm),
            high(self.norm),
            low(self.curvature),
            high(self.curvature),
            low(self.scaled),
            high(self.scaled),
            low(self.peak),
            high(self.peak),
            low(self.reached),
            high(self.reached),
        ]
    }

    /// The state that these words stand for.
    pub const fn decode(words: [u32; STATE_WORDS]) -> Self {
        const fn double(words: [u32; STATE_WORDS], first: usize) -> f64 {
            f64::from_bits((words[first + 1] as u64) << 32 | words[first] as u64)
        }
        CgState {
            status: CgStatus::of_word(words[0]),
            iterations: words[1],
            refuted: words[2],
            residual: double(words, 4),
            norm: double(words, 6),
            curvature: double(words, 8),
            scaled: double(words, 10),
            peak: double(words, 12),
            reached: double(words, 14),
        }
    }

    /// The square of the carried residual at which the system waits for the true one. Where the two have parted at the
    /// tolerance once, it is half of it: what is left of the difference has room.
    #[inline(always)]
    pub const fn target(&self, tolerance: f64) -> f64 {
        let at_tolerance = tolerance * tolerance * self.norm;
        if self.refuted > 0 { JUDGED * at_tolerance } else { at_tolerance }
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
    /// Device address of the products: of A with the guess (start), with p (step) or with x (replace),
    /// `[systems][row_elems]`.
    pub q: u64,
    /// Device address of the states, [`STATE_WORDS`] a system.
    pub states: u64,
    /// Device address of the preconditioner, the inverses of the blocks of the main diagonal,
    /// `[channels][row_elems / 16][16][16]`; 0 where the kernels take none.
    pub inverses: u64,
    /// Strides of b.
    pub b_strides: AtaStrides,
    /// Strides of the guess.
    pub guess_strides: AtaStrides,
    /// Strides of the result.
    pub out_strides: AtaStrides,
    /// The largest norm of the residual, as a share of that of b.
    pub tolerance: f64,
    /// The share of [`CgState::peak`] at which a system waits for its true residual.
    pub replaced_at: f64,
    /// The most iterations.
    pub max_iterations: u32,
    /// Channels: system s is frame `s / channels` and channel `s % channels`.
    pub channels: u32,
    /// Rows of A.
    pub n: u32,
    /// Elements from one system's row to the next in x, r, p and q: n rounded up to [`ROW_ALIGN`].
    pub row_elems: u32,
}

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CgStage {
    /// `r = b - A x` and p, from a guess or x = 0.
    Start,
    /// After `q = A p`: moves x along p, and makes the next p.
    Step,
    /// After `q = A x`, for systems that wait and those without iterations left: the true residual, the verdict on it,
    /// and the next p.
    Replace,
    /// x where the caller wants it.
    Finish,
}

/// One compiled kernel: a thread block a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CgConfig {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// What it does.
    pub stage: CgStage,
    /// Whether directions come of r times the inverses of the diagonal blocks, and not of r.
    pub preconditioned: bool,
    /// Warps of a thread block.
    pub warps: usize,
}

impl CgConfig {
    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.warps as u32
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        Arch::Sm80.limits().registers / self.threads()
    }

    /// The map of dynamic shared memory: `sums`, an f64 a warp, a stage for each of the sums of a kernel.
    pub const fn smem(&self) -> SmemLayout {
        SmemLayout::new().stages("sums", 3, (self.warps * size_of::<f64>()) as u32, 8)
    }

    /// The sums of the warps in shared memory.
    pub const fn sums(&self) -> SmemRegion {
        self.smem().get("sums")
    }
}

impl fmt::Display for CgConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Position of the configuration called `name` in [`CG`]; does not compile (in a constant) where there is none.
pub const fn config_index(name: &str) -> usize {
    let mut index = 0;
    while index < CG.len() {
        if same_text(CG[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of CG has this name")
}

/// The kernel of a stage. The last one, which copies, is the same with a preconditioner and without.
pub fn of_stage(stage: CgStage, preconditioned: bool) -> &'static CgConfig {
    let rows = || CG.iter().filter(move |config| config.stage as u8 == stage as u8);
    rows()
        .find(|config| config.preconditioned == preconditioned)
        .or_else(|| rows().next())
        .expect("every stage has a config")
}

const fn config(name: &'static str, stage: CgStage, preconditioned: bool) -> CgConfig {
    CgConfig { name, stage, preconditioned, warps: if preconditioned { 16 } else { 32 } }
}

/// Every kernel of the solver.
///
/// 32 warps: up to n = 4096 a thread has at most one group of each vector, so that every vector is read once, with all
/// loads in flight together. With a preconditioner 16 warps, whose threads have registers for the loads of the
/// preconditioner.
pub const CG: &[CgConfig] = &[
    config("cg_start", CgStage::Start, false),
    config("cg_start_block_jacobi", CgStage::Start, true),
    config("cg_step", CgStage::Step, false),
    config("cg_step_block_jacobi", CgStage::Step, true),
    config("cg_replace", CgStage::Replace, false),
    config("cg_replace_block_jacobi", CgStage::Replace, true),
    config("cg_finish", CgStage::Finish, false),
];

/// A configuration whose threads or shared memory do not fit does not compile. The sums of the warps are added by one
/// warp, a lane each, and a block of A is of lanes of one warp.
const _: () = {
    let mut index = 0;
    while index < CG.len() {
        let config = &CG[index];
        assert!(config.warps >= 1 && config.warps <= 32);
        let _ = config.smem().assert_fits(Arch::Sm89);
        index += 1;
    }
    assert!(ROW_ALIGN.is_multiple_of(GROUP) && (32 * GROUP).is_multiple_of(BLOCK));
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_they_are_written() {
        use CgStatus::{Active, Converged, NotFinite, NotPositiveDefinite, Stagnated, Waiting};
        let all = [Active, Converged, NotPositiveDefinite, NotFinite, Waiting, Stagnated];
        for (iterations, status) in all.into_iter().enumerate() {
            let state = CgState {
                status,
                iterations: iterations as u32,
                refuted: 7,
                residual: 1e-300,
                norm: 1.5,
                curvature: -2.5e200,
                scaled: 3.0,
                peak: 1e30,
                reached: 0.125,
            };
            assert_eq!(CgState::decode(state.encode()), state);
        }
        // Memory of zeros is a system at its start.
        assert_eq!(CgState::default().encode(), [0; STATE_WORDS]);
    }

    #[test]
    fn rows_are_found_by_name_and_by_stage() {
        for (index, config) in CG.iter().enumerate() {
            assert_eq!((config_index(config.name), of_stage(config.stage, config.preconditioned)), (index, config));
        }
        assert_eq!(of_stage(CgStage::Finish, true).name, "cg_finish");
    }
}
