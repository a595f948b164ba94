//! PTX of other compilers (README.md): the emulator computes what a card does, or says at load what it does not know.
//!
//! Where sums are exact the output is that of the card bit by bit, by its hash, and of the reference here; elsewhere
//! the error against the reference in f64 is small, and the output close to that of the card.

mod expected;

use std::fs;
use std::path::{Path, PathBuf};

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module};

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument {
    /// A buffer of the numbers of `ramp`.
    F32(usize, i64),
    F16(usize, i64),
    F64(usize, i64),
    I32(usize, i64),
    U32(usize, i64),
    U8(usize, i64),
    U64(usize, i64),
    /// A buffer of so many zero words, which is the output.
    Out(usize),
    /// The same of f32 numbers.
    InOut(usize, i64),
    Word(i32),
    Float(f32),
    /// A pointer to scratch memory that the kernel does not use, as Triton adds them.
    Unused,
}

/// How near the output must be to that of the card.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Near {
    /// FNV-1a of its bytes.
    Equal(u64),
    /// f32 numbers in a file of `card`, and the largest error relative to the largest number.
    Within(f64),
}

pub(crate) struct Case {
    /// The file.
    file: &'static str,
    kernel: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: &'static [Argument],
    near: Near,
    /// The output that follows from the inputs.
    expected: fn() -> Vec<u8>,
}

/// Numbers that every part of the tests computes alike.
pub(crate) fn ramp(count: usize, seed: i64) -> impl Iterator<Item = i64> {
    (0..count as i64).map(move |at| (at * 37 + seed * 101 + 11) % 251)
}

/// The same between -2 and 2, exact in f16.
pub(crate) fn floats(count: usize, seed: i64) -> Vec<f64> {
    ramp(count, seed).map(|number| (number - 125) as f64 / 64.0).collect()
}

fn bytes_of(argument: Argument) -> Vec<u8> {
    match argument {
        Argument::F32(count, seed) | Argument::InOut(count, seed) => {
            floats(count, seed).iter().flat_map(|&value| (value as f32).to_le_bytes()).collect()
        }
        Argument::F16(count, seed) => {
            floats(count, seed).iter().flat_map(|&value| half::f16::from_f64(value).to_le_bytes()).collect()
        }
        Argument::F64(count, seed) => floats(count, seed).iter().flat_map(|value| value.to_le_bytes()).collect(),
        Argument::I32(count, seed) => {
            ramp(count, seed).flat_map(|number| (number as i32 - 125).to_le_bytes()).collect()
        }
        Argument::U32(count, seed) => ramp(count, seed).flat_map(|number| (number as u32 + 1).to_le_bytes()).collect(),
        Argument::U8(count, seed) => ramp(count, seed).map(|number| number as u8).collect(),
        Argument::U64(count, seed) => ramp(count, seed).flat_map(|number| wide(number).to_le_bytes()).collect(),
        Argument::Out(words) => vec![0; 4 * words],
        Argument::Word(word) => word.to_le_bytes().to_vec(),
        Argument::Float(number) => number.to_le_bytes().to_vec(),
        Argument::Unused => vec![0; 8],
    }
}

/// A number of 64 bits with bits everywhere.
pub(crate) fn wide(number: i64) -> u64 {
    (number as u64 + 1).wrapping_mul(0x10_0010_0010_0003)
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(name)
}

fn text(file: &str) -> String {
    fs::read_to_string(folder("ptx").join(format!("{file}.ptx"))).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Runs the kernel and returns its output.
fn run(case: &Case) -> Vec<u8> {
    let fail = |error: Error| -> ! { panic!("{}, {}: {error}", case.file, case.kernel) };
    let module = Module::parse(&text(case.file)).unwrap_or_else(|error| fail(error));
    let device = Device::new(Arch::Sm90a);
    let (mut params, mut output) = (Vec::new(), None);
    for &argument in case.arguments {
        let bytes = bytes_of(argument);
        if matches!(argument, Argument::Word(_) | Argument::Float(_) | Argument::Unused) {
            params.push(bytes);
            continue;
        }
        let address = device.allocate(bytes.len() as u64).unwrap();
        device.write(address, &bytes).unwrap();
        params.push(address.to_le_bytes().to_vec());
        if matches!(argument, Argument::Out(_) | Argument::InOut(..)) {
            output = Some((address, bytes.len()));
        }
    }
    let params: Vec<&[u8]> = params.iter().map(Vec::as_slice).collect();
    let Case { grid, block, shared_bytes, .. } = *case;
    let shape = LaunchShape { grid, block, shared_bytes, ..LaunchShape::default() };
    module.launch(&device, case.kernel, shape, &params).unwrap_or_else(|error| fail(error));
    let (address, length) = output.expect("every kernel has an output");
    let mut bytes = vec![0; length];
    device.read(address, &mut bytes).unwrap();
    bytes
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn f32s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word).into()).collect()
}

/// The largest distance, relative to the largest number.
fn error(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().all(|value| value.is_finite()), "{got:?}");
    let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    got.iter().zip(expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn kernels_of_other_compilers_compute_what_a_card_does() {
    for case in expected::CASES {
        let (got, expected) = (run(case), (case.expected)());
        match case.near {
            Near::Equal(of_card) => {
                assert_eq!(hash(&got), of_card, "{}, {}: the bytes of the card", case.file, case.kernel);
                assert!(got == expected, "{}, {}: the reference", case.file, case.kernel);
            }
            Near::Within(limit) => {
                let of_card = fs::read(folder("card").join(format!("{}.bin", case.kernel))).unwrap();
                let (got, expected, of_card) = (f32s(&got), f32s(&expected), f32s(&of_card));
                let (to_card, to_reference) = (error(&got, &of_card), error(&got, &expected));
                assert!(to_card <= limit, "{}: {to_card:e} from the card", case.kernel);
                assert!(to_reference <= limit, "{}: {to_reference:e} from the reference", case.kernel);
            }
        }
    }
}

#[test]
fn what_is_not_covered_is_refused_when_it_is_loaded() {
    for (file, instruction, line_has) in [("constant", ".func", ".func"), ("dot4", "dp4a.s32.s32", "dp4a")] {
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
    let mut files: Vec<String> = fs::read_dir(folder("ptx"))
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut named: Vec<&str> = expected::CASES.iter().map(|case| case.file).chain(["constant", "dot4"]).collect();
    files.sort();
    named.sort_unstable();
    named.dedup();
    assert_eq!(files, named);
    assert!(files.len() >= 10);
}
