//! The GPU architectures that device code is compiled for, and their limits.

use core::fmt;
use core::str::FromStr;

/// An architecture that device code is compiled for.
///
/// `Sm80` and `Sm89` PTX runs on every later card as well; `Sm90a` PTX runs on compute capability 9.0 alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Ampere (A100) and everything newer.
    Sm80,
    /// Ada (L40, RTX 4090) and everything newer.
    Sm89,
    /// Hopper (H100, H200) with its architecture-specific instructions: `wgmma`, `setmaxnreg`.
    Sm90a,
}

/// What one multiprocessor offers (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmLimits {
    /// Dynamic shared memory that one block can ask for, in bytes.
    pub shared_bytes_per_block: u32,
    /// Shared memory of the multiprocessor, in bytes; each resident block takes 1 KiB more than it asks for.
    pub shared_bytes: u32,
    /// 32-bit registers of the multiprocessor.
    pub registers: u32,
    /// Resident threads.
    pub threads: u32,
    /// Resident blocks.
    pub blocks: u32,
}

impl Arch {
    /// Every architecture, oldest first.
    pub const ALL: [Arch; 3] = [Arch::Sm80, Arch::Sm89, Arch::Sm90a];

    /// The name that rustc's `-Ctarget-cpu`, `llc -mcpu` and `ptxas -arch` take.
    pub const fn target_cpu(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm89 => "sm_89",
            Arch::Sm90a => "sm_90a",
        }
    }

    /// The PTX version that modules of this architecture declare, as (major, minor). It is the lowest that has the
    /// architecture's instructions, so that old drivers load the modules (PTX ISA, "Release Notes").
    pub const fn ptx_version(self) -> (u32, u32) {
        match self {
            Arch::Sm80 => (7, 0),
            // `mma.sync` of FP8, which fallback kernels of sm_90a use too.
            Arch::Sm89 | Arch::Sm90a => (8, 4),
        }
    }

    /// Whether PTX of this architecture runs on a card of compute capability `major.minor`.
    pub const fn runs_on(self, major: u32, minor: u32) -> bool {
        match self {
            Arch::Sm80 => major >= 8,
            Arch::Sm89 => major > 8 || (major == 8 && minor >= 9),
            Arch::Sm90a => major == 9 && minor == 0,
        }
    }

    /// The compute capability of the cards that it is named after, as (major, minor).
    pub const fn compute_capability(self) -> (u32, u32) {
        match self {
            Arch::Sm80 => (8, 0),
            Arch::Sm89 => (8, 9),
            Arch::Sm90a => (9, 0),
        }
    }

    /// The limits of one multiprocessor of this architecture.
    pub const fn limits(self) -> SmLimits {
        match self {
            Arch::Sm80 => SmLimits {
                shared_bytes_per_block: 163 << 10,
                shared_bytes: 164 << 10,
                registers: 65536,
                threads: 2048,
                blocks: 32,
            },
            Arch::Sm89 => SmLimits {
                shared_bytes_per_block: 99 << 10,
                shared_bytes: 100 << 10,
                registers: 65536,
                threads: 1536,
                blocks: 24,
            },
            Arch::Sm90a => SmLimits {
                shared_bytes_per_block: 227 << 10,
                shared_bytes: 228 << 10,
                registers: 65536,
                threads: 2048,
                blocks: 32,
            },
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.target_cpu())
    }
}

/// The text is not the name of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseArchError;

impl fmt::Display for ParseArchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected sm_80, sm_89 or sm_90a")
    }
}

impl core::error::Error for ParseArchError {}

impl FromStr for Arch {
    type Err = ParseArchError;

    fn from_str(text: &str) -> Result<Self, ParseArchError> {
        Arch::ALL.into_iter().find(|arch| arch.target_cpu() == text).ok_or(ParseArchError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for arch in Arch::ALL {
            assert_eq!(arch.target_cpu().parse(), Ok(arch));
        }
        assert_eq!("sm_90".parse::<Arch>(), Err(ParseArchError));
    }

    #[test]
    fn hopper_ptx_runs_on_hopper_alone() {
        assert!(Arch::Sm90a.runs_on(9, 0));
        assert!(!Arch::Sm90a.runs_on(10, 0));
        assert!(Arch::Sm80.runs_on(12, 0));
        assert!(!Arch::Sm89.runs_on(8, 6));
    }
}
