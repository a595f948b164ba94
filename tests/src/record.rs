//! Outputs of trials, kept to compare two devices.
//!
//! With `FERROTILE_RECORD=FOLDER` every trial of a kernel that passes writes a file that tells of its outputs: of each
//! the length, a hash of its bits, and some of its elements; of a probe all words. With `FERROTILE_COMPARE=FOLDER` it
//! compares its outputs with those of such a file, and the run ends with the largest difference, in units of the last
//! place. Random inputs are the same where `FERROTILE_SEED` is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::hash::Hasher;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libtest_mimic::Failed;

use crate::poison::Poison;

/// The environment variable that names the folder to write to.
pub const RECORD: &str = "FERROTILE_RECORD";

/// The environment variable that names the folder to compare with.
pub const COMPARE: &str = "FERROTILE_COMPARE";

/// Elements kept of an output.
const SAMPLES: usize = 128;

/// What is kept of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Output {
    element_bytes: u8,
    len: u64,
    hash: u64,
    samples: Vec<u32>,
}

thread_local! {
    /// The outputs of the trial that this thread runs.
    static OUTPUTS: RefCell<Vec<Output>> = const { RefCell::new(Vec::new()) };
}

/// The differences found so far.
static FOUND: Mutex<Option<Summary>> = Mutex::new(None);

fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Whether outputs are recorded or compared.
pub(crate) fn is_on() -> bool {
    folder(RECORD).is_some() || folder(COMPARE).is_some()
}

/// Notes an output of the trial that this thread runs.
pub(crate) fn note<T: Poison>(values: &[T]) {
    let step = values.len().div_ceil(SAMPLES).max(1);
    note_bits(size_of::<T>(), values.iter().map(|value| value.bits()), step);
}

/// Notes an output of words of which every one is kept.
pub fn note_words(words: &[u32]) {
    note_bits(size_of::<u32>(), words.iter().copied(), 1);
}

/// Notes an output by the bits of its elements, of which one in `step` is kept.
fn note_bits(element_bytes: usize, bits: impl ExactSizeIterator<Item = u32> + Clone, step: usize) {
    if !is_on() {
        return;
    }
    let mut hasher = std::hash::DefaultHasher::new();
    bits.clone().for_each(|bits| hasher.write_u32(bits));
    let output = Output {
        element_bytes: element_bytes as u8,
        len: bits.len() as u64,
        hash: hasher.finish(),
        samples: bits.step_by(step).collect(),
    };
    OUTPUTS.with_borrow_mut(|outputs| outputs.push(output));
}

/// Runs a trial, and keeps or compares its outputs if the environment asks for it.
pub(crate) fn during(trial: &str, body: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    OUTPUTS.with_borrow_mut(Vec::clear);
    body()?;
    let outputs = OUTPUTS.take();
    if outputs.is_empty() {
        return Ok(());
    }
    if let Some(folder) = folder(RECORD) {
        fs::create_dir_all(&folder)?;
        fs::write(file(&folder, trial), encode(&outputs))?;
    }
    if let Some(folder) = folder(COMPARE) {
        let file = file(&folder, trial);
        let bytes = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let recorded = decode(&bytes).map_err(|error| format!("{}: {error}", file.display()))?;
        let difference = compare(&recorded, &outputs)?;
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().add(trial, difference);
    }
    Ok(())
}

/// What the comparisons of this run found; none if nothing was compared.
pub(crate) fn summary() -> Option<String> {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Summary::to_string)
}

fn file(folder: &Path, trial: &str) -> PathBuf {
    folder.join(format!("{}.outputs", trial.replace('/', "+")))
}

fn encode(outputs: &[Output]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for output in outputs {
        bytes.push(output.element_bytes);
        bytes.extend(output.len.to_le_bytes());
        bytes.extend(output.hash.to_le_bytes());
        bytes.extend((output.samples.len() as u32).to_le_bytes());
        for sample in &output.samples {
            bytes.extend(&sample.to_le_bytes()[..usize::from(output.element_bytes)]);
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> std::io::Result<Vec<Output>> {
    fn number(bytes: &mut &[u8], length: usize) -> std::io::Result<u64> {
        let mut wide = [0; 8];
        bytes.read_exact(&mut wide[..length])?;
        Ok(u64::from_le_bytes(wide))
    }
    let mut outputs = Vec::new();
    while !bytes.is_empty() {
        let element_bytes = number(&mut bytes, 1)? as u8;
        let (len, hash, count) = (number(&mut bytes, 8)?, number(&mut bytes, 8)?, number(&mut bytes, 4)?);
        let sample = |_| Ok(number(&mut bytes, element_bytes.min(4).into())? as u32);
        let samples = (0..count).map(sample).collect::<std::io::Result<_>>()?;
        outputs.push(Output { element_bytes, len, hash, samples });
    }
    Ok(outputs)
}

/// How the outputs of a trial differ from those recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Difference {
    outputs: u64,
    unequal: u64,
    /// Elements that were compared where outputs are not equal, and those of them that differ.
    samples: u64,
    unequal_samples: u64,
    /// The largest difference by the bytes of an element.
    ulps: [u64; 5],
}

fn compare(recorded: &[Output], outputs: &[Output]) -> Result<Difference, Failed> {
    let shape = |outputs: &[Output]| -> Vec<_> { outputs.iter().map(|at| (at.element_bytes, at.len)).collect() };
    if shape(recorded) != shape(outputs) {
        return Err(format!("{} outputs, {} other ones are recorded", outputs.len(), recorded.len()).into());
    }
    let mut found = Difference { outputs: outputs.len() as u64, ..Difference::default() };
    for (recorded, output) in recorded.iter().zip(outputs).filter(|(recorded, output)| recorded.hash != output.hash) {
        found.unequal += 1;
        for (&a, &b) in recorded.samples.iter().zip(&output.samples) {
            let distance = ulps(a, b, output.element_bytes);
            let largest = &mut found.ulps[usize::from(output.element_bytes.min(4))];
            *largest = (*largest).max(distance);
            found.samples += 1;
            found.unequal_samples += u64::from(distance > 0);
        }
    }
    Ok(found)
}

/// How many numbers of the format one is from another. NaNs are all the same, and far from numbers.
fn ulps(a: u32, b: u32, element_bytes: u8) -> u64 {
    let sign = 1u32 << (8 * u32::from(element_bytes.min(4)) - 1);
    let place = |bits: u32| {
        let magnitude = i64::from(bits & (sign - 1));
        if bits & sign != 0 { -magnitude } else { magnitude }
    };
    // Infinity of bf16 lies above all numbers and NaNs of f16 but its canonical NaN, which either format has.
    let is_nan = |bits: u32| bits & (sign - 1) > if element_bytes == 2 { 0x7f80 } else { 0x7f80_0000 };
    match (is_nan(a), is_nan(b)) {
        (true, true) => 0,
        (false, false) => place(a).abs_diff(place(b)),
        _ => u64::MAX,
    }
}

/// What a run found, by trial.
#[derive(Debug, Default)]
struct Summary {
    trials: BTreeMap<String, Difference>,
}

impl Summary {
    fn add(&mut self, trial: &str, difference: Difference) {
        self.trials.insert(trial.to_owned(), difference);
    }
}

/// A line for each trial whose outputs are not all equal, and one for the run.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut outputs, mut unequal, mut ulps) = (0, 0, [0; 5]);
        for (trial, found) in &self.trials {
            outputs += found.outputs;
            unequal += found.unequal;
            ulps.iter_mut().zip(found.ulps).for_each(|(most, ulps): (&mut u64, u64)| *most = ulps.max(*most));
            if found.unequal > 0 {
                let Difference { outputs, unequal, samples, unequal_samples, ulps } = found;
                writeln!(
                    f,
                    "{trial}: {unequal} of {outputs} outputs differ, {unequal_samples} of {samples} elements; by at most {} ulp \
                     of 16 bits, {} of 32",
                    ulps[2], ulps[4]
                )?;
            }
        }
        let trials = self.trials.len();
        write!(
            f,
            "compared {outputs} outputs of {trials} trials: {unequal} differ, by at most {} ulp of 16 bits, {} of 32",
            ulps[2], ulps[4]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(samples: &[u32]) -> Output {
        Output {
            element_bytes: 2,
            len: 900,
            hash: samples.iter().map(|&x| u64::from(x)).sum(),
            samples: samples.to_vec(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let outputs = [output(&[1, 0xffff]), output(&[]), Output { element_bytes: 4, ..output(&[u32::MAX, 7]) }];
        assert_eq!(decode(&encode(&outputs)).unwrap(), outputs);
        assert!(decode(&encode(&outputs)[..30]).is_err());
    }

    #[test]
    fn differences_are_in_units_of_the_last_place() {
        assert_eq!(ulps(0x3c00, 0x3c01, 2), 1);
        assert_eq!(ulps(0x8001, 0x0001, 2), 2);
        assert_eq!(ulps(0x8000, 0, 2), 0);
        assert_eq!(ulps(0xbf80_0000, 0xbf7f_ffff, 4), 1);
        assert_eq!(ulps(0x7fc0_0000, 0xffff_ffff, 4), 0);
        assert_eq!(ulps(0x7fc0_0000, 0x7f80_0000, 4), u64::MAX);
        let found = compare(&[output(&[5, 9]), output(&[3])], &[output(&[5, 11]), output(&[3])]).unwrap();
        let expected = Difference { outputs: 2, unequal: 1, samples: 2, unequal_samples: 1, ulps: [0, 0, 2, 0, 0] };
        assert_eq!(found, expected);
        assert!(compare(&[output(&[1])], &[]).is_err());
    }
}
