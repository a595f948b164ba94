//! PTX of other compilers (README.md): the emulator computes what a card does, or says at load what it does not know.
//!
//! Where sums are exact, the output equals that of the card bit by bit (by its hash), and that of the reference here.
//! Elsewhere the error against the reference in f64 is small, and the output is close to that of the card.

mod cases;
mod expected;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module};

use crate::cases::{Argument, Case};

/// How near the output must be to that of the card.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Near {
    /// The same bytes, of which `card/sums.txt` has the hash.
    Exact,
    /// f32 numbers in a file of `card`, and the largest error relative to the largest number.
    Single(f64),
    /// The same of f64 numbers.
    Double(f64),
}

/// A file of this folder.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(name)
}

fn text(file: &str) -> String {
    fs::read_to_string(folder("ptx").join(format!("{file}.ptx"))).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Runs the kernel and returns its outputs, one behind the other, and what it prints.
fn run(case: &Case) -> Result<(Vec<u8>, String), Error> {
    let module = Module::parse(&text(&case.file))?;
    let names: Vec<&str> = module.kernels().collect();
    // Numba's names say the types, too.
    let kernel = if names.contains(&case.name.as_str()) { &case.name } else { names[0] };
    let device = Device::new(Arch::Sm90a);
    let (mut params, mut outputs) = (Vec::new(), Vec::new());
    for argument in &case.arguments {
        params.push(match argument {
            Argument::Value(bytes) => bytes.clone(),
            Argument::Buffer(bytes, is_output) => {
                let address = device.allocate(bytes.len() as u64)?;
                device.write(address, bytes)?;
                if *is_output {
                    outputs.push((address, bytes.len()));
                }
                address.to_le_bytes().to_vec()
            }
        });
    }
    let params: Vec<&[u8]> = params.iter().map(Vec::as_slice).collect();
    let Case { grid, block, shared_bytes, .. } = *case;
    let shape = LaunchShape { grid, block, shared_bytes, ..LaunchShape::default() };
    module.launch(&device, kernel, shape, &params)?;
    let mut all = Vec::new();
    for (address, length) in outputs {
        let mut bytes = vec![0; length];
        device.read(address, &mut bytes)?;
        all.extend(bytes);
    }
    Ok((all, device.take_printed()))
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn f32s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word).into()).collect()
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect()
}

/// The largest distance, relative to the largest number.
fn error(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().all(|value| value.is_finite()), "{got:?}");
    let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    got.iter().zip(expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs())) / largest
}

/// The hashes of the outputs of the card.
fn sums() -> HashMap<String, u64> {
    let text = fs::read_to_string(folder("card/sums.txt")).unwrap();
    let sum = |line: &str| {
        let (name, sum) = line.split_once(' ')?;
        Some((name.to_owned(), u64::from_str_radix(sum.trim().strip_prefix("0x")?, 16).ok()?))
    };
    text.lines().map(|line| sum(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// The numbers that bytes are.
type Numbers = fn(&[u8]) -> Vec<f64>;

/// What is wrong with the outputs of a case.
fn problem(case: &Case, sums: &HashMap<String, u64>) -> Option<String> {
    let name = &case.name;
    let Some((_, near, expected)) = expected::all().find(|case| case.0 == name) else {
        return Some(format!("{name}: nothing is expected of it"));
    };
    let got = match run(case) {
        Ok((got, _)) => got,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    let expected = expected();
    let (numbers, limit): (Numbers, f64) = match *near {
        Near::Exact if got != expected => {
            let first = got.iter().zip(&expected).position(|(a, b)| a != b);
            return Some(format!("{name}: not the reference, from byte {first:?} on"));
        }
        Near::Exact if sums.get(name) != Some(&hash(&got)) => {
            return Some(format!("{name}: not the bytes of the card"));
        }
        Near::Exact => return None,
        Near::Single(limit) => (f32s, limit),
        Near::Double(limit) => (f64s, limit),
    };
    let of_card = match fs::read(folder("card").join(format!("{name}.bin"))) {
        Ok(bytes) => numbers(&bytes),
        Err(error) => return Some(format!("{name}: the outputs of the card: {error}")),
    };
    let (got, expected) = (numbers(&got), numbers(&expected));
    let (to_card, to_reference) = (error(&got, &of_card), error(&got, &expected));
    let near = to_card <= limit && to_reference <= limit;
    (!near).then(|| format!("{name}: {to_card:e} from the card, {to_reference:e} from the reference"))
}

#[test]
fn kernels_of_other_compilers_compute_what_a_card_does() {
    let sums = sums();
    let problems: Vec<String> = cases::all().iter().filter_map(|case| problem(case, &sums)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn what_kernels_print_is_what_a_card_prints() {
    let of_card = fs::read_to_string(folder("card/print.txt")).unwrap();
    let case = cases::all().into_iter().find(|case| case.name == "print").unwrap();
    let (_, printed) = run(&case).unwrap();
    assert_eq!(printed, of_card);
}

/// The files that the emulator refuses, the instruction that it names, and a part of its line.
const REFUSED: &[(&str, &str, &str)] = &[("indirect", "functions", "functions")];

#[test]
fn what_is_not_covered_is_refused_when_it_is_loaded() {
    for &(file, instruction, line_has) in REFUSED {
        let text = text(file);
        let error = Module::parse(&text).expect_err(file);
        let Error::Unsupported { place, instruction: named, .. } = &error else { panic!("{file}: {error}") };
        assert_eq!(named, instruction);
        let line = text.lines().nth(place.line as usize - 1).unwrap_or_default();
        assert!(line.contains(line_has), "{file}: line {} is {line}", place.line);
    }
}

#[test]
fn every_file_has_a_case() {
    let files: BTreeSet<String> = fs::read_dir(folder("ptx"))
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let cases = cases::all();
    let named = cases.iter().map(|case| case.file.clone()).chain(REFUSED.iter().map(|case| case.0.to_owned()));
    assert_eq!(files, named.collect());
    assert!(cases.len() >= 60);
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, expected::all().map(|case| case.0).collect());
}
