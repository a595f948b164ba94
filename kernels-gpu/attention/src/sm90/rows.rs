//! What the rows of a warpgroup have between two steps of the main loop.

use crate::softmax::RowState;

/// What the rows of a warpgroup have between two steps.
pub(crate) struct Rows<const OUTPUTS: usize, const KEY_STEPS: usize, const PARTS: usize> {
    /// O, without the last P V.
    pub(crate) out: [f32; OUTPUTS],
    /// What is not yet in O of those before, where P V has two levels.
    pub(crate) part: Part<PARTS>,
    pub(crate) softmax: RowState,
    /// P of the last step, as operand A.
    pub(crate) p: [[u32; 4]; KEY_STEPS],
    /// What O, or the part, is to be multiplied by before that P V is added.
    pub(crate) factors: [f32; 2],
}

/// What O lacks.
pub(crate) struct Part<const PARTS: usize> {
    /// The sum of P V of some steps, or columns of it.
    pub(crate) sum: [f32; PARTS],
    /// What O is to be multiplied by before the sum is added.
    pub(crate) factors: [f32; 2],
    /// Steps in the sum.
    pub(crate) steps: u32,
}

impl<const PARTS: usize> Part<PARTS> {
    /// Of no step.
    pub(crate) const EMPTY: Self = Self { sum: [0.0; PARTS], factors: [1.0; 2], steps: 0 };
}
