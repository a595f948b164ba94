//! Attention forward: `O = softmax(scale * Q K^T + mask) V`, with softcap, bias and sinks where they are wanted, and
//! for sequences of several lengths.
//!
//! ```no_run
//! use ferrotile::{AttentionOptions, Buffer, Gpu, Layout, Mask, TensorMut, TensorRef, attention};
//! use half::f16;
//!
//! # fn main() -> ferrotile::Result<()> {
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.new_stream()?;
//! let shape = [1, 8, 512, 64]; // batch, heads, sequence, head dimension
//! let data = vec![f16::ONE; 512 * 8 * 64];
//! let (q, k, v) = (
//!     Buffer::upload_blocking(&stream, &data)?,
//!     Buffer::upload_blocking(&stream, &data)?,
//!     Buffer::upload_blocking(&stream, &data)?,
//! );
//! let mut out = Buffer::zeroed(&gpu, data.len())?;
//! attention(
//!     stream.as_ref(),
//!     TensorRef::contiguous(&q, shape)?,
//!     TensorRef::contiguous(&k, shape)?,
//!     TensorRef::contiguous(&v, shape)?,
//!     TensorMut::contiguous(&mut out, shape)?,
//!     None,
//!     &AttentionOptions { mask: Mask::Causal, ..AttentionOptions::new(Layout::Bhsd) },
//! )?;
//! let result: Vec<f16> = out.download_blocking(&stream)?;
//! # Ok(())
//! # }
//! ```

mod choice;
mod decode;
mod lengths;
mod merge;
mod paged;
mod plan;
mod problem;
mod tensors;
mod terms;
mod tma;
mod varlen;

use variants::attention::Mask;

pub use choice::attention_variants;
pub use merge::{MergePlan, merge};
pub use paged::{PagedAttentionPlan, PagedProblem, PagedTensors, paged_attention};
pub use plan::AttentionPlan;
pub use problem::AttentionProblem;
pub use tensors::AttentionTensors;
pub use varlen::{VarlenPlan, VarlenProblem, VarlenTensors, attention_varlen};

use crate::element::Float;
use crate::error::Result;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};
use terms::Terms;

const OP: &str = "attention";

/// What the four dimensions of Q, K, V and O are, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[batch, heads, sequence, head dimension]`.
    Bhsd,
    /// `[batch, sequence, heads, head dimension]`.
    Bshd,
}

impl Layout {
    /// Brings dimensions of this layout into the order batch, heads, sequence, head dimension, or back.
    #[must_use]
    pub fn reorder<T: Copy>(self, [batch, second, third, dim]: [T; 4]) -> [T; 4] {
        match self {
            Layout::Bhsd => [batch, second, third, dim],
            Layout::Bshd => [batch, third, second, dim],
        }
    }
}

/// How to compute attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionOptions {
    /// What the dimensions of the tensors are.
    pub layout: Layout,
    /// Which keys a query row sees.
    pub mask: Mask,
    /// What scores are multiplied by; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// What bounds scaled scores: `cap * tanh(score / cap)` takes their place. `None` bounds nothing.
    pub softcap: Option<f32>,
    /// Whether a bias is added to scores ([`AttentionTensors::bias`]). Functions that take a bias take this from it.
    pub bias: bool,
    /// Head dimension of V and O, a multiple of 8 up to 256; `None` is that of Q and K. Functions that take tensors
    /// take it from V.
    pub value_dim: Option<usize>,
    /// The compiled variant to run, by name; `None` picks the one that measures best.
    pub variant: Option<String>,
    /// The parts that the keys are split into where a few query rows see many keys, each for blocks of its own; `None`
    /// picks by the sizes.
    pub splits: Option<usize>,
    /// Whether each kernel starts only when the work before it on the stream has ended. Else, on sm_90, one that copies
    /// by TMA or adds up splits starts while the kernel before it still runs, and waits for its end before it reads or
    /// writes any memory: results are the same.
    pub isolated: bool,
    /// The most workspace that a plan may ask for. With 0 keys are not split between blocks, and a few rows of a few
    /// heads leave most of the card idle.
    pub max_workspace_bytes: usize,
}

impl AttentionOptions {
    /// Full attention of the usual scale on the best variant.
    #[must_use]
    pub const fn new(layout: Layout) -> Self {
        Self {
            layout,
            mask: Mask::Full,
            scale: None,
            softcap: None,
            bias: false,
            value_dim: None,
            variant: None,
            splits: None,
            isolated: false,
            max_workspace_bytes: 0,
        }
    }

    /// Whether attention of this head dimension of Q and K takes these numbers; plans check it too. Needs no card. The
    /// variant and what a mask leaves are not looked at.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) that names the option and what is allowed.
    pub fn check(&self, head_dim: usize) -> Result<()> {
        Terms::new(head_dim, self).map(drop)
    }
}

/// Computes attention on `stream` and returns before it is done.
///
/// `q` and `out` are `[batch, q_heads, q_len, head_dim]`, `k` and `v` `[batch, kv_heads, k_len, head_dim]`, their
/// dimensions in the order of [`AttentionOptions::layout`] and with any strides; `v` and `out` may have another head
/// dimension; `lse` is `[batch, q_heads, q_len]` and contiguous, and receives `ln sum_j exp(scale * q_i . k_j)`. Every
/// length may be 0. A row that sees no key, or no score above minus infinity, gives 0 and an LSE of minus infinity.
/// Scores, softmax and sums are f32; the tensor-core variants round the probabilities to `T` before P V.
///
/// This call uses no workspace: [`AttentionPlan`] does where it is faster, for a few query rows on many keys.
///
/// NaN and infinity spread as in the formula. Besides, in the tensor-core variants NaN and infinity in V make NaN, in
/// their column, of hidden rows too, where a row of the same tile of query rows visits the tile of keys that holds
/// them.
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`], [`Error::NoVariant`], [`Error::UnknownVariant`] or [`Error::WrongDevice`] for
/// tensors or options that do not fit, before anything is enqueued; [`Error::Driver`] where the driver refuses the
/// launch.
///
/// [`Error::Shape`]: crate::Error::Shape
/// [`Error::Argument`]: crate::Error::Argument
/// [`Error::NoVariant`]: crate::Error::NoVariant
/// [`Error::UnknownVariant`]: crate::Error::UnknownVariant
/// [`Error::WrongDevice`]: crate::Error::WrongDevice
/// [`Error::Driver`]: crate::Error::Driver
pub fn attention<T: Float>(
    stream: StreamRef<'_>,
    q: TensorRef<'_, T, 4>,
    k: TensorRef<'_, T, 4>,
    v: TensorRef<'_, T, 4>,
    out: TensorMut<'_, T, 4>,
    lse: Option<TensorMut<'_, f32, 3>>,
    options: &AttentionOptions,
) -> Result<()> {
    let problem = AttentionProblem::of_shapes(*q.shape(), *k.shape(), *v.shape(), options.layout)?;
    let options = AttentionOptions { value_dim: Some(v.shape()[3]), ..options.clone() };
    let tensors = AttentionTensors { lse, ..AttentionTensors::new(q, k, v, out) };
    AttentionPlan::for_call(stream.gpu(), &problem, &options, &tensors)?.run_with(stream, tensors)
}

/// As [`attention`], with all tensors that a call may have: `s_ij = softcap(scale * q_i . k_j) + bias_ij` where row i
/// sees key j, `LSE_i = ln (exp(sink) + sum_j exp(s_ij))` and `O_i = sum_j exp(s_ij - LSE_i) v_j`.
/// [`AttentionOptions::bias`] is taken from the tensors.
///
/// A row that sees no key gives 0, and its sink as LSE.
///
/// # Errors
/// As [`attention`].
pub fn attention_with<T: Float>(
    stream: StreamRef<'_>,
    tensors: AttentionTensors<'_, T>,
    options: &AttentionOptions,
) -> Result<()> {
    let AttentionTensors { q, k, v, bias, .. } = &tensors;
    let problem = AttentionProblem::of_shapes(*q.shape(), *k.shape(), *v.shape(), options.layout)?;
    let options = AttentionOptions { bias: bias.is_some(), value_dim: Some(v.shape()[3]), ..options.clone() };
    AttentionPlan::for_call(stream.gpu(), &problem, &options, &tensors)?.run_with(stream, tensors)
}
