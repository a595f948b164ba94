//! Rotary embedding.

use ndarray::{Array4, ArrayView2, ArrayView4};

/// Rotates the first columns of `x`, `[B, H, S, D]`, in f64: as many as two rows of the tables have. Row s of batch
/// entry b takes row `positions[b][s]` of `cos` and `sin`, `[positions, R / 2]`. A position that the tables do not have
/// makes NaN. See [`crate::rotary()`].
///
/// ```
/// use ndarray::{Array4, array};
///
/// let x = Array4::from_shape_vec((1, 1, 1, 5), vec![1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
/// let (cos, sin) = (array![[0.0, 0.0]], array![[1.0, 1.0]]); // a quarter turn
/// let tables = (cos.view(), sin.view());
/// let rotated = |interleaved| ferrotile::reference::rotary(x.view(), &[vec![0]], tables, interleaved);
/// assert_eq!(rotated(false).into_raw_vec_and_offset().0, [-3.0, -4.0, 1.0, 2.0, 5.0]); // pairs (1, 3) and (2, 4)
/// assert_eq!(rotated(true).into_raw_vec_and_offset().0, [-2.0, 1.0, -4.0, 3.0, 5.0]); // pairs (1, 2) and (3, 4)
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn rotary(
    x: ArrayView4<'_, f64>,
    positions: &[Vec<i64>],
    (cos, sin): (ArrayView2<'_, f64>, ArrayView2<'_, f64>),
    interleaved: bool,
) -> Array4<f64> {
    assert_eq!(cos.dim(), sin.dim(), "the tables have one shape");
    let (table_len, half) = cos.dim();
    let mut out = x.to_owned();
    for (b, h, s) in ndarray::indices((x.dim().0, x.dim().1, x.dim().2)) {
        let position = usize::try_from(positions[b][s]).ok().filter(|&position| position < table_len);
        for pair in 0..half {
            let [first, second] = if interleaved { [2 * pair, 2 * pair + 1] } else { [pair, half + pair] };
            let (c, s_) = position.map_or((f64::NAN, f64::NAN), |row| (cos[[row, pair]], sin[[row, pair]]));
            let (x0, x1) = (x[[b, h, s, first]], x[[b, h, s, second]]);
            out[[b, h, s, first]] = x0 * c - x1 * s_;
            out[[b, h, s, second]] = x0 * s_ + x1 * c;
        }
    }
    out
}
