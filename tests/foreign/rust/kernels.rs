//! Kernels for rustc's own nvptx64 target, without any crate of this workspace.
#![no_std]
#![feature(abi_ptx, stdarch_nvptx)]

use core::arch::nvptx::{_block_dim_x, _block_idx_x, _syncthreads, _thread_idx_x};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The sum of the squares of the digits, until it is 1 or 4: branches and remainders of each lane.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn happy(x: *const u32, y: *mut u32, n: u32) {
    unsafe {
        let at = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as u32;
        if at >= n {
            return;
        }
        let mut value = *x.add(at as usize);
        while value != 1 && value != 4 && value != 0 {
            let mut sum = 0;
            while value > 0 {
                sum += (value % 10) * (value % 10);
                value /= 10;
            }
            value = sum;
        }
        *y.add(at as usize) = value;
    }
}

/// One step of heat conduction, in f64.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn heat(x: *const f64, y: *mut f64, n: u32) {
    unsafe {
        let at = (_block_idx_x() * _block_dim_x() + _thread_idx_x()) as u32;
        if at >= n {
            return;
        }
        let value = |at: u32| *x.add(at as usize);
        let left = if at > 0 { value(at - 1) } else { value(at) };
        let right = if at + 1 < n { value(at + 1) } else { value(at) };
        *y.add(at as usize) = value(at) + 0.25 * (left - 2.0 * value(at) + right);
    }
}

/// Bit reversal and counts of bits, and the block sees a barrier.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn bits(x: *const u64, y: *mut u64) {
    unsafe {
        let at = _thread_idx_x() as usize;
        let value = *x.add(at);
        *y.add(at) = value.reverse_bits();
        _syncthreads();
        let other = *y.add(at ^ 1);
        _syncthreads();
        *y.add(at) = other.rotate_left(at as u32) ^ u64::from(value.count_ones()) ^ (u64::from(value.leading_zeros()) << 32);
    }
}
