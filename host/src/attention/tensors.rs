//! The tensors of a call, typed for Rust and erased for the kernels and for bindings.

use super::layout::Layout;
use super::sizes::{BatchedSizes, PagedSizes, VarlenSizes};
use crate::element::Float;
use crate::error::Result;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::tensor::{TensorMut, TensorRef};

/// The tensors of one attention call, in the layout of its parameters.
///
/// ```
/// # use ferrotile::{Arch, Gpu};
/// # let gpu = Gpu::emulated(Arch::Sm80);
/// # let stream = gpu.new_stream()?;
/// use ferrotile::{AttentionTensors, Buffer, TensorMut, TensorRef};
/// use half::f16;
///
/// let (data, mut out) = (Buffer::<f16>::zeroed(&gpu, 8 * 64)?, Buffer::<f16>::zeroed(&gpu, 8 * 64)?);
/// let mut lse = Buffer::<f32>::zeroed(&gpu, 8)?;
/// let input = TensorRef::contiguous(&data, [1, 1, 8, 64])?;
///
/// let tensors = AttentionTensors {
///     lse: Some(TensorMut::contiguous(&mut lse, [1, 1, 8])?),
///     ..AttentionTensors::new(input, input, input, TensorMut::contiguous(&mut out, [1, 1, 8, 64])?)
/// };
/// # let _ = tensors;
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// O has the element type `O`: that of Q, or f16, bf16 or E4M3 for inputs of E4M3, and f16 or bf16 for inputs of u8. K
/// and V have the element type `KV`: that of Q, or E4M3 beside up to 16 rows of Q of f16 or bf16.
#[derive(Debug)]
pub struct AttentionTensors<'a, T, O = T, KV = T> {
    /// Q `[batch, q_heads, q_len, head_dim]`.
    pub q: TensorRef<'a, T, 4>,
    /// K `[batch, kv_heads, k_len, head_dim]`.
    pub k: TensorRef<'a, KV, 4>,
    /// V `[batch, kv_heads, k_len, head_dim]`, or with a head dimension of its own.
    pub v: TensorRef<'a, KV, 4>,
    /// O `[batch, q_heads, q_len, head_dim]`, with the head dimension of V.
    pub out: TensorMut<'a, O, 4>,
    /// What elements of FP8 and of u8 are multiplied by; other inputs have none.
    pub descales: Descales<'a>,
    /// Where the LSE goes, `[batch, q_heads, q_len]` and contiguous.
    pub lse: Option<TensorMut<'a, f32, 3>>,
    /// One score for each query head, `[q_heads]`: that of a key which every row sees and whose value is 0. `exp(sink)`
    /// is one more term of the sum that probabilities are divided by, and of the LSE. It is neither scaled nor capped.
    /// Of partial results that are merged, one has it.
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// What is added to scaled (and capped) scores, `[batch or 1, q_heads or 1, q_len, k_len]` whatever the layout, of
    /// any strides. It is there where [`AttentionParams::bias`](crate::AttentionParams::bias) says so. A bias of
    /// minus infinity hides a key. It has the element type of O, or, where that is E4M3, f16: an O of E4M3 and a bias
    /// go together in [`RawAttentionTensors`] alone.
    pub bias: Option<TensorRef<'a, O, 4>>,
    /// Memory for partial results: at least [`AttentionPlan::workspace_bytes`](crate::AttentionPlan::workspace_bytes)
    /// on a 16-byte boundary. What it holds does not matter, before and after. Runs that are in flight at once need one
    /// each.
    pub workspace: Option<TensorMut<'a, u8, 1>>,
}

impl<'a, T, O, KV> AttentionTensors<'a, T, O, KV> {
    /// Inputs and output, without the optional tensors:
    /// `AttentionTensors { lse: Some(lse), ..AttentionTensors::new(q, k, v, out) }` has one.
    #[must_use]
    pub const fn new(
        q: TensorRef<'a, T, 4>,
        k: TensorRef<'a, KV, 4>,
        v: TensorRef<'a, KV, 4>,
        out: TensorMut<'a, O, 4>,
    ) -> Self {
        Self { q, k, v, out, descales: Descales::NONE, lse: None, sink: None, bias: None, workspace: None }
    }
}

impl<T, O, KV> AttentionTensors<'_, T, O, KV> {
    /// The sizes that the tensors have in this layout.
    ///
    /// # Errors
    /// Those of [`BatchedSizes::of_shapes`].
    pub fn sizes(&self, layout: Layout) -> Result<BatchedSizes> {
        BatchedSizes::of_shapes(*self.q.shape(), *self.k.shape(), *self.v.shape(), layout)
    }
}

/// The f32 factors that elements of FP8 inputs, and of u8, are multiplied by, on the card.
///
/// A tensor of FP8 without factors counts as it is. Tensors of u8 have factors, as [`quantize`](crate::quantize())
/// makes them: the integer q stands for `(q / 127.5 - 1) * 448` times its factor.
///
/// Shapes are `[batch or 1, heads or 1]`, of any strides: one factor for each head, or one for the tensor. Products of
/// the factors of Q and K and the scale are numbers that f32 has, and beside a Q of 16 bits products of its rows and of
/// keys with their factors.
///
/// ```
/// # use ferrotile::{Arch, Gpu};
/// # let gpu = Gpu::emulated(Arch::Sm90a);
/// # let stream = gpu.new_stream()?;
/// use ferrotile::{Buffer, Descales, TensorRef};
///
/// let (of_q, of_k) = (Buffer::upload_blocking(&stream, &[0.5])?, Buffer::upload_blocking(&stream, &[0.25, 1.0])?);
/// let descales = Descales {
///     q: Some(TensorRef::contiguous(&of_q, [1, 1])?), // one for the tensor
///     k: Some(TensorRef::contiguous(&of_k, [1, 2])?), // one for each of two heads of K, whatever the batch
///     ..Descales::NONE
/// };
/// # let _ = descales;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Descales<'a> {
    /// Those of Q: by head of Q, or by head of K, whose heads of Q share it.
    pub q: Option<TensorRef<'a, f32, 2>>,
    /// Those of K, by its heads.
    pub k: Option<TensorRef<'a, f32, 2>>,
    /// Those of V, by its heads.
    pub v: Option<TensorRef<'a, f32, 2>>,
}

impl Descales<'_> {
    /// No factors.
    pub const NONE: Self = Self { q: None, k: None, v: None };

    fn erased(&self) -> [Option<RawTensor>; 3] {
        [&self.q, &self.k, &self.v].map(|factors| factors.as_ref().map(TensorRef::erased))
    }
}

/// The tensors of one call on sequences of several lengths.
#[derive(Debug)]
pub struct VarlenTensors<'a, T: Float, O: Float = T> {
    /// Q `[q_total, q_heads, head_dim]`, of any strides: one batch entry after the other.
    pub q: TensorRef<'a, T, 3>,
    /// K `[k_total, kv_heads, head_dim]`, of any strides.
    pub k: TensorRef<'a, T, 3>,
    /// V, as K; its head dimension may be another.
    pub v: TensorRef<'a, T, 3>,
    /// O, shaped as Q, with the head dimension of V.
    pub out: TensorMut<'a, O, 3>,
    /// As [`AttentionTensors::descales`](crate::AttentionTensors::descales).
    pub descales: Descales<'a>,
    /// `[batch + 1]`: the first row of each batch entry in Q, and one number more, the row after its last one. Equal
    /// neighbours are an entry without rows. What is before the first number or after the last one belongs to nobody:
    /// it is neither read nor written. Numbers that do not describe sequences: see
    /// [`attention_varlen`](crate::attention_varlen).
    pub cu_seqlens_q: TensorRef<'a, i32, 1>,
    /// The same of K and V.
    pub cu_seqlens_k: TensorRef<'a, i32, 1>,
    /// Receives the LSE `[q_heads, q_total]`, contiguous.
    pub lse: Option<TensorMut<'a, f32, 2>>,
    /// As [`AttentionTensors::sink`](crate::AttentionTensors::sink).
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// As [`AttentionTensors::bias`](crate::AttentionTensors::bias),
    /// `[batch or 1, q_heads or 1, max_q_len, max_k_len]`: rows and keys are counted within their batch entry.
    pub bias: Option<TensorRef<'a, O, 4>>,
}

impl<T: Float, O: Float> VarlenTensors<'_, T, O> {
    /// The sizes that the tensors have, where the longest sequences have `max_q_len` rows and `max_k_len` keys.
    #[must_use]
    pub fn sizes(&self, [max_q_len, max_k_len]: [usize; 2]) -> VarlenSizes {
        let [q_total, q_heads, head_dim] = *self.q.shape();
        let [k_total, kv_heads, _] = *self.k.shape();
        let batch = self.cu_seqlens_q.shape()[0].saturating_sub(1);
        VarlenSizes { batch, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim }
    }
}

/// The tensors of attention on keys in pages.
///
/// Pages have the element type `KV`: that of Q and O, or E4M3 beside a Q and an O of f16 or bf16.
#[derive(Debug)]
pub struct PagedTensors<'a, T, KV = T> {
    /// Q `[batch, q_heads, q_len, head_dim]`, in the layout of the parameters.
    pub q: TensorRef<'a, T, 4>,
    /// K `[pages, page_len, kv_heads, head_dim]`, by any strides.
    pub k_pages: TensorRef<'a, KV, 4>,
    /// V, as K; its head dimension may be another, and is then that of O.
    pub v_pages: TensorRef<'a, KV, 4>,
    /// The block table `[batch, table_len]`: key j of batch entry b is row `j % page_len` of page `block_table[b][j /
    /// page_len]`. Entries for no key are not read, and can be anything; of others that name no page see
    /// [`paged_attention`](crate::paged_attention()).
    pub block_table: TensorRef<'a, i32, 2>,
    /// How many keys each batch entry has `[batch]`, from 0 to `table_len * page_len`.
    pub k_lens: TensorRef<'a, i32, 1>,
    /// O `[batch, q_heads, q_len, head_dim]`, in the layout of the parameters.
    pub out: TensorMut<'a, T, 4>,
    /// As [`AttentionTensors::descales`](crate::AttentionTensors::descales), whose batch entries are those of Q.
    pub descales: Descales<'a>,
    /// As [`AttentionTensors::lse`](crate::AttentionTensors::lse).
    pub lse: Option<TensorMut<'a, f32, 3>>,
    /// As [`AttentionTensors::sink`](crate::AttentionTensors::sink).
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// As [`AttentionTensors::bias`](crate::AttentionTensors::bias),
    /// `[batch or 1, q_heads or 1, q_len, table_len * page_len]`: keys are counted within their batch entry, and what
    /// is beyond the last of them is not read.
    pub bias: Option<TensorRef<'a, T, 4>>,
    /// As [`AttentionTensors::workspace`](crate::AttentionTensors::workspace).
    pub workspace: Option<TensorMut<'a, u8, 1>>,
}

impl<'a, T, KV> PagedTensors<'a, T, KV> {
    /// Inputs and output, without the optional tensors, which are added as in
    /// [`AttentionTensors::new`](crate::AttentionTensors::new).
    #[must_use]
    pub const fn new(
        q: TensorRef<'a, T, 4>,
        [k_pages, v_pages]: [TensorRef<'a, KV, 4>; 2],
        block_table: TensorRef<'a, i32, 2>,
        k_lens: TensorRef<'a, i32, 1>,
        out: TensorMut<'a, T, 4>,
    ) -> Self {
        let descales = Descales::NONE;
        let (lse, sink, bias, workspace) = (None, None, None, None);
        Self { q, k_pages, v_pages, block_table, k_lens, out, descales, lse, sink, bias, workspace }
    }
}

impl<T, KV> PagedTensors<'_, T, KV> {
    /// The sizes that the tensors have, of which Q and O are in this layout.
    #[must_use]
    pub fn sizes(&self, layout: Layout) -> PagedSizes {
        let [batch, q_heads, q_len, head_dim] = layout.reorder(*self.q.shape());
        let [pages, page_len, kv_heads, _] = *self.k_pages.shape();
        let table_len = self.block_table.shape()[1];
        PagedSizes { batch, q_heads, kv_heads, q_len, head_dim, pages, page_len, table_len }
    }
}

/// Where the keys of a call are, beside K and V: the erased tensors that only one form of attention has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawKeys {
    /// Those of [`AttentionTensors`]: none.
    Batched,
    /// Those of [`VarlenTensors`].
    Varlen {
        /// [`VarlenTensors::cu_seqlens_q`], of i32.
        cu_seqlens_q: RawTensor,
        /// [`VarlenTensors::cu_seqlens_k`], of i32.
        cu_seqlens_k: RawTensor,
    },
    /// Those of [`PagedTensors`].
    Paged {
        /// [`PagedTensors::block_table`], of i32.
        block_table: RawTensor,
        /// [`PagedTensors::k_lens`], of i32.
        k_lens: RawTensor,
    },
}

/// The erased tensors of one call, for [`AttentionPlan::run_raw`](crate::AttentionPlan::run_raw): shapes and meaning
/// are those of [`AttentionTensors`], [`VarlenTensors`] or [`PagedTensors`].
///
/// ```
/// # use ferrotile::{Arch, Gpu};
/// # let gpu = Gpu::emulated(Arch::Sm80);
/// # let stream = gpu.new_stream()?;
///
/// use ferrotile::{
///     AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, BatchedSizes, Buffer, Dtype, Layout,
///     RawAttentionTensors, RawKeys, TensorMut, TensorRef,
/// };
/// use half::f16;
///
/// let sizes = BatchedSizes { batch: 1, q_heads: 1, kv_heads: 1, q_len: 8, k_len: 8, head_dim: 64 };
/// let problem = AttentionProblem::new(sizes, AttentionParams::new(Layout::Bhsd));
/// let plan = AttentionPlan::new(&gpu, Dtype::F16, &problem, &AttentionOptions::default())?;
/// let data = Buffer::upload_blocking(&stream, &[f16::ONE; 8 * 64])?;
/// let mut out = Buffer::<f16>::zeroed(&gpu, 8 * 64)?;
/// let q = TensorRef::contiguous(&data, [1, 1, 8, 64])?.erased();
/// let tensors = RawAttentionTensors {
///     q, k: q, v: q, out: TensorMut::contiguous(&mut out, [1, 1, 8, 64])?.erased(),
///     descales: [None; 3], lse: None, sink: None, bias: None, workspace: None, keys: RawKeys::Batched,
/// };
/// // SAFETY: the buffers outlive the work, which the download waits for, and nothing else uses O.
/// unsafe { plan.run_raw(&stream, &tensors) }?;
/// assert_eq!(out.download_blocking(&stream)?, [f16::ONE; 8 * 64]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawAttentionTensors {
    /// Q.
    pub q: RawTensor,
    /// K, or its pages.
    pub k: RawTensor,
    /// V, or its pages.
    pub v: RawTensor,
    /// O, which is written.
    pub out: RawTensor,
    /// The factors of Q, K and V, of f32: those of [`Descales`].
    pub descales: [Option<RawTensor>; 3],
    /// The LSE, of f32 and contiguous, which is written.
    pub lse: Option<RawTensor>,
    /// The sink, of f32.
    pub sink: Option<RawTensor>,
    /// The bias, of the type of O, or of f16 beside an O of E4M3.
    pub bias: Option<RawTensor>,
    /// The workspace, of one dimension, which is written.
    pub workspace: Option<RawTensor>,
    /// Where the keys are.
    pub keys: RawKeys,
}

mod sealed {
    pub trait Sealed {}
}

/// The tensors that [`AttentionPlan::run`](crate::AttentionPlan::run) takes: [`AttentionTensors`], [`VarlenTensors`]
/// and [`PagedTensors`].
pub trait AttentionOperands: sealed::Sealed {
    /// The same tensors without types and borrows.
    fn erased(&self) -> RawAttentionTensors;
}

impl<T: Float, O: Float, KV: Float> sealed::Sealed for AttentionTensors<'_, T, O, KV> {}
impl<T: Float, O: Float> sealed::Sealed for VarlenTensors<'_, T, O> {}
impl<T: Float, KV: Float> sealed::Sealed for PagedTensors<'_, T, KV> {}

impl<T: Float, O: Float, KV: Float> AttentionOperands for AttentionTensors<'_, T, O, KV> {
    fn erased(&self) -> RawAttentionTensors {
        RawAttentionTensors {
            q: self.q.erased(),
            k: self.k.erased(),
            v: self.v.erased(),
            out: self.out.erased(),
            descales: self.descales.erased(),
            lse: self.lse.as_ref().map(TensorMut::erased),
            sink: self.sink.as_ref().map(TensorRef::erased),
            bias: self.bias.as_ref().map(TensorRef::erased),
            workspace: self.workspace.as_ref().map(TensorMut::erased),
            keys: RawKeys::Batched,
        }
    }
}

impl<T: Float, O: Float> AttentionOperands for VarlenTensors<'_, T, O> {
    fn erased(&self) -> RawAttentionTensors {
        RawAttentionTensors {
            q: self.q.erased(),
            k: self.k.erased(),
            v: self.v.erased(),
            out: self.out.erased(),
            descales: self.descales.erased(),
            lse: self.lse.as_ref().map(TensorMut::erased),
            sink: self.sink.as_ref().map(TensorRef::erased),
            bias: self.bias.as_ref().map(TensorRef::erased),
            workspace: None,
            keys: RawKeys::Varlen {
                cu_seqlens_q: self.cu_seqlens_q.erased(),
                cu_seqlens_k: self.cu_seqlens_k.erased(),
            },
        }
    }
}

impl<T: Float, KV: Float> AttentionOperands for PagedTensors<'_, T, KV> {
    fn erased(&self) -> RawAttentionTensors {
        RawAttentionTensors {
            q: self.q.erased(),
            k: self.k_pages.erased(),
            v: self.v_pages.erased(),
            out: self.out.erased(),
            descales: self.descales.erased(),
            lse: self.lse.as_ref().map(TensorMut::erased),
            sink: self.sink.as_ref().map(TensorRef::erased),
            bias: self.bias.as_ref().map(TensorRef::erased),
            workspace: self.workspace.as_ref().map(TensorMut::erased),
            keys: RawKeys::Paged { block_table: self.block_table.erased(), k_lens: self.k_lens.erased() },
        }
    }
}
