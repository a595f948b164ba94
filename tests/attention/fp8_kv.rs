//! Decoding with K and V of E4M3 beside a Q and an O of f16 or bf16.

use ferrotile::reference::AttentionTerms;
use ferrotile::{
    Arch, AttentionPlan, AttentionTensors, Buffer, Descales, Dtype, Error, F8E4M3, Float, Gpu, Layout, Mask,
    PagedSizes, PagedTensors, TensorMut, TensorRef, attention, paged_attention, reference, tolerance,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array1, Array2, Array4, ArrayView2, s};
use rand::seq::SliceRandom;
use tests::catalogue::config_of;
use tests::guard::{Guarded, Poison};
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::{Trials, expect_error, is_small, shapes};
use variants::attention::DECODE_ROWS;

use crate::case::{Case, Outcome, Output, dense};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for head_dim in [64, 128, 256, 40, 88, 208] {
        let name = format!("fp8_kv/matches_the_reference/d{head_dim}");
        trials.both(&name, &head_dim, matches_reference::<f16>, matches_reference::<bf16>);
    }
    for page_len in [16, 48, 256] {
        let name = format!("fp8_kv/lengths_at_every_edge/pages_of_{page_len}");
        trials.both(&name, &page_len, pages::<f16>, pages::<bf16>);
    }
    trials.both("fp8_kv/every_element_is_exact", &(), every_element::<f16>, every_element::<bf16>);
    trials.both("fp8_kv/packs_heads", &(), packs_heads::<f16>, packs_heads::<bf16>);
    trials.both("fp8_kv/sinks", &(), sinks::<f16>, sinks::<bf16>);
    trials.both("fp8_kv/extremes", &(), extremes::<f16>, extremes::<bf16>);
    trials.typed("fp8_kv/queries_beyond_f16", "bf16", &(), wide_queries);
    trials.both("fp8_kv/hidden_keys_are_not_seen", &(), hidden_keys::<f16>, hidden_keys::<bf16>);
    trials.both("fp8_kv/empty_tensors", &(), empty::<f16>, empty::<bf16>);
    trials.both("fp8_kv/places_do_not_matter", &(), places::<f16>, places::<bf16>);
    trials.both("fp8_kv/repeated_runs_are_the_same", &(), repeated_runs::<f16>, repeated_runs::<bf16>);
    trials.both("fp8_kv/refusals", &(), refusals::<f16>, refusals::<bf16>);
}

/// Where K and V lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// Dense, `[batch, head, key, element]`.
    Rows,
    /// Each row followed by something else, from an odd address on.
    Unaligned,
    /// In pages of so many keys, `[page, key, head, element]`.
    Pages(usize),
}

/// A problem on the host.
#[derive(Clone)]
struct Cached<T> {
    /// That of the longest batch entry.
    case: Case,
    q: Vec<T>,
    /// `[batch, head, key, element]`.
    k: Vec<F8E4M3>,
    v: Vec<F8E4M3>,
    /// Of K and of V, `[batch or 1, heads or 1]`.
    factors: [Option<Array2<f64>>; 2],
    /// Keys of each batch entry.
    lens: Vec<usize>,
    sink: Option<Vec<f32>>,
}

/// No factors, one for each tensor, or one for each head, of any sign.
fn factors(case: &Case, seed: u64) -> [Option<Array2<f64>>; 2] {
    let of = |batch: usize, heads: usize, first: f64| {
        Array2::from_shape_fn((batch, heads), |(b, h)| first * (1.0 + 0.5 * b as f64 + 0.25 * h as f64))
    };
    let [batch, heads] = [case.sizes.batch, case.sizes.kv_heads];
    match seed % 4 {
        0 => [None, None],
        1 => [Some(of(1, 1, -0.5)), Some(of(1, 1, 3.0))],
        2 => [Some(of(batch, heads, 0.75)), Some(of(1, heads, -0.125))],
        _ => [None, Some(of(batch, 1, 2.0))],
    }
}

impl<T: Half> Cached<T> {
    /// Elements of deviation 1; all batch entries are as long.
    fn normal(case: Case, seed: u64) -> Cached<T> {
        let mut random = inputs::random(seed);
        let q = inputs::normal(&mut random, case.q_shape().iter().product(), 1.0);
        let count: usize = case.kv_shape().iter().product();
        let [k, v] = [0, 1]
            .map(|_| (0..count).map(|_| F8E4M3::from_f64(inputs::normal_number(&mut random))).collect::<Vec<F8E4M3>>());
        let (factors, lens) = (factors(&case, seed), vec![case.sizes.k_len; case.sizes.batch]);
        Cached { case, q, k, v, factors, lens, sink: None }
    }

    fn request(&self, splits: usize) -> Request {
        let Case { mask, scale, .. } = self.case;
        let (kv, splits) = (Some(Dtype::E4M3), Some(splits));
        Request { mask, scale, kv, splits, max_workspace_bytes: 1 << 26, ..Request::new(Layout::Bhsd) }
    }

    /// Shape, offset and strides of K and V, and where the keys of each batch entry start: the first element of one.
    fn place(&self, place: Place) -> Placed {
        let [batch, heads, k_len, head_dim] = self.case.kv_shape();
        let row = if place == Place::Unaligned { head_dim + 5 } else { head_dim };
        let Place::Pages(page_len) = place else {
            let strides = [heads * k_len * row, k_len * row, row, 1];
            let offset = if place == Place::Unaligned { 3 } else { 0 };
            let len = offset + batch * heads * k_len * row;
            return Placed { shape: self.case.kv_shape(), offset, strides, len, table: Vec::new(), table_len: 0 };
        };
        let table_len = k_len.div_ceil(page_len) + 1;
        let used = |len: &usize| len.div_ceil(page_len);
        let pages = self.lens.iter().map(used).sum::<usize>() + 2;
        let mut free: Vec<i32> = (0..pages as i32).collect();
        free.shuffle(&mut inputs::random(5));
        let mut page = |index, used| if index < used { free.pop().expect("there are more") } else { i32::MIN };
        let rows = self.lens.iter().map(used);
        let table = rows.flat_map(|used| (0..table_len).map(|index| page(index, used)).collect::<Vec<_>>()).collect();
        let strides = [page_len * heads * row, heads * row, row, 1];
        let shape = [pages, page_len, heads, head_dim];
        Placed { shape, offset: 0, strides, len: pages * page_len * heads * row, table, table_len }
    }

    /// K or V as it lies, with NaN wherever there is no key.
    fn stored(&self, values: &[F8E4M3], placed: &Placed) -> Vec<F8E4M3> {
        let [_, heads, k_len, head_dim] = self.case.kv_shape();
        let mut stored = vec![F8E4M3::poison(); placed.len];
        for (entry, &len) in self.lens.iter().enumerate() {
            for (head, key) in (0..heads).flat_map(|head| (0..len).map(move |key| (head, key))) {
                let index = if placed.table_len == 0 {
                    [entry, head, key]
                } else {
                    let page_len = placed.shape[1];
                    let page = placed.table[entry * placed.table_len + key / page_len];
                    [page as usize, key % page_len, head]
                };
                let start = placed.offset + index.iter().zip(placed.strides).map(|(i, step)| i * step).sum::<usize>();
                let source = ((entry * heads + head) * k_len + key) * head_dim;
                stored[start..start + head_dim].copy_from_slice(&values[source..source + head_dim]);
            }
        }
        stored
    }

    fn run(&self, gpu: &Gpu, place: Place, splits: usize) -> Result<Output<T>, Failed> {
        let stream = gpu.new_stream()?;
        let placed = self.place(place);
        let upload = |values: &[F8E4M3]| Buffer::upload_blocking(&stream, values);
        let (k, v) = (upload(&self.stored(&self.k, &placed))?, upload(&self.stored(&self.v, &placed))?);
        let q = Buffer::upload_blocking(&stream, &self.q)?;
        let mut buffers = Vec::new();
        for factors in &self.factors {
            let values: Vec<f32> = factors.iter().flatten().map(|&factor| factor as f32).collect();
            buffers.push(Buffer::upload_blocking(&stream, if values.is_empty() { &[f32::NAN] } else { &values })?);
        }
        let factors = |index: usize| {
            let factors = self.factors[index].as_ref();
            factors.map(|factors| TensorRef::contiguous(&buffers[index], factors.dim().into())).transpose()
        };
        let descales = Descales { q: None, k: factors(0)?, v: factors(1)? };
        let sinks = Buffer::upload_blocking(&stream, self.sink.as_deref().unwrap_or(&[f32::NAN]))?;
        let sink = self.sink.as_ref().map(|_| TensorRef::contiguous(&sinks, [sinks.len()])).transpose()?;
        let (q_shape, lse_shape) = (self.case.q_shape(), self.case.lse_shape());
        let mut out = Guarded::<T>::new(gpu, &stream, q.len())?;
        let mut lse = Guarded::<f32>::new(gpu, &stream, lse_shape.iter().product())?;
        let (out_offset, lse_offset) = (out.offset(), lse.offset());
        let request = self.request(splits);
        let out_view = TensorMut::strided(out.buffer(), out_offset, q_shape, dense(q_shape))?;
        let lse_view = TensorMut::strided(lse.buffer(), lse_offset, lse_shape, dense(lse_shape))?;
        let strides = placed.strides.map(|stride| stride as i64);
        let kv = |buffer| TensorRef::strided(buffer, placed.offset, placed.shape, strides);
        let q = TensorRef::contiguous(&q, q_shape)?;
        if placed.table_len == 0 {
            let lse = Some(lse_view);
            let tensors =
                AttentionTensors { descales, sink, lse, ..AttentionTensors::new(q, kv(&k)?, kv(&v)?, out_view) };
            if splits == 1 {
                attention(&stream, tensors, &request.params(), &request.options())?;
            } else {
                let plan = request.plan(gpu, T::DTYPE, self.case.sizes)?;
                let mut workspace = poisoned(gpu, &plan)?;
                let bytes = workspace.len();
                let workspace = Some(TensorMut::contiguous(&mut workspace, [bytes])?);
                plan.run(&stream, AttentionTensors { workspace, ..tensors })?;
            }
        } else {
            let table = Buffer::upload_blocking(&stream, &placed.table)?;
            let lens: Vec<i32> = self.lens.iter().map(|&len| len as i32).collect();
            let lens = Buffer::upload_blocking(&stream, &lens)?;
            let table = TensorRef::contiguous(&table, [self.lens.len(), placed.table_len])?;
            let lens = TensorRef::contiguous(&lens, [self.lens.len()])?;
            let (lse, pages) = (Some(lse_view), [kv(&k)?, kv(&v)?]);
            let tensors = PagedTensors { descales, sink, lse, ..PagedTensors::new(q, pages, table, lens, out_view) };
            if splits == 1 {
                paged_attention(&stream, tensors, &request.params(), &request.options())?;
            } else {
                let plan = request.plan(gpu, T::DTYPE, tensors.sizes(Layout::Bhsd))?;
                let mut workspace = poisoned(gpu, &plan)?;
                let bytes = workspace.len();
                let workspace = Some(TensorMut::contiguous(&mut workspace, [bytes])?);
                plan.run(&stream, PagedTensors { workspace, ..tensors })?;
            }
        }
        Ok(Output { out: out.read(&stream)?, lse: lse.read(&stream)? })
    }

    /// Compares each element of each batch entry with the exact result, by its own limit.
    fn check_output(&self, output: &Output<T>) -> Result<(), String> {
        let array = |values: Vec<f64>, shape| Array4::from_shape_vec(shape, values).expect("elements fill the shape");
        let wide = |values: &[F8E4M3]| array(values.iter().map(|x| x.to_f64()).collect(), self.case.kv_shape());
        let (k, v) = (wide(&self.k), wide(&self.v));
        let q = array(self.q.iter().map(|x| x.to_f64()).collect(), self.case.q_shape());
        let sink = self.sink.as_ref().map(|sink| Array1::from_iter(sink.iter().map(|&x| f64::from(x))));
        let sink = sink.as_ref().map(|sink| sink.view());
        let terms = AttentionTerms { sink, ..AttentionTerms::new(self.case.mask, self.case.scale()) };
        let parts = self.lens.len();
        for (entry, &len) in self.lens.iter().enumerate() {
            let of_entry = |x: &Array4<f64>, rows: usize| x.slice(s![entry..=entry, .., ..rows, ..]).to_owned();
            let stored = [of_entry(&q, self.case.sizes.q_len), of_entry(&k, len), of_entry(&v, len)];
            let factors = self.factors.each_ref().map(|factors| {
                let factors = factors.as_ref()?;
                let row = entry % factors.nrows();
                Some(factors.slice(s![row..=row, ..]))
            });
            let dequantized = |x: &Array4<f64>, factors: Option<ArrayView2<'_, f64>>| {
                factors.map_or_else(|| x.clone(), |factors| reference::dequantize(x.view(), factors))
            };
            let (k, v) = (dequantized(&stored[1], factors[0]), dequantized(&stored[2], factors[1]));
            let (out, lse) = reference::attention_with(stored[0].view(), k.view(), v.view(), &terms);
            let views = stored.each_ref().map(|x| x.view());
            let exact = (out.view(), lse.view());
            let limits = tolerance::e4m3_kv_attention_limits(views, &terms, factors, T::DTYPE, exact);
            let (rows, elements) = (output.lse.len() / parts, output.out.len() / parts);
            let got_out = output.out[entry * elements..][..elements].iter().map(|x| x.to_f64());
            let got_lse = output.lse[entry * rows..][..rows].iter().map(|&x| f64::from(x));
            within(&format!("O of entry {entry}"), got_out, out.iter(), limits.out.iter())?;
            within(&format!("LSE of entry {entry}"), got_lse, lse.iter(), limits.lse.iter())?;
        }
        Ok(())
    }

    /// Runs and checks it in these places and numbers of splits.
    fn check(&self, gpu: &Gpu, places: &[Place], splits: &[usize]) -> Outcome {
        for &place in places {
            for &splits in splits {
                let checked = self.check_output(&self.run(gpu, place, splits)?);
                let factors = &self.factors;
                checked.map_err(|text| format!("{}, {place:?}, {splits} splits, {factors:?}: {text}", self.case))?;
            }
        }
        Ok(())
    }
}

/// The workspace of a plan, of poison.
fn poisoned(gpu: &Gpu, plan: &AttentionPlan) -> ferrotile::Result<Buffer<u8>> {
    let stream = gpu.new_stream()?;
    let mut workspace = Buffer::zeroed(gpu, plan.workspace_bytes())?;
    workspace.fill_bytes(&stream, 0xFF)?;
    stream.synchronize()?;
    Ok(workspace)
}

/// Where K and V of a problem lie.
struct Placed {
    shape: [usize; 4],
    offset: usize,
    strides: [usize; 4],
    /// Elements of the storage.
    len: usize,
    /// The block table, of rows of this length; 0 without pages.
    table: Vec<i32>,
    table_len: usize,
}

/// Whether each number is within its limit of the exact one.
fn within<'a>(
    name: &str,
    got: impl Iterator<Item = f64>,
    exact: impl Iterator<Item = &'a f64>,
    limits: impl Iterator<Item = &'a f64>,
) -> Result<(), String> {
    for (index, ((got, &exact), &limit)) in got.zip(exact).zip(limits).enumerate() {
        if !limit.is_finite() || tolerance::element_error(got, exact) > limit {
            return Err(format!("{name}: element {index} is {got:e}, expected {exact:e}, limit {limit:e}"));
        }
    }
    Ok(())
}

/// Whether the device has the kernels; where it has none, that plans say so.
fn is_compiled<T: Half>(gpu: &Gpu) -> Result<bool, Failed> {
    let cached = Cached::<T>::normal(Case::new(1, 1, 1, 16, 64, Mask::Full), 0);
    match cached.request(1).plan(gpu, T::DTYPE, cached.case.sizes) {
        Ok(plan) if gpu.arch() >= Arch::Sm89 && config_of(&plan).has_e4m3_kv() => Ok(true),
        Err(Error::Unsupported { remedy, .. }) if gpu.arch() == Arch::Sm80 && remedy.contains("sm_89") => Ok(false),
        other => Err(format!("{other:?}").into()),
    }
}

fn matches_reference<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    let mut seed = 0;
    let lens: &[usize] = if is_small(gpu) { &[1, 63, 130] } else { &[1, 15, 16, 17, 63, 64, 65, 300, 1031] };
    for &k_len in lens {
        for (q_len, mask) in [(1, Mask::Full), (5, Mask::Causal), (DECODE_ROWS, Mask::Window { left: 40, right: 2 })] {
            seed += 1;
            let case = Case::new(2, 1, q_len, k_len, head_dim, mask).grouped(4, 2);
            Cached::<T>::normal(case, seed).check(gpu, &[Place::Rows], &[1, 3])?;
        }
    }
    Ok(())
}

fn pages<T: Half>(gpu: &Gpu, &page_len: &usize) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for (head_dim, q_len, seed) in [(64, 1, 1), (128, 3, 2)] {
        let mut lens = shapes::around(&[page_len]);
        lens.extend([0, 2 * page_len + 1]);
        let longest = 2 * page_len + 1;
        let case = Case::new(lens.len(), 1, q_len, longest, head_dim, Mask::Causal).grouped(4, 2);
        let cached = Cached { lens, ..Cached::<T>::normal(case, seed) };
        cached.check(gpu, &[Place::Pages(page_len)], &[1, 3])?;
    }
    Ok(())
}

/// All 256 elements, as V of one key and as K beside queries of one element that is 1.
fn every_element<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for head_dim in [64, 128, 256] {
        for first in (0..256).step_by(head_dim) {
            let case = Case::new(1, 1, 16, 1, head_dim, Mask::Full).grouped(head_dim / 16, 1).scaled(1.0);
            let mut cached = Cached::<T>::normal(case, 0);
            let elements: Vec<F8E4M3> = (0..head_dim).map(|column| F8E4M3::from_bits((first + column) as u8)).collect();
            let is_nan = |column: usize| elements[column].to_f64().is_nan();
            for (row, query) in cached.q.chunks_mut(head_dim).enumerate() {
                query.fill(T::from_f64(0.0));
                query[row] = T::from_f64(1.0);
            }
            let finite = |x: &F8E4M3| if x.to_f64().is_nan() { F8E4M3::default() } else { *x };
            cached.k = elements.iter().map(finite).collect();
            cached.v = elements.clone();
            let output = cached.run(gpu, Place::Rows, 1)?;
            for (row, (got, lse)) in output.out.chunks(head_dim).zip(&output.lse).enumerate() {
                for (column, got) in got.iter().enumerate() {
                    let expected = elements[column].to_f64();
                    if got.to_f64() != expected && !(is_nan(column) && got.to_f64().is_nan()) {
                        return Err(format!("{case}: row {row}, column {column} is {got:?}, not {expected}").into());
                    }
                }
                let score = finite(&elements[row]).to_f64();
                if (f64::from(*lse) - score).abs() > 1e-6 * score.abs() {
                    return Err(format!("{case}: the LSE of row {row} is {lse}, not {score}").into());
                }
            }
            // NaN in one column of K is NaN in all scores.
            cached.k[head_dim / 2] = F8E4M3::poison();
            let output = cached.run(gpu, Place::Rows, 1)?;
            if let Some(got) = output.out.iter().find(|got| !got.to_f64().is_nan()) {
                return Err(format!("{case}: {got:?} of a key with NaN").into());
            }
        }
    }
    Ok(())
}

fn packs_heads<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for (seed, (q_heads, kv_heads)) in [(1, 1), (6, 2), (7, 1), (16, 2), (33, 1)].into_iter().enumerate() {
        let case = Case::new(2, 1, 3, 77, 64, Mask::Causal).grouped(q_heads, kv_heads);
        Cached::<T>::normal(case, seed as u64).check(gpu, &[Place::Rows, Place::Pages(32)], &[1, 4])?;
    }
    Ok(())
}

fn sinks<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for (head_dim, k_len) in [(64, 100), (128, 33), (256, 0)] {
        let case = Case::new(2, 1, 2, k_len, head_dim, Mask::Causal).grouped(6, 2);
        let sink = Some(vec![0.5, -2.0, f32::NEG_INFINITY, 30.0, 3.0, -80.0]);
        Cached { sink, ..Cached::<T>::normal(case, 2) }.check(gpu, &[Place::Rows, Place::Pages(16)], &[1, 3])?;
    }
    Ok(())
}

/// Elements of 448, factors from 0 to 1e4, scores from next to nothing to 1e9.
fn extremes<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    let factor = |x: f64| Some(Array2::from_elem((1, 1), x));
    for of in [[1e-6, 1e2], [1e4, 1e-6], [0.0, 1.0], [-1e-3, -0.0]] {
        let case = Case::new(1, 1, 2, 150, 64, Mask::Causal).grouped(4, 2);
        let mut cached = Cached { factors: of.map(factor), ..Cached::<T>::normal(case, 17) };
        cached.check(gpu, &[Place::Rows], &[1, 3])?;
        for (index, x) in cached.k.iter_mut().chain(&mut cached.v).enumerate() {
            *x = F8E4M3::from_f64(if index % 3 == 0 { 448.0 } else { -448.0 });
        }
        cached.check(gpu, &[Place::Rows], &[1, 3])?;
    }
    Ok(())
}

/// Elements of Q whose exponents f16 has not, on keys that are 0 where the largest are.
fn wide_queries(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<bf16>(gpu)? {
        return Ok(());
    }
    for (large, small) in [(1e30, 1.0), (1.0, 1e-30), (1e15, 1e-15)] {
        let case = Case::new(1, 2, 3, 90, 128, Mask::Full).scaled((1.0 / (small * 12.0)) as f32);
        let mut cached = Cached::<bf16>::normal(case, 4);
        for (index, x) in cached.q.iter_mut().enumerate() {
            *x = bf16::from_f64(if index % 2 == 0 { large } else { x.to_f64() * small });
        }
        cached.k.iter_mut().step_by(2).for_each(|x| *x = F8E4M3::default());
        cached.check(gpu, &[Place::Rows], &[1, 2])?;
    }
    Ok(())
}

/// NaN in keys of steps that no row sees, and in hidden rows of K in other steps, changes nothing.
fn hidden_keys<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for head_dim in [64, 128] {
        // The last row is key 199, so keys from 157 on are seen, of the steps from 144 on.
        let case = Case::new(1, 2, 3, 200, head_dim, Mask::Window { left: 40, right: 0 });
        let cached = Cached::<T>::normal(case, 2);
        for splits in [1, 3] {
            let expected = cached.run(gpu, Place::Rows, splits)?;
            cached.check_output(&expected)?;
            let mut hidden = cached.clone();
            for head in 0..2 {
                let of_head = head * 200 * head_dim;
                hidden.k[of_head..of_head + 157 * head_dim].fill(F8E4M3::poison());
                hidden.v[of_head..of_head + 144 * head_dim].fill(F8E4M3::poison());
            }
            hidden.run(gpu, Place::Rows, splits)?.check_same(&case, &expected)?;
        }
    }
    Ok(())
}

fn empty<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for (batch, heads, q_len, k_len) in [(0, 2, 5, 5), (2, 0, 5, 5), (2, 2, 0, 5), (2, 2, 5, 0), (0, 0, 0, 0)] {
        let case = Case::new(batch, heads, q_len, k_len, 128, Mask::Causal);
        Cached::<T>::normal(case, 0).check(gpu, &[Place::Rows], &[1, 3])?;
    }
    Ok(())
}

/// The same bits wherever K and V lie.
fn places<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for (head_dim, splits) in [(64, 1), (72, 2), (128, 3), (256, 1)] {
        let case = Case::new(2, 1, 2, 100, head_dim, Mask::Causal).grouped(4, 2);
        let cached = Cached::<T>::normal(case, 2);
        let expected = cached.run(gpu, Place::Rows, splits)?;
        for place in [Place::Unaligned, Place::Pages(16), Place::Pages(48)] {
            let same = cached.run(gpu, place, splits)?.check_same(&case, &expected);
            same.map_err(|failure| format!("{case}, {place:?}: {}", failure.message().unwrap_or("failed")))?;
        }
    }
    Ok(())
}

fn repeated_runs<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    for (head_dim, splits) in [(64, 3), (128, 1), (256, 2)] {
        let case = Case::new(2, 1, 3, 333, head_dim, Mask::Causal).grouped(4, 2);
        let cached = Cached::<T>::normal(case, 1);
        let first = cached.run(gpu, Place::Rows, splits)?;
        let repeats = if is_small(gpu) { 1 } else { 200 };
        (0..repeats).try_for_each(|_| cached.run(gpu, Place::Rows, splits)?.check_same(&case, &first))?;
    }
    Ok(())
}

/// What no kernel takes is refused by name.
fn refusals<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    if !is_compiled::<T>(gpu)? {
        return Ok(());
    }
    let case = Case::new(1, 1, 2, 32, 64, Mask::Full).grouped(4, 2);
    let request = Request { kv: Some(Dtype::E4M3), ..Request::new(Layout::Bhsd) };
    let is_unsupported =
        |error: &Error, name: &str| matches!(error, Error::Unsupported { feature, .. } if feature.contains(name));
    let plan = |request: &Request, case: &Case| request.plan(gpu, T::DTYPE, case.sizes);
    let many = Case::new(1, 2, DECODE_ROWS + 1, 32, 64, Mask::Full);
    expect_error(plan(&request, &many), |error| is_unsupported(error, "17 query rows"))?;
    let capped = Request { softcap: Some(20.0), ..request.clone() };
    expect_error(plan(&capped, &case), |error| is_unsupported(error, "softcap"))?;
    let pages =
        PagedSizes { batch: 1, q_heads: 4, kv_heads: 2, q_len: 1, head_dim: 64, pages: 2, page_len: 16, table_len: 2 };
    expect_error(capped.plan(gpu, T::DTYPE, pages), |error| is_unsupported(error, "softcap"))?;
    for kv in [Dtype::E5M2, if T::DTYPE == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 }] {
        let of_others = Request { kv: Some(kv), ..request.clone() };
        expect_error(plan(&of_others, &case), |error| {
            matches!(error, Error::Argument { argument: "element type of K and V", .. })
        })?;
    }
    let of_f32 = Request { out: Some(Dtype::F32), ..request.clone() };
    expect_error(plan(&of_f32, &case), |error| matches!(error, Error::Argument { argument: "element type of O", .. }))?;

    let stream = gpu.new_stream()?;
    let q = Buffer::<T>::zeroed(gpu, 4 * 2 * 64)?;
    let (kv, halves) = (Buffer::<F8E4M3>::zeroed(gpu, 2 * 32 * 64)?, Buffer::<T>::zeroed(gpu, 2 * 32 * 64)?);
    let numbers = Buffer::<f32>::zeroed(gpu, 8)?;
    let q = TensorRef::contiguous(&q, case.q_shape())?;
    let kv = TensorRef::contiguous(&kv, case.kv_shape())?;
    let halves = TensorRef::contiguous(&halves, case.kv_shape())?;
    let of = |shape: [usize; 2]| TensorRef::strided(&numbers, 0, shape, [shape[1] as i64, 1]);
    let mut out = Guarded::<T>::new(gpu, &stream, 4 * 2 * 64)?;
    let offset = out.offset();
    let mut call = |descales: Descales<'_>| {
        let out = TensorMut::strided(out.buffer(), offset, case.q_shape(), dense(case.q_shape()))?;
        let tensors = AttentionTensors { descales, ..AttentionTensors::new(q, kv, kv, out) };
        attention(&stream, tensors, &request.params(), &request.options())
    };
    expect_error(call(Descales { q: Some(of([1, 1])?), ..Descales::NONE }), |error| {
        matches!(error, Error::Argument { argument: "descale factors of Q", .. })
    })?;
    for (of_k, shape) in [(true, [1, 4]), (true, [2, 1]), (false, [1, 3])] {
        let (factors, name) = (Some(of(shape)?), if of_k { "of K" } else { "of V" });
        let descales =
            if of_k { Descales { k: factors, ..Descales::NONE } } else { Descales { v: factors, ..Descales::NONE } };
        expect_error(call(descales), |error| matches!(error, Error::Shape { tensor, .. } if tensor.contains(name)))?;
    }
    let plan = plan(&request, &case)?;
    let view = TensorMut::strided(out.buffer(), offset, case.q_shape(), dense(case.q_shape()))?;
    let refused = plan.run(&stream, AttentionTensors::new(q, halves, halves, view));
    expect_error(refused, |error| matches!(error, Error::Argument { argument: "K", .. }))?;
    out.check_untouched(&stream)
}
