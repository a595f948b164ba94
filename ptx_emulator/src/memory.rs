//! Memory of the emulated device: global memory, which every CTA shares, and memory that one CTA or one thread owns.
//!
//! ```
//! use ptx_emulator::memory::GlobalMemory;
//!
//! let memory = GlobalMemory::new();
//! let address = memory.allocate(64)?;
//! let view = memory.view();
//! view.store(address, &7u32.to_le_bytes())?;
//! let mut word = [0; 4];
//! view.load(address, &mut word)?;
//! assert!(view.load(address + 64, &mut word).is_err());
//! # Ok::<(), ptx_emulator::memory::MemoryError>(())
//! ```

use std::fmt;

pub use global::{ALIGNMENT, GLOBAL_ADDRESSES, GUARD_BYTES, GlobalMemory, GlobalView};
pub use owned::OwnedMemory;

mod global;
mod owned;

/// A state space of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory of the device.
    Global,
    /// Memory of a CTA.
    Shared,
    /// Memory of a thread.
    Local,
    /// The parameters of a kernel.
    Param,
    /// Read-only memory of a module.
    Const,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "parameter",
            Space::Const => "constant",
        })
    }
}

/// The allocation next to an address that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearest {
    /// Its first address.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// The address of the access less `base`.
    pub offset: i64,
    /// It was freed before the access.
    pub freed: bool,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let freed = if self.freed { "freed " } else { "" };
        write!(f, "offset {} of the {freed}{} bytes at {:#x}", self.offset, self.bytes, self.base)
    }
}

/// `Display` of what may be known about the place of an error.
struct NearestText<'a>(&'a Option<Nearest>);

impl fmt::Display for NearestText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(nearest) => write!(f, "{nearest}"),
            None => f.write_str("nothing is allocated"),
        }
    }
}

/// Why an access, an allocation or a free is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Some of the bytes belong to no allocation.
    #[error("{bytes} bytes of {space} memory at {address:#x} are out of bounds ({})", NearestText(nearest))]
    OutOfBounds {
        /// Where.
        space: Space,
        /// The first byte of the access.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The allocation next to it.
        nearest: Option<Nearest>,
    },
    /// The address is no multiple of the length.
    #[error("{bytes} bytes of {space} memory at {address:#x} are not aligned to their length")]
    Misaligned {
        /// Where.
        space: Space,
        /// The first byte of the access.
        address: u64,
        /// Its length.
        bytes: u64,
    },
    /// A load of bytes that nothing wrote.
    #[error(
        "{bytes} bytes of {space} memory at {address:#x} are read, and nothing wrote byte {first:#x} ({})",
        NearestText(nearest)
    )]
    Uninitialised {
        /// Where.
        space: Space,
        /// The first byte of the access.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The first address that nothing wrote.
        first: u64,
        /// The allocation it is in.
        nearest: Option<Nearest>,
    },
    /// More memory is asked for than there is.
    #[error("{bytes} bytes of {space} memory are needed, {available} are there")]
    TooLarge {
        /// Where.
        space: Space,
        /// What is asked for.
        bytes: u64,
        /// What there is.
        available: u64,
    },
    /// A free of an address that is not the start of an allocation.
    #[error("{address:#x} is not the start of an allocation ({})", NearestText(nearest))]
    NotAllocated {
        /// The address.
        address: u64,
        /// The allocation next to it.
        nearest: Option<Nearest>,
    },
}

type Result<T> = std::result::Result<T, MemoryError>;

/// Fails if an access of `bytes` at `address` is not aligned to its length.
fn check_alignment(space: Space, address: u64, bytes: usize) -> Result<()> {
    if bytes.is_power_of_two() && address & (bytes as u64 - 1) == 0 {
        return Ok(());
    }
    Err(MemoryError::Misaligned { space, address, bytes: bytes as u64 })
}
