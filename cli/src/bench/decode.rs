//! `ferrotile bench decode`: attention of few query rows on many keys, which takes as long as reading the keys and
//! values, beside a copy on the same card.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use clap::Args;
use ferrotile::{
    AttentionPlan, AttentionTensors, BatchedSizes, Buffer, Dtype, F8E4M3, Float, Gpu, Layout, Mask, PagedSizes,
    PagedTensors, Result, Stream, StreamRef, TensorMut, TensorRef,
};
use half::{bf16, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

use crate::bench::error::BenchError;
use crate::bench::measure::{MeasureArgs, Timer};
use crate::bench::report::Entry;
use crate::problems::request::Request;
use crate::progress;
use crate::spelling::finite;

/// Workspace that plans may use.
const WORKSPACE_BYTES: usize = 256 << 20;

/// Elements of the block of numbers that K and V are made of: as good as new ones for a time, and made sooner.
const BLOCK: usize = 1 << 22;

/// Bytes that are copied to measure the memory: many times what the L2 cache of any card holds.
const COPY_BYTES: usize = 1 << 30;

/// How Q and, unless they lie in pages, K and V are laid out.
const LAYOUT: Layout = Layout::Bhsd;

/// What to measure and how.
#[derive(Debug, Args)]
pub(crate) struct DecodeBenchArgs {
    /// A case BxHq:HkvxSqxSkxD/mask/dtype, such as 16x32:8x1x8192x128/causal/f16; may be repeated. With /e4m3kv at the
    /// end K and V are of E4M3.
    #[arg(long = "case", num_args = 1..)]
    cases: Vec<DecodeCase>,
    /// Splits of the keys (split-KV); may be repeated [default: the library's choice].
    #[arg(long = "splits", num_args = 1..)]
    splits: Vec<usize>,
    /// Keys of a page; without it keys follow each other.
    #[arg(long)]
    page: Option<usize>,
    /// What bounds scores; without it nothing does.
    #[arg(long, value_name = "CAP", allow_hyphen_values = true, value_parser = finite)]
    softcap: Option<f32>,
    /// A kernel by name [default: the library's choice].
    #[arg(long, alias = "variant")]
    kernel: Option<String>,
    #[command(flatten)]
    measure: MeasureArgs,
}

impl DecodeBenchArgs {
    /// What a card is asked for a case.
    fn request(&self, case: &DecodeCase) -> Request {
        let mut request = case.request().of_kernel(self.kernel.clone());
        request.params.softcap = self.softcap;
        request
    }
}

/// One problem to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecodeCase {
    sizes: BatchedSizes,
    mask: Mask,
    pub(crate) dtype: Dtype,
    /// Element type of K and V.
    pub(crate) kv: Dtype,
}

/// What a case with K and V of E4M3 ends in.
const E4M3_KV: &str = "e4m3kv";

impl DecodeCase {
    /// The cases measured where none is named: a step of a model with 32 heads on 8, at two batch sizes and two
    /// lengths.
    fn defaults() -> Vec<DecodeCase> {
        let of = |batch, k_len| DecodeCase {
            sizes: BatchedSizes { batch, q_heads: 32, kv_heads: 8, q_len: 1, k_len, head_dim: 128 },
            mask: Mask::Causal,
            dtype: Dtype::F16,
            kv: Dtype::F16,
        };
        [8192, 65536].into_iter().flat_map(|k_len| [16, 64].map(|batch| of(batch, k_len))).collect()
    }

    /// What a card is asked for the case.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::new(LAYOUT);
        (request.params.mask, request.params.kv) = (self.mask, Some(self.kv));
        request.options.max_workspace_bytes = WORKSPACE_BYTES;
        request
    }

    /// Bytes that the call reads and writes at least: the visible keys and values, Q and O.
    fn bytes(&self) -> f64 {
        let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = self.sizes;
        let seen_by = |row| self.mask.key_range(row, q_len, k_len);
        // Both ends of what a row sees grow with the row.
        let keys = q_len.checked_sub(1).map_or(0, |last| seen_by(last).end.saturating_sub(seen_by(0).start));
        let of_rows = |rows: usize, dtype: Dtype| rows * dtype.size_bytes();
        (2 * batch * head_dim * (of_rows(kv_heads * keys, self.kv) + of_rows(q_heads * q_len, self.dtype))) as f64
    }
}

impl fmt::Display for DecodeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = self.sizes;
        let of_kv = if self.kv == self.dtype { String::new() } else { format!("/{E4M3_KV}") };
        f.pad(&format!("{batch}x{q_heads}:{kv_heads}x{q_len}x{k_len}x{head_dim}/{}/{}{of_kv}", self.mask, self.dtype))
    }
}

/// The text is not a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected BxHq:HkvxSqxSkxD/mask/dtype with numbers above 0 whose product 64 bits hold, such as \
     16x32:8x1x8192x128/causal/f16 or 16x32:8x1x8192x128/causal/bf16/e4m3kv"
)]
pub(crate) struct ParseDecodeCaseError;

impl FromStr for DecodeCase {
    type Err = ParseDecodeCaseError;

    fn from_str(text: &str) -> Result<DecodeCase, ParseDecodeCaseError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (&[shape, mask, dtype], is_e4m3_kv) = (match parts.as_slice() {
            [parts @ .., E4M3_KV] => (parts, true),
            parts => (parts, false),
        }) else {
            return Err(ParseDecodeCaseError);
        };
        let sizes: Vec<&str> = shape.split('x').collect();
        let &[batch, heads, q_len, k_len, head_dim] = sizes.as_slice() else { return Err(ParseDecodeCaseError) };
        let (q_heads, kv_heads) = heads.split_once(':').unwrap_or((heads, heads));
        let size = |part: &str| part.parse().ok().filter(|&size| size > 0).ok_or(ParseDecodeCaseError);
        let sizes = BatchedSizes {
            batch: size(batch)?,
            q_heads: size(q_heads)?,
            kv_heads: size(kv_heads)?,
            q_len: size(q_len)?,
            k_len: size(k_len)?,
            head_dim: size(head_dim)?,
        };
        let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = sizes;
        let product = [batch, q_heads, kv_heads, q_len, k_len, head_dim]
            .into_iter()
            .try_fold(1usize, |product, size| product.checked_mul(size));
        product.ok_or(ParseDecodeCaseError)?;
        let dtype = [Dtype::F16, Dtype::Bf16].into_iter().find(|known| known.name() == dtype);
        let mask = mask.parse().map_err(|_| ParseDecodeCaseError)?;
        let dtype = dtype.ok_or(ParseDecodeCaseError)?;
        Ok(DecodeCase { sizes, mask, dtype, kv: if is_e4m3_kv { Dtype::E4M3 } else { dtype } })
    }
}

/// Measures and prints.
pub(crate) fn run(args: &DecodeBenchArgs) -> anyhow::Result<()> {
    let cases = if args.cases.is_empty() { DecodeCase::defaults() } else { args.cases.clone() };
    args.measure.check_place()?;
    for case in &cases {
        let checked = case.sizes.check().and_then(|()| args.request(case).check(case.sizes.head_dim));
        checked.map_err(|reason| BenchError::Case { case: case.to_string(), reason })?;
        if args.page.is_some_and(|page| page == 0 || !case.sizes.k_len.is_multiple_of(page)) {
            return Err(BenchError::PartialPage { case: case.to_string() }.into());
        }
    }
    let gpu = args.measure.gpu()?;
    let mut timer = args.measure.timer(&gpu)?;
    let copied = print_copy_rate(&gpu, &mut timer)?;
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    let shown = progress::bar(cases.len());
    for case in &cases {
        shown.set_message(case.to_string());
        let measured = match (case.dtype, case.kv) {
            (Dtype::Bf16, Dtype::E4M3) => measure::<bf16, F8E4M3>(&gpu, &mut timer, case, copied, args)?,
            (Dtype::Bf16, _) => measure::<bf16, bf16>(&gpu, &mut timer, case, copied, args)?,
            (_, Dtype::E4M3) => measure::<f16, F8E4M3>(&gpu, &mut timer, case, copied, args)?,
            _ => measure::<f16, f16>(&gpu, &mut timer, case, copied, args)?,
        };
        for (line, entry) in measured {
            lines.push(line);
            entries.push(entry);
        }
        shown.inc(1);
    }
    drop(shown);
    let heading = ["case", "kernel", "splits", "p50 us", "p90 us", "GB/s", "of the copy", "workspace"];
    args.measure.report(&gpu, &heading, &lines, entries)
}

/// Measures a large copy from device memory to device memory and prints its GB/s, each byte counted as it is read and
/// as it is written.
pub(crate) fn print_copy_rate(gpu: &Gpu, timer: &mut Timer) -> anyhow::Result<f64> {
    let rate = 2.0 * COPY_BYTES as f64 / copy_time(gpu, timer, COPY_BYTES)? / 1e3;
    writeln!(io::stdout(), "a copy of {} MiB: {rate:.0} GB/s, read and written", COPY_BYTES >> 20)?;
    Ok(rate)
}

/// Microseconds of a copy of so many bytes from device memory to device memory.
pub(crate) fn copy_time(gpu: &Gpu, timer: &mut Timer, bytes: usize) -> Result<f64> {
    let (source, mut destination) = (Buffer::<u8>::zeroed(gpu, bytes)?, Buffer::<u8>::zeroed(gpu, bytes)?);
    Ok(timer.microseconds(false, |stream| destination.copy_from(stream, 0, &source))?.p50)
}

/// A tensor of random numbers, some of which repeat.
pub(crate) fn random<T: Float>(gpu: &Gpu, stream: &Stream, len: usize, seed: u64) -> Result<Buffer<T>> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let numbers: Vec<T> = (0..len.min(BLOCK)).map(|_| T::from_f64(random.sample(StandardNormal))).collect();
    let mut tensor = Buffer::zeroed(gpu, len)?;
    let block = Buffer::upload_blocking(stream, &numbers)?;
    let whole = if numbers.is_empty() { 0 } else { len / numbers.len() };
    for index in 0..whole {
        tensor.copy_from(stream, index * numbers.len(), &block)?;
    }
    let rest = Buffer::upload_blocking(stream, &numbers[..len - whole * numbers.len()])?;
    tensor.copy_from(stream, len - rest.len(), &rest)?;
    Ok(tensor)
}

/// Tensors of a case on the card.
pub(crate) struct Tensors<T, KV> {
    q: Buffer<T>,
    k: Buffer<KV>,
    v: Buffer<KV>,
    out: Buffer<T>,
}

impl<T: Float, KV: Float> Tensors<T, KV> {
    /// Random ones.
    pub(crate) fn new(gpu: &Gpu, stream: &Stream, case: &DecodeCase) -> Result<Tensors<T, KV>> {
        let len = |shape: [usize; 4]| shape.iter().product();
        let (q_len, kv_len) = (len(case.sizes.q_shape(LAYOUT)), len(case.sizes.kv_shape(LAYOUT)));
        let q = random(gpu, stream, q_len, 1)?;
        let (k, v) = (random(gpu, stream, kv_len, 2)?, random(gpu, stream, kv_len, 3)?);
        Ok(Tensors { out: Buffer::zeroed(gpu, q.len())?, q, k, v })
    }
}

/// A plan for keys that follow each other or lie in pages.
pub(crate) enum Plan {
    Contiguous(AttentionPlan),
    /// With the block table and the numbers of keys.
    Paged(AttentionPlan, PagedSizes, [Buffer<i32>; 2]),
}

impl Plan {
    pub(crate) fn new(
        gpu: &Gpu,
        stream: &Stream,
        case: &DecodeCase,
        page: Option<usize>,
        request: &Request,
    ) -> Result<Plan> {
        let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = case.sizes;
        let Some(page_len) = page else {
            return Ok(Plan::Contiguous(request.plan(gpu, case.dtype, case.sizes)?));
        };
        let table_len = k_len / page_len;
        let pages = batch * table_len;
        let problem = PagedSizes { batch, q_heads, kv_heads, q_len, head_dim, pages, page_len, table_len };
        let plan = request.plan(gpu, case.dtype, problem)?;
        let mut table: Vec<i32> = (0..pages as i32).collect();
        table.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(4));
        let numbers =
            [Buffer::upload_blocking(stream, &table)?, Buffer::upload_blocking(stream, &vec![k_len as i32; batch])?];
        Ok(Plan::Paged(plan, problem, numbers))
    }

    pub(crate) fn workspace_bytes(&self) -> usize {
        match self {
            Plan::Contiguous(plan) => plan.workspace_bytes(),
            Plan::Paged(plan, ..) => plan.workspace_bytes(),
        }
    }

    fn splits(&self) -> usize {
        match self {
            Plan::Contiguous(plan) => plan.splits(),
            Plan::Paged(plan, ..) => plan.splits(),
        }
    }

    pub(crate) fn run<T: Float, KV: Float>(
        &self,
        stream: StreamRef<'_>,
        case: &DecodeCase,
        Tensors { q, k, v, out }: &mut Tensors<T, KV>,
        workspace: &mut Buffer<u8>,
    ) -> Result<()> {
        let (q_shape, kv_shape) = (case.sizes.q_shape(LAYOUT), case.sizes.kv_shape(LAYOUT));
        let bytes = workspace.len();
        let workspace = Some(TensorMut::contiguous(workspace, [bytes])?);
        let (q, out) = (TensorRef::contiguous(q, q_shape)?, TensorMut::contiguous(out, q_shape)?);
        match self {
            Plan::Contiguous(plan) => {
                let (k, v) = (TensorRef::contiguous(k, kv_shape)?, TensorRef::contiguous(v, kv_shape)?);
                let mut tensors = AttentionTensors::new(q, k, v, out);
                tensors.workspace = workspace;
                plan.run(stream, tensors)
            }
            Plan::Paged(plan, problem, [table, lens]) => {
                let pages =
                    [TensorRef::contiguous(k, problem.kv_shape())?, TensorRef::contiguous(v, problem.kv_shape())?];
                let table = TensorRef::contiguous(table, [problem.batch, problem.table_len])?;
                let lens = TensorRef::contiguous(lens, [problem.batch])?;
                let mut tensors = PagedTensors::new(q, pages, table, lens, out);
                tensors.workspace = workspace;
                plan.run(stream, tensors)
            }
        }
    }
}

/// The name of the kernel.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Contiguous(plan) => plan.fmt(f),
            Plan::Paged(plan, ..) => plan.fmt(f),
        }
    }
}

fn measure<T: Float, KV: Float>(
    gpu: &Gpu,
    timer: &mut Timer,
    case: &DecodeCase,
    copied: f64,
    args: &DecodeBenchArgs,
) -> Result<Vec<(Vec<String>, Entry)>> {
    let mut tensors = Tensors::<T, KV>::new(gpu, timer.stream(), case)?;
    let splits = if args.splits.is_empty() { vec![None] } else { args.splits.iter().copied().map(Some).collect() };
    let flops = case.sizes.flops(case.mask);
    let mut measured = Vec::new();
    for splits in splits {
        let mut request = args.request(case);
        request.options.splits = splits;
        let plan = Plan::new(gpu, timer.stream(), case, args.page, &request)?;
        let bytes = plan.workspace_bytes();
        let mut workspace = Buffer::<u8>::zeroed(gpu, bytes)?;
        let us = timer.microseconds(false, |stream| plan.run(stream, case, &mut tensors, &mut workspace))?;
        let rate = case.bytes() / us.p50 / 1e3;
        let case = args.page.map_or_else(|| case.to_string(), |page| format!("{case}/pages of {page}"));
        let case = args.softcap.map_or(case.clone(), |cap| format!("{case}/softcap {cap}"));
        let line = vec![
            case.clone(),
            plan.to_string(),
            plan.splits().to_string(),
            format!("{:.2}", us.p50),
            format!("{:.2}", us.p90),
            format!("{rate:.0}"),
            format!("{:.1} %", 100.0 * rate / copied),
            bytes.to_string(),
        ];
        let implementation = format!("{plan} in {} splits", plan.splits());
        let entry = Entry::measured("attention", case, implementation, &us, flops);
        measured.push((line, Entry { gb_per_s: Some(rate), ..entry }));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for case in DecodeCase::defaults() {
            assert_eq!(case.to_string().parse(), Ok(case));
            let of_e4m3 = DecodeCase { kv: Dtype::E4M3, ..case };
            assert_eq!(of_e4m3.to_string().parse(), Ok(of_e4m3));
        }
        for text in [
            "99999999999x99999999999x1x9x64/full/f16",
            "",
            "1x2x3",
            "1x2:1x1x9/full/f16",
            "1x2:1x0x9x64/full/f16",
            "1x2:1x1x9x64/full/f32",
            "1x2:1x1x9x64/full/e4m3kv",
            "1x2:1x1x9x64/full/f16/e4m3",
            "1x2x1x9x64",
        ] {
            assert_eq!(text.parse::<DecodeCase>(), Err(ParseDecodeCaseError), "{text}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_visible_keys() {
        let case: DecodeCase = "2x8:2x1x100x64/full/f16".parse().unwrap();
        assert_eq!(case.bytes(), (2 * 2 * 64 * (2 * 2 * 100 + 2 * 8)) as f64);
        let of_e4m3: DecodeCase = "2x8:2x1x100x64/full/f16/e4m3kv".parse().unwrap();
        assert_eq!(of_e4m3.bytes(), (2 * 64 * (2 * 2 * 100 + 2 * 2 * 8)) as f64);
        let window: DecodeCase = "2x8:2x3x100x64/window:9,0/f16".parse().unwrap();
        assert_eq!(window.bytes(), (2 * 2 * 64 * (2 * 2 * 12 + 2 * 8 * 3)) as f64);
    }
}
