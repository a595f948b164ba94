//! The tensors of a call.

use crate::tensor::{TensorMut, TensorRef};

/// The tensors of one attention call, in the layout of its options.
#[derive(Debug)]
#[non_exhaustive]
pub struct AttentionTensors<'a, T> {
    /// Q `[batch, q_heads, q_len, head_dim]`.
    pub q: TensorRef<'a, T, 4>,
    /// K `[batch, kv_heads, k_len, head_dim]`.
    pub k: TensorRef<'a, T, 4>,
    /// V `[batch, kv_heads, k_len, head_dim]`.
    pub v: TensorRef<'a, T, 4>,
    /// O `[batch, q_heads, q_len, head_dim]`.
    pub out: TensorMut<'a, T, 4>,
    /// Where the LSE goes, `[batch, q_heads, q_len]` and contiguous.
    pub lse: Option<TensorMut<'a, f32, 3>>,
    /// Memory for partial results: at least [`AttentionPlan::workspace_bytes`](super::AttentionPlan::workspace_bytes) on a 16-byte
    /// boundary. What it holds does not matter, before and after. Runs that are under way at once need one each.
    pub workspace: Option<TensorMut<'a, u8, 1>>,
}

impl<'a, T> AttentionTensors<'a, T> {
    /// Inputs and output, without LSE and workspace.
    #[must_use]
    pub const fn new(
        q: TensorRef<'a, T, 4>,
        k: TensorRef<'a, T, 4>,
        v: TensorRef<'a, T, 4>,
        out: TensorMut<'a, T, 4>,
    ) -> Self {
        Self { q, k, v, out, lse: None, workspace: None }
    }
}
