//! Extreme scores, NaN and infinity.

use ferrotile::tolerance::element_error;
use ferrotile::{Gpu, Mask};
use half::{bf16, f16};
use tests::inputs::{self, Half};
use variants::attention::{AttentionConfig, AttentionKernel, DECODE_KEYS, DECODE_ROWS};

use crate::Trials;
use crate::case::{Case, Expected, Inputs, Outcome, few, for_each_config, run_contiguous};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("scores_far_below_zero", &(), far_below_zero::<f16>, far_below_zero::<bf16>);
    trials.both("scores_far_above_zero", &(), far_above_zero::<f16>, far_above_zero::<bf16>);
    trials.both("scores_of_minus_infinity_are_unseen", &(), all_minus_infinity::<f16>, all_minus_infinity::<bf16>);
    trials.both("scores_that_grow_with_the_key", &(), growing_scores::<f16>, growing_scores::<bf16>);
    for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for tensor in [Tensor::Q, Tensor::K, Tensor::V] {
            let name = format!("only_rows_that_see_it_have_it/{special}_in_{tensor:?}");
            trials.both(&name, &(tensor, special), spreads::<f16>, spreads::<bf16>);
        }
    }
}

/// Every score is below -5e4, where f32 resolves 1/256 and a maximum that starts at a finite number would be wrong.
fn far_below_zero<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    offset_scores::<T>(gpu, -1.0)
}

/// Every score is above 5e4: exponentials overflow unless the maximum is subtracted.
fn far_above_zero<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    offset_scores::<T>(gpu, 1.0)
}

/// Scores `sign * (magnitude of the rest of the row) + (a small integer of the key)`, exact in f32.
fn offset_scores<T: Half>(gpu: &Gpu, sign: f64) -> Outcome {
    for head_dim in [64, 128, 248] {
        for mask in [Mask::Full, Mask::Causal] {
            let case = Case::new(1, few(gpu, 2), 70, 133, head_dim, mask).scaled(1.0);
            let mut random = inputs::random(8);
            let mut inputs = Inputs::<T>::normal(&case, 8);
            // At least 63 products of 30 * 30.
            inputs.q.fill(T::from_f64(30.0 * sign));
            inputs.k.fill(T::from_f64(30.0));
            inputs.q.iter_mut().step_by(head_dim).for_each(|first| *first = T::from_f64(1.0));
            let keys = inputs.k.len() / head_dim;
            let firsts = inputs::integers::<T>(&mut random, keys, 2);
            inputs.k.iter_mut().step_by(head_dim).zip(firsts).for_each(|(first, value)| *first = value);
            let expected = inputs.expected(&case);
            if !expected.lse.iter().all(|lse| lse * sign > 5e4) {
                return Err("the scores are not as large as they are meant to be".into());
            }
            for_each_config::<T>(gpu, &case, |config| {
                run_contiguous(gpu, &case, &inputs, config)?.check(&case, &expected)
            })?;
        }
    }
    Ok(())
}

/// Every score of one head is minus infinity: its rows are like rows without keys.
fn all_minus_infinity<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in [64, 128, 72] {
        let case = Case::new(1, 2, 70, 133, head_dim, Mask::Causal);
        let mut inputs = Inputs::<T>::normal(&case, 11);
        inputs.q[..70 * head_dim].fill(T::from_f64(1.0));
        inputs.k[..133 * head_dim].fill(T::from_f64(f64::NEG_INFINITY));
        let expected = inputs.expected(&case);
        if expected.lse[..70].iter().any(|lse| *lse != f64::NEG_INFINITY)
            || expected.out[..70 * head_dim].iter().any(|x| *x != 0.0)
        {
            return Err("the reference does not call these rows unseen".into());
        }
        for_each_config::<T>(gpu, &case, |config| {
            run_contiguous(gpu, &case, &inputs, config)?.check(&case, &expected)
        })?;
    }
    Ok(())
}

/// Each tile of keys has a larger maximum than the one before, so that every step rescales what was summed.
fn growing_scores<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in [64, 128, 24] {
        for step in [1.0 / 16.0, 4.0, -4.0] {
            let case = Case::new(1, 2, 70, 260, head_dim, Mask::Full).scaled(1.0);
            let mut inputs = Inputs::<T>::of_deviation(&case, 9, [0.1, 0.1, 1.0]);
            for (row, query) in inputs.q.chunks_mut(head_dim).enumerate() {
                query[row % head_dim] = T::from_f64(0.0);
                query[0] = T::from_f64(step);
            }
            for (key, values) in inputs.k.chunks_mut(head_dim).enumerate() {
                values[0] = T::from_f64((key % 260) as f64);
            }
            let expected = Expected { lse_limit: inputs.lse_limit(&case), ..inputs.expected(&case) };
            for_each_config::<T>(gpu, &case, |config| {
                run_contiguous(gpu, &case, &inputs, config)?.check(&case, &expected)
            })?;
        }
    }
    Ok(())
}

/// The tensor with the special element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tensor {
    Q,
    K,
    V,
}

/// Key or row that has the special element, among 200.
const PLACE: usize = 150;

/// Puts one special element into one row of one head; rows of O that do not see it must be as they are without it.
///
/// A row that sees it must be what the reference says, element by element: NaN where it is NaN, infinite where it is.
fn spreads<T: Half>(gpu: &Gpu, &(tensor, special): &(Tensor, f64)) -> Outcome {
    for head_dim in [64, 128, 72] {
        let case = Case::new(1, 3, 200, 200, head_dim, Mask::Window { left: 20, right: 0 });
        let clean = Inputs::<T>::normal(&case, 10);
        let mut inputs = clean.clone();
        let values = match tensor {
            Tensor::Q => &mut inputs.q,
            Tensor::K => &mut inputs.k,
            Tensor::V => &mut inputs.v,
        };
        // The middle one of three heads.
        values[(200 + PLACE) * head_dim + 5] = T::from_f64(special);
        let (expected, without) = (inputs.expected(&case), clean.expected(&case));
        let sees = |index: usize| {
            index / 200 == 1
                && match tensor {
                    Tensor::Q => index % 200 == PLACE,
                    Tensor::K | Tensor::V => case.mask.key_range(index % 200, 200, 200).contains(&PLACE),
                }
        };
        for_each_config::<T>(gpu, &case, |config| {
            let output = run_contiguous(gpu, &case, &inputs, config)?;
            for index in 0..600 {
                let range = index * head_dim..(index + 1) * head_dim;
                let (got, lse) = (&output.out[range.clone()], f64::from(output.lse[index]));
                if sees(index) {
                    same_kind(got.iter().map(|x| x.to_f64()), &expected.out[range], index)?;
                    same_kind([lse].into_iter(), &expected.lse[index..=index], index)?;
                    continue;
                }
                let allowed_nan =
                    tensor == Tensor::V && index / 200 == 1 && may_meet_in_a_tile(config, &case, index % 200);
                for (element, (got, want)) in got.iter().zip(&without.out[range]).enumerate() {
                    let error = element_error(got.to_f64(), *want);
                    if error > without.limit.max_abs && !(allowed_nan && got.to_f64().is_nan() && element == 5) {
                        return Err(format!("row {index}, element {element} is {got:?}, expected {want:e}").into());
                    }
                }
                if element_error(lse, without.lse[index]) > without.lse_limit {
                    return Err(format!("LSE of row {index} is {lse:e}, expected {:e}", without.lse[index]).into());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether the special key may be in a tile of keys that the query tile of this row works on.
///
/// 0 * NaN is NaN: where tiles are multiplied whole, V also reaches the rows of a query tile that the mask hides it
/// from. The scalar kernel has no tiles.
fn may_meet_in_a_tile(config: &AttentionConfig, case: &Case, q_row: usize) -> bool {
    let (m, n) = match config.kernel {
        AttentionKernel::Scalar => return false,
        AttentionKernel::Mma(tile) => (tile.m, tile.n),
        AttentionKernel::Wgmma(tile) => (tile.m(), tile.n),
        AttentionKernel::Decode(_) => (DECODE_ROWS, DECODE_KEYS),
    };
    let (first, last) = (q_row / m * m, (q_row / m * m + m).min(200) - 1);
    let visible = case.mask.key_range(first, 200, 200).start..case.mask.key_range(last, 200, 200).end;
    visible.start < PLACE + n && PLACE < visible.end + n
}

fn same_kind(got: impl Iterator<Item = f64>, expected: &[f64], row: usize) -> Outcome {
    let kind = |x: f64| {
        if x.is_nan() {
            "NaN"
        } else if x.is_infinite() {
            "infinite"
        } else {
            "finite"
        }
    };
    for (got, &expected) in got.zip(expected) {
        let same_sign = !expected.is_infinite() || got == expected;
        if kind(got) != kind(expected) || !same_sign {
            return Err(format!("row {row} sees the special element and is {got:e}, expected {expected:e}").into());
        }
    }
    Ok(())
}
