//! The tensors of a call, typed for Rust where they come in and erased behind that.

use std::marker::PhantomData;

use crate::attention::Layout;
use crate::element::{Element, Float};
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::tensor::{TensorMut, TensorRef};

/// The tensors of one call of [`rotary`](crate::rotary()): those that are not given are left out.
///
/// ```
/// # use ferrotile::{Arch, Gpu};
/// # let gpu = Gpu::emulated(Arch::Sm80);
/// use ferrotile::{Buffer, Layout, RotaryTensors, TensorMut, TensorRef};
/// use half::f16;
///
/// let mut q = Buffer::<f16>::zeroed(&gpu, 8 * 64)?;
/// let (cos, sin) = (Buffer::<f32>::zeroed(&gpu, 16 * 32)?, Buffer::<f32>::zeroed(&gpu, 16 * 32)?);
///
/// // Q alone, in place.
/// let tensors = RotaryTensors::new(Layout::Bhsd)
///     .q(TensorMut::contiguous(&mut q, [1, 1, 8, 64])?)
///     .rotary(TensorRef::contiguous(&cos, [16, 32])?, TensorRef::contiguous(&sin, [16, 32])?);
/// # let _ = tensors;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct RotaryTensors<'a> {
    pub(super) raw: RawRotaryTensors,
    borrows: PhantomData<&'a mut ()>,
}

/// Where a cache is, as [`RotaryTensors::cache`] and [`RotaryTensors::paged_cache`] take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawRotaryCache {
    /// K and V `[batch, kv_heads, capacity, head_dim]`, in a layout of their own.
    Contiguous([RawTensor; 2], Layout),
    /// Pages of K and V, and the block table.
    Paged([RawTensor; 2], RawTensor),
}

/// The erased form of [`RotaryTensors`], whose methods say what each is: for bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRotaryTensors {
    /// The order of the dimensions of Q, K and V, and of what they become.
    pub layout: Layout,
    /// Q.
    pub q: Option<RawTensor>,
    /// Where the rotated Q goes: the same tensor in place.
    pub q_out: Option<RawTensor>,
    /// K.
    pub k: Option<RawTensor>,
    /// Where the rotated K goes, beside the cache: the same tensor in place.
    pub k_out: Option<RawTensor>,
    /// V.
    pub v: Option<RawTensor>,
    /// The tables of cosines and sines.
    pub tables: Option<[RawTensor; 2]>,
    /// Whether neighbours are pairs.
    pub interleaved: bool,
    /// The positions, of i32 or i64.
    pub positions: Option<RawTensor>,
    /// The starts of the members.
    pub cu_seqlens: Option<RawTensor>,
    /// The cache.
    pub cache: Option<RawRotaryCache>,
    /// How many rows of the cache each member has before the call.
    pub cache_seqlens: Option<RawTensor>,
    /// What elements of the cache of K and of V are multiplied by.
    pub descales: [Option<RawTensor>; 2],
}

impl RawRotaryTensors {
    /// No tensors.
    #[must_use]
    pub const fn new(layout: Layout) -> Self {
        Self {
            layout,
            q: None,
            q_out: None,
            k: None,
            k_out: None,
            v: None,
            tables: None,
            interleaved: false,
            positions: None,
            cu_seqlens: None,
            cache: None,
            cache_seqlens: None,
            descales: [None; 2],
        }
    }
}

impl<'a> RotaryTensors<'a> {
    /// No tensors; those that follow are in this layout.
    pub const fn new(layout: Layout) -> Self {
        Self { raw: RawRotaryTensors::new(layout), borrows: PhantomData }
    }

    /// Q `[batch, heads, rows, head_dim]`, by any strides, which is rotated in place.
    pub fn q<T: Float>(mut self, q: TensorMut<'a, T, 4>) -> Self {
        (self.raw.q, self.raw.q_out) = (Some(q.erased()), Some(q.erased()));
        self
    }

    /// Q, which is rotated to `out` of the same shape.
    pub fn q_to<T: Float>(mut self, q: TensorRef<'a, T, 4>, out: TensorMut<'a, T, 4>) -> Self {
        (self.raw.q, self.raw.q_out) = (Some(q.erased()), Some(out.erased()));
        self
    }

    /// K `[batch, kv_heads, rows, head_dim]`, by any strides, which goes to the cache and stays as it is.
    pub fn k<T: Float>(mut self, k: TensorRef<'a, T, 4>) -> Self {
        (self.raw.k, self.raw.k_out) = (Some(k.erased()), None);
        self
    }

    /// K, which is rotated in place too.
    pub fn k_in_place<T: Float>(mut self, k: TensorMut<'a, T, 4>) -> Self {
        (self.raw.k, self.raw.k_out) = (Some(k.erased()), Some(k.erased()));
        self
    }

    /// K, which is rotated to `out` of the same shape too.
    pub fn k_to<T: Float>(mut self, k: TensorRef<'a, T, 4>, out: TensorMut<'a, T, 4>) -> Self {
        (self.raw.k, self.raw.k_out) = (Some(k.erased()), Some(out.erased()));
        self
    }

    /// V, as K, which goes to the cache; its head dimension may be another.
    pub fn v<T: Float>(mut self, v: TensorRef<'a, T, 4>) -> Self {
        self.raw.v = Some(v.erased());
        self
    }

    /// The tables `rotary_cos` and `rotary_sin`, `[positions, rotary_dim / 2]`, by any stride, of f32, f16 or bf16:
    /// what [`RotaryFrequencies::table`](crate::RotaryFrequencies::table) makes. The first `rotary_dim` columns of Q
    /// and K are rotated. Without tables none are.
    pub fn rotary<S: Float>(mut self, rotary_cos: TensorRef<'a, S, 2>, rotary_sin: TensorRef<'a, S, 2>) -> Self {
        self.raw.tables = Some([rotary_cos.erased(), rotary_sin.erased()]);
        self
    }

    /// Whether columns 2i and 2i + 1 are a pair (GPT-J); else, as without this call, i and i + rotary_dim / 2
    /// (GPT-NeoX).
    pub const fn interleaved(mut self, interleaved: bool) -> Self {
        self.raw.interleaved = interleaved;
        self
    }

    /// The position of each row `[batch, rows]`, of i32 or i64: its row of the tables. Without them it is
    /// `cache_seqlens[b] + i`, where i is the row within the member.
    pub fn positions<I: Element>(mut self, positions: TensorRef<'a, I, 2>) -> Self {
        self.raw.positions = Some(positions.erased());
        self
    }

    /// `[members + 1]`: the first row of each member, and the row after the last one, as
    /// [`VarlenTensors::cu_seqlens_q`](crate::VarlenTensors::cu_seqlens_q). Q, K and V have batch 1 then. Rows of no
    /// member are neither read nor written. Without them every batch entry is a member.
    pub fn cu_seqlens(mut self, cu_seqlens: TensorRef<'a, i32, 1>) -> Self {
        self.raw.cu_seqlens = Some(cu_seqlens.erased());
        self
    }

    /// The cache of K and V `[members, kv_heads, capacity, head_dim]`, in its own layout and by any strides, of the
    /// type of K and V or of E4M3. Row i of member b goes to row `cache_seqlens[b] + i`.
    pub fn cache<C: Float>(mut self, [k, v]: [TensorMut<'a, C, 4>; 2], layout: Layout) -> Self {
        self.raw.cache = Some(RawRotaryCache::Contiguous([k.erased(), v.erased()], layout));
        self
    }

    /// The cache of K and V in pages `[pages, page_len, kv_heads, head_dim]`, by any strides, with the block table
    /// `[members, table_len]`, as [`PagedTensors`](crate::PagedTensors) has them. Row j of a member is row `j %
    /// page_len` of page `block_table[b][j / page_len]`.
    pub fn paged_cache<C: Float>(
        mut self,
        [k_pages, v_pages]: [TensorMut<'a, C, 4>; 2],
        block_table: TensorRef<'a, i32, 2>,
    ) -> Self {
        self.raw.cache = Some(RawRotaryCache::Paged([k_pages.erased(), v_pages.erased()], block_table.erased()));
        self
    }

    /// How many rows each member has in the cache before the call `[members]`. The call leaves them as they are.
    /// Without them every member starts at row 0.
    pub fn cache_seqlens(mut self, cache_seqlens: TensorRef<'a, i32, 1>) -> Self {
        self.raw.cache_seqlens = Some(cache_seqlens.erased());
        self
    }

    /// What elements of a cache of E4M3 are multiplied by, `[members or 1, kv_heads or 1]`, by any strides, as
    /// [`Descales`](crate::Descales) has them: rows are divided by them. Without them factors are 1.
    pub fn descales(mut self, k: TensorRef<'a, f32, 2>, v: TensorRef<'a, f32, 2>) -> Self {
        self.raw.descales = [Some(k.erased()), Some(v.erased())];
        self
    }
}
