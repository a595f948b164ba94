//! Inputs whose result is exact whatever the order of sums: any difference is a wrong index, mask or factor.

use ferrotile::{Gpu, Mask};
use half::{bf16, f16};
use tests::compare;
use tests::inputs::{self, Half};

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, few, for_each_config, run_contiguous};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("zero_queries_give_the_mean_of_the_values", &(), mean_of_values::<f16>, mean_of_values::<bf16>);
    trials.both("values_of_one_give_one", &(), values_of_one::<f16>, values_of_one::<bf16>);
    trials.both("a_key_that_dominates_gives_its_value", &(), dominant_key::<f16>, dominant_key::<bf16>);
    trials.both("the_largest_probability_is_1", &(), largest_probability::<f16>, largest_probability::<bf16>);
    trials.both("rows_without_keys_give_zero", &(), rows_without_keys::<f16>, rows_without_keys::<bf16>);
}

const HEAD_DIMS: [usize; 4] = [64, 128, 8, 200];

fn zeros<T: Half>(len: usize) -> Vec<T> {
    vec![T::from_f64(0.0); len]
}

/// All weights are 1, so that O is a sum of values over their number: exact where that is a power of two and the sum
/// has no more bits than the type.
fn mean_of_values<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in HEAD_DIMS {
        for k_len in [1, 2, 16, 32, 64, 128] {
            let case = Case::new(few(gpu, 2), few(gpu, 3), 37, k_len, head_dim, Mask::Full);
            let mut random = inputs::random(1);
            let mut integers = |largest| inputs::integers::<T>(&mut random, case.kv_shape().iter().product(), largest);
            let inputs = Inputs { q: zeros(case.q_shape().iter().product()), k: integers(3), v: integers(1) };
            let expected = inputs.expected(&case).out;
            for_each_config::<T>(gpu, &case, |config| {
                let output = run_contiguous(gpu, &case, &inputs, config)?;
                compare::check(&output.out, &expected, &case.q_shape(), 0.0)?;
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// The weights sum to 1. Rounding each weight to the type moves the sum by at most half an epsilon of itself. That is
/// the distance from 1 to the next value below.
fn values_of_one<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let below_one = f64::from(T::DTYPE.epsilon_exponent() - 1).exp2();
    for head_dim in HEAD_DIMS {
        for (k_len, mask) in
            [(1, Mask::Full), (77, Mask::Full), (130, Mask::Causal), (257, Mask::Window { left: 9, right: 9 })]
        {
            let case = Case::new(1, few(gpu, 2), 70.min(k_len), k_len, head_dim, mask);
            let mut inputs = Inputs::<T>::normal(&case, 2);
            inputs.v.fill(T::from_f64(1.0));
            let expected = vec![1.0; inputs.q.len()];
            for_each_config::<T>(gpu, &case, |config| {
                let output = run_contiguous(gpu, &case, &inputs, config)?;
                compare::check(&output.out, &expected, &case.q_shape(), below_one)?;
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Query `i` points at key `(5 i + head) mod k_len` so strongly that every other weight is 0: O is a copy of rows of V.
fn dominant_key<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in HEAD_DIMS {
        let k_len = head_dim.min(99);
        let case = Case::new(few(gpu, 2), 4, 131, k_len, head_dim, Mask::Full).grouped(4, 2).scaled(1.0);
        let [batch, heads, q_len, _] = case.q_shape();
        let mut inputs = Inputs::<T>::normal(&case, 3);
        inputs.q = zeros(inputs.q.len());
        inputs.k = zeros(inputs.k.len());
        let mut expected = vec![0.0; inputs.q.len()];
        for head in 0..batch * heads {
            let kv_head = head / 2;
            for row in 0..q_len {
                let key = (5 * row + head) % k_len;
                let at = (head * q_len + row) * head_dim;
                inputs.q[at + key] = T::from_f64(64.0);
                let value = &inputs.v[(kv_head * k_len + key) * head_dim..][..head_dim];
                expected[at..at + head_dim].iter_mut().zip(value).for_each(|(out, v)| *out = v.to_f64());
            }
        }
        for kv_head in 0..batch * heads / 2 {
            for key in 0..k_len {
                inputs.k[(kv_head * k_len + key) * head_dim + key] = T::from_f64(64.0);
            }
        }
        for_each_config::<T>(gpu, &case, |config| {
            let output = run_contiguous(gpu, &case, &inputs, config)?;
            compare::check(&output.out, &expected, &case.q_shape(), 0.0)?;
            // The one score that counts is 64 * 64.
            compare::check(&output.lse, &vec![4096.0; output.lse.len()], &case.lse_shape(), 1e-2)?;
            Ok(())
        })?;
    }
    Ok(())
}

fn largest_probability<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in HEAD_DIMS {
        let case = Case::new(1, 2, 40, 300, head_dim, Mask::Full).scaled(1.0);
        let largest = Largest::<T>::new(&case);
        for_each_config::<T>(gpu, &case, |config| {
            largest.check(&run_contiguous(gpu, &case, &largest.inputs, config)?.out)
        })?;
    }
    Ok(())
}

/// The largest score may come late, and is less than 2^8 above those before. Its value is 1 and the others are 0. So O
/// is the reciprocal of the sum of probabilities relative to the largest score, rounded once, if the kernel takes them
/// relative to it.
pub(crate) struct Largest<T> {
    pub(crate) inputs: Inputs<T>,
    expected: Vec<f64>,
}

impl<T: Half> Largest<T> {
    /// Scores up to 3.5 of a case of scale 1 without mask. The largest is elsewhere in each head.
    pub(crate) fn new(case: &Case) -> Self {
        let ([_, _, q_len, head_dim], [_, _, k_len, _]) = (case.q_shape(), case.kv_shape());
        let zeros_of = |shape: [usize; 4]| zeros(shape.iter().product());
        let mut inputs =
            Inputs { q: zeros_of(case.q_shape()), k: zeros_of(case.kv_shape()), v: zeros_of(case.kv_shape()) };
        for (row, query) in inputs.q.chunks_mut(head_dim).enumerate() {
            query[0] = T::from_f64(1.0 + (row % q_len) as f64 / 128.0);
        }
        let heads = inputs.k.chunks_mut(head_dim * k_len).zip(inputs.v.chunks_mut(head_dim * k_len));
        for (head, (keys, values)) in heads.enumerate() {
            let place = |key: usize| (37 * key + 11 * head) % k_len;
            for (key, columns) in keys.chunks_mut(head_dim).enumerate() {
                columns[0] = T::from_f64(place(key) as f64 / 128.0);
            }
            let largest = (0..k_len).max_by_key(|&key| place(key)).expect("there are keys");
            values[largest * head_dim..][..head_dim].fill(T::from_f64(1.0));
        }
        let expected = inputs.expected(case).out;
        Self { inputs, expected }
    }

    /// Fails where O is further from the reference than rounding and the f32 sum, 2e-6, leave it.
    pub(crate) fn check(&self, out: &[T]) -> Outcome {
        let far = |&(&got, &expected): &(&T, &f64)| {
            let rounding = (T::from_f64(expected).to_f64() - expected).abs();
            (got.to_f64() - expected).abs() > rounding + 2e-6 * expected
        };
        let mut far = out.iter().zip(&self.expected).filter(far);
        match far.next() {
            None => Ok(()),
            Some((got, expected)) => {
                let count = 1 + far.count();
                Err(format!("{count} elements are not rounded once, such as {expected:e}: {:e}", got.to_f64()).into())
            }
        }
    }
}

/// The first `q_len - k_len` rows of a causal mask see nothing, and no row does where there is no key.
fn rows_without_keys<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in HEAD_DIMS {
        let masks = [Mask::Causal, Mask::Full, Mask::Window { left: 0, right: 0 }];
        for (q_len, k_len, mask) in [(130, 65, masks[0]), (33, 0, masks[1]), (33, 0, masks[0]), (70, 3, masks[2])] {
            let case = Case::new(few(gpu, 2), few(gpu, 2), q_len, k_len, head_dim, mask);
            let inputs = Inputs::<T>::normal(&case, 4);
            for_each_config::<T>(gpu, &case, |config| {
                let output = run_contiguous(gpu, &case, &inputs, config)?;
                for (index, lse) in output.lse.iter().enumerate() {
                    let sees_keys = !mask.key_range(index % q_len, q_len, k_len).is_empty();
                    if sees_keys != lse.is_finite() || (!sees_keys && *lse != f32::NEG_INFINITY) {
                        return Err(format!("LSE of row {index} is {lse}, and it sees keys: {sees_keys}").into());
                    }
                    let out = &output.out[index * head_dim..][..head_dim];
                    if !sees_keys && out.iter().any(|x| x.to_f64() != 0.0) {
                        return Err(format!("row {index} sees no key and is {out:?}").into());
                    }
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}
