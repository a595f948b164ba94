//! One call on the device, and what the reference makes of the same input.

use ferrotile::{
    Buffer, Float, Gpu, Layout, RotaryFrequencies, RotaryScaling, RotaryTensors, TensorRef, reference, rotary,
};
use libtest_mimic::Failed;
use ndarray::{Array2, Array4};
use rand::RngExt;
use rand::seq::SliceRandom;
use tests::guard::{Guarded, Poison};
use tests::inputs::{self, Half, Random};
use tests::view::View;

/// The tables have so many positions.
pub(crate) const POSITIONS: usize = 96;

/// Sizes and forms of a call.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Heads of Q, K and V.
    pub(crate) heads: [usize; 3],
    /// New rows of each member.
    pub(crate) rows: Vec<usize>,
    /// Rows of each member in the cache.
    pub(crate) cached: Vec<i32>,
    /// Whether the rows of all members follow each other, after this many rows of nobody, and before as many.
    pub(crate) varlen: Option<usize>,
    /// Head dimensions of Q and K, and of V.
    pub(crate) columns: [usize; 2],
    pub(crate) rotary_dim: usize,
    pub(crate) interleaved: bool,
    /// Rows of a page and pages of a member; without pages the capacity of the cache is their product.
    pub(crate) pages: [usize; 2],
    pub(crate) paged: bool,
    pub(crate) layout: Layout,
    /// Elements between rows, and before the first, that belong to nothing.
    pub(crate) gap: usize,
    pub(crate) in_place: bool,
}

impl Case {
    /// One of any form.
    pub(crate) fn random(random: &mut Random) -> Case {
        let members = random.random_range(1..4);
        let varlen = random.random_bool(0.5).then(|| random.random_range(0..3));
        let one = random.random_range(0..4);
        let rows = (0..members).map(|_| if varlen.is_some() { random.random_range(0..4) } else { one }).collect();
        let wide = random.random_bool(0.5);
        let mut columns = || if wide { 16 * random.random_range(1..5) } else { random.random_range(1..40) };
        let columns = [columns(), columns()];
        let pairs =
            if wide && random.random_bool(0.7) { columns[0] / 16 * 8 } else { random.random_range(0..=columns[0] / 2) };
        let page_len = [1, 2, 5, 16, 256][random.random_range(0..5)];
        let table_len = 40_usize.div_ceil(page_len).min(9);
        let capacity = page_len * table_len;
        Case {
            heads: [random.random_range(1..4), random.random_range(1..3), 0].map(|heads: usize| heads),
            rows,
            cached: (0..members).map(|_| random.random_range(0..capacity.min(40)) as i32).collect(),
            varlen,
            columns,
            rotary_dim: 2 * pairs,
            interleaved: random.random_bool(0.5),
            pages: [page_len, table_len],
            paged: random.random_bool(0.6),
            layout: if random.random_bool(0.5) { Layout::Bhsd } else { Layout::Bshd },
            gap: if random.random_bool(0.5) { 0 } else { random.random_range(1..9) },
            in_place: random.random_bool(0.5),
        }
        .with_heads_of_v()
    }

    fn with_heads_of_v(mut self) -> Case {
        self.heads[2] = self.heads[1];
        self
    }

    pub(crate) fn members(&self) -> usize {
        self.rows.len()
    }

    fn capacity(&self) -> usize {
        self.pages[0] * self.pages[1]
    }

    /// Batch and rows of the tensors.
    pub(crate) fn batch_rows(&self) -> [usize; 2] {
        match self.varlen {
            Some(around) => [1, 2 * around + self.rows.iter().sum::<usize>()],
            None => [self.members(), self.rows[0]],
        }
    }

    /// Batch entry, row, member and row of the member, of each token that has one.
    fn tokens(&self) -> Vec<[usize; 4]> {
        let mut first = self.varlen.unwrap_or(0);
        let mut tokens = Vec::new();
        for (member, &rows) in self.rows.iter().enumerate() {
            tokens.extend((0..rows).map(|row| match self.varlen {
                Some(_) => [0, first + row, member, row],
                None => [member, row, member, row],
            }));
            first += rows;
        }
        tokens
    }

    fn starts(&self) -> Vec<i32> {
        let mut start = self.varlen.unwrap_or(0) as i32;
        let mut starts = vec![start];
        for &rows in &self.rows {
            start += rows as i32;
            starts.push(start);
        }
        starts
    }

    /// Where rows of so many columns lie.
    fn view(&self, heads: usize, columns: usize) -> View {
        let [batch, rows] = self.batch_rows();
        with_gaps([batch, heads, rows, columns], self.layout, self.gap)
    }

    /// Where the cache lies, as batch or page, head, row.
    fn cache_view(&self, columns: usize, pages: usize) -> View {
        if self.paged {
            return with_gaps([pages, self.heads[1], self.pages[0], columns], Layout::Bshd, self.gap);
        }
        with_gaps([self.members(), self.heads[1], self.capacity(), columns], self.layout, self.gap)
    }
}

/// Rows that have `gap` elements of nothing before them, from an address that is as odd.
fn with_gaps(shape: [usize; 4], layout: Layout, gap: usize) -> View {
    let wide = [shape[0], shape[1], shape[2], shape[3] + gap];
    View { offset: gap, shape, ..View::contiguous(wide, layout) }
}

/// The numbers of a call on the card, and Q, K and V.
pub(crate) struct Inputs<T> {
    pub(crate) q: Vec<T>,
    pub(crate) k: Vec<T>,
    pub(crate) v: Vec<T>,
    pub(crate) cos: Vec<f64>,
    pub(crate) sin: Vec<f64>,
    pub(crate) table: Vec<i32>,
    pub(crate) pages: usize,
    pub(crate) factors: [Vec<f32>; 2],
}

/// What a call leaves, in C order of the views, and the whole storage of the caches.
#[derive(PartialEq)]
pub(crate) struct Outcome {
    pub(crate) q: Vec<u32>,
    pub(crate) k: Vec<u32>,
    pub(crate) caches: [Vec<u32>; 2],
}

impl<T: Half> Inputs<T> {
    /// Random ones. Pages are in any order, and some are of no member.
    pub(crate) fn random<S: Float>(random: &mut Random, case: &Case) -> Inputs<T> {
        let [batch, rows] = case.batch_rows();
        let mut of = |heads: usize, columns: usize| inputs::normal(random, batch * heads * rows * columns, 2.0);
        let (q, k) = (of(case.heads[0], case.columns[0]), of(case.heads[1], case.columns[0]));
        let v = of(case.heads[1], case.columns[1]);
        let frequencies = RotaryFrequencies { base: 1e4, rotary_dim: case.rotary_dim, scaling: RotaryScaling::None };
        let (cos, sin) = frequencies.table(0..POSITIONS).expect("the dimension is even");
        let rounded = |table: Vec<f32>| table.into_iter().map(|x| S::from_f64(x.into()).to_f64()).collect();
        let pages = case.members() * case.pages[1] + 2;
        let mut table: Vec<i32> = (0..pages as i32).collect();
        table.shuffle(random);
        table.truncate(case.members() * case.pages[1]);
        let mut factor = || (0..case.members() * case.heads[1]).map(|_| random.random_range(0.004..0.1)).collect();
        let factors = [factor(), factor()];
        Inputs { q, k, v, cos: rounded(cos), sin: rounded(sin), table, pages, factors }
    }

    /// Runs the call and checks everything that it leaves.
    pub(crate) fn check<C: Float + Poison, S: Float>(&self, gpu: &Gpu, case: &Case) -> Result<Outcome, Failed> {
        let outcome = self.run::<C, S>(gpu, case, Parts::ALL)?;
        self.check_outcome::<C>(case, &outcome)?;
        Ok(outcome)
    }

    /// Runs some parts of the call.
    pub(crate) fn run<C: Float + Poison, S: Float>(
        &self,
        gpu: &Gpu,
        case: &Case,
        parts: Parts,
    ) -> Result<Outcome, Failed> {
        let stream = gpu.new_stream()?;
        let (layout, half) = (case.layout, case.rotary_dim / 2);
        let [q_view, k_view] = [case.heads[0], case.heads[1]].map(|heads| case.view(heads, case.columns[0]));
        let v_view = case.view(case.heads[1], case.columns[1]);
        let scattered = |view: &View, x: &[T]| {
            let mut storage = vec![T::poison(); view.storage_len()];
            view.scatter(x, &mut storage);
            Buffer::upload_blocking(&stream, &storage)
        };
        let mut q = scattered(&q_view, &self.q)?;
        let k = scattered(&k_view, &self.k)?;
        let v = scattered(&v_view, &self.v)?;
        let mut q_out = Guarded::<T>::new(gpu, &stream, q_view.storage_len())?;
        let mut k_out = Guarded::<T>::new(gpu, &stream, k_view.storage_len())?;
        let views = case.columns.map(|columns| case.cache_view(columns, self.pages));
        let mut caches = [
            Guarded::<C>::new(gpu, &stream, views[0].storage_len())?,
            Guarded::<C>::new(gpu, &stream, views[1].storage_len())?,
        ];
        let of_table = |x: &[f64]| {
            let x: Vec<S> = x.iter().map(|&x| S::from_f64(x)).collect();
            Buffer::upload_blocking(&stream, &x)
        };
        let (cos, sin) = (of_table(&self.cos)?, of_table(&self.sin)?);
        let block_table = Buffer::upload_blocking(&stream, &self.table)?;
        let (seqlens, starts) =
            (Buffer::upload_blocking(&stream, &case.cached)?, Buffer::upload_blocking(&stream, &case.starts())?);
        let factors =
            [Buffer::upload_blocking(&stream, &self.factors[0])?, Buffer::upload_blocking(&stream, &self.factors[1])?];

        let members = case.members();
        let (q_at, k_at) = (q_view.moved(q_out.offset()), k_view.moved(k_out.offset()));
        let mut tensors = RotaryTensors::new(layout)
            .interleaved(case.interleaved)
            .cache_seqlens(TensorRef::contiguous(&seqlens, [members])?);
        if parts.rotates {
            let shape = [POSITIONS, half];
            tensors = tensors
                .rotary(TensorRef::<S, 2>::contiguous(&cos, shape)?, TensorRef::contiguous(&sin, shape)?)
                .k_to(k_view.tensor(&k, layout)?, k_at.tensor_mut(k_out.buffer(), layout)?);
            tensors = if case.in_place {
                tensors.q(q_view.tensor_mut(&mut q, layout)?)
            } else {
                tensors.q_to(q_view.tensor(&q, layout)?, q_at.tensor_mut(q_out.buffer(), layout)?)
            };
        } else {
            tensors = tensors.k(k_view.tensor(&k, layout)?);
        }
        if case.varlen.is_some() {
            tensors = tensors.cu_seqlens(TensorRef::contiguous(&starts, [members + 1])?);
        }
        if parts.appends {
            let [of_k, of_v] = &mut caches;
            let at = [views[0].moved(of_k.offset()), views[1].moved(of_v.offset())];
            tensors = tensors.v(v_view.tensor(&v, layout)?);
            tensors = if case.paged {
                let table = TensorRef::contiguous(&block_table, [members, case.pages[1]])?;
                let pages =
                    [at[0].tensor_mut(of_k.buffer(), Layout::Bshd)?, at[1].tensor_mut(of_v.buffer(), Layout::Bshd)?];
                tensors.paged_cache(pages, table)
            } else {
                let layout = case.layout;
                tensors
                    .cache([at[0].tensor_mut(of_k.buffer(), layout)?, at[1].tensor_mut(of_v.buffer(), layout)?], layout)
            };
            if size_of::<C>() == 1 {
                let of = |index: usize| TensorRef::contiguous(&factors[index], [members, case.heads[1]]);
                tensors = tensors.descales(of(0)?, of(1)?);
            }
        }
        rotary(&stream, tensors)?;

        let bits = |x: Vec<T>| x.into_iter().map(T::bits).collect::<Vec<_>>();
        let q_after = q.download_blocking(&stream)?;
        let q_storage = if case.in_place && parts.rotates { q_after } else { q_out.read(&stream)? };
        let caches = [caches[0].read(&stream)?, caches[1].read(&stream)?];
        Ok(Outcome {
            q: bits(q_view.gather_alone(&q_storage)?),
            k: bits(k_view.gather_alone(&k_out.read(&stream)?)?),
            caches: caches.map(|cache| cache.into_iter().map(C::bits).collect()),
        })
    }

    fn check_outcome<C: Float + Poison>(&self, case: &Case, outcome: &Outcome) -> Result<(), Failed> {
        let [batch, rows] = case.batch_rows();
        let half = case.rotary_dim / 2;
        let mut positions = vec![vec![0_i64; rows]; batch];
        for [entry, row, member, of_member] in case.tokens() {
            positions[entry][row] = i64::from(case.cached[member]) + of_member as i64;
        }
        let table = |x: &[f64]| Array2::from_shape_vec((POSITIONS, half), x.to_vec()).expect("one number a pair");
        let (cos, sin) = (table(&self.cos), table(&self.sin));
        let rotated = |x: &[T], heads: usize| {
            let x = x.iter().map(|x| x.to_f64()).collect();
            let x = Array4::from_shape_vec((batch, heads, rows, case.columns[0]), x).expect("one value an element");
            let tables = (cos.view(), sin.view());
            let exact = reference::rotary(x.view(), &positions, tables, case.interleaved);
            let size = x.fold(0.0, |most: f64, x| most.max(x.abs()));
            (exact, 8.0 * size * 2_f64.powi(-24))
        };
        let (q, k) = (rotated(&self.q, case.heads[0]), rotated(&self.k, case.heads[1]));
        let v = self.v.iter().map(|x| x.to_f64()).collect();
        let v = Array4::from_shape_vec((batch, case.heads[1], rows, case.columns[1]), v).expect("one value an element");
        let index = |heads: usize, columns: usize, [entry, head, row, column]: [usize; 4]| {
            ((entry * heads + head) * rows + row) * columns + column
        };
        let mut expected = [vec![None; outcome.caches[0].len()], vec![None; outcome.caches[1].len()]];
        let mut rows_of_members = vec![vec![false; rows]; batch];
        for [entry, row, member, of_member] in case.tokens() {
            rows_of_members[entry][row] = true;
            for (exact, got, heads) in [(&q, &outcome.q, case.heads[0]), (&k, &outcome.k, case.heads[1])] {
                for (head, column) in (0..heads).flat_map(|head| (0..case.columns[0]).map(move |column| (head, column)))
                {
                    let at = [entry, head, row, column];
                    let error = if column < case.rotary_dim { exact.1 } else { 0.0 };
                    between::<T>(got[index(heads, case.columns[0], at)], exact.0[at], error)
                        .map_err(|what| format!("{at:?} of Q or K: {what}; {case:?}"))?;
                }
            }
            let slot = case.cached[member] as usize + of_member;
            let (page, of_page) = (slot / case.pages[0], slot % case.pages[0]);
            if page >= case.pages[1] {
                continue;
            }
            for (index, (exact, error)) in [(&k.0, k.1), (&v, 0.0)].into_iter().enumerate() {
                let columns = case.columns[index];
                let View { offset, strides, .. } = case.cache_view(columns, self.pages);
                let place = match self.table.get(member * case.pages[1] + page) {
                    Some(&page) if case.paged => [page as usize, of_page],
                    _ => [member, slot],
                };
                for (head, column) in (0..case.heads[1]).flat_map(|head| (0..columns).map(move |column| (head, column)))
                {
                    let factor = match size_of::<C>() {
                        1 => f64::from(self.factors[index][member * case.heads[1] + head]),
                        _ => 1.0,
                    };
                    let steps = [place[0], head, place[1], column].into_iter().zip(strides);
                    let at = offset + steps.map(|(index, stride)| index * stride as usize).sum::<usize>();
                    let exact = exact[[entry, head, row, column]];
                    let error = if index == 0 && column < case.rotary_dim { error } else { 0.0 };
                    // The division rounds to f32.
                    let of_division = if factor == 1.0 { 0.0 } else { exact.abs() * 2_f64.powi(-23) };
                    expected[index][at] = Some((exact / factor, (error + of_division) / factor));
                }
            }
        }
        for (got, expected) in outcome.caches.iter().zip(&expected) {
            for (at, (&bits, expected)) in got.iter().zip(expected).enumerate() {
                match expected {
                    Some((exact, error)) => between::<C>(bits, *exact, *error),
                    None if bits == C::poison().bits() => Ok(()),
                    None => Err("is written".to_owned()),
                }
                .map_err(|what| format!("element {at} of a cache: {what}; {case:?}"))?;
            }
        }
        // Rows of nobody are as they were.
        let nobody = |got: &[u32], x: &[T], heads: usize, in_place: bool| {
            let places = ndarray::indices((batch, heads, rows, case.columns[0])).into_iter();
            let wrong = places.filter(|&(entry, _, row, _)| !rows_of_members[entry][row]).find(|&(b, h, s, d)| {
                let at = index(heads, case.columns[0], [b, h, s, d]);
                got[at] != if in_place { x[at].bits() } else { T::poison().bits() }
            });
            wrong.map_or(Ok(()), |place| Err(format!("{place:?} belongs to nobody and is written; {case:?}")))
        };
        nobody(&outcome.q, &self.q, case.heads[0], case.in_place)?;
        nobody(&outcome.k, &self.k, case.heads[1], false)?;
        Ok(())
    }
}

/// Whether bits are a number of `C` that some number within `error` of `exact` becomes: rounding keeps the order.
fn between<C: Float + Poison>(bits: u32, exact: f64, error: f64) -> Result<(), String> {
    let got = C::from_bits_of(bits).to_f64();
    let (least, most) = (C::from_f64(exact - error).to_f64(), C::from_f64(exact + error).to_f64());
    if (least..=most).contains(&got) { Ok(()) } else { Err(format!("{got}, expected {least} to {most}")) }
}

/// Which parts of a call are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) rotates: bool,
    pub(crate) appends: bool,
}

impl Parts {
    pub(crate) const ALL: Parts = Parts { rotates: true, appends: true };
}

/// A type whose elements are made of bits.
pub(crate) trait FromBits: Sized {
    fn from_bits_of(bits: u32) -> Self;
}

impl<C: Float> FromBits for C {
    fn from_bits_of(bits: u32) -> C {
        assert!(size_of::<C>() <= 2, "types of 8 and 16 bits");
        // SAFETY: a plain type of so many bytes, of which every pattern is a value.
        unsafe { std::mem::transmute_copy(&bits) }
    }
}
