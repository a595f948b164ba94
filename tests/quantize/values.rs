//! Values of all kinds, shapes and places.

use ferrotile::{F8E4M3, Float, Gpu, Layout, tolerance};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::guard::Poison;
use tests::view::View;
use tests::{Trials, inputs};
use variants::quantize::LARGEST;

use crate::case::{Placement, dequantized, expected, products, quantized};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("bits_are_those_of_the_reference/e4m3", &(), shapes::<f16, F8E4M3>, shapes::<bf16, F8E4M3>);
    trials.both("bits_are_those_of_the_reference/u8", &(), shapes::<f16, u8>, shapes::<bf16, u8>);
    trials.add("bits_are_those_of_the_reference/e4m3/f32", |gpu| shapes::<f32, F8E4M3>(gpu, &()));
    trials.add("bits_are_those_of_the_reference/u8/f32", |gpu| shapes::<f32, u8>(gpu, &()));
    trials.both("strides_do_not_matter/e4m3", &(), strides::<f16, F8E4M3>, strides::<bf16, F8E4M3>);
    trials.both("strides_do_not_matter/u8", &(), strides::<f16, u8>, strides::<bf16, u8>);
    trials.add("strides_do_not_matter/u8/f32", |gpu| strides::<f32, u8>(gpu, &()));
    trials.add("every_number_and_every_tie/e4m3", ties::<F8E4M3>);
    trials.add("every_number_and_every_tie/u8", ties::<u8>);
    trials.add("what_is_no_number_does_not_spread/e4m3", special::<F8E4M3>);
    trials.add("what_is_no_number_does_not_spread/u8", special::<u8>);
    trials.add("magnitudes_from_the_least_to_the_largest/e4m3", magnitudes::<F8E4M3>);
    trials.add("magnitudes_from_the_least_to_the_largest/u8", magnitudes::<u8>);
    trials.add("groups_without_elements_have_the_factor_1/e4m3", empty::<F8E4M3>);
    trials.add("groups_without_elements_have_the_factor_1/u8", empty::<u8>);
}

/// Batch, heads, rows, columns: about a chunk of 8 elements and about the chunks of a block.
const SHAPES: [[usize; 4]; 8] = [
    [1, 1, 1, 1],
    [1, 1, 1, 8],
    [2, 3, 5, 7],
    [1, 2, 3, 9],
    [2, 2, 33, 64],
    [1, 1, 513, 8],
    [1, 3, 31, 136],
    [3, 1, 1, 64],
];

/// What has a factor: all, heads, batch entries, and heads of batch entries.
fn groups([batch, heads, ..]: [usize; 4]) -> [[usize; 2]; 4] {
    [[1, 1], [1, heads], [batch, 1], [batch, heads]]
}

/// Normally distributed numbers, each head of another size.
fn numbers<T: Float>([batch, heads, rows, columns]: [usize; 4], seed: u64) -> Vec<T> {
    let mut random = inputs::random(seed);
    let of_head = |head: usize| 3f64.powi(head as i32 % 5 - 2);
    (0..batch * heads)
        .flat_map(|head| (0..rows * columns).map(move |_| head))
        .map(|head| T::from_f64(of_head(head) * inputs::normal_number(&mut random)))
        .collect()
}

fn shapes<T: Float + Poison, Q: Float + Poison>(gpu: &Gpu, (): &()) -> Result<(), Failed> {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        for (groups, layout) in groups(shape).into_iter().zip([Layout::Bhsd, Layout::Bshd].into_iter().cycle()) {
            let x = numbers::<T>(shape, seed as u64);
            let place = Placement::contiguous(shape, layout);
            let got = quantized::<T, Q>(gpu, &x, groups, &place)?;
            got.expect(&expected(shape, &x, groups)).map_err(|error| of(shape, groups, error))?;
            check_return::<Q, T>(gpu, shape, &got, groups, &place)?;
            check_return::<Q, f32>(gpu, shape, &got, groups, &place)?;
        }
    }
    Ok(())
}

fn of(shape: [usize; 4], groups: [usize; 2], error: Failed) -> Failed {
    format!("{shape:?} with factors {groups:?}: {}", error.message().unwrap_or_default()).into()
}

/// Elements come back as the products of their values and factors, but for two roundings in f32 and that to `T`.
fn check_return<Q: Float + Poison, T: Float + Poison>(
    gpu: &Gpu,
    shape: [usize; 4],
    got: &crate::case::Quantized<Q>,
    groups: [usize; 2],
    place: &Placement,
) -> Result<(), Failed> {
    let back = dequantized::<Q, T>(gpu, got, groups, place)?;
    let products = products(shape, got, groups);
    for (at, (back, product)) in back.iter().zip(products).enumerate() {
        let share = 0.5 * tolerance::atol(T::DTYPE) + 2.0 * f64::from(f32::EPSILON);
        let limit = share * product.abs() + tolerance::least_number(T::DTYPE);
        let error = tolerance::element_error(back.to_f64(), product);
        if error > limit {
            let error = format!("element {at} comes back as {back:?}, expected {product}").into();
            return Err(of(shape, groups, error));
        }
    }
    Ok(())
}

/// Views with gaps, from odd offsets, backwards, and of rows that are not aligned.
fn strides<T: Float + Poison, Q: Float + Poison>(gpu: &Gpu, (): &()) -> Result<(), Failed> {
    let shape @ [batch, heads, rows, columns] = [2, 3, 5, 64];
    let x = numbers::<T>(shape, 3);
    let row = |gap: i64| columns as i64 + gap;
    let view = |offset: usize, gap: i64| View {
        offset,
        shape,
        strides: [(heads * rows) as i64 * row(gap) + 64, rows as i64 * row(gap), row(gap), 1],
    };
    // Heads between the rows, as in a fused QKV tensor.
    let fused = View { offset: 64, shape, strides: [(3 * heads * rows * columns) as i64, 64, 3 * 3 * 64, 1] };
    let backwards = View { offset: (rows - 1) * columns, strides: [960, 320, -64, 1], ..view(0, 0) };
    assert_eq!(batch, 2);
    for groups in [[1, 1], [batch, heads]] {
        let expected = expected::<T, Q>(shape, &x, groups);
        for (wide, narrow) in [
            (fused, view(0, 0)),
            (view(8, 64), view(16, 16)),
            (view(1, 0), view(0, 0)),
            (view(0, 0), view(3, 1)),
            (backwards, backwards),
        ] {
            let place = Placement { wide, narrow, layout: Layout::Bhsd };
            let got = quantized::<T, Q>(gpu, &x, groups, &place)?;
            got.expect(&expected).map_err(|error| of(shape, groups, error))?;
            check_return::<Q, T>(gpu, shape, &got, groups, &place)?;
        }
    }
    Ok(())
}

/// With a largest magnitude of 448 the factor is 1. Then come all numbers of the type, the middles between neighbours,
/// and what is beside them.
fn ties<Q: Float + Poison>(gpu: &Gpu) -> Result<(), Failed> {
    let mut numbers: Vec<f64> = (0..=u8::MAX).map(|bits| value::<Q>(bits)).filter(|x| x.is_finite()).collect();
    numbers.sort_by(f64::total_cmp);
    let middles = numbers.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let exact: Vec<f32> = numbers.iter().copied().chain(middles).map(|x| x as f32).collect();
    let beside = exact.iter().flat_map(|x| [x.next_up(), x.next_down(), -x]).filter(|x| x.abs() <= LARGEST);
    let mut x: Vec<f32> = exact.iter().copied().chain(beside).collect();
    x.resize(x.len().next_multiple_of(8), 0.0);
    let shape = [1, 1, x.len() / 8, 8];
    let expected = expected::<f32, Q>(shape, &x, [1, 1]);
    assert_eq!(expected.factors, [1.0]);
    let got = quantized::<f32, Q>(gpu, &x, [1, 1], &Placement::contiguous(shape, Layout::Bhsd))?;
    got.expect(&expected)
}

/// The value of the element with these bits.
fn value<Q: Float>(bits: u8) -> f64 {
    match Q::DTYPE {
        ferrotile::Dtype::E4M3 => F8E4M3::from_bits(bits).to_f64(),
        _ => bits.to_f64(),
    }
}

/// NaN and infinities neither raise a factor nor reach another element.
fn special<Q: Float + Poison>(gpu: &Gpu) -> Result<(), Failed> {
    let shape = [1, 2, 2, 8];
    let mut x = numbers::<f32>(shape, 5);
    let finite = expected::<f32, Q>(shape, &x, [1, 2]);
    let strange = [(0, f32::NAN), (3, f32::INFINITY), (9, f32::NEG_INFINITY), (20, -f32::NAN)];
    for (at, number) in strange {
        // Never the largest magnitude of the head.
        assert!(x[at].abs() < LARGEST * finite.factors[at / 16] * 0.999, "element {at}");
        x[at] = number;
    }
    let place = Placement::contiguous(shape, Layout::Bhsd);
    let got = quantized::<f32, Q>(gpu, &x, [1, 2], &place)?;
    let mut expected = finite;
    for (at, number) in strange {
        expected.elements[at] = Q::from_f64(number.into());
    }
    got.expect(&expected)?;
    let back = dequantized::<Q, f32>(gpu, &got, [1, 2], &place)?;
    let is_nan = |at: usize| back[at].is_nan();
    if [0, 20].map(is_nan) != [Q::DTYPE == ferrotile::Dtype::E4M3; 2] || [3, 9].into_iter().any(is_nan) {
        return Err(format!("NaN comes back as {back:?}").into());
    }
    // A head of nothing else.
    let x = [f32::NAN, f32::INFINITY, f32::NAN, f32::NEG_INFINITY, 0.0, -0.0, f32::NAN, f32::NAN];
    let place = Placement::contiguous([1, 1, 1, 8], Layout::Bhsd);
    let got = quantized::<f32, Q>(gpu, &x, [1, 1], &place)?;
    got.expect(&crate::case::expected([1, 1, 1, 8], &x, [1, 1]))
}

/// Largest magnitudes about every end: subnormal ones, about 10^-6, where factors of integers begin, and f32::MAX.
fn magnitudes<Q: Float + Poison>(gpu: &Gpu) -> Result<(), Failed> {
    let about = |x: f32| [x.next_down(), x, x.next_up()];
    let least_of_factors = f32::MIN_POSITIVE * LARGEST;
    let largest: Vec<f32> = [0.0, f32::from_bits(1), f32::MIN_POSITIVE, f32::MAX, 1e-6, 448e-6, 448e4]
        .into_iter()
        .chain(about(1e-6))
        .chain(about(least_of_factors))
        .collect();
    let shape = [1, largest.len(), 1, 8];
    let x: Vec<f32> =
        largest.iter().flat_map(|x| [1.0, -1.0, 0.5, -0.25, 0.001, 0.0, -0.75, 0.99].map(|share| share * x)).collect();
    let expected = expected::<f32, Q>(shape, &x, [1, largest.len()]);
    let ones = expected.factors.iter().filter(|&&factor| factor == 1.0).count();
    // 0, the subnormal number, and what stands below the end of the type.
    assert_eq!(ones, if Q::DTYPE == ferrotile::Dtype::E4M3 { 4 } else { 9 });
    quantized::<f32, Q>(gpu, &x, [1, largest.len()], &Placement::contiguous(shape, Layout::Bhsd))?.expect(&expected)
}

fn empty<Q: Float + Poison>(gpu: &Gpu) -> Result<(), Failed> {
    for (shape, groups) in [
        ([1, 2, 0, 64], [1, 2]),
        ([2, 2, 3, 0], [2, 2]),
        ([0, 3, 4, 8], [1, 3]),
        ([2, 0, 4, 8], [1, 1]),
        ([0, 3, 4, 8], [0, 3]),
    ] {
        let place = Placement::contiguous(shape, Layout::Bhsd);
        let got = quantized::<f16, Q>(gpu, &[], groups, &place)?;
        got.expect(&expected::<f16, Q>(shape, &[], groups)).map_err(|error| of(shape, groups, error))?;
        if got.factors.iter().any(|&factor| factor != 1.0) {
            return Err(format!("{shape:?}: factors {:?}", got.factors).into());
        }
        dequantized::<Q, f16>(gpu, &got, groups, &place)?;
    }
    Ok(())
}
