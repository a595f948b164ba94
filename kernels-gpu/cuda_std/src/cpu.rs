//! Stand-ins for what only the compiler for a GPU has, under the same names. Each of them panics.
//!
//! With them the crate compiles for the CPU as it is: its functions are written once.

/// Ends a program that has called device code on the CPU.
///
/// # Safety
/// None is needed: `unsafe` as what it stands for.
#[cold]
#[track_caller]
pub unsafe fn runs_on_a_gpu_alone() -> ! {
    panic!("a function of `cuda_std` runs on a GPU alone, in a kernel: launch the kernel instead of calling it")
}

/// An instruction in a kernel: `core::arch::asm!` where the crate is compiled for a GPU. It belongs into an `unsafe`
/// block of a function of its own. On the CPU it panics.
///
/// ```
/// use cuda_std::asm;
///
/// /// The clock of the multiprocessor.
/// fn clock() -> u32 {
///     let clock: u32;
///     // SAFETY: reads a special register.
///     unsafe { asm!("mov.u32 {0}, %clock;", out(reg32) clock, options(nomem, nostack, preserves_flags)) }
///     clock
/// }
/// ```
#[macro_export]
macro_rules! asm {
    ($($argument:tt)*) => {
        $crate::cpu::runs_on_a_gpu_alone()
    };
}

/// A declaration beside the kernels: `core::arch::global_asm!` where the crate is compiled for a GPU, and nothing on
/// the CPU.
#[macro_export]
macro_rules! global_asm {
    ($($argument:tt)*) => {};
}

pub(crate) fn fmaf32(_: f32, _: f32, _: f32) -> f32 {
    // SAFETY: it panics.
    unsafe { runs_on_a_gpu_alone() }
}

pub(crate) fn gpu_launch_sized_workgroup_mem<T>() -> *mut T {
    // SAFETY: it panics.
    unsafe { runs_on_a_gpu_alone() }
}

/// As `core::arch::nvptx`.
pub(crate) mod nvptx {
    /// One function for each name: `pub(crate) unsafe fn _syncthreads() -> () { .. }`.
    macro_rules! functions {
        ($($name:ident -> $result:ty,)+) => {
            $(pub(crate) unsafe fn $name() -> $result {
                // SAFETY: it panics.
                unsafe { super::runs_on_a_gpu_alone() }
            })+
        };
    }

    functions! {
        _thread_idx_x -> u32,
        _thread_idx_y -> u32,
        _thread_idx_z -> u32,
        _block_idx_x -> u32,
        _block_idx_y -> u32,
        _block_idx_z -> u32,
        _block_dim_x -> u32,
        _block_dim_y -> u32,
        _block_dim_z -> u32,
        _grid_dim_x -> u32,
        _grid_dim_y -> u32,
        _grid_dim_z -> u32,
        _syncthreads -> (),
    }
}
