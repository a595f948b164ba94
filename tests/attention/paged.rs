//! Keys and values in pages.

use ferrotile::{
    AttentionOptions, AttentionParams, AttentionTensors, Buffer, Error, Gpu, Layout, Mask, PagedSizes, PagedTensors,
    TensorMut, TensorRef, paged_attention,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use rand::seq::SliceRandom;
use tests::compare;
use tests::expect_error;
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::shapes;
use variants::attention::{DECODE_ROWS, MAX_PAGE_LEN};

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Output, dense};
use crate::scores::Terms;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for page_len in [16, 32, 48, 128, MAX_PAGE_LEN] {
        let name = format!("paged/lengths_at_every_edge/pages_of_{page_len}");
        trials.both(&name, &page_len, edges::<f16>, edges::<bf16>);
    }
    for head_dim in [64, 128, 256, 72] {
        let name = format!("paged/masks_and_rows/d{head_dim}");
        trials.both(&name, &head_dim, masks_and_rows::<f16>, masks_and_rows::<bf16>);
        trials.both(&format!("paged/softcaps/d{head_dim}"), &head_dim, softcaps::<f16>, softcaps::<bf16>);
        trials.both(&format!("paged/biases/d{head_dim}"), &head_dim, biases::<f16>, biases::<bf16>);
    }
    trials.both("paged/is_the_same_as_keys_in_a_row", &(), same_as_dense::<f16>, same_as_dense::<bf16>);
    trials.both("paged/strides_do_not_matter", &(), strides::<f16>, strides::<bf16>);
    trials.both("paged/tables_that_name_no_page_make_nan", &(), wrong_tables::<f16>, wrong_tables::<bf16>);
    trials.both("paged/tables_are_validated_on_request", &(), validated::<f16>, validated::<bf16>);
    trials.both("paged/refusals", &(), refusals::<f16>, refusals::<bf16>);
}

/// How pages lie in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// `[page, row, head, element]`.
    RowsFirst,
    /// `[page, head, row, element]`.
    HeadsFirst,
    /// As the first, each row followed by a few elements of something else, from an odd address on.
    Unaligned,
}

impl Order {
    /// Offset and strides of page, row, head and element, and the elements that a tensor takes.
    fn place(self, [pages, page_len, heads, head_dim]: [usize; 4]) -> (usize, [i64; 4], usize) {
        let (offset, row) = if self == Order::Unaligned { (3, head_dim + 3) } else { (0, head_dim) };
        let strides = match self {
            Order::HeadsFirst => [heads * page_len * row, row, page_len * row, 1],
            _ => [page_len * heads * row, heads * row, row, 1],
        };
        (offset, strides.map(|stride| stride as i64), offset + pages * page_len * heads * row)
    }
}

/// A problem in pages on the host.
#[derive(Clone)]
struct Paged<T> {
    /// The longest batch entry.
    case: Case,
    inputs: Inputs<T>,
    lens: Vec<i32>,
    problem: PagedSizes,
    order: Order,
    k: Vec<T>,
    v: Vec<T>,
    table: Vec<i32>,
    terms: Terms<T>,
}

impl<T: Half> Paged<T> {
    /// Puts the keys of the case, `lens` of them for each batch entry, into shuffled pages. Other pages are poison, and
    /// so is what is beyond the last key of a page. Entries of the table that are not in use name no page.
    fn new(case: Case, lens: &[usize], page_len: usize, order: Order, seed: u64) -> Paged<T> {
        let inputs = Inputs::<T>::normal(&case, seed);
        let [batch, heads, k_len, head_dim] = case.kv_shape();
        let table_len = k_len.div_ceil(page_len) + 1;
        let used: usize = lens.iter().map(|len| len.div_ceil(page_len)).sum();
        let pages = used + 3;
        let mut free: Vec<i32> = (0..pages as i32).collect();
        free.shuffle(&mut inputs::random(seed));
        let shape = [pages, page_len, heads, head_dim];
        let (offset, strides, len) = order.place(shape);
        let (mut k, mut v) = (vec![T::poison(); len], vec![T::poison(); len]);
        let mut table = Vec::new();
        for (entry, &len) in lens.iter().enumerate() {
            let first = table.len();
            for index in 0..table_len {
                let unused = [-1, pages as i32, i32::MAX, i32::MIN][index % 4];
                table.push(if index < len.div_ceil(page_len) { free.pop().expect("there are more") } else { unused });
            }
            for (head, key) in (0..heads).flat_map(|head| (0..len).map(move |key| (head, key))) {
                let page = table[first + key / page_len] as usize;
                let steps = [page, key % page_len, head];
                let start =
                    offset + steps.iter().zip(strides).map(|(&step, stride)| step * stride as usize).sum::<usize>();
                let source = ((entry * heads + head) * k_len + key) * head_dim;
                k[start..start + head_dim].copy_from_slice(&inputs.k[source..source + head_dim]);
                v[start..start + head_dim].copy_from_slice(&inputs.v[source..source + head_dim]);
            }
        }
        let problem = PagedSizes {
            batch,
            q_heads: case.sizes.q_heads,
            kv_heads: heads,
            q_len: case.sizes.q_len,
            head_dim,
            pages,
            page_len,
            table_len,
        };
        Paged {
            case,
            inputs,
            lens: lens.iter().map(|&len| len as i32).collect(),
            problem,
            order,
            k,
            v,
            table,
            terms: Terms::NONE,
        }
    }

    fn options(&self, splits: usize) -> Request {
        let Case { mask, scale, .. } = self.case;
        Request {
            mask,
            scale,
            softcap: self.terms.softcap,
            bias: self.terms.bias.is_some(),
            splits: Some(splits),
            max_workspace_bytes: 1 << 26,
            ..Request::new(Layout::Bhsd)
        }
    }

    fn run(&self, gpu: &Gpu, splits: usize) -> Result<Output<T>, Failed> {
        let stream = gpu.new_stream()?;
        let (offset, strides, _) = self.order.place(self.problem.kv_shape());
        let q = Buffer::upload_blocking(&stream, &self.inputs.q)?;
        let (k, v) = (Buffer::upload_blocking(&stream, &self.k)?, Buffer::upload_blocking(&stream, &self.v)?);
        let (table, lens) =
            (Buffer::upload_blocking(&stream, &self.table)?, Buffer::upload_blocking(&stream, &self.lens)?);
        let terms = self.terms.upload(gpu)?;
        let mut out = Guarded::<T>::new(gpu, &stream, q.len())?;
        let mut lse = Guarded::<f32>::new(gpu, &stream, self.case.lse_shape().iter().product())?;
        let (out_offset, lse_offset) = (out.offset(), lse.offset());
        let [_, heads, rows, columns] = self.case.q_shape().map(|size| size as i64);
        let out_strides = [heads * rows * columns, rows * columns, columns, 1];
        let options = self.options(splits);
        let plan = options.plan(gpu, T::DTYPE, self.problem)?;
        let bytes = plan.workspace_bytes();
        let mut workspace = Buffer::<u8>::zeroed(gpu, bytes)?;
        workspace.fill_bytes(&stream, 0xFF)?;
        let pages = |buffer| TensorRef::strided(buffer, offset, self.problem.kv_shape(), strides);
        let mut tensors = PagedTensors::new(
            TensorRef::contiguous(&q, self.case.q_shape())?,
            [pages(&k)?, pages(&v)?],
            TensorRef::contiguous(&table, [self.problem.batch, self.problem.table_len])?,
            TensorRef::contiguous(&lens, [self.problem.batch])?,
            TensorMut::strided(out.buffer(), out_offset, self.case.q_shape(), out_strides)?,
        );
        let lse_shape = self.case.lse_shape();
        tensors.lse = Some(TensorMut::strided(lse.buffer(), lse_offset, lse_shape, dense(lse_shape))?);
        (tensors.sink, tensors.bias) = (terms.sink()?, terms.bias()?);
        if splits == 1 {
            paged_attention(&stream, tensors, &options.params(), &options.options())?;
        } else {
            tensors.workspace = Some(TensorMut::contiguous(&mut workspace, [bytes])?);
            plan.run(stream.as_ref(), tensors)?;
        }
        Ok(Output { out: out.read(&stream)?, lse: lse.read(&stream)? })
    }

    /// The batch entry as a problem of its own.
    fn entry(&self, entry: usize) -> (Case, Inputs<T>) {
        let len = self.lens[entry] as usize;
        let [_, heads, k_len, head_dim] = self.case.kv_shape();
        let mut case = self.case;
        (case.sizes.batch, case.sizes.k_len) = (1, len);
        let rows = |values: &[T]| -> Vec<T> {
            let heads = values[entry * heads * k_len * head_dim..].chunks(k_len * head_dim).take(heads);
            heads.flat_map(|head| head[..len * head_dim].to_vec()).collect()
        };
        let q = case.q_shape().iter().product::<usize>();
        (case, Inputs { q: self.inputs.q[entry * q..][..q].to_vec(), k: rows(&self.inputs.k), v: rows(&self.inputs.v) })
    }

    /// The terms of the batch entry, whose bias ends with its keys.
    fn terms_of(&self, entry: usize) -> Terms<T> {
        let bias = self.terms.bias.as_ref().and_then(|(values, view)| {
            let [batch, heads, rows, keys] = view.shape;
            let len = self.lens[entry] as usize;
            let of_entry = &values[(entry % batch) * heads * rows * keys..][..heads * rows * keys];
            Terms::bias(of_entry.chunks(keys).flat_map(|row| row[..len].to_vec()).collect(), [1, heads, rows, len])
        });
        Terms { bias, ..self.terms.clone() }
    }

    /// What a batch entry has of an output.
    fn part(&self, output: &Output<T>, entry: usize) -> Output<T> {
        let (out, lse) = (output.out.len() / self.lens.len(), output.lse.len() / self.lens.len());
        Output { out: output.out[entry * out..][..out].to_vec(), lse: output.lse[entry * lse..][..lse].to_vec() }
    }

    fn check(&self, gpu: &Gpu, splits: &[usize]) -> Outcome {
        for &splits in splits {
            let output = self.run(gpu, splits)?;
            for entry in 0..self.lens.len() {
                let (case, inputs) = self.entry(entry);
                let expected = self.terms_of(entry).expected(&case, &inputs);
                let outcome = self.part(&output, entry).check(&case, &expected);
                outcome.map_err(|failure| {
                    let Paged { problem, order, .. } = self;
                    let message = failure.message().unwrap_or("failed").to_owned();
                    format!("{case} of {problem:?}, {order:?}, {splits} splits: {message}")
                })?;
            }
        }
        Ok(())
    }
}

fn edges<T: Half>(gpu: &Gpu, &page_len: &usize) -> Outcome {
    let mut lens = shapes::around(&[page_len, 2 * page_len]);
    lens.extend([0, 15, 16, 17]);
    let case = Case::new(lens.len(), 1, 1, 2 * page_len + 1, 64, Mask::Causal).grouped(4, 2);
    Paged::<T>::new(case, &lens, page_len, Order::RowsFirst, 60).check(gpu, &[1, 3])
}

fn masks_and_rows<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let lens = [70, 0, 33, 3];
    for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 20, right: 1 }] {
        for (q_len, q_heads) in [(1, 6), (5, 2), (DECODE_ROWS, 4)] {
            let case = Case::new(4, 1, q_len, 70, head_dim, mask).grouped(q_heads, 2);
            Paged::<T>::new(case, &lens, 32, Order::HeadsFirst, 61).check(gpu, &[1, 2])?;
        }
    }
    Ok(())
}

fn softcaps<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    for (q_len, softcap) in [(1, 0.7), (5, 20.0)] {
        let case = Case::new(3, 1, q_len, 70, head_dim, Mask::Causal).grouped(6, 2).scaled(1.0);
        let paged = Paged::<T>::new(case, &[70, 0, 33], 32, Order::HeadsFirst, 66);
        Paged { terms: Terms { softcap: Some(softcap), ..Terms::NONE }, ..paged }.check(gpu, &[1, 2])?;
    }
    Ok(())
}

/// Biases of every shape that repeats, alone and with softcap and sinks; NaN stands behind the last key of each batch
/// entry.
fn biases<T: Half>(gpu: &Gpu, &head_dim: &usize) -> Outcome {
    let (lens, page_len) = ([70, 0, 33], 32);
    for (q_len, mask, alone) in [(1, Mask::Full, true), (5, Mask::Causal, false), (2, Mask::Causal, true)] {
        let case = Case::new(3, 1, q_len, 70, head_dim, mask).grouped(6, 2);
        let paged = Paged::<T>::new(case, &lens, page_len, Order::HeadsFirst, 67);
        let keys = paged.problem.table_len * page_len;
        for [batch, heads] in [[3, 6], [1, 6], [3, 1], [1, 1]] {
            let shape = [batch, heads, q_len, keys];
            let mut values: Vec<T> = inputs::normal(&mut inputs::random(68), shape.iter().product(), 2.0);
            for (row, of_row) in values.chunks_mut(keys).enumerate() {
                let entry = row / (heads * q_len);
                let last = if batch == 1 { 70 } else { lens[entry] };
                of_row[last..].fill(T::poison());
            }
            let terms = Terms { bias: Terms::bias(values, shape), ..Terms::NONE };
            let terms = if alone {
                terms
            } else {
                Terms { softcap: Some(5.0), sink: Some(vec![1.0, -2.0, 0.0, 3.0, f32::NEG_INFINITY, 0.5]), ..terms }
            };
            let paged = Paged { terms, ..paged.clone() };
            paged.check(gpu, &[1, 2])?;
        }
    }
    Ok(())
}

/// The same bits as keys that follow each other, in as many splits.
fn same_as_dense<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    for (head_dim, splits) in [(128, 1), (64, 3)] {
        let case = Case::new(2, 1, 2, 100, head_dim, Mask::Causal).grouped(4, 2);
        let paged = Paged::<T>::new(case, &[100, 100], 16, Order::RowsFirst, 62);
        let plan = paged.options(splits).plan(gpu, T::DTYPE, case.sizes)?;
        let upload = |values: &[T]| Buffer::upload_blocking(&stream, values);
        let (q, k, v) = (upload(&paged.inputs.q)?, upload(&paged.inputs.k)?, upload(&paged.inputs.v)?);
        let mut out = Buffer::<T>::zeroed(gpu, q.len())?;
        let mut workspace = Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
        let bytes = workspace.len();
        let mut tensors = AttentionTensors::new(
            TensorRef::contiguous(&q, case.q_shape())?,
            TensorRef::contiguous(&k, case.kv_shape())?,
            TensorRef::contiguous(&v, case.kv_shape())?,
            TensorMut::contiguous(&mut out, case.q_shape())?,
        );
        tensors.workspace = Some(TensorMut::contiguous(&mut workspace, [bytes])?);
        plan.run(stream.as_ref(), tensors)?;
        compare::check_same(&paged.run(gpu, splits)?.out, &out.download_blocking(&stream)?, &case.q_shape())?;
    }
    Ok(())
}

fn strides<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(3, 1, 3, 90, 72, Mask::Causal).grouped(6, 2);
    let [first, rest @ ..] = [Order::RowsFirst, Order::HeadsFirst, Order::Unaligned]
        .map(|order| Paged::<T>::new(case, &[90, 17, 48], 48, order, 63).run(gpu, 2));
    let first = first?;
    rest.into_iter().try_for_each(|output| output?.check_same(&case, &first))
}

/// Numbers of keys and tables are checked against the problem before a call, where the caller waits for that; a table
/// may be part of a wider one.
fn validated<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    let case = Case::new(2, 1, 1, 60, 64, Mask::Full).grouped(4, 2);
    let paged = Paged::<T>::new(case, &[60, 17], 16, Order::RowsFirst, 69);
    let PagedSizes { batch, pages, table_len, .. } = paged.problem;
    let validate = |table: &[i32], lens: &[i32]| {
        let wide: Vec<i32> = table.chunks(table_len).flat_map(|row| [&[i32::MIN; 3], row].concat()).collect();
        let (table, lens) = (Buffer::upload_blocking(&stream, &wide)?, Buffer::upload_blocking(&stream, lens)?);
        let table = TensorRef::strided(&table, 3, [batch, table_len], [table_len as i64 + 3, 1])?;
        paged.problem.validate_blocking(stream.as_ref(), table, TensorRef::contiguous(&lens, [lens.len()])?)
    };
    validate(&paged.table, &paged.lens)?;
    let most = (table_len * 16) as i64;
    for (lens, index, got) in [([61 + 20, 17], 0, 81), ([60, -1], 1, -1), ([i32::MIN, 0], 0, i64::from(i32::MIN))] {
        let expected =
            Error::OutOfRange { op: "attention", tensor: "numbers of keys", index: vec![index], got, least: 0, most };
        expect_error(validate(&paged.table, &lens), |error| *error == expected)?;
    }
    for page in [-1, pages as i32, i32::MIN, i32::MAX] {
        let mut table = paged.table.clone();
        table[table_len + 1] = page;
        let (index, most) = (vec![1, 1], pages as i64 - 1);
        let expected =
            Error::OutOfRange { op: "attention", tensor: "block table", index, got: page.into(), least: 0, most };
        expect_error(validate(&table, &paged.lens), |error| *error == expected)?;
        // The page is of no key.
        validate(&table, &[60, 16])?;
    }
    expect_error(validate(&paged.table, &[60]), |error| matches!(error, Error::Shape { tensor: "numbers of keys", .. }))
}

/// One batch entry has a wrong table or number of keys: its rows are NaN, and those of the others as they are without.
fn wrong_tables<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(3, 1, 2, 60, 64, Mask::Full).grouped(4, 2);
    for wrong in [-1, i32::MIN, i32::MAX, 7] {
        for of_table in [true, false] {
            let mut paged = Paged::<T>::new(case, &[60, 40, 16], 16, Order::RowsFirst, 64);
            let places = paged.problem.table_len;
            let wrong = match (wrong, of_table) {
                (7, true) => paged.problem.pages as i32,
                (7, false) => (places * 16) as i32 + 1,
                _ => wrong,
            };
            let good = paged.run(gpu, 2)?;
            if of_table {
                paged.table[places + 1] = wrong;
            } else {
                paged.lens[1] = wrong;
            }
            let output = paged.run(gpu, 2)?;
            for entry in 0..3 {
                let (got, expected) = (paged.part(&output, entry), paged.part(&good, entry));
                if entry != 1 {
                    compare::check_same(&got.out, &expected.out, &[got.out.len()])?;
                    compare::check_same(&got.lse, &expected.lse, &[got.lse.len()])?;
                } else if !got.out.iter().all(|x| x.to_f64().is_nan()) || !got.lse.iter().all(|x| x.is_nan()) {
                    return Err(format!("{wrong} in the table ({of_table}): {:?}", &got.out[..8]).into());
                }
            }
        }
    }
    Ok(())
}

fn refusals<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let case = Case::new(2, 1, 2, 60, 64, Mask::Full).grouped(4, 2);
    let paged = Paged::<T>::new(case, &[60, 40], 16, Order::RowsFirst, 65);
    let plan = |problem: PagedSizes| paged.options(1).plan(gpu, T::DTYPE, problem).map(drop);
    match plan(PagedSizes { q_len: DECODE_ROWS + 1, ..paged.problem }) {
        Err(Error::Unsupported { feature, .. }) if feature.contains("17 query rows") => {}
        other => return Err(format!("17 query rows: {other:?}").into()),
    }
    match plan(PagedSizes { page_len: 24, ..paged.problem }) {
        Err(Error::Argument { argument: "page_len", .. }) => {}
        other => return Err(format!("pages of 24: {other:?}").into()),
    }
    // A bias of the longest batch entry's keys, not of all that its pages have.
    let short = Terms { bias: Terms::bias(vec![T::poison(); 2 * 60], [1, 1, 2, 60]), ..Terms::NONE };
    match (Paged { terms: short, ..paged.clone() }).run(gpu, 1).map(drop) {
        Err(failed) if failed.message().is_some_and(|text| text.contains("bias has shape")) => {}
        other => return Err(format!("a short bias: {other:?}").into()),
    }
    let stream = gpu.new_stream()?;
    let q = Buffer::<T>::zeroed(gpu, 1024)?;
    let pages = Buffer::<T>::zeroed(gpu, 2 * 16 * 2 * 64)?;
    let numbers = Buffer::<i32>::zeroed(gpu, 8)?;
    let mut out = Guarded::<T>::new(gpu, &stream, 1024)?;
    let offset = out.offset();
    let mut attempt = |v_heads: usize, lens: usize| {
        let kv = |heads| TensorRef::strided(&pages, 0, [2, 16, heads, 64], [2048, 128, 64, 1]);
        let tensors = PagedTensors::new(
            TensorRef::contiguous(&q, [2, 4, 2, 64])?,
            [kv(2)?, kv(v_heads)?],
            TensorRef::contiguous(&numbers, [2, 4])?,
            TensorRef::strided(&numbers, 0, [lens], [1])?,
            TensorMut::strided(out.buffer(), offset, [2, 4, 2, 64], [512, 128, 64, 1])?,
        );
        paged_attention(&stream, tensors, &AttentionParams::new(Layout::Bhsd), &AttentionOptions::default())
    };
    let (of_v, of_lens) = (attempt(1, 2), attempt(2, 3));
    if !matches!(of_v, Err(Error::Shape { tensor: "V", .. }))
        || !matches!(of_lens, Err(Error::Shape { tensor: "numbers of keys", .. }))
    {
        return Err(format!("{of_v:?}, {of_lens:?}").into());
    }
    out.check_untouched(&stream)
}
