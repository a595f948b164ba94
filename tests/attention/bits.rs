//! Results that must be the same, bit by bit: wherever the tensors lie, and however often the kernel runs.

use ferrotile::{Gpu, Layout, Mask};
use half::{bf16, f16};
use tests::inputs::Half;
use tests::is_small;
use tests::view::View;

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Placement, for_each_config, run, run_contiguous, run_or_refuse};

/// Runs of one kernel on one input.
const REPEATS: usize = 200;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("repeated_runs_are_the_same", &(), repeated_runs::<f16>, repeated_runs::<bf16>);
    for (name, place) in PLACEMENTS {
        let name = format!("placement_does_not_matter/{name}");
        trials.both(&name, &place, placed::<f16>, placed::<bf16>);
    }
    trials.both("strides_never_taken_do_not_matter", &(), single_rows::<f16>, single_rows::<bf16>);
    for (name, shared) in [("batch", [true, false]), ("head", [false, true]), ("batch_and_head", [true, true])] {
        let name = format!("broadcast_keys_and_values/{name}");
        trials.both(&name, &shared, broadcast::<f16>, broadcast::<bf16>);
    }
}

/// Places the tensors of a case.
type MakePlacement = fn(&Case) -> Placement;

const PLACEMENTS: [(&str, MakePlacement); 9] = [
    ("bshd", |case| Placement::contiguous(case, Layout::Bshd)),
    ("fused_qkv", fused),
    ("odd_offset_of_q", |case| moved(case, [1, 0, 0, 0])),
    ("odd_offset_of_k_and_v", |case| moved(case, [0, 3, 1, 0])),
    ("odd_offset_of_o", |case| moved(case, [0, 0, 0, 7])),
    ("rows_far_apart", |case| padded(case, 24)),
    ("rows_at_odd_strides", |case| padded(case, 3)),
    ("rows_in_reverse", |case| {
        let placement = reversed_out(case);
        Placement { inputs: placement.inputs.map(reversed), ..placement }
    }),
    ("rows_of_o_in_reverse", reversed_out),
];

fn case(head_dim: usize) -> Case {
    Case::new(2, 3, 67, 131, head_dim, Mask::Causal)
}

const HEAD_DIMS: [usize; 4] = [64, 128, 40, 256];

fn placed<T: Half>(gpu: &Gpu, place: &MakePlacement) -> Outcome {
    for head_dim in HEAD_DIMS {
        // A fused tensor has as many rows of Q as of K.
        let cases = if is_small(gpu) {
            [Case::new(2, 2, 19, 37, head_dim, Mask::Causal), Case::new(2, 2, 19, 19, head_dim, Mask::Full)]
        } else {
            [case(head_dim), Case::new(2, 3, 70, 70, head_dim, Mask::Full)]
        };
        for case in &cases {
            let inputs = Inputs::<T>::normal(case, 5);
            let placement = place(case);
            for_each_config::<T>(gpu, case, |config| match run_or_refuse(gpu, case, &inputs, &placement, config)? {
                Some(output) => output.check_same(case, &run_contiguous(gpu, case, &inputs, config)?),
                None => Ok(()),
            })?;
        }
    }
    Ok(())
}

fn repeated_runs<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let full = Case::new(1, 1, 260, 70, 128, Mask::Full);
    for mut case in HEAD_DIMS.map(case).into_iter().chain([full]) {
        if is_small(gpu) {
            case = Case::new(1, 1, case.sizes.q_len, case.sizes.k_len, case.sizes.head_dim, case.mask);
        }
        let inputs = Inputs::<T>::normal(&case, 6);
        for_each_config::<T>(gpu, &case, |config| {
            let first = run_contiguous(gpu, &case, &inputs, config)?;
            let repeats = if is_small(gpu) { 2 } else { REPEATS };
            (1..repeats).try_for_each(|_| run_contiguous(gpu, &case, &inputs, config)?.check_same(&case, &first))
        })?;
    }
    Ok(())
}

/// One row and one key, whose tensors have a stride from row to row that would leave every other row misaligned.
fn single_rows<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in HEAD_DIMS {
        let case = Case::new(2, 3, 1, 1, head_dim, Mask::Full);
        let inputs = Inputs::<T>::normal(&case, 8);
        let mut placement = Placement::contiguous(&case, Layout::Bhsd);
        for view in placement.inputs.iter_mut().chain([&mut placement.out]) {
            view.strides[2] = head_dim as i64 + 1;
        }
        for_each_config::<T>(gpu, &case, |config| {
            run(gpu, &case, &inputs, &placement, config)?
                .check_same(&case, &run_contiguous(gpu, &case, &inputs, config)?)
        })?;
    }
    Ok(())
}

/// Keys and values that are stored once and read, with a stride of 0, by every batch entry, head or both.
fn broadcast<T: Half>(gpu: &Gpu, &[batch, head]: &[bool; 2]) -> Outcome {
    for head_dim in HEAD_DIMS {
        let case = if is_small(gpu) { Case::new(2, 2, 19, 70, head_dim, Mask::Causal) } else { case(head_dim) };
        let mut placement = Placement::contiguous(&case, Layout::Bhsd);
        for view in &mut placement.inputs[1..] {
            let shared = |shared: bool, stride: i64| if shared { 0 } else { stride };
            view.strides = [shared(batch, view.strides[0]), shared(head, view.strides[1]), head_dim as i64, 1];
        }
        let mut inputs = Inputs::<T>::normal(&case, 7);
        for (values, view) in [(&mut inputs.k, placement.inputs[1]), (&mut inputs.v, placement.inputs[2])] {
            // What the view shows once the storage is written: each element as the last one stored at its place.
            let mut storage = vec![T::poison(); view.storage_len()];
            view.scatter(values, &mut storage);
            *values = view.gather(&storage);
        }
        for_each_config::<T>(gpu, &case, |config| {
            run(gpu, &case, &inputs, &placement, config)?
                .check_same(&case, &run_contiguous(gpu, &case, &inputs, config)?)
        })?;
    }
    Ok(())
}

/// One tensor `[batch, row, 3, head, element]` that holds Q, K and V; contiguous where Q and K differ in length.
fn fused(case: &Case) -> Placement {
    let mut placement = Placement::contiguous(case, Layout::Bshd);
    let [_, heads, rows, elements] = case.q_shape().map(|size| size as i64);
    if case.q_shape() == case.kv_shape() {
        let strides = [rows * 3 * heads * elements, elements, 3 * heads * elements, 1];
        let view = View { offset: 0, shape: case.q_shape(), strides };
        let part = (heads * elements) as usize;
        placement.inputs = [view, view.moved(part), view.moved(2 * part)];
        placement.fused = true;
    }
    placement
}

fn moved(case: &Case, [q, k, v, out]: [usize; 4]) -> Placement {
    let mut placement = Placement::contiguous(case, Layout::Bhsd);
    for (view, by) in placement.inputs.iter_mut().zip([q, k, v]) {
        *view = view.moved(by);
    }
    placement.out = placement.out.moved(out);
    placement
}

/// Rows with `gap` elements of something else after each, and heads and batch entries with twice that.
fn padded(case: &Case, gap: i64) -> Placement {
    let pad = |view: &mut View| {
        let [_, heads, rows, elements] = view.shape.map(|size| size as i64);
        let row = elements + gap;
        let head = rows * row + 2 * gap;
        view.strides = [heads * head + 2 * gap, head, row, 1];
    };
    let mut placement = Placement::contiguous(case, Layout::Bhsd);
    placement.inputs.iter_mut().for_each(pad);
    pad(&mut placement.out);
    placement
}

/// Rows of O stored last to first.
fn reversed_out(case: &Case) -> Placement {
    let placement = Placement::contiguous(case, Layout::Bhsd);
    Placement { out: reversed(placement.out), ..placement }
}

/// The same rows, stored last to first.
fn reversed(view: View) -> View {
    let [_, _, rows, elements] = view.shape;
    let [batch, head, row, element] = view.strides;
    View { offset: view.offset + (rows - 1) * elements, strides: [batch, head, -row, element], ..view }
}
