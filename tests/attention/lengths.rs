//! Sequences whose lengths do not describe them: what is written all the same, and how a caller finds them.

use std::ops::Range;

use ferrotile::{Buffer, Error, Gpu, Mask, TensorRef, VarlenSizes, attention_varlen};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::expect_error;
use tests::guard::Poison;
use tests::inputs::Half;
use variants::attention::AttentionConfig;

use crate::Trials;
use crate::case::{Outcome, Output, for_configs};
use crate::scores::Terms;
use crate::varlen::{Batch, Data, Outputs, Stored, Strides};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("wrong_lengths/touch_nothing_outside", &(), wrong_numbers::<f16>, wrong_numbers::<bf16>);
    trials.both("wrong_lengths/write_the_rows_that_are_documented", &(), written_rows::<f16>, written_rows::<bf16>);
    trials.add("wrong_lengths/are_found_on_request", validated);
}

/// Numbers by which two sequences have rows 20 to 39.
const OVERLAPPING: [i32; 4] = [0, 40, 20, 60];

/// Two blocks that write one row are a race, which an emulated device reports.
fn is_race(error: &Error) -> bool {
    matches!(error, Error::Emulator { problem } if problem.contains("race on global"))
}

/// Numbers that are not in order, negative, or beyond the tensors: results mean nothing, and nothing outside is read or
/// written.
fn wrong_numbers<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let batch = Batch { sequences: vec![(40, 40); 3], around: [0, 0], ..Batch::new(64, Mask::Causal) };
    let data = Data::<T>::normal(&batch, Terms::NONE, 46);
    let (problem, strides) = (batch.problem(), Strides::dense(&batch));
    let stream = gpu.new_stream()?;
    for_configs(&batch, batch.configs(gpu, &data.terms), |config| {
        for numbers in
            [[90, 40, 20, 0], [-7, i32::MIN, i32::MAX, 130], [0, 119, 121, i32::MAX], [5, 120, 120, 0], OVERLAPPING]
        {
            let mut stored = Stored::upload(gpu, &batch, &data, strides)?;
            stored.starts = [Buffer::upload_blocking(&stream, &numbers)?, Buffer::upload_blocking(&stream, &numbers)?];
            let mut outputs = Outputs::new(gpu, &stream, &problem, strides)?;
            let tensors = stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?;
            let request = batch.options(&data.terms, config);
            let done = attention_varlen(&stream, tensors, [40, 40], &request.params(), &request.options());
            if !(numbers == OVERLAPPING && done.as_ref().is_err_and(is_race)) {
                done?;
            }
            outputs.out.read(&stream)?;
            outputs.lse.read(&stream)?;
        }
        Ok(())
    })
}

/// Wrong numbers of 64 rows and keys, with the sequences that the documents say they have and the rows that are
/// written.
const WRONG_NUMBERS: [(&[i32], &[i32], Range<usize>); 6] = [
    (&[0, 30, 64, 70], &[0, 30, 64, 64], 0..64),
    (&[-4, 30, 64], &[30, 30, 64], 30..64),
    (&[0, 30, -1, 64], &[0, 30, 64, 64], 0..64),
    (&[5, i32::MAX, i32::MIN], &[5, 64, 64], 5..64),
    (&[i32::MIN, i32::MAX, 64], &[0, 0, 0], 0..0),
    (&[64, 40, 0], &[0, 0, 0], 0..0),
];

/// Each kernel gives the bits of the sequences that wrong numbers count as, and writes no other row.
fn written_rows<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let batch = Batch { sequences: vec![(64, 64)], around: [0, 0], ..Batch::new(64, Mask::Causal) };
    let data = Data::<T>::normal(&batch, Terms::NONE, 52);
    let strides = Strides::dense(&batch);
    let stream = gpu.new_stream()?;
    let [heads, row_elems] = [batch.heads[0], batch.heads[0] * batch.head_dim];
    let call = |numbers: &[i32], longest: usize, config: &AttentionConfig| {
        let problem = VarlenSizes { batch: numbers.len() - 1, ..batch.problem() };
        let mut stored = Stored::upload(gpu, &batch, &data, strides)?;
        stored.starts = [Buffer::upload_blocking(&stream, numbers)?, Buffer::upload_blocking(&stream, numbers)?];
        let mut outputs = Outputs::new(gpu, &stream, &problem, strides)?;
        let tensors = stored.tensors(&problem, strides, &mut outputs.out, &mut outputs.lse)?;
        let request = batch.options(&data.terms, config);
        attention_varlen(&stream, tensors, [longest; 2], &request.params(), &request.options())?;
        // Reading checks the guard bands too.
        Ok::<_, Failed>(Output { out: outputs.out.read(&stream)?, lse: outputs.lse.read(&stream)? })
    };
    for_configs(&batch, batch.configs(gpu, &data.terms), |config| {
        let long: (&[i32], &[i32], _) = (&[0, 64], &[0, 40], 0..40);
        let cases = WRONG_NUMBERS.into_iter().map(|case| (case, 64)).chain([(long, 40)]);
        for ((wrong, right, written), longest) in cases {
            let (got, expected) = (call(wrong, longest, config)?, call(right, longest, config)?);
            let same = got.out.iter().map(|x| x.bits()).eq(expected.out.iter().map(|x| x.bits()))
                && got.lse.iter().map(|x| x.bits()).eq(expected.lse.iter().map(|x| x.bits()));
            let is_written = |row: usize| {
                let lse = (0..heads).all(|head| !got.lse[head * 64 + row].is_poison());
                (got.out[row * row_elems..][..row_elems].iter().all(|x| !x.is_poison()), lse)
            };
            let rows: Vec<_> = (0..64).filter(|&row| is_written(row) == (true, true)).collect();
            let untouched = got.out.iter().filter(|x| x.is_poison()).count();
            if !same || !rows.iter().copied().eq(written.clone()) || untouched != (64 - rows.len()) * row_elems {
                return Err(format!("{wrong:?} wrote {rows:?}, expected {written:?} as {right:?} does").into());
            }
        }
        Ok(())
    })
}

fn is_out_of_range(error: &Error, wanted: &str) -> bool {
    matches!(error, Error::OutOfRange { tensor, .. } if *tensor == wanted)
}

/// Numbers are checked against the problem before a call, where the caller waits for that.
fn validated(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let sizes = Batch { sequences: vec![(64, 64)], around: [0, 0], ..Batch::new(64, Mask::Full) }.problem();
    let validate = |q: &[i32], k: &[i32]| {
        let problem = VarlenSizes { batch: q.len() - 1, ..sizes };
        let [q, k] = [q, k].map(|numbers| Buffer::upload_blocking(&stream, numbers));
        let (q, k) = (q?, k?);
        let [q, k] = [&q, &k].map(|numbers| TensorRef::contiguous(numbers, [numbers.len()]));
        problem.validate_blocking(stream.as_ref(), q?, k?)
    };
    validate(&[0, 30, 30, 64], &[2, 2, 60, 64])?;
    for (numbers, right, _) in WRONG_NUMBERS {
        expect_error(validate(numbers, right), |error| is_out_of_range(error, "cu_seqlens_q"))?;
        expect_error(validate(right, numbers), |error| is_out_of_range(error, "cu_seqlens_k"))?;
    }
    let error = validate(&[0, 30, 64, 70], &[0; 4]).err().ok_or("70 of 64 rows were accepted")?;
    let expected = "attention: cu_seqlens_q[3] is 70, allowed: 64 to 64";
    if error.to_string() != expected {
        return Err(format!("got {error}, expected {expected}").into());
    }
    expect_error(validate(&[0, 64], &[0, 32, 64]), |error| matches!(error, Error::Shape { tensor: "cu_seqlens_k", .. }))
}
