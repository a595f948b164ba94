//! `ferrotile demo`: kernels on one input, their errors and their times.

use std::collections::HashSet;
use std::io::{self, Write};
use std::mem::discriminant;
use std::time::Instant;

use clap::Args;
use ferrotile::{BatchedSizes, Dtype, F8E4M3, Gpu, tolerance};
use half::{bf16, f16};
use variants::attention::{ATTENTION, AttentionConfig, ScoreMod, Seqlens};

use crate::bench::measure::{Repeats, Timer};
use crate::commands::attention::{HowArgs, InputArgs};
use crate::device::{Device, DeviceChoice, emulated_arch};
use crate::files::convert::Converter;
use crate::files::input::{Input, SizesError, listed_shapes};
use crate::files::tensor::{Half, Stored};
use crate::problems::attention::{HostAttention, TermFiles, element_type};
use crate::problems::case::SMALL_ROWS;
use crate::problems::on_card::CardAttention;
use crate::problems::random;
use crate::problems::request::Request;
use crate::problems::task::Task;
use crate::problems::verdict::finite_error;
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
}

/// The problem of the files, of any type.
enum AnyAttention {
    F16(HostAttention<f16>),
    Bf16(HostAttention<bf16>),
    E4m3(HostAttention<F8E4M3>),
}

/// The exact solution and how far from it a kernel may be.
struct Exact {
    /// O in f64, in the problem's layout.
    out: Vec<f64>,
    /// The largest error of O that a kernel may have.
    limit: f64,
}

impl Exact {
    /// Whether O may have this largest error: not an infinite one.
    fn accepts(&self, error: f64) -> bool {
        error.is_finite() && error <= self.limit
    }
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
            _ => AnyAttention::F16(problem(args, inputs, &request)?),
        }),
    };
    let mut device = args.device.open()?;
    if args.device == DeviceChoice::Auto && matches!(device, Device::Cpu) {
        eprintln!("no CUDA device here: the CPU emulates one");
        device = Device::Gpu(Gpu::emulated(emulated_arch()));
    }
    let sizes = match &device {
        Device::Gpu(gpu) => {
            writeln!(io::stdout(), "{}, {} PTX", gpu.name(), gpu.arch())?;
            if gpu.is_emulated() { GENERATED_FOR_EMULATOR } else { GENERATED }
        }
        Device::Cpu => GENERATED,
    };
    match args.how.dtype() {
        Some(Dtype::Bf16) => show::<bf16, bf16>("generated", &device, &generated(sizes, &request), &request, args.all)?,
        Some(Dtype::E4M3) => {
            show::<F8E4M3, bf16>("generated", &device, &generated(sizes, &request), &request, args.all)?
        }
        _ => show::<f16, f16>("generated", &device, &generated(sizes, &request), &request, args.all)?,
    }
    match given {
        None => Ok(()),
        Some(AnyAttention::F16(problem)) => show::<f16, f16>("given", &device, &problem, &request, args.all),
        Some(AnyAttention::Bf16(problem)) => show::<bf16, bf16>("given", &device, &problem, &request, args.all),
        Some(AnyAttention::E4m3(problem)) => show::<F8E4M3, bf16>("given", &device, &problem, &request, args.all),
    }
}

/// The problem of the files.
fn problem<T: Half>(args: &DemoArgs, inputs: [Input; 3], request: &Request) -> anyhow::Result<HostAttention<T>> {
    let tensors = listed_shapes(&inputs);
    let mut converter = Converter::new(false, args.how.allow_overflow);
    args.how.note_layout(&inputs, &mut converter);
    let (problem, _) = HostAttention::<T>::new(inputs, TermFiles::default(), request.params.layout, &mut converter)?;
    let checked = <HostAttention<T> as Task<T, T>>::check_request(&problem, request);
    checked.map_err(|reason| SizesError::new(reason, tensors))?;
    converter.finish()?.print();
    Ok(problem)
}

fn generated<T: Half>(sizes: BatchedSizes, request: &Request) -> HostAttention<T> {
    let problem = random::problem(sizes, sizes.head_dim, 0).expect("the generated input is small");
    HostAttention { layout: request.params.layout, ..problem }
}

/// Prints the table of one input, with an O of type `O`.
fn show<T: Half, O: Stored>(
    title: &str,
    device: &Device,
    problem: &HostAttention<T>,
    request: &Request,
    all: bool,
) -> anyhow::Result<()> {
    let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = problem.sizes;
    writeln!(
        io::stdout(),
        "\nattention on {title} input: batch {batch}, heads {q_heads} (keys {kv_heads}), rows {q_len}, keys {k_len}, head \
         dimension {head_dim}, mask {}, {}",
        request.params.mask,
        T::DTYPE,
    )?;
    let began = Instant::now();
    let exact_out = problem.solve_exactly(&request.params).0;
    let exact_us = began.elapsed().as_secs_f64() * 1e6;
    let began = Instant::now();
    let rounded = problem.solve_on_cpu::<O>(&request.params).out;
    let rounded_us = began.elapsed().as_secs_f64() * 1e6;
    let rounded_error = tolerance::max_error(&rounded, &exact_out);
    let limit = tolerance::limit(O::DTYPE, finite_error(&rounded, &exact_out));
    let exact = Exact { out: exact_out, limit };
    let mut lines = vec![
        line("CPU reference, f64", 0.0, exact_us, problem, request),
        line(&format!("CPU reference, {}", T::DTYPE), rounded_error, rounded_us, problem, request),
    ];
    let mut wrong = None;
    if let Device::Gpu(gpu) = device {
        for measured in on_card::<T, O>(gpu, problem, request, &exact, all)? {
            if !exact.accepts(measured.error) {
                wrong.get_or_insert_with(|| measured.kernel.clone());
            }
            lines.push(line(&measured.kernel, measured.error, measured.us, problem, request));
        }
    }
    // The rate of a CPU says nothing of a kernel.
    let is_card = matches!(device, Device::Gpu(gpu) if !gpu.is_emulated());
    let heading = &["kernel", "largest error", "time us", "TFLOP/s"][..if is_card { 4 } else { 3 }];
    lines.iter_mut().for_each(|line| line.truncate(heading.len()));
    writeln!(io::stdout(), "{}tolerance: {:.3e}", table(heading, &lines), exact.limit)?;
    wrong.map_or(Ok(()), |kernel| Err(WrongResult(kernel).into()))
}

/// Error and time of one kernel.
struct KernelResult {
    kernel: String,
    error: f64,
    us: f64,
}

/// The kernels to show: `all` that serve the problem, or the one that the library takes and the first of each other
/// kind, of the narrowest head dimension that serves.
fn kernels<T: Half, O: Stored>(
    gpu: &Gpu,
    problem: &HostAttention<T>,
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
    problem: &HostAttention<T>,
    request: &Request,
    exact: &Exact,
    all: bool,
) -> ferrotile::Result<Vec<KernelResult>> {
    let stream = gpu.new_stream()?;
    // The time of an emulated kernel says nothing of a card's, and one run is long enough to be measured.
    let mut timer = if gpu.is_emulated() { None } else { Some(Timer::new(gpu, Repeats::default())?) };
    let sizes = problem.sizes;
    let small = sizes.batch * sizes.q_heads * sizes.q_len <= SMALL_ROWS;
    let configs = kernels::<T, O>(gpu, problem, request, all)?;
    gpu.warm("attention", &configs.iter().map(|config| config.name).collect::<Vec<_>>())?;
    let mut measured = Vec::new();
    for config in configs {
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
        let error = tolerance::max_error(&solution.out, &exact.out);
        measured.push(KernelResult { kernel: plan.to_string(), error, us });
    }
    Ok(measured)
}

fn line<T>(kernel: &str, error: f64, us: f64, problem: &HostAttention<T>, request: &Request) -> Vec<String> {
    // Half of the operations have the columns of V.
    let columns = (problem.sizes.head_dim + problem.value_dim) as f64 / (2 * problem.sizes.head_dim) as f64;
    let tflops = columns * problem.sizes.flops(request.params.mask) / us / 1e6;
    let precise = |number: f64| if number < 10.0 { format!("{number:.3}") } else { format!("{number:.1}") };
    vec![kernel.to_owned(), format!("{error:.2e}"), precise(us), precise(tflops)]
}
