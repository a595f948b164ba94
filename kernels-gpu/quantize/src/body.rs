//! The kernels, for any pair of element types.
//!
//! All of them are bound by memory: a thread has [`THREAD_CHUNKS`] loads in flight, and there are enough threads.

use cuda_std::ptx::griddepcontrol;
use cuda_std::shared::{self, SharedAddr};
use cuda_std::warp::{lane_id, warp_max};
use cuda_std::{global, thread};
use variants::quantize::{CHUNK, QuantizeArgs, QuantizeKernel, THREAD_CHUNKS};

use crate::narrow::Narrow;
use crate::wide::Wide;
use crate::work::{Chunk, Work};

const WARPS: u32 = QuantizeKernel::THREADS / 32;

/// Raises the factor of the block's group to the largest finite magnitude of its elements over 448. Dividing keeps the
/// order of magnitudes, and bits of positive f32 have the order of their numbers: the result does not depend on which
/// block is first.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn factors<W: Wide>(args: &QuantizeArgs) {
    griddepcontrol::launch_dependents();
    let work = Work::of_block(args);
    // SAFETY: the tensor is readable.
    let values = unsafe { load_wide::<W>(args, work) };
    let mut largest = 0.0;
    for index in 0..THREAD_CHUNKS {
        for element in 0..CHUNK {
            let magnitude = values[index][element].to_bits() & 0x7fff_ffff;
            let finite = if magnitude < f32::INFINITY.to_bits() { f32::from_bits(magnitude) } else { 0.0 };
            largest = f32::max(largest, finite);
        }
    }
    let maxima = maxima();
    let warp = thread::thread_idx_x() / 32;
    // SAFETY: the warp is together; the word is this warp's.
    unsafe {
        let largest = warp_max(largest);
        if lane_id() == 0 {
            maxima.offset(4 * warp).store(largest);
        }
        // What warps have stored.
        thread::sync_threads();
    }
    if thread::thread_idx_x() == 0 {
        for warp in 1..WARPS {
            // SAFETY: the warps have stored their words.
            largest = f32::max(largest, unsafe { maxima.offset(4 * warp).load() });
        }
        // SAFETY: as above.
        largest = f32::max(largest, unsafe { maxima.load() });
        // SAFETY: factors are only accessed atomically by this kernel.
        unsafe { global::atomic_max(work.factor(args), (largest / variants::quantize::LARGEST).to_bits()) };
    }
}

/// Divides elements by the factor of their group and rounds them. A group of small magnitudes gets the factor 1 here:
/// before and after, it is below the least one or 1, and either means 1.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn quantize<W: Wide, N: Narrow>(args: &QuantizeArgs) {
    // The kernel before may have written the elements, and this kernel may overwrite what it reads.
    griddepcontrol::wait();
    let work = Work::of_block(args);
    // SAFETY: the tensor is readable.
    let values = unsafe { load_wide::<W>(args, work) };
    if thread::thread_idx_x() == 0 {
        let factor = work.factor(args);
        let (least, one) = (args.least_factor, 1.0_f32.to_bits());
        // SAFETY: factors are only accessed atomically by this kernel; the word is for this thread to write.
        unsafe {
            let found = global::atomic_max(factor, 0);
            if found < least && work.part == 0 {
                global::atomic_max(factor, one);
            }
            maxima().store(if found < least { one } else { found });
        }
    }
    // The factor.
    // SAFETY: the whole block is here.
    unsafe { thread::sync_threads() };
    // SAFETY: stored above.
    let factor: f32 = unsafe { maxima().load() };
    for index in 0..THREAD_CHUNKS {
        let chunk = work.chunk(args, index);
        let over = values[index].map(|value| value / factor);
        let words = [N::pack([over[0], over[1], over[2], over[3]]), N::pack([over[4], over[5], over[6], over[7]])];
        let address = work.address(chunk, args.narrow, args.narrow_strides, 1);
        // SAFETY: the chunk is this thread's, and aligned where `args` says so.
        unsafe {
            if args.aligned != 0 {
                if chunk.elements > 0 {
                    global::store(address as *mut [u32; 2], words);
                }
            } else {
                for element in 0..CHUNK {
                    if (element as u32) < chunk.elements {
                        let byte = words[element / 4] >> (8 * (element % 4));
                        global::store((address + element as u64) as *mut u8, byte as u8);
                    }
                }
            }
        }
    }
}

/// Multiplies elements by the factor of their group.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn dequantize<W: Wide, N: Narrow>(args: &QuantizeArgs) {
    griddepcontrol::wait();
    let work = Work::of_block(args);
    // SAFETY: nothing writes the factors.
    let factor = f32::from_bits(unsafe { global::load_nc(work.factor(args)) });
    let chunks: [Chunk; THREAD_CHUNKS] = core::array::from_fn(|index| work.chunk(args, index));
    // SAFETY: the tensor is readable.
    let words = chunks.map(|chunk| unsafe { load_narrow(args, work, chunk) });
    for index in 0..THREAD_CHUNKS {
        let chunk = chunks[index];
        let values: [f32; CHUNK] =
            core::array::from_fn(|element| N::unpack(words[index][element / 4] >> (8 * (element % 4)) & 0xff) * factor);
        let address = work.address(chunk, args.wide, args.wide_strides, W::BYTES);
        // SAFETY: the chunk is this thread's, and aligned where `args` says so.
        unsafe {
            if args.aligned != 0 {
                if chunk.elements > 0 {
                    W::store_chunk(address, values);
                }
            } else {
                for element in 0..CHUNK {
                    if (element as u32) < chunk.elements {
                        W::store(address + (element * W::BYTES) as u64, values[element]);
                    }
                }
            }
        }
    }
}

/// The dynamic shared memory: a word for each warp.
#[inline(always)]
fn maxima() -> SharedAddr {
    shared::dynamic()
}

/// The elements of the thread's chunks; 0 where there are none.
///
/// # Safety
/// The tensor is readable, and nothing writes it.
#[inline(always)]
unsafe fn load_wide<W: Wide>(args: &QuantizeArgs, work: Work) -> [[f32; CHUNK]; THREAD_CHUNKS] {
    let mut values = [[0.0; CHUNK]; THREAD_CHUNKS];
    for index in 0..THREAD_CHUNKS {
        let chunk = work.chunk(args, index);
        let address = work.address(chunk, args.wide, args.wide_strides, W::BYTES);
        // SAFETY: the elements of the chunk are inside the tensor, and aligned where `args` says so.
        unsafe {
            if args.aligned != 0 {
                if chunk.elements > 0 {
                    values[index] = W::load_chunk(address);
                }
            } else {
                for element in 0..CHUNK {
                    if (element as u32) < chunk.elements {
                        values[index][element] = W::load(address + (element * W::BYTES) as u64);
                    }
                }
            }
        }
    }
    values
}

/// The bytes of a chunk; 0 where there are none.
///
/// # Safety
/// The tensor is readable, and nothing writes it.
#[inline(always)]
unsafe fn load_narrow(args: &QuantizeArgs, work: Work, chunk: Chunk) -> [u32; 2] {
    let address = work.address(chunk, args.narrow, args.narrow_strides, 1);
    let mut words = [0; 2];
    // SAFETY: the elements of the chunk are inside the tensor, and aligned where `args` says so.
    unsafe {
        if args.aligned != 0 {
            if chunk.elements > 0 {
                words = global::load_nc(address as *const [u32; 2]);
            }
        } else {
            for element in 0..CHUNK {
                if (element as u32) < chunk.elements {
                    let byte: u8 = global::load_nc((address + element as u64) as *const u8);
                    words[element / 4] |= u32::from(byte) << (8 * (element % 4));
                }
            }
        }
    }
    words
}
