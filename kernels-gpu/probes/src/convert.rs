//! Probes of `convert`, one value a thread.

use cuda_std::convert::{self, Bf16, Element16, F16};
use cuda_std::{kernel, thread};

/// Rounds `x` to f16 and bf16, alone and as the pair `(x, -x)`.
///
/// # Safety
/// `input` has `len` values and `out` 4 words for each.
#[kernel]
pub unsafe fn convert_narrow(out: *mut [u32; 4], input: *const f32, len: u32) {
    let index = thread::index_1d() as usize;
    if index < len as usize {
        // SAFETY: the index is in range.
        unsafe {
            let x = *input.add(index);
            *out.add(index) = [F16::from_f32(x) as u32, Bf16::from_f32(x) as u32, F16::pack(x, -x), Bf16::pack(x, -x)];
        }
    }
}

/// Rounds `x` to TF32.
///
/// # Safety
/// `input` has `len` values and `out` a word for each.
#[kernel]
pub unsafe fn convert_tf32(out: *mut u32, input: *const f32, len: u32) {
    let index = thread::index_1d() as usize;
    if index < len as usize {
        // SAFETY: the index is in range.
        unsafe { *out.add(index) = convert::tf32_from_f32(*input.add(index)) };
    }
}

/// Permutes the bytes of two words by the thread's number as the selector.
///
/// # Safety
/// The grid has 65536 threads; `out` has a word for each.
#[kernel]
pub unsafe fn convert_permute_bytes(out: *mut u32, a: u32, b: u32) {
    let selector = thread::index_1d();
    // SAFETY: the index is in range.
    unsafe { *out.add(selector as usize) = convert::permute_bytes(a, b, selector) };
}

/// Widens the thread's number as the bits of an f16 and a bf16, alone and as a pair with the sign of the second
/// flipped.
///
/// # Safety
/// The grid has 65536 threads; `out` has 6 words for each.
#[kernel]
pub unsafe fn convert_widen(out: *mut [f32; 6]) {
    let bits = thread::index_1d();
    let pair = bits | (bits ^ 0x8000) << 16;
    let (f16, bf16) = (F16::unpack(pair), Bf16::unpack(pair));
    // SAFETY: the index is in range.
    unsafe {
        *out.add(bits as usize) = [F16::to_f32(bits as u16), f16.0, f16.1, Bf16::to_f32(bits as u16), bf16.0, bf16.1];
    }
}

/// Rounds the pair `(x, -x)` to e4m3 and to e5m2.
///
/// # Safety
/// `input` has `len` values and `out` 2 words for each.
#[cfg(target_feature = "sm_89")]
#[kernel]
pub unsafe fn convert_fp8_narrow(out: *mut [u32; 2], input: *const f32, len: u32) {
    let index = thread::index_1d() as usize;
    if index < len as usize {
        // SAFETY: the index is in range.
        unsafe {
            let x = *input.add(index);
            *out.add(index) = [convert::pack_e4m3x2(x, -x) as u32, convert::pack_e5m2x2(x, -x) as u32];
        }
    }
}

/// Widens the thread's number as a pair of e4m3 and as a pair of e5m2, and then as two pairs of e4m3, of which the
/// second is its complement.
///
/// # Safety
/// The grid has 65536 threads; `out` has 4 words for each.
#[cfg(target_feature = "sm_89")]
#[kernel]
pub unsafe fn convert_fp8_widen(out: *mut [u32; 4]) {
    let bits = thread::index_1d();
    let [first, second] = convert::unpack_e4m3x4(bits | !bits << 16);
    let of_pairs = [convert::unpack_e4m3x2(bits as u16), convert::unpack_e5m2x2(bits as u16)];
    // SAFETY: the index is in range.
    unsafe {
        *out.add(bits as usize) = [of_pairs[0], of_pairs[1], first, second];
    }
}

/// Computes `2^a`, `log2 a`, `1 / a`, `a * b + c` and `max(a, b)`.
///
/// # Safety
/// `input` has `len` triples and `out` 5 values for each.
#[kernel]
pub unsafe fn convert_math(out: *mut [f32; 5], input: *const [f32; 3], len: u32) {
    let index = thread::index_1d() as usize;
    if index < len as usize {
        // SAFETY: the index is in range.
        unsafe {
            let [a, b, c] = *input.add(index);
            *out.add(index) =
                [convert::ex2(a), convert::lg2(a), convert::rcp(a), convert::fma(a, b, c), convert::max(a, b)];
        }
    }
}

/// Computes `a * b + c` of pairs of f16, of which `a` is the thread's number and its complement.
///
/// # Safety
/// The grid has 65536 threads; `out` has a word for each.
#[kernel]
pub unsafe fn convert_fma_f16x2(out: *mut u32, b: u32, c: u32) {
    let bits = thread::index_1d();
    // SAFETY: the index is in range.
    unsafe { *out.add(bits as usize) = convert::fma_f16x2(bits | !bits << 16, b, c) };
}
