//! Attention of few query rows on keys and values that lie in pages.

use std::fmt;

use layout::Dtype;
use variants::attention::{AttentionConfig, DECODE_KEYS, DECODE_ROWS, MAX_PAGE_LEN, Seqlens};

use super::choice::attention_variants;
use super::decode::{BlockTable, Decode, Limits, is_decode};
use super::plan::{add_addresses, check_device, check_dtype, check_lse, kernel_strides, optional};
use super::problem::{check_shape, with_columns};
use super::terms::Terms;
use super::{AttentionOptions, AttentionProblem, Layout, OP};
use crate::checks::same_device;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};

/// The sizes of a problem whose keys lie in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PagedProblem {
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

impl PagedProblem {
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

    /// The same problem with as many keys in a row as a batch entry may have.
    fn longest(&self) -> AttentionProblem {
        let Self { batch, q_heads, kv_heads, q_len, head_dim, .. } = *self;
        let k_len = self.page_len.saturating_mul(self.table_len);
        AttentionProblem { batch, q_heads, kv_heads, q_len, k_len, head_dim }
    }

    /// Whether attention takes these sizes; [`PagedAttentionPlan::new`] checks it too. Needs no card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed; [`Error::Unsupported`] for more query rows than the
    /// kernels take.
    pub fn check(&self) -> Result<()> {
        let refused = |argument, got: usize, expected: String| {
            Err(Error::Argument { op: OP, argument, got: got.to_string(), expected })
        };
        if self.page_len == 0 || self.page_len > MAX_PAGE_LEN || !self.page_len.is_multiple_of(DECODE_KEYS) {
            let expected = format!("a multiple of {DECODE_KEYS} up to {MAX_PAGE_LEN}");
            return refused("page_len", self.page_len, expected);
        }
        if i32::try_from(self.pages).is_err() {
            return refused("pages", self.pages, "at most 2^31 - 1, what the block table can name".to_owned());
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

/// The tensors of attention on keys in pages.
#[derive(Debug)]
pub struct PagedTensors<'a, T> {
    /// Q `[batch, q_heads, q_len, head_dim]`, in the layout of the options.
    pub q: TensorRef<'a, T, 4>,
    /// K `[pages, page_len, kv_heads, head_dim]`, by any strides.
    pub k_pages: TensorRef<'a, T, 4>,
    /// V, as K; its head dimension may be another, and is then that of O.
    pub v_pages: TensorRef<'a, T, 4>,
    /// The block table `[batch, table_len]`: key j of batch entry b is row `j % page_len` of page `block_table[b][j /
    /// page_len]`. Entries for no key are not read, and can be anything; of others that name no page see
    /// [`paged_attention`].
    pub block_table: TensorRef<'a, i32, 2>,
    /// How many keys each batch entry has `[batch]`, from 0 to `table_len * page_len`.
    pub k_lens: TensorRef<'a, i32, 1>,
    /// O `[batch, q_heads, q_len, head_dim]`, in the layout of the options.
    pub out: TensorMut<'a, T, 4>,
    /// Where the LSE goes, `[batch, q_heads, q_len]` and contiguous.
    pub lse: Option<TensorMut<'a, f32, 3>>,
    /// As [`AttentionTensors::sink`](crate::AttentionTensors::sink).
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// As [`AttentionTensors::bias`](crate::AttentionTensors::bias),
    /// `[batch or 1, q_heads or 1, q_len, table_len * page_len]`: keys are counted within their batch entry, and what
    /// is beyond the last of them is not read.
    pub bias: Option<TensorRef<'a, T, 4>>,
    /// Memory for partial results: at least [`PagedAttentionPlan::workspace_bytes`] on a 16-byte boundary. What it
    /// holds does not matter, before and after. Runs that are under way at once need one each.
    pub workspace: Option<TensorMut<'a, u8, 1>>,
}

impl<'a, T> PagedTensors<'a, T> {
    /// Inputs and output, without the optional tensors, which are added as in
    /// [`AttentionTensors::new`](crate::AttentionTensors::new).
    #[must_use]
    pub const fn new(
        q: TensorRef<'a, T, 4>,
        [k_pages, v_pages]: [TensorRef<'a, T, 4>; 2],
        block_table: TensorRef<'a, i32, 2>,
        k_lens: TensorRef<'a, i32, 1>,
        out: TensorMut<'a, T, 4>,
    ) -> Self {
        Self { q, k_pages, v_pages, block_table, k_lens, out, lse: None, sink: None, bias: None, workspace: None }
    }
}

/// A chosen and loaded variant for repeated calls on keys in pages. Displays as the variant's name.
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct PagedAttentionPlan {
    problem: PagedProblem,
    layout: Layout,
    terms: Terms,
    variant: &'static AttentionConfig,
    decode: Decode,
}

impl PagedAttentionPlan {
    /// Chooses a variant for the problem and loads it. Masks are aligned at the last key that a batch entry has. The
    /// keys are split for the most that it may have.
    ///
    /// # Errors
    /// Those of [`PagedProblem::check`]; [`Error::Argument`] for a scale, softcap or splits that no variant takes,
    /// [`Error::NoVariant`] for an element type that none has, [`Error::UnknownVariant`] where the named one does not
    /// serve the problem, and those of loading a module.
    pub fn new(gpu: &Gpu, dtype: Dtype, problem: &PagedProblem, options: &AttentionOptions) -> Result<Self> {
        problem.check()?;
        let terms = Terms::new(problem.head_dim, options)?;
        let eligible = || {
            attention_variants(gpu.arch(), dtype, [problem.head_dim, terms.value_dim])
                .filter(|variant| is_decode(variant) && variant.covers(terms.scores(), Seqlens::Fixed))
        };
        let variant = match &options.variant {
            Some(name) => eligible().find(|variant| variant.name == name).ok_or_else(|| Error::UnknownVariant {
                op: OP,
                name: name.clone(),
                known: eligible().map(|variant| variant.name).collect(),
            })?,
            None => eligible().next().ok_or_else(|| Error::NoVariant {
                op: OP,
                dtype,
                compiled: vec![Dtype::F16, Dtype::Bf16],
            })?,
        };
        let decode = Decode::new(gpu, variant, &problem.longest(), &terms, Limits::of(options))?;
        Ok(Self { problem: *problem, layout: options.layout, terms, variant, decode })
    }

    /// The chosen variant.
    #[must_use]
    pub const fn variant(&self) -> &'static AttentionConfig {
        self.variant
    }

    /// The parts that the keys are split into.
    #[must_use]
    pub const fn splits(&self) -> usize {
        self.decode.splits()
    }

    /// The workspace that a run needs: at most [`AttentionOptions::max_workspace_bytes`]. The caller owns it; runs that
    /// are under way at once need one each.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.decode.workspace_bytes()
    }

    /// Computes attention on `stream` and returns before it is done; see [`paged_attention`].
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that are not of the plan's problem, [`Error::Argument`] for another element type,
    /// an LSE that is not contiguous, too little workspace, or a bias that is there or not against the options of the
    /// plan, [`Error::WrongDevice`], and [`Error::Driver`] where the driver refuses the launch.
    pub fn run<T: Float>(&self, stream: StreamRef<'_>, tensors: PagedTensors<'_, T>) -> Result<()> {
        same_device("plan", self.decode.kernel().ordinal(), stream.ordinal())?;
        self.check(&tensors)?;
        let PagedTensors { q, k_pages, v_pages, block_table, k_lens, out, lse, sink, bias, workspace } = tensors;
        let required = [
            ("Q", q.ordinal()),
            ("K", k_pages.ordinal()),
            ("V", v_pages.ordinal()),
            ("block table", block_table.ordinal()),
            ("numbers of keys", k_lens.ordinal()),
            ("O", out.ordinal()),
        ];
        check_device(stream, required.into_iter().chain(optional(lse.as_ref(), sink.as_ref(), bias.as_ref())))?;
        let workspace = self.decode.workspace_address(workspace.as_ref(), stream.ordinal())?;
        let problem = &self.problem;
        let longest = problem.longest();
        let mut args = self.terms.arguments(&longest, self.variant.score_mod);
        self.terms.add_tensors(&mut args, &longest, sink.as_ref(), bias.as_ref())?;
        add_addresses(&mut args, self.layout, [&q, &k_pages, &v_pages], &out);
        // Pages stand where batch entries do otherwise, whatever the layout of Q and O.
        [args.k_strides, args.v_strides] =
            [&k_pages, &v_pages].map(|pages| kernel_strides(Layout::Bshd, pages.shape(), pages.strides()));
        args.lse = lse.as_ref().map_or(0, TensorMut::as_raw);
        let table = BlockTable {
            table: block_table.as_raw(),
            k_lens: k_lens.as_raw(),
            stride: if problem.batch > 1 { block_table.strides()[0] } else { 0 },
            page_len: problem.page_len,
            pages: problem.pages,
        };
        // SAFETY: the views are tensors of the plan's sizes whose memory their owners keep until the stream has done
        // the work, and so is the workspace; the kernel reads nothing where the table or a number of keys is out of
        // range.
        unsafe { self.decode.run(stream, &args, table, workspace) }
    }

    /// Checks the tensors against the problem.
    fn check<T: Float>(&self, tensors: &PagedTensors<'_, T>) -> Result<()> {
        let problem = &self.problem;
        check_dtype::<T>(self.variant)?;
        let q_shape = problem.q_shape(self.layout);
        check_shape("Q", tensors.q.shape(), &q_shape)?;
        check_shape("K", tensors.k_pages.shape(), &problem.kv_shape())?;
        check_shape("V", tensors.v_pages.shape(), &with_columns(problem.kv_shape(), self.terms.value_dim))?;
        check_shape("block table", tensors.block_table.shape(), &[problem.batch, problem.table_len])?;
        check_shape("numbers of keys", tensors.k_lens.shape(), &[problem.batch])?;
        check_shape("O", tensors.out.shape(), &with_columns(q_shape, self.terms.value_dim))?;
        if let Some(lse) = &tensors.lse {
            check_lse(lse, [problem.batch, problem.q_heads, problem.q_len])?;
        }
        Ok(())
    }
}

impl fmt::Display for PagedAttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.variant.name)
    }
}

impl fmt::Debug for PagedAttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedAttentionPlan")
            .field("variant", &self.variant.name)
            .field("problem", &self.problem)
            .field("splits", &self.decode.splits())
            .finish_non_exhaustive()
    }
}

/// Computes attention of up to 16 query rows on keys and values in pages, on `stream`, and returns before it is done.
///
/// Batch entry b has `k_lens[b]` keys, in the pages that its row of the block table names; its query rows stand at the
/// last of them, as masks see it. The block table and the numbers of keys are read on the card. An entry of the table
/// that is in use and names no page, or a number of keys below 0 or above `table_len * page_len`, makes NaN of the O
/// and LSE that depend on it; nothing is read outside of K and V. No call knows these numbers before:
/// [`PagedProblem::validate_blocking`] finds such ones. Where other work writes the table or the numbers meanwhile, not
/// ordered with this call, it ends all the same, and O and LSE of those batch entries hold unspecified values.
/// Otherwise as [`attention`](super::attention()).
///
/// [`AttentionOptions::bias`] is taken from the tensors. This call uses no workspace: [`PagedAttentionPlan`] does where
/// it is faster.
///
/// # Errors
/// As [`PagedAttentionPlan::new`] and [`PagedAttentionPlan::run`], before anything is enqueued.
pub fn paged_attention<T: Float>(
    stream: StreamRef<'_>,
    tensors: PagedTensors<'_, T>,
    options: &AttentionOptions,
) -> Result<()> {
    let [batch, q_heads, q_len, head_dim] = options.layout.reorder(*tensors.q.shape());
    let [pages, page_len, kv_heads, _] = *tensors.k_pages.shape();
    let table_len = tensors.block_table.shape()[1];
    let problem = PagedProblem { batch, q_heads, kv_heads, q_len, head_dim, pages, page_len, table_len };
    let (bias, value_dim) = (tensors.bias.is_some(), Some(tensors.v_pages.shape()[3]));
    let options = AttentionOptions { splits: Some(1), bias, value_dim, ..options.clone() };
    PagedAttentionPlan::new(stream.gpu(), T::DTYPE, &problem, &options)?.run(stream, tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: PagedProblem = PagedProblem {
        batch: 2,
        q_heads: 8,
        kv_heads: 2,
        q_len: 3,
        head_dim: 64,
        pages: 10,
        page_len: 32,
        table_len: 4,
    };

    #[test]
    fn sizes_that_no_variant_takes_are_named() {
        assert_eq!(PROBLEM.check(), Ok(()));
        let named = |problem: PagedProblem| match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{problem:?}: {other:?}"),
        };
        for page_len in [0, 8, 24, 272] {
            assert_eq!(named(PagedProblem { page_len, ..PROBLEM }), "page_len");
        }
        assert_eq!(named(PagedProblem { pages: 1 << 31, ..PROBLEM }), "pages");
        assert_eq!(named(PagedProblem { table_len: 1 << 26, ..PROBLEM }), "k_len");
        assert_eq!(named(PagedProblem { head_dim: 20, ..PROBLEM }), "head_dim");
        assert_eq!(named(PagedProblem { kv_heads: 3, ..PROBLEM }), "kv_heads");
        let long = PagedProblem { q_len: 17, ..PROBLEM }.check();
        assert!(matches!(&long, Err(Error::Unsupported { feature, .. }) if feature.contains("17")), "{long:?}");
    }
}
