//! Elements that show whether a kernel has written them.

use ferrotile::{Element, F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element type with a bit pattern that no kernel writes: all ones, which is a NaN of every float type.
pub(crate) trait Cell: Element {
    /// All ones.
    const POISON: Self;
    /// The bits of an element, the lowest ones of the result.
    fn bits(self) -> u32;

    /// Whether the element is the pattern.
    fn is_poison(self) -> bool {
        self.bits() == Self::POISON.bits()
    }
}

impl Cell for f16 {
    const POISON: f16 = f16::from_bits(u16::MAX);
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Cell for bf16 {
    const POISON: bf16 = bf16::from_bits(u16::MAX);
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Cell for F8E4M3 {
    const POISON: F8E4M3 = F8E4M3::from_bits(u8::MAX);
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Cell for F8E5M2 {
    const POISON: F8E5M2 = F8E5M2::from_bits(u8::MAX);
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Cell for f32 {
    const POISON: f32 = f32::from_bits(u32::MAX);
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Cell for u8 {
    const POISON: u8 = u8::MAX;
    fn bits(self) -> u32 {
        self.into()
    }
}
