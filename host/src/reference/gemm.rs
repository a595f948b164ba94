//! Products of matrices on the CPU.

use layout::Dtype;
use ndarray::{Array3, ArrayView1, ArrayView3};
use rayon::prelude::*;
use variants::gemm::Activation;

use super::dot;
use crate::element::round;

/// What is added to products and done to them.
#[derive(Debug, Clone, Copy)]
pub struct GemmTerms<'a> {
    /// What products are multiplied by. With 0, they do not count: NaN and infinity in A and B do not reach D.
    pub alpha: f64,
    /// What C is multiplied by.
    pub beta: f64,
    /// C, `[batch, m, n]`; `None` where beta is 0.
    pub c: Option<ArrayView3<'a, f64>>,
    /// n numbers.
    pub bias: Option<ArrayView1<'a, f64>>,
    /// What is applied to each element.
    pub activation: Activation,
    /// What each element is multiplied by at last.
    pub d_scale: f64,
}

/// `D = A B`.
impl Default for GemmTerms<'_> {
    fn default() -> Self {
        GemmTerms { alpha: 1.0, beta: 0.0, c: None, bias: None, activation: Activation::None, d_scale: 1.0 }
    }
}

impl GemmTerms<'_> {
    /// The element of D at `index` whose product is `sum`.
    fn finish(&self, sum: f64, index: (usize, usize, usize)) -> f64 {
        let mut value = if self.alpha == 0.0 { 0.0 } else { self.alpha * sum };
        if let Some(c) = self.c {
            value += self.beta * c[index];
        }
        if let Some(bias) = self.bias {
            value += bias[index.2];
        }
        self.d_scale * activate(self.activation, value)
    }
}

/// Applies an activation.
fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => {
            // NaN stays NaN.
            if x < 0.0 { 0.0 } else { x }
        }
        Activation::Gelu => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// Computes `D = d_scale * activation(alpha * A B + beta * C + bias)` in f64: A is `[batch, m, k]`, B is
/// `[batch, k, n]`.
///
/// ```
/// use ferrotile::reference::{GemmTerms, gemm};
/// use ndarray::Array3;
///
/// let (a, b) = (Array3::ones((1, 2, 3)), Array3::ones((1, 3, 2)));
/// assert_eq!(gemm(a.view(), b.view(), &GemmTerms { alpha: 2.0, ..GemmTerms::default() })[[0, 1, 1]], 6.0);
/// ```
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn gemm(a: ArrayView3<'_, f64>, b: ArrayView3<'_, f64>, terms: &GemmTerms<'_>) -> Array3<f64> {
    by_element(a, b, |a, b, index| terms.finish(dot(a, b), index))
}

/// The obvious computation in a kernel's types: sums and what follows in f32, the result rounded to `dtype`.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn gemm_rounded(
    a: ArrayView3<'_, f64>,
    b: ArrayView3<'_, f64>,
    terms: &GemmTerms<'_>,
    dtype: Dtype,
) -> Array3<f64> {
    by_element(a, b, |a, b, index| {
        let sum = a.iter().zip(b).fold(0f32, |sum, (&a, &b)| sum + a as f32 * b as f32);
        round(f64::from(terms.finish(f64::from(sum), index) as f32), dtype)
    })
}

/// What the terms of an element can sum up to: the largest element of the product of the magnitudes, scaled, without C
/// and bias. Elements with a term that is infinite or NaN do not count: they are themselves, and hold back no other.
///
/// A and B are of `dtypes`. A subnormal number counts as the least normal one: tensor cores align terms by the
/// exponents in which factors are stored.
///
/// # Panics
/// Where the shapes do not fit together.
#[must_use]
pub fn gemm_magnitude(
    a: ArrayView3<'_, f64>,
    b: ArrayView3<'_, f64>,
    terms: &GemmTerms<'_>,
    dtypes: [Dtype; 2],
) -> f64 {
    let (a, b) = (a.mapv(|x| stored_magnitude(x, dtypes[0])), b.mapv(|x| stored_magnitude(x, dtypes[1])));
    let magnitudes = gemm(a.view(), b.view(), &GemmTerms::default());
    let largest = magnitudes.into_iter().filter(|magnitude| magnitude.is_finite()).fold(0.0, f64::max);
    largest * (terms.alpha * terms.d_scale).abs()
}

/// The magnitude of a number of this type by its stored exponent, as tensor cores align it: a subnormal number has the
/// exponent of the least normal one. NaN stays NaN.
///
/// ```
/// use ferrotile::{Dtype, reference::stored_magnitude};
///
/// assert_eq!(stored_magnitude(-3.0, Dtype::F16), 3.0);
/// assert_eq!(stored_magnitude(1e-7, Dtype::F16), 2f64.powi(-14));
/// ```
#[must_use]
pub fn stored_magnitude(x: f64, dtype: Dtype) -> f64 {
    if x == 0.0 || x.is_nan() { x.abs() } else { x.abs().max(least_normal(dtype)) }
}

/// The least number that tensor cores take as a normal one. Where `mma.sync` makes f16 of E4M3, it is smaller.
fn least_normal(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::E4M3 => (-6f64).exp2(),
        Dtype::F16 | Dtype::E5M2 => (-14f64).exp2(),
        Dtype::Bf16 | Dtype::F32 => f64::from(f32::MIN_POSITIVE),
        // None is smaller than any other that it is added to.
        Dtype::U8 => 0.0,
    }
}

/// Computes each element of D from a row of A, a column of B and its index, in parallel.
fn by_element(
    a: ArrayView3<'_, f64>,
    b: ArrayView3<'_, f64>,
    element: impl Fn(&[f64], &[f64], (usize, usize, usize)) -> f64 + Sync,
) -> Array3<f64> {
    let ((batch, m, k), (b_batch, b_rows, n)) = (a.dim(), b.dim());
    assert_eq!((b_batch, b_rows), (batch, k), "B does not fit A");
    let a = a.as_standard_layout();
    let b = b.permuted_axes([0, 2, 1]);
    let b = b.as_standard_layout();
    let [a, b] = [&a, &b].map(|array| array.as_slice().expect("standard layout is contiguous"));
    let elements = (0..batch * m * n).into_par_iter().map(|flat| {
        let (row, column) = (flat / n, flat % n);
        let index = (row / m, row % m, column);
        element(&a[row * k..][..k], &b[(index.0 * n + column) * k..][..k], index)
    });
    Array3::from_shape_vec((batch, m, n), elements.collect()).expect("one number an index")
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn a_product_by_hand() {
        let (a, b) = (array![[[1.0, 2.0], [0.0, -1.0]]], array![[[3.0, 0.0, 1.0], [1.0, 4.0, 0.0]]]);
        let plain = gemm(a.view(), b.view(), &GemmTerms::default());
        assert_eq!(plain, array![[[5.0, 8.0, 1.0], [-1.0, -4.0, 0.0]]]);
        let (c, bias) = (array![[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]], array![0.0, 10.0, -10.0]);
        let terms = GemmTerms {
            alpha: 2.0,
            beta: -1.0,
            c: Some(c.view()),
            bias: Some(bias.view()),
            activation: Activation::Relu,
            d_scale: 0.5,
        };
        assert_eq!(gemm(a.view(), b.view(), &terms), array![[[4.5, 12.5, 0.0], [0.0, 0.0, 0.0]]]);
        assert_eq!(gemm_rounded(a.view(), b.view(), &terms, Dtype::F16), gemm(a.view(), b.view(), &terms));
        let magnitude =
            |a: &Array3<f64>| gemm_magnitude(a.view(), b.view(), &GemmTerms::default(), [Dtype::F16, Dtype::E4M3]);
        assert_eq!(magnitude(&a), 8.0);
        assert_eq!(magnitude(&a.mapv(|x| x * (-30f64).exp2())), 4.0 * (-14f64).exp2(), "subnormal numbers");
        for number in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let a = array![[[1.0, number], [0.0, -1.0]]];
            assert_eq!(magnitude(&a), 4.0, "{number}");
        }
    }

    #[test]
    fn without_terms_only_c_and_bias_are_left() {
        let (a, b) = (Array3::zeros((1, 2, 0)), Array3::zeros((1, 0, 3)));
        let c = Array3::from_elem((1, 2, 3), 2.0);
        let terms = GemmTerms { beta: 3.0, c: Some(c.view()), ..GemmTerms::default() };
        assert_eq!(gemm(a.view(), b.view(), &terms), Array3::from_elem((1, 2, 3), 6.0));
    }

    #[test]
    fn activations_have_their_known_values() {
        let close = |activation, x: f64, expected: f64| assert!((activate(activation, x) - expected).abs() < 1e-6);
        close(Activation::Silu, 1.0, 0.731_058_6);
        close(Activation::Gelu, 1.0, 0.841_192);
        close(Activation::Gelu, -2.0, -0.045_402_3);
        assert_eq!(activate(Activation::Relu, -3.0), 0.0);
        assert!(activate(Activation::Relu, f64::NAN).is_nan());
    }
}
