//! The form of a kernel that the machine runs: typed instructions over dense register slots.
//!
//! A warp has three banks: words (32-bit registers, and 16-bit ones with zero upper halves), doubles (64-bit) and
//! predicates. Immediates and special registers are slots too, filled before the first instruction, so that every
//! source operand of an arithmetic instruction is a slot.

use std::sync::Arc;

use crate::error::{PtxLine, RustLine};
pub(crate) use crate::operation::*;

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Test>,
    pub(crate) op: Op,
    /// For a branch that some lanes may not take: where they meet again; the number of instructions if nowhere.
    pub(crate) meet: u32,
    pub(crate) line: u32,
    /// Index into the file names of the module, and line; line 0 where there is none.
    pub(crate) rust: (u32, u32),
}

/// A special register; its value is known before the first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtarank,
    ClusterNctarank,
    DynamicSharedBytes,
    TotalSharedBytes,
    SmId,
    NsmId,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) align: u32,
}

/// A kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) code: Vec<Instruction>,
    /// The opcode of each instruction, as the text has it.
    pub(crate) opcodes: Vec<Arc<str>>,
    pub(crate) words: u32,
    pub(crate) doubles: u32,
    pub(crate) predicates: u32,
    pub(crate) constants: Vec<(W, u32)>,
    pub(crate) wide_constants: Vec<(D, u64)>,
    pub(crate) specials: Vec<(W, Special)>,
    /// The slots that hold the addresses of variables of the module, by their numbers.
    pub(crate) variables: Vec<(D, usize)>,
    /// Where the frame of the running function begins in local memory, if there are functions.
    pub(crate) frame: Option<D>,
    /// The registers of each instruction, and whether it writes them, where `wgmma` is among the instructions.
    pub(crate) operands: Vec<Box<[(Reg, bool)]>>,
    /// The registers that may be read before they are written.
    pub(crate) unwritten: Vec<Reg>,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: u32,
    /// Static shared memory, where the dynamic begins.
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) max_threads: Option<u32>,
    pub(crate) min_blocks: Option<u32>,
    pub(crate) max_registers: Option<u32>,
    pub(crate) required_threads: Option<[u32; 3]>,
    pub(crate) cluster: Option<[u32; 3]>,
    /// Whether its blocks talk through global memory, so that their order shows in the results.
    pub(crate) ordered: bool,
    /// Whether its threads can tell each other something through memory, so that fences order them.
    pub(crate) signals: bool,
    pub(crate) files: Arc<Vec<(u32, Arc<str>)>>,
}

impl Program {
    /// Where the instruction stands.
    pub(crate) fn place(&self, at: u32) -> PtxLine {
        let Some(instruction) = self.code.get(at as usize) else { return PtxLine { line: 0, rust: None } };
        place(&self.files, instruction.line, instruction.rust)
    }

    /// Where the first instruction of a line stands.
    pub(crate) fn place_of_line(&self, line: u32) -> PtxLine {
        let at = self.code.iter().position(|instruction| instruction.line == line);
        at.map_or(PtxLine { line, rust: None }, |at| self.place(at as u32))
    }
}

/// A place, the file given by its number in the PTX.
pub(crate) fn place(files: &[(u32, Arc<str>)], line: u32, rust: (u32, u32)) -> PtxLine {
    let file = files.iter().find(|file| file.0 == rust.0);
    let rust = file.filter(|_| rust.1 > 0).map(|file| RustLine { file: file.1.clone(), line: rust.1 });
    PtxLine { line, rust }
}
