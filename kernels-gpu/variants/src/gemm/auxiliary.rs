//! The auxiliary kernels: the reduction of split-K sums, and copies of operands.

use layout::smem::SmemLayout;
use layout::{Arch, Dtype};

use super::{CHUNK_BYTES, GROUP};

/// Resident blocks that the registers of these kernels must allow on a multiprocessor: what they wait for is memory.
pub const AUXILIARY_MIN_BLOCKS: u32 = 4;

/// Registers that a thread of an auxiliary kernel may use.
const fn max_registers(threads: u32) -> u32 {
    Arch::Sm80.limits().registers / (threads * AUXILIARY_MIN_BLOCKS) / 8 * 8
}

/// The kernel that reduces split-K sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceKernel {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// Threads of a block, each of which stores [`GROUP`] columns of a row.
    pub threads: u32,
}

/// The kernel that reduces split-K sums.
pub const REDUCE_SPLIT_K: ReduceKernel = ReduceKernel { name: "gemm_sum", threads: 256 };

impl ReduceKernel {
    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        max_registers(self.threads)
    }

    /// Blocks of the grid; `None` where it is too large.
    pub fn blocks(&self, batch: usize, m: usize, n: usize) -> Option<u32> {
        let groups = batch.checked_mul(m)?.checked_mul(n.div_ceil(GROUP))?;
        i32::try_from(groups).ok().map(|groups| (groups as u32).div_ceil(self.threads))
    }
}

/// A kernel that copies an operand so that its k are contiguous and its rows aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackKernel {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Threads of a block.
    pub threads: u32,
}

/// Rows and k that a block of a [`PackKernel`] copies.
pub const PACK_TILE: usize = 64;

/// Copies operands of 8-bit elements.
pub const PACK_8BIT: PackKernel = PackKernel { name: "gemm_pack_8bit", element_bytes: 1, threads: 256 };

/// Copies operands of 16-bit elements.
pub const PACK_16BIT: PackKernel = PackKernel { name: "gemm_pack_16bit", element_bytes: 2, threads: 256 };

impl PackKernel {
    /// The kernel for elements of this type.
    pub const fn of(dtype: Dtype) -> PackKernel {
        if dtype.size_bytes() == 1 { PACK_8BIT } else { PACK_16BIT }
    }

    /// Registers that a thread may use.
    pub const fn max_registers(&self) -> u32 {
        max_registers(self.threads)
    }

    /// Elements from one row of the copy to the next.
    pub const fn packed_k(&self, k: usize) -> usize {
        k.next_multiple_of(CHUNK_BYTES / self.element_bytes)
    }

    /// Elements of a block's tile that each thread copies.
    pub const fn elements(&self) -> usize {
        PACK_TILE * PACK_TILE / self.threads as usize
    }

    /// Bytes from one row of a block's tile in shared memory to the next. They are a word more than a row has, so that
    /// a column of the tile does not lie in one bank.
    pub const fn row_bytes(&self) -> u32 {
        (PACK_TILE * self.element_bytes + 4) as u32
    }

    /// The map of dynamic shared memory: the tile.
    pub const fn smem(&self) -> SmemLayout {
        SmemLayout::new().region("tile", PACK_TILE as u32 * self.row_bytes(), 4)
    }

    /// Blocks of the grid; `None` where it is too large.
    pub fn blocks(&self, batch: usize, mn: usize, k: usize) -> Option<u32> {
        let blocks = batch.checked_mul(mn.div_ceil(PACK_TILE))?.checked_mul(k.div_ceil(PACK_TILE))?;
        i32::try_from(blocks).ok().map(|blocks| blocks as u32)
    }
}
