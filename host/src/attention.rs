//! Attention forward: `O = softmax(scale * Q K^T + mask) V`.
//!
//! ```no_run
//! use ferrotile::{AttentionOptions, Buffer, Gpu, Layout, Mask, TensorMut, TensorRef, attention};
//! use half::f16;
//!
//! # fn main() -> ferrotile::Result<()> {
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.new_stream()?;
//! let shape = [1, 512, 8, 64]; // batch, sequence, heads, head dimension
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
//!     &AttentionOptions { mask: Mask::Causal, ..AttentionOptions::new(Layout::Bshd) },
//! )?;
//! let result: Vec<f16> = out.download_blocking(&stream)?;
//! # Ok(())
//! # }
//! ```

use std::fmt;

use layout::Dtype;
use layout::attention::{
    ATTENTION, AttentionArgs, AttentionStrides, AttentionVariant, HEAD_DIM_STEP, MAX_HEAD_DIM, MAX_LEN, Mask,
};

use crate::element::Float;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::launch::{Kernel, KernelParam, LaunchConfig};
use crate::stream::StreamRef;
use crate::tensor::{TensorMut, TensorRef};

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
    /// The compiled variant to run, by name; `None` picks the one that measures best.
    pub variant: Option<String>,
}

impl AttentionOptions {
    /// Full attention of the usual scale on the best variant.
    #[must_use]
    pub const fn new(layout: Layout) -> Self {
        Self { layout, mask: Mask::Full, scale: None, variant: None }
    }
}

/// The sizes of an attention problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionProblem {
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
    /// Head dimension: a multiple of 8 up to 256.
    pub head_dim: usize,
}

impl AttentionProblem {
    /// The sizes of tensors of these shapes, which are in `layout`.
    ///
    /// # Errors
    /// [`Error::Shape`] where V is not shaped like K, or K does not have the batch and head dimension of Q.
    pub fn of_shapes(q: [usize; 4], k: [usize; 4], v: [usize; 4], layout: Layout) -> Result<Self> {
        let [batch, q_heads, q_len, head_dim] = layout.reorder(q);
        let [_, kv_heads, k_len, _] = layout.reorder(k);
        let problem = Self { batch, q_heads, kv_heads, q_len, k_len, head_dim };
        let kv_shape = problem.kv_shape(layout);
        check_shape("K", &k, &kv_shape)?;
        check_shape("V", &v, &kv_shape)?;
        Ok(problem)
    }

    /// The shape of Q and O.
    #[must_use]
    pub fn q_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.q_heads, self.q_len, self.head_dim])
    }

    /// The shape of K and V.
    #[must_use]
    pub fn kv_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.kv_heads, self.k_len, self.head_dim])
    }

    /// The floating-point operations of the keys that `mask` leaves: a multiplication and an addition for each element of Q K^T
    /// and of P V.
    #[must_use]
    pub fn flops(&self, mask: Mask) -> f64 {
        let pairs = mask.visible_pairs(self.q_len, self.k_len) as f64;
        4.0 * self.batch as f64 * self.q_heads as f64 * self.head_dim as f64 * pairs
    }

    /// Whether attention takes these sizes; [`AttentionPlan::new`] checks it too. Needs no card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed.
    pub fn check(&self) -> Result<()> {
        let argument = |argument, got: usize, expected: String| Error::Argument {
            op: OP,
            argument,
            got: got.to_string(),
            expected,
        };
        if self.head_dim == 0 || self.head_dim > MAX_HEAD_DIM || !self.head_dim.is_multiple_of(HEAD_DIM_STEP) {
            let expected =
                format!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}: pad with zeros and give the scale");
            return Err(argument("head_dim", self.head_dim, expected));
        }
        if self.q_heads > 0 && (self.kv_heads == 0 || !self.q_heads.is_multiple_of(self.kv_heads)) {
            return Err(argument("kv_heads", self.kv_heads, format!("a divisor of the {} query heads", self.q_heads)));
        }
        for (name, len) in [("q_len", self.q_len), ("k_len", self.k_len)] {
            if len > MAX_LEN {
                return Err(argument(name, len, format!("at most {MAX_LEN}")));
            }
        }
        Ok(())
    }
}

fn check_shape(tensor: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() })
}

/// The compiled variants that serve this element type and head dimension.
pub fn attention_variants(dtype: Dtype, head_dim: usize) -> impl Iterator<Item = &'static AttentionVariant> {
    ATTENTION.iter().filter(move |variant| variant.serves(dtype, head_dim))
}

/// Computes attention on `stream` and returns before it is done.
///
/// `q` and `out` are `[batch, q_heads, q_len, head_dim]`, `k` and `v` `[batch, kv_heads, k_len, head_dim]`, their dimensions in
/// the order of [`AttentionOptions::layout`] and with any strides; `lse` is `[batch, q_heads, q_len]` and contiguous, and
/// receives `ln sum_j exp(scale * q_i . k_j)`. Every length may be 0. A row that sees no key, or no score above
/// minus infinity, gives 0 and an LSE of minus infinity. Scores, softmax and sums are f32; the tensor-core variants round the probabilities to `T` before P V.
///
/// NaN and infinity spread as in the formula. Besides, in the tensor-core variants NaN and infinity in V make NaN, in their
/// column, of hidden rows too, where a row of the same tile of query rows visits the tile of keys that holds them.
///
/// # Errors
/// [`Error::Shape`], [`Error::Argument`], [`Error::NoVariant`], [`Error::UnknownVariant`] or [`Error::WrongDevice`] for tensors
/// or options that do not fit, before anything is enqueued; [`Error::Driver`] where the driver refuses the launch.
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
    AttentionPlan::new(stream.gpu(), T::DTYPE, &problem, options)?.run(stream, q, k, v, out, lse)
}

/// A chosen and loaded variant for repeated calls on problems of one size. Displays as the variant's name.
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct AttentionPlan {
    problem: AttentionProblem,
    layout: Layout,
    key_offsets: (i32, i32),
    scale: f32,
    variant: &'static AttentionVariant,
    blocks: u32,
    kernel: Kernel,
}

impl AttentionPlan {
    /// Chooses a variant for the problem and loads it.
    ///
    /// # Errors
    /// [`Error::Argument`] for sizes or a scale that no variant takes, [`Error::NoVariant`] for an element type that none has,
    /// [`Error::UnknownVariant`] where the named one does not serve the problem, and those of loading a module.
    pub fn new(gpu: &Gpu, dtype: Dtype, problem: &AttentionProblem, options: &AttentionOptions) -> Result<Self> {
        problem.check()?;
        let scale = options.scale.unwrap_or_else(|| 1.0 / (problem.head_dim as f32).sqrt());
        if !scale.is_finite() {
            let (got, expected) = (scale.to_string(), "a finite number".to_owned());
            return Err(Error::Argument { op: OP, argument: "scale", got, expected });
        }
        let variant = match &options.variant {
            Some(name) => named(name, dtype, problem.head_dim)?,
            None => preferred(dtype, problem.head_dim)?,
        };
        let heads = problem.batch.checked_mul(problem.q_heads);
        let blocks = heads.and_then(|heads| variant.blocks(heads, problem.q_len)).ok_or_else(|| Error::Argument {
            op: OP,
            argument: "batch * q_heads * q_len",
            got: format!("{} * {} * {}", problem.batch, problem.q_heads, problem.q_len),
            expected: format!("at most 2^31 - 1 blocks of {} rows: split the batch", variant.rows()),
        })?;
        Ok(Self {
            problem: *problem,
            layout: options.layout,
            key_offsets: options.mask.key_offsets(problem.q_len, problem.k_len),
            scale,
            variant,
            blocks,
            kernel: gpu.kernel("attention", variant.name)?,
        })
    }

    /// The chosen variant.
    #[must_use]
    pub const fn variant(&self) -> &'static AttentionVariant {
        self.variant
    }

    /// The loaded kernel, for its registers and occupancy.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Computes attention on `stream` and returns before it is done; see [`attention`] for the tensors.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that are not of the plan's problem, [`Error::LastStride`] or [`Error::Argument`] for an `lse`
    /// that is not contiguous, [`Error::WrongDevice`], and [`Error::Driver`] where the driver refuses the launch.
    pub fn run<T: Float>(
        &self,
        stream: StreamRef<'_>,
        q: TensorRef<'_, T, 4>,
        k: TensorRef<'_, T, 4>,
        v: TensorRef<'_, T, 4>,
        out: TensorMut<'_, T, 4>,
        lse: Option<TensorMut<'_, f32, 3>>,
    ) -> Result<()> {
        let args = self.arguments(&q, &k, &v, &out, lse.as_ref())?;
        let ordinals = [("Q", q.ordinal()), ("K", k.ordinal()), ("V", v.ordinal()), ("O", out.ordinal())];
        for (what, got) in ordinals.into_iter().chain(lse.as_ref().map(|lse| ("LSE", lse.ordinal()))) {
            if got != stream.ordinal() {
                return Err(Error::WrongDevice { what, got, expected: stream.ordinal() });
            }
        }
        if self.blocks == 0 {
            return Ok(());
        }
        let config = LaunchConfig {
            grid: [self.blocks, 1, 1],
            block: [self.variant.threads(), 1, 1],
            shared_bytes: self.variant.smem().total_bytes(),
            ..LaunchConfig::default()
        };
        // SAFETY: grid, block and shared memory are the variant's, and the views are tensors of the plan's sizes whose memory
        // their owners keep until the stream has done the work.
        unsafe { self.kernel.launch(stream, &config, &[&args]) }
    }

    /// The kernel's argument, from tensors that are checked to be of the plan's problem.
    fn arguments<T: Float>(
        &self,
        q: &TensorRef<'_, T, 4>,
        k: &TensorRef<'_, T, 4>,
        v: &TensorRef<'_, T, 4>,
        out: &TensorMut<'_, T, 4>,
        lse: Option<&TensorMut<'_, f32, 3>>,
    ) -> Result<AttentionArgs> {
        let problem = &self.problem;
        if T::DTYPE != self.variant.dtype {
            let (got, expected) = (T::DTYPE.to_string(), format!("{}, the plan's", self.variant.dtype));
            return Err(Error::Argument { op: OP, argument: "element type", got, expected });
        }
        let (q_shape, kv_shape) = (problem.q_shape(self.layout), problem.kv_shape(self.layout));
        check_shape("Q", q.shape(), &q_shape)?;
        check_shape("K", k.shape(), &kv_shape)?;
        check_shape("V", v.shape(), &kv_shape)?;
        check_shape("O", out.shape(), &q_shape)?;
        if let Some(lse) = lse {
            let shape = [problem.batch, problem.q_heads, problem.q_len];
            check_shape("LSE", lse.shape(), &shape)?;
            if !lse.is_contiguous() {
                let (got, expected) = (format!("{:?}", lse.strides()), "those of a contiguous tensor".to_owned());
                return Err(Error::Argument { op: OP, argument: "strides of LSE", got, expected });
            }
        }
        let inputs_aligned = [
            (q.as_raw(), q.shape(), q.strides()),
            (k.as_raw(), k.shape(), k.strides()),
            (v.as_raw(), v.shape(), v.strides()),
        ]
        .into_iter()
        .all(|(address, shape, strides)| rows_aligned(address, shape, strides));
        // A scale of 0 makes every score 0; the smallest normal number does so too, and keeps masked scores at -inf.
        let magnitude = self.scale.abs().max(f32::MIN_POSITIVE);
        Ok(AttentionArgs {
            q: q.as_raw(),
            k: k.as_raw(),
            v: v.as_raw(),
            o: out.as_raw(),
            lse: lse.map_or(0, TensorMut::as_raw),
            q_strides: kernel_strides(self.layout, q.shape(), q.strides()),
            k_strides: kernel_strides(self.layout, k.shape(), k.strides()),
            v_strides: kernel_strides(self.layout, v.shape(), v.strides()),
            o_strides: kernel_strides(self.layout, out.shape(), out.strides()),
            q_heads: problem.q_heads as u32,
            heads_per_kv: (problem.q_heads / problem.kv_heads.max(1)) as u32,
            q_len: problem.q_len as u32,
            k_len: problem.k_len as u32,
            head_dim: problem.head_dim as u32,
            first_key: self.key_offsets.0,
            last_key: self.key_offsets.1,
            scale_log2: (f64::from(magnitude) * std::f64::consts::LOG2_E).min(f64::from(f32::MAX)) as f32,
            q_sign: if self.scale < 0.0 { 0x8000_8000 } else { 0 },
            inputs_aligned: u32::from(inputs_aligned),
            output_aligned: u32::from(rows_aligned(out.as_raw(), out.shape(), out.strides())),
        })
    }
}

impl fmt::Display for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.variant.name)
    }
}

impl fmt::Debug for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttentionPlan")
            .field("variant", &self.variant.name)
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

// SAFETY: plain `repr(C)` data without padding between what the kernels read.
unsafe impl KernelParam for AttentionArgs {}

/// The strides as kernels take them: 0 along a dimension that is never stepped along, whose stride can be anything. Copies of
/// a tile form the addresses of rows beyond the last, which are not read but must be aligned as the others are.
fn kernel_strides(layout: Layout, shape: &[usize; 4], strides: &[i64; 4]) -> AttentionStrides {
    let taken = std::array::from_fn(|dim| if shape[dim] > 1 { strides[dim] } else { 0 });
    let [batch, head, row, _] = layout.reorder(taken);
    AttentionStrides { batch, head, row }
}

/// Whether every row of a tensor of 16-bit elements starts on a 16-byte boundary.
fn rows_aligned(address: u64, shape: &[usize; 4], strides: &[i64; 4]) -> bool {
    let steps_aligned = shape.iter().zip(strides).take(3).all(|(&len, stride)| len <= 1 || stride % 8 == 0);
    address.is_multiple_of(16) && steps_aligned
}

fn named(name: &str, dtype: Dtype, head_dim: usize) -> Result<&'static AttentionVariant> {
    attention_variants(dtype, head_dim).find(|variant| variant.name == name).ok_or_else(|| Error::UnknownVariant {
        op: OP,
        name: name.to_owned(),
        known: attention_variants(dtype, head_dim).map(|variant| variant.name).collect(),
    })
}

/// The variant to run where none is named: the first in the table's order of preference.
fn preferred(dtype: Dtype, head_dim: usize) -> Result<&'static AttentionVariant> {
    attention_variants(dtype, head_dim).next().ok_or_else(|| {
        let mut compiled: Vec<Dtype> = ATTENTION.iter().map(|row| row.dtype).collect();
        compiled.dedup();
        Error::NoVariant { op: OP, dtype, compiled }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: AttentionProblem =
        AttentionProblem { batch: 2, q_heads: 6, kv_heads: 3, q_len: 5, k_len: 7, head_dim: 64 };

    fn rejected(problem: AttentionProblem) -> &'static str {
        match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{problem:?}: {other:?}"),
        }
    }

    #[test]
    fn shapes_give_the_problem_back_in_both_layouts() {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            let (q, kv) = (PROBLEM.q_shape(layout), PROBLEM.kv_shape(layout));
            assert_eq!(AttentionProblem::of_shapes(q, kv, kv, layout), Ok(PROBLEM));
        }
        assert_eq!(PROBLEM.q_shape(Layout::Bshd), [2, 5, 6, 64]);
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let (q, kv) = (PROBLEM.q_shape(Layout::Bhsd), PROBLEM.kv_shape(Layout::Bhsd));
        for (k, v, named) in [([3, 3, 7, 64], kv, "K"), ([2, 3, 7, 128], kv, "K"), (kv, [2, 3, 8, 64], "V")] {
            match AttentionProblem::of_shapes(q, k, v, Layout::Bhsd) {
                Err(Error::Shape { tensor, .. }) => assert_eq!(tensor, named),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn sizes_that_no_variant_takes_are_named() {
        assert_eq!(PROBLEM.check(), Ok(()));
        for head_dim in [0, 4, 12, 257, 264] {
            assert_eq!(rejected(AttentionProblem { head_dim, ..PROBLEM }), "head_dim");
        }
        for kv_heads in [0, 4, 12] {
            assert_eq!(rejected(AttentionProblem { kv_heads, ..PROBLEM }), "kv_heads");
        }
        assert_eq!(rejected(AttentionProblem { k_len: MAX_LEN + 1, ..PROBLEM }), "k_len");
        assert_eq!(AttentionProblem { q_heads: 0, kv_heads: 0, ..PROBLEM }.check(), Ok(()));
    }

    #[test]
    fn the_preferred_variant_has_the_narrowest_head_dimension_that_serves() {
        for (head_dim, served) in [(8, 64), (64, 64), (72, 128), (128, 128), (136, 256), (256, 256)] {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                assert_eq!(preferred(dtype, head_dim).map(|variant| variant.head_dim), Ok(served), "{head_dim}");
            }
        }
        let compiled = vec![Dtype::F16, Dtype::Bf16];
        assert_eq!(preferred(Dtype::F32, 64), Err(Error::NoVariant { op: OP, dtype: Dtype::F32, compiled }));
    }

    #[test]
    fn a_variant_is_found_by_name_only_where_it_serves() {
        let name =
            attention_variants(Dtype::F16, 64).find(|row| row.head_dim == 64).expect("f16 has a row for 64").name;
        assert_eq!(named(name, Dtype::F16, 64).map(|variant| variant.name), Ok(name));
        for (dtype, head_dim) in [(Dtype::F16, 72), (Dtype::Bf16, 64)] {
            assert!(matches!(named(name, dtype, head_dim), Err(Error::UnknownVariant { .. })));
        }
    }

    #[test]
    fn rows_are_aligned_where_address_and_the_strides_in_use_are() {
        assert!(rows_aligned(256, &[2, 3, 4, 64], &[768, 256, 64, 1]));
        assert!(!rows_aligned(264, &[2, 3, 4, 64], &[768, 256, 64, 1]));
        assert!(!rows_aligned(256, &[2, 3, 4, 64], &[780, 260, 65, 1]));
        assert!(rows_aligned(256, &[1, 3, 1, 64], &[3, 0, 5, 1]), "a dimension of one is never stepped along");
    }

    #[test]
    fn kernels_never_see_a_stride_that_is_not_taken() {
        let strides = |layout, shape| kernel_strides(layout, &shape, &[9000, 700, 50, 1]);
        let all = AttentionStrides { batch: 9000, head: 700, row: 50 };
        assert_eq!(strides(Layout::Bhsd, [2, 3, 4, 64]), all);
        assert_eq!(strides(Layout::Bshd, [2, 4, 3, 64]), AttentionStrides { head: 50, row: 700, ..all });
        assert_eq!(strides(Layout::Bhsd, [2, 3, 1, 64]), AttentionStrides { row: 0, ..all });
        assert_eq!(strides(Layout::Bshd, [1, 1, 3, 64]), AttentionStrides { batch: 0, head: 50, row: 0 });
    }

    #[test]
    fn flops_count_what_the_mask_leaves() {
        assert_eq!(PROBLEM.flops(Mask::Full), 4.0 * 12.0 * 64.0 * 35.0);
        assert_eq!(PROBLEM.flops(Mask::Causal), 4.0 * 12.0 * 64.0 * (3 + 4 + 5 + 6 + 7) as f64);
        let vast = AttentionProblem { batch: 1 << 40, q_heads: 1 << 40, ..PROBLEM };
        assert_eq!(vast.flops(Mask::Full), 4.0 * 2f64.powi(80) * 64.0 * 35.0);
    }
}
