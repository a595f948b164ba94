//! The kernels. `build.rs` compiles them to PTX; for the CPU they are what the host knows of them.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_gpu_kernel, asm_experimental_arch)
)]
// On the CPU an instruction panics, so what stands behind it is not reached.
#![cfg_attr(not(target_arch = "nvptx64"), allow(unreachable_code))]

use cuda_std::{kernel, thread};

/// The threads of a block.
pub const THREADS: u32 = 256;

/// Adds `a * x` to `y`, one element a thread.
///
/// # Safety
/// `x` and `y` have `len` elements, and nothing else uses those of `y` meanwhile.
#[kernel(max_threads = THREADS)]
pub unsafe fn saxpy(a: f32, x: *const f32, y: *mut f32, len: usize) {
    let i = thread::index_1d() as usize;
    if i < len {
        // SAFETY: the element is one of `len`, and this thread's own.
        unsafe { *y.add(i) += a * *x.add(i) };
    }
}
