//! What multiplies a 32x32 square of A and 32 elements of X for some frames.

use layout::ata::CELL;

use crate::sums::WarpSums;

/// The elements of X that a lane has of one block of 16.
pub(crate) type Four = [f32; CELL];

/// Whether a square is transposed.
pub(crate) trait Turn: Copy {
    /// Whether it is, where the compiler knows it.
    const KNOWN: Option<bool>;

    /// Whether it is.
    fn is_transposed(self) -> bool;
}

/// The square is known to be transposed, or known not to be.
#[derive(Clone, Copy)]
pub(crate) struct Known<const TRANSPOSED: bool>;

/// Whether the square is transposed is found out, and both are computed without a branch.
#[derive(Clone, Copy)]
pub(crate) struct Found(pub(crate) bool);

impl<const TRANSPOSED: bool> Turn for Known<TRANSPOSED> {
    const KNOWN: Option<bool> = Some(TRANSPOSED);

    #[inline(always)]
    fn is_transposed(self) -> bool {
        TRANSPOSED
    }
}

impl Turn for Found {
    const KNOWN: Option<bool> = None;

    #[inline(always)]
    fn is_transposed(self) -> bool {
        self.0
    }
}

/// The unit of the row `ROW`. A lane has cells of the square as [`layout::ata`] says, and parts of X, the *vectors*.
pub(crate) trait Unit<const ROW: usize> {
    /// A lane's sums of one pair row and one vector.
    type Sums: Copy;

    /// A lane's part of a vector as the unit takes it.
    type Operand: Copy;

    /// Sums of nothing.
    const ZERO: Self::Sums;

    /// The frame, of those of the block, whose elements are the lane's in a vector.
    fn frame(vector: usize) -> u32;

    /// Brings a lane's part of a vector, of either block of 16 elements, into the unit's form.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    unsafe fn operand(x: [Four; 2]) -> Self::Operand;

    /// The operand where `condition` holds, else zeros.
    fn only_where(condition: bool, x: Self::Operand) -> Self::Operand;

    /// Adds the products of a square, or of the transposed one, to the sums of each vector.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together.
    unsafe fn multiply<T: Turn, const WORDS: usize, const VECTORS: usize>(
        sums: &mut [Self::Sums; VECTORS],
        cells: &[[u32; WORDS]; 2],
        turn: T,
        x: &[Self::Operand; VECTORS],
    );

    /// Stores the warp's sums of pair row `pair_row` of the block.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together, once for each pair row and vector.
    unsafe fn store(to: &WarpSums<ROW>, pair_row: usize, vector: usize, sums: Self::Sums);
}
