//! The tensors of a call.

use crate::runtime::tensor::{TensorMut, TensorRef};

/// The tensors of one attention call, in the layout of its options.
#[derive(Debug)]
pub struct AttentionTensors<'a, T> {
    /// Q `[batch, q_heads, q_len, head_dim]`.
    pub q: TensorRef<'a, T, 4>,
    /// K `[batch, kv_heads, k_len, head_dim]`.
    pub k: TensorRef<'a, T, 4>,
    /// V `[batch, kv_heads, k_len, head_dim]`, or with a head dimension of its own.
    pub v: TensorRef<'a, T, 4>,
    /// O `[batch, q_heads, q_len, head_dim]`, with the head dimension of V.
    pub out: TensorMut<'a, T, 4>,
    /// Where the LSE goes, `[batch, q_heads, q_len]` and contiguous.
    pub lse: Option<TensorMut<'a, f32, 3>>,
    /// One score for each query head, `[q_heads]`: that of a key which every row sees and whose value is 0. `exp(sink)`
    /// is one more term of the sum that probabilities are divided by, and of the LSE. It is neither scaled nor capped.
    /// Of partial results that are merged, one has it.
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// What is added to scaled (and capped) scores, `[batch or 1, q_heads or 1, q_len, k_len]` whatever the layout, of
    /// any strides. It is there where [`AttentionOptions::bias`](super::AttentionOptions::bias) says so. A bias of
    /// minus infinity hides a key.
    pub bias: Option<TensorRef<'a, T, 4>>,
    /// Memory for partial results: at least [`AttentionPlan::workspace_bytes`](super::AttentionPlan::workspace_bytes)
    /// on a 16-byte boundary. What it holds does not matter, before and after. Runs that are under way at once need one
    /// each.
    pub workspace: Option<TensorMut<'a, u8, 1>>,
}

impl<'a, T> AttentionTensors<'a, T> {
    /// Inputs and output, without the optional tensors:
    /// `AttentionTensors { lse: Some(lse), ..AttentionTensors::new(q, k, v, out) }` has one.
    #[must_use]
    pub const fn new(
        q: TensorRef<'a, T, 4>,
        k: TensorRef<'a, T, 4>,
        v: TensorRef<'a, T, 4>,
        out: TensorMut<'a, T, 4>,
    ) -> Self {
        Self { q, k, v, out, lse: None, sink: None, bias: None, workspace: None }
    }
}
