//! The results of attention: outputs of a run, and their comparison with the reference.

use ferrotile::Dtype;
use ferrotile::reference::{self, AttentionTerms};
use ferrotile::tolerance::{self, AttentionLimits, Fp8Terms};
use ndarray::{Array1, Array4, ArrayView4};

use super::check;
use super::family::Bench;
use super::memory::{FloatCell, Input, Output};
use super::outcome::Failure;
use super::placement::Placement;
use super::terms::Terms;
use super::twice::each;

/// O and the LSE of one run.
pub(crate) type OAndLse<T, const O: usize, const L: usize> = (Output<T, O>, Output<f32, L>);

/// The outputs of both runs: O as `placement` has it, and a dense LSE.
pub(crate) fn o_and_lse<T: FloatCell, const O: usize, const L: usize>(
    bench: &Bench,
    placement: &Placement,
    out_shape: [usize; O],
    lse_shape: [usize; L],
) -> ferrotile::Result<[OAndLse<T, O, L>; 2]> {
    each(bench, |stream| {
        let out = Output::new(bench, stream, "O", placement, out_shape)?;
        Ok((out, Output::new(bench, stream, "the LSE", &Placement::default(), lse_shape)?))
    })
}

/// The LSE of a run, all of it written; where none was asked for, nothing of it.
pub(crate) fn checked_lse<'a>(
    without_lse: bool,
    lse: &'a [f32],
    shape: &[usize],
) -> Result<Option<&'a [f32]>, Failure> {
    if without_lse {
        check::untouched("the LSE", lse)?;
        return Ok(None);
    }
    check::written("the LSE", lse, shape)?;
    Ok(Some(lse))
}

/// The type of Q, K and V.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Inputs<'a> {
    /// f16 or bf16, and that of O.
    Halves(Dtype),
    /// E4M3, with factors and an O of another type.
    E4m3(&'a Fp8Terms<'a>),
    /// u8, with factors of each tensor and an O of another type.
    U8(&'a Fp8Terms<'a>),
    /// K and V of E4M3, with factors, beside a Q of the type of O.
    E4m3Kv(&'a Fp8Terms<'a>),
}

/// The exact result of one attention, and the limits of each element.
pub(crate) struct Expected {
    out: Vec<f64>,
    lse: Vec<f64>,
    limits: AttentionLimits,
    shape: [usize; 4],
    /// That of O.
    dtype: Dtype,
}

impl Expected {
    /// The result for `q`, `k` and `v`, `[batch, head, row, column]`, of this type; of E4M3 and u8 without
    /// their factors.
    pub(crate) fn new(
        inputs: Inputs<'_>,
        [q, k, v]: [ArrayView4<'_, f64>; 3],
        terms: &Terms,
        (sink, bias): (Option<&Array1<f64>>, Option<ArrayView4<'_, f64>>),
    ) -> Expected {
        let default_scale = f64::from(1.0 / (q.dim().3 as f32).sqrt());
        let terms = AttentionTerms {
            softcap: terms.softcap.map(f64::from),
            sink: sink.map(|sink| sink.view()),
            bias,
            ..AttentionTerms::new(terms.mask, terms.scale.map_or(default_scale, f64::from))
        };
        let (dtype, (out, lse), limits) = match inputs {
            Inputs::Halves(dtype) => {
                let (out, lse) = reference::attention_with(q, k, v, &terms);
                let limits = tolerance::attention_limits([q, k, v], &terms, dtype, (out.view(), lse.view()));
                (dtype, (out, lse), limits)
            }
            Inputs::E4m3(fp8) | Inputs::E4m3Kv(fp8) | Inputs::U8(fp8) => {
                let wide = |index: usize, x: ArrayView4<'_, f64>| match fp8.factors[index] {
                    Some(factors) => reference::dequantize(x, factors),
                    None => x.to_owned(),
                };
                let (wide_q, wide_k, wide_v) = (wide(0, q), wide(1, k), wide(2, v));
                let (out, lse) = reference::attention_with(wide_q.view(), wide_k.view(), wide_v.view(), &terms);
                let exact = (out.view(), lse.view());
                let limits = match inputs {
                    Inputs::E4m3Kv(Fp8Terms { factors: [_, of_k, of_v], .. }) => {
                        tolerance::e4m3_kv_attention_limits([q, k, v], &terms, [*of_k, *of_v], fp8.out, exact)
                    }
                    Inputs::U8(Fp8Terms { factors: [Some(of_q), Some(of_k), Some(of_v)], .. }) => {
                        tolerance::u8_attention_limits([q, k, v], &terms, [*of_q, *of_k, *of_v], fp8.out, exact)
                    }
                    _ => tolerance::fp8_attention_limits([q, k, v], &terms, fp8, exact),
                };
                (fp8.out, (out, lse), limits)
            }
        };
        let shape = out.dim().into();
        Expected { shape, dtype, limits, out: out.into_iter().collect(), lse: lse.into_iter().collect() }
    }

    /// Compares O and LSE in the order batch, head, row, column, and returns the largest share of a limit.
    pub(crate) fn check<T: FloatCell>(&self, out: &[T], lse: Option<&[f32]>) -> Result<f64, Failure> {
        let wide: Vec<f64> = out.iter().map(|x| x.to_f64()).collect();
        let limits = self.limits.out.as_slice().expect("it was made so");
        let of_out = check::elements("O", self.dtype, &self.shape, [&wide, &self.out, limits])?;
        let Some(lse) = lse else { return Ok(of_out) };
        let wide: Vec<f64> = lse.iter().map(|&x| x.into()).collect();
        let limits = self.limits.lse.as_slice().expect("it was made so");
        let of_lse = check::elements("the LSE", Dtype::F32, &self.shape[..3], [&wide, &self.lse, limits])?;
        Ok(of_out.max(of_lse))
    }
}

/// An array of four dimensions from an input that has them.
pub(crate) fn array4<T: FloatCell>(input: &Input<T, 4>) -> Array4<f64> {
    input.array().into_dimensionality().expect("four dimensions")
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn an_output_that_is_a_little_off_is_wrong() {
        let one = |value: f64| Array4::from_elem((1, 1, 1, 8), value);
        let (q, k) = (one(1.0), Array4::from_elem((1, 1, 2, 8), 0.5));
        let v = Array4::from_shape_fn((1, 1, 2, 8), |(_, _, key, _)| [1.0, 3.0][key]);
        let terms = Terms { scale: Some(1.0), ..Terms::default() };
        let expected = Expected::new(Inputs::Halves(Dtype::F16), [q.view(), k.view(), v.view()], &terms, (None, None));
        let check = |out: f32, lse: f32| expected.check(&[f16::from_f32(out); 8], Some(&[lse]));
        let lse = 4.0 + 2f32.ln();
        assert!(check(2.0, lse).is_ok_and(|share| share <= 1.0));
        for (out, lse) in [(2.02, lse), (2.0, lse + 1e-4), (f32::NAN, lse), (2.0, f32::INFINITY), (0.0, lse)] {
            assert!(check(out, lse).is_err(), "{out} {lse}");
        }
    }
}
