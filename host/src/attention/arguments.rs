//! What every kernel is told of a call: one `AttentionArgs`.

use layout::Dtype;
use variants::attention::{
    AttentionArgs, AttentionStrides, DescaleArgs, DescaleTensor, HEAD_DIM_STEP, ScoreMod, exact_from,
};

use super::layout::Layout;
use super::problem::{LEAST, ResolvedParams, magnitude};
use super::sizes::{BatchedSizes, OP};
use super::tensors::{RawAttentionTensors, RawKeys};
use crate::checks::{ALIGN_BYTES, argument, has_element_type, has_shape, rows_aligned, rows_aligned_to};
use crate::element::ElementType;
use crate::error::Result;
use crate::runtime::param::KernelParam;
use crate::runtime::raw_tensor::RawTensor;

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for AttentionArgs {}
// SAFETY: as above.
unsafe impl KernelParam for DescaleArgs {}

impl ResolvedParams {
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

    /// What kernels multiply an O of E4M3 by; 0 for one of another type.
    pub(super) fn out_scale(&self, out: Dtype) -> f32 {
        if out == Dtype::E4M3 { self.out_scale } else { 0.0 }
    }

    /// The arguments of a kernel for these scores that depend on the parameters and the sizes alone.
    pub(super) fn arguments(&self, sizes: &BatchedSizes, score_mod: ScoreMod) -> AttentionArgs {
        let (first_key, last_key) = self.mask.key_offsets(sizes.q_len, sizes.k_len);
        let (left, right) = self.mask.reach();
        let (scale_log2, q_sign) = scale_arguments(self.scale);
        let softcap = self.softcap.unwrap_or(f32::INFINITY);
        let magnitude = magnitude(self.scale);
        let bias_scale = self.bias_scale();
        let (scale_log2, scale, softcap) = match score_mod {
            ScoreMod::None => (scale_log2, magnitude, softcap),
            ScoreMod::Softcap => {
                let factor = (self.softcap_factor() as f32).max(LEAST);
                (scale_arguments(2.0 * softcap).0, -factor, softcap)
            }
            ScoreMod::General => (scale_arguments(bias_scale.recip()).0, magnitude * bias_scale, softcap * bias_scale),
        };
        AttentionArgs {
            q_heads: sizes.q_heads as u32,
            heads_per_kv: (sizes.q_heads / sizes.kv_heads.max(1)) as u32,
            q_len: sizes.q_len as u32,
            k_len: sizes.k_len as u32,
            head_dim: sizes.head_dim as u32,
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

    /// Adds sink and bias, which are checked to be those of the parameters and the sizes, of the longest sequences. The
    /// bias has the element type of the O of the configuration.
    pub(super) fn add_score_tensors(
        &self,
        args: &mut AttentionArgs,
        sizes: &BatchedSizes,
        (tensors, out): (&RawAttentionTensors, Dtype),
    ) -> Result<()> {
        if let Some(sink) = &tensors.sink {
            has_element_type(OP, "sink", sink, ElementType::F32)?;
            has_shape(OP, "sink", sink.shape(), &[sizes.q_heads])?;
            args.sink = sink.as_raw();
        }
        if tensors.bias.is_some() != self.bias {
            let text = |bias: bool| if bias { "a tensor" } else { "none" };
            let expected = format!("{}, as the parameters of the plan say", text(self.bias));
            return Err(argument(OP, "bias", text(!self.bias), expected));
        }
        if let Some(bias) = &tensors.bias {
            has_element_type(OP, "bias", bias, out.into())?;
            let one_of = |dim: usize, expected: usize| if bias.shape().get(dim) == Some(&1) { 1 } else { expected };
            let expected = [one_of(0, sizes.batch), one_of(1, sizes.q_heads), sizes.q_len, sizes.k_len];
            has_shape(OP, "bias", bias.shape(), &expected)?;
            args.bias = bias.as_raw();
            args.bias_strides = AttentionStrides { batch: bias.step(0), head: bias.step(1), row: bias.step(2) };
        }
        Ok(())
    }
}

/// Adds addresses, strides and alignment of Q, K, V, O and LSE, which are checked.
pub(super) fn add_tensors(args: &mut AttentionArgs, layout: Layout, tensors: &RawAttentionTensors) {
    let RawAttentionTensors { q, k, v, out, lse, keys, .. } = tensors;
    // Pages stand where batch entries do otherwise, whatever the layout of Q and O.
    let (q_layout, k_layout) = match keys {
        RawKeys::Batched => (layout, layout),
        RawKeys::Varlen { .. } => (Layout::Bshd, Layout::Bshd),
        RawKeys::Paged { .. } => (layout, Layout::Bshd),
    };
    [args.q, args.k, args.v, args.o] = [q, k, v, out].map(RawTensor::as_raw);
    args.lse = lse.as_ref().map_or(0, RawTensor::as_raw);
    [args.q_strides, args.o_strides] = [q, out].map(|tensor| kernel_strides(q_layout, tensor));
    [args.k_strides, args.v_strides] = [k, v].map(|tensor| kernel_strides(k_layout, tensor));
    let is_aligned = |tensor: &RawTensor| match tensor.element_type() {
        // Kernels read as many elements of 8-bit integers at a time as of 16 bits.
        ElementType::U8 => rows_aligned_to(tensor, HEAD_DIM_STEP),
        // Rows of 8-bit elements may end with half a chunk.
        kind => rows_aligned(tensor) && (tensor.dim(3) * kind.size_bytes()).is_multiple_of(ALIGN_BYTES),
    };
    args.inputs_aligned = u32::from([q, k, v].into_iter().all(is_aligned));
    args.output_aligned = u32::from(rows_aligned(out));
}

/// The factors of 8-bit inputs, which are checked to be those of the sizes; other inputs have none. Tensors of FP8 may
/// have them, and those of 8-bit integers must: without a factor an integer stands for nothing.
pub(super) fn descale_arguments(sizes: &BatchedSizes, tensors: &RawAttentionTensors) -> Result<DescaleArgs> {
    let mut args = DescaleArgs { q_heads_per_factor: 1, ..DescaleArgs::default() };
    let places = [&mut args.q, &mut args.k, &mut args.v];
    let inputs = [&tensors.q, &tensors.k, &tensors.v];
    for (((name, place), factors), input) in DESCALES.into_iter().zip(places).zip(&tensors.descales).zip(inputs) {
        let Some(factors) = factors else {
            if input.element_type() == ElementType::U8 {
                let expected = "a tensor: inputs of u8 have factors, one or one for each head";
                return Err(argument(OP, name, "none", expected));
            }
            continue;
        };
        if input.element_type().size_bytes() != 1 {
            return Err(argument(OP, name, "a tensor", "none: the tensor is not of FP8 or u8"));
        }
        has_element_type(OP, name, factors, ElementType::F32)?;
        let heads = match factors.shape().get(1) {
            Some(&heads) if heads == 1 || name == DESCALES[0] && heads == sizes.q_heads => heads,
            _ => sizes.kv_heads,
        };
        let batch = if factors.shape().first() == Some(&1) { 1 } else { sizes.batch };
        has_shape(OP, name, factors.shape(), &[batch, heads])?;
        *place = DescaleTensor { address: factors.as_raw(), batch: factors.step(0), head: factors.step(1) };
    }
    if let [Some(factors), ..] = &tensors.descales {
        args.q_heads_per_factor = (sizes.q_heads / factors.dim(1).max(1)).max(1) as u32;
    }
    Ok(args)
}

/// What factors are called, in the order of [`RawAttentionTensors::descales`].
pub(super) const DESCALES: [&str; 3] = ["descale factors of Q", "descale factors of K", "descale factors of V"];

/// The strides as kernels take them: 0 along a dimension that is never stepped along.
pub(super) fn kernel_strides(layout: Layout, tensor: &RawTensor) -> AttentionStrides {
    let [batch, head, row, _] = layout.reorder(std::array::from_fn(|dim| tensor.step(dim)));
    AttentionStrides { batch, head, row }
}

/// The scale as kernels take it: `scale_log2` and `q_sign`.
fn scale_arguments(scale: f32) -> (f32, u32) {
    let scale_log2 = (f64::from(magnitude(scale)) * std::f64::consts::LOG2_E).min(f64::from(f32::MAX)) as f32;
    (scale_log2, if scale < 0.0 { 0x8000_8000 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::problem::AttentionParams;
    use super::*;
    use crate::error::Error;

    const SIZES: BatchedSizes = BatchedSizes { batch: 2, q_heads: 6, kv_heads: 3, q_len: 5, k_len: 7, head_dim: 64 };

    fn params(params: AttentionParams) -> Result<ResolvedParams> {
        ResolvedParams::new(SIZES.head_dim, &params)
    }

    #[test]
    fn kernels_for_other_than_plain_scores_scale_before_the_softmax() {
        let plain = AttentionParams { scale: Some(-0.5), ..AttentionParams::new(Layout::Bhsd) };
        let log2_e = std::f32::consts::LOG2_E;
        // General ones halve scores and biases, so that their sums are within f32.
        for (scores, scale_log2, scale) in
            [(ScoreMod::None, log2_e / 2.0, 0.5), (ScoreMod::General, 2.0 * log2_e, 0.25)]
        {
            let args = params(plain).unwrap().arguments(&SIZES, scores);
            assert_eq!((args.scale_log2, args.scale, args.q_sign), (scale_log2, scale, 0x8000_8000));
            assert_eq!((args.exact_from, args.softcap), (256.0 / scale_log2, f32::INFINITY));
        }
        // 2 cap / (1 + 2^(score factor)) - cap, where the softmax multiplies by 2 cap log2(e).
        let capped = AttentionParams { softcap: Some(4.0), ..plain };
        let args = params(capped).unwrap().arguments(&SIZES, ScoreMod::Softcap);
        assert_eq!((args.scale_log2, args.scale, args.softcap), (8.0 * log2_e, -2.0 * log2_e * 0.5 / 4.0, 4.0));
        for scale in [0.0, 1e-30, 1e38] {
            let options = AttentionParams { scale: Some(scale), ..capped };
            let args = params(options).unwrap().arguments(&SIZES, ScoreMod::Softcap);
            assert!(args.scale < 0.0 && args.scale.is_finite(), "{scale}");
        }
        // Factors that f32 has not, or not to the last bit.
        for (scale, softcap) in [(1e-38, 4.0), (f32::MAX, 1e-30)] {
            let options = AttentionParams { scale: Some(scale), softcap: Some(softcap), ..plain };
            assert_eq!(params(options).unwrap().score_mod(), ScoreMod::General, "{scale}, {softcap}");
        }
        let with_bias = |options: &AttentionParams| AttentionParams { bias: true, ..*options };
        let wide = AttentionParams { softcap: Some(100.0), ..plain };
        let kinds =
            [with_bias(&plain), with_bias(&capped), plain, capped, wide].map(|of| params(of).unwrap().score_mod());
        let general = ScoreMod::General;
        assert_eq!(kinds, [general, general, ScoreMod::None, ScoreMod::Softcap, general]);
    }

    /// Whatever the scale, half of the largest score and half of the largest bias are within f32, and the factor of
    /// both is a power of two.
    #[test]
    fn scores_and_biases_of_any_scale_have_a_common_unit() {
        for scale in [1e-45, f32::MIN_POSITIVE, 1e-30, 0.125, 1.0, 1.5, 3e4, 1e30, 2e37] {
            let options = AttentionParams { scale: Some(-scale), bias: true, ..AttentionParams::new(Layout::Bhsd) };
            let args = params(options).unwrap().arguments(&SIZES, ScoreMod::General);
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
            let options = AttentionParams { scale: Some(scale), ..AttentionParams::new(Layout::Bhsd) };
            assert_eq!(params(options).unwrap().score_mod(), expected, "{scale}");
        }
    }

    #[test]
    fn values_have_the_head_dimension_of_queries_or_their_own() {
        for (value_dim, expected) in [(None, 64), (Some(40), 40), (Some(256), 256)] {
            let resolved = params(AttentionParams { value_dim, ..AttentionParams::new(Layout::Bhsd) }).unwrap();
            let args = resolved.arguments(&SIZES, ScoreMod::None);
            assert_eq!((args.head_dim, args.value_dim), (64, expected));
        }
        for value_dim in [0, 12, 264] {
            let options = AttentionParams { value_dim: Some(value_dim), ..AttentionParams::new(Layout::Bhsd) };
            assert!(matches!(params(options), Err(Error::Argument { argument: "value_dim", .. })), "{value_dim}");
        }
    }

    #[test]
    fn softcaps_are_positive_and_finite() {
        for cap in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, 1e-40] {
            let options = AttentionParams { softcap: Some(cap), ..AttentionParams::new(Layout::Bhsd) };
            assert!(matches!(params(options), Err(Error::Argument { argument: "softcap", .. })), "{cap}");
        }
    }

    #[test]
    fn kernels_never_see_a_stride_that_is_not_taken() {
        let strides = |layout, shape: [usize; 4]| {
            kernel_strides(layout, &RawTensor::new(0, 0, ElementType::F16, &shape, &[9000, 700, 50, 1]).unwrap())
        };
        let all = AttentionStrides { batch: 9000, head: 700, row: 50 };
        assert_eq!(strides(Layout::Bhsd, [2, 3, 4, 64]), all);
        assert_eq!(strides(Layout::Bshd, [2, 4, 3, 64]), AttentionStrides { head: 50, row: 700, ..all });
        assert_eq!(strides(Layout::Bhsd, [2, 3, 1, 64]), AttentionStrides { row: 0, ..all });
        assert_eq!(strides(Layout::Bshd, [1, 1, 3, 64]), AttentionStrides { batch: 0, head: 50, row: 0 });
    }
}
