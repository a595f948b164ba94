//! What a trial asks of attention: what is computed and how it is run, in one struct that a trial changes field by
//! field.

use ferrotile::{
    Accumulation, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, Dtype, Gpu, Keys, Layout, Mask,
    Result,
};

/// The fields of [`AttentionParams`] and of [`AttentionOptions`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of the library's structs")]
pub struct Request {
    pub layout: Layout,
    pub mask: Mask,
    pub scale: Option<f32>,
    pub softcap: Option<f32>,
    pub bias: bool,
    pub value_dim: Option<usize>,
    pub out: Option<Dtype>,
    pub out_scale: Option<f32>,
    pub kv: Option<Dtype>,
    pub kernel: Option<String>,
    pub accumulation: Accumulation,
    pub splits: Option<usize>,
    pub isolated: bool,
    pub max_workspace_bytes: usize,
}

impl Request {
    /// Full attention of the usual scale, by the library's choice.
    #[must_use]
    pub const fn new(layout: Layout) -> Request {
        Request {
            layout,
            mask: Mask::Full,
            scale: None,
            softcap: None,
            bias: false,
            value_dim: None,
            out: None,
            out_scale: None,
            kv: None,
            kernel: None,
            accumulation: Accumulation::TwoLevel,
            splits: None,
            isolated: false,
            max_workspace_bytes: 0,
        }
    }

    /// What is computed.
    #[must_use]
    pub const fn params(&self) -> AttentionParams {
        let Request { layout, mask, scale, softcap, bias, value_dim, out, out_scale, kv, .. } = *self;
        AttentionParams { layout, mask, scale, softcap, bias, value_dim, out, out_scale, kv }
    }

    /// How it is run.
    #[must_use]
    pub fn options(&self) -> AttentionOptions {
        let Request { accumulation, splits, isolated, max_workspace_bytes, .. } = *self;
        AttentionOptions { kernel: self.kernel.clone(), accumulation, splits, isolated, max_workspace_bytes }
    }

    /// A plan for these sizes.
    ///
    /// # Errors
    /// Those of [`AttentionPlan::new`].
    pub fn plan(&self, gpu: &Gpu, dtype: Dtype, keys: impl Into<Keys>) -> Result<AttentionPlan> {
        AttentionPlan::new(gpu, dtype, &AttentionProblem::new(keys, self.params()), &self.options())
    }
}
