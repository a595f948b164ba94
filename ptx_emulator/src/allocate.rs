//! Gives registers that are never needed at the same time one slot, so that a warp's banks are small and stay in the
//! caches of the CPU.
//!
//! A lane follows one path through the code and writes its own registers alone, so what holds for a thread holds for a
//! warp. A register is live where a later instruction may read it. Its interval reaches from the first to the last
//! instruction at which it is live, in the order of the code, and registers whose intervals do not overlap share a slot
//! (Poletto and Sarkar, "Linear Scan Register Allocation", 1999). What is live at the first instruction may be read
//! before it is written.

use std::collections::BTreeSet;

use crate::control::Graph;
use crate::operands::{Operand, Role, visit};
use crate::program::{D, Program, Reg, W};

/// Registers times basic blocks: where there are more, every register keeps its slot.
const MAX_WORK: usize = 1 << 26;

/// A set of registers: words first, then doubles.
type Set = Vec<u64>;

fn insert(set: &mut Set, register: usize) {
    set[register / 64] |= 1 << (register % 64);
}

fn contains(set: &Set, register: usize) -> bool {
    set[register / 64] >> (register % 64) & 1 != 0
}

fn members(set: &Set) -> impl Iterator<Item = usize> {
    set.iter()
        .enumerate()
        .flat_map(|(at, &bits)| (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| at * 64 + bit))
}

/// Renumbers the slots of words and doubles and notes which of them are read unwritten.
pub(crate) fn allocate(program: &mut Program, starts: &[u32]) {
    let (words, registers) = (program.words as usize, (program.words + program.doubles) as usize);
    let mut fixed: Set = vec![0; registers.div_ceil(64)];
    program.constants.iter().for_each(|constant| insert(&mut fixed, constant.0.0 as usize));
    program.specials.iter().for_each(|special| insert(&mut fixed, special.0.0 as usize));
    program.wide_constants.iter().for_each(|constant| insert(&mut fixed, words + constant.0.0 as usize));
    program.variables.iter().for_each(|variable| insert(&mut fixed, words + variable.0.0 as usize));
    let register = |register: usize, slot: u32| if register < words { Reg::W(W(slot)) } else { Reg::D(D(slot)) };
    // What is live while a function runs does not follow from the order of the code.
    if program.frame.is_some() || registers.saturating_mul(starts.len()) > MAX_WORK {
        let own = |at: usize| if at < words { at as u32 } else { (at - words) as u32 };
        let unfixed = (0..registers).filter(|&at| !contains(&fixed, at));
        program.unwritten = unfixed.map(|at| register(at, own(at))).collect();
        note_operands(program);
        return;
    }

    let graph = Graph::new(&program.code, starts);
    let live = live_at_starts(program, starts, &graph, &fixed);
    let intervals = intervals(program, starts, &graph, &live, &fixed);
    let slots = slots(&intervals, words, &fixed);
    let renamed_word = |slot: W| W(slots[slot.0 as usize]);
    let renamed_double = |slot: D| D(slots[words + slot.0 as usize]);
    for instruction in &mut program.code {
        visit(&mut instruction.op, |_, operand| match operand {
            Operand::W(slot) => *slot = renamed_word(*slot),
            Operand::D(slot) => *slot = renamed_double(*slot),
        });
    }
    program.constants.iter_mut().for_each(|constant| constant.0 = renamed_word(constant.0));
    program.specials.iter_mut().for_each(|special| special.0 = renamed_word(special.0));
    program.wide_constants.iter_mut().for_each(|constant| constant.0 = renamed_double(constant.0));
    program.variables.iter_mut().for_each(|variable| variable.0 = renamed_double(variable.0));
    program.unwritten =
        live.first().map_or(Vec::new(), |live| members(live).map(|at| register(at, slots[at])).collect());
    note_operands(program);
    let used = |slots: &[u32]| slots.iter().filter(|&&slot| slot != u32::MAX).max().map_or(0, |slot| slot + 1);
    (program.words, program.doubles) = (used(&slots[..words]), used(&slots[words..]));
}

/// Notes the registers of each instruction where `wgmma` is among them.
fn note_operands(program: &mut Program) {
    if program.code.iter().any(|instruction| instruction.op.wgmma().is_some()) {
        let operands = program.code.iter_mut().map(|instruction| {
            let mut operands = Vec::new();
            visit(&mut instruction.op, |role, operand| operands.push((operand.register(), role.writes())));
            operands.into_boxed_slice()
        });
        program.operands = operands.collect();
    }
}

/// Calls `visit` for the operands in the banks of words and doubles, by the number of the register.
fn each(program: &mut Program, at: usize, words: usize, mut of: impl FnMut(Role, usize)) {
    visit(&mut program.code[at].op, |role, operand| match operand {
        Operand::W(slot) => of(role, slot.0 as usize),
        Operand::D(slot) => of(role, words + slot.0 as usize),
    });
}

/// The instructions of a basic block.
fn range(program: &Program, starts: &[u32], block: usize) -> std::ops::Range<usize> {
    let end = starts.get(block + 1).map_or(program.code.len(), |&next| next as usize);
    starts[block] as usize..end
}

/// The registers that are live at the first instruction of each basic block.
fn live_at_starts(program: &mut Program, starts: &[u32], graph: &Graph, fixed: &Set) -> Vec<Set> {
    let words = program.words as usize;
    let empty: Set = vec![0; fixed.len()];
    // For each basic block, the registers that it reads before it writes them, and those that it writes in every lane
    // that comes by.
    let (mut reads, mut writes) = (vec![empty.clone(); starts.len()], vec![empty.clone(); starts.len()]);
    for block in 0..starts.len() {
        for at in range(program, starts, block).rev() {
            let guarded = program.code[at].guard.is_some();
            let (reads, writes) = (&mut reads[block], &mut writes[block]);
            each(program, at, words, |role, register| {
                if !role.reads() && !guarded {
                    insert(writes, register);
                    reads[register / 64] &= !(1 << (register % 64));
                }
            });
            each(program, at, words, |role, register| {
                if role.reads() && !contains(fixed, register) {
                    insert(reads, register);
                }
            });
        }
    }
    let mut live = reads.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for block in (0..starts.len()).rev() {
            for &next in graph.successors(block).iter().filter(|&&next| (next as usize) < starts.len()) {
                for chunk in 0..empty.len() {
                    let more = live[next as usize][chunk] & !writes[block][chunk] & !live[block][chunk];
                    live[block][chunk] |= more;
                    changed |= more != 0;
                }
            }
        }
    }
    live
}

/// When an instruction reads, and when it writes: every one reads first.
fn time(at: usize, role: Role) -> u32 {
    2 * at as u32 + u32::from(role.writes())
}

/// First and last time of each register; none of those that nothing touches.
fn intervals(
    program: &mut Program,
    starts: &[u32],
    graph: &Graph,
    live: &[Set],
    fixed: &Set,
) -> Vec<Option<(u32, u32)>> {
    let words = program.words as usize;
    let mut intervals = vec![None; words + program.doubles as usize];
    let mut cover = |register: usize, time: u32| {
        let (first, last) = intervals[register].unwrap_or((time, time));
        intervals[register] = Some((first.min(time), last.max(time)));
    };
    for block in 0..starts.len() {
        let range = range(program, starts, block);
        members(&live[block]).for_each(|register| cover(register, time(range.start, Role::Read)));
        for &next in graph.successors(block).iter().filter(|&&next| (next as usize) < starts.len()) {
            // What is live behind the block is live at its end.
            members(&live[next as usize]).for_each(|register| cover(register, time(range.end - 1, Role::Write)));
        }
        for at in range {
            each(program, at, words, |role, register| {
                if !contains(fixed, register) {
                    if role.reads() {
                        cover(register, time(at, Role::Read));
                    }
                    cover(register, time(at, role));
                }
            });
            // A `wgmma` uses its registers until it is waited for, wherever that is.
            let held = program.code[at].op.wgmma().is_some();
            each(program, at, words, |_, register| {
                if held && !contains(fixed, register) {
                    cover(register, 0);
                    cover(register, u32::MAX);
                }
            });
        }
    }
    intervals
}

/// The slot of each register in its bank.
fn slots(intervals: &[Option<(u32, u32)>], words: usize, fixed: &Set) -> Vec<u32> {
    let mut slots = vec![u32::MAX; intervals.len()];
    for bank in [0..words, words..intervals.len()] {
        let mut next = 0;
        let mut fresh = || {
            next += 1;
            next - 1
        };
        for register in bank.clone().filter(|&register| contains(fixed, register)) {
            slots[register] = fresh();
        }
        let mut order: Vec<(u32, u32, usize)> =
            bank.filter_map(|register| intervals[register].map(|(first, last)| (first, last, register))).collect();
        order.sort_unstable();
        // The registers that have a slot, by their end; and the slots that are free.
        let (mut active, mut free) = (BTreeSet::new(), Vec::new());
        for (first, last, register) in order {
            while let Some(&(end, slot)) = active.first()
                && end < first
            {
                active.pop_first();
                free.push(slot);
            }
            let slot = free.pop().unwrap_or_else(&mut fresh);
            slots[register] = slot;
            active.insert((last, slot));
        }
    }
    slots
}
