//! `ferrotile bench ata`: times of products with symmetric block matrices.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use ferrotile::{
    AtaOptions, AtaPlan, Buffer, DeviceBlockMatrix, Gpu, Precision, SymmetricBlockMatrix, TensorMut, TensorRef,
    ata_kernels,
};
use layout::Arch;
use ndarray::Array5;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use variants::ata::{ATA, AtaConfig, BLOCK};
use variants::study::ATA_STUDY;

use crate::bench::kernel_names;
use crate::bench::measure::{MeasureArgs, Timer};
use crate::bench::report::Entry;
use crate::memory::{self, zeros};
use crate::problems::random;
use crate::progress;
use crate::spelling::in_any_case;

/// What to measure and how.
#[derive(Debug, Args)]
pub(crate) struct AtaBenchArgs {
    /// A case nN_cC_dD_fF: rows, channels, block diagonals, frames, such as n2624_c3_d27_f8; may be repeated.
    #[arg(long = "case", num_args = 1..)]
    cases: Vec<AtaCase>,
    /// A precision: f32, tf32, tf32x3, f16 or bf16; may be repeated [default: each].
    #[arg(long = "precision", num_args = 1.., value_parser = in_any_case::<Precision>)]
    precisions: Vec<Precision>,
    /// A kernel by name, or `all` for every one; may be repeated [default: the library's choice].
    #[arg(long = "kernel", alias = "variant", num_args = 1..)]
    kernels: Vec<String>,
    /// Start each product when the one before has ended, and not while it runs.
    #[arg(long)]
    isolated: bool,
    /// The architecture whose kernels run: sm_80, sm_89 or sm_90a [default: the newest that the card runs].
    #[arg(long)]
    arch: Option<Arch>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// The sizes of one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AtaCase {
    pub(crate) n: usize,
    pub(crate) channels: usize,
    diagonals: usize,
    pub(crate) frames: usize,
}

/// The sizes (n, block diagonals) of the benchmark against vendor libraries, each in 3 channels.
const SHAPES: [(usize, usize); 4] = [(320, 10), (2624, 27), (2624, 53), (8192, 27)];

/// The numbers of frames.
const FRAMES: [usize; 3] = [1, 8, 16];

impl AtaCase {
    fn defaults() -> Vec<AtaCase> {
        let case = |(n, diagonals), frames| AtaCase { n, channels: 3, diagonals, frames };
        SHAPES.into_iter().flat_map(|shape| FRAMES.map(|frames| case(shape, frames))).collect()
    }

    /// Floating-point operations: two for each element of the blocks, those below the diagonal included, and frame.
    fn flops(&self) -> f64 {
        let rows = self.n.div_ceil(BLOCK);
        let blocks: usize = (0..self.diagonals).map(|d| (rows - d) * if d == 0 { 1 } else { 2 }).sum();
        (2 * self.channels * blocks * BLOCK * BLOCK * self.frames) as f64
    }

    /// A matrix of normally distributed elements; the same in every run.
    pub(crate) fn matrix(&self) -> ferrotile::Result<SymmetricBlockMatrix> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(0);
        let AtaCase { n, channels, diagonals, .. } = *self;
        let shape = [channels, diagonals, n.div_ceil(BLOCK), BLOCK, BLOCK];
        // They are drawn, and then copied.
        memory::check::<f32>(&[2, channels, diagonals, n.div_ceil(BLOCK), BLOCK, BLOCK])?;
        let mut blocks = Array5::from_shape_vec(shape, zeros(&shape)?).expect("there is a zero for each element");
        for mut of_channel in blocks.outer_iter_mut() {
            for d in 0..diagonals {
                for row in 0..n {
                    let first = if d == 0 { row } else { (row / BLOCK + d) * BLOCK };
                    let end = ((row / BLOCK + d + 1) * BLOCK).min(n);
                    for column in first..end {
                        let element: f32 = random.sample(StandardNormal);
                        of_channel[[d, row / BLOCK, row % BLOCK, column % BLOCK]] = element;
                        if d == 0 {
                            of_channel[[d, row / BLOCK, column % BLOCK, row % BLOCK]] = element;
                        }
                    }
                }
            }
        }
        SymmetricBlockMatrix::from_blocks(n, blocks.view())
    }

    /// The shape `[frames, channels, n]` and normally distributed elements; the same in every run.
    pub(crate) fn frames(&self) -> ferrotile::Result<([usize; 3], Vec<f32>)> {
        let shape = [self.frames, self.channels, self.n];
        Ok((shape, random::normal(&shape, 1)?))
    }
}

impl fmt::Display for AtaCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AtaCase { n, channels, diagonals, frames } = self;
        f.pad(&format!("n{n}_c{channels}_d{diagonals}_f{frames}"))
    }
}

/// The text is not a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected nN_cC_dD_fF with numbers above 0 and at most n / 16 block diagonals, rounded up, such as n2624_c3_d27_f8"
)]
pub(crate) struct ParseAtaCaseError;

impl FromStr for AtaCase {
    type Err = ParseAtaCaseError;

    fn from_str(text: &str) -> Result<AtaCase, ParseAtaCaseError> {
        let parts: Vec<&str> = text.split('_').collect();
        let &[n, channels, diagonals, frames] = parts.as_slice() else { return Err(ParseAtaCaseError) };
        let size = |part: &str, letter: char| {
            let number = part.strip_prefix(letter).and_then(|number| number.parse().ok());
            number.filter(|&number: &usize| number > 0).ok_or(ParseAtaCaseError)
        };
        let case = AtaCase {
            n: size(n, 'n')?,
            channels: size(channels, 'c')?,
            diagonals: size(diagonals, 'd')?,
            frames: size(frames, 'f')?,
        };
        if case.diagonals <= case.n.div_ceil(BLOCK) { Ok(case) } else { Err(ParseAtaCaseError) }
    }
}

/// Measures and prints.
pub(crate) fn run(args: &AtaBenchArgs) -> anyhow::Result<()> {
    kernel_names::check(&args.kernels, "ata", configs().map(|config| config.name))?;
    let cases = if args.cases.is_empty() { AtaCase::defaults() } else { args.cases.clone() };
    let precisions = if args.precisions.is_empty() { Precision::ALL.to_vec() } else { args.precisions.clone() };
    args.measure.check_place()?;
    let gpu = args.measure.gpu()?;
    let mut timer = args.measure.timer(&gpu)?;
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    let shown = progress::bar(cases.len() * precisions.len());
    for case in cases {
        shown.set_message(case.to_string());
        let matrix = case.matrix()?;
        for &precision in &precisions {
            let matrix = matrix.upload_blocking(timer.stream().as_ref(), precision)?;
            let base = AtaOptions { isolated: args.isolated, arch: args.arch, ..AtaOptions::default() };
            let mut options: Vec<AtaOptions> = ata_kernels(precision)
                .filter(|name| kernel_names::include(&args.kernels, name.as_str()))
                .map(|name| AtaOptions { kernel: Some(name.to_string()), ..base.clone() })
                .collect();
            if args.kernels.is_empty() {
                options.push(base);
            }
            for options in options {
                let (line, entry) = measure(&gpu, &mut timer, &case, &matrix, &options)?;
                lines.push(line);
                entries.push(entry);
            }
            shown.inc(1);
        }
    }
    drop(shown);
    let heading = [
        "case",
        "kernel",
        "p50 us",
        "p90 us",
        "TFLOP/s",
        "MB of A read",
        "TB/s",
        "registers",
        "shared bytes",
        "blocks/SM",
    ];
    args.measure.report(&gpu, &heading, &lines, entries)
}

/// The kernels that can be named.
fn configs() -> impl Iterator<Item = &'static AtaConfig> + Clone {
    ATA.iter().chain(ATA_STUDY)
}

/// Times one kernel by replay of a graph, as small work is.
fn measure(
    gpu: &Gpu,
    timer: &mut Timer,
    case: &AtaCase,
    matrix: &DeviceBlockMatrix,
    options: &AtaOptions,
) -> ferrotile::Result<(Vec<String>, Entry)> {
    let (shape, values) = case.frames()?;
    let x = Buffer::upload_blocking(timer.stream(), &values)?;
    let mut y = Buffer::zeroed(gpu, values.len())?;
    let plan = AtaPlan::new(matrix, case.frames, options)?;
    let us = timer.microseconds(true, |stream| {
        plan.run(stream, TensorRef::contiguous(&x, shape)?, TensorMut::contiguous(&mut y, shape)?)
    })?;
    let (facts, kernel) = (plan.facts(), plan.kernel());
    let config = configs().find(|config| facts.name == config.name).expect("a plan runs a kernel of the catalogue");
    let (shared_bytes, tflops) = (facts.shared_bytes, case.flops() / us.p50 / 1e6);
    // Each block of the grid reads the pairs that it uses: as many times as there are tiles of frames.
    let megabytes = matrix.bytes_read() as f64 * case.frames.div_ceil(config.frames) as f64 / 1e6;
    let line = vec![
        case.to_string(),
        plan.to_string(),
        format!("{:.2}", us.p50),
        format!("{:.2}", us.p90),
        format!("{tflops:.1}"),
        format!("{megabytes:.1}"),
        format!("{:.2}", megabytes / us.p50),
        kernel.attributes().registers.to_string(),
        shared_bytes.to_string(),
        kernel.blocks_per_multiprocessor(facts.threads, shared_bytes)?.to_string(),
    ];
    let entry = Entry::measured("ata", case, &plan, &us, case.flops());
    Ok((line, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for case in AtaCase::defaults() {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in ["", "n16_c1_d1", "n16_c1_d2_f1", "n0_c1_d1_f1", "n16_c1_d1_f0", "16_1_1_1", "n16_c1_d1_f8_x1"] {
            assert_eq!(text.parse::<AtaCase>(), Err(ParseAtaCaseError), "{text}");
        }
    }

    #[test]
    fn the_matrix_has_the_block_diagonals_and_the_operations_of_the_case() {
        let case = AtaCase { n: 40, channels: 2, diagonals: 2, frames: 3 };
        let matrix = case.matrix().unwrap();
        assert_eq!((matrix.block_diagonals(), matrix.occupancy()), (2, 1.0));
        assert_eq!(case.flops(), 2.0 * 2.0 * (3.0 + 2.0 * 2.0) * 256.0 * 3.0);
    }
}
