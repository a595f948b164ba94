//! Tensors as files hold them.

use ferrotile::{F8E4M3, Float};
use half::{bf16, f16};

/// A tensor in C order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    /// The size of each dimension.
    pub(crate) shape: Vec<usize>,
    /// Its elements.
    pub(crate) elements: Elements,
}

/// The elements of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Elements {
    /// IEEE binary16.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE binary32.
    F32(Vec<f32>),
    /// IEEE binary64.
    F64(Vec<f64>),
    /// The bits of FP8 with four bits of exponent.
    E4m3(Vec<u8>),
    /// Integers of the type of this name, as the nearest f64: those of up to 2^53 are exact.
    Integers(&'static str, Vec<f64>),
    /// Truth values.
    Bool(Vec<bool>),
}

/// A type of kernels that tensors in files have.
pub(crate) trait Stored: Float + Into<f64> {
    /// Elements of this type for a file.
    fn elements(values: Vec<Self>) -> Elements;

    /// The elements of a file where they have this type, else what was given.
    fn from_elements(elements: Elements) -> Result<Vec<Self>, Elements>;
}

impl Stored for f16 {
    fn elements(values: Vec<f16>) -> Elements {
        Elements::F16(values)
    }

    fn from_elements(elements: Elements) -> Result<Vec<f16>, Elements> {
        match elements {
            Elements::F16(values) => Ok(values),
            others => Err(others),
        }
    }
}

impl Stored for bf16 {
    fn elements(values: Vec<bf16>) -> Elements {
        Elements::Bf16(values)
    }

    fn from_elements(elements: Elements) -> Result<Vec<bf16>, Elements> {
        match elements {
            Elements::Bf16(values) => Ok(values),
            others => Err(others),
        }
    }
}

impl Stored for f32 {
    fn elements(values: Vec<f32>) -> Elements {
        Elements::F32(values)
    }

    fn from_elements(elements: Elements) -> Result<Vec<f32>, Elements> {
        match elements {
            Elements::F32(values) => Ok(values),
            others => Err(others),
        }
    }
}

impl Stored for F8E4M3 {
    fn elements(values: Vec<F8E4M3>) -> Elements {
        Elements::E4m3(values.into_iter().map(F8E4M3::to_bits).collect())
    }

    fn from_elements(elements: Elements) -> Result<Vec<F8E4M3>, Elements> {
        match elements {
            Elements::E4m3(bits) => Ok(bits.into_iter().map(F8E4M3::from_bits).collect()),
            others => Err(others),
        }
    }
}

impl Stored for u8 {
    fn elements(values: Vec<u8>) -> Elements {
        Elements::Integers("u8", values.into_iter().map(f64::from).collect())
    }

    fn from_elements(elements: Elements) -> Result<Vec<u8>, Elements> {
        match elements {
            Elements::Integers("u8", values) => Ok(values.into_iter().map(|value| value as u8).collect()),
            others => Err(others),
        }
    }
}

/// A type that attention kernels read: floats of 16 bits, which they write too, E4M3 or 8-bit integers.
pub(crate) trait Half: Stored {}

impl Half for f16 {}
impl Half for bf16 {}
impl Half for F8E4M3 {}
impl Half for u8 {}

/// What an element stands for, without its factor: of an 8-bit integer not the integer.
pub(crate) trait Number: Copy {
    /// The number.
    fn number(self) -> f64;
}

impl<T: Stored> Number for T {
    fn number(self) -> f64 {
        self.to_f64()
    }
}

impl Number for f64 {
    fn number(self) -> f64 {
        self
    }
}

impl Elements {
    /// The name of the type, as `--dtype` and messages spell it.
    pub(crate) fn dtype_name(&self) -> &'static str {
        match self {
            Elements::F16(_) => "f16",
            Elements::Bf16(_) => "bf16",
            Elements::F32(_) => "f32",
            Elements::F64(_) => "f64",
            Elements::E4m3(_) => "e4m3",
            Elements::Integers(name, _) => name,
            Elements::Bool(_) => "bool",
        }
    }

    /// An element in f64, by its index in C order.
    pub(crate) fn value(&self, index: usize) -> f64 {
        match self {
            Elements::F16(values) => values[index].into(),
            Elements::Bf16(values) => values[index].into(),
            Elements::F32(values) => values[index].into(),
            Elements::F64(values) | Elements::Integers(_, values) => values[index],
            Elements::E4m3(bits) => F8E4M3::from_bits(bits[index]).to_f64(),
            Elements::Bool(values) => f64::from(u8::from(values[index])),
        }
    }

    /// The elements in f64, which holds all floats; true is 1.
    pub(crate) fn into_f64(self) -> Vec<f64> {
        match self {
            Elements::F16(values) => values.into_iter().map(f64::from).collect(),
            Elements::Bf16(values) => values.into_iter().map(f64::from).collect(),
            Elements::F32(values) => values.into_iter().map(f64::from).collect(),
            Elements::F64(values) | Elements::Integers(_, values) => values,
            Elements::E4m3(bits) => bits.into_iter().map(|bits| F8E4M3::from_bits(bits).to_f64()).collect(),
            Elements::Bool(values) => values.into_iter().map(|value| f64::from(u8::from(value))).collect(),
        }
    }
}
