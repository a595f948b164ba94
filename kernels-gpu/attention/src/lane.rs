//! This thread in its warp and its block, numbers that a warp shares, and division.

use cuda_std::hint::opaque;
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, warp_shuffle_idx};

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// The number that the first lane of the warp has: what lanes do together depends on it, and each may have read
/// another.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
pub(crate) unsafe fn warp_uniform(number: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { warp_shuffle_idx(FULL_MASK, number, 0, LANES).0 }
}

/// This thread's lane in its warp.
///
/// The number is opaque at each call, as [`warp`] is. So values derived from it are computed where they are used, and
/// take no registers through the loop over the keys.
#[inline(always)]
pub fn lane() -> u32 {
    opaque(thread::thread_idx_x()) % LANES
}

/// This thread's warp in its block.
#[inline(always)]
pub fn warp() -> u32 {
    opaque(thread::thread_idx_x()) / LANES
}

/// Quotient and remainder for a divisor that is not 0; without the panic call that a plain `/` links.
///
/// A division takes 100 cycles, and on sm_90a the first tile waits for it. So it is skipped there for one batch entry,
/// or as many heads of keys as of queries. Elsewhere the branches would cost registers that the configurations lack.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    if cfg!(target_feature = "sm_90a") {
        if dividend < divisor {
            return (0, dividend);
        }
        if divisor == 1 {
            return (dividend, 0);
        }
    }
    // SAFETY: the divisors are row blocks, query heads and heads per key-value head of a launched grid: not 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
