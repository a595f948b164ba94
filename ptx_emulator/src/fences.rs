//! Which `wgmma` may follow an access to its registers without a `wgmma.fence` in between.
//!
//! A pass over the control-flow graph: at each instruction, the registers that some way to it accesses after its last
//! fence. Before the first fence of a kernel those are all of them. Accumulators that one `wgmma` after another adds to
//! need no fence.

use crate::control::Graph;
use crate::operands::{Operand, visit};
use crate::program::{Hopper, Instruction, Op, W, WgmmaA};

/// The registers accessed since the last fence, of which those written, as bits.
#[derive(Clone, PartialEq, Eq)]
struct Since {
    accessed: Vec<u64>,
    written: Vec<u64>,
}

impl Since {
    fn filled(words: u32, bits: u64) -> Since {
        let set = vec![bits; words.div_ceil(64) as usize];
        Since { accessed: set.clone(), written: set }
    }

    fn note(&mut self, slot: W, writes: bool) {
        let (at, bit) = (slot.0 as usize / 64, 1 << (slot.0 % 64));
        self.accessed[at] |= bit;
        if writes {
            self.written[at] |= bit;
        }
    }

    /// Adds the other's; whether that changed something.
    fn join(&mut self, other: &Since) -> bool {
        let mut changed = false;
        let pairs = self.accessed.iter_mut().zip(&other.accessed);
        for (ours, theirs) in pairs.chain(self.written.iter_mut().zip(&other.written)) {
            changed |= theirs & !*ours != 0;
            *ours |= theirs;
        }
        changed
    }

    /// Goes over an instruction.
    fn pass(&mut self, op: &mut Op) {
        match op {
            Op::Hopper(hopper) if **hopper == Hopper::WgmmaFence => {
                self.accessed.fill(0);
                self.written.fill(0);
            }
            _ if op.wgmma().is_some() => {}
            _ => visit(op, |role, operand| {
                if let Operand::W(slot) = operand {
                    self.note(*slot, role.writes());
                }
            }),
        }
    }
}

fn has(set: &[u64], slot: W) -> bool {
    set[slot.0 as usize / 64] >> (slot.0 % 64) & 1 != 0
}

/// Sets `fenced` of every `wgmma`.
pub(crate) fn find_unfenced(code: &mut [Instruction], starts: &[u32], words: u32) {
    if code.iter().all(|instruction| instruction.op.wgmma().is_none()) {
        return;
    }
    let graph = Graph::new(code, starts);
    let length = code.len();
    let range = |block: usize| {
        let end = starts.get(block + 1).map_or(length, |&next| next as usize);
        starts[block] as usize..end
    };
    let mut before: Vec<Option<Since>> = vec![None; starts.len()];
    if let Some(first) = before.first_mut() {
        *first = Some(Since::filled(words, u64::MAX));
    }
    let mut work = vec![0];
    while let Some(block) = work.pop() {
        let Some(mut since) = before[block].clone() else { continue };
        range(block).for_each(|at| since.pass(&mut code[at].op));
        for &next in graph.successors(block) {
            let Some(there) = before.get_mut(next as usize) else { continue };
            let changed = match there {
                Some(there) => there.join(&since),
                None => {
                    *there = Some(since.clone());
                    true
                }
            };
            if changed {
                work.push(next as usize);
            }
        }
    }
    let ranges: Vec<_> = (0..starts.len()).map(range).collect();
    for (since, range) in before.into_iter().zip(ranges) {
        let Some(mut since) = since else { continue };
        for instruction in &mut code[range] {
            since.pass(&mut instruction.op);
            let Op::Hopper(hopper) = &mut instruction.op else { continue };
            let Hopper::Wgmma(wgmma) = &mut **hopper else { continue };
            let factors = match wgmma.a {
                WgmmaA::Registers(a) => a.iter().all(|&slot| !has(&since.written, slot)),
                WgmmaA::Shared(..) => true,
            };
            wgmma.fenced = factors && wgmma.d.iter().all(|&slot| !has(&since.accessed, slot));
        }
    }
}
