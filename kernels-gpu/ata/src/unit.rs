//! What multiplies a 32x32 tile of A and 32 elements of X for some frames.

use variants::ata::{AtaArgs, CELL};

use crate::config::Configuration;
use crate::sums::WarpSums;

/// The elements of X that a lane has of one block of 16.
pub type Four = [f32; CELL];

/// The unit of the configuration `C`. A lane has cells of the tile as [`variants::ata`] says, and parts of X, the
/// *vectors*.
pub trait Unit<C: Configuration> {
    /// A lane's sums of one pair row and one vector.
    type Sums: Copy;

    /// A lane's part of a vector as the unit takes it.
    type Operand: Copy;

    /// Whether a vector is brought into another form.
    const CONVERTS: bool;

    /// Sums of nothing.
    const ZERO: Self::Sums;

    /// The frame, of those of the block, whose elements are the lane's in a vector.
    fn frame(vector: usize) -> u32;

    /// Brings a lane's part of a vector, of either block of 16 elements, into the unit's form.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    unsafe fn operand(args: &AtaArgs, x: [Four; 2]) -> Self::Operand;

    /// The operand where `condition` holds, else zeros.
    fn only_where(condition: bool, x: Self::Operand) -> Self::Operand;

    /// Adds the products of a tile, or of the transposed one, to the sums of each vector.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    unsafe fn multiply<const TRANSPOSED: bool, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Self::Sums; VECTORS],
        cells: &[[u32; WORDS]; 2],
        x: &[Self::Operand; VECTORS],
    );

    /// Stores the warp's sums of pair row `pair_row` of the block.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together, once for each pair row and vector.
    unsafe fn store(to: &WarpSums<C>, pair_row: usize, vector: usize, sums: Self::Sums);
}
