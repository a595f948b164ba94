//! `ferrotile bench attention`: times of attention kernels.

use clap::Args;
use ferrotile::{Arch, Dtype, F8E4M3, Float, Gpu};
use half::{bf16, f16};
use variants::attention::{ATTENTION, AttentionConfig, ScoreMod, Seqlens};
use variants::study::ATTENTION_STUDY;

use crate::bench::error::BenchError;
use crate::bench::kernel_names;
use crate::bench::measure::{MeasureArgs, Timer};
use crate::bench::report::Entry;
use crate::bench::statistics::Summary;
use crate::files::tensor::Half;
use crate::problems::case::{Case, Extra};
use crate::problems::on_card;
use crate::progress;

/// What to measure and how.
#[derive(Debug, Args)]
pub(crate) struct AttentionBenchArgs {
    /// A case BxHxSxD/mask/dtype, such as 1x8x512x64/causal/f16 (or bf16, e4m3 with an O of bf16, or u8 with one of
    /// f16; BxHq:HkvxSxD for grouped heads, BxHxSxDvE where V has head dimension E); with /softcap (of 50), /bias (the
    /// same for all heads) or /varlen (lengths from S/B in equal steps to S) at its end; may be repeated.
    #[arg(long = "case", num_args = 1.., conflicts_with = "all")]
    cases: Vec<Case>,
    /// A kernel by name, or `all` for every one that serves a case; may be repeated [default: the library's choice].
    #[arg(long = "kernel", alias = "variant", num_args = 1..)]
    kernels: Vec<String>,
    /// Every shape of the comparison with vendor libraries, in f16, bf16 and, where there are kernels, e4m3; and
    /// grouped heads, windows, softcap, bias and several lengths.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// One measurement to make: a case and a kernel, or the library's choice.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) case: Case,
    pub(crate) kernel: Option<&'static AttentionConfig>,
}

/// Measures and prints.
pub(crate) fn run(args: &AttentionBenchArgs) -> anyhow::Result<()> {
    let cases = if args.cases.is_empty() { Case::defaults(args.all) } else { args.cases.clone() };
    args.measure.check_place()?;
    check_request(&cases, &args.kernels)?;
    let gpu = args.measure.gpu()?;
    let cases: Vec<Case> = match args.cases.is_empty() {
        true => cases.into_iter().filter(|case| has_kernels(gpu.arch(), case.dtype)).collect(),
        false => cases,
    };
    let jobs = jobs(gpu.arch(), &cases, &args.kernels)?;
    let mut timer = args.measure.timer(&gpu)?;
    let shown = progress::bar(jobs.len());
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    for job in jobs {
        shown.set_message(job.case.to_string());
        let measured = job.measure(&gpu, &mut timer)?;
        lines.push(measured.line());
        entries.push(measured.entry());
        shown.inc(1);
    }
    drop(shown);
    args.measure.report(&gpu, &HEADING, &lines, entries)
}

/// What [`Measured::line`] has.
pub(crate) const HEADING: [&str; 10] =
    ["case", "kernel", "p50 us", "p90 us", "mean us", "std us", "TFLOP/s", "registers", "shared bytes", "blocks/SM"];

/// Refuses what no card can run.
pub(crate) fn check_request(cases: &[Case], kernels: &[String]) -> Result<(), BenchError> {
    kernel_names::check(kernels, "attention", configs().map(|config| config.name))?;
    cases.iter().try_for_each(|case| case.check().map_err(|reason| BenchError::Case { case: case.to_string(), reason }))
}

/// The kernels that can be named.
fn configs() -> impl Iterator<Item = &'static AttentionConfig> + Clone {
    ATTENTION.iter().chain(ATTENTION_STUDY)
}

/// Whether an architecture has kernels for inputs of this type.
fn has_kernels(arch: Arch, dtype: Dtype) -> bool {
    ATTENTION.iter().any(|config| config.dtype == dtype && config.compiled_for(arch))
}

/// Pairs each case with the kernels of `arch` that are to run it.
fn jobs(arch: Arch, cases: &[Case], kernels: &[String]) -> Result<Vec<Job>, BenchError> {
    let mut jobs = Vec::new();
    for &case in cases {
        if kernels.is_empty() {
            jobs.push(Job { case, kernel: None });
            continue;
        }
        let before = jobs.len();
        let configs = configs()
            .filter(|config| config.serves(arch, case.dtype, [case.head_dim, case.value_dim]))
            .filter(|config| config.takes(case.mask, case.len, case.len) && serves(&case, config))
            .filter(|config| kernel_names::include(kernels, config.name));
        jobs.extend(configs.map(|config| Job { case, kernel: Some(config) }));
        if jobs.len() == before {
            return Err(BenchError::NothingServes(case.to_string()));
        }
    }
    Ok(jobs)
}

/// Whether a kernel computes what a case has, and is made for no more.
fn serves(case: &Case, config: &AttentionConfig) -> bool {
    let params = case.request().params;
    let scores = ScoreMod::of(params.softcap, params.bias);
    // Cases of E4M3 have an O of bf16, and those of u8 one of f16.
    let out = match case.dtype {
        Dtype::E4M3 => Dtype::Bf16,
        Dtype::U8 => Dtype::F16,
        dtype => dtype,
    };
    if config.out != out {
        return false;
    }
    match case.extra {
        Extra::None => (config.score_mod, config.seqlens) == (scores, Seqlens::Fixed),
        Extra::Softcap | Extra::Bias => config.covers(scores, Seqlens::Fixed),
        Extra::Varlen => config.covers(scores, Seqlens::Varlen),
    }
}

/// A finished measurement.
pub(crate) struct Measured {
    case: Case,
    kernel: String,
    pub(crate) us: Summary,
    registers: u32,
    shared_bytes: u32,
    blocks_per_multiprocessor: u32,
}

impl Job {
    /// Times the kernel.
    pub(crate) fn measure(&self, gpu: &Gpu, timer: &mut Timer) -> ferrotile::Result<Measured> {
        match self.case.dtype {
            Dtype::Bf16 => measure::<bf16, bf16>(gpu, timer, self),
            Dtype::E4M3 => measure::<F8E4M3, bf16>(gpu, timer, self),
            Dtype::U8 => measure::<u8, f16>(gpu, timer, self),
            _ => measure::<f16, f16>(gpu, timer, self),
        }
    }
}

fn measure<T: Half, O: Float>(gpu: &Gpu, timer: &mut Timer, job: &Job) -> ferrotile::Result<Measured> {
    let Job { case, kernel: named } = *job;
    on_card::with_case::<T, O, _>(gpu, &case, named.map(|config| config.name.to_owned()), |facts, kernel, run| {
        let us = timer.microseconds(case.is_small(), run)?;
        let shared_bytes = facts.shared_bytes;
        Ok(Measured {
            case,
            kernel: facts.name.to_string(),
            us,
            registers: kernel.attributes().registers,
            shared_bytes,
            blocks_per_multiprocessor: kernel.blocks_per_multiprocessor(facts.threads, shared_bytes)?,
        })
    })
}

impl Measured {
    fn tflops(&self) -> f64 {
        self.case.flops() / self.us.p50 / 1e6
    }

    /// The cells under [`HEADING`].
    pub(crate) fn line(&self) -> Vec<String> {
        vec![
            self.case.to_string(),
            self.kernel.clone(),
            format!("{:.2}", self.us.p50),
            format!("{:.2}", self.us.p90),
            format!("{:.2}", self.us.mean),
            format!("{:.2}", self.us.std),
            format!("{:.1}", self.tflops()),
            self.registers.to_string(),
            self.shared_bytes.to_string(),
            self.blocks_per_multiprocessor.to_string(),
        ]
    }

    /// The same for the file of results.
    pub(crate) fn entry(&self) -> Entry {
        Entry::measured("attention", self.case, &self.kernel, &self.us, self.case.flops())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases() -> Vec<Case> {
        vec!["1x2x64x64/full/f16".parse().unwrap(), "1x2x64x256/causal/bf16".parse().unwrap()]
    }

    #[test]
    fn every_kernel_that_serves_a_case_can_be_measured() {
        let jobs = jobs(Arch::Sm90a, &cases(), &["all".to_owned()]).unwrap();
        for case in cases() {
            let named: Vec<_> = jobs.iter().filter(|job| job.case == case).map(|job| job.kernel.unwrap()).collect();
            assert!(
                !named.is_empty()
                    && named.iter().all(|config| config.serves(
                        Arch::Sm90a,
                        case.dtype,
                        [case.head_dim, case.value_dim]
                    ))
            );
        }
    }

    #[test]
    fn the_long_list_has_fp8_where_there_are_kernels() {
        let of_arch = |arch: Arch| {
            let cases = Case::defaults(true).into_iter().filter(|case| has_kernels(arch, case.dtype));
            cases.filter(|case| case.dtype == Dtype::E4M3).count()
        };
        assert!(of_arch(Arch::Sm90a) > 30);
        assert_eq!(of_arch(Arch::Sm80), 0);
    }

    #[test]
    fn names_of_no_kernel_are_refused() {
        let error = check_request(&cases(), &["fast".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("'fast'"));
        let narrow = ATTENTION.iter().find(|config| config.head_dim < 256).unwrap();
        assert!(matches!(jobs(Arch::Sm90a, &cases(), &[narrow.name.to_owned()]), Err(BenchError::NothingServes(_))));
    }

    #[test]
    fn the_library_chooses_where_no_kernel_is_named() {
        assert_eq!(jobs(Arch::Sm90a, &cases(), &[]).unwrap().len(), 2);
        for odd in ["1x3:2x64x64/full/f16", "1x2x64x64v12/full/f16", "4x1x1000000000x64/full/f16/varlen"] {
            assert!(matches!(check_request(&[odd.parse().unwrap()], &[]), Err(BenchError::Case { .. })), "{odd}");
        }
    }
}
