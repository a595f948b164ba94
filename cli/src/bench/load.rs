//! `ferrotile bench load`: what the first call of a process takes. It is the driver's work: a context, the compilation
//! of the kernel (unless the driver's cache has it), and the launch.

use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use clap::Args;
use ferrotile::{
    AtaOptions, AtaPlan, Buffer, Dtype, F8E4M3, Float, GemmLayout, GemmPlan, Gpu, Precision, Result, Stream, StreamRef,
    TensorMut, TensorRef, embedded_kernels, kernel_ptx,
};
use half::{bf16, f16};
use variants::ata::ATA;
use variants::attention::ATTENTION;
use variants::gemm::GEMM;

use crate::bench::any_case::AnyCase;
use crate::bench::ata::AtaCase;
use crate::bench::decode::{self, DecodeCase};
use crate::bench::gemm::{self, CardProduct, GemmCase};
use crate::bench::kernel_names;
use crate::bench::measure::open_card;
use crate::device;
use crate::files::tensor::Half;
use crate::problems::case::{Case, Extra};
use crate::problems::on_card;
use crate::progress;
use crate::table::table;

/// What to load.
#[derive(Debug, Args)]
pub(crate) struct LoadBenchArgs {
    /// A call: a case as `bench attention`, `bench decode`, `bench gemm` and `bench ata` take it; may be repeated
    /// [default: one for each kind of kernel].
    #[arg(long = "case", num_args = 1.., conflicts_with = "kernels")]
    cases: Vec<AnyCase>,
    /// A kernel by name, or `all` for every one, to be loaded without a call; may be repeated.
    #[arg(long = "kernel", alias = "variant", num_args = 1..)]
    kernels: Vec<String>,
    /// The card: cuda, cuda:N or N.
    #[arg(long, default_value = "cuda", value_parser = device::card)]
    device: u32,
}

/// The calls where none is named.
const CALLS: [&str; 40] = [
    "1x8x512x64/full/f16",
    "1x8x2048x64/full/f16",
    "16x32x512x64/full/f16",
    "16x32x1024x64/full/f16",
    "4x32x4096x64/full/f16",
    "1x8x512x64/causal/f16",
    "16x32x512x64/causal/f16",
    "4x32x4096x64/causal/f16",
    "4x16x1024x96/causal/f16",
    "4x16x1024x128/full/f16",
    "4x16x1024x128/causal/f16",
    "4x16x1024x192v128/full/f16",
    "4x16x1024x192v128/causal/f16",
    "4x16x1024x192/causal/f16",
    "4x8x512x256/full/f16",
    "4x8x1024x256/causal/f16",
    "4x16x1024x64/causal/f16/varlen",
    "4x16x1024x128/causal/f16/varlen",
    "4x16x1024x192v128/causal/f16/varlen",
    "4x8x1024x256/causal/f16/varlen",
    "4x16x1024x64/causal/f16/softcap",
    "4x16x1024x128/causal/f16/softcap",
    "4x8x1024x256/causal/f16/softcap",
    "4x16x1024x128/causal/bf16/softcap",
    "4x16x1024x64/causal/f16/bias",
    "4x16x1024x128/causal/f16/bias",
    "4x8x1024x256/causal/f16/bias",
    "4x16x1024x128/causal/bf16/bias",
    "4x32x1024x64/causal/e4m3",
    "4x16x1024x128/causal/e4m3",
    "4x8x1024x256/causal/e4m3",
    "4x32:8x1x8192x64/causal/f16",
    "4x32:8x1x8192x128/causal/f16",
    "4x32:8x1x8192x256/causal/f16",
    "512x512x512/f16",
    "4096x4096x4096/f16",
    "1024x1024x1001/f16",
    "4096x4096x4096/e4m3",
    "n2624_c3_d27_f1",
    "n2624_c3_d27_f8",
];

/// Makes each call, or loads each kernel, once and prints the milliseconds, those of the driver's compiler included
/// unless its cache has the kernel.
pub(crate) fn run(args: &LoadBenchArgs) -> anyhow::Result<()> {
    kernel_names::check(&args.kernels, "attention, gemm or ata", configs().map(|(_, name)| name))?;
    let (context_ms, gpu) = timed(|| open_card(args.device))?;
    writeln!(io::stdout(), "{}, {} PTX, context in {context_ms:.0} ms", gpu.name(), gpu.arch())?;
    if !args.kernels.is_empty() {
        return load(&gpu, &args.kernels);
    }
    let all = || CALLS.iter().map(|text| text.parse().expect("a call of the list")).collect();
    let calls = if args.cases.is_empty() { all() } else { args.cases.clone() };
    let mut lines = Vec::new();
    let shown = progress::bar(calls.len());
    for call in calls {
        shown.set_message(call.to_string());
        let first = first_call(&gpu, &call)?;
        lines.push(vec![
            call.to_string(),
            first.kernel.clone(),
            kibibytes(&gpu, &first.kernel),
            format!("{:.1}", first.plan_ms),
            format!("{:.1}", first.run_ms),
            format!("{:.0}", context_ms + first.plan_ms + first.run_ms),
        ]);
        shown.inc(1);
    }
    drop(shown);
    let heading = ["call", "kernel", "PTX KiB", "load ms", "run ms", "with context ms"];
    write!(io::stdout(), "{}", table(&heading, &lines))?;
    Ok(())
}

/// Every configuration: its family and its name.
fn configs() -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
    let attention = ATTENTION.iter().map(|config| ("attention", config.name));
    attention
        .chain(GEMM.iter().map(|config| ("gemm", config.name)))
        .chain(ATA.iter().map(|config| ("ata", config.name)))
}

/// Loads the kernels named, those that the card's architecture has.
fn load(gpu: &Gpu, names: &[String]) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (family, name) in configs().filter(|(_, name)| kernel_names::include(names, name)) {
        if embedded_kernels(family, gpu.arch()).any(|known| known == name) {
            let (load_ms, _) = timed(|| gpu.kernel(family, name))?;
            lines.push(vec![name.to_owned(), kibibytes(gpu, name), format!("{load_ms:.1}")]);
        }
    }
    write!(io::stdout(), "{}", table(&["kernel", "PTX KiB", "load ms"], &lines))?;
    Ok(())
}

/// The size of the PTX of the configuration that a plan names; nothing where there is none.
fn kibibytes(gpu: &Gpu, plan: &str) -> String {
    let config = configs().find(|config| plan.split([' ', '(', ',']).any(|word| word == config.1));
    let ptx = config.and_then(|(family, name)| kernel_ptx(family, gpu.arch(), name));
    ptx.map_or(String::new(), |ptx| format!("{:.0}", ptx.len() as f64 / 1024.0))
}

/// The parts of a first call.
struct FirstCall {
    /// The kernels, as the plan has them.
    kernel: String,
    /// The making of the plan, which loads them.
    plan_ms: f64,
    /// The first run, to its end.
    run_ms: f64,
}

impl FirstCall {
    fn new<P: fmt::Display>(
        stream: &Stream,
        plan: impl FnOnce() -> Result<P>,
        run: impl FnOnce(StreamRef<'_>, &P) -> Result<()>,
    ) -> Result<FirstCall> {
        let (plan_ms, plan) = timed(plan)?;
        let (run_ms, ()) = timed(|| run(stream.as_ref(), &plan).and_then(|()| stream.synchronize()))?;
        Ok(FirstCall { kernel: plan.to_string(), plan_ms, run_ms })
    }
}

fn first_call(gpu: &Gpu, call: &AnyCase) -> Result<FirstCall> {
    let stream = gpu.new_stream()?;
    match call {
        AnyCase::Attention(case) => match case.dtype {
            Dtype::Bf16 => attention::<bf16, bf16>(gpu, &stream, case),
            Dtype::E4M3 => attention::<F8E4M3, bf16>(gpu, &stream, case),
            Dtype::U8 => attention::<u8, f16>(gpu, &stream, case),
            _ => attention::<f16, f16>(gpu, &stream, case),
        },
        AnyCase::Decode(case) => match (case.dtype, case.kv) {
            (Dtype::Bf16, Dtype::E4M3) => decode::<bf16, F8E4M3>(gpu, &stream, case),
            (Dtype::Bf16, _) => decode::<bf16, bf16>(gpu, &stream, case),
            (_, Dtype::E4M3) => decode::<f16, F8E4M3>(gpu, &stream, case),
            _ => decode::<f16, f16>(gpu, &stream, case),
        },
        AnyCase::Gemm(case) => match case.dtype {
            Dtype::Bf16 => gemm::<bf16, bf16>(gpu, &stream, case),
            Dtype::E4M3 => gemm::<F8E4M3, f16>(gpu, &stream, case),
            _ => gemm::<f16, f16>(gpu, &stream, case),
        },
        AnyCase::Ata(case) => ata(gpu, &stream, case),
    }
}

fn attention<T: Half, O: Float>(gpu: &Gpu, stream: &Stream, case: &Case) -> Result<FirstCall> {
    let (plan_ms, ()) = timed(|| match case.extra {
        Extra::Varlen => case.request().plan(gpu, T::DTYPE, case.sequences()).map(drop),
        _ => case.request().plan(gpu, T::DTYPE, case.problem()).map(drop),
    })?;
    on_card::with_case::<T, O, _>(gpu, case, None, |facts, _, run| {
        let (run_ms, ()) = timed(|| run(stream.as_ref()).and_then(|()| stream.synchronize()))?;
        Ok(FirstCall { kernel: facts.name.to_string(), plan_ms, run_ms })
    })
}

fn decode<T: Half, KV: Float>(gpu: &Gpu, stream: &Stream, case: &DecodeCase) -> Result<FirstCall> {
    let mut tensors = decode::Tensors::<T, KV>::new(gpu, stream, case)?;
    let plan = || decode::Plan::new(gpu, stream, case, None, &case.request());
    FirstCall::new(stream, plan, |stream, plan| {
        let mut workspace = Buffer::zeroed(gpu, plan.workspace_bytes())?;
        plan.run(stream, case, &mut tensors, &mut workspace)
    })
}

fn gemm<T: Float, D: Float>(gpu: &Gpu, stream: &Stream, case: &GemmCase) -> Result<FirstCall> {
    let mut on_card = CardProduct::<T, D>::new(gpu, stream, case, GemmLayout::Nt)?;
    let (problem, options) = (*on_card.problem(), gemm::options(GemmLayout::Nt));
    let plan = || GemmPlan::new(gpu, &problem, &options);
    FirstCall::new(stream, plan, |stream, plan| {
        let mut workspace = Buffer::zeroed(gpu, plan.workspace_bytes())?;
        on_card.run(stream, plan, &mut workspace)
    })
}

fn ata(gpu: &Gpu, stream: &Stream, case: &AtaCase) -> Result<FirstCall> {
    let matrix = case.matrix()?.upload_blocking(stream.as_ref(), Precision::Tf32)?;
    let (shape, values) = case.frames()?;
    let x = Buffer::upload_blocking(stream, &values)?;
    let mut y = Buffer::zeroed(gpu, values.len())?;
    let plan = || AtaPlan::new(&matrix, case.frames, &AtaOptions::default());
    FirstCall::new(stream, plan, |stream, plan| {
        plan.run(stream, TensorRef::contiguous(&x, shape)?, TensorMut::contiguous(&mut y, shape)?)
    })
}

/// What `work` gives, and the milliseconds that it takes.
fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(f64, T), E> {
    let began = Instant::now();
    let done = work()?;
    Ok((began.elapsed().as_secs_f64() * 1e3, done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_they_are_written() {
        for text in CALLS {
            assert_eq!(text.parse::<AnyCase>().map(|call| call.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "1x8x512x64", "1x8x512x60/full/f16", "1x2x3/f32", "n16_c1_d2_f1"] {
            assert!(text.parse::<AnyCase>().is_err(), "{text}");
        }
    }
}
