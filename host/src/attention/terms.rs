//! What attention does beside its sizes: scale, softcap, bias, mask and sink, and the head dimension of V.

use variants::attention::{AttentionArgs, AttentionStrides, Mask, ScoreMod, exact_from};

use super::problem::{check_head_dim, check_shape};
use super::{AttentionOptions, AttentionProblem, OP};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::tensor::TensorRef;

/// Mask, scale, softcap, whether there is a bias, and the head dimension of V.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) mask: Mask,
    scale: f32,
    softcap: Option<f32>,
    bias: bool,
    pub(super) value_dim: usize,
}

impl Terms {
    /// Those of a call.
    pub(super) fn new(head_dim: usize, options: &AttentionOptions) -> Result<Self> {
        let AttentionOptions { mask, softcap, bias, .. } = *options;
        let scale = options.scale.unwrap_or_else(|| 1.0 / (head_dim as f32).sqrt());
        let value_dim = options.value_dim.unwrap_or(head_dim);
        check_head_dim("value_dim", value_dim)?;
        let argument = |argument, got: f32, expected: &str| {
            Err(Error::Argument { op: OP, argument, got: got.to_string(), expected: expected.to_owned() })
        };
        if options.splits == Some(0) {
            return argument("splits", 0.0, "at least 1, or none");
        }
        if !scale.is_finite() {
            return argument("scale", scale, "a finite number");
        }
        match softcap {
            // Smaller ones have no reciprocal in f32.
            Some(cap) if !(cap.is_finite() && cap >= f32::MIN_POSITIVE && cap.recip() >= f32::MIN_POSITIVE) => {
                argument("softcap", cap, "a number from 2^-126 to 2^126, or none")
            }
            _ => Ok(Self { mask, scale, softcap, bias, value_dim }),
        }
    }

    /// What kernels must do to scores. Where the factor of the softmax or of a softcap is no normal number of f32, the
    /// scale is applied by itself.
    pub(super) fn scores(&self) -> ScoreMod {
        let score_mod = ScoreMod::of(self.softcap, self.bias);
        let factor = match score_mod {
            ScoreMod::None => f64::from(self.scale.abs()),
            ScoreMod::Softcap => self.softcap_factor(),
            ScoreMod::General => return ScoreMod::General,
        };
        let is_kept = (f32::MIN_POSITIVE..f32::MAX / std::f32::consts::LOG2_E).contains(&(factor as f32));
        if is_kept || self.scale == 0.0 { score_mod } else { ScoreMod::General }
    }

    /// What raw scores are multiplied by under a softcap alone, without its sign: `2 log2(e) scale / softcap`.
    fn softcap_factor(&self) -> f64 {
        let softcap = f64::from(self.softcap.unwrap_or(f32::INFINITY));
        2.0 * std::f64::consts::LOG2_E * f64::from(magnitude(self.scale)) / softcap
    }

    /// The power of two that general kernels multiply scores, softcap and bias by: no sum of a finite score and a
    /// finite bias is beyond f32 then. See [`AttentionArgs::bias_scale`].
    fn bias_scale(&self) -> f32 {
        // What a power of two this large leaves below f32::MAX is more than bf16 has above its largest number.
        const HARMLESS: f32 = (1u128 << 100) as f32;
        match self.softcap {
            // No finite score is as large, so the scale keeps all its bits, however few it has.
            _ if self.scale.abs() <= HARMLESS / f32::MAX => 1.0,
            Some(softcap) if softcap <= HARMLESS => 1.0,
            Some(_) => 0.5,
            // Raw scores are f32: half of `scale` times the largest of them is below half of what f32 has, where scale
            // is at most 1.
            None => {
                let exponent = self.scale.abs().max(1.0).log2().ceil();
                (-1.0 - exponent).max(-126.0).exp2()
            }
        }
    }

    /// The arguments of a kernel for these scores that depend on the terms and the sizes alone.
    pub(super) fn arguments(&self, problem: &AttentionProblem, scores: ScoreMod) -> AttentionArgs {
        let (first_key, last_key) = self.mask.key_offsets(problem.q_len, problem.k_len);
        let (left, right) = self.mask.reach();
        let (scale_log2, q_sign) = scale_arguments(self.scale);
        let softcap = self.softcap.unwrap_or(f32::INFINITY);
        let magnitude = magnitude(self.scale);
        let bias_scale = self.bias_scale();
        let (scale_log2, scale, softcap) = match scores {
            ScoreMod::None => (scale_log2, magnitude, softcap),
            ScoreMod::Softcap => {
                let factor = (self.softcap_factor() as f32).max(LEAST);
                (scale_arguments(2.0 * softcap).0, -factor, softcap)
            }
            ScoreMod::General => (scale_arguments(bias_scale.recip()).0, magnitude * bias_scale, softcap * bias_scale),
        };
        AttentionArgs {
            q_heads: problem.q_heads as u32,
            heads_per_kv: (problem.q_heads / problem.kv_heads.max(1)) as u32,
            q_len: problem.q_len as u32,
            k_len: problem.k_len as u32,
            head_dim: problem.head_dim as u32,
            value_dim: self.value_dim as u32,
            first_key,
            last_key,
            left,
            right,
            scale_log2,
            exact_from: exact_from(scale_log2),
            scale,
            softcap,
            bias_scale,
            q_sign,
            ..AttentionArgs::default()
        }
    }

    /// Adds the tensors, which are checked to be those of the options and the problem.
    pub(super) fn add_tensors<T: Float>(
        &self,
        args: &mut AttentionArgs,
        problem: &AttentionProblem,
        sink: Option<&TensorRef<'_, f32, 1>>,
        bias: Option<&TensorRef<'_, T, 4>>,
    ) -> Result<()> {
        if let Some(sink) = sink {
            check_shape("sink", sink.shape(), &[problem.q_heads])?;
            args.sink = sink.as_raw();
        }
        if bias.is_some() != self.bias {
            let text = |bias: bool| if bias { "a tensor" } else { "none" }.to_owned();
            let expected = format!("{}, as the options of the plan say", text(self.bias));
            return Err(Error::Argument { op: OP, argument: "bias", got: text(!self.bias), expected });
        }
        if let Some(bias) = bias {
            let [batch, heads, rows, keys] = *bias.shape();
            let one_of = |got: usize, expected: usize| if got == 1 { 1 } else { expected };
            let expected = [one_of(batch, problem.batch), one_of(heads, problem.q_heads), problem.q_len, problem.k_len];
            check_shape("bias", &[batch, heads, rows, keys], &expected)?;
            let stride = |dim: usize| if bias.shape()[dim] > 1 { bias.strides()[dim] } else { 0 };
            args.bias = bias.as_raw();
            args.bias_strides = AttentionStrides { batch: stride(0), head: stride(1), row: stride(2) };
        }
        Ok(())
    }
}

/// The least number above 0, 2^-149.
const LEAST: f32 = f32::from_bits(1);

/// The scale without its sign, and above 0: a scale of 0 makes every score 0, and so does 2^-149, but for what is below
/// 2^-21, and keeps masked scores at minus infinity.
fn magnitude(scale: f32) -> f32 {
    scale.abs().max(LEAST)
}

/// The scale as kernels take it: `scale_log2` and `q_sign`.
fn scale_arguments(scale: f32) -> (f32, u32) {
    let scale_log2 = (f64::from(magnitude(scale)) * std::f64::consts::LOG2_E).min(f64::from(f32::MAX)) as f32;
    (scale_log2, if scale < 0.0 { 0x8000_8000 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::super::Layout;
    use super::*;

    const PROBLEM: AttentionProblem =
        AttentionProblem { batch: 2, q_heads: 6, kv_heads: 3, q_len: 5, k_len: 7, head_dim: 64 };

    fn terms(options: AttentionOptions) -> Result<Terms> {
        Terms::new(PROBLEM.head_dim, &options)
    }

    #[test]
    fn kernels_for_other_than_plain_scores_scale_before_the_softmax() {
        let plain = AttentionOptions { scale: Some(-0.5), ..AttentionOptions::new(Layout::Bhsd) };
        let log2_e = std::f32::consts::LOG2_E;
        // General ones halve scores and biases, so that their sums are within f32.
        for (scores, scale_log2, scale) in
            [(ScoreMod::None, log2_e / 2.0, 0.5), (ScoreMod::General, 2.0 * log2_e, 0.25)]
        {
            let args = terms(plain.clone()).unwrap().arguments(&PROBLEM, scores);
            assert_eq!((args.scale_log2, args.scale, args.q_sign), (scale_log2, scale, 0x8000_8000));
            assert_eq!((args.exact_from, args.softcap), (256.0 / scale_log2, f32::INFINITY));
        }
        // 2 cap / (1 + 2^(score factor)) - cap, where the softmax multiplies by 2 cap log2(e).
        let capped = AttentionOptions { softcap: Some(4.0), ..plain.clone() };
        let args = terms(capped.clone()).unwrap().arguments(&PROBLEM, ScoreMod::Softcap);
        assert_eq!((args.scale_log2, args.scale, args.softcap), (8.0 * log2_e, -2.0 * log2_e * 0.5 / 4.0, 4.0));
        for scale in [0.0, 1e-30, 1e38] {
            let options = AttentionOptions { scale: Some(scale), ..capped.clone() };
            let args = terms(options).unwrap().arguments(&PROBLEM, ScoreMod::Softcap);
            assert!(args.scale < 0.0 && args.scale.is_finite(), "{scale}");
        }
        // Factors that f32 has not, or not to the last bit.
        for (scale, softcap) in [(1e-38, 4.0), (f32::MAX, 1e-30)] {
            let options = AttentionOptions { scale: Some(scale), softcap: Some(softcap), ..plain.clone() };
            assert_eq!(terms(options).unwrap().scores(), ScoreMod::General, "{scale}, {softcap}");
        }
        let with_bias = |options: &AttentionOptions| AttentionOptions { bias: true, ..options.clone() };
        let wide = AttentionOptions { softcap: Some(100.0), ..plain.clone() };
        let kinds = [with_bias(&plain), with_bias(&capped), plain, capped, wide]
            .map(|options| terms(options).unwrap().scores());
        let general = ScoreMod::General;
        assert_eq!(kinds, [general, general, ScoreMod::None, ScoreMod::Softcap, general]);
    }

    /// Whatever the scale, half of the largest score and half of the largest bias are within f32, and what they are
    /// multiplied by has a power of two.
    #[test]
    fn scores_and_biases_of_any_scale_have_a_common_unit() {
        for scale in [1e-45, f32::MIN_POSITIVE, 1e-30, 0.125, 1.0, 1.5, 3e4, 1e30, 2e37] {
            let options = AttentionOptions { scale: Some(-scale), bias: true, ..AttentionOptions::new(Layout::Bhsd) };
            let args = terms(options).unwrap().arguments(&PROBLEM, ScoreMod::General);
            assert!((f32::MAX * args.scale + f32::MAX * args.bias_scale).is_finite(), "{scale}");
            assert!(args.scale_log2.is_finite() && args.bias_scale.log2().fract() == 0.0, "{scale}");
            assert_eq!(args.scale_log2 * args.bias_scale, std::f32::consts::LOG2_E);
            assert_eq!(args.scale / args.bias_scale, scale);
        }
        for (scale, expected) in [
            (f32::MAX, ScoreMod::General),
            (1e-38, ScoreMod::General),
            (1e-45, ScoreMod::General),
            (f32::MIN_POSITIVE, ScoreMod::None),
            (0.0, ScoreMod::None),
        ] {
            let options = AttentionOptions { scale: Some(scale), ..AttentionOptions::new(Layout::Bhsd) };
            assert_eq!(terms(options).unwrap().scores(), expected, "{scale}");
        }
    }

    #[test]
    fn values_have_the_head_dimension_of_queries_or_their_own() {
        for (value_dim, expected) in [(None, 64), (Some(40), 40), (Some(256), 256)] {
            let terms = terms(AttentionOptions { value_dim, ..AttentionOptions::new(Layout::Bhsd) }).unwrap();
            let args = terms.arguments(&PROBLEM, ScoreMod::None);
            assert_eq!((args.head_dim, args.value_dim), (64, expected));
        }
        for value_dim in [0, 12, 264] {
            let options = AttentionOptions { value_dim: Some(value_dim), ..AttentionOptions::new(Layout::Bhsd) };
            assert!(matches!(terms(options), Err(Error::Argument { argument: "value_dim", .. })), "{value_dim}");
        }
    }

    #[test]
    fn softcaps_are_positive_and_finite() {
        for cap in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, 1e-40] {
            let options = AttentionOptions { softcap: Some(cap), ..AttentionOptions::new(Layout::Bhsd) };
            assert!(matches!(terms(options), Err(Error::Argument { argument: "softcap", .. })), "{cap}");
        }
    }
}
