//! `ferrotile emulate-report`: what kernels do, counted by the emulator, and which lines of Rust waste memory traffic.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use ferrotile::counters::{Class, Counters, Counts, PtxLine, RustLine};
use ferrotile::{
    Arch, AtaOptions, AtaPlan, Buffer, CgOptions, CgPlan, Dtype, F8E4M3, Float, GemmLayout, GemmOptions, GemmPlan, Gpu,
    Precision, SymmetricBlockMatrix, TensorMut, TensorRef,
};
use half::{bf16, f16};
use serde::Serialize;

use crate::bench::ata::AtaCase;
use crate::bench::gemm::{CardProduct, GemmCase};
use crate::files::input::FileError;
use crate::files::output;
use crate::files::tensor::Half;
use crate::memory;
use crate::problems::case::Case;
use crate::problems::on_card;
use crate::spelling::in_any_case;
use crate::table::table;

/// Runs a kernel in the emulator and shows its instructions, sectors of global memory and bank conflicts.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(subcommand)]
    family: ReportFamily,
}

/// A kernel family.
#[derive(Debug, Subcommand)]
enum ReportFamily {
    /// Counts what attention does.
    Attention(AttentionReportArgs),
    /// Counts what a product with a symmetric block matrix does.
    Ata(AtaReportArgs),
    /// Counts what one iteration of the conjugate gradient method does, with what begins and ends a solution.
    Solver(AtaReportArgs),
    /// Counts what a matrix product does.
    Gemm(GemmReportArgs),
}

/// An attention kernel.
#[derive(Debug, Args)]
struct AttentionReportArgs {
    /// The case BxHxSxD/mask/dtype, as `bench attention` takes it.
    #[arg(long, default_value = "1x1x128x64/full/f16")]
    case: Case,
    #[command(flatten)]
    how: CountArgs,
}

/// An ata kernel.
#[derive(Debug, Args)]
struct AtaReportArgs {
    /// The case nN_cC_dD_fF: rows, channels, block diagonals, frames.
    #[arg(long, default_value = "n320_c1_d10_f8")]
    case: AtaCase,
    /// The precision: f32, tf32, tf32x3, f16 or bf16.
    #[arg(long, default_value = "tf32", value_parser = in_any_case::<Precision>)]
    precision: Precision,
    #[command(flatten)]
    how: CountArgs,
}

/// A matrix product.
#[derive(Debug, Args)]
struct GemmReportArgs {
    /// The case MxNxK/dtype: f16, bf16 or e4m3.
    #[arg(long, default_value = "128x128x128/f16")]
    case: GemmCase,
    /// How A and B are stored: nn, nt, tn or tt.
    #[arg(long, default_value = "nt", value_parser = in_any_case::<GemmLayout>)]
    layout: GemmLayout,
    #[command(flatten)]
    how: CountArgs,
}

/// Which kernel, and how much is shown.
#[derive(Debug, Args)]
struct CountArgs {
    /// The kernel by name [default: the library's choice].
    #[arg(long, alias = "variant")]
    kernel: Option<String>,
    /// The emulated architecture.
    #[arg(long, default_value = "sm_80", value_parser = in_any_case::<Arch>)]
    arch: Arch,
    /// Lines of Rust to show: those with the most bank conflicts, then those with the most traffic.
    #[arg(long, default_value_t = 10)]
    lines: usize,
    /// Where all counts, by kernel, line and instruction, are written as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

impl AtaReportArgs {
    fn options(&self) -> AtaOptions {
        AtaOptions { kernel: self.how.kernel.clone(), ..AtaOptions::default() }
    }
}

/// Runs, counts and prints.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let how = match &args.family {
        ReportFamily::Attention(args) => &args.how,
        ReportFamily::Ata(args) | ReportFamily::Solver(args) => &args.how,
        ReportFamily::Gemm(args) => &args.how,
    };
    if let Some(path) = &how.json {
        output::check_place(path)?;
    }
    let gpu = Gpu::emulated(how.arch);
    let launches = match &args.family {
        ReportFamily::Attention(args) => match args.case.dtype {
            Dtype::Bf16 => attention::<bf16, bf16>(&gpu, args)?,
            Dtype::E4M3 => attention::<F8E4M3, bf16>(&gpu, args)?,
            Dtype::U8 => attention::<u8, f16>(&gpu, args)?,
            _ => attention::<f16, f16>(&gpu, args)?,
        },
        ReportFamily::Ata(args) => ata(&gpu, args)?,
        ReportFamily::Solver(args) => solver(&gpu, args)?,
        ReportFamily::Gemm(args) => match args.case.dtype {
            Dtype::Bf16 => gemm::<bf16, bf16>(&gpu, args)?,
            Dtype::E4M3 => gemm::<F8E4M3, f16>(&gpu, args)?,
            _ => gemm::<f16, f16>(&gpu, args)?,
        },
    };
    let printed = launches.iter().try_for_each(|launch| write!(io::stdout(), "{}", text(how.arch, launch, how.lines)));
    if let Some(path) = &how.json {
        let kernels: Vec<Kernel<'_>> = launches.iter().map(|launch| Kernel::new(how.arch, launch)).collect();
        fs::write(path, serde_json::to_string_pretty(&kernels)? + "\n")
            .map_err(|source| FileError::Write { path: path.clone(), source })?;
    }
    Ok(printed?)
}

fn attention<T: Half, O: Float>(gpu: &Gpu, args: &AttentionReportArgs) -> ferrotile::Result<Vec<Counters>> {
    let stream = gpu.new_stream()?;
    on_card::with_case::<T, O, _>(gpu, &args.case, args.how.kernel.clone(), |_, _, run| {
        gpu.counted(|| run(stream.as_ref())).map(|counted| counted.1)
    })
}

fn ata(gpu: &Gpu, args: &AtaReportArgs) -> ferrotile::Result<Vec<Counters>> {
    let stream = gpu.new_stream()?;
    let matrix = args.case.matrix()?.upload_blocking(stream.as_ref(), args.precision)?;
    let (shape, values) = args.case.frames()?;
    let x = Buffer::upload_blocking(&stream, &values)?;
    let mut y = Buffer::zeroed(gpu, values.len())?;
    let plan = AtaPlan::new(&matrix, args.case.frames, &args.options())?;
    let (x, y) = (TensorRef::contiguous(&x, shape)?, TensorMut::contiguous(&mut y, shape)?);
    gpu.counted(|| plan.run(stream.as_ref(), x, y)).map(|counted| counted.1)
}

fn solver(gpu: &Gpu, args: &AtaReportArgs) -> ferrotile::Result<Vec<Counters>> {
    let stream = gpu.new_stream()?;
    // A diagonal that outweighs its row makes it positive definite.
    memory::check::<f32>(&[args.case.channels, args.case.n, args.case.n])?;
    let mut dense = args.case.matrix()?.to_dense();
    for mut of_channel in dense.outer_iter_mut() {
        for row in 0..of_channel.nrows() {
            of_channel[[row, row]] += 2.0 * of_channel.row(row).iter().map(|element| element.abs()).sum::<f32>();
        }
    }
    let matrix = SymmetricBlockMatrix::from_dense(dense.view(), 0.0)?;
    let matrix = matrix.upload_blocking(stream.as_ref(), args.precision)?;
    let (shape, values) = args.case.frames()?;
    let b = Buffer::upload_blocking(&stream, &values)?;
    let mut x = Buffer::zeroed(gpu, values.len())?;
    let options =
        CgOptions { max_iterations: 1, test_every: 1, graph: false, product: args.options(), ..CgOptions::default() };
    let mut plan = CgPlan::new(&matrix, args.case.frames, &options)?;
    let (b, x) = (TensorRef::contiguous(&b, shape)?, TensorMut::contiguous(&mut x, shape)?);
    gpu.counted(|| plan.solve_blocking(stream.as_ref(), b, None, x)).map(|counted| counted.1)
}

fn gemm<T: Float, D: Float>(gpu: &Gpu, args: &GemmReportArgs) -> ferrotile::Result<Vec<Counters>> {
    let stream = gpu.new_stream()?;
    let mut on_card = CardProduct::<T, D>::new(gpu, &stream, &args.case, args.layout)?;
    let options = GemmOptions { kernel: args.how.kernel.clone(), ..GemmOptions::new(args.layout) };
    let plan = GemmPlan::new(gpu, on_card.problem(), &options)?;
    let mut workspace = Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
    gpu.counted(|| on_card.run(stream.as_ref(), &plan, &mut workspace)).map(|counted| counted.1)
}

/// The report of one launch.
fn text(arch: Arch, launch: &Counters, most_lines: usize) -> String {
    let total = launch.total();
    let [x, y, z] = launch.shape.grid;
    let threads: u32 = launch.shape.block.iter().product();
    let percent = |part: u64, all: u64| if all == 0 { 100.0 } else { 100.0 * part as f64 / all as f64 };
    let mut text = format!("{} ({arch}), grid {x}x{y}x{z}, {threads} threads a block\n", launch.kernel);
    text += &format!("instructions       {}\n", total.executed);
    for class in Class::ALL {
        let executed = launch.of_class(class).executed;
        if executed > 0 {
            text += &format!("  {:<16} {executed} ({:.1} %)\n", class.name(), percent(executed, total.executed));
        }
    }
    let (global, shared) = (total.global, total.shared);
    text += &format!("tensor operations  {}\n", total.tensor_operations);
    text += &format!(
        "global memory      {} bytes asked for, {} sectors of 32 bytes, of which {} ({:.1} %) are needed\n",
        global.bytes,
        global.sectors,
        global.least_sectors,
        percent(global.least_sectors, global.sectors)
    );
    text += &format!(
        "shared memory      {} bytes asked for, {} wavefronts, of which {} ({:.1} %) by bank conflicts\n",
        shared.bytes,
        shared.wavefronts,
        shared.conflicts,
        if shared.wavefronts == 0 { 0.0 } else { percent(shared.conflicts, shared.wavefronts) }
    );
    let mut lines = launch.by_rust_line();
    lines.retain(|(_, counts)| traffic(counts) > 0);
    lines.sort_by_key(|(_, counts)| {
        std::cmp::Reverse((counts.shared.conflicts, spare_sectors(counts), traffic(counts)))
    });
    if lines.is_empty() || most_lines == 0 {
        return text;
    }
    let rows: Vec<Vec<String>> = lines.iter().take(most_lines).map(row).collect();
    let heading = ["line", "executed", "wavefronts", "conflicts", "sectors", "needed"];
    text + "\n" + &table(&heading, &rows)
}

/// What the memories move.
fn traffic(counts: &Counts) -> u64 {
    counts.global.sectors + counts.shared.wavefronts
}

/// Sectors that another order of the same bytes would not move.
fn spare_sectors(counts: &Counts) -> u64 {
    counts.global.sectors - counts.global.least_sectors
}

fn row((place, counts): &(RustLine, Counts)) -> Vec<String> {
    let numbers = [
        counts.executed,
        counts.shared.wavefronts,
        counts.shared.conflicts,
        counts.global.sectors,
        counts.global.least_sectors,
    ];
    [format!("{}:{}", place.file, place.line)].into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

/// One launch in JSON.
#[derive(Serialize)]
struct Kernel<'a> {
    kernel: &'a str,
    arch: String,
    grid: [u32; 3],
    block: [u32; 3],
    cluster: [u32; 3],
    shared_bytes: u32,
    total: Numbers,
    classes: Vec<ClassNumbers>,
    rust_lines: Vec<Line>,
    instructions: Vec<Instruction<'a>>,
}

#[derive(Serialize)]
struct ClassNumbers {
    class: &'static str,
    #[serde(flatten)]
    numbers: Numbers,
}

#[derive(Serialize)]
struct Line {
    rust: String,
    #[serde(flatten)]
    numbers: Numbers,
}

#[derive(Serialize)]
struct Instruction<'a> {
    opcode: &'a str,
    ptx_line: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rust: Option<String>,
    #[serde(flatten)]
    numbers: Numbers,
}

#[derive(Serialize)]
struct Numbers {
    executed: u64,
    lanes: u64,
    tensor_operations: u64,
    global_bytes: u64,
    sectors: u64,
    least_sectors: u64,
    shared_bytes: u64,
    wavefronts: u64,
    bank_conflicts: u64,
}

impl From<Counts> for Numbers {
    fn from(counts: Counts) -> Numbers {
        Numbers {
            executed: counts.executed,
            lanes: counts.lanes,
            tensor_operations: counts.tensor_operations,
            global_bytes: counts.global.bytes,
            sectors: counts.global.sectors,
            least_sectors: counts.global.least_sectors,
            shared_bytes: counts.shared.bytes,
            wavefronts: counts.shared.wavefronts,
            bank_conflicts: counts.shared.conflicts,
        }
    }
}

impl<'a> Kernel<'a> {
    fn new(arch: Arch, launch: &'a Counters) -> Kernel<'a> {
        let rust = |place: &RustLine| format!("{}:{}", place.file, place.line);
        let lines = launch.by_rust_line();
        let classes = Class::ALL.into_iter().map(|class| (class, launch.of_class(class)));
        Kernel {
            kernel: &launch.kernel,
            arch: arch.to_string(),
            grid: launch.shape.grid,
            block: launch.shape.block,
            cluster: launch.shape.cluster,
            shared_bytes: launch.shape.shared_bytes,
            total: launch.total().into(),
            classes: classes
                .filter(|(_, counts)| counts.executed > 0)
                .map(|(class, counts)| ClassNumbers { class: class.name(), numbers: counts.into() })
                .collect(),
            rust_lines: lines.iter().map(|(at, counts)| Line { rust: rust(at), numbers: (*counts).into() }).collect(),
            instructions: launch
                .instructions
                .iter()
                .map(|instruction| {
                    let PtxLine { line, rust: at } = &instruction.place;
                    Instruction {
                        opcode: &instruction.opcode,
                        ptx_line: *line,
                        rust: at.as_ref().map(rust),
                        numbers: instruction.counts.into(),
                    }
                })
                .collect(),
        }
    }
}
