//! What attention computes: sizes, and what is done to scores.

use layout::Dtype;
use variants::attention::{Mask, ScoreMod};

use super::layout::Layout;
use super::sizes::{BatchedSizes, Keys, OP, check_head_dim};
use crate::checks::argument;
use crate::error::Result;

/// What attention does with Q, K and V, whatever their sizes: `s_ij = softcap(scale * q_i . k_j) + bias_ij` where row i
/// sees key j, then `O = softmax(s) V`.
///
/// ```
/// use ferrotile::{AttentionParams, Layout, Mask};
///
/// let params = AttentionParams { mask: Mask::Causal, softcap: Some(30.0), ..AttentionParams::new(Layout::Bhsd) };
/// params.check(128)?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParams {
    /// What the dimensions of the tensors are. Sequences of several lengths and keys in pages have their own order.
    pub layout: Layout,
    /// Which keys a query row sees. The last row of a sequence stands at its last key.
    pub mask: Mask,
    /// What scores are multiplied by; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// What bounds scaled scores: `cap * tanh(score / cap)` takes their place. `None` bounds nothing.
    pub softcap: Option<f32>,
    /// Whether a bias is added to scores ([`AttentionTensors::bias`]). Functions that take tensors take this from them.
    ///
    /// [`AttentionTensors::bias`]: crate::AttentionTensors::bias
    pub bias: bool,
    /// Head dimension of V and O, a multiple of 8 up to 256; `None` is that of Q and K. Functions that take tensors
    /// take it from V.
    pub value_dim: Option<usize>,
    /// Element type of O; `None` is that of Q, or bf16 for inputs of FP8 or u8. Functions that take tensors take it
    /// from O.
    pub out: Option<Dtype>,
    /// What an O of E4M3 is multiplied by before it is rounded; `None` is 1. Numbers beyond 448 become 448. The factor
    /// of such an O is the reciprocal. Inputs of E4M3 alone can have it.
    pub out_scale: Option<f32>,
    /// Element type of K and V; `None` is that of Q. E4M3 beside a Q of f16 or bf16 is for up to 16 query rows, from
    /// sm_89 on. Functions that take tensors take it from K.
    pub kv: Option<Dtype>,
}

impl AttentionParams {
    /// Full attention with the usual scale.
    #[must_use]
    pub const fn new(layout: Layout) -> Self {
        Self {
            layout,
            mask: Mask::Full,
            scale: None,
            softcap: None,
            bias: false,
            value_dim: None,
            out: None,
            out_scale: None,
            kv: None,
        }
    }

    /// Whether attention of this head dimension of Q and K takes these numbers; plans check it too. Needs no card. What
    /// a mask leaves is not looked at.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) that names the number and what is allowed.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        ResolvedParams::new(head_dim, self).map(drop)
    }
}

/// One attention problem: its sizes and what is computed. How it is run stands in
/// [`AttentionOptions`](crate::AttentionOptions).
///
/// ```
/// use ferrotile::{AttentionParams, AttentionProblem, BatchedSizes, Layout, Mask};
///
/// let sizes = BatchedSizes { batch: 1, q_heads: 8, kv_heads: 8, q_len: 512, k_len: 512, head_dim: 64 };
/// let params = AttentionParams { mask: Mask::Causal, ..AttentionParams::new(Layout::Bhsd) };
/// AttentionProblem::new(sizes, params).check()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionProblem {
    /// How the keys lie, and the sizes.
    pub keys: Keys,
    /// What is computed.
    pub params: AttentionParams,
}

impl AttentionProblem {
    /// The problem of these sizes.
    #[must_use]
    pub fn new(keys: impl Into<Keys>, params: AttentionParams) -> Self {
        Self { keys: keys.into(), params }
    }

    /// Whether attention takes the problem; [`AttentionPlan::new`](crate::AttentionPlan::new) checks it too. Needs no
    /// card.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) that names the size or number and what is allowed;
    /// [`Error::Unsupported`](crate::Error::Unsupported) for more query rows than there are kernels for on keys in
    /// pages.
    pub fn check(&self) -> Result<()> {
        self.keys.check()?;
        self.params.check(self.keys.head_dim())
    }

    /// Head dimension of V and O.
    #[must_use]
    pub fn value_dim(&self) -> usize {
        self.params.value_dim.unwrap_or(self.keys.head_dim())
    }

    /// Element type of O, of inputs of this one.
    pub(super) const fn out(&self, inputs: Dtype) -> Dtype {
        match self.params.out {
            Some(out) => out,
            None if inputs.size_bytes() == 1 => Dtype::Bf16,
            None => inputs,
        }
    }

    /// Whether a scale of O is there for an O of E4M3 alone, of inputs of this type.
    pub(super) fn check_out_scale(&self, inputs: Dtype) -> Result<()> {
        match (self.params.out_scale, self.out(inputs)) {
            (Some(scale), out) if out != Dtype::E4M3 => {
                Err(argument(OP, "out_scale", scale, format!("none for an O of {out}: it is for one of e4m3")))
            }
            _ => Ok(()),
        }
    }

    /// Element type of K and V, beside a Q of this one.
    pub(super) fn kv(&self, dtype: Dtype) -> Dtype {
        self.params.kv.unwrap_or(dtype)
    }

    /// As many batch entries, all as long as the longest may be: what the shape of a bias is that of.
    pub(super) const fn longest(&self) -> BatchedSizes {
        self.keys.longest()
    }
}

/// Checked parameters, without those that are not said.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResolvedParams {
    pub(super) mask: Mask,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) bias: bool,
    pub(super) value_dim: usize,
    /// Of an O of E4M3.
    pub(super) out_scale: f32,
}

impl ResolvedParams {
    pub(super) fn new(head_dim: usize, params: &AttentionParams) -> Result<Self> {
        let AttentionParams { mask, softcap, bias, .. } = *params;
        let scale = params.scale.unwrap_or_else(|| 1.0 / (head_dim as f32).sqrt());
        let value_dim = params.value_dim.unwrap_or(head_dim);
        let out_scale = params.out_scale.unwrap_or(1.0);
        check_head_dim("value_dim", value_dim)?;
        if !scale.is_finite() {
            return Err(argument(OP, "scale", scale, "a finite number"));
        }
        if !(out_scale.is_finite() && out_scale > 0.0) {
            return Err(argument(OP, "out_scale", out_scale, "a finite number above 0"));
        }
        match softcap {
            // Smaller ones have no reciprocal in f32.
            Some(cap) if !(cap.is_finite() && cap >= f32::MIN_POSITIVE && cap.recip() >= f32::MIN_POSITIVE) => {
                Err(argument(OP, "softcap", cap, "a number from 2^-126 to 2^126, or none"))
            }
            _ => Ok(Self { mask, scale, softcap, bias, value_dim, out_scale }),
        }
    }

    /// What kernels must do to scores. Where the factor of the softmax or of a softcap is no normal number of f32, the
    /// scale is applied by itself.
    pub(super) fn score_mod(&self) -> ScoreMod {
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
    pub(super) fn softcap_factor(&self) -> f64 {
        let softcap = f64::from(self.softcap.unwrap_or(f32::INFINITY));
        2.0 * std::f64::consts::LOG2_E * f64::from(magnitude(self.scale)) / softcap
    }
}

/// The least number above 0, 2^-149.
pub(super) const LEAST: f32 = f32::from_bits(1);

/// The scale without its sign, and above 0. A scale of 0 would make every score 0. So does 2^-149, except for
/// differences below 2^-21, and masked scores stay at minus infinity.
pub(super) fn magnitude(scale: f32) -> f32 {
    scale.abs().max(LEAST)
}
