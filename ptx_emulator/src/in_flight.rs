//! The registers of a warp that a `wgmma` in flight writes and reads. Nothing else may touch them until the warp has
//! waited for its group.
//!
//! Results are in the registers at once, which does not show, because any use before the wait is an error. The
//! assembler removes moves, so the destination of a move of such a register is such a register too.

use std::collections::VecDeque;

use crate::execute::Fault;
use crate::program::{IntOp, Op, Reg, W, Wgmma, WgmmaA};
use crate::shadow::{CtaShadow, Operation, Threads};

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// By the slot of the register.
    tags: Vec<Option<Tag>>,
    /// The slots that have one.
    tagged: Vec<W>,
    /// The groups committed so far: the number of the open one.
    committed: u32,
    /// The accesses to shared memory of each group that has any, oldest first.
    operations: VecDeque<(u32, Operation)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag {
    group: u32,
    /// The line of the PTX.
    line: u32,
    role: Role,
    /// The register is not one of the instruction, but has the value of one.
    moved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is read.
    Factor,
    /// It is read and written.
    Accumulator { n: u32, f16: bool },
}

impl InFlight {
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.tagged.is_empty()
    }

    fn tag(&self, slot: W) -> Option<Tag> {
        self.tags.get(slot.0 as usize).copied().flatten()
    }

    fn set(&mut self, slot: W, tag: Tag) {
        let index = slot.0 as usize;
        if self.tags.len() <= index {
            self.tags.resize(index + 1, None);
        }
        if self.tags[index].replace(tag).is_none() {
            self.tagged.push(slot);
        }
    }

    fn clear(&mut self, slot: W) {
        self.tags[slot.0 as usize] = None;
        self.tagged.retain(|&tagged| tagged != slot);
    }

    /// Refuses an instruction, other than a `wgmma`, that touches a register in use; `operands` are its registers, and
    /// whether they are written.
    pub(crate) fn check(&mut self, op: &Op, operands: &[(Reg, bool)]) -> Result<(), Box<Fault>> {
        if op.wgmma().is_some() {
            return Ok(());
        }
        if let Op::Int32 { op: IntOp::Mov, d, s } = *op
            && let Some(tag @ Tag { role: Role::Accumulator { .. }, .. }) = self.tag(s[0])
        {
            // Back into the register itself changes nothing.
            if self.tag(d).is_none_or(|there| there.moved) {
                self.set(d, Tag { moved: true, ..tag });
            }
            return Ok(());
        }
        let mut fault = None;
        // A register that is read and written is read first.
        let reads = operands.iter().filter(|operand| !operand.1);
        for &(register, writes) in reads.chain(operands.iter().filter(|operand| operand.1)) {
            let (Reg::W(slot) | Reg::H(slot)) = register else { continue };
            let Some(tag) = self.tag(slot) else { continue };
            if tag.moved && writes {
                // Another name of the value, which is not needed any more.
                self.clear(slot);
                continue;
            }
            fault = fault.take().or(match tag.role {
                Role::Factor if !writes => None,
                Role::Factor => Some(format!("overwrites a register that the wgmma in PTX line {} reads", tag.line)),
                Role::Accumulator { .. } => {
                    let what = if writes { "overwrites" } else { "reads" };
                    Some(format!("{what} an accumulator of the wgmma in PTX line {}", tag.line))
                }
            });
        }
        fault.map_or(Ok(()), |what| Err(Fault::warp(format!("it {what}, which no wgmma.wait_group waited for"))))
    }

    /// A `wgmma` starts in the open group.
    pub(crate) fn start(&mut self, wgmma: &Wgmma, line: u32) -> Result<(), Box<Fault>> {
        let group = self.committed;
        let accumulator = Role::Accumulator { n: wgmma.n, f16: wgmma.f16 };
        for &slot in &wgmma.d {
            match self.tag(slot) {
                Some(tag) if tag.role != accumulator => {
                    let line = tag.line;
                    return Err(Fault::warp(format!(
                        "it accumulates in a register of the wgmma in PTX line {line}, which has another shape and was not \
                         waited for"
                    )));
                }
                _ => self.set(slot, Tag { group, line, role: accumulator, moved: false }),
            }
        }
        let WgmmaA::Registers(a) = wgmma.a else { return Ok(()) };
        for slot in a {
            match self.tag(slot) {
                Some(Tag { role: Role::Accumulator { .. }, line, .. }) => {
                    return Err(Fault::warp(format!(
                        "its factor is an accumulator of the wgmma in PTX line {line}, which no wgmma.wait_group waited for"
                    )));
                }
                _ => self.set(slot, Tag { group, line, role: Role::Factor, moved: false }),
            }
        }
        Ok(())
    }

    /// The accesses of the open group to shared memory.
    pub(crate) fn operation(&mut self, shadow: &mut CtaShadow) -> Operation {
        match self.operations.back() {
            Some(&(group, operation)) if group == self.committed => operation,
            _ => {
                let operation = shadow.start();
                self.operations.push_back((self.committed, operation));
                operation
            }
        }
    }

    pub(crate) fn commit(&mut self) {
        self.committed += 1;
    }

    /// Waits until at most `pending` groups are in flight.
    pub(crate) fn wait(&mut self, shadow: &mut CtaShadow, threads: Threads, pending: u32) {
        let done = self.committed.saturating_sub(pending);
        while let Some(&(group, operation)) = self.operations.front()
            && group < done
        {
            self.operations.pop_front();
            shadow.finish(operation, threads);
        }
        let tags = &mut self.tags;
        self.tagged.retain(|slot| {
            let tag = &mut tags[slot.0 as usize];
            if tag.is_some_and(|tag| tag.group < done) {
                *tag = None;
            }
            tag.is_some()
        });
    }
}
