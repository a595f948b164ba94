//! Numbers on the card that change or are wrong, large positions, bits that copies keep, and decoding.

use ferrotile::{
    AttentionOptions, AttentionParams, AttentionTensors, Buffer, Dtype, F8E4M3, Gpu, Layout, Mask, PagedTensors,
    QuantizeTensors, RotaryFrequencies, RotaryPlan, RotaryScaling, RotaryTensors, TensorMut, TensorRef, attention,
    paged_attention, quantize, rotary,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::Trials;
use tests::guard::{Guarded, Poison};
use tests::inputs;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.add("a_captured_graph_appends_where_lengths_are_then", captured);
    trials.add("numbers_that_name_no_row_reach_no_memory", wrong_numbers);
    trials.add("positions_that_the_tables_have_not_make_nan", wrong_positions);
    trials.add("positions_to_a_million/i32", |gpu| large_positions(gpu, |position| position));
    trials.add("positions_to_a_million/i64", |gpu| large_positions(gpu, i64::from));
    trials.add("append_keeps_bits", bits);
    trials.add("append_to_e4m3_is_quantize", quantized);
    trials.add("append_then_decode_is_prefill", decode);
}

/// Elements that tell their row.
fn numbered(len: usize, first: usize) -> Vec<f16> {
    (0..len).map(|at| f16::from_f32((first + at) as f32)).collect()
}

fn captured(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let mut x = Buffer::<f16>::zeroed(gpu, 2 * 8)?;
    let (mut k, mut v) = (Guarded::<f16>::new(gpu, &stream, 2 * 6 * 8)?, Guarded::<f16>::new(gpu, &stream, 2 * 6 * 8)?);
    let mut lens = Buffer::<i32>::zeroed(gpu, 2)?;
    let plan = RotaryPlan::new(gpu, Dtype::F16, Dtype::F16)?;
    let (k_at, v_at) = (k.offset(), v.offset());
    stream.synchronize()?;
    let strides = [48, 48, 8, 1];
    let graph = stream.capture(|stream| {
        let input = TensorRef::contiguous(&x, [2, 1, 1, 8])?;
        let caches = [
            TensorMut::strided(k.buffer(), k_at, [2, 1, 6, 8], strides)?,
            TensorMut::strided(v.buffer(), v_at, [2, 1, 6, 8], strides)?,
        ];
        let tensors = RotaryTensors::new(Layout::Bhsd).k(input).v(input).cache(caches, Layout::Bhsd);
        plan.run(stream, tensors.cache_seqlens(TensorRef::contiguous(&lens, [2])?))
    })?;
    let mut expected = vec![f16::poison(); 2 * 6 * 8];
    for (replay, seqlens) in [[0, 3], [1, 4], [5, 0], [6, -1]].into_iter().enumerate() {
        let values = numbered(16, 100 * replay);
        x.overwrite_blocking(&stream, &values)?;
        lens.overwrite_blocking(&stream, &seqlens)?;
        // SAFETY: the tensors of the capture live, and nothing else uses them.
        unsafe { graph.launch(&stream) }?;
        for (member, len) in seqlens.into_iter().enumerate().filter(|(_, len)| (0..6).contains(len)) {
            let at = member * 48 + 8 * len as usize;
            expected[at..at + 8].copy_from_slice(&values[8 * member..][..8]);
        }
        for cache in [&k, &v] {
            same(&cache.read(&stream)?, &expected, &format!("replay {replay}"))?;
        }
    }
    Ok(())
}

fn same<T: Poison>(got: &[T], expected: &[T], what: &str) -> Result<(), Failed> {
    match got.iter().zip(expected).position(|(got, of)| got.bits() != of.bits()) {
        None if got.len() == expected.len() => Ok(()),
        at => Err(format!("{what}: elements differ from {at:?} on").into()),
    }
}

/// Two pages of two rows for each of four members of two new rows: lengths and page ids that are wrong.
fn wrong_numbers(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let values = numbered(4 * 2 * 8, 0);
    let x = Buffer::upload_blocking(&stream, &values)?;
    let table = Buffer::upload_blocking(&stream, &[0, -1, 5, 1, i32::MAX, i32::MIN, 2, 3])?;
    let table = TensorRef::contiguous(&table, [4, 2])?;
    for (lens, rows) in [
        // Page and row of the page, of the rows that are written.
        ([1, 1, 1, 3], vec![((0, 0), (0, 1)), ((1, 1), (1, 0)), ((3, 0), (3, 1))]),
        ([i32::MAX, i32::MIN, -1, 4], vec![]),
        ([0, 2, 0, 1 << 30], vec![((0, 0), (0, 0)), ((0, 1), (0, 1)), ((1, 0), (1, 0)), ((1, 1), (1, 1))]),
    ] {
        let seqlens = Buffer::upload_blocking(&stream, &lens)?;
        let (mut k, mut v) = (Guarded::<f16>::new(gpu, &stream, 5 * 16)?, Guarded::<f16>::new(gpu, &stream, 5 * 16)?);
        let (k_at, v_at) = (k.offset(), v.offset());
        let pages = [
            TensorMut::strided(k.buffer(), k_at, [5, 2, 1, 8], [16, 8, 8, 1])?,
            TensorMut::strided(v.buffer(), v_at, [5, 2, 1, 8], [16, 8, 8, 1])?,
        ];
        let input = TensorRef::contiguous(&x, [4, 1, 2, 8])?;
        let tensors = RotaryTensors::new(Layout::Bhsd).k(input).v(input).paged_cache(pages, table);
        rotary(&stream, tensors.cache_seqlens(TensorRef::contiguous(&seqlens, [4])?))?;
        let mut expected = vec![f16::poison(); 5 * 16];
        for ((member, row), (page, of_page)) in rows {
            let (from, to): (usize, usize) = (member * 16 + row * 8, page * 16 + of_page * 8);
            expected[to..to + 8].copy_from_slice(&values[from..from + 8]);
        }
        for cache in [&k, &v] {
            same(&cache.read(&stream)?, &expected, &format!("{lens:?}"))?;
        }
    }
    Ok(())
}

fn wrong_positions(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let positions = [0, -1, 2, 1, i64::from(i32::MAX) + 2, i64::MIN];
    let x = Buffer::upload_blocking(&stream, &[f16::ONE; 6 * 12])?;
    let (cos, sin) = (Buffer::upload_blocking(&stream, &[1.0_f32; 8])?, Buffer::<f32>::zeroed(gpu, 8)?);
    let numbers = Buffer::upload_blocking(&stream, &positions)?;
    let mut out = Guarded::<f16>::new(gpu, &stream, 6 * 12)?;
    let at = out.offset();
    let tensors = RotaryTensors::new(Layout::Bhsd)
        .q_to(
            TensorRef::contiguous(&x, [1, 1, 6, 12])?,
            TensorMut::strided(out.buffer(), at, [1, 1, 6, 12], [72, 72, 12, 1])?,
        )
        .rotary(TensorRef::contiguous(&cos, [2, 4])?, TensorRef::contiguous(&sin, [2, 4])?)
        .positions(TensorRef::contiguous(&numbers, [1, 6])?);
    rotary(&stream, tensors)?;
    for (row, got) in out.read(&stream)?.chunks(12).enumerate() {
        let known = (0..2).contains(&positions[row]);
        let right = |(column, x): (usize, &f16)| if known || column >= 8 { *x == f16::ONE } else { x.is_nan() };
        if !got.iter().enumerate().all(right) {
            return Err(format!("position {}: {got:?}", positions[row]).into());
        }
    }
    Ok(())
}

/// Angles of a million radians, which f32 would have lost.
fn large_positions<I: ferrotile::Element>(gpu: &Gpu, from: fn(i32) -> I) -> Result<(), Failed> {
    const LAST: i32 = 1_048_576;
    let stream = gpu.new_stream()?;
    let frequencies = RotaryFrequencies { base: 1e4, rotary_dim: 2, scaling: RotaryScaling::None };
    let len = LAST as usize + 1;
    let (cos, sin) = frequencies.table(0..len)?;
    let (cos, sin) = (Buffer::upload_blocking(&stream, &cos)?, Buffer::upload_blocking(&stream, &sin)?);
    let positions = [0, 1, 65_537, LAST - 1, LAST];
    let numbers = Buffer::upload_blocking(&stream, &positions.map(from))?;
    let mut q = Buffer::upload_blocking(&stream, &[f16::ONE, f16::ZERO].repeat(5))?;
    let tensors = RotaryTensors::new(Layout::Bhsd)
        .q(TensorMut::contiguous(&mut q, [1, 1, 5, 2])?)
        .rotary(TensorRef::contiguous(&cos, [len, 1])?, TensorRef::contiguous(&sin, [len, 1])?)
        .positions(TensorRef::contiguous(&numbers, [1, 5])?);
    rotary(&stream, tensors)?;
    for (pair, position) in q.download_blocking(&stream)?.chunks(2).zip(positions) {
        let angle = f64::from(position);
        for (got, exact) in pair.iter().zip([angle.cos(), angle.sin()]) {
            if (got.to_f64() - exact).abs() > exact.abs() * 2_f64.powi(-11) + 1e-7 {
                return Err(format!("position {position}: {got}, expected {exact}").into());
            }
        }
    }
    Ok(())
}

/// Every pattern of 16 bits, NaN too, comes to the cache as it is, and so do columns that are not rotated.
fn bits(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let values: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let x = Buffer::upload_blocking(&stream, &values)?;
    let mut caches = [Buffer::<bf16>::zeroed(gpu, 1 << 16)?, Buffer::<bf16>::zeroed(gpu, 1 << 16)?];
    let [k, v] = &mut caches;
    let shape = [1, 1, 256, 256];
    let input = TensorRef::contiguous(&x, shape)?;
    let tensors = RotaryTensors::new(Layout::Bhsd)
        .k(input)
        .v(input)
        .cache([TensorMut::contiguous(k, shape)?, TensorMut::contiguous(v, shape)?], Layout::Bhsd);
    rotary(&stream, tensors)?;
    caches.iter().try_for_each(|cache| same(&cache.download_blocking(&stream)?, &values, "every pattern"))
}

/// With the factors that `quantize` makes, every element gets the bits that it makes.
fn quantized(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let shape = [2, 2, 16, 512];
    let len = shape.iter().product();
    let mut values: Vec<f16> = inputs::normal(&mut inputs::random(7), len, 3.0);
    values[..8].copy_from_slice(&[
        f16::NAN,
        f16::INFINITY,
        f16::NEG_INFINITY,
        f16::MAX,
        f16::MIN,
        f16::ZERO,
        f16::NEG_ZERO,
        f16::MIN_POSITIVE,
    ]);
    let x = Buffer::upload_blocking(&stream, &values)?;
    for groups in [[2, 2], [1, 2], [1, 1]] {
        let count = groups[0] * groups[1];
        let (mut out, mut factors) = (Buffer::<F8E4M3>::zeroed(gpu, len)?, Buffer::<f32>::zeroed(gpu, count)?);
        let tensors = QuantizeTensors {
            x: TensorRef::contiguous(&x, shape)?,
            out: TensorMut::contiguous(&mut out, shape)?,
            descales: TensorMut::contiguous(&mut factors, groups)?,
        };
        quantize(&stream, tensors, Layout::Bhsd)?;
        let mut caches = [Buffer::<F8E4M3>::zeroed(gpu, len)?, Buffer::<F8E4M3>::zeroed(gpu, len)?];
        let [k, v] = &mut caches;
        let input = TensorRef::contiguous(&x, shape)?;
        let factors = TensorRef::contiguous(&factors, groups)?;
        let tensors = RotaryTensors::new(Layout::Bhsd)
            .k(input)
            .v(input)
            .cache([TensorMut::contiguous(k, shape)?, TensorMut::contiguous(v, shape)?], Layout::Bhsd)
            .descales(factors, factors);
        rotary(&stream, tensors)?;
        let expected = out.download_blocking(&stream)?;
        for cache in &caches {
            same(&cache.download_blocking(&stream)?, &expected, &format!("groups {groups:?}"))?;
        }
    }
    Ok(())
}

/// Twenty tokens, one after the other into pages, each with its row of attention; and all at once, causal.
fn decode(gpu: &Gpu) -> Result<(), Failed> {
    const LEN: usize = 20;
    let stream = gpu.new_stream()?;
    let (heads, columns) = ([2, 1], 64);
    let frequencies = RotaryFrequencies { base: 1e4, rotary_dim: columns, scaling: RotaryScaling::None };
    let (cos, sin) = frequencies.table(0..LEN)?;
    let (cos, sin) = (Buffer::upload_blocking(&stream, &cos)?, Buffer::upload_blocking(&stream, &sin)?);
    let tables = || {
        Ok::<_, ferrotile::Error>((TensorRef::contiguous(&cos, [LEN, 32])?, TensorRef::contiguous(&sin, [LEN, 32])?))
    };
    let mut random = inputs::random(3);
    let qkv: Vec<f16> = inputs::normal(&mut random, LEN * 4 * columns, 1.0);
    let qkv = Buffer::upload_blocking(&stream, &qkv)?;
    // `[token, head, column]` of a fused projection: two heads of Q, one of K, one of V.
    let part = |first: usize, token: usize, rows: usize, heads: usize| {
        let strides = [0, (4 * columns) as i64, columns as i64, 1];
        TensorRef::strided(&qkv, (token * 4 + first) * columns, [1, rows, heads, columns], strides)
    };

    let mut q = Buffer::<f16>::zeroed(gpu, LEN * 2 * columns)?;
    let mut k = Buffer::<f16>::zeroed(gpu, LEN * columns)?;
    let (cos_sin, q_shape, k_shape) = (tables()?, [1, LEN, heads[0], columns], [1, LEN, heads[1], columns]);
    let tensors = RotaryTensors::new(Layout::Bshd)
        .q_to(part(0, 0, LEN, 2)?, TensorMut::contiguous(&mut q, q_shape)?)
        .k_to(part(2, 0, LEN, 1)?, TensorMut::contiguous(&mut k, k_shape)?)
        .rotary(cos_sin.0, cos_sin.1);
    rotary(&stream, tensors)?;
    let mut out = Buffer::<f16>::zeroed(gpu, LEN * 2 * columns)?;
    let params = AttentionParams { mask: Mask::Causal, ..AttentionParams::new(Layout::Bshd) };
    let tensors = AttentionTensors::new(
        TensorRef::contiguous(&q, q_shape)?,
        TensorRef::contiguous(&k, k_shape)?,
        part(3, 0, LEN, 1)?,
        TensorMut::contiguous(&mut out, q_shape)?,
    );
    attention(&stream, tensors, &params, &AttentionOptions::default())?;
    let prefill = out.download_blocking(&stream)?;

    let mut pages = [Buffer::<f16>::zeroed(gpu, 3 * 16 * columns)?, Buffer::<f16>::zeroed(gpu, 3 * 16 * columns)?];
    let table = Buffer::upload_blocking(&stream, &[2, 0])?;
    let table = TensorRef::contiguous(&table, [1, 2])?;
    let (shape, one) = ([3, 16, 1, columns], [1, 1, heads[0], columns]);
    for token in 0..LEN {
        let [before, after] = [token, token + 1].map(|len| Buffer::upload_blocking(&stream, &[len as i32]));
        let (before, after) = (before?, after?);
        let (mut q, mut out) = (Buffer::<f16>::zeroed(gpu, 2 * columns)?, Buffer::<f16>::zeroed(gpu, 2 * columns)?);
        let [k_pages, v_pages] = &mut pages;
        let tensors = RotaryTensors::new(Layout::Bshd)
            .q_to(part(0, token, 1, 2)?, TensorMut::contiguous(&mut q, one)?)
            .k(part(2, token, 1, 1)?)
            .v(part(3, token, 1, 1)?)
            .rotary(cos_sin.0, cos_sin.1)
            .cache_seqlens(TensorRef::contiguous(&before, [1])?)
            .paged_cache([TensorMut::contiguous(k_pages, shape)?, TensorMut::contiguous(v_pages, shape)?], table);
        rotary(&stream, tensors)?;
        let [k_pages, v_pages] = &pages;
        let tensors = PagedTensors::new(
            TensorRef::contiguous(&q, one)?,
            [TensorRef::contiguous(k_pages, shape)?, TensorRef::contiguous(v_pages, shape)?],
            table,
            TensorRef::contiguous(&after, [1])?,
            TensorMut::contiguous(&mut out, one)?,
        );
        paged_attention(&stream, tensors, &AttentionParams::new(Layout::Bshd), &AttentionOptions::default())?;
        let row = &prefill[token * 2 * columns..][..2 * columns];
        for (got, of) in out.download_blocking(&stream)?.iter().zip(row) {
            // Each is rounded once, from P that is rounded.
            if (got.to_f32() - of.to_f32()).abs() > 4e-3 {
                return Err(format!("token {token}: {got}, in the prefill {of}").into());
            }
        }
    }
    Ok(())
}
