//! Products of a warpgroup with any number of steps along K up to 16: groups of 8, 4, 2 and 1 steps, one after the
//! other.

use cuda_std::ptx::wgmma::{self, Accumulator, Product};
use cuda_std::shared::SharedAddr;
use layout::SmemRegion;
use layout::descriptor::Descriptor;

use crate::input::Input;

/// The groups that a product of so many steps is made of.
pub(crate) const fn groups(steps: usize) -> u32 {
    (steps / 8) as u32 + (steps % 8).count_ones()
}

/// The steps of the first group.
const fn first_group(steps: usize) -> usize {
    if steps >= 8 { 8 } else { 1 << steps.ilog2() }
}

/// `LEN` of the fragments of A, from `first` on.
#[inline(always)]
const fn part<const STEPS: usize, const LEN: usize>(a: &[[u32; 4]; STEPS], first: usize) -> &[[u32; 4]; LEN] {
    match a.split_at(first).1.first_chunk() {
        Some(part) => part,
        None => panic!("groups end with the steps"),
    }
}

/// Starts D = A B with A and B in shared memory.
///
/// # Safety
/// As [`wgmma::product`].
#[inline(always)]
pub(crate) unsafe fn product<P: Product, D: Accumulator, const STEPS: usize>(a: Descriptor, b: Descriptor) -> D {
    // SAFETY: the caller's contract; a later group starts where the one before ends.
    unsafe {
        let mut d = match const { first_group(STEPS) } {
            8 => wgmma::product::<P, D, 8>(a, b),
            4 => wgmma::product::<P, D, 4>(a, b),
            2 => wgmma::product::<P, D, 2>(a, b),
            _ => wgmma::product::<P, D, 1>(a, b),
        };
        let at = |step: usize| {
            let step = step as u32;
            (a.offset(P::A.k_step_offset_bytes(step)), b.offset(P::B.k_step_offset_bytes(step)))
        };
        let mut done = const { first_group(STEPS) };
        if STEPS - done >= 8 {
            let (a, b) = at(done);
            wgmma::mma_async::<P, D, 8>(&mut d, a, b, true);
            done += 8;
        }
        if STEPS - done >= 4 {
            let (a, b) = at(done);
            wgmma::mma_async::<P, D, 4>(&mut d, a, b, true);
            done += 4;
        }
        if STEPS - done >= 2 {
            let (a, b) = at(done);
            wgmma::mma_async::<P, D, 2>(&mut d, a, b, true);
            done += 2;
        }
        if STEPS - done >= 1 {
            let (a, b) = at(done);
            wgmma::mma_async::<P, D, 1>(&mut d, a, b, true);
        }
        d
    }
}

/// Starts D = A B with A in registers.
///
/// # Safety
/// As [`wgmma::product_registers`].
#[inline(always)]
pub(crate) unsafe fn product_registers<P: Product, D: Accumulator, const STEPS: usize>(
    a: &[[u32; 4]; STEPS],
    b: Descriptor,
) -> D {
    // SAFETY: the caller's contract.
    unsafe {
        let mut d = match const { first_group(STEPS) } {
            8 => wgmma::product_registers::<P, D, 8>(part(a, 0), b),
            4 => wgmma::product_registers::<P, D, 4>(part(a, 0), b),
            2 => wgmma::product_registers::<P, D, 2>(part(a, 0), b),
            _ => wgmma::product_registers::<P, D, 1>(part(a, 0), b),
        };
        accumulate_from::<P, D, STEPS>(&mut d, a, b, const { first_group(STEPS) });
        d
    }
}

/// Starts D = A B + D with A in registers.
///
/// # Safety
/// As [`wgmma::mma_async_registers`].
#[inline(always)]
pub(crate) unsafe fn accumulate<P: Product, D: Accumulator, const STEPS: usize>(
    d: &mut D,
    a: &[[u32; 4]; STEPS],
    b: Descriptor,
) {
    // SAFETY: the caller's contract.
    unsafe { accumulate_from::<P, D, STEPS>(d, a, b, 0) }
}

/// Starts D = A B, or D = A B + D where `accumulates`, with A in registers.
///
/// # Safety
/// As [`wgmma::mma_async_registers`].
#[inline(always)]
pub(crate) unsafe fn start_or_accumulate<P: Product, D: Accumulator, const STEPS: usize>(
    d: &mut D,
    a: &[[u32; 4]; STEPS],
    b: Descriptor,
    accumulates: bool,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match const { first_group(STEPS) } {
            8 => wgmma::mma_async_registers::<P, D, 8>(d, part(a, 0), b, accumulates),
            4 => wgmma::mma_async_registers::<P, D, 4>(d, part(a, 0), b, accumulates),
            2 => wgmma::mma_async_registers::<P, D, 2>(d, part(a, 0), b, accumulates),
            _ => wgmma::mma_async_registers::<P, D, 1>(d, part(a, 0), b, accumulates),
        }
        accumulate_from::<P, D, STEPS>(d, a, b, const { first_group(STEPS) });
    }
}

/// The groups from step `done` on.
///
/// # Safety
/// As [`accumulate`].
#[inline(always)]
unsafe fn accumulate_from<P: Product, D: Accumulator, const STEPS: usize>(
    d: &mut D,
    a: &[[u32; 4]; STEPS],
    b: Descriptor,
    mut done: usize,
) {
    let at = |step: usize| b.offset(P::B.k_step_offset_bytes(step as u32));
    // SAFETY: the caller's contract; a later group starts where the one before ends.
    unsafe {
        while STEPS - done >= 8 {
            wgmma::mma_async_registers::<P, D, 8>(d, part(a, done), at(done), true);
            done += 8;
        }
        if STEPS - done >= 4 {
            wgmma::mma_async_registers::<P, D, 4>(d, part(a, done), at(done), true);
            done += 4;
        }
        if STEPS - done >= 2 {
            wgmma::mma_async_registers::<P, D, 2>(d, part(a, done), at(done), true);
            done += 2;
        }
        if STEPS - done >= 1 {
            wgmma::mma_async_registers::<P, D, 1>(d, part(a, done), at(done), true);
        }
    }
}

/// Waits for the product `d`, started before one of `LATER_STEPS` steps, which goes on.
///
/// # Safety
/// As [`wgmma::wait_group`].
#[inline(always)]
pub(crate) unsafe fn wait_before<D: Accumulator, const LATER_STEPS: usize>(d: &mut D) {
    // SAFETY: the caller's contract.
    unsafe {
        match const { groups(LATER_STEPS) } {
            1 => wgmma::wait_group::<1, D>(d),
            2 => wgmma::wait_group::<2, D>(d),
            _ => wgmma::wait_group::<3, D>(d),
        }
    }
}

/// The descriptor of a stage, from that of the first one as an offset.
#[inline(always)]
pub(crate) fn stage_descriptor(first: Descriptor, region: SmemRegion, base: SharedAddr, stage: u32) -> Descriptor {
    first.offset(base.as_raw() + stage * region.stage_stride_bytes())
}

/// Probabilities as fragments of operand A.
#[inline(always)]
pub(crate) fn pack<E: Input, const SCORES: usize, const KEY_STEPS: usize>(
    scores: &[f32; SCORES],
) -> [[u32; 4]; KEY_STEPS] {
    let mut fragments = [[0; 4]; KEY_STEPS];
    let of_step = const { SCORES / KEY_STEPS };
    for step in 0..KEY_STEPS {
        fragments[step] = E::pack(&scores[of_step * step..][..of_step]);
    }
    fragments
}
