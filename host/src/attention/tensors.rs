//! The tensors of one call.

use crate::element::Float;
use crate::tensor::{TensorMut, TensorRef};

/// The tensors of one call of attention. `AttentionTensors::new(q, k, v, out)` has none of the optional ones:
/// `AttentionTensors { sink: Some(sink), ..AttentionTensors::new(q, k, v, out) }` has one of them.
#[derive(Debug)]
pub struct AttentionTensors<'a, T: Float> {
    /// Q `[batch, q_heads, q_len, head_dim]`, its dimensions in the order of [`AttentionOptions::layout`], of any strides.
    ///
    /// [`AttentionOptions::layout`]: crate::AttentionOptions::layout
    pub q: TensorRef<'a, T, 4>,
    /// K `[batch, kv_heads, k_len, head_dim]`, as Q.
    pub k: TensorRef<'a, T, 4>,
    /// V, as K.
    pub v: TensorRef<'a, T, 4>,
    /// O, shaped as Q.
    pub out: TensorMut<'a, T, 4>,
    /// Receives the LSE `[batch, q_heads, q_len]`, contiguous.
    pub lse: Option<TensorMut<'a, f32, 3>>,
    /// One score for each query head, `[q_heads]`: that of a key which every row sees and whose value is 0. `exp(sink)` is one
    /// more term of the sum that probabilities are divided by, and of the LSE. It is neither scaled nor capped.
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// What is added to scaled (and capped) scores, `[batch or 1, q_heads or 1, q_len, k_len]` whatever the layout, of any strides.
    /// It is there where [`AttentionOptions::bias`] says so. A bias of minus infinity hides a key.
    ///
    /// [`AttentionOptions::bias`]: crate::AttentionOptions::bias
    pub bias: Option<TensorRef<'a, T, 4>>,
}

impl<'a, T: Float> AttentionTensors<'a, T> {
    /// The tensors that every call has.
    pub const fn new(
        q: TensorRef<'a, T, 4>,
        k: TensorRef<'a, T, 4>,
        v: TensorRef<'a, T, 4>,
        out: TensorMut<'a, T, 4>,
    ) -> Self {
        Self { q, k, v, out, lse: None, sink: None, bias: None }
    }
}
