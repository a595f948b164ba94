//! Element types of tensors.

use core::fmt;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary16: 5 exponent bits, 10 fraction bits.
    F16,
    /// bfloat16: 8 exponent bits, 7 fraction bits.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// FP8 with 4 exponent bits and 3 fraction bits, no infinities, largest finite value 448.
    E4M3,
    /// FP8 with 5 exponent bits and 2 fraction bits, largest finite value 57344.
    E5M2,
    /// 8-bit integers, of which q stands for `(q / 127.5 - 1) * 448`: 256 numbers from -448 to 448, all as far apart.
    /// 0 is none of them.
    U8,
}

impl Dtype {
    /// The size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
            Dtype::E4M3 | Dtype::E5M2 | Dtype::U8 => 1,
        }
    }

    /// The name used in entry names and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
            Dtype::E4M3 => "e4m3",
            Dtype::E5M2 => "e5m2",
            Dtype::U8 => "u8",
        }
    }

    /// The distance from 1 to the next value above it, as a power of two: 2^-10 for f16. For [`Dtype::U8`] the power of
    /// two above its step of `448 / 127.5`.
    pub const fn epsilon_exponent(self) -> i32 {
        match self {
            Dtype::F16 => -10,
            Dtype::Bf16 => -7,
            Dtype::F32 => -23,
            Dtype::E4M3 => -3,
            Dtype::E5M2 => -2,
            Dtype::U8 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
