//! What the program asks of attention: what is computed, and how a card runs it.

use ferrotile::{
    Accumulation, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, Dtype, Gpu, Keys, Layout, Result,
};
use variants::attention::{ATTENTION, AttentionKernel};

/// Parameters and options of one request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// What is computed.
    pub(crate) params: AttentionParams,
    /// How a card runs it.
    pub(crate) options: AttentionOptions,
}

impl Request {
    /// Full attention of the usual scale, by the library's choice.
    pub(crate) fn new(layout: Layout) -> Request {
        Request { params: AttentionParams::new(layout), options: AttentionOptions::default() }
    }

    /// The same with a kernel by name, where there is a name.
    pub(crate) fn of_kernel(mut self, kernel: Option<String>) -> Request {
        self.options.kernel = kernel;
        self
    }

    /// The same for tensors of this kind: with a bias or without, and with this head dimension of V.
    pub(crate) fn of_tensors(mut self, bias: bool, value_dim: usize) -> Request {
        (self.params.bias, self.params.value_dim) = (bias, Some(value_dim));
        self
    }

    /// The same with an O of this element type.
    pub(crate) fn with_out(mut self, out: Dtype) -> Request {
        self.params.out = Some(out);
        self
    }

    /// How P V of FP8 inputs is summed: as the named kernel does, where there is one.
    pub(crate) fn accumulation(&self) -> Accumulation {
        let named = self.options.kernel.as_ref().and_then(|name| ATTENTION.iter().find(|config| config.name == name));
        match named.map(|config| config.kernel) {
            Some(AttentionKernel::Wgmma(tile)) => tile.accumulation,
            _ => self.options.accumulation,
        }
    }

    /// Whether attention of this head dimension of Q and K takes the request.
    pub(crate) fn check(&self, head_dim: usize) -> Result<()> {
        self.params.check(head_dim)?;
        self.options.check()
    }

    /// A plan for tensors of these sizes.
    pub(crate) fn plan(&self, gpu: &Gpu, dtype: Dtype, keys: impl Into<Keys>) -> Result<AttentionPlan> {
        AttentionPlan::new(gpu, dtype, &AttentionProblem::new(keys, self.params), &self.options)
    }
}
