//! The registers that the warps of a block pass between them.

use crate::execute::Fault;
use crate::program::Program;
use crate::shape::Shape;

/// The registers of each block, which `setmaxnreg` moves between its warps.
pub(crate) struct RegisterPool {
    /// Registers a thread of each warp has; none where the hardware ignores the instruction.
    held: Option<Vec<u32>>,
    /// Of each block, in registers a thread of one warp.
    free: Vec<u32>,
}

/// The registers of a multiprocessor.
const REGISTERS: u32 = 1 << 16;
/// The most of a thread.
const MAX_REGISTERS: u32 = 256;

impl RegisterPool {
    /// At the start of a kernel, whose threads have what its launch bounds let all of them have. Without bounds the
    /// assembler ignores the instruction.
    pub(crate) fn new(program: &Program, shape: Shape) -> RegisterPool {
        let blocks = program.min_blocks.unwrap_or(1).max(1);
        let bound = |threads: u32| REGISTERS / threads.next_multiple_of(32).saturating_mul(blocks).max(1);
        let start = program.max_registers.or(program.max_threads.map(bound));
        let start = start.map(|registers| registers.min(MAX_REGISTERS) / 8 * 8);
        let held = start.map(|start| vec![start; (shape.blocks * shape.warps) as usize]);
        RegisterPool { held, free: vec![0; shape.blocks as usize] }
    }

    /// Changes what a warp has; false if it must wait for registers that are not free.
    pub(crate) fn set(&mut self, shape: Shape, warp: u32, increase: bool, registers: u32) -> Result<bool, Box<Fault>> {
        let Some(held) = &mut self.held else { return Ok(true) };
        let (held, free) = (&mut held[warp as usize], &mut self.free[shape.rank_of(warp) as usize]);
        let (from, to) = if increase { (*held, registers) } else { (registers, *held) };
        let Some(difference) = to.checked_sub(from) else {
            let what = if increase { "an increase" } else { "a decrease" };
            return Err(Fault::warp(format!("{what} to {registers} registers of threads that have {held}")));
        };
        if increase && difference > *free {
            return Ok(false);
        }
        *held = registers;
        *free = if increase { *free - difference } else { *free + difference };
        Ok(true)
    }

    /// Why a warp waits for `registers`.
    pub(crate) fn describe(&self, shape: Shape, warp: u32, registers: u32) -> String {
        let held = self.held.as_ref().map_or(0, |held| held[warp as usize]);
        let free = self.free[shape.rank_of(warp) as usize];
        format!("waits for {} more registers a thread, of which {free} are free", registers.saturating_sub(held))
    }
}
