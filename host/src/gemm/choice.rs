//! Which configuration computes a product, with how many splits of k, and what is copied before.
//!
//! What can run and what ought to are two questions: [`candidates`] answers the first, [`preferred`] the second, by an
//! estimate of the cycles that each takes.

use layout::descriptor::Major;
use layout::{Arch, Dtype};
use variants::gemm::{Accumulation, GEMM, GemmConfig, GemmLayout, GemmUnit, PackKernel, REDUCE_SPLIT_K, partial_row};

use super::options::GemmOptions;
use super::problem::GemmProblem;
use crate::runtime::module::KernelName;

/// What addresses in the workspace are multiples of.
const WORKSPACE_ALIGN: usize = 256;

/// Parts that k can be cut into.
const SPLITS: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

/// The names of the kernels that multiply these types and sum them at least as exactly, whatever layout they
/// take: what [`GemmOptions::kernel`] may name.
///
/// ```
/// use ferrotile::{Accumulation, Dtype, gemm_kernels};
///
/// assert!(gemm_kernels(Dtype::F16, Dtype::F16, Accumulation::TwoLevel).count() > 0);
/// ```
pub fn gemm_kernels(a: Dtype, b: Dtype, accumulation: Accumulation) -> impl Iterator<Item = KernelName> {
    GEMM.iter().filter(move |config| config.multiplies(a, b, accumulation)).map(|config| KernelName::new(config.name))
}

/// One way to compute a product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    /// The configuration.
    pub(super) config: &'static GemmConfig,
    /// Whether A and B are copied first, with contiguous k and aligned rows.
    pub(super) packs: [bool; 2],
    /// Parts of k.
    pub(super) splits: usize,
    /// Elements of k of each split but the last.
    pub(super) split_k: usize,
    /// Blocks of its grid.
    pub(super) blocks: u32,
    /// Where in the workspace the copies and the partial sums start, and its end.
    pub(super) offsets: [usize; 4],
}

impl Choice {
    /// The choice for these sizes; `None` where a grid or the workspace is too large to count.
    fn new(config: &'static GemmConfig, packs: [bool; 2], splits: usize, problem: &GemmProblem) -> Option<Self> {
        let GemmProblem { batch, m, n, k, .. } = *problem;
        let k_tiles = k.div_ceil(config.tile.k).max(1);
        let tiles_per_split = k_tiles.div_ceil(splits);
        // Every split has elements: fewer splits are as good as empty ones.
        let used = k_tiles.div_ceil(tiles_per_split);
        if used != splits {
            return None;
        }
        let blocks = config.schedule(batch, m, n, splits)?.1;
        let packed_bytes = |pack: bool, mn: usize, dtype: Dtype| {
            if !pack {
                return Some(0);
            }
            let kernel = PackKernel::of(dtype);
            let _ = kernel.blocks(batch, mn, k)?;
            batch.checked_mul(mn)?.checked_mul(kernel.packed_k(k))?.checked_mul(dtype.size_bytes())
        };
        let partial_bytes = if splits > 1 {
            let _ = REDUCE_SPLIT_K.blocks(batch, m, n)?;
            let rows = splits.checked_mul(batch)?.checked_mul(m)?;
            rows.checked_mul(partial_row(n as u32) as usize)?.checked_mul(size_of::<f32>())?
        } else {
            0
        };
        let mut offsets = [0_usize; 4];
        let parts = [packed_bytes(packs[0], m, problem.a)?, packed_bytes(packs[1], n, problem.b)?, partial_bytes];
        for (index, bytes) in parts.into_iter().enumerate() {
            offsets[index + 1] = offsets[index].checked_add(bytes.checked_next_multiple_of(WORKSPACE_ALIGN)?)?;
        }
        Some(Self { config, packs, splits, split_k: tiles_per_split * config.tile.k, blocks, offsets })
    }

    /// The workspace that it needs.
    pub(super) const fn workspace_bytes(&self) -> usize {
        self.offsets[3]
    }

    /// How long it takes, in cycles.
    ///
    /// The blocks of one multiprocessor share its rate; too few blocks do not reach it. Each round of blocks pays for
    /// filling and emptying its pipeline. Copies and the sums of splits run at the speed of the memory. The constants
    /// are rounded measurements on an H100.
    fn cycles(&self, problem: &GemmProblem, multiprocessors: u32) -> f64 {
        const ROUND: f64 = 2000.0;
        const LAUNCH: f64 = 3000.0;
        const BYTES_PER_CYCLE: f64 = 1500.0;
        let GemmProblem { batch, m, n, k, .. } = *problem;
        let tile = self.config.tile;
        let k_tiles = (self.split_k.min(k.max(1))).div_ceil(tile.k) as f64;
        let block = (tile.m * tile.n * tile.k) as f64 * k_tiles / f64::from(self.config.products_per_cycle);
        let on_one = f64::from(self.blocks.div_ceil(multiprocessors).max(self.config.min_blocks));
        let rounds = f64::from(self.blocks.div_ceil(multiprocessors * self.config.min_blocks));
        let mut cycles = on_one * block + rounds * ROUND;
        for (pack, mn, dtype) in [(self.packs[0], m, problem.a), (self.packs[1], n, problem.b)] {
            if pack {
                cycles += LAUNCH + 2.0 * (batch * mn * k * dtype.size_bytes()) as f64 / BYTES_PER_CYCLE;
            }
        }
        if self.splits > 1 {
            cycles += LAUNCH + 2.0 * (self.offsets[3] - self.offsets[2]) as f64 / BYTES_PER_CYCLE;
        }
        cycles
    }
}

/// Every way to compute the product on `arch`, within the workspace.
pub(super) fn candidates(problem: &GemmProblem, options: &GemmOptions, arch: Arch) -> impl Iterator<Item = Choice> {
    let (problem, layout, most) = (*problem, options.layout, options.max_workspace_bytes);
    let (accumulation, splits) = (options.accumulation, options.splits);
    GEMM.iter()
        .filter(move |config| config.is_in(arch) && config.multiplies(problem.a, problem.b, accumulation))
        .filter_map(move |config| {
            let packs = packs(config, &problem, layout)?;
            let splits = splits.map_or_else(|| SPLITS.to_vec(), |splits| vec![splits]);
            Some(splits.into_iter().filter_map(move |splits| Choice::new(config, packs, splits, &problem)))
        })
        .flatten()
        .filter(move |choice| choice.workspace_bytes() <= most)
}

/// Whether A and B must be copied before the configuration takes them; `None` where it does not take them then either.
/// What is copied has contiguous k and aligned rows, and is copied only where it has to be.
fn packs(config: &GemmConfig, problem: &GemmProblem, layout: GemmLayout) -> Option<[bool; 2]> {
    if config.unit == GemmUnit::Wgmma && problem.k == 0 {
        // A tensor map of nothing does not exist.
        return None;
    }
    [[false, false], [true, false], [false, true], [true, true]].into_iter().find(|&[pack_a, pack_b]| {
        let awkward = |aligned: bool, major: Major| !aligned || (problem.a.size_bytes() == 1 && major == Major::Mn);
        let allowed =
            (!pack_a || awkward(problem.a_aligned, layout.a())) && (!pack_b || awkward(problem.b_aligned, layout.b()));
        let a = if pack_a { Major::K } else { layout.a() };
        let b = if pack_b { Major::K } else { layout.b() };
        let aligned = (pack_a || problem.a_aligned) && (pack_b || problem.b_aligned);
        allowed && config.takes(GemmLayout::of(a, b), aligned)
    })
}

/// The way that is expected to be fastest; the first of equals.
pub(super) fn preferred(
    choices: impl Iterator<Item = Choice>,
    problem: &GemmProblem,
    multiprocessors: u32,
) -> Option<Choice> {
    let cost = |choice: &Choice| choice.cycles(problem, multiprocessors);
    choices.min_by(|one, other| cost(one).total_cmp(&cost(other)))
}

/// The least workspace with which some kernel multiplies the operands; `None` where none does.
pub(super) fn least_workspace(problem: &GemmProblem, options: &GemmOptions, arch: Arch) -> Option<usize> {
    let unlimited = GemmOptions { max_workspace_bytes: usize::MAX, ..options.clone() };
    candidates(problem, &unlimited, arch).map(|choice| choice.workspace_bytes()).min()
}

/// The oldest architecture that multiplies these types, where `arch` does not.
pub(super) fn missing(problem: &GemmProblem, accumulation: Accumulation, arch: Arch) -> Option<Arch> {
    let serves =
        |arch| GEMM.iter().any(|config| config.is_in(arch) && config.multiplies(problem.a, problem.b, accumulation));
    if serves(arch) { None } else { Arch::ALL.into_iter().find(|&arch| serves(arch)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem([m, n, k]: [usize; 3]) -> GemmProblem {
        GemmProblem::new([m, n, k], Dtype::F16, Dtype::F16, Dtype::F16)
    }

    fn options(layout: GemmLayout, max_workspace_bytes: usize) -> GemmOptions {
        GemmOptions { max_workspace_bytes, ..GemmOptions::new(layout) }
    }

    #[test]
    fn aligned_and_misaligned_problems_have_candidates_without_workspace() {
        for (layout, aligned) in GemmLayout::ALL.into_iter().flat_map(|layout| [(layout, true), (layout, false)]) {
            let problem = GemmProblem { a_aligned: aligned, ..problem([100, 200, 300]) };
            let choices: Vec<Choice> = candidates(&problem, &options(layout, 0), Arch::Sm80).collect();
            assert!(!choices.is_empty(), "{layout} {aligned}");
            assert!(choices.iter().all(|choice| choice.splits == 1 && choice.packs == [false, false]));
        }
    }

    #[test]
    fn parts_of_k_are_never_empty() {
        for k in [1, 32, 33, 1000, 4096] {
            for choice in candidates(&problem([64, 64, k]), &options(GemmLayout::Nn, usize::MAX), Arch::Sm80) {
                assert!(choice.split_k * (choice.splits - 1) < k.max(1), "{choice:?}");
                assert!(choice.split_k * choice.splits >= k, "{choice:?}");
            }
        }
    }

    #[test]
    fn fp8_needs_contiguous_k_or_a_copy() {
        let problem = GemmProblem::new([64, 64, 64], Dtype::E4M3, Dtype::E4M3, Dtype::F16);
        assert_eq!(least_workspace(&problem, &options(GemmLayout::Nt, 0), Arch::Sm89), Some(0));
        assert_eq!(least_workspace(&problem, &options(GemmLayout::Nn, 0), Arch::Sm89), Some(64 * 64));
        assert_eq!(least_workspace(&problem, &options(GemmLayout::Nt, 0), Arch::Sm80), None);
    }

    #[test]
    fn few_tiles_are_cut_along_k_and_many_are_not() {
        let choose = |shape: [usize; 3]| {
            let (problem, options) = (problem(shape), options(GemmLayout::Nt, 64 << 20));
            preferred(candidates(&problem, &options, Arch::Sm80), &problem, 132)
                .expect("a configuration serves the product")
        };
        assert!(choose([16, 4096, 4096]).splits > 1);
        let large = choose([4096, 4096, 4096]);
        assert_eq!((large.splits, large.config.tile.m), (1, 128));
    }
}
