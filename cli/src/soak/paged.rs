//! Problems of attention on keys and values in pages.

use ferrotile::{Arch, Buffer, Dtype, F8E4M3, Layout, PagedSizes, PagedTensors, StreamRef, TensorRef, paged_attention};
use half::{bf16, f16};
use ndarray::{Array4, s};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use variants::attention::{AttentionKernel, DECODE_KEYS, Seqlens};

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::fp8::{self, FactorInputs, Fp8};
use super::heads::Heads;
use super::memory::{FloatCell, Input, Output};
use super::outcome::{Failure, Stop, refusal};
use super::placement::Placement;
use super::sizes::{self, Random};
use super::softmax::{Expected, Inputs, OAndLse, array4, checked_lse, o_and_lse};
use super::terms::{TermInputs, Terms, bias_of_entry};
use super::text::is_default;
use super::twice::{Call, WORKSPACE_BYTES, twice};

use crate::problems::request::Request;

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paged {
    heads: Heads,
    q_len: usize,
    /// How many keys each batch entry has.
    k_lens: Vec<usize>,
    page_len: usize,
    /// Entries of a row of the block table beyond those of the longest batch entry.
    #[serde(default, skip_serializing_if = "is_default")]
    longer: usize,
    /// Pages that no batch entry has.
    #[serde(default, skip_serializing_if = "is_default")]
    spare: usize,
    /// Pages at the start that all batch entries share.
    #[serde(default, skip_serializing_if = "is_default")]
    shared: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    terms: Terms,
    /// What K and V of E4M3 have.
    #[serde(default, skip_serializing_if = "is_default")]
    fp8: Option<Box<Fp8>>,
    #[serde(default, skip_serializing_if = "is_default")]
    bshd: bool,
    /// Where Q, K, V and O lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 4],
    #[serde(default, skip_serializing_if = "is_default")]
    without_lse: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    #[serde(default, skip_serializing_if = "is_default")]
    kernel: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    splits: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    workspace: bool,
    seed: u64,
}

impl Paged {
    fn draw_sizes(random: &mut Random, most: usize) -> Paged {
        let batch = random.random_range(1..=4);
        Paged {
            heads: Heads::draw(random, 16),
            q_len: if random.random() { 1 } else { sizes::length(random, 16) },
            k_lens: (0..batch).map(|_| sizes::length(random, most)).collect(),
            page_len: DECODE_KEYS * [1, 1, 2, 4, 8, 16, 3][random.random_range(0..7)],
            longer: random.random_range(0..3),
            spare: random.random_range(0..4),
            shared: if random.random_bool(0.2) { random.random_range(1..4) } else { 0 },
            terms: Terms::default(),
            fp8: None,
            bshd: random.random(),
            places: Default::default(),
            without_lse: false,
            call: Call::Plan,
            kernel: None,
            splits: None,
            workspace: false,
            seed: random.random_range(0..1 << 32),
        }
    }

    fn layout(&self) -> Layout {
        if self.bshd { Layout::Bshd } else { Layout::Bhsd }
    }

    fn table_len(&self) -> usize {
        self.k_lens.iter().map(|len| len.div_ceil(self.page_len)).max().unwrap_or(0) + self.longer
    }

    /// The pages of each batch entry, in any order, and how many there are.
    fn pages(&self, random: &mut Random) -> (Vec<Vec<usize>>, usize) {
        let counts = self.k_lens.iter().map(|len| len.div_ceil(self.page_len));
        let total = self.shared + counts.clone().sum::<usize>() + self.spare;
        let mut free: Vec<usize> = (0..total).collect();
        free.shuffle(random);
        let shared = free.split_off(total - self.shared);
        let entries = counts.map(|count| {
            let own = free.split_off(free.len() - count.saturating_sub(self.shared));
            shared.iter().copied().take(count).chain(own).collect()
        });
        (entries.collect(), total)
    }

    fn problem(&self, pages: usize) -> PagedSizes {
        let Heads { q_heads, kv_heads, head_dim, .. } = self.heads;
        let (batch, q_len, page_len, table_len) = (self.k_lens.len(), self.q_len, self.page_len, self.table_len());
        PagedSizes { batch, q_heads, kv_heads, q_len, head_dim, pages, page_len, table_len }
    }

    fn request(&self) -> Request {
        let mut request = self.terms.request(self.layout(), &self.heads, self.kernel.as_ref());
        request.options.splits = self.splits;
        request.options.max_workspace_bytes = if self.workspace { WORKSPACE_BYTES } else { 0 };
        self.fp8.as_ref().map_or(request.clone(), |fp8| fp8.request(request))
    }

    /// K or V: `[pages, page_len, heads, columns]`, of which what belongs to no key is poison.
    fn paged<T: FloatCell>(
        &self,
        bench: &Bench,
        random: &mut Random,
        which: usize,
        (entries, pages): (&[Vec<usize>], usize),
    ) -> ferrotile::Result<Input<T, 4>> {
        let Heads { kv_heads, head_dim, value_dim, values, .. } = self.heads;
        let shape = [pages, self.page_len, kv_heads, [head_dim, value_dim][which - 1]];
        let mut elements = values[which].fill::<T>(random, shape.iter().product());
        let row = shape[2] * shape[3];
        let mut used = vec![false; pages * self.page_len];
        for (entry, &len) in entries.iter().zip(&self.k_lens) {
            for key in 0..len {
                used[entry[key / self.page_len] * self.page_len + key % self.page_len] = true;
            }
        }
        for (key, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
            elements[key * row..(key + 1) * row].fill(T::POISON);
        }
        Input::new(bench, &self.places[which].unrepeated(), shape, &elements)
    }

    /// Compares each batch entry with the reference on its keys alone.
    fn check<T: FloatCell, KV: FloatCell>(
        &self,
        entries: &[Vec<usize>],
        (q, [k, v]): (&Input<T, 4>, [&Input<KV, 4>; 2]),
        (out, lse): (&[T], Option<&[f32]>),
        (terms, factors): (&TermInputs<T>, &FactorInputs),
    ) -> Result<f64, Failure> {
        let (q, [k, v]) = (array4(q), [k, v].map(array4));
        let (sink, bias) = terms.wide();
        let rows = self.heads.q_heads * self.q_len;
        if rows == 0 {
            return Ok(0.0);
        }
        let mut share = 0f64;
        for (index, (entry, &len)) in entries.iter().zip(&self.k_lens).enumerate() {
            let gathered = |pages: &Array4<f64>| {
                let (_, page_len, heads, columns) = pages.dim();
                Array4::from_shape_fn((1, heads, len, columns), |(_, head, key, column)| {
                    pages[[entry[key / page_len], key % page_len, head, column]]
                })
            };
            let (k, v) = (gathered(&k), gathered(&v));
            let bias = bias_of_entry(bias.as_ref(), index, [self.q_len, len]);
            let of_bias = bias.as_ref().map(|bias| bias.view());
            let q = q.slice(s![index..=index, .., .., ..]);
            let factors = factors.wide(Some(index));
            let fp8 = fp8::terms(T::DTYPE, &self.request(), &factors);
            let inputs = if self.fp8.is_some() { Inputs::E4m3Kv(&fp8) } else { Inputs::Halves(T::DTYPE) };
            let expected = Expected::new(inputs, [q, k.view(), v.view()], &self.terms, (sink.as_ref(), of_bias));
            let columns = rows * self.heads.value_dim;
            let lse = lse.map(|lse| &lse[index * rows..][..rows]);
            let checked = expected.check(&out[index * columns..][..columns], lse);
            share = share.max(checked.map_err(|failure| failure.of(format_args!("batch entry {index}")))?);
        }
        Ok(share)
    }

    fn run_as<T: FloatCell, KV: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let (entries, pages) = self.pages(&mut random);
        let (problem, request, layout) = (self.problem(pages), self.request(), self.layout());
        let PagedSizes { batch, q_heads, q_len, head_dim, page_len, table_len, .. } = problem;
        let q_shape = [batch, q_heads, q_len, head_dim];
        let q = self.heads.values[0].fill::<T>(&mut random, q_shape.iter().product());
        let q = Input::new(bench, &self.places[0], q_shape, &q)?;
        let k = self.paged::<KV>(bench, &mut random, 1, (&entries, pages))?;
        let v = self.paged::<KV>(bench, &mut random, 2, (&entries, pages))?;
        let sizes = [batch, q_heads, q_len, table_len * page_len];
        let terms = TermInputs::<T>::new(bench, &self.terms, &mut random, sizes)?;
        let factors = match &self.fp8 {
            Some(fp8) => fp8.inputs(bench, &mut random, batch, &self.heads)?,
            None => FactorInputs::NONE,
        };
        // Entries for no key can be anything.
        let junk = [-1, i32::MAX, i32::MIN, pages as i32];
        let mut table: Vec<i32> = (0..batch * table_len).map(|index| junk[index % junk.len()]).collect();
        for (row, entry) in table.chunks_exact_mut(table_len.max(1)).zip(&entries) {
            row.iter_mut().zip(entry).for_each(|(slot, &page)| *slot = page as i32);
        }
        let k_lens: Vec<i32> = self.k_lens.iter().map(|&len| len as i32).collect();
        let table = Buffer::upload_blocking(&bench.streams[0], &table)?;
        let k_lens = Buffer::upload_blocking(&bench.streams[0], &k_lens)?;
        let asked = self.kernel.is_some() || self.splits.is_some();
        let plan = request.plan(&bench.gpu, T::DTYPE, problem).map_err(|error| refusal(asked, error))?;
        let (out_shape, lse_shape) = ([batch, q_heads, q_len, self.heads.value_dim], [batch, q_heads, q_len]);
        let order = |dimensions| layout.reorder(dimensions);
        let (table, k_lens) =
            (TensorRef::contiguous(&table, [batch, table_len])?, TensorRef::contiguous(&k_lens, [batch])?);
        let outputs = o_and_lse(bench, &self.places[3], out_shape, lse_shape)?;
        let function = self.call == Call::Function && !self.workspace;
        let run = |stream: StreamRef<'_>, (out, lse): &mut OAndLse<T, 4, 3>, workspace: &mut Output<u8, 1>| {
            let pages = [k.plain(), v.plain()];
            let mut tensors = PagedTensors::new(q.tensor(order), pages, table, k_lens, out.tensor(order));
            tensors.descales = factors.descales();
            tensors.lse = (!self.without_lse).then(|| lse.plain());
            tensors.sink = terms.sink.as_ref().map(Input::plain);
            tensors.bias = terms.bias.as_ref().map(Input::plain);
            tensors.workspace = (!function).then(|| workspace.plain());
            if function {
                paged_attention(stream, tensors, &request.params, &request.options)
            } else {
                plan.run(stream, tensors)
            }
        };
        let (out, lse) = twice(bench, (self.call, asked), outputs, plan.workspace_bytes(), run)?;
        check::written("O", &out, &out_shape)?;
        let lse = checked_lse(self.without_lse, &lse, &lse_shape)?;
        Ok(self.check(&entries, (&q, [&k, &v]), (&out, lse), (&terms, &factors))?)
    }
}

impl Family for Paged {
    fn draw(random: &mut Random, scope: &Scope) -> Paged {
        let cost = |problem: &Paged| {
            let keys: usize = problem.k_lens.iter().map(|len| len + 32).sum();
            // Tiles of K and V are copied and multiplied as a whole, however few the rows are.
            (problem.q_len + 4) * keys * problem.heads.work()
        };
        let mut problem = sizes::within(random, [2 * scope.most, scope.work], Paged::draw_sizes, cost);
        let most_keys = problem.table_len() * problem.page_len;
        problem.terms = Terms::draw(random, most_keys);
        let has_fp8 = scope.arch >= Arch::Sm89;
        problem.fp8 = Fp8::draw_kv(random, has_fp8, &problem.heads, &mut problem.terms).map(Box::new);
        problem.places = [true, false, false, false].map(|may_repeat| Placement::draw(random, 4, may_repeat));
        problem.without_lse = random.random_bool(0.1);
        problem.call = Call::draw(random);
        problem.workspace = random.random();
        if random.random_bool(0.4) {
            problem.splits = Some(random.random_range(1..=9));
        }
        if random.random_bool(0.3) {
            let eligible = problem
                .heads
                .configs(scope.arch, problem.fp8.is_some(), problem.terms.score_mod(), Seqlens::Fixed)
                .filter(|config| matches!(config.kernel, AttentionKernel::Decode(_)));
            problem.kernel = sizes::pick(random, eligible.map(|config| config.name));
        }
        problem
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        match (self.heads.dtype, self.fp8.is_some()) {
            (Dtype::Bf16, true) => self.run_as::<bf16, F8E4M3>(bench),
            (Dtype::Bf16, false) => self.run_as::<bf16, bf16>(bench),
            (_, true) => self.run_as::<f16, F8E4M3>(bench),
            (_, false) => self.run_as::<f16, f16>(bench),
        }
    }

    fn simpler(&self) -> Vec<Paged> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        simpler.each(|problem| &mut problem.places, [Default::default()]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.bshd, [false]);
        simpler.each(|problem| &mut problem.without_lse, [false]);
        simpler.each(|problem| &mut problem.splits, [None, Some(1), Some(2)]);
        simpler.each(|problem| &mut problem.workspace, [false]);
        simpler.each(|problem| &mut problem.longer, [0]);
        simpler.each(|problem| &mut problem.spare, [0]);
        simpler.each(|problem| &mut problem.shared, [0]);
        Fp8::simpler(&mut simpler, |problem| &mut problem.fp8);
        Terms::simpler(&mut simpler, |problem| &mut problem.terms, &self.terms);
        for index in 0..self.k_lens.len() {
            simpler.change(|problem| {
                problem.k_lens.remove(index);
            });
        }
        Heads::simpler(&mut simpler, |problem| &mut problem.heads, &self.heads);
        simpler.size(|problem| &mut problem.q_len, 1, 1);
        for index in 0..self.k_lens.len() {
            simpler.size(|problem| &mut problem.k_lens[index], 0, 1);
        }
        simpler.each(|problem| &mut problem.page_len, [DECODE_KEYS]);
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.heads.tame();
        self.terms.tame();
    }
}
