//! What can go wrong, and where.

use std::fmt;
use std::sync::Arc;

use layout::Arch;

use crate::target::{Target, Version};

/// A line of Rust code, from the `.loc` lines of the PTX.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RustLine {
    /// The file, as the compiler named it.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

/// A line of PTX text, with the Rust code that it comes from where the text says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxLine {
    /// The line of the PTX, from 1.
    pub line: u32,
    /// The Rust code.
    pub rust: Option<RustLine>,
}

impl fmt::Display for PtxLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}", self.line)?;
        match &self.rust {
            Some(rust) => write!(f, " ({}:{})", rust.file, rust.line),
            None => Ok(()),
        }
    }
}

/// The thread that an error is about; the lane is absent where it is the whole warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread {
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the warp in the block.
    pub warp: u32,
    /// Index of the lane in the warp.
    pub lane: Option<u32>,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "block ({x}, {y}, {z}), warp {}", self.warp)?;
        match self.lane {
            Some(lane) => write!(f, ", lane {lane}"),
            None => Ok(()),
        }
    }
}

/// An error of the emulator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not PTX.
    #[error("{place}: {problem}")]
    Syntax {
        /// Where.
        place: PtxLine,
        /// What is wrong.
        problem: String,
    },
    /// The text has an instruction or directive that the emulator does not know, or not with these operands.
    #[error("{place}: `{instruction}` is not covered by the emulator{}", detail(.reason))]
    Unsupported {
        /// Where.
        place: PtxLine,
        /// The instruction or directive.
        instruction: String,
        /// What about it is not known; empty where it is all of it.
        reason: String,
    },
    /// The text does not begin with what it is for, or names what there is not.
    #[error("{place}: {problem}")]
    Header {
        /// Where.
        place: PtxLine,
        /// What is missing or not known.
        problem: String,
    },
    /// An instruction, a special register or a directive that the text's own `.version` or `.target` does not have.
    #[error(
        "{place}: `{instruction}` needs PTX {needed_version} and {needed_target}; the text is of PTX {version} for {target}"
    )]
    NotInTarget {
        /// Where.
        place: PtxLine,
        /// The instruction, register or directive.
        instruction: String,
        /// The version that introduced it.
        needed_version: Version,
        /// The first target that has it.
        needed_target: Target,
        /// The version of the text.
        version: Version,
        /// The target of the text.
        target: Target,
    },
    /// The text is for other devices: the driver of this one does not load it.
    #[error("the text is for {target}, which {device} does not run")]
    Device {
        /// What the text is for.
        target: Target,
        /// The device.
        device: Arch,
    },
    /// The module has no kernel of this name.
    #[error("the module has no kernel `{kernel}`")]
    NoKernel {
        /// The name.
        kernel: String,
    },
    /// The launch does not fit the kernel or the device.
    #[error("launch of `{kernel}`: {problem}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// What does not fit.
        problem: String,
    },
    /// An instruction did what is not allowed.
    #[error("`{kernel}`, {thread}, {place}: {problem}")]
    Fault {
        /// The kernel.
        kernel: String,
        /// Who.
        thread: Thread,
        /// Where.
        place: PtxLine,
        /// What.
        problem: String,
    },
    /// No thread of a block can go on.
    #[error("`{kernel}`, block {block:?}: deadlock: {waits}")]
    Deadlock {
        /// The kernel.
        kernel: String,
        /// Index of the block in the grid.
        block: [u32; 3],
        /// What each warp waits for.
        waits: String,
    },
    /// A function calls itself so often that a thread's stack is full.
    #[error("`{kernel}`, {thread}, {place}: the stack of {bytes} bytes has no room for another call")]
    StackOverflow {
        /// The kernel.
        kernel: String,
        /// Who.
        thread: Thread,
        /// The call.
        place: PtxLine,
        /// The stack and the variables of a thread in local memory.
        bytes: u32,
    },
    /// A block executed more instructions than the device allows.
    #[error("`{kernel}`, block {block:?}: more than {limit} instructions; where its warps are: {at}")]
    InstructionLimit {
        /// The kernel.
        kernel: String,
        /// Index of the block in the grid.
        block: [u32; 3],
        /// The limit.
        limit: u64,
        /// Where each warp is.
        at: String,
    },
    /// The threads of a launch look for something that none of them brings about: locks that nobody frees, flags that
    /// nobody sets.
    #[error(
        "`{kernel}`, block {block:?}: no progress: for {turns} turns the warps only look at memory, in vain; where they are: {at}"
    )]
    NoProgress {
        /// The kernel.
        kernel: String,
        /// Index of the block in the grid.
        block: [u32; 3],
        /// The turns, of up to 1024 instructions, that each warp had since the last change.
        turns: u64,
        /// Where each warp is.
        at: String,
    },
    /// The host read, wrote or freed device memory that is not there.
    #[error("device memory: {problem}")]
    Memory {
        /// What is wrong.
        problem: String,
    },
}

fn detail(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// The result of a call of the emulator.
pub type Result<T, E = Error> = std::result::Result<T, E>;
