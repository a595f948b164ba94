//! The plan: a configuration that is chosen and loaded, its checks and its runs.

use std::fmt;

use layout::Dtype;
use variants::attention::{AttentionConfig, Seqlens};

use super::arguments::{DESCALES, add_tensors, descale_arguments};
use super::choice::{Request, is_wgmma};
use super::decode::{BlockTable, Decode, is_decode};
use super::options::AttentionOptions;
use super::problem::{AttentionProblem, ResolvedParams};
use super::sizes::{Keys, OP, with_columns};
use super::tensors::{AttentionOperands, RawAttentionTensors, RawKeys};
use super::tiles::TileLaunch;
use super::tma;
use crate::checks::{
    argument, has_element_type, has_shape, has_type, is_contiguous, same_device, same_devices, workspace_address,
};
use crate::element::{ElementType, Float};
use crate::error::Result;
use crate::runtime::gpu::Gpu;
use crate::runtime::module::{Kernel, KernelFacts, KernelName};
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::TensorRef;

/// A chosen and loaded kernel for repeated calls on problems of one size, whichever way the keys lie. Displays as the
/// kernel's name.
///
/// ```
/// use ferrotile::{
///     Arch, AttentionOptions, AttentionParams, AttentionPlan, AttentionProblem, AttentionTensors, BatchedSizes,
///     Buffer, Dtype, Gpu, Layout, TensorMut, TensorRef,
/// };
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let sizes = BatchedSizes { batch: 1, q_heads: 1, kv_heads: 1, q_len: 16, k_len: 16, head_dim: 64 };
/// let problem = AttentionProblem::new(sizes, AttentionParams::new(Layout::Bhsd));
/// let plan = AttentionPlan::new(&gpu, Dtype::F16, &problem, &AttentionOptions::default())?;
///
/// let data = Buffer::upload_blocking(&stream, &[f16::ONE; 16 * 64])?;
/// let mut out = Buffer::<f16>::zeroed(&gpu, 16 * 64)?;
/// let shape = sizes.q_shape(Layout::Bhsd);
/// let input = TensorRef::contiguous(&data, shape)?;
/// plan.run(&stream, AttentionTensors::new(input, input, input, TensorMut::contiguous(&mut out, shape)?))?;
/// assert_eq!(out.download_blocking(&stream)?, [f16::ONE; 16 * 64]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct AttentionPlan {
    problem: AttentionProblem,
    params: ResolvedParams,
    chosen: Launch,
    /// What runs tensors that the chosen kernel does not take; `None` where it takes all, or was named.
    substitute: Option<TileLaunch>,
}

/// How a kernel is launched: by tiles of query rows, or with the keys split between blocks.
#[derive(Clone)]
enum Launch {
    Tiles(TileLaunch),
    Decode(Decode),
}

impl Launch {
    const fn config(&self) -> &'static AttentionConfig {
        match self {
            Launch::Tiles(tiles) => tiles.config,
            Launch::Decode(decode) => decode.config(),
        }
    }

    const fn kernel(&self) -> &Kernel {
        match self {
            Launch::Tiles(tiles) => &tiles.kernel,
            Launch::Decode(decode) => decode.kernel(),
        }
    }
}

impl AttentionPlan {
    /// Chooses a kernel for a Q of type `dtype`, with K, V and O of the types that the parameters say, and loads all
    /// that a run needs, also for tensors that this kernel does not take ([`AttentionPlan::kernel_name_for`]).
    ///
    /// Masks are aligned at the last row and key of each batch entry. Keys in pages are split for the most that a batch
    /// entry may have; sequences of several lengths are not split, and use no workspace.
    ///
    /// # Errors
    /// [`Error::Argument`] for sizes, parameters or splits that no kernel takes; [`Error::UnsupportedType`] for an
    /// element type that no kernel has; [`Error::UnknownKernel`] where the named kernel does not serve the problem;
    /// [`Error::Unsupported`] where the architecture lacks that kernel, or for too many query rows on keys in pages;
    /// those of loading a module.
    ///
    /// [`Error::Argument`]: crate::Error::Argument
    /// [`Error::UnsupportedType`]: crate::Error::UnsupportedType
    /// [`Error::UnknownKernel`]: crate::Error::UnknownKernel
    /// [`Error::Unsupported`]: crate::Error::Unsupported
    pub fn new(gpu: &Gpu, dtype: Dtype, problem: &AttentionProblem, options: &AttentionOptions) -> Result<Self> {
        let (plan, substitute) = Self::choose(gpu, dtype, problem, options)?;
        plan.with_substitute(gpu, substitute)
    }

    /// Makes a plan for one run on these tensors, which loads a substitute only where they need it, and runs it.
    ///
    /// # Errors
    /// Those of [`AttentionPlan::new`] and [`AttentionPlan::run`].
    pub(super) fn run_once(
        stream: StreamRef<'_>,
        dtype: Dtype,
        problem: &AttentionProblem,
        options: &AttentionOptions,
        tensors: impl AttentionOperands,
    ) -> Result<()> {
        Self::for_call(stream.gpu(), dtype, problem, options, &tensors.erased())?.run(stream, tensors)
    }

    /// A plan for one run on these tensors.
    fn for_call(
        gpu: &Gpu,
        dtype: Dtype,
        problem: &AttentionProblem,
        options: &AttentionOptions,
        tensors: &RawAttentionTensors,
    ) -> Result<Self> {
        let (plan, substitute) = Self::choose(gpu, dtype, problem, options)?;
        let RawAttentionTensors { q, k, v, out, .. } = tensors;
        let needed = substitute.filter(|_| tma::check([q, k, v], Some(out)).is_err());
        plan.with_substitute(gpu, needed)
    }

    fn with_substitute(self, gpu: &Gpu, config: Option<&'static AttentionConfig>) -> Result<Self> {
        let Some(config) = config else { return Ok(self) };
        let problem = (&self.problem.keys, self.problem.params.layout);
        Ok(Self { substitute: TileLaunch::substitute(gpu, config, problem)?, ..self })
    }

    /// A plan without a substitute, and the configuration that is one.
    fn choose(
        gpu: &Gpu,
        dtype: Dtype,
        problem: &AttentionProblem,
        options: &AttentionOptions,
    ) -> Result<(Self, Option<&'static AttentionConfig>)> {
        problem.keys.check()?;
        let params = ResolvedParams::new(problem.keys.head_dim(), &problem.params)?;
        problem.check_out_scale(dtype)?;
        options.check()?;
        let longest = problem.longest();
        let request = Request {
            arch: gpu.arch(),
            multiprocessors: gpu.multiprocessors(),
            dtype,
            kv: problem.kv(dtype),
            out: problem.out(dtype),
            sizes: &longest,
            value_dim: params.value_dim,
            mask: params.mask,
            score_mod: params.score_mod(),
            seqlens: if matches!(problem.keys, Keys::Varlen(_)) { Seqlens::Varlen } else { Seqlens::Fixed },
            paged: matches!(problem.keys, Keys::Paged(_)),
        };
        let (config, substitute) = match &options.kernel {
            Some(name) => (request.named(name)?, None),
            None => {
                let config = request.preferred(options.accumulation)?;
                // Not every element type has a kernel for any strides.
                (config, if is_wgmma(config) { request.for_any_strides().ok() } else { None })
            }
        };
        let chosen = if is_decode(config) {
            Launch::Decode(Decode::new(gpu, config, &longest, &params, options)?)
        } else {
            let keys = (&problem.keys, problem.params.layout);
            Launch::Tiles(TileLaunch::new(gpu, config, keys, options.isolated)?)
        };
        Ok((Self { problem: *problem, params, chosen, substitute: None }, substitute))
    }

    /// What the plan was made for.
    pub const fn problem(&self) -> &AttentionProblem {
        &self.problem
    }

    /// The name of the chosen kernel.
    #[must_use]
    pub const fn kernel_name(&self) -> KernelName {
        KernelName::new(self.chosen.config().name)
    }

    /// What the chosen kernel is launched with.
    #[must_use]
    pub const fn facts(&self) -> KernelFacts {
        let config = self.chosen.config();
        KernelFacts {
            name: KernelName::new(config.name),
            threads: config.threads(),
            shared_bytes: config.smem().total_bytes(),
        }
    }

    /// The name of the kernel that [`AttentionPlan::run`] takes for these Q, K and V, and an O whose rows start on
    /// 16-byte boundaries. It is [`AttentionPlan::kernel_name`], unless that kernel does not take their strides or
    /// addresses. Then it is one that takes any, or none where the options name the kernel.
    ///
    /// # Errors
    /// [`Error::Alignment`](crate::Error::Alignment) or [`Error::Argument`](crate::Error::Argument) where the kernel
    /// was named and does not take them.
    pub fn kernel_name_for<T: Float, KV: Float, const RANK: usize>(
        &self,
        q: &TensorRef<'_, T, RANK>,
        k: &TensorRef<'_, KV, RANK>,
        v: &TensorRef<'_, KV, RANK>,
    ) -> Result<KernelName> {
        let inputs = [q.erased(), k.erased(), v.erased()];
        let substitute = self.substitute_for(inputs.each_ref(), None)?;
        Ok(substitute.map_or(self.kernel_name(), |tiles| KernelName::new(tiles.config.name)))
    }

    /// What runs the tensors in place of the chosen kernel; `None` where that one takes them.
    fn substitute_for(&self, inputs: [&RawTensor; 3], out: Option<&RawTensor>) -> Result<Option<&TileLaunch>> {
        if !is_wgmma(self.chosen.config()) {
            return Ok(None);
        }
        match (tma::check(inputs, out), &self.substitute) {
            (Ok(()), _) => Ok(None),
            (Err(_), Some(substitute)) => Ok(Some(substitute)),
            (Err(error), None) => Err(error),
        }
    }

    /// The loaded kernel, for its registers and occupancy.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        self.chosen.kernel()
    }

    /// The parts that the keys are split into, each for blocks of its own; 1 for kernels that split no keys between
    /// blocks.
    #[must_use]
    pub const fn splits(&self) -> usize {
        match &self.chosen {
            Launch::Tiles(_) => 1,
            Launch::Decode(decode) => decode.splits(),
        }
    }

    /// The workspace that a run needs: at most [`AttentionOptions::max_workspace_bytes`]. The caller owns it; runs that
    /// are in flight at once need one each.
    #[must_use]
    pub const fn workspace_bytes(&self) -> usize {
        match &self.chosen {
            Launch::Tiles(_) => 0,
            Launch::Decode(decode) => decode.workspace_bytes(),
        }
    }

    /// Computes attention on `stream` and returns before it is done. The tensors are those of the plan's problem:
    /// [`AttentionTensors`] for [`Keys::Batched`], see [`attention`] for what they are; [`VarlenTensors`] for
    /// [`Keys::Varlen`], see [`attention_varlen`]; [`PagedTensors`] for [`Keys::Paged`], see [`paged_attention`].
    ///
    /// Numbers that stand on the card (`cu_seqlens`, a block table, numbers of keys) may have any value, and work that
    /// is not ordered with this call may write them meanwhile. The call ends all the same, and writes nothing outside
    /// of the rows of O and LSE that the numbers have named. Those rows then hold unspecified values.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that are not of the plan's problem; [`Error::Argument`] for tensors of another form
    /// or element type, an LSE that is not contiguous, too little workspace, and a bias that the parameters of the plan
    /// have and the tensors lack, or the other way round; [`Error::Alignment`] where the kernel was named and does not
    /// take the tensors; [`Error::WrongDevice`]; [`Error::ForeignCapture`]; [`Error::Driver`] where the driver refuses
    /// the launch.
    ///
    /// [`AttentionTensors`]: crate::AttentionTensors
    /// [`VarlenTensors`]: crate::VarlenTensors
    /// [`PagedTensors`]: crate::PagedTensors
    /// [`attention`]: crate::attention()
    /// [`attention_varlen`]: crate::attention_varlen
    /// [`paged_attention`]: crate::paged_attention()
    /// [`Error::Shape`]: crate::Error::Shape
    /// [`Error::Argument`]: crate::Error::Argument
    /// [`Error::Alignment`]: crate::Error::Alignment
    /// [`Error::WrongDevice`]: crate::Error::WrongDevice
    /// [`Error::ForeignCapture`]: crate::Error::ForeignCapture
    /// [`Error::Driver`]: crate::Error::Driver
    pub fn run<'s>(&self, stream: impl Into<StreamRef<'s>>, tensors: impl AttentionOperands) -> Result<()> {
        // SAFETY: the views borrow tensors whose owners keep the memory until the stream has done the work, and no two
        // indices of a view that is written to are the same element.
        unsafe { self.run_raw(stream, &tensors.erased()) }
    }

    /// As [`AttentionPlan::run`], for tensors whose types and ranks the compiler does not know: for bindings.
    ///
    /// # Safety
    /// Every tensor is memory that is accessible from the primary context of its card and aligned for its elements. It
    /// stays allocated until the stream has done the work. Nothing else reads or writes O, LSE and workspace until
    /// then, nor writes the others, and no two indices of O are the same element.
    ///
    /// # Errors
    /// Those of [`AttentionPlan::run`].
    pub unsafe fn run_raw<'s>(&self, stream: impl Into<StreamRef<'s>>, tensors: &RawAttentionTensors) -> Result<()> {
        let stream = stream.into();
        same_device("plan", self.kernel().ordinal(), stream.ordinal())?;
        self.check(tensors)?;
        let of_one_entry;
        let tensors = match tensors.keys {
            RawKeys::Batched | RawKeys::Paged { .. } => tensors,
            RawKeys::Varlen { .. } => {
                of_one_entry = as_one_batch_entry(tensors);
                &of_one_entry
            }
        };
        let RawAttentionTensors { q, k, v, out, descales, lse, sink, bias, workspace, keys } = tensors;
        let substitute = self.substitute_for([q, k, v], Some(out))?;
        let config = substitute.map_or(self.chosen.config(), |tiles| tiles.config);
        let longest = self.problem.longest();
        let mut args = self.params.arguments(&longest, config.score_mod);
        self.params.add_score_tensors(&mut args, &longest, (tensors, config.out))?;
        let mut factors = descale_arguments(&longest, tensors)?;
        factors.out_scale = self.params.out_scale(self.problem.out(config.dtype));
        let [first, second] = match keys {
            RawKeys::Batched => [("keys", None); 2],
            RawKeys::Varlen { cu_seqlens_q, cu_seqlens_k } => {
                [("cu_seqlens_q", Some(cu_seqlens_q)), ("cu_seqlens_k", Some(cu_seqlens_k))]
            }
            RawKeys::Paged { block_table, k_lens } => {
                [("block table", Some(block_table)), ("numbers of keys", Some(k_lens))]
            }
        };
        let required = [("Q", Some(q)), ("K", Some(k)), ("V", Some(v)), ("O", Some(out)), first, second];
        let optional = [("LSE", lse.as_ref()), ("sink", sink.as_ref()), ("bias", bias.as_ref())];
        let descales = DESCALES.into_iter().zip(descales.iter().map(Option::as_ref));
        same_devices(required.into_iter().chain(optional).chain(descales), stream.ordinal())?;
        add_tensors(&mut args, self.problem.params.layout, tensors);
        let mut table = BlockTable::default();
        match (keys, &self.problem.keys) {
            (RawKeys::Varlen { cu_seqlens_q, cu_seqlens_k }, Keys::Varlen(sizes)) => {
                (args.cu_seqlens_q, args.cu_seqlens_k) = (cu_seqlens_q.as_raw(), cu_seqlens_k.as_raw());
                (args.q_total, args.k_total) = (sizes.q_total as u32, sizes.k_total as u32);
                args.varlen_batch = sizes.batch as u32;
            }
            (RawKeys::Paged { block_table, k_lens }, Keys::Paged(sizes)) => {
                table = BlockTable {
                    table: block_table.as_raw(),
                    k_lens: k_lens.as_raw(),
                    stride: block_table.step(0),
                    page_len: sizes.page_len,
                    pages: sizes.pages,
                };
            }
            _ => {}
        }
        // SAFETY: the tensors are of the plan's sizes, and valid as the caller promises. Whatever the numbers on the
        // card are, kernels keep to the tensors.
        unsafe {
            match (substitute, &self.chosen) {
                (Some(tiles), _) | (None, Launch::Tiles(tiles)) => tiles.launch(stream, &args, &factors, [q, k, v]),
                (None, Launch::Decode(decode)) => {
                    let needed = decode.workspace_bytes();
                    let workspace = workspace_address(OP, workspace.as_ref(), needed, stream.ordinal())?;
                    decode.run(stream, (&args, &factors), table, workspace)
                }
            }
        }
    }

    /// Whether the tensors are of the plan's problem, but for sink, bias and workspace.
    fn check(&self, tensors: &RawAttentionTensors) -> Result<()> {
        let RawAttentionTensors { q, k, v, out, lse, keys, .. } = tensors;
        let config = self.chosen.config();
        has_type(OP, "element type", q.element_type(), config.dtype)?;
        for (tensor, view) in [("K", k), ("V", v)] {
            has_element_type(OP, tensor, view, config.kv_dtype.into())?;
        }
        has_element_type(OP, "O", out, self.problem.out(config.dtype).into())?;
        let (layout, value_dim) = (self.problem.params.layout, self.params.value_dim);
        match (&self.problem.keys, keys) {
            (Keys::Batched(sizes), RawKeys::Batched) => {
                let [q_shape, kv_shape] = [sizes.q_shape(layout), sizes.kv_shape(layout)];
                has_shapes([q, k, v, out], q_shape, kv_shape, value_dim)?;
                check_lse(lse.as_ref(), &[sizes.batch, sizes.q_heads, sizes.q_len])
            }
            (Keys::Varlen(sizes), RawKeys::Varlen { cu_seqlens_q, cu_seqlens_k }) => {
                let q_shape = [sizes.q_total, sizes.q_heads, sizes.head_dim];
                has_shapes([q, k, v, out], q_shape, [sizes.k_total, sizes.kv_heads, sizes.head_dim], value_dim)?;
                for (tensor, starts) in [("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)] {
                    has_element_type(OP, tensor, starts, ElementType::I32)?;
                    has_shape(OP, tensor, starts.shape(), &[sizes.batch + 1])?;
                }
                check_lse(lse.as_ref(), &[sizes.q_heads, sizes.q_total])
            }
            (Keys::Paged(sizes), RawKeys::Paged { block_table, k_lens }) => {
                has_shapes([q, k, v, out], sizes.q_shape(layout), sizes.kv_shape(), value_dim)?;
                has_element_type(OP, "block table", block_table, ElementType::I32)?;
                has_shape(OP, "block table", block_table.shape(), &[sizes.batch, sizes.table_len])?;
                has_element_type(OP, "numbers of keys", k_lens, ElementType::I32)?;
                has_shape(OP, "numbers of keys", k_lens.shape(), &[sizes.batch])?;
                check_lse(lse.as_ref(), &[sizes.batch, sizes.q_heads, sizes.q_len])
            }
            _ => {
                let (got, expected) = (form_of_tensors(keys), form(&self.problem.keys));
                Err(argument(OP, "tensors", got, format!("{expected}, as the plan's problem has them")))
            }
        }
    }
}

/// The tensors of sequences that follow each other, as those of one batch entry `[1, row, head, column]`.
fn as_one_batch_entry(tensors: &RawAttentionTensors) -> RawAttentionTensors {
    let RawAttentionTensors { q, k, v, out, .. } = tensors;
    let [q, k, v, out] = [q, k, v, out].map(RawTensor::as_one_batch_entry);
    RawAttentionTensors { q, k, v, out, ..*tensors }
}

/// Whether Q, K, V and O have these shapes, with the columns of V where they have its head dimension.
fn has_shapes<const RANK: usize>(
    [q, k, v, out]: [&RawTensor; 4],
    q_shape: [usize; RANK],
    kv_shape: [usize; RANK],
    value_dim: usize,
) -> Result<()> {
    has_shape(OP, "Q", q.shape(), &q_shape)?;
    has_shape(OP, "K", k.shape(), &kv_shape)?;
    has_shape(OP, "V", v.shape(), &with_columns(kv_shape, value_dim))?;
    has_shape(OP, "O", out.shape(), &with_columns(q_shape, value_dim))
}

/// Whether an LSE that is there has this shape and no gaps.
fn check_lse(lse: Option<&RawTensor>, shape: &[usize]) -> Result<()> {
    let Some(lse) = lse else { return Ok(()) };
    has_element_type(OP, "LSE", lse, ElementType::F32)?;
    has_shape(OP, "LSE", lse.shape(), shape)?;
    is_contiguous(OP, "strides of LSE", lse)
}

/// What the tensors of a problem are called.
const fn form(keys: &Keys) -> &'static str {
    match keys {
        Keys::Batched(_) => "batched ones",
        Keys::Varlen(_) => "those of sequences of several lengths",
        Keys::Paged(_) => "those of keys in pages",
    }
}

/// What tensors are called.
const fn form_of_tensors(keys: &RawKeys) -> &'static str {
    match keys {
        RawKeys::Batched => "batched ones",
        RawKeys::Varlen { .. } => "those of sequences of several lengths",
        RawKeys::Paged { .. } => "those of keys in pages",
    }
}

impl fmt::Display for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kernel_name().fmt(f)
    }
}

impl fmt::Debug for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttentionPlan")
            .field("kernel", &self.kernel_name().as_str())
            .field("problem", &self.problem)
            .field("splits", &self.splits())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::super::layout::Layout;
    use super::super::problem::AttentionParams;
    use super::super::sizes::BatchedSizes;
    use super::*;

    const SIZES: BatchedSizes = BatchedSizes { batch: 1, q_heads: 1, kv_heads: 1, q_len: 64, k_len: 64, head_dim: 64 };

    fn problem(sizes: BatchedSizes) -> AttentionProblem {
        AttentionProblem::new(sizes, AttentionParams::new(Layout::Bhsd))
    }

    #[test]
    fn a_plan_has_loaded_what_takes_any_strides_and_a_call_only_what_it_needs() {
        let gpu = Gpu::emulated(layout::Arch::Sm90a);
        let (problem, options) = (problem(SIZES), AttentionOptions::default());
        let plan = AttentionPlan::new(&gpu, Dtype::F16, &problem, &options).unwrap();
        assert!(is_wgmma(plan.chosen.config()));
        assert!(plan.substitute.as_ref().is_some_and(|substitute| !is_wgmma(substitute.config)));
        let named = AttentionOptions { kernel: Some(plan.to_string()), ..options.clone() };
        assert!(AttentionPlan::new(&gpu, Dtype::F16, &problem, &named).unwrap().substitute.is_none());
        for (row, needed) in [(64, false), (67, true)] {
            let shape = SIZES.q_shape(Layout::Bhsd);
            let strides = [64 * row, 64 * row, row, 1];
            let q = RawTensor::new(gpu.ordinal(), 256, ElementType::F16, &shape, &strides).unwrap();
            let tensors = RawAttentionTensors {
                q,
                k: q,
                v: q,
                out: q,
                descales: [None; 3],
                lse: None,
                sink: None,
                bias: None,
                workspace: None,
                keys: RawKeys::Batched,
            };
            let plan = AttentionPlan::for_call(&gpu, Dtype::F16, &problem, &options, &tensors).unwrap();
            assert_eq!(plan.substitute.is_some(), needed, "rows {row} elements apart");
        }
    }

    #[test]
    fn a_plan_needs_no_substitute_where_its_grid_has_no_room() {
        let gpu = Gpu::emulated(layout::Arch::Sm90a);
        let vast = problem(BatchedSizes { batch: 1 << 24, q_len: 128 * 64, ..SIZES });
        let plan = AttentionPlan::new(&gpu, Dtype::F16, &vast, &AttentionOptions::default()).unwrap();
        assert!(is_wgmma(plan.chosen.config()) && plan.substitute.is_none(), "{plan}");
    }
}
