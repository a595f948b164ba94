//! `ferrotile bench rotary`: rotary embedding of Q and K and append to a cache in pages, beside a copy on the same
//! card.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use ferrotile::{
    Buffer, Dtype, F8E4M3, Float, Gpu, Layout, Result, RotaryFrequencies, RotaryPlan, RotaryScaling, RotaryTensors,
    Stream, TensorMut, TensorRef,
};
use half::{bf16, f16};

use crate::bench::decode::{copy_time, print_copy_rate, random};
use crate::bench::measure::{MeasureArgs, Timer};
use crate::bench::report::Entry;
use crate::progress;

/// Rows of a page.
const PAGE_LEN: usize = 16;

/// The head dimension, all of which is rotated.
const HEAD_DIM: usize = 128;

/// What to measure and how.
#[derive(Debug, Args)]
pub(crate) struct RotaryBenchArgs {
    /// A case BxHq:HkvxSq/dtype, such as 64x32:8x1/bf16: new rows of head dimension 128; may be repeated. With /e4m3kv
    /// at the end the cache is of E4M3.
    #[arg(long = "case", num_args = 1..)]
    cases: Vec<RotaryCase>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// One problem to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RotaryCase {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    rows: usize,
    dtype: Dtype,
    cache: Dtype,
}

/// What a case with a cache of E4M3 ends in.
const E4M3_KV: &str = "e4m3kv";

impl RotaryCase {
    /// The cases measured where none is named: one new token of Llama 2 7B and of Llama 3 8B, and a prompt.
    fn defaults() -> Vec<RotaryCase> {
        let of = |batch, kv_heads, rows| {
            let (heads, dtype, cache) = (32, Dtype::Bf16, Dtype::Bf16);
            RotaryCase { batch, heads, kv_heads, rows, dtype, cache }
        };
        let sizes = [(1, 1), (8, 1), (64, 1), (1, 4096)];
        let same = [32, 8].into_iter().flat_map(|kv_heads| sizes.map(|(batch, rows)| of(batch, kv_heads, rows)));
        let e4m3 = [(64, 1), (1, 4096)].map(|(batch, rows)| RotaryCase { cache: Dtype::E4M3, ..of(batch, 8, rows) });
        same.chain(e4m3).collect()
    }

    /// Bytes that the call reads and writes at least: Q, K and V, the rotated Q, the new rows of the cache, and one row
    /// of the tables for each position.
    fn bytes(&self) -> f64 {
        let (tokens, table_rows) = (self.batch * self.rows, self.rows);
        let read = (self.heads + 2 * self.kv_heads) * self.dtype.size_bytes();
        let written = self.heads * self.dtype.size_bytes() + 2 * self.kv_heads * self.cache.size_bytes();
        (HEAD_DIM * (tokens * (read + written) + table_rows * size_of::<f32>())) as f64
    }
}

impl fmt::Display for RotaryCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RotaryCase { batch, heads, kv_heads, rows, dtype, cache } = self;
        let of_cache = if cache == dtype { String::new() } else { format!("/{E4M3_KV}") };
        f.pad(&format!("{batch}x{heads}:{kv_heads}x{rows}/{dtype}{of_cache}"))
    }
}

/// The text is not a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected BxHq:HkvxSq/dtype with numbers above 0 whose product is below 2^24, such as 64x32:8x1/bf16 or \
     64x32:8x1/f16/e4m3kv"
)]
pub(crate) struct ParseRotaryCaseError;

impl FromStr for RotaryCase {
    type Err = ParseRotaryCaseError;

    fn from_str(text: &str) -> Result<RotaryCase, ParseRotaryCaseError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (&[shape, dtype], is_e4m3) = (match parts.as_slice() {
            [parts @ .., E4M3_KV] => (parts, true),
            parts => (parts, false),
        }) else {
            return Err(ParseRotaryCaseError);
        };
        let sizes: Vec<&str> = shape.split('x').collect();
        let &[batch, heads, rows] = sizes.as_slice() else { return Err(ParseRotaryCaseError) };
        let (heads, kv_heads) = heads.split_once(':').unwrap_or((heads, heads));
        let size = |part: &str| part.parse::<usize>().ok().filter(|&size| size > 0).ok_or(ParseRotaryCaseError);
        let [batch, heads, kv_heads, rows] = [size(batch)?, size(heads)?, size(kv_heads)?, size(rows)?];
        let of_heads = [batch, rows, heads.max(kv_heads)].into_iter().try_fold(1_usize, usize::checked_mul);
        of_heads.filter(|&rows| rows < 1 << 24).ok_or(ParseRotaryCaseError)?;
        let dtype = [Dtype::F16, Dtype::Bf16].into_iter().find(|known| known.name() == dtype);
        let dtype = dtype.ok_or(ParseRotaryCaseError)?;
        let cache = if is_e4m3 { Dtype::E4M3 } else { dtype };
        Ok(RotaryCase { batch, heads, kv_heads, rows, dtype, cache })
    }
}

/// Measures and prints.
pub(crate) fn run(args: &RotaryBenchArgs) -> anyhow::Result<()> {
    let cases = if args.cases.is_empty() { RotaryCase::defaults() } else { args.cases.clone() };
    args.measure.check_place()?;
    let gpu = args.measure.gpu()?;
    let mut timer = args.measure.timer(&gpu)?;
    let copied = print_copy_rate(&gpu, &mut timer)?;
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    let shown = progress::bar(cases.len());
    for case in &cases {
        shown.set_message(case.to_string());
        let (line, entry) = match (case.dtype, case.cache) {
            (Dtype::Bf16, Dtype::E4M3) => measure::<bf16, F8E4M3>(&gpu, &mut timer, case, copied)?,
            (Dtype::Bf16, _) => measure::<bf16, bf16>(&gpu, &mut timer, case, copied)?,
            (_, Dtype::E4M3) => measure::<f16, F8E4M3>(&gpu, &mut timer, case, copied)?,
            _ => measure::<f16, f16>(&gpu, &mut timer, case, copied)?,
        };
        lines.push(line);
        entries.push(entry);
        shown.inc(1);
    }
    drop(shown);
    let heading = ["case", "kernel", "p50 us", "p90 us", "bytes", "GB/s", "of the copy", "copy of the bytes us"];
    args.measure.report(&gpu, &heading, &lines, entries)
}

/// Q, K and V of a fused projection; Q goes to a tensor of its own, K and V to pages.
fn measure<T: Float, C: Float>(
    gpu: &Gpu,
    timer: &mut Timer,
    case: &RotaryCase,
    copied: f64,
) -> Result<(Vec<String>, Entry)> {
    let &RotaryCase { batch, heads, kv_heads, rows, dtype, cache } = case;
    let stream: &Stream = timer.stream();
    let all = heads + 2 * kv_heads;
    let qkv = random::<T>(gpu, stream, batch * rows * all * HEAD_DIM, 1)?;
    let mut q = Buffer::<T>::zeroed(gpu, batch * rows * heads * HEAD_DIM)?;
    let table_len = rows.div_ceil(PAGE_LEN) + 1;
    let pages = batch * table_len;
    let page_shape = [pages, PAGE_LEN, kv_heads, HEAD_DIM];
    let len = page_shape.iter().product();
    let (mut k_pages, mut v_pages) = (Buffer::<C>::zeroed(gpu, len)?, Buffer::<C>::zeroed(gpu, len)?);
    let frequencies = RotaryFrequencies { base: 10_000.0, rotary_dim: HEAD_DIM, scaling: RotaryScaling::None };
    let positions = table_len * PAGE_LEN;
    let (cos, sin) = frequencies.table(0..positions)?;
    let (cos, sin) = (Buffer::upload_blocking(stream, &cos)?, Buffer::upload_blocking(stream, &sin)?);
    let table: Vec<i32> = (0..pages as i32).rev().collect();
    let table = Buffer::upload_blocking(stream, &table)?;
    let seqlens = Buffer::upload_blocking(stream, &vec![3_i32; batch])?;
    let plan = RotaryPlan::new(gpu, dtype, cache)?;
    let part = |first: usize, heads: usize| {
        let of_row = all * HEAD_DIM;
        let strides = [rows * of_row, of_row, HEAD_DIM, 1].map(|stride| stride as i64);
        TensorRef::strided(&qkv, first * HEAD_DIM, [batch, rows, heads, HEAD_DIM], strides)
    };
    let us = timer.microseconds(false, |stream| {
        let shape = [positions, HEAD_DIM / 2];
        let tensors = RotaryTensors::new(Layout::Bshd)
            .q_to(part(0, heads)?, TensorMut::contiguous(&mut q, [batch, rows, heads, HEAD_DIM])?)
            .k(part(heads, kv_heads)?)
            .v(part(heads + kv_heads, kv_heads)?)
            .rotary(TensorRef::contiguous(&cos, shape)?, TensorRef::contiguous(&sin, shape)?)
            .cache_seqlens(TensorRef::contiguous(&seqlens, [batch])?)
            .paged_cache(
                [TensorMut::contiguous(&mut k_pages, page_shape)?, TensorMut::contiguous(&mut v_pages, page_shape)?],
                TensorRef::contiguous(&table, [batch, table_len])?,
            );
        plan.run(stream, tensors)
    })?;
    let (bytes, rate) = (case.bytes(), case.bytes() / us.p50 / 1e3);
    // What is copied is read and written.
    let copy_us = copy_time(gpu, timer, bytes as usize / 2)?;
    let line = vec![
        case.to_string(),
        plan.to_string(),
        format!("{:.2}", us.p50),
        format!("{:.2}", us.p90),
        format!("{bytes:.0}"),
        format!("{rate:.0}"),
        format!("{:.1} %", 100.0 * rate / copied),
        format!("{copy_us:.2}"),
    ];
    let entry = Entry::measured("rotary", case.to_string(), plan.to_string(), &us, 0.0);
    Ok((line, Entry { gb_per_s: Some(rate), ..entry }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for case in RotaryCase::defaults() {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for text in ["", "1x2", "1x2:1/f16", "0x2:1x1/f16", "1x2:1x1/f32", "1x2:1x1/f16/e4m3", "99999x99999x99999/f16"]
        {
            assert_eq!(text.parse::<RotaryCase>(), Err(ParseRotaryCaseError), "{text}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_new_rows() {
        let case: RotaryCase = "2x4:1x3/f16".parse().unwrap();
        assert_eq!(case.bytes(), (128 * (6 * 2 * (4 + 2 + 4 + 2) + 3 * 4)) as f64);
        let case: RotaryCase = "2x4:1x3/f16/e4m3kv".parse().unwrap();
        assert_eq!(case.bytes(), (128 * (6 * (2 * (4 + 2 + 4) + 2) + 3 * 4)) as f64);
    }
}
