//! Descale factors: what elements of FP8 tensors are multiplied by.

use cuda_std::global;
use variants::attention::DescaleTensor;

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
