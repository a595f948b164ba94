//! A chosen configuration and its launches.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use layout::Arch;
use layout::descriptor::Major;
use variants::gemm::wgmma::{CONSUMER_ROWS, STORE_COLUMNS, SWIZZLE, Side};
use variants::gemm::{
    Activation, CHUNK_BYTES, GemmArgs, GemmLayout, GemmMatrix, GemmOperand, GemmUnit, PackArgs, PackKernel,
    REDUCE_SPLIT_K,
};

use super::choice::{Choice, candidates, least_workspace, missing, preferred};
use super::options::GemmOptions;
use super::problem::{GemmProblem, OP};
use super::tensors::{GemmTensors, RawGemmTensors, RawScale, matrix, operand, rows_copyable};
use crate::backend::LaunchConfig;
use crate::checks::{argument, same_device, workspace_address};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::module::{Kernel, KernelFacts, KernelName};
use crate::runtime::param::KernelParam;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::TensorMut;
use crate::runtime::tensor_map::TensorMap;

/// A chosen and loaded configuration for repeated products of one size.
///
/// Displays as the kernels that it runs, in their order: `gemm_pack_8bit(B), gemm_.. in 4 splits of k, gemm_sum`.
///
/// ```
/// use ferrotile::{
///     Arch, Buffer, Dtype, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu, TensorMut, TensorRef,
/// };
/// use half::f16;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let problem = GemmProblem::new([16, 16, 32], Dtype::F16, Dtype::F16, Dtype::F32);
/// let plan = GemmPlan::new(&gpu, &problem, &GemmOptions::new(GemmLayout::Nn))?;
///
/// let a = Buffer::upload_blocking(&stream, &[f16::ONE; 16 * 32])?;
/// let b = Buffer::upload_blocking(&stream, &[f16::ONE; 32 * 16])?;
/// let mut d = Buffer::<f32>::zeroed(&gpu, 16 * 16)?;
/// for _ in 0..2 {
///     let (a, b) = (TensorRef::contiguous(&a, [1, 16, 32])?, TensorRef::contiguous(&b, [1, 32, 16])?);
///     plan.run(&stream, GemmTensors::new(a, b, TensorMut::contiguous(&mut d, [1, 16, 16])?), None)?;
/// }
/// assert_eq!(d.download_blocking(&stream)?, [32.0; 256]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a plan computes nothing until it is run"]
pub struct GemmPlan {
    problem: GemmProblem,
    /// Terms of a sum: none where alpha is 0.
    summed_k: usize,
    layout: GemmLayout,
    alpha: f32,
    beta: f32,
    activation: Activation,
    overlaps: bool,
    choice: Choice,
    packs: [Option<Kernel>; 2],
    kernel: Kernel,
    sum: Option<Kernel>,
    encoded: Arc<Mutex<Option<Encoded>>>,
}

/// Tensor maps and what they describe: A, B and D, and whether D is stored by TMA.
#[derive(Clone, Copy)]
struct Encoded {
    of: (GemmOperand, GemmOperand, GemmMatrix, u32),
    maps: [TensorMap; 3],
}

impl GemmPlan {
    /// Chooses a configuration for the problem and loads all kernels that a run needs.
    ///
    /// Where [`GemmOptions::alpha`] is 0 it is one that sums nothing, whatever kernel and splits of k the options name.
    ///
    /// # Errors
    /// - [`Error::Argument`] for sizes, types or factors that no kernel takes, and for too little workspace where
    ///   operands must be copied
    /// - [`Error::UnsupportedType`] for types that are never multiplied, [`Error::Unsupported`] for types that this
    ///   card does not multiply
    /// - [`Error::UnknownKernel`] where the named kernel does not serve the problem
    /// - those of loading a module
    pub fn new(gpu: &Gpu, problem: &GemmProblem, options: &GemmOptions) -> Result<Self> {
        problem.check()?;
        options.check()?;
        let (choice, summed_k) = if options.alpha == 0.0 {
            // What the options name must serve the product all the same, with whatever workspace that takes.
            choose(gpu, problem, &GemmOptions { max_workspace_bytes: usize::MAX, ..options.clone() })?;
            // As in BLAS, nothing is summed: a kernel for sums without terms reads neither A nor B.
            let unnamed = GemmOptions { kernel: None, splits: None, ..options.clone() };
            (choose(gpu, &GemmProblem { k: 0, ..*problem }, &unnamed)?, 0)
        } else {
            (choose(gpu, problem, options)?, problem.k)
        };
        let kernel = |name: &str| gpu.kernel("gemm", name);
        let pack = |needed: bool, dtype| needed.then(|| kernel(PackKernel::of(dtype).name)).transpose();
        Ok(Self {
            problem: *problem,
            summed_k,
            layout: options.layout,
            alpha: options.alpha,
            beta: options.beta,
            activation: options.activation,
            overlaps: !options.isolated && gpu.arch() >= Arch::Sm90a,
            packs: [pack(choice.packs[0], problem.a)?, pack(choice.packs[1], problem.b)?],
            kernel: kernel(choice.config.name)?,
            sum: (choice.splits > 1).then(|| kernel(REDUCE_SPLIT_K.name)).transpose()?,
            encoded: Arc::default(),
            choice,
        })
    }

    /// The name of the chosen kernel.
    #[must_use]
    pub const fn kernel_name(&self) -> KernelName {
        KernelName::new(self.choice.config.name)
    }

    /// What the chosen kernel is launched with.
    #[must_use]
    pub const fn facts(&self) -> KernelFacts {
        let config = self.choice.config;
        KernelFacts {
            name: KernelName::new(config.name),
            threads: config.threads(),
            shared_bytes: config.smem().total_bytes(),
        }
    }

    /// The loaded kernel of the configuration, for its registers and occupancy.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The splits of k; their sums are added in a fixed order.
    #[must_use]
    pub const fn splits(&self) -> usize {
        self.choice.splits
    }

    /// The workspace that a run needs; runs that are in flight at once need one each.
    #[must_use]
    pub const fn workspace_bytes(&self) -> usize {
        self.choice.workspace_bytes()
    }

    /// Computes the product on `stream` and returns before it is done; see [`gemm`](super::gemm) for the tensors.
    ///
    /// `workspace` has at least [`Self::workspace_bytes`] bytes on a 16-byte boundary; what it holds does not matter,
    /// before and after.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors that are not of the plan's problem; [`Error::Alignment`] for operands that are less
    /// aligned than the problem says; [`Error::Argument`] for other element types, a missing C though beta is not 0,
    /// scales that are not finite, alone or multiplied, and too little workspace; [`Error::WrongDevice`];
    /// [`Error::ForeignCapture`]; [`Error::Driver`] where the driver refuses a launch.
    pub fn run<'s, A: Float, B: Float, D: Float>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        tensors: GemmTensors<'_, A, B, D>,
        workspace: Option<TensorMut<'_, u8, 1>>,
    ) -> Result<()> {
        let workspace = workspace.as_ref().map(TensorMut::erased);
        // SAFETY: the views borrow tensors whose owners keep the memory until the stream has done the work, and no two
        // indices of D are the same element.
        unsafe { self.run_raw(stream, &tensors.erased(), workspace.as_ref()) }
    }

    /// As [`GemmPlan::run`], for tensors whose types the compiler does not know: for bindings.
    ///
    /// # Safety
    /// Every tensor is memory that is accessible from the primary context of its card and aligned for its elements. It
    /// stays allocated until the stream has done the work. Nothing else reads or writes D and the workspace until then,
    /// nor writes the others, and no two indices of D are the same element. C is D, or has no element of it.
    ///
    /// # Errors
    /// Those of [`GemmPlan::run`].
    pub unsafe fn run_raw<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        tensors: &RawGemmTensors,
        workspace: Option<&RawTensor>,
    ) -> Result<()> {
        let stream = stream.into();
        same_device("plan", self.kernel.ordinal(), stream.ordinal())?;
        self.check(tensors)?;
        tensors.check_devices(stream.ordinal())?;
        let workspace = workspace_address(OP, workspace, self.workspace_bytes(), stream.ordinal())?;
        if self.choice.blocks == 0 {
            return Ok(());
        }
        let (args, operands) = self.arguments(tensors, workspace);
        for (index, (source, packed)) in operands.into_iter().enumerate() {
            if let Some(kernel) = &self.packs[index] {
                self.pack(stream, kernel, index, source, packed)?;
            }
        }
        let Choice { config, blocks, .. } = self.choice;
        let launch = LaunchConfig {
            cluster: [config.cluster, 1, 1],
            shared_bytes: config.smem().total_bytes(),
            overlaps: self.overlaps,
            ..LaunchConfig::of_blocks(blocks, config.threads())
        };
        // SAFETY: grid, block and shared memory are the configuration's, and the views are tensors of the plan's sizes
        // whose memory their owners keep until the stream has done the work; so is the workspace.
        unsafe {
            match config.unit {
                GemmUnit::Mma => self.kernel.launch(stream, &launch, &[&args]),
                GemmUnit::Wgmma => {
                    let [a, b, d] = self.maps(stream.gpu(), &args)?;
                    let blocks = config.resident_blocks(blocks, stream.gpu().multiprocessors());
                    let launch = LaunchConfig { grid: [blocks, 1, 1], ..launch };
                    self.kernel.launch(stream, &launch, &[&a, &b, &d, &args])
                }
            }
        }?;
        if let Some(kernel) = &self.sum {
            let GemmProblem { batch, m, n, .. } = self.problem;
            let blocks = REDUCE_SPLIT_K.blocks(batch, m, n).expect("the choice has counted them");
            let config =
                LaunchConfig { overlaps: self.overlaps, ..LaunchConfig::of_blocks(blocks, REDUCE_SPLIT_K.threads) };
            // SAFETY: as above; the stream has the splits summed before.
            unsafe { kernel.launch(stream, &config, &[&args]) }?;
        }
        Ok(())
    }

    /// The tensor maps of a run; those of the run before where it had the same tensors.
    fn maps(&self, gpu: &Gpu, args: &GemmArgs) -> Result<[TensorMap; 3]> {
        let of = (args.a, args.b, args.d, args.aligned);
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = *encoded
            && last.of == of
        {
            return Ok(last.maps);
        }
        let maps = self.encode(gpu, args)?;
        *encoded = Some(Encoded { of, maps });
        Ok(maps)
    }

    /// The tensor maps of A and B as they are multiplied, and of D. The kernel has no use for that of D unless it
    /// stores D by TMA.
    fn encode(&self, gpu: &Gpu, args: &GemmArgs) -> Result<[TensorMap; 3]> {
        let (config, batch) = (self.choice.config, args.batch);
        let map = |side: Side, operand: &GemmOperand, mn: u32| {
            let (row_stride, rows, columns) = match config.operand(side).major() {
                Major::K => (operand.mn_stride, mn, args.k),
                Major::Mn => (operand.k_stride, args.k, mn),
            };
            let shape = [if operand.batch_stride == 0 { 1 } else { batch }, rows, columns];
            let element = match side {
                Side::A => self.problem.a.into(),
                Side::B => self.problem.b.into(),
            };
            let strides = [operand.batch_stride, row_stride];
            TensorMap::matrices(gpu, element, operand.address, (shape, strides), config.box_shape(side), SWIZZLE)
        };
        let (a, b) = (map(Side::A, &args.a, args.m)?, map(Side::B, &args.b, args.n)?);
        let d = if args.aligned != 0 && self.problem.d.size_bytes() == 2 {
            let GemmMatrix { address, batch_stride, row_stride } = args.d;
            let (shape, strides) = ([batch, args.m, args.n], [batch_stride, row_stride]);
            let box_shape = [CONSUMER_ROWS, STORE_COLUMNS];
            TensorMap::matrices(gpu, self.problem.d.into(), address, (shape, strides), box_shape, SWIZZLE)?
        } else {
            a
        };
        Ok([a, b, d])
    }

    /// Checks the tensors against the problem.
    fn check(&self, tensors: &RawGemmTensors) -> Result<()> {
        let problem = &self.problem;
        tensors.check_types(problem)?;
        tensors.check_shapes(problem, self.layout)?;
        if self.beta != 0.0 && tensors.c.is_none() {
            let expected = format!("a tensor, as beta is {}: GemmTensors::accumulating takes what D holds", self.beta);
            return Err(argument(OP, "C", "none", expected));
        }
        for (tensor, view, expected) in [("A", &tensors.a, problem.a_aligned), ("B", &tensors.b, problem.b_aligned)] {
            if expected && !rows_copyable(view) {
                return Err(Error::Alignment { op: OP, tensor, align: CHUNK_BYTES });
            }
        }
        let factor = ("alpha * a_scale * b_scale", self.factor(tensors));
        for (name, factor) in tensors.scales().map(|(name, scale)| (name, scale.value())).into_iter().chain([factor]) {
            if !factor.is_finite() {
                return Err(argument(OP, name, factor, "a finite number"));
            }
        }
        Ok(())
    }

    /// What sums are multiplied by. One factor alone may leave the range of f32 where the product of both is within it.
    /// An alpha of 0 leaves nothing of the sums, not even a sign.
    fn factor(&self, tensors: &RawGemmTensors) -> f32 {
        if self.alpha == 0.0 {
            return 0.0;
        }
        let wide = |scale: &RawScale| f64::from(scale.value());
        (f64::from(self.alpha) * wide(&tensors.a_scale) * wide(&tensors.b_scale)) as f32
    }

    /// The argument of the main kernel, and A and B as they are and as they are multiplied.
    fn arguments(&self, tensors: &RawGemmTensors, workspace: u64) -> (GemmArgs, [(GemmOperand, GemmOperand); 2]) {
        let (GemmProblem { batch, m, n, .. }, k) = (self.problem, self.summed_k);
        let RawGemmTensors { a, b, c, d, bias, a_scale, b_scale, d_scale } = tensors;
        let stored = [operand(a, self.layout.a()), operand(b, self.layout.b())];
        let packed = |index: usize, mn: usize, dtype| {
            if !self.choice.packs[index] {
                return stored[index];
            }
            let packed_k = PackKernel::of(dtype).packed_k(k) as i64;
            GemmOperand {
                address: workspace + self.choice.offsets[index] as u64,
                batch_stride: if batch > 1 { mn as i64 * packed_k } else { 0 },
                mn_stride: if mn > 1 { packed_k } else { 0 },
                k_stride: 1,
            }
        };
        let [a_packed, b_packed] = [packed(0, m, self.problem.a), packed(1, n, self.problem.b)];
        let d_matrix = matrix(d);
        let d_aligned = rows_copyable(d);
        let (c_matrix, aligned) = match c {
            Some(c) if self.beta != 0.0 => (matrix(c), rows_copyable(c) && d_aligned),
            _ => (GemmMatrix::default(), d_aligned),
        };
        // Without sums their scales are not read either.
        let of_sums = |scale: &RawScale| if self.alpha == 0.0 { 0 } else { scale.address() };
        let args = GemmArgs {
            a: a_packed,
            b: b_packed,
            c: c_matrix,
            d: d_matrix,
            bias: bias.as_ref().map_or(0, RawTensor::as_raw),
            a_scale: of_sums(a_scale),
            b_scale: of_sums(b_scale),
            d_scale: d_scale.address(),
            partial: workspace + self.choice.offsets[2] as u64,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            batch: batch as u32,
            splits: self.choice.splits as u32,
            split_k: self.choice.split_k as u32,
            alpha: self.factor(tensors),
            beta: self.beta,
            d_factor: d_scale.value(),
            activation: self.activation as u32,
            d_dtype: self.problem.d as u32,
            aligned: u32::from(aligned),
        };
        (args, [(stored[0], a_packed), (stored[1], b_packed)])
    }

    /// Copies an operand so that its k are contiguous and its rows aligned.
    fn pack(
        &self,
        stream: StreamRef<'_>,
        kernel: &Kernel,
        index: usize,
        source: GemmOperand,
        packed: GemmOperand,
    ) -> Result<()> {
        let (GemmProblem { batch, m, n, a, b, .. }, k) = (self.problem, self.summed_k);
        let (mn, dtype) = [(m, a), (n, b)][index];
        let pack = PackKernel::of(dtype);
        let blocks = pack.blocks(batch, mn, k).expect("the choice has counted them");
        if blocks == 0 {
            return Ok(());
        }
        let args = PackArgs {
            source,
            packed: packed.address,
            mn: mn as u32,
            k: k as u32,
            packed_k: pack.packed_k(k) as u32,
            batch: batch as u32,
        };
        let config = LaunchConfig {
            shared_bytes: pack.smem().total_bytes(),
            overlaps: self.overlaps,
            ..LaunchConfig::of_blocks(blocks, pack.threads)
        };
        // SAFETY: grid, block and shared memory are the kernel's; the operand is one of the plan's sizes and the
        // workspace has room for its copy, both kept by their owners until the stream has done the work.
        unsafe { kernel.launch(stream, &config, &[&args]) }
    }
}

fn choose(gpu: &Gpu, problem: &GemmProblem, options: &GemmOptions) -> Result<Choice> {
    let arch = gpu.arch();
    if let Some(needed) = missing(problem, options.accumulation, arch) {
        return Err(Error::Unsupported {
            op: OP,
            feature: format!("{} by {} on {arch}", problem.a, problem.b),
            remedy: format!("it needs {needed} or newer; convert A and B to f16 or bf16"),
        });
    }
    let named = |choice: &Choice| options.kernel.as_ref().is_none_or(|name| choice.config.name == name);
    let choices = candidates(problem, options, arch).filter(named);
    if let Some(choice) = preferred(choices, problem, gpu.multiprocessors()) {
        return Ok(choice);
    }
    if let Some(name) = &options.kernel {
        let unlimited = GemmOptions { max_workspace_bytes: usize::MAX, kernel: None, ..options.clone() };
        let mut known: Vec<&str> = candidates(problem, &unlimited, arch).map(|choice| choice.config.name).collect();
        known.dedup();
        if !known.contains(&name.as_str()) {
            return Err(Error::UnknownKernel { op: OP, name: name.clone(), known });
        }
    }
    if let Some(splits) = options.splits {
        let (got, expected) = (splits.to_string(), "at most as many splits as k has tiles, each with one".to_owned());
        return Err(Error::Argument { op: OP, argument: "splits", got, expected });
    }
    match least_workspace(problem, options, arch) {
        Some(needed) if needed > options.max_workspace_bytes => Err(Error::Argument {
            op: OP,
            argument: "max_workspace_bytes",
            got: options.max_workspace_bytes.to_string(),
            expected: format!(
                "at least {needed}: the operands are copied, with contiguous k and rows on 16-byte boundaries"
            ),
        }),
        _ => Err(Error::Argument {
            op: OP,
            argument: "batch * m * n",
            got: format!("{} * {} * {}", problem.batch, problem.m, problem.n),
            expected: "at most 2^31 - 1 tiles: split the batch".to_owned(),
        }),
    }
}

impl fmt::Display for GemmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kernels = Vec::new();
        for ((pack, operand), dtype) in
            self.choice.packs.into_iter().zip(["A", "B"]).zip([self.problem.a, self.problem.b])
        {
            if pack {
                kernels.push(format!("{}({operand})", PackKernel::of(dtype).name));
            }
        }
        match self.choice.splits {
            1 => kernels.push(self.choice.config.name.to_owned()),
            splits => kernels
                .extend([format!("{} in {splits} splits of k", self.choice.config), REDUCE_SPLIT_K.name.to_owned()]),
        }
        f.pad(&kernels.join(", "))
    }
}

impl fmt::Debug for GemmPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GemmPlan")
            .field("kernels", &self.to_string())
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

// SAFETY: plain `repr(C)` data without padding between what the kernels read.
unsafe impl KernelParam for GemmArgs {}
// SAFETY: as above.
unsafe impl KernelParam for PackArgs {}
