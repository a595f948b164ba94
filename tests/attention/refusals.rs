//! Calls that cannot be served: a typed error before anything is written.

use ferrotile::{AttentionTensors, Dtype, Error, Gpu, Layout, Mask, TensorMut, TensorRef, attention};
use half::{bf16, f16};
use tests::expect_error;
use tests::guard::Guarded;
use tests::inputs::Half;
use tests::request::Request;
use tests::view::View;

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Placement, Stored, dense};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for (name, refusal) in REFUSALS {
        trials.both(&format!("refuses/{name}"), &refusal, refused::<f16>, refused::<bf16>);
    }
    trials.both("refuses/overlapping_output", &(), overlapping_output::<f16>, overlapping_output::<bf16>);
    trials.both("refuses/views_outside_a_buffer", &(), outside_buffer::<f16>, outside_buffer::<bf16>);
    trials.both("refuses/gaps_between_elements", &(), gaps_between_elements::<f16>, gaps_between_elements::<bf16>);
    trials.both("refuses/tensors_of_another_type_than_the_plan", &(), other_type::<f16>, other_type::<bf16>);
}

/// A call that is right but for one thing, and the error that it must give.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    /// Changes the shapes [batch, head, row, element] of Q, K, V and O, and that of LSE.
    shapes: fn(&mut [[usize; 4]; 4], &mut [usize; 3]),
    /// Changes the options.
    options: fn(&mut Request),
    /// Whether the error is the right one.
    is_right: fn(&Error) -> bool,
}

/// Shapes that fit together, and options that do.
const RIGHT: Refusal = Refusal { shapes: |_, _| (), options: |_| (), is_right: |_| false };

fn is_shape_of(error: &Error, name: &str) -> bool {
    matches!(error, Error::Shape { tensor, .. } if *tensor == name)
}

fn is_argument(error: &Error, name: &str) -> bool {
    matches!(error, Error::Argument { argument, .. } if *argument == name)
}

fn is_unknown_kernel(error: &Error, name: &str) -> bool {
    matches!(error, Error::UnknownKernel { name: got, known, .. } if got == name && !known.is_empty())
}

const REFUSALS: [(&str, Refusal); 15] = [
    ("keys_of_another_batch", Refusal { shapes: |s, _| s[1][0] = 3, is_right: |e| is_shape_of(e, "K"), ..RIGHT }),
    ("keys_of_another_head_dim", Refusal { shapes: |s, _| s[1][3] = 72, is_right: |e| is_shape_of(e, "K"), ..RIGHT }),
    ("values_of_another_length", Refusal { shapes: |s, _| s[2][2] += 1, is_right: |e| is_shape_of(e, "V"), ..RIGHT }),
    ("values_of_other_heads", Refusal { shapes: |s, _| s[2][1] = 1, is_right: |e| is_shape_of(e, "V"), ..RIGHT }),
    (
        "an_output_of_another_length",
        Refusal { shapes: |s, _| s[3][2] -= 1, is_right: |e| is_shape_of(e, "O"), ..RIGHT },
    ),
    (
        "an_output_of_another_head_dim",
        Refusal { shapes: |s, _| s[3][3] = 56, is_right: |e| is_shape_of(e, "O"), ..RIGHT },
    ),
    ("an_lse_of_another_length", Refusal { shapes: |_, l| l[2] += 1, is_right: |e| is_shape_of(e, "LSE"), ..RIGHT }),
    (
        "heads_that_cannot_be_shared",
        Refusal {
            shapes: |s, l| {
                (s[0][1], s[3][1], l[1]) = (3, 3, 3);
                (s[1][1], s[2][1]) = (2, 2);
            },
            is_right: |e| is_argument(e, "kv_heads"),
            ..RIGHT
        },
    ),
    (
        "a_head_dim_that_is_no_multiple_of_8",
        Refusal {
            shapes: |s, _| s.iter_mut().for_each(|s| s[3] = 60),
            is_right: |e| is_argument(e, "head_dim"),
            ..RIGHT
        },
    ),
    (
        "a_head_dim_above_256",
        Refusal {
            shapes: |s, _| s.iter_mut().for_each(|s| s[3] = 264),
            is_right: |e| is_argument(e, "head_dim"),
            ..RIGHT
        },
    ),
    (
        "an_unknown_kernel",
        Refusal {
            options: |o| o.kernel = Some("fastest".to_owned()),
            is_right: |e| is_unknown_kernel(e, "fastest"),
            ..RIGHT
        },
    ),
    (
        "a_kernel_for_narrower_heads",
        Refusal {
            shapes: |s, _| s.iter_mut().for_each(|s| s[3] = 256),
            options: |o| o.kernel = narrow_kernel(),
            is_right: |e| matches!(e, Error::UnknownKernel { .. }),
        },
    ),
    (
        "a_scale_that_is_not_a_number",
        Refusal { options: |o| o.scale = Some(f32::NAN), is_right: |e| is_argument(e, "scale"), ..RIGHT },
    ),
    ("keys_in_no_splits", Refusal { options: |o| o.splits = Some(0), is_right: |e| is_argument(e, "splits"), ..RIGHT }),
    (
        "an_infinite_scale",
        Refusal { options: |o| o.scale = Some(f32::INFINITY), is_right: |e| is_argument(e, "scale"), ..RIGHT },
    ),
];

/// A kernel that serves no head dimension as wide as 256, for f16.
fn narrow_kernel() -> Option<String> {
    variants::attention::ATTENTION.iter().find(|config| config.head_dim < 256).map(|config| config.name.to_owned())
}

fn refused<T: Half>(gpu: &Gpu, refusal: &Refusal) -> Outcome {
    let stream = gpu.new_stream()?;
    let (mut shapes, mut lse_shape) = ([[2, 2, 33, 64]; 4], [2, 2, 33]);
    (refusal.shapes)(&mut shapes, &mut lse_shape);
    let mut options = Request::new(Layout::Bhsd);
    (refusal.options)(&mut options);
    let buffers = shapes.map(|shape| ferrotile::Buffer::<T>::zeroed(gpu, shape.iter().product()));
    let [q, k, v, _] = buffers;
    let (q, k, v) = (q?, k?, v?);
    let mut out = Guarded::<T>::new(gpu, &stream, shapes[3].iter().product())?;
    let mut lse = Guarded::<f32>::new(gpu, &stream, lse_shape.iter().product())?;
    let (out_view, lse_offset) = (View::contiguous(shapes[3], Layout::Bhsd).moved(out.offset()), lse.offset());
    let tensors = AttentionTensors {
        lse: Some(TensorMut::strided(lse.buffer(), lse_offset, lse_shape, dense(lse_shape))?),
        ..AttentionTensors::new(
            TensorRef::contiguous(&q, shapes[0])?,
            TensorRef::contiguous(&k, shapes[1])?,
            TensorRef::contiguous(&v, shapes[2])?,
            out_view.tensor_mut(out.buffer(), Layout::Bhsd)?,
        )
    };
    let result = attention(&stream, tensors, &options.params(), &options.options());
    expect_error(result, refusal.is_right)?;
    out.check_untouched(&stream)?;
    lse.check_untouched(&stream)
}

/// Strides by which two indices of an output are one element.
fn overlapping_output<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let mut buffer = ferrotile::Buffer::<T>::zeroed(gpu, 4096)?;
    for strides in [[0, 64, 64, 1], [128, 64, 32, 1], [512, 0, 64, 1]] {
        expect_error(TensorMut::strided(&mut buffer, 0, [2, 2, 4, 64], strides), |e| {
            matches!(e, Error::Overlap { .. })
        })?;
    }
    Ok(())
}

fn outside_buffer<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let buffer = ferrotile::Buffer::<T>::zeroed(gpu, 1024)?;
    let views =
        [(1, [1, 1, 16, 64], [0, 0, 64, 1]), (0, [1, 1, 17, 64], [0, 0, 64, 1]), (0, [1, 1, 2, 64], [0, 0, -64, 1])];
    for (offset, shape, strides) in views {
        let result = TensorRef::strided(&buffer, offset, shape, strides);
        expect_error(result, |e| matches!(e, Error::OutOfBounds { .. }))?;
    }
    Ok(())
}

fn gaps_between_elements<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let buffer = ferrotile::Buffer::<T>::zeroed(gpu, 1024)?;
    let result = TensorRef::strided(&buffer, 0, [1, 1, 4, 64], [512, 512, 128, 2]);
    expect_error(result, |e| matches!(e, Error::LastStride { stride: 2 }))
}

/// A plan for one type that is given tensors of the other.
fn other_type<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    let case = Case::new(1, 1, 16, 16, 64, Mask::Full);
    let other = if T::DTYPE == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 };
    let plan = Request::new(Layout::Bhsd).plan(gpu, other, case.sizes)?;
    let placement = Placement::contiguous(&case, Layout::Bhsd);
    let stored = Stored::upload(gpu, &Inputs::<T>::normal(&case, 0), &placement)?;
    let mut out = Guarded::<T>::new(gpu, &stream, placement.out.count())?;
    let view = placement.out.moved(out.offset());
    let [q, k, v] = stored.tensors(&placement)?;
    let result = plan.run(&stream, AttentionTensors::new(q, k, v, view.tensor_mut(out.buffer(), Layout::Bhsd)?));
    expect_error(result, |e| is_argument(e, "element type"))?;
    out.check_untouched(&stream)
}
