//! The types that are quantised.

use cuda_std::convert::Element16;
use cuda_std::global;
use variants::quantize::CHUNK;

/// A type that is quantised, by chunks of its elements.
pub(crate) trait Wide {
    /// Bytes of an element.
    const BYTES: usize;

    /// Loads a whole chunk.
    ///
    /// # Safety
    /// The chunk is readable and on a boundary of 16 bytes, and nothing writes it.
    unsafe fn load_chunk(address: u64) -> [f32; CHUNK];

    /// Loads an element.
    ///
    /// # Safety
    /// It is readable, and nothing writes it.
    unsafe fn load(address: u64) -> f32;

    /// Rounds and stores a whole chunk.
    ///
    /// # Safety
    /// The chunk is writable, on a boundary of 16 bytes, and this thread's.
    unsafe fn store_chunk(address: u64, values: [f32; CHUNK]);

    /// Rounds and stores an element.
    ///
    /// # Safety
    /// It is writable and this thread's.
    unsafe fn store(address: u64, value: f32);
}

/// f32.
pub(crate) enum Single {}

impl<E: Element16> Wide for E {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load_chunk(address: u64) -> [f32; CHUNK] {
        // SAFETY: as required of the caller.
        let words = unsafe { global::load_nc(address as *const [u32; 4]) };
        let pairs = words.map(E::unpack);
        core::array::from_fn(|index| if index % 2 == 0 { pairs[index / 2].0 } else { pairs[index / 2].1 })
    }

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: as required of the caller.
        E::to_f32(unsafe { global::load_nc(address as *const u16) })
    }

    #[inline(always)]
    unsafe fn store_chunk(address: u64, values: [f32; CHUNK]) {
        let words: [u32; 4] = core::array::from_fn(|index| E::pack(values[2 * index], values[2 * index + 1]));
        // SAFETY: as required of the caller.
        unsafe { global::store(address as *mut [u32; 4], words) }
    }

    #[inline(always)]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: as required of the caller.
        unsafe { global::store(address as *mut u16, E::from_f32(value)) }
    }
}

impl Wide for Single {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load_chunk(address: u64) -> [f32; CHUNK] {
        // SAFETY: as required of the caller.
        let halves = [0, 16].map(|offset| unsafe { global::load_nc((address + offset) as *const [u32; 4]) });
        core::array::from_fn(|index| f32::from_bits(halves[index / 4][index % 4]))
    }

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: as required of the caller.
        unsafe { global::load_nc(address as *const f32) }
    }

    #[inline(always)]
    unsafe fn store_chunk(address: u64, values: [f32; CHUNK]) {
        for half in 0..2 {
            let words: [u32; 4] = core::array::from_fn(|index| values[4 * half + index].to_bits());
            // SAFETY: as required of the caller.
            unsafe { global::store((address + 16 * half as u64) as *mut [u32; 4], words) }
        }
    }

    #[inline(always)]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: as required of the caller.
        unsafe { global::store(address as *mut f32, value) }
    }
}
