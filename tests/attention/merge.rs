//! Partial results put together.

use ferrotile::{
    Buffer, Error, Float, Gpu, Layout, Mask, MergeTensors, PartialAttention, TensorMut, TensorRef, merge, reference,
    tolerance,
};
use half::{bf16, f16};
use layout::Dtype;
use libtest_mimic::Failed;
use ndarray::{ArrayD, IxDyn};
use tests::guard::{Guarded, Poison};
use tests::inputs::{self, Half};
use tests::request::Request;
use tests::view::View;
use tests::{compare, shapes};

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Placement, dense, run_with};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("merge/of_two_halves_of_the_keys_is_the_whole", &(), halves::<f16>, halves::<bf16>);
    trials.both("merge/of_16_bit_parts", &(), matches_reference::<f16, f16>, matches_reference::<bf16, bf16>);
    trials.both("merge/of_16_bit_parts_in_f32", &(), matches_reference::<f16, f32>, matches_reference::<bf16, f32>);
    trials.both("merge/of_f32_parts", &(), matches_reference::<f32, f16>, matches_reference::<f32, bf16>);
    trials.add("merge/of_f32_parts_in_f32", |gpu| matches_reference::<f32, f32>(gpu, &()));
    trials.both("merge/a_part_beside_nothing_is_itself", &(), beside_nothing::<f16>, beside_nothing::<bf16>);
    trials.both("merge/what_is_no_number_stays_none", &(), not_a_number::<f16>, not_a_number::<bf16>);
    trials.both("merge/strides_do_not_matter", &(), strides::<f16>, strides::<bf16>);
    trials.both("merge/refusals", &(), refusals::<f16>, refusals::<bf16>);
}

/// Two parts: O and LSE of each, in the order batch, head, row, element.
struct Parts<P> {
    shape: [usize; 4],
    o: [Vec<P>; 2],
    lse: [Vec<f32>; 2],
}

/// A result, in the same order.
#[derive(PartialEq)]
struct Merged<O> {
    out: Vec<O>,
    lse: Vec<f32>,
}

fn lse_shape([batch, heads, rows, _]: [usize; 4]) -> [usize; 3] {
    [batch, heads, rows]
}

impl<P: Float + Poison> Parts<P> {
    /// Normally distributed parts, whose LSE are of all sizes; every seventh row of each saw no key and has poison in
    /// its O.
    fn random(shape: [usize; 4], seed: u64) -> Parts<P> {
        let mut random = inputs::random(seed);
        let rows: usize = shape[..3].iter().product();
        let mut draw = |len: usize, deviation: f64| -> Vec<f64> {
            (0..len).map(|_| deviation * inputs::normal_number(&mut random)).collect()
        };
        let mut lse =
            [draw(rows, 5.0), draw(rows, 5.0)].map(|lse| lse.into_iter().map(|x| x as f32).collect::<Vec<_>>());
        let mut o = [draw(rows * shape[3], 1.0), draw(rows * shape[3], 1.0)]
            .map(|o| o.into_iter().map(P::from_f64).collect::<Vec<_>>());
        for (part, first) in [(0, 0), (1, 3), (0, 5), (1, 5)] {
            for row in (first..rows).step_by(7) {
                lse[part][row] = f32::NEG_INFINITY;
                o[part][row * shape[3]..][..shape[3]].fill(P::poison());
            }
        }
        Parts { shape, o, lse }
    }

    /// What they are together.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let wide = |values: &[P]| values.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        let array = |values: Vec<f64>, shape: &[usize]| ArrayD::from_shape_vec(IxDyn(shape), values).expect("it fills");
        let o = |part: usize| array(wide(&self.o[part]), &self.shape).into_dimensionality().expect("four dimensions");
        let lse = |part: usize| {
            let wide = self.lse[part].iter().map(|&x| f64::from(x)).collect();
            array(wide, &self.shape[..3]).into_dimensionality().expect("three dimensions")
        };
        let (o0, o1, lse0, lse1) = (o(0), o(1), lse(0), lse(1));
        let (out, lse) = reference::merge((o0.view(), lse0.view()), (o1.view(), lse1.view()));
        (out.into_raw_vec_and_offset().0, lse.into_raw_vec_and_offset().0)
    }

    /// Merges on the card, with O of the parts and of the result where the views say.
    fn merge<O: Float + Poison>(&self, gpu: &Gpu, views: [View; 3], layout: Layout) -> Result<Merged<O>, Failed> {
        let stream = gpu.new_stream()?;
        let upload = |part: usize| {
            let mut storage = vec![P::poison(); views[part].storage_len()];
            views[part].scatter(&self.o[part], &mut storage);
            Buffer::upload_blocking(&stream, &storage)
        };
        let o = [upload(0)?, upload(1)?];
        let lse = [Buffer::upload_blocking(&stream, &self.lse[0])?, Buffer::upload_blocking(&stream, &self.lse[1])?];
        let lse_shape = lse_shape(self.shape);
        let part = |part: usize| -> Result<_, Failed> {
            let out = views[part].tensor(&o[part], layout)?;
            Ok(PartialAttention { out, lse: TensorRef::contiguous(&lse[part], lse_shape)? })
        };
        let mut out = Guarded::<O>::new(gpu, &stream, views[2].storage_len())?;
        let mut out_lse = Guarded::<f32>::new(gpu, &stream, lse_shape.iter().product())?;
        let (view, lse_offset) = (views[2].moved(out.offset()), out_lse.offset());
        let out_tensor = view.tensor_mut(out.buffer(), layout)?;
        let lse_tensor = TensorMut::strided(out_lse.buffer(), lse_offset, lse_shape, dense(lse_shape))?;
        let tensors = MergeTensors { partials: [part(0)?, part(1)?], out: out_tensor, lse: Some(lse_tensor) };
        merge(&stream, tensors, layout)?;
        Ok(Merged { out: views[2].gather_alone(&out.read(&stream)?)?, lse: out_lse.read(&stream)? })
    }

    fn merge_contiguous<O: Float + Poison>(&self, gpu: &Gpu) -> Result<Merged<O>, Failed> {
        self.merge(gpu, [View::contiguous(self.shape, Layout::Bhsd); 3], Layout::Bhsd)
    }
}

const SHAPES: [[usize; 4]; 7] =
    [[1, 1, 1, 8], [2, 3, 5, 64], [1, 2, 37, 128], [2, 2, 9, 256], [3, 1, 4, 72], [1, 1, 0, 64], [0, 2, 3, 64]];

fn matches_reference<P: Float + Poison, O: Float + Poison + Into<f64>>(gpu: &Gpu, (): &()) -> Outcome {
    for (index, shape) in SHAPES.into_iter().enumerate() {
        let parts = Parts::<P>::random(shape, 40 + index as u64);
        let (out, lse) = parts.expected();
        let merged = parts.merge_contiguous::<O>(gpu)?;
        // Beside the rounding of the result, a few of f32.
        compare::check(&merged.out, &out, &shape, tolerance::limit(O::DTYPE, 2e-6))?;
        compare::check(&merged.lse, &lse, &lse_shape(shape), tolerance::lse_limit(20.0, 2e-6))?;
    }
    Ok(())
}

fn beside_nothing<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for empty in [0, 1] {
        let mut parts = Parts::<T>::random([2, 3, 5, 128], 50);
        let full = 1 - empty;
        parts.o[full] = inputs::normal(&mut inputs::random(51), parts.o[full].len(), 3.0);
        parts.lse[full].iter_mut().enumerate().for_each(|(row, lse)| *lse = row as f32 - 7.25);
        parts.lse[empty].fill(f32::NEG_INFINITY);
        parts.o[empty].fill(T::poison());
        let merged = parts.merge_contiguous::<T>(gpu)?;
        compare::check_same(&merged.out, &parts.o[full], &parts.shape)?;
        compare::check_same(&merged.lse, &parts.lse[full], &lse_shape(parts.shape))?;
    }
    Ok(())
}

/// A part that is not a number, beside one that saw no key and beside one that did.
fn not_a_number<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for (bad, other) in [(f32::NAN, f32::NEG_INFINITY), (f32::NAN, 1.0), (f32::INFINITY, 1.0)] {
        for first in [true, false] {
            let mut parts = Parts::<T>::random([1, 2, 3, 64], 54);
            parts.lse[usize::from(!first)].fill(bad);
            parts.lse[usize::from(first)].fill(other);
            let expected = parts.expected();
            assert!(expected.0.iter().chain(&expected.1).all(|number| number.is_nan()));
            let merged = parts.merge_contiguous::<T>(gpu)?;
            if !merged.out.iter().all(|x| x.to_f64().is_nan()) || !merged.lse.iter().all(|lse| lse.is_nan()) {
                return Err(format!("an LSE of {bad} beside {other} is hidden").into());
            }
        }
    }
    Ok(())
}

fn strides<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let shape = [2, 3, 5, 72];
    let parts = Parts::<T>::random(shape, 52);
    let expected = parts.merge_contiguous::<T>(gpu)?;
    let contiguous = View::contiguous(shape, Layout::Bhsd);
    let swapped = View::contiguous(shape, Layout::Bshd);
    let odd = View { offset: 3, shape, strides: [3 * 5 * 77, 5 * 77, 77, 1] };
    let far = View { offset: 8, shape, strides: [96, 192, 3 * 192, 1] };
    let reversed = View { offset: 4 * 72, shape, strides: [15 * 72, 5 * 72, -72, 1] };
    for views in [[swapped; 3], [contiguous, swapped, far], [odd, contiguous, contiguous], [far, reversed, odd]] {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            let merged = parts.merge::<T>(gpu, views, layout)?;
            compare::check_same(&merged.out, &expected.out, &shape)?;
            compare::check_same(&merged.lse, &expected.lse, &lse_shape(shape))?;
        }
    }
    Ok(())
}

/// Attention on the keys before and after some key, merged, against attention on all of them.
fn halves<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for (q_len, head_dim) in [(1, 128), (16, 64), (70, 64), (70, 128)] {
        let k_len = 133;
        let whole = Case::new(2, 1, q_len, k_len, head_dim, Mask::Full).grouped(4, 2);
        let inputs = Inputs::<T>::normal(&whole, 53);
        let expected = inputs.expected(&whole);
        for split in shapes::around(&[64]).into_iter().chain([0, k_len]) {
            let part = |first: usize, len: usize| -> Result<_, Failed> {
                let mut case = whole;
                case.sizes.k_len = len;
                let cut = |values: &[T]| -> Vec<T> {
                    values
                        .chunks(k_len * head_dim)
                        .flat_map(|head| head[first * head_dim..][..len * head_dim].to_vec())
                        .collect()
                };
                let inputs = Inputs { q: inputs.q.clone(), k: cut(&inputs.k), v: cut(&inputs.v) };
                let options = Request::new(Layout::Bhsd);
                run_with(gpu, &case, &inputs, &Placement::contiguous(&case, Layout::Bhsd), &options)
            };
            let (left, right) = (part(0, split)?, part(split, k_len - split)?);
            let parts = Parts { shape: whole.q_shape(), o: [left.out, right.out], lse: [left.lse, right.lse] };
            let merged = parts.merge_contiguous::<T>(gpu)?;
            // The parts are rounded, and so is the result.
            compare::check(&merged.out, &expected.out, &whole.q_shape(), 2.0 * expected.limit.max_abs)?;
            compare::check(&merged.lse, &expected.lse, &whole.lse_shape(), 2.0 * expected.lse_limit)?;
        }
    }
    Ok(())
}

fn refusals<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let stream = gpu.new_stream()?;
    let o = Buffer::<T>::zeroed(gpu, 2 * 3 * 4 * 64)?;
    let lse = Buffer::<f32>::zeroed(gpu, 2 * 3 * 4)?;
    let mut out = Guarded::<T>::new(gpu, &stream, 2 * 3 * 4 * 64)?;
    let offset = out.offset();
    let mut attempt = |shape: [usize; 4], lse_shape: [usize; 3]| {
        let part = PartialAttention {
            out: TensorRef::contiguous(&o, [2, 3, 4, 64])?,
            lse: TensorRef::contiguous(&lse, [2, 3, 4])?,
        };
        let other = PartialAttention {
            out: TensorRef::strided(&o, 0, shape, [0, 0, 0, 1])?,
            lse: TensorRef::strided(&lse, 0, lse_shape, [0, 0, 1])?,
        };
        let out = TensorMut::strided(out.buffer(), offset, [2, 3, 4, 64], [768, 256, 64, 1])?;
        merge(&stream, MergeTensors::new([part, other], out), Layout::Bhsd)
    };
    let of_shape = attempt([2, 3, 5, 64], [2, 3, 4]);
    let of_lse = attempt([2, 3, 4, 64], [2, 3, 3]);
    let of_strides = attempt([2, 3, 4, 64], [2, 3, 4]);
    let right = matches!(of_shape, Err(Error::Shape { tensor: "the second O", .. }))
        && matches!(of_lse, Err(Error::Shape { tensor: "the second LSE", .. }))
        && matches!(of_strides, Err(Error::Argument { argument: "strides of the second LSE", .. }));
    if !right {
        return Err(format!("{of_shape:?}, {of_lse:?}, {of_strides:?}").into());
    }
    let part = PartialAttention {
        out: TensorRef::contiguous(&o, [2, 3, 4, 64])?,
        lse: TensorRef::contiguous(&lse, [2, 3, 4])?,
    };
    let other_type = if T::DTYPE == Dtype::F16 {
        let mut other = Buffer::<bf16>::zeroed(gpu, 1536)?;
        let out = TensorMut::contiguous(&mut other, [2, 3, 4, 64])?;
        merge(&stream, MergeTensors::new([part; 2], out), Layout::Bhsd)
    } else {
        let mut other = Buffer::<f16>::zeroed(gpu, 1536)?;
        let out = TensorMut::contiguous(&mut other, [2, 3, 4, 64])?;
        merge(&stream, MergeTensors::new([part; 2], out), Layout::Bhsd)
    };
    match other_type {
        Err(Error::Argument { argument: "element type of O", .. }) => out.check_untouched(&stream),
        other => Err(format!("{other:?}").into()),
    }
}
