//! `ferrotile bench study`: what each choice of the kernels on `mma.sync` is worth. Each case runs on the library's
//! kernel, on those that differ from it in one choice, and on the scalar kernel.

use clap::Args;
use ferrotile::Arch;
use variants::attention::{ATTENTION, AttentionConfig, AttentionKernel, ScoreMod, Seqlens};
use variants::study::ATTENTION_STUDY;

use crate::bench::attention::{HEADING, Job, check_request};
use crate::bench::error::BenchError;
use crate::bench::measure::MeasureArgs;
use crate::problems::case::{Case, Extra};
use crate::progress;

/// What to measure and how.
#[derive(Debug, Args)]
pub(crate) struct StudyBenchArgs {
    /// A case of attention, as `bench attention` takes it; may be repeated [default: those of docs/wmma.md].
    #[arg(long = "case", num_args = 1..)]
    cases: Vec<Case>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// The cases of attention where none is named.
const CASES: [&str; 7] = [
    "1x1x32x64/full/f16",
    "1x8x512x64/full/f16",
    "1x8x512x64/causal/f16",
    "1x8x2048x64/full/f16",
    "4x32x4096x64/full/f16",
    "4x16x4096x128/full/f16",
    "4x16x4096x128/causal/f16",
];

/// Measures and prints.
pub(crate) fn run(args: &StudyBenchArgs) -> anyhow::Result<()> {
    let cases = if args.cases.is_empty() {
        CASES.map(|case| case.parse().expect("the text is a case")).to_vec()
    } else {
        args.cases.clone()
    };
    args.measure.check_place()?;
    check_request(&cases, &[])?;
    let kernels: Vec<_> = cases.iter().map(kernels).collect::<Result<_, _>>()?;
    let gpu = args.measure.gpu()?;
    let mut timer = args.measure.timer(&gpu)?;
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    let shown = progress::bar(kernels.iter().map(Vec::len).sum());
    for (&case, kernels) in cases.iter().zip(kernels) {
        let mut of_library = None;
        for kernel in kernels {
            shown.set_message(case.to_string());
            let measured = Job { case, kernel: Some(kernel) }.measure(&gpu, &mut timer)?;
            let ratio = measured.us.p50 / *of_library.get_or_insert(measured.us.p50);
            let mut line = measured.line();
            line.insert(RATIO, format!("{ratio:.2}"));
            lines.push(line);
            entries.push(measured.entry());
            shown.inc(1);
        }
    }
    drop(shown);
    let mut heading = HEADING.to_vec();
    heading.insert(RATIO, "of the first");
    args.measure.report(&gpu, &heading, &lines, entries)
}

/// The column that has the time of a kernel in units of the library's.
const RATIO: usize = 3;

/// The kernels on `mma.sync` that serve a case, those of the narrowest head dimension: the library's, and those that
/// differ from it. Then the scalar kernel. Every card runs all of them.
fn kernels(case: &Case) -> Result<Vec<&'static AttentionConfig>, BenchError> {
    let serves = |config: &&AttentionConfig| {
        config.serves(Arch::Sm80, case.dtype, [case.head_dim, case.value_dim])
            && config.takes(case.mask, case.len, case.len)
            && (config.score_mod, config.seqlens) == (ScoreMod::None, Seqlens::Fixed)
    };
    if case.extra != Extra::None {
        return Err(BenchError::OutsideStudy(case.to_string()));
    }
    let is_tiled = |config: &&AttentionConfig| matches!(config.kernel, AttentionKernel::Mma(_));
    let first = ATTENTION.iter().filter(serves).find(is_tiled);
    let first = first.ok_or_else(|| BenchError::OutsideStudy(case.to_string()))?;
    let others = ATTENTION_STUDY.iter().filter(serves).filter(|config| config.head_dim == first.head_dim);
    let scalar = ATTENTION.iter().filter(serves).find(|config| matches!(config.kernel, AttentionKernel::Scalar));
    Ok([first].into_iter().chain(others).chain(scalar).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_study_is_measured_beside_the_one_that_it_differs_from() {
        let of_cases: Vec<_> = CASES.iter().map(|case| kernels(&case.parse().unwrap()).unwrap()).collect();
        for config in ATTENTION_STUDY.iter().filter(|config| config.name.contains("_f16_")) {
            assert!(of_cases.iter().any(|kernels| kernels.contains(&config)), "{config}");
        }
        for kernels in &of_cases {
            let tiles: Vec<_> = kernels.iter().filter(|config| config.kernel != AttentionKernel::Scalar).collect();
            assert!(tiles.len() > 1 && tiles.iter().all(|config| config.head_dim == kernels[0].head_dim));
            assert!(ATTENTION.contains(kernels[0]) && tiles[1..].iter().all(|config| ATTENTION_STUDY.contains(config)));
        }
    }

    #[test]
    fn cases_that_tensor_cores_of_ampere_do_not_serve_are_refused() {
        for case in ["1x2x64x256/full/f16", "1x2x64x136/causal/bf16", "1x2x64x64/full/f16/bias"] {
            assert!(matches!(kernels(&case.parse().unwrap()), Err(BenchError::OutsideStudy(_))), "{case}");
        }
    }
}
