//! Elements that show that no kernel has written them.

use ferrotile::{Element, F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element type with a bit pattern that no kernel writes: all ones, a NaN.
pub trait Poison: Element {
    /// Whether it is that pattern.
    fn is_poison(self) -> bool;
    /// That pattern.
    fn poison() -> Self;
    /// The bits of an element, the lowest ones of the result.
    fn bits(self) -> u32;
}

impl Poison for f16 {
    fn is_poison(self) -> bool {
        self.to_bits() == u16::MAX
    }

    fn poison() -> f16 {
        f16::from_bits(u16::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for bf16 {
    fn is_poison(self) -> bool {
        self.to_bits() == u16::MAX
    }

    fn poison() -> bf16 {
        bf16::from_bits(u16::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for F8E4M3 {
    fn is_poison(self) -> bool {
        self.to_bits() == u8::MAX
    }

    fn poison() -> F8E4M3 {
        F8E4M3::from_bits(u8::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for F8E5M2 {
    fn is_poison(self) -> bool {
        self.to_bits() == u8::MAX
    }

    fn poison() -> F8E5M2 {
        F8E5M2::from_bits(u8::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

/// Kernels write all bits of a byte: the pattern shows guard bands alone.
impl Poison for u8 {
    fn is_poison(self) -> bool {
        self == u8::MAX
    }

    fn poison() -> u8 {
        u8::MAX
    }

    fn bits(self) -> u32 {
        self.into()
    }
}

impl Poison for f32 {
    fn is_poison(self) -> bool {
        self.to_bits() == u32::MAX
    }

    fn poison() -> f32 {
        f32::from_bits(u32::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_nan() {
        assert!(f16::poison().is_nan() && bf16::poison().is_nan() && f32::poison().is_nan());
    }
}
