//! The sizes of attention problems, and how their keys lie.

use variants::attention::{DECODE_KEYS, DECODE_ROWS, HEAD_DIM_STEP, MAX_HEAD_DIM, MAX_LEN, MAX_PAGE_LEN, Mask};

use super::layout::Layout;
use crate::checks::{argument, has_shape};
use crate::error::{Error, Result};

/// What errors call the operation.
pub(super) const OP: &str = "attention";

/// The sizes of attention on sequences that are all as long.
///
/// ```
/// use ferrotile::{BatchedSizes, Layout, Mask};
///
/// // Four query heads for each key-value head.
/// let sizes = BatchedSizes { batch: 2, q_heads: 8, kv_heads: 2, q_len: 512, k_len: 1024, head_dim: 128 };
/// sizes.check()?;
/// assert_eq!(sizes.kv_shape(Layout::Bshd), [2, 1024, 2, 128]);
/// assert_eq!(sizes.flops(Mask::Full), 4.0 * 2.0 * 8.0 * 512.0 * 1024.0 * 128.0);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchedSizes {
    /// Batch entries.
    pub batch: usize,
    /// Heads of Q and O.
    pub q_heads: usize,
    /// Heads of K and V, a divisor of `q_heads`: query head h reads key-value head `h / (q_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Rows of Q and O.
    pub q_len: usize,
    /// Rows of K and V.
    pub k_len: usize,
    /// Head dimension of Q and K, and unless the options say otherwise of V and O: a multiple of 8 up to 256.
    pub head_dim: usize,
}

impl BatchedSizes {
    /// The sizes of tensors of these shapes, which are in `layout`. V may have a head dimension of its own.
    ///
    /// # Errors
    /// [`Error::Shape`] where V is not shaped like K otherwise, or K does not have the batch and head dimension of Q.
    pub fn of_shapes(q: [usize; 4], k: [usize; 4], v: [usize; 4], layout: Layout) -> Result<Self> {
        let [batch, q_heads, q_len, head_dim] = layout.reorder(q);
        let [_, kv_heads, k_len, _] = layout.reorder(k);
        let problem = Self { batch, q_heads, kv_heads, q_len, k_len, head_dim };
        has_shape(OP, "K", &k, &problem.kv_shape(layout))?;
        has_shape(OP, "V", &v, &problem.v_shape(layout, v[3]))?;
        Ok(problem)
    }

    /// The shape of Q, and of O where V has the head dimension of Q.
    #[must_use]
    pub fn q_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.q_heads, self.q_len, self.head_dim])
    }

    /// The shape of K, and of V where it has the same head dimension.
    #[must_use]
    pub fn kv_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.kv_heads, self.k_len, self.head_dim])
    }

    /// The shape of V that has a head dimension of its own.
    #[must_use]
    pub fn v_shape(&self, layout: Layout, value_dim: usize) -> [usize; 4] {
        with_columns(self.kv_shape(layout), value_dim)
    }

    /// The shape of O where V has a head dimension of its own.
    #[must_use]
    pub fn out_shape(&self, layout: Layout, value_dim: usize) -> [usize; 4] {
        with_columns(self.q_shape(layout), value_dim)
    }

    /// The floating-point operations of the keys that `mask` leaves: a multiplication and an addition for each element
    /// of Q K^T and of P V.
    #[must_use]
    pub fn flops(&self, mask: Mask) -> f64 {
        let pairs = mask.visible_pairs(self.q_len, self.k_len) as f64;
        4.0 * self.batch as f64 * self.q_heads as f64 * self.head_dim as f64 * pairs
    }

    /// Whether attention takes these sizes; [`AttentionPlan::new`](crate::AttentionPlan::new) checks it too. Needs no
    /// card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed.
    pub fn check(&self) -> Result<()> {
        check_head_dim("head_dim", self.head_dim)?;
        if self.q_heads > 0 && (self.kv_heads == 0 || !self.q_heads.is_multiple_of(self.kv_heads)) {
            return Err(argument(
                OP,
                "kv_heads",
                self.kv_heads,
                format!("a divisor of the {} query heads", self.q_heads),
            ));
        }
        for (name, len) in [("q_len", self.q_len), ("k_len", self.k_len)] {
            if len > MAX_LEN {
                return Err(argument(OP, name, len, format!("at most {MAX_LEN}")));
            }
        }
        Ok(())
    }
}

/// The sizes of attention on sequences of several lengths, which follow each other in one tensor. How long each is
/// stands on the card alone, in [`VarlenTensors::cu_seqlens_q`] and [`VarlenTensors::cu_seqlens_k`].
///
/// ```
/// // Three sequences of 100 rows together, the longest of 60.
/// let sizes = ferrotile::VarlenSizes {
///     batch: 3, q_heads: 8, kv_heads: 8, q_total: 100, k_total: 100, max_q_len: 60, max_k_len: 60, head_dim: 64,
/// };
/// assert_eq!(sizes.longest().q_len, 60);
/// sizes.check()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// [`VarlenTensors::cu_seqlens_q`]: crate::VarlenTensors::cu_seqlens_q
/// [`VarlenTensors::cu_seqlens_k`]: crate::VarlenTensors::cu_seqlens_k
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VarlenSizes {
    /// Batch entries: pairs of a sequence of queries and one of keys.
    pub batch: usize,
    /// Heads of Q and O.
    pub q_heads: usize,
    /// Heads of K and V, a divisor of `q_heads`.
    pub kv_heads: usize,
    /// Rows of Q and O, of all batch entries.
    pub q_total: usize,
    /// Rows of K and V, of all batch entries.
    pub k_total: usize,
    /// The most query rows that a batch entry has. Rows of an entry beyond them are not computed.
    pub max_q_len: usize,
    /// The most keys that a batch entry has. Keys of an entry beyond them are not seen.
    pub max_k_len: usize,
    /// Head dimension: a multiple of 8 up to 256.
    pub head_dim: usize,
}

impl VarlenSizes {
    /// Whether attention takes these sizes; [`AttentionPlan::new`](crate::AttentionPlan::new) checks it too. Needs no
    /// card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed.
    pub fn check(&self) -> Result<()> {
        self.longest().check()?;
        for (name, total) in [("batch", self.batch), ("q_total", self.q_total), ("k_total", self.k_total)] {
            if total > MAX_LEN {
                return Err(argument(OP, name, total, format!("at most {MAX_LEN}: split the batch")));
            }
        }
        Ok(())
    }

    /// As many batch entries, all of the greatest lengths: what the shape of a bias is that of.
    #[must_use]
    pub const fn longest(&self) -> BatchedSizes {
        let Self { batch, q_heads, kv_heads, max_q_len, max_k_len, head_dim, .. } = *self;
        BatchedSizes { batch, q_heads, kv_heads, q_len: max_q_len, k_len: max_k_len, head_dim }
    }
}

/// The sizes of attention on keys that lie in pages.
///
/// ```
/// // One query row a batch entry, whose keys are in up to 64 pages of 16.
/// let sizes = ferrotile::PagedSizes {
///     batch: 4, q_heads: 32, kv_heads: 8, q_len: 1, head_dim: 128, pages: 1000, page_len: 16, table_len: 64,
/// };
/// assert_eq!(sizes.longest().k_len, 1024);
/// sizes.check()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PagedSizes {
    /// Batch entries.
    pub batch: usize,
    /// Heads of Q and O.
    pub q_heads: usize,
    /// Heads of K and V, a divisor of `q_heads`: query head h reads key-value head `h / (q_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Rows of Q and O: up to 16, the last of each batch entry's sequence.
    pub q_len: usize,
    /// Head dimension: a multiple of 8 up to 256.
    pub head_dim: usize,
    /// Pages that K and V have.
    pub pages: usize,
    /// Keys of a page: a multiple of 16 up to 256.
    pub page_len: usize,
    /// Pages that a batch entry may have: the length of its row of the block table.
    pub table_len: usize,
}

impl PagedSizes {
    /// The shape of Q and O in `layout`.
    #[must_use]
    pub fn q_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.q_heads, self.q_len, self.head_dim])
    }

    /// The shape of K and V.
    #[must_use]
    pub const fn kv_shape(&self) -> [usize; 4] {
        [self.pages, self.page_len, self.kv_heads, self.head_dim]
    }

    /// The same sizes with as many keys in a row as a batch entry may have.
    #[must_use]
    pub const fn longest(&self) -> BatchedSizes {
        let Self { batch, q_heads, kv_heads, q_len, head_dim, .. } = *self;
        let k_len = self.page_len.saturating_mul(self.table_len);
        BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim }
    }

    /// Whether attention takes these sizes; [`AttentionPlan::new`](crate::AttentionPlan::new) checks it too. Needs no
    /// card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed; [`Error::Unsupported`] for more query rows than the
    /// kernels take.
    pub fn check(&self) -> Result<()> {
        if self.page_len == 0 || self.page_len > MAX_PAGE_LEN || !self.page_len.is_multiple_of(DECODE_KEYS) {
            let expected = format!("a multiple of {DECODE_KEYS} up to {MAX_PAGE_LEN}");
            return Err(argument(OP, "page_len", self.page_len, expected));
        }
        if i32::try_from(self.pages).is_err() {
            let expected = "at most 2^31 - 1, what the block table can name";
            return Err(argument(OP, "pages", self.pages, expected));
        }
        self.longest().check()?;
        if self.q_len > DECODE_ROWS {
            return Err(Error::Unsupported {
                op: OP,
                feature: format!("{} query rows on keys in pages", self.q_len),
                remedy: format!("give at most {DECODE_ROWS} at a time, or copy the pages together"),
            });
        }
        Ok(())
    }
}

/// How the keys of a problem lie, with its sizes.
///
/// ```
/// use ferrotile::{BatchedSizes, Keys};
///
/// let sizes = BatchedSizes { batch: 2, q_heads: 8, kv_heads: 2, q_len: 512, k_len: 512, head_dim: 128 };
/// assert_eq!(Keys::from(sizes), Keys::Batched(sizes));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keys {
    /// K and V are tensors `[batch, kv_heads, k_len, head_dim]`.
    Batched(BatchedSizes),
    /// K and V are `[k_total, kv_heads, head_dim]`: sequences of several lengths, one after the other.
    Varlen(VarlenSizes),
    /// K and V are pages `[pages, page_len, kv_heads, head_dim]`, which a block table gives to batch entries.
    Paged(PagedSizes),
}

impl Keys {
    /// Whether attention takes these sizes. Needs no card.
    ///
    /// # Errors
    /// Those of [`BatchedSizes::check`], [`VarlenSizes::check`] or [`PagedSizes::check`].
    pub fn check(&self) -> Result<()> {
        match self {
            Keys::Batched(sizes) => sizes.check(),
            Keys::Varlen(sizes) => sizes.check(),
            Keys::Paged(sizes) => sizes.check(),
        }
    }

    /// Head dimension of Q and K.
    #[must_use]
    pub const fn head_dim(&self) -> usize {
        match self {
            Keys::Batched(sizes) => sizes.head_dim,
            Keys::Varlen(sizes) => sizes.head_dim,
            Keys::Paged(sizes) => sizes.head_dim,
        }
    }

    /// As many batch entries, all as long as the longest may be: what the shape of a bias is that of.
    #[must_use]
    pub const fn longest(&self) -> BatchedSizes {
        match self {
            Keys::Batched(sizes) => *sizes,
            Keys::Varlen(sizes) => sizes.longest(),
            Keys::Paged(sizes) => sizes.longest(),
        }
    }
}

impl From<BatchedSizes> for Keys {
    fn from(sizes: BatchedSizes) -> Self {
        Keys::Batched(sizes)
    }
}

impl From<VarlenSizes> for Keys {
    fn from(sizes: VarlenSizes) -> Self {
        Keys::Varlen(sizes)
    }
}

impl From<PagedSizes> for Keys {
    fn from(sizes: PagedSizes) -> Self {
        Keys::Paged(sizes)
    }
}

/// Whether kernels take this head dimension.
pub(super) fn check_head_dim(name: &'static str, head_dim: usize) -> Result<()> {
    if head_dim > 0 && head_dim <= MAX_HEAD_DIM && head_dim.is_multiple_of(HEAD_DIM_STEP) {
        return Ok(());
    }
    let expected = format!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}: pad with zeros and give the scale");
    Err(argument(OP, name, head_dim, expected))
}

/// The same shape with so many columns: those of V in place of those of Q.
pub(super) const fn with_columns<const RANK: usize>(mut shape: [usize; RANK], columns: usize) -> [usize; RANK] {
    shape[RANK - 1] = columns;
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: BatchedSizes = BatchedSizes { batch: 2, q_heads: 6, kv_heads: 3, q_len: 5, k_len: 7, head_dim: 64 };

    fn rejected(problem: BatchedSizes) -> &'static str {
        match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{problem:?}: {other:?}"),
        }
    }

    #[test]
    fn shapes_give_the_problem_back_in_both_layouts() {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            let (q, kv) = (PROBLEM.q_shape(layout), PROBLEM.kv_shape(layout));
            assert_eq!(BatchedSizes::of_shapes(q, kv, kv, layout), Ok(PROBLEM));
        }
        assert_eq!(PROBLEM.q_shape(Layout::Bshd), [2, 5, 6, 64]);
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let (q, kv) = (PROBLEM.q_shape(Layout::Bhsd), PROBLEM.kv_shape(Layout::Bhsd));
        let wider = [2, 3, 7, 128];
        assert_eq!(BatchedSizes::of_shapes(q, kv, wider, Layout::Bhsd), Ok(PROBLEM));
        for (k, v, named) in [([3, 3, 7, 64], kv, "K"), (wider, kv, "K"), (kv, [2, 3, 8, 64], "V")] {
            match BatchedSizes::of_shapes(q, k, v, Layout::Bhsd) {
                Err(Error::Shape { tensor, .. }) => assert_eq!(tensor, named),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn sizes_that_no_kernel_takes_are_named() {
        assert_eq!(PROBLEM.check(), Ok(()));
        for head_dim in [0, 4, 12, 257, 264] {
            assert_eq!(rejected(BatchedSizes { head_dim, ..PROBLEM }), "head_dim");
        }
        for kv_heads in [0, 4, 12] {
            assert_eq!(rejected(BatchedSizes { kv_heads, ..PROBLEM }), "kv_heads");
        }
        assert_eq!(rejected(BatchedSizes { k_len: MAX_LEN + 1, ..PROBLEM }), "k_len");
        assert_eq!(BatchedSizes { q_heads: 0, kv_heads: 0, ..PROBLEM }.check(), Ok(()));
    }

    #[test]
    fn flops_count_what_the_mask_leaves() {
        assert_eq!(PROBLEM.flops(Mask::Full), 4.0 * 12.0 * 64.0 * 35.0);
        assert_eq!(PROBLEM.flops(Mask::Causal), 4.0 * 12.0 * 64.0 * (3 + 4 + 5 + 6 + 7) as f64);
        let vast = BatchedSizes { batch: 1 << 40, q_heads: 1 << 40, ..PROBLEM };
        assert_eq!(vast.flops(Mask::Full), 4.0 * 2f64.powi(80) * 64.0 * 35.0);
    }

    const PAGED: PagedSizes =
        PagedSizes { batch: 2, q_heads: 8, kv_heads: 2, q_len: 3, head_dim: 64, pages: 10, page_len: 32, table_len: 4 };

    #[test]
    fn sizes_in_pages_that_no_kernel_takes_are_named() {
        assert_eq!(PAGED.check(), Ok(()));
        let named = |problem: PagedSizes| match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{problem:?}: {other:?}"),
        };
        for page_len in [0, 8, 24, 272] {
            assert_eq!(named(PagedSizes { page_len, ..PAGED }), "page_len");
        }
        assert_eq!(named(PagedSizes { pages: 1 << 31, ..PAGED }), "pages");
        assert_eq!(named(PagedSizes { table_len: 1 << 26, ..PAGED }), "k_len");
        assert_eq!(named(PagedSizes { head_dim: 20, ..PAGED }), "head_dim");
        assert_eq!(named(PagedSizes { kv_heads: 3, ..PAGED }), "kv_heads");
        let long = PagedSizes { q_len: 17, ..PAGED }.check();
        assert!(matches!(&long, Err(Error::Unsupported { feature, .. }) if feature.contains("17")), "{long:?}");
    }
}
