//! Results that must be the same, bit by bit: wherever the tensors lie, and however often the kernel runs.

use ferrotile::{GemmLayout, Gpu};
use half::{bf16, f16};
use tests::compare::check_same;
use tests::is_small;
use tests::view::View;

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Placement, Stored, check, dense, for_each_way, padded, run};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("repeated_runs_are_the_same", &(), repeated_runs::<f16>, repeated_runs::<bf16>);
    for (name, place) in PLACEMENTS {
        let name = format!("placement_does_not_matter/{name}");
        trials.both(&name, &place, placed::<f16>, placed::<bf16>);
    }
    trials.both("one_operand_for_the_whole_batch", &(), broadcast::<f16>, broadcast::<bf16>);
    trials.both("more_batch_entries_than_a_grid_has_rows", &(), many::<f16>, many::<bf16>);
}

/// Places the tensors of a case; whether the rows of A and B are on 16-byte boundaries.
type MakePlacement = (fn(Placement) -> Placement, bool);

const PLACEMENTS: [(&str, MakePlacement); 8] = [
    ("a_at_2_bytes", (|p| Placement { a: p.a.moved(1), ..p }, false)),
    ("b_at_2_bytes", (|p| Placement { b: p.b.moved(1), ..p }, false)),
    ("c_at_odd_elements", (|p| Placement { c: p.c.moved(3), ..p }, true)),
    ("d_at_odd_elements", (|p| Placement { d: p.d.moved(1), ..p }, true)),
    ("rows_far_apart", (|p| spread(p, 24), true)),
    ("odd_leading_dimensions_of_a_and_b", (|p| Placement { a: wider(p.a, 3), b: wider(p.b, 5), ..p }, false)),
    ("odd_leading_dimensions_of_c_and_d", (|p| Placement { c: wider(p.c, 7), d: wider(p.d, 1), ..p }, true)),
    ("rows_in_reverse", (|p| Placement { a: reversed(p.a), b: reversed(p.b), d: reversed(p.d), ..p }, false)),
];

/// Rows with `gap` elements of something else after each, and batch entries with twice that.
fn wider(view: View, gap: usize) -> View {
    let [_, batch, rows, columns] = view.shape;
    padded([batch, rows, columns], columns + gap, rows * (columns + gap) + 2 * gap)
}

fn spread(p: Placement, gap: usize) -> Placement {
    Placement { a: wider(p.a, gap), b: wider(p.b, gap), c: wider(p.c, gap), d: wider(p.d, gap) }
}

/// Rows stored last to first.
fn reversed(mut view: View) -> View {
    view.offset += (view.shape[2] - 1) * view.strides[2] as usize;
    view.strides[2] = -view.strides[2];
    view
}

fn case(gpu: &Gpu, layout: GemmLayout) -> Case {
    let shape = if is_small(gpu) { [16, 40, 72] } else { [136, 264, 200] };
    Case { beta: 0.5, bias: true, ..Case::new(shape, layout).batched(2) }
}

/// Every row gives what it gives on contiguous tensors; a row that is alone with this placement is compared with the
/// reference.
fn placed<T: Stored>(gpu: &Gpu, &(place, aligned): &MakePlacement) -> Outcome {
    for layout in GemmLayout::ALL {
        let case = case(gpu, layout);
        let inputs = Inputs::<T, T, T>::normal(&case, 6);
        let expected = inputs.expected(&case);
        let contiguous = Placement::contiguous::<T, T, T>(&case);
        let placement = place(contiguous);
        for_each_way::<T, T>(gpu, &case, aligned, |way| {
            let moved = run(gpu, &case, &inputs, &placement, way)?;
            check(&case, &moved, &expected)?;
            check_same(&moved, &run(gpu, &case, &inputs, &contiguous, way)?, &[2, case.m, case.n])?;
            Ok(())
        })?;
    }
    Ok(())
}

fn repeated_runs<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let repeats = if is_small(gpu) { 2 } else { 30 };
    for layout in GemmLayout::ALL {
        let case = case(gpu, layout);
        let inputs = Inputs::<T, T, T>::normal(&case, 7);
        let placement = Placement::contiguous::<T, T, T>(&case);
        for_each_way::<T, T>(gpu, &case, true, |way| {
            let first = run(gpu, &case, &inputs, &placement, way)?;
            (1..repeats).try_for_each(|_| {
                check_same(&run(gpu, &case, &inputs, &placement, way)?, &first, &[2, case.m, case.n])?;
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// A stride of 0 along the batch, of A, of B and of C.
fn broadcast<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    for layout in GemmLayout::ALL {
        let case = Case { ..case(gpu, layout).batched(3) };
        let dense_case = Placement::contiguous::<T, T, T>(&case);
        for shared in [[true, false, false], [false, true, false], [false, false, true], [true, true, true]] {
            let mut placement = dense_case;
            let mut inputs = Inputs::<T, T, T>::normal(&case, 8);
            let of_one = |values: &mut Vec<T>, view: &mut View, shared: bool| {
                if shared {
                    view.strides[1] = 0;
                    // What the view shows: the last entry that was stored, in all of them.
                    let mut storage = vec![T::poison(); view.storage_len()];
                    view.scatter(values, &mut storage);
                    *values = view.gather(&storage);
                }
            };
            of_one(&mut inputs.a, &mut placement.a, shared[0]);
            of_one(&mut inputs.b, &mut placement.b, shared[1]);
            of_one(&mut inputs.c, &mut placement.c, shared[2]);
            for_each_way::<T, T>(gpu, &case, true, |way| {
                let together = run(gpu, &case, &inputs, &placement, way)?;
                check_same(&together, &run(gpu, &case, &inputs, &dense_case, way)?, &[3, case.m, case.n])?;
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn many<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let batch = if is_small(gpu) { 20 } else { 65_540 };
    let case = Case::new([2, 3, 8], GemmLayout::Nt).batched(batch);
    let inputs = Inputs::<T, T, f32>::integers(&case, 9);
    let expected = inputs.expected(&case);
    let placement = Placement { a: dense([batch, 2, 8]), ..Placement::contiguous::<T, T, f32>(&case) };
    for_each_way::<T, T>(gpu, &case, true, |way| check(&case, &run(gpu, &case, &inputs, &placement, way)?, &expected))
}
