//! Plans: a variant that is chosen and loaded, and its launches.

use std::fmt;
use std::sync::Arc;

use layout::Dtype;
use variants::attention::{
    AttentionArgs, AttentionConfig, AttentionKernel, AttentionStrides, MaskKind, ScoreMod, Seqlens, TileSchedulerArgs,
};

use super::choice::{Request, is_wgmma};
use super::decode::{BlockTable, Decode, Limits, is_decode};
use super::problem::check_shape;
use super::terms::Terms;
use super::{AttentionOptions, AttentionProblem, AttentionTensors, Layout, OP, tma};
use crate::backend::LaunchConfig;
use crate::checks::same_device;
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::launch::KernelParam;
use crate::runtime::module::Kernel;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};
use crate::runtime::tensor_map::TensorMap;
use crate::runtime::tile_semaphores::TileSemaphores;

/// A chosen and loaded variant for repeated calls on problems of one size. Displays as the variant's name.
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct AttentionPlan {
    problem: AttentionProblem,
    layout: Layout,
    terms: Terms,
    chosen: Launcher,
    /// What runs tensors that the chosen variant does not take; `None` where it takes all, or was named.
    substitute: Option<Launcher>,
    /// Where the blocks of a launch take tiles ([`Launcher::semaphores`]).
    semaphores: Option<Arc<TileSemaphores>>,
}

/// A variant, its kernel and its tiles of query rows.
#[derive(Clone)]
pub(super) struct Launcher {
    pub(super) variant: &'static AttentionConfig,
    pub(super) kernel: Kernel,
    pub(super) tiles: u32,
    /// Whether it starts only when the work before it has ended.
    isolated: bool,
    /// How it is launched instead, where it decodes.
    decode: Option<Decode>,
}

impl Launcher {
    /// Loads a decode variant.
    fn decode(
        gpu: &Gpu,
        variant: &'static AttentionConfig,
        problem: &AttentionProblem,
        terms: &Terms,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let decode = Decode::new(gpu, variant, problem, terms, Limits::of(options))?;
        let (kernel, tiles) = (decode.kernel().clone(), decode.blocks());
        Ok(Self { variant, kernel, tiles, isolated: options.isolated, decode: Some(decode) })
    }

    /// Loads the variant that takes the place of the chosen one for tensors that TMA cannot copy; `None` where its grid
    /// has no room for the problem.
    pub(super) fn substitute(
        gpu: &Gpu,
        variant: &'static AttentionConfig,
        problem: &AttentionProblem,
    ) -> Result<Option<Self>> {
        match Self::new(gpu, variant, problem) {
            Err(Error::Argument { .. }) => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    /// Loads any other variant.
    pub(super) fn new(gpu: &Gpu, variant: &'static AttentionConfig, problem: &AttentionProblem) -> Result<Self> {
        let heads = problem.batch.checked_mul(problem.q_heads);
        let tiles = heads.and_then(|heads| variant.tiles(heads, problem.q_len)).ok_or_else(|| Error::Argument {
            op: OP,
            argument: "batch * q_heads * q_len",
            got: format!("{} * {} * {}", problem.batch, problem.q_heads, problem.q_len),
            expected: format!("at most 2^31 - 1 blocks of {} rows: split the batch", variant.rows()),
        })?;
        Ok(Self { variant, kernel: gpu.kernel("attention", variant.name)?, tiles, isolated: false, decode: None })
    }

    /// The same, as [`AttentionOptions::isolated`] says.
    pub(super) fn isolated(self, isolated: bool) -> Self {
        Self { isolated, ..self }
    }

    /// Its launch with a block for each tile, or a cluster.
    pub(super) fn config(&self) -> LaunchConfig {
        LaunchConfig {
            grid: [self.tiles * self.variant.split_kv_ctas(), 1, 1],
            block: [self.variant.threads(), 1, 1],
            cluster: [self.variant.cluster(), 1, 1],
            shared_bytes: self.variant.smem().total_bytes(),
            ..LaunchConfig::default()
        }
    }

    /// Semaphores for the blocks of WGMMA launches whose tiles take unlike times; `None` where each block has one tile
    /// at most, or all take the same time.
    pub(super) fn semaphores(&self, gpu: &Gpu) -> Result<Option<Arc<TileSemaphores>>> {
        match self.variant.kernel {
            AttentionKernel::Wgmma(tile)
                if tile.mask == MaskKind::Masked
                    && tile.split_kv_ctas == 1
                    && self.tiles > most_blocks(gpu, self.variant) =>
            {
                Ok(Some(gpu.tile_semaphores()?))
            }
            _ => Ok(None),
        }
    }

    /// Launches the variant on the tiles of `problem`; of a WGMMA variant as many blocks as are resident compute them,
    /// by the maps of Q, K and V: `map` makes one of a tensor, for tiles of so many rows.
    ///
    /// # Safety
    /// Arguments and maps describe the tensors, whose tiles are those of `problem` and which live until the stream has
    /// done the work.
    pub(super) unsafe fn launch<T: Float>(
        &self,
        stream: StreamRef<'_>,
        problem: &AttentionProblem,
        args: &AttentionArgs,
        semaphores: Option<&Arc<TileSemaphores>>,
        [q, k, v]: [&TensorRef<'_, T, 4>; 3],
        map: impl Fn(&TensorRef<'_, T, 4>, usize) -> Result<TensorMap>,
    ) -> Result<()> {
        let mut config = self.config();
        let AttentionKernel::Wgmma(tile) = self.variant.kernel else {
            // SAFETY: the caller's contract; grid, block and shared memory are the variant's.
            return unsafe { self.kernel.launch(stream, &config, &[args]) };
        };
        let key_rows = tile.copied_keys();
        let (q, k, v) = (map(q, tile.m())?, map(k, key_rows)?, map(v, key_rows)?);
        let semaphore = match semaphores {
            Some(semaphores) => semaphores.of_launch(&**stream.gpu().device(), stream.handle())?,
            None => 0,
        };
        let blocks = self.tiles.min(most_blocks(stream.gpu(), self.variant));
        let order = TileSchedulerArgs {
            semaphore,
            ..tma::order(problem, args.value_dim as usize, self.tiles, blocks, tile.mask)
        };
        if tile.split_kv_ctas == 1 {
            config.grid[0] = blocks;
        }
        config.overlaps = !self.isolated;
        // SAFETY: the caller's contract; grid, block and shared memory are the variant's.
        let launched = unsafe { self.kernel.launch(stream, &config, &[args, &order, &q, &k, &v]) };
        if let (Err(_), Some(semaphores)) = (&launched, semaphores) {
            semaphores.abandon(&**stream.gpu().device(), stream.handle());
        }
        launched
    }
}

impl AttentionPlan {
    /// Chooses a variant for the problem and loads all that a run needs, also for tensors that the variant does not
    /// take ([`AttentionPlan::variant_for`]).
    ///
    /// # Errors
    /// [`Error::Argument`] for sizes, a head dimension of V, a scale, a softcap or splits that no variant takes,
    /// [`Error::NoVariant`] for an element type that none has, [`Error::UnknownVariant`] where the named one does not
    /// serve the problem, [`Error::Unsupported`] where the architecture lacks it, and those of loading a module.
    pub fn new(gpu: &Gpu, dtype: Dtype, problem: &AttentionProblem, options: &AttentionOptions) -> Result<Self> {
        let (plan, substitute) = Self::choose(gpu, dtype, problem, options)?;
        plan.with_substitute(gpu, substitute)
    }

    /// A plan for one run on these tensors: it loads a substitute only where they need it.
    ///
    /// # Errors
    /// Those of [`AttentionPlan::new`].
    pub(super) fn for_call<T: Float>(
        gpu: &Gpu,
        problem: &AttentionProblem,
        options: &AttentionOptions,
        tensors: &AttentionTensors<'_, T>,
    ) -> Result<Self> {
        let (plan, substitute) = Self::choose(gpu, T::DTYPE, problem, options)?;
        let AttentionTensors { q, k, v, out, .. } = tensors;
        let needed = substitute.filter(|_| tma::check(&[("Q", q), ("K", k), ("V", v)], &out.as_ref()).is_err());
        plan.with_substitute(gpu, needed)
    }

    fn with_substitute(self, gpu: &Gpu, variant: Option<&'static AttentionConfig>) -> Result<Self> {
        let Some(variant) = variant else { return Ok(self) };
        Ok(Self { substitute: Launcher::substitute(gpu, variant, &self.problem)?, ..self })
    }

    /// A plan without a substitute, and the variant that is one.
    fn choose(
        gpu: &Gpu,
        dtype: Dtype,
        problem: &AttentionProblem,
        options: &AttentionOptions,
    ) -> Result<(Self, Option<&'static AttentionConfig>)> {
        problem.check()?;
        let terms = Terms::new(problem.head_dim, options)?;
        let request = Request {
            arch: gpu.arch(),
            multiprocessors: gpu.multiprocessors(),
            dtype,
            problem,
            value_dim: terms.value_dim,
            mask: terms.mask,
            scores: terms.scores(),
            lengths: Seqlens::Fixed,
        };
        let (variant, substitute) = match &options.variant {
            Some(name) => (request.named(name)?, None),
            None => {
                let variant = request.preferred()?;
                (variant, if is_wgmma(variant) { Some(request.for_any_strides()?) } else { None })
            }
        };
        let chosen = if is_decode(variant) {
            Launcher::decode(gpu, variant, problem, &terms, options)?
        } else {
            Launcher::new(gpu, variant, problem)?.isolated(options.isolated)
        };
        let semaphores = chosen.semaphores(gpu)?;
        let plan = Self { problem: *problem, layout: options.layout, terms, chosen, substitute: None, semaphores };
        Ok((plan, substitute))
    }

    /// The chosen variant.
    #[must_use]
    pub const fn variant(&self) -> &'static AttentionConfig {
        self.chosen.variant
    }

    /// The variant that [`AttentionPlan::run`] takes for these tensors: [`AttentionPlan::variant`] or, where none was
    /// named and that one does not take their strides or addresses, one that takes any.
    ///
    /// # Errors
    /// [`Error::Alignment`] or [`Error::Argument`] where the variant was named and does not take them.
    pub fn variant_for<T: Float>(
        &self,
        q: &TensorRef<'_, T, 4>,
        k: &TensorRef<'_, T, 4>,
        v: &TensorRef<'_, T, 4>,
        out: &TensorMut<'_, T, 4>,
    ) -> Result<&'static AttentionConfig> {
        self.launcher_for(q, k, v, out).map(|launcher| launcher.variant)
    }

    fn launcher_for<T: Float>(
        &self,
        q: &TensorRef<'_, T, 4>,
        k: &TensorRef<'_, T, 4>,
        v: &TensorRef<'_, T, 4>,
        out: &TensorMut<'_, T, 4>,
    ) -> Result<&Launcher> {
        if !is_wgmma(self.chosen.variant) {
            return Ok(&self.chosen);
        }
        match (tma::check(&[("Q", q), ("K", k), ("V", v)], &out.as_ref()), &self.substitute) {
            (Ok(()), _) => Ok(&self.chosen),
            (Err(_), Some(substitute)) => Ok(substitute),
            (Err(error), None) => Err(error),
        }
    }

    /// The loaded kernel, for its registers and occupancy.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.chosen.kernel
    }

    /// The parts that the keys are split into, each for blocks of its own; 1 for variants that split no keys between
    /// blocks.
    #[must_use]
    pub fn splits(&self) -> usize {
        self.chosen.decode.as_ref().map_or(1, Decode::splits)
    }

    /// The workspace that a run needs: at most [`AttentionOptions::max_workspace_bytes`]. The caller owns it; runs that
    /// are under way at once need one each.
    #[must_use]
    pub fn workspace_bytes(&self) -> usize {
        self.chosen.decode.as_ref().map_or(0, Decode::workspace_bytes)
    }

    /// [`AttentionPlan::run_with`] without workspace.
    ///
    /// # Errors
    /// Those of [`AttentionPlan::run_with`].
    pub fn run<T: Float>(
        &self,
        stream: StreamRef<'_>,
        q: TensorRef<'_, T, 4>,
        k: TensorRef<'_, T, 4>,
        v: TensorRef<'_, T, 4>,
        out: TensorMut<'_, T, 4>,
        lse: Option<TensorMut<'_, f32, 3>>,
    ) -> Result<()> {
        self.run_with(stream, AttentionTensors { lse, ..AttentionTensors::new(q, k, v, out) })
    }

    /// Computes attention on `stream` and returns before it is done; see [`attention`](super::attention) for the
    /// tensors.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that are not of the plan's problem, [`Error::LastStride`] or [`Error::Argument`]
    /// for an LSE that is not contiguous, [`Error::Argument`] for too little workspace and for a bias that is there or
    /// not against the options of the plan, those of [`AttentionPlan::variant_for`], [`Error::WrongDevice`],
    /// [`Error::ForeignCapture`], and [`Error::Driver`] where the driver refuses the launch.
    pub fn run_with<T: Float>(&self, stream: StreamRef<'_>, tensors: AttentionTensors<'_, T>) -> Result<()> {
        same_device("plan", self.kernel().ordinal(), stream.ordinal())?;
        self.check(&tensors)?;
        let launcher = self.launcher_for(&tensors.q, &tensors.k, &tensors.v, &tensors.out)?;
        let variant = launcher.variant;
        let args = self.arguments(&tensors, variant.score_mod)?;
        let AttentionTensors { q, k, v, out, lse, sink, bias, workspace } = tensors;
        let required = [("Q", q.ordinal()), ("K", k.ordinal()), ("V", v.ordinal()), ("O", out.ordinal())];
        check_device(stream, required.into_iter().chain(optional(lse.as_ref(), sink.as_ref(), bias.as_ref())))?;
        if let Some(decode) = &launcher.decode {
            let workspace = decode.workspace_address(workspace.as_ref(), stream.ordinal())?;
            // SAFETY: the views are tensors of the plan's sizes whose memory their owners keep until the stream has
            // done the work; so is the workspace.
            return unsafe { decode.run(stream, &args, BlockTable::default(), workspace) };
        }
        if launcher.tiles == 0 {
            return Ok(());
        }
        let map =
            |tensor: &TensorRef<'_, T, 4>, rows| tma::map(stream.gpu(), variant.seqlens, self.layout, tensor, rows);
        // SAFETY: the views are tensors of the plan's sizes whose memory their owners keep until the stream has done
        // the work.
        unsafe { launcher.launch(stream, &self.problem, &args, self.semaphores.as_ref(), [&q, &k, &v], map) }
    }

    /// Whether Q, K, V, O and LSE are of the plan's problem.
    fn check<T: Float>(&self, tensors: &AttentionTensors<'_, T>) -> Result<()> {
        let problem = &self.problem;
        let AttentionTensors { q, k, v, out, lse, .. } = tensors;
        check_dtype::<T>(self.variant())?;
        let (layout, value_dim) = (self.layout, self.terms.value_dim);
        check_shape("Q", q.shape(), &problem.q_shape(layout))?;
        check_shape("K", k.shape(), &problem.kv_shape(layout))?;
        check_shape("V", v.shape(), &problem.v_shape(layout, value_dim))?;
        check_shape("O", out.shape(), &problem.out_shape(layout, value_dim))?;
        if let Some(lse) = lse {
            check_lse(lse, [problem.batch, problem.q_heads, problem.q_len])?;
        }
        Ok(())
    }

    /// The argument of a kernel for these scores, from tensors that are checked.
    fn arguments<T: Float>(&self, tensors: &AttentionTensors<'_, T>, scores: ScoreMod) -> Result<AttentionArgs> {
        let AttentionTensors { q, k, v, out, lse, sink, bias, .. } = tensors;
        let mut args = self.terms.arguments(&self.problem, scores);
        self.terms.add_tensors(&mut args, &self.problem, sink.as_ref(), bias.as_ref())?;
        add_addresses(&mut args, self.layout, [q, k, v], out);
        args.lse = lse.as_ref().map_or(0, TensorMut::as_raw);
        Ok(args)
    }
}

/// The tensors that a call need not have, and their devices.
pub(super) fn optional<T: Float, const RANK: usize>(
    lse: Option<&TensorMut<'_, f32, RANK>>,
    sink: Option<&TensorRef<'_, f32, 1>>,
    bias: Option<&TensorRef<'_, T, 4>>,
) -> impl Iterator<Item = (&'static str, u32)> {
    let (lse, sink) = (lse.map(|lse| ("LSE", lse.ordinal())), sink.map(|sink| ("sink", sink.ordinal())));
    [lse, sink, bias.map(|bias| ("bias", bias.ordinal()))].into_iter().flatten()
}

/// Whether everything is on the device of the stream.
pub(super) fn check_device(
    stream: StreamRef<'_>,
    tensors: impl IntoIterator<Item = (&'static str, u32)>,
) -> Result<()> {
    let expected = stream.ordinal();
    match tensors.into_iter().find(|&(_, got)| got != expected) {
        Some((what, got)) => Err(Error::WrongDevice { what, got, expected }),
        None => Ok(()),
    }
}

/// Whether the variant is for tensors of this type.
pub(super) fn check_dtype<T: Float>(variant: &AttentionConfig) -> Result<()> {
    if T::DTYPE == variant.dtype {
        return Ok(());
    }
    let (got, expected) = (T::DTYPE.to_string(), format!("{}, the plan's", variant.dtype));
    Err(Error::Argument { op: OP, argument: "element type", got, expected })
}

/// Whether the LSE has this shape and no gaps.
pub(super) fn check_lse<const RANK: usize>(lse: &TensorMut<'_, f32, RANK>, shape: [usize; RANK]) -> Result<()> {
    check_shape("LSE", lse.shape(), &shape)?;
    if lse.is_contiguous() {
        return Ok(());
    }
    let (got, expected) = (format!("{:?}", lse.strides()), "those of a contiguous tensor".to_owned());
    Err(Error::Argument { op: OP, argument: "strides of LSE", got, expected })
}

/// Addresses, strides and alignment of Q, K, V and O.
pub(super) fn add_addresses<T: Float>(
    args: &mut AttentionArgs,
    layout: Layout,
    inputs: [&TensorRef<'_, T, 4>; 3],
    out: &TensorMut<'_, T, 4>,
) {
    [args.q, args.k, args.v] = inputs.map(TensorRef::as_raw);
    args.o = out.as_raw();
    [args.q_strides, args.k_strides, args.v_strides] =
        inputs.map(|tensor| kernel_strides(layout, tensor.shape(), tensor.strides()));
    args.o_strides = kernel_strides(layout, out.shape(), out.strides());
    let inputs_aligned =
        inputs.into_iter().all(|tensor| rows_aligned(tensor.as_raw(), tensor.shape(), tensor.strides()));
    args.inputs_aligned = u32::from(inputs_aligned);
    args.output_aligned = u32::from(rows_aligned(out.as_raw(), out.shape(), out.strides()));
}

impl fmt::Display for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.variant().name)
    }
}

impl fmt::Debug for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttentionPlan")
            .field("variant", &self.variant().name)
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for AttentionArgs {}
// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for TileSchedulerArgs {}

/// The blocks of a persistent launch: as many as are resident, in whole clusters.
fn most_blocks(gpu: &Gpu, variant: &AttentionConfig) -> u32 {
    let cluster = variant.multicast_ctas();
    (variant.min_blocks() * gpu.multiprocessors() / cluster).max(1) * cluster
}

/// The strides as kernels take them: 0 along a dimension that is never stepped along, whose stride can be anything.
/// Copies of a tile form the addresses of rows beyond the last, which are not read but must be aligned as the others
/// are.
pub(super) fn kernel_strides(layout: Layout, shape: &[usize; 4], strides: &[i64; 4]) -> AttentionStrides {
    let taken = std::array::from_fn(|dim| if shape[dim] > 1 { strides[dim] } else { 0 });
    let [batch, head, row, _] = layout.reorder(taken);
    AttentionStrides { batch, head, row }
}

/// Whether every row of a tensor of 16-bit elements starts on a 16-byte boundary.
pub(super) fn rows_aligned(address: u64, shape: &[usize; 4], strides: &[i64; 4]) -> bool {
    let steps_aligned = shape.iter().zip(strides).take(3).all(|(&len, stride)| len <= 1 || stride % 8 == 0);
    address.is_multiple_of(16) && steps_aligned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_aligned_where_address_and_the_strides_in_use_are() {
        assert!(rows_aligned(256, &[2, 3, 4, 64], &[768, 256, 64, 1]));
        assert!(!rows_aligned(264, &[2, 3, 4, 64], &[768, 256, 64, 1]));
        assert!(!rows_aligned(256, &[2, 3, 4, 64], &[780, 260, 65, 1]));
        assert!(rows_aligned(256, &[1, 3, 1, 64], &[3, 0, 5, 1]), "a dimension of one is never stepped along");
    }

    #[test]
    fn a_plan_has_loaded_what_takes_any_strides_and_a_call_only_what_it_needs() {
        let gpu = Gpu::emulated(layout::Arch::Sm90a);
        let (problem, options) = (problem(), AttentionOptions::new(Layout::Bhsd));
        let plan = AttentionPlan::new(&gpu, Dtype::F16, &problem, &options).unwrap();
        assert!(is_wgmma(plan.variant()));
        assert!(plan.substitute.is_some_and(|substitute| !is_wgmma(substitute.variant)));
        let named = AttentionOptions { variant: Some(plan.chosen.variant.name.to_owned()), ..options.clone() };
        assert!(AttentionPlan::new(&gpu, Dtype::F16, &problem, &named).unwrap().substitute.is_none());
        for (row, needed) in [(64, false), (67, true)] {
            let strides = [64 * row, 64 * row, row, 1];
            // SAFETY: nothing is enqueued.
            let (q, out) = unsafe {
                let shape = problem.q_shape(Layout::Bhsd);
                let ordinal = gpu.ordinal();
                (
                    TensorRef::<half::f16, 4>::from_raw(ordinal, 256, shape, strides),
                    TensorMut::from_raw(ordinal, 256, shape, strides),
                )
            };
            let q = q.unwrap();
            let tensors = AttentionTensors::new(q, q, q, out.unwrap());
            let plan = AttentionPlan::for_call(&gpu, &problem, &options, &tensors).unwrap();
            assert_eq!(plan.substitute.is_some(), needed, "rows {row} elements apart");
        }
    }

    #[test]
    fn a_plan_needs_no_substitute_where_its_grid_has_no_room() {
        let gpu = Gpu::emulated(layout::Arch::Sm90a);
        let vast = AttentionProblem { batch: 1 << 24, q_len: 128 * 64, ..problem() };
        let plan = AttentionPlan::new(&gpu, Dtype::F16, &vast, &AttentionOptions::new(Layout::Bhsd)).unwrap();
        assert!(is_wgmma(plan.variant()) && plan.substitute.is_none(), "{plan}");
    }

    fn problem() -> AttentionProblem {
        AttentionProblem { batch: 1, q_heads: 1, kv_heads: 1, q_len: 64, k_len: 64, head_dim: 64 }
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
}
