//! Quantisation, bit by bit what the kernels make.

use ndarray::{Array2, Array4, ArrayView4};
use variants::quantize::{LARGEST, least_factor};

use crate::element::Float;

/// Quantises `x`, `[B, H, S, D]`, to elements of `Q` and factors `[groups of batch entries, groups of heads]`: as many
/// groups as batch entries and heads, or one. Every step is in f32, as in the kernels. See [`crate::quantize()`].
///
/// [`super::dequantize`] is the way back.
///
/// ```
/// use ferrotile::reference;
/// use ndarray::Array4;
///
/// let x = Array4::from_shape_fn((1, 2, 1, 8), |(_, h, _, d)| (h * d) as f32);
/// let (q, factors) = reference::quantize::<u8>(x.view(), [1, 2]);
/// assert_eq!((q[[0, 1, 0, 7]], factors[[0, 1]]), (255, 7.0 / 448.0));
/// assert_eq!((q[[0, 0, 0, 7]], factors[[0, 0]]), (128, 1.0)); // a head of zeros
/// ```
///
/// # Panics
/// Where the numbers of groups are others.
#[must_use]
pub fn quantize<Q: Float>(x: ArrayView4<'_, f32>, [batches, heads]: [usize; 2]) -> (Array4<Q>, Array2<f32>) {
    let (batch, of_heads, ..) = x.dim();
    assert!(batches == 1 || batches == batch, "{batches} groups of {batch} batch entries");
    assert!(heads == 1 || heads == of_heads, "{heads} groups of {of_heads} heads");
    let mut factors = Array2::<f32>::zeros((batches, heads));
    for ((b, h, ..), x) in x.indexed_iter().filter(|(_, x)| x.is_finite()) {
        let factor = &mut factors[[b % batches, h % heads]];
        *factor = factor.max(x.abs() / LARGEST);
    }
    factors.mapv_inplace(|factor| if factor < least_factor(Q::DTYPE) { 1.0 } else { factor });
    let q = |((b, h, _, _), &x): (_, &f32)| Q::from_f64(f64::from(x / factors[[b % batches, h % heads]]));
    let elements = x.indexed_iter().map(q).collect();
    (Array4::from_shape_vec(x.dim(), elements).expect("one element an index"), factors)
}
