//! Descale factors: what elements of FP8 tensors, and of 8-bit integers, are multiplied by.

use cuda_std::global;
use variants::attention::{DescaleArgs, DescaleTensor};

use crate::lane::div_rem;

/// The factor of a head of a batch entry; 1 where the tensor has no factors.
///
/// # Safety
/// `tensor` describes factors of that head, which the kernel before has written.
#[inline(always)]
pub(crate) unsafe fn factor(tensor: &DescaleTensor, batch: u32, head: u32) -> f32 {
    if tensor.address == 0 {
        return 1.0;
    }
    let place = i64::from(batch) * tensor.batch + i64::from(head) * tensor.head;
    // SAFETY: the caller's contract.
    unsafe { global::load((tensor.address as *const f32).wrapping_offset(place as isize)) }
}

/// What scores of a head of Q with a head of K are multiplied by, and O of that head, where elements count in units of
/// `unit`.
///
/// # Safety
/// As [`factor`], for these heads.
#[inline(always)]
pub(crate) unsafe fn factors(descales: &DescaleArgs, batch: u32, [q_head, kv_head]: [u32; 2], unit: f32) -> [f32; 2] {
    let (q_factor, _) = div_rem(q_head, descales.q_heads_per_factor);
    // SAFETY: the caller's contract.
    let factor = |tensor, head| unsafe { factor(tensor, batch, head) };
    let of_scores = factor(&descales.q, q_factor) * factor(&descales.k, kv_head);
    [of_scores * (unit * unit), factor(&descales.v, kv_head) * unit]
}
