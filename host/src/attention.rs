//! Attention forward: `O = softmax(scale * Q K^T + mask) V`, with softcap, bias and sinks where they are wanted, for
//! batches, for sequences of several lengths and for keys in pages.
//!
//! A call goes down once: [`attention`] makes an [`AttentionPlan`], whose run erases the types of the tensors, checks
//! them, fills the arguments of the kernel and launches it.

mod arguments;
mod choice;
mod decode;
mod layout;
mod merge;
mod options;
mod plan;
mod problem;
mod scheduler;
mod sizes;
mod tensors;
mod tiles;
mod tma;
mod validate;

pub use choice::attention_kernels;
pub use layout::Layout;
pub use merge::{MergePlan, MergeTensors, PartialAttention, RawMergeTensors, merge};
pub use options::AttentionOptions;
pub use plan::AttentionPlan;
pub use problem::{AttentionParams, AttentionProblem};
pub use sizes::{BatchedSizes, Keys, PagedSizes, VarlenSizes};
pub use tensors::{
    AttentionOperands, AttentionTensors, Descales, PagedTensors, RawAttentionTensors, RawKeys, VarlenTensors,
};

use crate::element::Float;
use crate::error::Result;
use crate::runtime::stream::StreamRef;

/// Computes attention on `stream` and returns before it is done:
/// `s_ij = softcap(scale * q_i . k_j) + bias_ij` where row i sees key j, `LSE_i = ln (exp(sink) + sum_j exp(s_ij))` and
/// `O_i = sum_j exp(s_ij - LSE_i) v_j`.
///
/// Q and O are `[batch, q_heads, q_len, head_dim]`, K and V `[batch, kv_heads, k_len, head_dim]`, their dimensions in
/// the order of [`AttentionParams::layout`] and with any strides; V and O may have another head dimension; the LSE is
/// `[batch, q_heads, q_len]` and contiguous. Every length may be 0. A row that sees no key, or no score above minus
/// infinity, gives 0 and its sink as LSE, or minus infinity without one. Scores, softmax and sums are f32; the
/// tensor-core kernels round the probabilities to `T` before P V.
///
/// [`AttentionParams::bias`] and [`AttentionParams::value_dim`] are taken from the tensors. This call uses no
/// workspace: [`AttentionPlan`] does where it is faster, for a few query rows on many keys.
///
/// NaN and infinity spread as in the formula. In tensor-core kernels they may reach one element more: NaN or infinity
/// in V makes NaN in its column of O for rows that do not see the key, too, if another row of the same tile of query
/// rows visits the tile of keys that holds it.
///
/// ```
/// use ferrotile::{
///     Arch, AttentionOptions, AttentionParams, AttentionTensors, Buffer, Gpu, Layout, Mask, TensorMut, TensorRef,
///     attention,
/// };
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80); // or Gpu::new(0)?
/// let stream = gpu.new_stream()?;
/// let shape = [1, 2, 16, 64]; // batch, heads, sequence, head dimension
/// let data = Buffer::upload_blocking(&stream, &[f16::ONE; 2 * 16 * 64])?;
/// let mut out = Buffer::<f16>::zeroed(&gpu, data.len())?;
/// let input = TensorRef::contiguous(&data, shape)?;
/// attention(
///     &stream,
///     AttentionTensors::new(input, input, input, TensorMut::contiguous(&mut out, shape)?),
///     &AttentionParams { mask: Mask::Causal, ..AttentionParams::new(Layout::Bhsd) },
///     &AttentionOptions::default(),
/// )?;
/// let result: Vec<f16> = out.download_blocking(&stream)?;
/// assert!(result.iter().all(|&x| x == f16::ONE));
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`], [`Error::UnsupportedType`], [`Error::UnknownKernel`] or
/// [`Error::WrongDevice`] for tensors, parameters or options that do not fit, before anything is enqueued;
/// [`Error::Driver`] where the driver refuses the launch.
///
/// [`Error::Shape`]: crate::Error::Shape
/// [`Error::Argument`]: crate::Error::Argument
/// [`Error::UnsupportedType`]: crate::Error::UnsupportedType
/// [`Error::UnknownKernel`]: crate::Error::UnknownKernel
/// [`Error::WrongDevice`]: crate::Error::WrongDevice
/// [`Error::Driver`]: crate::Error::Driver
pub fn attention<'s, T: Float, O: Float, KV: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: AttentionTensors<'_, T, O, KV>,
    params: &AttentionParams,
    options: &AttentionOptions,
) -> Result<()> {
    let (bias, value_dim) = (tensors.bias.is_some(), Some(tensors.v.shape()[3]));
    let params = AttentionParams { bias, value_dim, out: Some(O::DTYPE), kv: Some(KV::DTYPE), ..*params };
    let problem = AttentionProblem::new(tensors.sizes(params.layout)?, params);
    AttentionPlan::run_once(stream.into(), T::DTYPE, &problem, options, tensors)
}

/// Computes attention on sequences of several lengths, with at most `max_q_len` rows and `max_k_len` keys each, on
/// `stream`, and returns before it is done. See [`attention`](crate::attention()) for what is computed.
///
/// `max_lens` is `[max_q_len, max_k_len]`. [`AttentionParams::bias`] and [`AttentionParams::value_dim`] are taken from
/// the tensors; the layout, splits and workspace are not used.
///
/// ```
/// use ferrotile::{
///     Arch, AttentionOptions, AttentionParams, Buffer, Descales, Gpu, Layout, TensorMut, TensorRef, VarlenTensors,
///     attention_varlen,
/// };
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let shape = [24, 1, 64]; // rows of all sequences, heads, head dimension
/// let data = Buffer::upload_blocking(&stream, &[f16::ONE; 24 * 64])?;
/// let starts = Buffer::upload_blocking(&stream, &[0, 8, 24])?; // sequences of 8 and 16 rows
/// let mut out = Buffer::<f16>::zeroed(&gpu, data.len())?;
/// let input = TensorRef::contiguous(&data, shape)?;
/// let tensors = VarlenTensors {
///     q: input,
///     k: input,
///     v: input,
///     out: TensorMut::contiguous(&mut out, shape)?,
///     descales: Descales::NONE,
///     cu_seqlens_q: TensorRef::contiguous(&starts, [3])?,
///     cu_seqlens_k: TensorRef::contiguous(&starts, [3])?,
///     lse: None,
///     sink: None,
///     bias: None,
/// };
/// attention_varlen(
///     &stream, tensors, [16, 16], &AttentionParams::new(Layout::Bshd), &AttentionOptions::default(),
/// )?;
/// assert!(out.download_blocking(&stream)?.iter().all(|&x| x == f16::ONE));
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Numbers that do not describe sequences
/// `cu_seqlens_q` and `cu_seqlens_k` stand on the card, where the work reads them: no call knows them before. Those
/// that do not ascend, are negative, or lie beyond the tensor are no error; [`VarlenSizes::validate_blocking`] finds
/// them. Whatever the numbers are, nothing outside of the tensors is read or written:
/// - A number below 0 counts as the rows of the tensor, as one beyond them does.
/// - A batch entry that ends where it starts, or before, has no rows. Where it is so for its keys, its rows see none.
/// - A batch entry of more rows than `max_q_len` has the first of them, and the same of its keys.
/// - The rows of every batch entry are written, and no others. But where the numbers of `cu_seqlens_q`, so counted, do
///   not ascend, the rows of an entry may stay unwritten. Each element of a row that several entries have is then the
///   result of one of them; an emulated device reports a race.
///
/// Of 64 rows, `[0, 30, 64, 70]` has entries of 30, 34 and no rows, and `[-4, 30, 64]` of none and 34: rows 0 to 29
/// stay unwritten.
///
/// # Errors
/// As [`attention`](crate::attention()).
pub fn attention_varlen<'s, T: Float, O: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: VarlenTensors<'_, T, O>,
    max_lens: [usize; 2],
    params: &AttentionParams,
    options: &AttentionOptions,
) -> Result<()> {
    let (bias, value_dim) = (tensors.bias.is_some(), Some(tensors.v.shape()[2]));
    let params = AttentionParams { bias, value_dim, out: Some(O::DTYPE), kv: None, ..*params };
    let problem = AttentionProblem::new(tensors.sizes(max_lens), params);
    AttentionPlan::run_once(stream.into(), T::DTYPE, &problem, options, tensors)
}

/// Computes attention of up to 16 query rows on keys and values in pages, on `stream`, and returns before it is done.
///
/// Batch entry b has `k_lens[b]` keys, in the pages that its row of the block table names; its query rows stand at the
/// last of them, as masks see it. The block table and the numbers of keys are read on the card. Two things make NaN of
/// the O and LSE that depend on them: an entry of the table that is in use and names no page, and a number of keys
/// below 0 or above `table_len * page_len`. Nothing is read outside of K and V. No call knows these numbers beforehand;
/// [`PagedSizes::validate_blocking`] finds wrong ones. Otherwise as [`attention`](crate::attention()).
///
/// [`AttentionParams::bias`] and [`AttentionParams::value_dim`] are taken from the tensors. This call uses no
/// workspace: [`AttentionPlan`] does where it is faster.
///
/// ```
/// use ferrotile::{
///     Arch, AttentionOptions, AttentionParams, Buffer, Gpu, Layout, PagedTensors, TensorMut, TensorRef,
///     paged_attention,
/// };
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let q = Buffer::upload_blocking(&stream, &[f16::ONE; 64])?; // one row of one head
/// let pages = Buffer::upload_blocking(&stream, &[f16::ONE; 3 * 16 * 64])?; // three pages of 16 keys
/// let table = Buffer::upload_blocking(&stream, &[2, 0])?;
/// let k_lens = Buffer::upload_blocking(&stream, &[20])?; // 16 keys of page 2 and 4 of page 0
/// let mut out = Buffer::<f16>::zeroed(&gpu, 64)?;
/// let kv = TensorRef::contiguous(&pages, [3, 16, 1, 64])?;
/// let tensors = PagedTensors::new(
///     TensorRef::contiguous(&q, [1, 1, 1, 64])?,
///     [kv, kv],
///     TensorRef::contiguous(&table, [1, 2])?,
///     TensorRef::contiguous(&k_lens, [1])?,
///     TensorMut::contiguous(&mut out, [1, 1, 1, 64])?,
/// );
/// paged_attention(&stream, tensors, &AttentionParams::new(Layout::Bhsd), &AttentionOptions::default())?;
/// assert_eq!(out.download_blocking(&stream)?, [f16::ONE; 64]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// # Errors
/// As [`attention`](crate::attention()), and [`Error::Unsupported`](crate::Error::Unsupported) for more query rows.
pub fn paged_attention<'s, T: Float, KV: Float>(
    stream: impl Into<StreamRef<'s>>,
    tensors: PagedTensors<'_, T, KV>,
    params: &AttentionParams,
    options: &AttentionOptions,
) -> Result<()> {
    let (bias, value_dim) = (tensors.bias.is_some(), Some(tensors.v_pages.shape()[3]));
    let params = AttentionParams { bias, value_dim, out: Some(T::DTYPE), kv: Some(KV::DTYPE), ..*params };
    let problem = AttentionProblem::new(tensors.sizes(params.layout), params);
    let options = AttentionOptions { splits: Some(1), ..options.clone() };
    AttentionPlan::run_once(stream.into(), T::DTYPE, &problem, &options, tensors)
}
