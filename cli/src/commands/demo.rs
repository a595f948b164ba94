//! `ferrotile demo`: kernels on one input, their errors and their times.

mod quantized;

use std::collections::HashSet;
use std::io::{self, Write};
use std::mem::discriminant;
use std::time::Instant;

use clap::Args;
use ferrotile::{BatchedSizes, Dtype, F8E4M3, Gpu, tolerance};
use half::{bf16, f16};
use serde::Serialize;
use variants::attention::{ATTENTION, AttentionConfig, ScoreMod, Seqlens};

use self::quantized::QuantizedInput;
use crate::bench::measure::{Repeats, Timer};
use crate::commands::attention::{HowArgs, InputArgs};
use crate::device::{Device, DeviceChoice};
use crate::files::convert::Converter;
use crate::files::input::{Input, SizesError, listed_shapes};
use crate::files::tensor::{Half, Stored};
use crate::json::{self, JsonArgs};
use crate::problems::attention::{HostAttention, TermFiles, element_type};
use crate::problems::case::SMALL_ROWS;
use crate::problems::on_card::CardAttention;
use crate::problems::random;
use crate::problems::request::Request;
use crate::problems::task::Task;
use crate::problems::verdict::finite_error;
use crate::progress;
use crate::spelling::in_any_case;
use crate::table::table;

/// Runs attention on a generated input, and on Q, K and V from files where they are given: by the kernel that the
/// library takes, and by one of each other kind.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Runs every kernel that serves the input. A card's driver compiles each the first time, for about 0.2 s.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    how: HowArgs,
    /// Where to run: auto (a card, or the emulator where there is none), cpu, cuda, cuda:N, emulator or emulator:ARCH.
    #[arg(long, default_value = "auto", value_parser = in_any_case::<DeviceChoice>)]
    device: DeviceChoice,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct DemoResult {
    /// The device, by name.
    device: String,
    /// The architecture of the PTX that ran; `None` on the CPU.
    arch: Option<String>,
    inputs: Vec<DemoInput>,
    /// What quantisation to u8 costs.
    quantized: Vec<QuantizedInput>,
}

/// The results of one input.
#[derive(Debug, Serialize)]
struct DemoInput {
    /// `generated` or `given`.
    input: &'static str,
    batch: usize,
    q_heads: usize,
    kv_heads: usize,
    q_len: usize,
    k_len: usize,
    head_dim: usize,
    value_dim: usize,
    mask: String,
    dtype: &'static str,
    /// The largest error that a kernel may have.
    tolerance: f64,
    kernels: Vec<KernelResult>,
}

/// Error and time of one kernel, or of the reference on the CPU.
#[derive(Debug, Serialize)]
struct KernelResult {
    kernel: String,
    /// The largest error against f64.
    error: f64,
    /// Microseconds.
    us: f64,
    /// Operations a second in units of 10^12, where a card ran them.
    tflops: Option<f64>,
}

/// The problem of the files, of any type.
enum AnyAttention {
    F16(HostAttention<f16>),
    Bf16(HostAttention<bf16>),
    E4m3(HostAttention<F8E4M3, bf16>),
    U8(HostAttention<u8, f16>),
}

/// The generated input.
const GENERATED: BatchedSizes =
    BatchedSizes { batch: 1, q_heads: 8, kv_heads: 8, q_len: 512, k_len: 512, head_dim: 64 };

/// The generated input where the kernels are emulated: every kernel takes less than a second.
const GENERATED_FOR_EMULATOR: BatchedSizes =
    BatchedSizes { q_heads: 2, kv_heads: 1, q_len: 96, k_len: 96, ..GENERATED };

/// A kernel that is wrong on an input of the demo.
#[derive(Debug, thiserror::Error)]
#[error("the error of {0} exceeds the tolerance")]
pub(crate) struct WrongResult(String);

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let request = args.how.request(None);
    let given = match args.input.read(&args.how)? {
        None => None,
        Some(inputs) => Some(match element_type(&inputs, args.how.dtype())? {
            Dtype::Bf16 => AnyAttention::Bf16(problem(args, inputs, &request)?),
            Dtype::E4M3 => AnyAttention::E4m3(problem(args, inputs, &request)?),
            Dtype::U8 => AnyAttention::U8(problem(args, inputs, &request)?),
            _ => AnyAttention::F16(problem(args, inputs, &request)?),
        }),
    };
    let device = match args.device {
        DeviceChoice::Cpu => Device::Cpu,
        device => Device::Gpu(device.open_for_kernels()?),
    };
    let (name, arch, sizes) = match &device {
        Device::Gpu(gpu) if gpu.is_emulated() => (gpu.name(), Some(gpu.arch()), GENERATED_FOR_EMULATOR),
        Device::Gpu(gpu) => (gpu.name(), Some(gpu.arch()), GENERATED),
        Device::Cpu => ("CPU", None, GENERATED),
    };
    if let Some(arch) = arch.filter(|_| !args.json.is_wanted()) {
        writeln!(io::stdout(), "{name}, {arch} PTX")?;
    }
    let arch = arch.map(|arch| arch.to_string());
    let mut result = DemoResult { device: name.to_owned(), arch, inputs: Vec::new(), quantized: Vec::new() };
    let mut add = |input: anyhow::Result<DemoInput>| -> anyhow::Result<()> {
        let input = input?;
        if !args.json.is_wanted() {
            write!(io::stdout(), "{}", input.text())?;
        }
        result.inputs.push(input);
        Ok(())
    };
    let (all, made) = (args.all, "generated");
    add(match args.how.dtype() {
        Some(Dtype::Bf16) => measure::<bf16, bf16>(made, &device, &generated(sizes, &request), &request, all),
        Some(Dtype::E4M3) => measure::<F8E4M3, bf16>(made, &device, &generated(sizes, &request), &request, all),
        Some(Dtype::U8) => measure::<u8, f16>(made, &device, &generated(sizes, &request), &request, all),
        _ => measure::<f16, f16>(made, &device, &generated(sizes, &request), &request, all),
    })?;
    match &given {
        None => {}
        Some(AnyAttention::F16(problem)) => add(measure::<f16, f16>("given", &device, problem, &request, all))?,
        Some(AnyAttention::Bf16(problem)) => add(measure::<bf16, bf16>("given", &device, problem, &request, all))?,
        Some(AnyAttention::E4m3(problem)) => add(measure::<F8E4M3, bf16>("given", &device, problem, &request, all))?,
        Some(AnyAttention::U8(problem)) => add(measure::<u8, f16>("given", &device, problem, &request, all))?,
    }
    for (index, &problem) in quantized::problems(&device).iter().enumerate() {
        let measured = quantized::measure(&device, problem)?;
        if !args.json.is_wanted() {
            write!(io::stdout(), "{}{}", if index == 0 { "\n" } else { "" }, measured.text())?;
        }
        result.quantized.push(measured);
    }
    if args.json.is_wanted() {
        json::print(&result)?;
    }
    let wrong = result.inputs.iter().find_map(|input| input.wrong().map(str::to_owned));
    let wrong = wrong.or_else(|| result.quantized.iter().find_map(QuantizedInput::wrong));
    wrong.map_or(Ok(()), |kernel| Err(WrongResult(kernel).into()))
}

/// The problem of the files.
fn problem<T: Half, O: Stored>(
    args: &DemoArgs,
    inputs: [Input; 3],
    request: &Request,
) -> anyhow::Result<HostAttention<T, O>> {
    let tensors = listed_shapes(&inputs);
    let mut converter = Converter::new(false, args.how.allow_overflow);
    args.how.note_layout(&inputs, &mut converter);
    let (problem, _) = HostAttention::new(inputs, TermFiles::default(), request.params.layout, &mut converter)?;
    problem.check_request(request).map_err(|reason| SizesError::new(reason, tensors))?;
    converter.finish()?.print();
    Ok(problem)
}

fn generated<T: Half, O>(sizes: BatchedSizes, request: &Request) -> HostAttention<T, O> {
    let problem = random::problem(sizes, sizes.head_dim, 0).expect("the generated input is small");
    HostAttention { layout: request.params.layout, ..problem }
}

/// Runs kernels on one input, with an O of type `O`.
fn measure<T: Half, O: Stored>(
    input: &'static str,
    device: &Device,
    problem: &HostAttention<T, O>,
    request: &Request,
    all: bool,
) -> anyhow::Result<DemoInput> {
    let shown = progress::spinner("computing in f64 on the CPU");
    let began = Instant::now();
    let exact = problem.solve_exactly(&request.params).0;
    let exact_us = began.elapsed().as_secs_f64() * 1e6;
    let began = Instant::now();
    let rounded = problem.solve_on_cpu(&request.params).out;
    let rounded_us = began.elapsed().as_secs_f64() * 1e6;
    drop(shown);
    let of_cpu = |kernel: String, error, us| KernelResult { kernel, error, us, tflops: None };
    let mut kernels = vec![
        of_cpu("CPU reference, f64".to_owned(), 0.0, exact_us),
        of_cpu(format!("CPU reference, {}", T::DTYPE), tolerance::max_error(&rounded, &exact), rounded_us),
    ];
    if let Device::Gpu(gpu) = device {
        kernels.extend(on_card::<T, O>(gpu, problem, request, &exact, all)?);
    }
    let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = problem.sizes;
    Ok(DemoInput {
        input,
        batch,
        q_heads,
        kv_heads,
        q_len,
        k_len,
        head_dim,
        value_dim: problem.value_dim,
        mask: request.params.mask.to_string(),
        dtype: T::DTYPE.name(),
        tolerance: tolerance::limit(O::DTYPE, finite_error(&rounded, &exact)),
        kernels,
    })
}

impl DemoInput {
    /// The first kernel whose error exceeds the tolerance, or is infinite.
    fn wrong(&self) -> Option<&str> {
        let is_right = |kernel: &KernelResult| kernel.error.is_finite() && kernel.error <= self.tolerance;
        self.kernels.iter().find(|kernel| !is_right(kernel)).map(|kernel| kernel.kernel.as_str())
    }

    /// The sizes and the table of the kernels.
    fn text(&self) -> String {
        let DemoInput { input, batch, q_heads, kv_heads, q_len, k_len, head_dim, mask, dtype, tolerance, .. } = self;
        let precise = |number: f64| if number < 10.0 { format!("{number:.3}") } else { format!("{number:.1}") };
        // The rate of a CPU says nothing of a kernel.
        let has_rates = self.kernels.iter().any(|kernel| kernel.tflops.is_some());
        let heading = &["kernel", "largest error", "time us", "TFLOP/s"][..if has_rates { 4 } else { 3 }];
        let line = |kernel: &KernelResult| {
            let KernelResult { kernel, error, us, tflops } = kernel;
            let rate = tflops.map_or(String::new(), precise);
            let mut line = vec![kernel.clone(), format!("{error:.2e}"), precise(*us), rate];
            line.truncate(heading.len());
            line
        };
        let lines: Vec<_> = self.kernels.iter().map(line).collect();
        format!(
            "\nattention on {input} input: batch {batch}, heads {q_heads} (keys {kv_heads}), rows {q_len}, keys {k_len}, \
             head dimension {head_dim}, mask {mask}, {dtype}\n{}tolerance: {tolerance:.3e}\n",
            table(heading, &lines)
        )
    }
}

/// The kernels to show: `all` that serve the problem, or the one that the library takes and the first of each other
/// kind, of the narrowest head dimension that serves.
fn kernels<T: Half, O: Stored>(
    gpu: &Gpu,
    problem: &HostAttention<T, O>,
    request: &Request,
    all: bool,
) -> ferrotile::Result<Vec<&'static AttentionConfig>> {
    let sizes = problem.sizes;
    let serving = ATTENTION.iter().filter(|config| {
        config.serves(gpu.arch(), T::DTYPE, [sizes.head_dim, problem.value_dim])
            && config.out == O::DTYPE
            && config.covers(ScoreMod::None, Seqlens::Fixed)
            && config.takes(request.params.mask, sizes.q_len, sizes.k_len)
    });
    let mut serving: Vec<_> = serving.collect();
    // Where no kernel serves, whatever the reason is, the plan has it.
    let plan = problem.request(request).with_out(O::DTYPE).plan(gpu, T::DTYPE, sizes)?;
    if !all {
        let taken = plan.kernel_name();
        let order = |config: &&AttentionConfig| {
            (config.name != taken.as_str(), config.score_mod != ScoreMod::None, config.head_dim)
        };
        serving.sort_by_key(order);
        let mut kinds = HashSet::new();
        serving.retain(|config| kinds.insert(discriminant(&config.kernel)));
    }
    Ok(serving)
}

/// Runs and times kernels that serve the problem.
fn on_card<T: Half, O: Stored>(
    gpu: &Gpu,
    problem: &HostAttention<T, O>,
    request: &Request,
    exact: &[f64],
    all: bool,
) -> ferrotile::Result<Vec<KernelResult>> {
    let stream = gpu.new_stream()?;
    // The time of an emulated kernel says nothing of a card's, and one run is long enough to be measured.
    let mut timer = if gpu.is_emulated() { None } else { Some(Timer::new(gpu, Repeats::default())?) };
    let sizes = problem.sizes;
    let small = sizes.batch * sizes.q_heads * sizes.q_len <= SMALL_ROWS;
    let configs = kernels::<T, O>(gpu, problem, request, all)?;
    gpu.warm("attention", &configs.iter().map(|config| config.name).collect::<Vec<_>>())?;
    let shown = progress::bar(configs.len());
    let mut measured = Vec::new();
    for config in configs {
        shown.set_message(config.name);
        let request = problem.request(request).with_out(O::DTYPE).of_kernel(Some(config.name.to_owned()));
        let plan = request.plan(gpu, T::DTYPE, sizes)?;
        let mut card = CardAttention::<T, O>::upload(gpu, &stream, problem)?;
        let timed = match &mut timer {
            Some(timer) => Some(timer.microseconds(small, |stream| card.run(stream, &plan))?.p50),
            None => None,
        };
        let began = Instant::now();
        let solution = card.solve(&stream, &plan)?;
        let us = timed.unwrap_or_else(|| began.elapsed().as_secs_f64() * 1e6);
        let error = tolerance::max_error(&solution.out, exact);
        // Half of the operations have the columns of V.
        let columns = (sizes.head_dim + problem.value_dim) as f64 / (2 * sizes.head_dim) as f64;
        let tflops = timed.map(|us| columns * sizes.flops(request.params.mask) / us / 1e6);
        measured.push(KernelResult { kernel: plan.to_string(), error, us, tflops });
        shown.inc(1);
    }
    Ok(measured)
}
