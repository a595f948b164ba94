//! Attention on sequences of several lengths that follow each other in one tensor.

use std::fmt;
use std::sync::Arc;

use layout::Dtype;
use variants::attention::{AttentionConfig, MAX_LEN, Seqlens, first_slot};

use super::choice::{Request, is_wgmma};
use super::plan::{Launcher, add_addresses, check_device, check_dtype, check_lse, optional};
use super::problem::{check_shape, with_columns};
use super::terms::Terms;
use super::{AttentionOptions, AttentionProblem, Layout, OP, tma};
use crate::checks::same_device;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};
use crate::runtime::tile_semaphores::TileSemaphores;

/// The sizes of attention on sequences of several lengths. How long each is stands on the card alone, in
/// [`VarlenTensors::cu_seqlens_q`] and [`VarlenTensors::cu_seqlens_k`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VarlenProblem {
    /// Members of the batch: pairs of a sequence of queries and one of keys.
    pub members: usize,
    /// Heads of Q and O.
    pub q_heads: usize,
    /// Heads of K and V, a divisor of `q_heads`.
    pub kv_heads: usize,
    /// Rows of Q and O, of all members.
    pub q_total: usize,
    /// Rows of K and V, of all members.
    pub k_total: usize,
    /// The most query rows that a member has. Rows of a member beyond them are not computed.
    pub max_q_len: usize,
    /// The most keys that a member has. Keys of a member beyond them are not seen.
    pub max_k_len: usize,
    /// Head dimension: a multiple of 8 up to 256.
    pub head_dim: usize,
}

impl VarlenProblem {
    /// Whether attention takes these sizes; [`VarlenPlan::new`] checks it too. Needs no card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed.
    pub fn check(&self) -> Result<()> {
        self.longest().check()?;
        for (argument, total) in [("members", self.members), ("q_total", self.q_total), ("k_total", self.k_total)] {
            if total > MAX_LEN {
                let (got, expected) = (total.to_string(), format!("at most {MAX_LEN}: split the batch"));
                return Err(Error::Argument { op: OP, argument, got, expected });
            }
        }
        Ok(())
    }

    /// As many members, all of the greatest lengths: what the shape of a bias is that of.
    #[must_use]
    pub const fn longest(&self) -> AttentionProblem {
        let Self { members, q_heads, kv_heads, max_q_len, max_k_len, head_dim, .. } = *self;
        AttentionProblem { batch: members, q_heads, kv_heads, q_len: max_q_len, k_len: max_k_len, head_dim }
    }

    /// What the tiles of a variant are those of: all members as long as the longest, or one sequence that has all their
    /// slots.
    fn tiled(&self, variant: &AttentionConfig) -> AttentionProblem {
        if !is_wgmma(variant) {
            return self.longest();
        }
        let has_rows = self.members > 0 && self.max_q_len > 0;
        let rows = variant.rows();
        let slots = if has_rows { first_slot(self.q_total as u32, self.members as u32, rows as u32) } else { 0 };
        AttentionProblem { batch: 1, q_len: slots as usize * rows, ..self.longest() }
    }
}

/// The tensors of one call on sequences of several lengths.
#[derive(Debug)]
pub struct VarlenTensors<'a, T: Float> {
    /// Q `[q_total, q_heads, head_dim]`, of any strides: member after member.
    pub q: TensorRef<'a, T, 3>,
    /// K `[k_total, kv_heads, head_dim]`, of any strides.
    pub k: TensorRef<'a, T, 3>,
    /// V, as K; its head dimension may be another.
    pub v: TensorRef<'a, T, 3>,
    /// O, shaped as Q, with the head dimension of V.
    pub out: TensorMut<'a, T, 3>,
    /// `[members + 1]`: the first row of each member in Q, and one number more, the row after its last one. Equal
    /// neighbours are a member without rows. What is before the first number or after the last one belongs to nobody:
    /// it is neither read nor written. Numbers that do not describe sequences: see [`attention_varlen`].
    pub cu_seqlens_q: TensorRef<'a, i32, 1>,
    /// The same of K and V.
    pub cu_seqlens_k: TensorRef<'a, i32, 1>,
    /// Receives the LSE `[q_heads, q_total]`, contiguous.
    pub lse: Option<TensorMut<'a, f32, 2>>,
    /// As [`AttentionTensors::sink`](crate::AttentionTensors::sink).
    pub sink: Option<TensorRef<'a, f32, 1>>,
    /// As [`AttentionTensors::bias`](crate::AttentionTensors::bias),
    /// `[members or 1, q_heads or 1, max_q_len, max_k_len]`: rows and keys are counted within their member.
    pub bias: Option<TensorRef<'a, T, 4>>,
}

/// A chosen and loaded variant for repeated calls on sequences of several lengths. Displays as the variant's name.
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct VarlenPlan {
    problem: VarlenProblem,
    terms: Terms,
    chosen: Launcher,
    /// What runs tensors that TMA cannot copy; `None` where the chosen variant takes all, or was named.
    substitute: Option<Launcher>,
    /// Where the blocks of a launch take tiles ([`Launcher::semaphores`]).
    semaphores: Option<Arc<TileSemaphores>>,
}

impl VarlenPlan {
    /// Chooses a variant for the problem and loads all that a run needs. Masks are aligned at the last row and key of
    /// each member; the layout, splits and workspace of the options are not used.
    ///
    /// # Errors
    /// As [`AttentionPlan::new`](crate::AttentionPlan::new).
    pub fn new(gpu: &Gpu, dtype: Dtype, problem: &VarlenProblem, options: &AttentionOptions) -> Result<Self> {
        let (plan, substitute) = Self::choose(gpu, dtype, problem, options)?;
        plan.with_substitute(gpu, substitute)
    }

    /// A plan for one run on these tensors: it loads a substitute only where they need it.
    fn for_call<T: Float>(
        gpu: &Gpu,
        problem: &VarlenProblem,
        options: &AttentionOptions,
        tensors: &VarlenTensors<'_, T>,
    ) -> Result<Self> {
        let (plan, substitute) = Self::choose(gpu, T::DTYPE, problem, options)?;
        let needed = match substitute {
            Some(variant) => {
                let VarlenTensors { q, k, v, out, .. } = tensors;
                let ([q, k, v], out) = ([q, k, v].map(as_one_batch_entry), as_one_batch_entry(&out.as_ref())?);
                let taken = tma::check(&[("Q", &q?), ("K", &k?), ("V", &v?)], &out);
                taken.is_err().then_some(variant)
            }
            None => None,
        };
        plan.with_substitute(gpu, needed)
    }

    fn with_substitute(self, gpu: &Gpu, variant: Option<&'static AttentionConfig>) -> Result<Self> {
        let Some(variant) = variant else { return Ok(self) };
        Ok(Self { substitute: Launcher::substitute(gpu, variant, &self.problem.tiled(variant))?, ..self })
    }

    /// A plan without a substitute, and the variant that is one.
    fn choose(
        gpu: &Gpu,
        dtype: Dtype,
        problem: &VarlenProblem,
        options: &AttentionOptions,
    ) -> Result<(Self, Option<&'static AttentionConfig>)> {
        problem.check()?;
        let longest = problem.longest();
        let terms = Terms::new(problem.head_dim, options)?;
        let request = Request {
            arch: gpu.arch(),
            multiprocessors: gpu.multiprocessors(),
            dtype,
            problem: &longest,
            value_dim: terms.value_dim,
            mask: terms.mask,
            scores: terms.scores(),
            lengths: Seqlens::Varlen,
        };
        let (variant, substitute) = match &options.variant {
            Some(name) => (request.named(name)?, None),
            None => {
                let variant = request.preferred()?;
                (variant, if is_wgmma(variant) { Some(request.for_any_strides()?) } else { None })
            }
        };
        let chosen = Launcher::new(gpu, variant, &problem.tiled(variant))?.isolated(options.isolated);
        let semaphores = chosen.semaphores(gpu)?;
        Ok((Self { problem: *problem, terms, chosen, substitute: None, semaphores }, substitute))
    }

    /// The chosen variant.
    #[must_use]
    pub const fn variant(&self) -> &'static AttentionConfig {
        self.chosen.variant
    }

    /// The loaded kernel, for its registers and occupancy.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.chosen.kernel
    }

    /// Computes attention on `stream` and returns before it is done; see [`attention_varlen`], also for numbers of
    /// `cu_seqlens_q` and `cu_seqlens_k` that do not describe sequences.
    ///
    /// That holds for numbers which other work writes meanwhile, not ordered with this call, too: the call ends, and
    /// rows of O and LSE between the least and the greatest number that `cu_seqlens_q` has had hold unspecified values;
    /// no others are written.
    ///
    /// # Errors
    /// As [`AttentionPlan::run_with`](crate::AttentionPlan::run_with).
    pub fn run<T: Float>(&self, stream: StreamRef<'_>, tensors: VarlenTensors<'_, T>) -> Result<()> {
        let VarlenTensors { q, k, v, out, cu_seqlens_q, cu_seqlens_k, lse, sink, bias } = tensors;
        let problem = &self.problem;
        same_device("plan", self.kernel().ordinal(), stream.ordinal())?;
        check_dtype::<T>(self.variant())?;
        let q_shape = [problem.q_total, problem.q_heads, problem.head_dim];
        let kv_shape = [problem.k_total, problem.kv_heads, problem.head_dim];
        for (tensor, got, expected) in [
            ("Q", q.shape(), q_shape),
            ("K", k.shape(), kv_shape),
            ("V", v.shape(), with_columns(kv_shape, self.terms.value_dim)),
            ("O", out.shape(), with_columns(q_shape, self.terms.value_dim)),
        ] {
            check_shape(tensor, got, &expected)?;
        }
        for (tensor, starts) in [("cu_seqlens_q", &cu_seqlens_q), ("cu_seqlens_k", &cu_seqlens_k)] {
            check_shape(tensor, starts.shape(), &[problem.members + 1])?;
        }
        if let Some(lse) = &lse {
            check_lse(lse, [problem.q_heads, problem.q_total])?;
        }
        let required = [
            ("Q", q.ordinal()),
            ("K", k.ordinal()),
            ("V", v.ordinal()),
            ("O", out.ordinal()),
            ("cu_seqlens_q", cu_seqlens_q.ordinal()),
            ("cu_seqlens_k", cu_seqlens_k.ordinal()),
        ];
        check_device(stream, required.into_iter().chain(optional(lse.as_ref(), sink.as_ref(), bias.as_ref())))?;
        let longest = problem.longest();
        let [q, k, v] = [q, k, v].map(|tensor| as_one_batch_entry(&tensor));
        let (q, k, v) = (q?, k?, v?);
        let shape = [1, problem.q_total, problem.q_heads, self.terms.value_dim];
        let strides = [0, out.strides()[0], out.strides()[1], out.strides()[2]];
        // SAFETY: the same elements as those of `out`, which is not used besides.
        let out: TensorMut<'_, T, 4> = unsafe { TensorMut::from_raw(out.ordinal(), out.as_raw(), shape, strides)? };
        let taken = if is_wgmma(self.variant()) {
            tma::check(&[("Q", &q), ("K", &k), ("V", &v)], &out.as_ref())
        } else {
            Ok(())
        };
        let launcher = match (taken, &self.substitute) {
            (Ok(()), _) => &self.chosen,
            (Err(_), Some(substitute)) => substitute,
            (Err(error), None) => return Err(error),
        };
        let mut args = self.terms.arguments(&longest, launcher.variant.score_mod);
        self.terms.add_tensors(&mut args, &longest, sink.as_ref(), bias.as_ref())?;
        add_addresses(&mut args, Layout::Bshd, [&q, &k, &v], &out);
        args.lse = lse.as_ref().map_or(0, TensorMut::as_raw);
        (args.cu_seqlens_q, args.cu_seqlens_k) = (cu_seqlens_q.as_raw(), cu_seqlens_k.as_raw());
        (args.q_total, args.k_total) = (problem.q_total as u32, problem.k_total as u32);
        args.varlen_batch = problem.members as u32;
        if launcher.tiles == 0 {
            return Ok(());
        }
        let map = |tensor: &TensorRef<'_, T, 4>, rows| tma::map_of_sequences(stream.gpu(), tensor, rows);
        let tiled = problem.tiled(launcher.variant);
        // SAFETY: the views are tensors of the plan's sizes whose memory their owners keep until the stream has done
        // the work, and the kernel keeps to them whatever the numbers on the card are.
        unsafe { launcher.launch(stream, &tiled, &args, self.semaphores.as_ref(), [&q, &k, &v], map) }
    }
}

impl fmt::Display for VarlenPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.variant().name)
    }
}

impl fmt::Debug for VarlenPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VarlenPlan")
            .field("variant", &self.variant().name)
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

/// `[row, head, column]` as `[batch, row, head, column]`.
fn as_one_batch_entry<'a, T: Float>(tensor: &TensorRef<'a, T, 3>) -> Result<TensorRef<'a, T, 4>> {
    let ([rows, heads, columns], [row, head, column]) = (*tensor.shape(), *tensor.strides());
    // SAFETY: the same elements as those of `tensor`.
    unsafe { TensorRef::from_raw(tensor.ordinal(), tensor.as_raw(), [1, rows, heads, columns], [0, row, head, column]) }
}

/// Computes attention on sequences of several lengths, with at most `max_q_len` rows and `max_k_len` keys each, on
/// `stream`, and returns before it is done. See [`attention_with`](crate::attention_with) for what is computed.
///
/// `lengths` is `[max_q_len, max_k_len]`. [`AttentionOptions::bias`] is taken from the tensors, and what [`VarlenPlan`]
/// does not use is not used here.
///
/// # Numbers that do not describe sequences
/// `cu_seqlens_q` and `cu_seqlens_k` stand on the card, where the work reads them: no call knows them before. Those
/// that do not ascend, are negative, or lie beyond the tensor are no error; [`VarlenProblem::validate_blocking`] finds
/// them. Whatever the numbers are, nothing outside of the tensors is read or written:
/// - A number below 0 counts as the rows of the tensor, as one beyond them does.
/// - A member that ends where it starts, or before, has no rows. Where it is so for its keys, its rows see none.
/// - A member of more rows than `max_q_len` has the first of them, and the same of its keys.
/// - The rows of every member are written, and no others. But where the numbers of `cu_seqlens_q`, so counted, do not
///   ascend, the rows of a member may stay unwritten. Each element of a row that several members have is then the
///   result of one of them; an emulated device reports a race.
///
/// Of 64 rows, `[0, 30, 64, 70]` has members of 30, 34 and no rows, and `[-4, 30, 64]` of none and 34: rows 0 to 29
/// stay unwritten.
///
/// # Errors
/// As [`attention`](crate::attention()).
pub fn attention_varlen<T: Float>(
    stream: StreamRef<'_>,
    tensors: VarlenTensors<'_, T>,
    [max_q_len, max_k_len]: [usize; 2],
    options: &AttentionOptions,
) -> Result<()> {
    let [q_total, q_heads, head_dim] = *tensors.q.shape();
    let [k_total, kv_heads, _] = *tensors.k.shape();
    let members = tensors.cu_seqlens_q.shape()[0].saturating_sub(1);
    let problem = VarlenProblem { members, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim };
    let value_dim = Some(tensors.v.shape()[2]);
    let options = AttentionOptions { bias: tensors.bias.is_some(), value_dim, ..options.clone() };
    VarlenPlan::for_call(stream.gpu(), &problem, &options, &tensors)?.run(stream, tensors)
}
