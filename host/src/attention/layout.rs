//! The order of the dimensions of Q, K, V and O.

/// What the four dimensions of Q, K, V and O are, outermost first.
///
/// ```
/// use ferrotile::Layout;
///
/// assert_eq!(Layout::Bshd.reorder([2, 512, 8, 64]), [2, 8, 512, 64]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[batch, heads, sequence, head dimension]`.
    Bhsd,
    /// `[batch, sequence, heads, head dimension]`.
    Bshd,
}

impl Layout {
    /// Brings dimensions of this layout into the order batch, heads, sequence, head dimension, or back.
    #[must_use]
    pub fn reorder<T: Copy>(self, [batch, second, third, dim]: [T; 4]) -> [T; 4] {
        match self {
            Layout::Bhsd => [batch, second, third, dim],
            Layout::Bshd => [batch, third, second, dim],
        }
    }
}
