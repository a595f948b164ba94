//! Views of buffers and tensor maps of views.

use ferrotile::{Buffer, Element, Error, Gpu, Swizzle, TensorMap, TensorMut, TensorRef};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::expect_error;

use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("views_start_where_they_say", views),
    test("views_outside_their_buffer_are_refused", out_of_bounds),
    test("views_that_overlap_themselves_are_read_only", overlap),
    test("views_of_an_empty_buffer", empty),
    test("tensor_maps_of_what_tma_cannot_copy_are_refused", refused_maps),
    test("tensor_maps_of_every_type_and_swizzle/f16", maps::<f16>),
    test("tensor_maps_of_every_type_and_swizzle/bf16", maps::<bf16>),
    test("tensor_maps_of_every_type_and_swizzle/f32", maps::<f32>),
    test("tensor_maps_of_every_type_and_swizzle/u32", maps::<u32>),
    test("tensor_maps_of_every_type_and_swizzle/i32", maps::<i32>),
    test("tensor_maps_of_every_type_and_swizzle/u16", maps::<u16>),
    test("tensor_maps_of_every_type_and_swizzle/u8", maps::<u8>),
    test("tensor_maps_of_one_to_five_dimensions", map_ranks),
    test("tensor_maps_ignore_strides_that_are_never_taken", untaken_strides),
];

/// Elements of the buffer that views are cut from.
const LEN: usize = 1000;

fn views(gpu: &Gpu) -> Outcome {
    let mut buffer = Buffer::<f32>::zeroed(gpu, LEN)?;
    let whole = TensorRef::contiguous(&buffer, [10, 20, 5])?;
    expect_equal("strides", whole.strides(), &[100, 5, 1])?;
    expect_equal("contiguous", &whole.is_contiguous(), &true)?;
    // Ordinary, repeated, backwards, and the last element alone.
    for (offset, shape, strides) in [
        (3, [9, 20], [100, 1]),
        (990, [7, 10], [0, 1]),
        (900, [10, 100], [-100, 1]),
        (999, [1, 1], [0, 1]),
        (999, [1, 1], [i64::MIN, i64::MAX]),
    ] {
        let view = TensorRef::strided(&buffer, offset, shape, strides)?;
        expect_equal("address", &view.as_raw(), &(buffer.as_raw() + 4 * offset as u64))?;
        expect_equal("shape", &(*view.shape(), *view.strides()), &(shape, strides))?;
        expect_equal("device", &view.ordinal(), &gpu.ordinal())?;
    }
    let address = buffer.as_raw();
    let mut backwards = TensorMut::strided(&mut buffer, 900, [10, 100], [-100, 1])?;
    expect_equal("address", &backwards.reborrow().as_raw(), &(address + 3600))?;
    expect_equal("the same to read", backwards.as_ref().strides(), &[-100, 1])
}

fn out_of_bounds(gpu: &Gpu) -> Outcome {
    let mut buffer = Buffer::<u16>::zeroed(gpu, LEN)?;
    for (offset, shape, strides) in [
        (1, [10, 100], [100, 1]),
        (0, [11, 100], [100, 1]),
        (991, [7, 10], [0, 1]),
        (899, [10, 100], [-100, 1]),
        (1000, [1, 1], [1, 1]),
        (usize::MAX, [1, 1], [1, 1]),
        (0, [2, 1], [i64::MAX, 1]),
        (0, [2, 1], [i64::MIN, 1]),
        (1001, [0, 1], [1, 1]),
    ] {
        let is_right =
            |error: &Error| matches!(error, Error::OutOfBounds { offset: o, len, .. } if (*o, *len) == (offset, LEN));
        expect_error(TensorRef::strided(&buffer, offset, shape, strides), is_right)?;
        expect_error(TensorMut::strided(&mut buffer, offset, shape, strides), is_right)?;
    }
    let gaps = TensorRef::strided(&buffer, 0, [10, 10], [100, 2]);
    expect_error(gaps, |error| matches!(error, Error::LastStride { stride: 2 }))
}

fn overlap(gpu: &Gpu) -> Outcome {
    let mut buffer = Buffer::<u8>::zeroed(gpu, LEN)?;
    for (shape, strides) in [([4, 10], [0, 1]), ([4, 10], [9, 1]), ([2, 3], [2, 1])] {
        TensorRef::strided(&buffer, 0, shape, strides)?;
        let written = TensorMut::strided(&mut buffer, 0, shape, strides);
        expect_error(written, |error| matches!(error, Error::Overlap { .. }))?;
    }
    Ok(())
}

fn empty(gpu: &Gpu) -> Outcome {
    let mut buffer = Buffer::<i32>::zeroed(gpu, 0)?;
    expect_equal("contiguous", &TensorRef::contiguous(&buffer, [3, 0])?.is_contiguous(), &true)?;
    TensorMut::strided(&mut buffer, 0, [0, 4], [0, 1])?;
    let one = TensorRef::strided(&buffer, 0, [1, 1], [1, 1]);
    expect_error(one, |error| matches!(error, Error::OutOfBounds { len: 0, .. }))
}

fn refused_maps(gpu: &Gpu) -> Outcome {
    let buffer = Buffer::<f16>::zeroed(gpu, 64 * 64)?;
    let view = |offset, shape, strides| TensorRef::strided(&buffer, offset, shape, strides);
    let whole = TensorRef::contiguous(&buffer, [64, 64])?;
    let argument = |name: &'static str| move |error: &Error| matches!(error, Error::Argument { argument, .. } if *argument == name);
    let misaligned = |error: &Error| matches!(error, Error::Alignment { align: 16, .. });
    let map = |tensor, box_shape, swizzle| TensorMap::tiled(gpu, &tensor, box_shape, swizzle);
    expect_error(map(view(0, [0, 64], [64, 1])?, [8, 64], Swizzle::None), argument("the shape"))?;
    expect_error(map(view(4032, [64, 64], [-64, 1])?, [8, 64], Swizzle::None), argument("the strides"))?;
    expect_error(map(view(4, [8, 32], [64, 1])?, [8, 32], Swizzle::None), misaligned)?;
    expect_error(map(view(0, [8, 32], [60, 1])?, [8, 32], Swizzle::None), misaligned)?;
    for box_shape in [[0, 64], [257, 64], [8, 4], [8, 0]] {
        expect_error(map(whole, box_shape, Swizzle::None), argument("the box shape"))?;
    }
    for (swizzle, columns) in [(Swizzle::B32, 24), (Swizzle::B64, 40), (Swizzle::B128, 72)] {
        expect_error(map(whole, [8, columns], swizzle), argument("the box shape"))?;
    }
    let elsewhere = gpu.ordinal() + 1;
    // SAFETY: the view is not used.
    let foreign = unsafe { TensorRef::<f16, 2>::from_raw(elsewhere, buffer.as_raw(), [64, 64], [64, 1]) }?;
    expect_error(
        map(foreign, [8, 64], Swizzle::None),
        |error| matches!(error, Error::WrongDevice { got, expected, .. } if (*got, *expected) == (elsewhere, gpu.ordinal())),
    )
}

/// The map of a tile. Cards without the accelerator have no use for one, and there the driver may refuse: then there is
/// none.
fn encode<T: Element, const RANK: usize>(
    gpu: &Gpu,
    tensor: TensorRef<'_, T, RANK>,
    tile: [u32; RANK],
    swizzle: Swizzle,
) -> Result<Option<TensorMap>, Failed> {
    match TensorMap::tiled(gpu, &tensor, tile, swizzle) {
        Ok(map) => Ok(Some(map)),
        Err(Error::Driver { .. } | Error::DriverTooOld { .. }) if gpu.compute_capability() < (9, 0) => Ok(None),
        Err(error) => Err(format!("{tensor:?}, tile {tile:?}, {swizzle:?}: {error}").into()),
    }
}

fn maps<T: Element>(gpu: &Gpu) -> Outcome {
    let buffer = Buffer::<T>::zeroed(gpu, 64 * 256)?;
    let tensor = TensorRef::contiguous(&buffer, [64, 256])?;
    let unit = 16 / size_of::<T>() as u32;
    let mut maps = Vec::new();
    for swizzle in Swizzle::ALL {
        // The widest tile of the swizzle, and one that every swizzle takes.
        encode(gpu, tensor, [256, swizzle.row_bytes() / size_of::<T>() as u32], swizzle)?;
        let map = encode(gpu, tensor, [8, unit], swizzle)?;
        expect_equal("the same again", &encode(gpu, tensor, [8, unit], swizzle)?, &map)?;
        if map.is_some_and(|map| maps.contains(&map)) {
            return Err(format!("{swizzle:?} makes the same map as another swizzle").into());
        }
        maps.extend(map);
    }
    Ok(())
}

fn map_ranks(gpu: &Gpu) -> Outcome {
    let buffer = Buffer::<f16>::zeroed(gpu, 64 * 64)?;
    encode(gpu, TensorRef::contiguous(&buffer, [4096])?, [256], Swizzle::None)?;
    encode(gpu, TensorRef::contiguous(&buffer, [64, 64])?, [64, 64], Swizzle::B128)?;
    encode(gpu, TensorRef::contiguous(&buffer, [4, 16, 64])?, [1, 16, 64], Swizzle::B128)?;
    encode(gpu, TensorRef::contiguous(&buffer, [2, 2, 16, 64])?, [1, 1, 16, 64], Swizzle::B128)?;
    encode(gpu, TensorRef::contiguous(&buffer, [2, 2, 2, 8, 64])?, [1, 1, 2, 8, 64], Swizzle::B128)?;
    // A tile that reaches beyond the tensor, whose rows are apart.
    encode(gpu, TensorRef::strided(&buffer, 8, [9, 40], [64, 1])?, [16, 64], Swizzle::B128)?;
    Ok(())
}

/// The stride of a last dimension of one element can be anything.
fn untaken_strides(gpu: &Gpu) -> Outcome {
    let buffer = Buffer::<f32>::zeroed(gpu, LEN)?;
    let map = |stride| {
        let view = TensorRef::strided(&buffer, 0, [10, 1], [4, stride])?;
        TensorMap::tiled(gpu, &view, [8, 4], Swizzle::None)
    };
    for stride in [i64::MIN, -1, i64::MAX] {
        match gpu.compute_capability() {
            (9.., _) => expect_equal("the map", &map(stride)?, &map(1)?)?,
            // The driver may not encode maps for older cards.
            _ => drop(map(stride)),
        }
    }
    Ok(())
}
