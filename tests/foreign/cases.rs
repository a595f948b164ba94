//! `cases.txt`: kernels, their launches and their arguments.

use std::fs;

use half::{bf16, f16};

use crate::folder;

/// A parameter of a kernel.
#[derive(Debug, Clone)]
pub(crate) enum Argument {
    /// A buffer on the device, and whether it is an output.
    Buffer(Vec<u8>, bool),
    /// Bytes of the parameter itself.
    Value(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The file in `ptx`.
    pub(crate) file: String,
    /// What its results go by: the kernel where the file has several.
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) arguments: Vec<Argument>,
}

/// Numbers that every part of the tests computes alike.
pub(crate) fn ramp(count: usize, seed: i64) -> impl Iterator<Item = i64> {
    (0..count as i64).map(move |at| (at * 37 + seed * 101 + 11) % 251)
}

/// The same between -2 and 2, exact in bf16.
pub(crate) fn floats(count: usize, seed: i64) -> Vec<f64> {
    ramp(count, seed).map(|number| (number - 125) as f64 / 64.0).collect()
}

/// A number of 64 bits with bits everywhere.
pub(crate) fn wide(number: i64) -> u64 {
    (number as u64 + 1).wrapping_mul(0x10_0010_0010_0003)
}

fn bytes_of(kind: &str, count: usize, seed: i64) -> Vec<u8> {
    let integers = |bytes: usize, shift: i64| -> Vec<u8> {
        ramp(count, seed).flat_map(|number| (number + shift).to_le_bytes()[..bytes].to_vec()).collect()
    };
    let floats = floats(count, seed).into_iter();
    match kind {
        "f64" => floats.flat_map(f64::to_le_bytes).collect(),
        "f32" => floats.flat_map(|value| (value as f32).to_le_bytes()).collect(),
        "f16" => floats.flat_map(|value| f16::from_f64(value).to_le_bytes()).collect(),
        "bf16" => floats.flat_map(|value| bf16::from_f64(value).to_le_bytes()).collect(),
        "i32" => integers(4, -125),
        "i16" => integers(2, -125),
        "i8" => integers(1, -125),
        "u32" => integers(4, 1),
        "u8" => integers(1, 0),
        "u64" => ramp(count, seed).flat_map(|number| wide(number).to_le_bytes()).collect(),
        "zero" => vec![0; 4 * count],
        other => panic!("the type `{other}`"),
    }
}

/// `TYPE*DIMENSIONS@SEED`: bytes and dimensions.
fn buffer(text: &str) -> (Vec<u8>, Vec<u64>) {
    let (kind, rest) = text.split_once('*').expect(text);
    let (dims, seed) = rest.split_once('@').unwrap_or((rest, "0"));
    let dims: Vec<u64> = dims.split('x').map(|dim| dim.parse().expect(text)).collect();
    (bytes_of(kind, dims.iter().product::<u64>() as usize, seed.parse().expect(text)), dims)
}

fn structure(text: &str) -> Vec<u8> {
    let part = |part: &str| match part.split_once('=') {
        Some((kind, number)) => {
            let bytes = kind[1..].parse::<usize>().expect(part) / 8;
            number.parse::<i64>().expect(part).to_le_bytes()[..bytes].to_vec()
        }
        None => buffer(part).0,
    };
    text.trim_matches(['(', ')']).split(',').flat_map(part).collect()
}

fn arguments(text: &str) -> Vec<Argument> {
    let (text, is_output) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let word = |number: u64| Argument::Value(number.to_le_bytes().to_vec());
    if text.starts_with('[') {
        let (bytes, dims) = buffer(text.trim_matches(['[', ']']));
        let count: u64 = dims.iter().product();
        let size = bytes.len() as u64 / count;
        let strides = (0..dims.len()).map(|at| size * dims[at + 1..].iter().product::<u64>());
        let shape = dims.iter().copied().chain(strides).map(word);
        let head = [word(0), word(0), word(count), word(size), Argument::Buffer(bytes, is_output)];
        return head.into_iter().chain(shape).collect();
    }
    vec![if text.starts_with('(') {
        Argument::Value(structure(text))
    } else if text == "null" {
        word(0)
    } else if text.contains('*') {
        Argument::Buffer(buffer(text).0, is_output)
    } else if let Some(number) = text.strip_suffix('f') {
        Argument::Value(number.parse::<f32>().expect(text).to_le_bytes().to_vec())
    } else {
        Argument::Value(text.parse::<i32>().expect(text).to_le_bytes().to_vec())
    }]
}

fn triple(text: &str) -> [u32; 3] {
    let mut dims = [1; 3];
    for (dim, number) in dims.iter_mut().zip(text.split('x')) {
        *dim = number.parse().expect(text);
    }
    dims
}

/// All cases, in the order of the file.
pub(crate) fn all() -> Vec<Case> {
    let text = fs::read_to_string(folder("cases.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut next = || words.next().unwrap_or_else(|| panic!("`{line}` has a column too few"));
            let (kernel, grid, block, shared) = (next(), next(), next(), next());
            let (file, name) = kernel.split_once(':').unwrap_or((kernel, kernel));
            Case {
                file: file.to_owned(),
                name: name.to_owned(),
                grid: triple(grid),
                block: triple(block),
                shared_bytes: shared.parse().expect(line),
                arguments: words.flat_map(arguments).collect(),
            }
        })
        .collect()
}
