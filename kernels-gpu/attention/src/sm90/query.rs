//! The query rows of a warpgroup as operand A of Q K^T: in shared memory or in registers.

use core::marker::PhantomData;

use cuda_std::ptx::wgmma::{Accumulator, Product};
use cuda_std::shared::SharedAddr;
use layout::descriptor::Descriptor;
use variants::attention::{QuerySource, TILE_SWIZZLE, WARP_ROWS, WARPGROUP_ROWS};

use crate::input::Input;
use crate::lane::warp;
use crate::sm90::config::{Config, QkFromRegisters, QkFromShared};
use crate::sm90::product::{product, product_registers};
use crate::tile::{Fragments, chunk_offset};

/// Where Q is during a tile.
pub(crate) trait Query {
    /// The configuration's choice that this implements.
    const SOURCE: QuerySource;

    /// The query rows of this warpgroup: those of warpgroup `m_warpgroup` along M in the tile of Q.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together; the tile is there and visible.
    unsafe fn load(tile: SharedAddr, m_warpgroup: u32) -> Self;

    /// Starts S = Q K^T for the tile of keys whose descriptor is `keys`.
    ///
    /// # Safety
    /// As [`cuda_std::ptx::wgmma::product`].
    unsafe fn scores<S: Accumulator>(&self, keys: Descriptor) -> S;
}

/// Q in shared memory.
pub(crate) struct QueryTile<E, const ID: usize, const DIM_STEPS: usize> {
    descriptor: Descriptor,
    element: PhantomData<E>,
}

impl<E: Input, const ID: usize, const DIM_STEPS: usize> Query for QueryTile<E, ID, DIM_STEPS> {
    const SOURCE: QuerySource = QuerySource::Shared;

    #[inline(always)]
    unsafe fn load(tile: SharedAddr, m_warpgroup: u32) -> Self {
        let (first, group_bytes) = const {
            let query = QkFromShared::<E, ID>::A;
            (query.descriptor(0), query.mn_offset_bytes(8) * (WARPGROUP_ROWS as u32 / 8))
        };
        Self { descriptor: first.offset(tile.as_raw() + m_warpgroup * group_bytes), element: PhantomData }
    }

    #[inline(always)]
    unsafe fn scores<S: Accumulator>(&self, keys: Descriptor) -> S {
        // SAFETY: the caller's contract.
        unsafe { product::<QkFromShared<E, ID>, S, DIM_STEPS>(self.descriptor, keys) }
    }
}

/// Q in registers.
pub(crate) struct QueryRegisters<E, const ID: usize, const DIM_STEPS: usize> {
    fragments: [[u32; 4]; DIM_STEPS],
    element: PhantomData<E>,
}

impl<E: Input, const ID: usize, const DIM_STEPS: usize> Query for QueryRegisters<E, ID, DIM_STEPS> {
    const SOURCE: QuerySource = QuerySource::Registers;

    #[inline(always)]
    unsafe fn load(tile: SharedAddr, m_warpgroup: u32) -> Self {
        const {
            assert!(Config::<ID>::SWIZZLE as u8 == TILE_SWIZZLE as u8, "fragments are loaded from panels of 128 bytes");
        }
        let rows = const { Config::<ID>::M as usize };
        let first_row = m_warpgroup * WARPGROUP_ROWS as u32 + warp() % 4 * WARP_ROWS as u32;
        let source = Fragments::rows_first(tile.offset(chunk_offset(rows, first_row, 0)), rows);
        let mut fragments = [[0; 4]; DIM_STEPS];
        for step in 0..DIM_STEPS {
            // SAFETY: the caller's contract. The fragments of one warp are those of `mma` m16n8k16.
            fragments[step] = unsafe { source.load(0, step) };
        }
        Self { fragments, element: PhantomData }
    }

    #[inline(always)]
    unsafe fn scores<S: Accumulator>(&self, keys: Descriptor) -> S {
        // SAFETY: the caller's contract.
        unsafe { product_registers::<QkFromRegisters<E, ID>, S, DIM_STEPS>(&self.fragments, keys) }
    }
}
