//! Calls that must fail, and write nothing.

use ferrotile::{
    Buffer, Dtype, Element, Error, F8E4M3, Gpu, Layout, RotaryPlan, RotaryTensors, TensorMut, TensorRef, rotary,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::guard::Guarded;
use tests::{Trials, expect_error};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.add("tensors_that_do_not_fit_are_refused", shapes);
    trials.add("types_that_no_kernel_has_are_refused", types);
}

/// The name that an error has of what is wrong.
fn named(error: &Error) -> &'static str {
    match error {
        Error::Shape { tensor, .. } => tensor,
        Error::Argument { argument, .. } => argument,
        _ => "",
    }
}

fn shapes(gpu: &Gpu) -> Result<(), Failed> {
    let stream = gpu.new_stream()?;
    let x = Buffer::<f16>::zeroed(gpu, 1024)?;
    let other = Buffer::<bf16>::zeroed(gpu, 1024)?;
    let (table, numbers) = (Buffer::<f32>::zeroed(gpu, 1024)?, Buffer::<i32>::zeroed(gpu, 64)?);
    let bytes = Buffer::<F8E4M3>::zeroed(gpu, 16)?;
    let mut out = Guarded::<f16>::new(gpu, &stream, 256)?;
    let mut caches = [Guarded::<f16>::new(gpu, &stream, 256)?, Guarded::<f16>::new(gpu, &stream, 256)?];
    let at = out.offset();
    // Two members of two rows; one head of eight columns.
    let of = |shape| start(&x, shape);
    let (k, right) = (of([2, 1, 2, 8])?, [2, 1, 2, 8]);
    let cos = |shape| start(&table, shape);
    let ints = |len| start(&numbers, [len]);
    let [of_k, of_v] = &mut caches;
    // Each case adds something wrong to tensors that fit.
    for case in 0..15 {
        let strides = [16, 16, 8, 1];
        let mut cache_shape = [2, 1, 2, 8];
        if case == 0 {
            cache_shape = [2, 1, 2, 7];
        } else if case == 1 {
            cache_shape = [3, 1, 2, 8];
        }
        let pages = [
            TensorMut::strided(of_k.buffer(), at, cache_shape, strides)?,
            TensorMut::strided(of_v.buffer(), at, cache_shape, strides)?,
        ];
        let fits = RotaryTensors::new(Layout::Bhsd)
            .q_to(k, TensorMut::strided(out.buffer(), at, right, strides)?)
            .k(k)
            .v(k)
            .rotary(cos([4, 4])?, cos([4, 4])?);
        let fits = if case < 13 { fits.cache(pages, Layout::Bhsd) } else { fits };
        let (tensors, expected) = match case {
            0 | 1 => (fits, "the cache of K"),
            2 => (fits.rotary(cos([4, 5])?, cos([4, 5])?), "rotary dimension"),
            3 => (fits.rotary(cos([4, 4])?, cos([3, 4])?), "rotary_sin"),
            4 => (fits.cache_seqlens(ints(3)?), "cache_seqlens"),
            5 => (fits.cu_seqlens(ints(3)?), "cu_seqlens"),
            6 => (fits.positions(start(&numbers, [2, 3])?), "positions"),
            7 => (fits.positions(cos([2, 2])?), "positions"),
            8 => (fits.v(of([2, 2, 2, 8])?), "the cache of V"),
            9 => (fits.v(of([2, 1, 3, 8])?), "V"),
            10 => (fits.k(start(&other, right)?), "K"),
            11 => (fits.descales(cos([1, 1])?, cos([1, 1])?), "the descale factors of K"),
            12 => (fits.rotary(start(&bytes, [4, 4])?, start(&bytes, [4, 4])?), "rotary_cos"),
            13 => (fits, "K"),
            _ => (RotaryTensors::new(Layout::Bhsd), "tensors"),
        };
        let result = rotary(&stream, tensors);
        expect_error(result, |error| named(error) == expected).map_err(|failed| {
            Failed::from(format!("case {case}, {expected}: {}", failed.message().unwrap_or_default()))
        })?;
    }
    for guarded in [&out, &caches[0], &caches[1]] {
        guarded.check_untouched(&stream)?;
    }
    Ok(())
}

/// The first elements of a buffer.
fn start<T: Element, const RANK: usize>(
    buffer: &Buffer<T>,
    shape: [usize; RANK],
) -> ferrotile::Result<TensorRef<'_, T, RANK>> {
    let mut strides = [1; RANK];
    for dim in (0..RANK - 1).rev() {
        strides[dim] = strides[dim + 1] * shape[dim + 1] as i64;
    }
    TensorRef::strided(buffer, 0, shape, strides)
}

fn types(gpu: &Gpu) -> Result<(), Failed> {
    for (dtype, cache, expected) in [
        (Dtype::F32, Dtype::F32, "element type"),
        (Dtype::E4M3, Dtype::E4M3, "element type"),
        (Dtype::F16, Dtype::Bf16, "element type of the cache"),
        (Dtype::Bf16, Dtype::U8, "element type of the cache"),
        (Dtype::Bf16, Dtype::E5M2, "element type of the cache"),
    ] {
        expect_error(RotaryPlan::new(gpu, dtype, cache), |error| named(error) == expected)?;
    }
    Ok(())
}
