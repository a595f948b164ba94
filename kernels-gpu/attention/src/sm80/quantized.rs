//! The kernels for inputs of 8-bit integers, with an O of f16 and of bf16.
//!
//! Tiles of Q, K and V are of f16 (`copy.rs` widens the integers on their way), and so are P and both products. What is
//! left to this file is O, which may be of another type than they are.

use core::marker::PhantomData;

use cuda_std::convert::{Bf16, Element16, F16};
use cuda_std::shared::SharedAddr;
use variants::attention::{ATTENTION, AttentionArgs, AttentionConfig, DescaleArgs, PvUnit, config_index};

use crate::input::U8To;
use crate::sm80::mainloop::{self, Configuration, KernelTraits};
use crate::sm80::pv::{PvAccumulator, TensorCore};

type U8ToF16 = U8To<F16>;
type U8ToBf16 = U8To<Bf16>;

entry!(u8 d64_mma_64x64_s2: mma);
entry!(u8 d128_mma_64x32_s2: mma);
entry!(u8 scalar: scalar);
entry!(u8 d64_mma_64x64_s2_general: mma);
entry!(u8 d128_mma_64x32_s2_general: mma);
entry!(u8 scalar_general: scalar);

impl<O: Element16, const ID: usize, const KEY_TILES: usize, const DIM_TILES: usize>
    KernelTraits<U8To<O>, KEY_TILES, DIM_TILES> for Configuration<ID>
{
    const CONFIG: AttentionConfig = ATTENTION[ID];

    type Pv = Halves<O, DIM_TILES>;
}

/// P V of f16, and the element type that O is rounded to.
pub struct Halves<O, const DIM_TILES: usize> {
    products: TensorCore<F16, DIM_TILES>,
    element: PhantomData<O>,
}

impl<O: Element16, const KEY_TILES: usize, const DIM_TILES: usize> PvAccumulator<U8To<O>, KEY_TILES, DIM_TILES>
    for Halves<O, DIM_TILES>
{
    const UNIT: PvUnit = PvUnit::TensorCore;

    #[inline(always)]
    fn zero() -> Self {
        Self { products: TensorCore::zero_rows(), element: PhantomData }
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr) {
        // SAFETY: the caller's contract.
        unsafe { self.products.step(factors, p, v) };
    }

    #[inline(always)]
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        // SAFETY: the caller's contract.
        unsafe { self.products.store_as::<O>(normalisers, tile, rows, row) };
    }
}
