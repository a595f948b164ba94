//! Where the lanes of a warp that part at a branch meet again: the immediate post-dominators of the control-flow graph.
//!
//! Blocks are numbered in the order of a depth-first walk of the reversed graph from a virtual exit. The iteration of
//! Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm", 2001) finds the post-dominators.

use crate::program::{Instruction, Op};

const NONE: u32 = u32::MAX;

/// Sets `meet` of every branch that some lanes may not take.
pub(crate) fn find_meeting_points(code: &mut [Instruction], starts: &[u32]) {
    let graph = Graph::new(code, starts);
    let post_dominators = graph.post_dominators();
    for (block, &meeting) in post_dominators.iter().enumerate().take(starts.len()) {
        let end = starts.get(block + 1).map_or(code.len(), |&next| next as usize);
        let last = &mut code[end - 1];
        if matches!(last.op, Op::Branch { .. }) && last.guard.is_some() {
            last.meet = starts.get(meeting as usize).copied().unwrap_or(NONE);
        }
    }
}

/// The first instructions of the basic blocks. A guarded exit ends no block: its lanes do not come back.
pub(crate) fn block_starts(code: &[Instruction]) -> Vec<u32> {
    let mut starts = vec![false; code.len()];
    if let Some(first) = starts.first_mut() {
        *first = true;
    }
    for (at, instruction) in code.iter().enumerate() {
        let ends = match instruction.op {
            Op::Branch { target } => {
                if let Some(start) = starts.get_mut(target as usize) {
                    *start = true;
                }
                true
            }
            Op::Exit | Op::Return | Op::Trap { .. } => instruction.guard.is_none(),
            _ => false,
        };
        if ends && let Some(next) = starts.get_mut(at + 1) {
            *next = true;
        }
    }
    (0..code.len() as u32).filter(|&at| starts[at as usize]).collect()
}

/// The control-flow graph of a kernel.
pub(crate) struct Graph {
    /// Blocks that follow, for each block; the virtual exit has the number of the blocks.
    successors: Vec<Vec<u32>>,
    predecessors: Vec<Vec<u32>>,
}

impl Graph {
    pub(crate) fn new(code: &[Instruction], starts: &[u32]) -> Graph {
        let exit = starts.len() as u32;
        let block_of = |at: u32| starts.partition_point(|&start| start <= at) as u32 - 1;
        let mut graph =
            Graph { successors: vec![Vec::new(); starts.len() + 1], predecessors: vec![Vec::new(); starts.len() + 1] };
        for block in 0..starts.len() {
            let end = starts.get(block + 1).map_or(code.len(), |&next| next as usize);
            let last = &code[end - 1];
            let next = if end < code.len() { block as u32 + 1 } else { exit };
            match last.op {
                Op::Branch { target } => {
                    let target = if (target as usize) < code.len() { block_of(target) } else { exit };
                    graph.edge(block as u32, target);
                    if last.guard.is_some() {
                        graph.edge(block as u32, next);
                    }
                }
                Op::Exit | Op::Return | Op::Trap { .. } if last.guard.is_none() => graph.edge(block as u32, exit),
                _ => graph.edge(block as u32, next),
            }
        }
        graph.connect_endless_loops();
        graph
    }

    /// The blocks that follow one; the number of all blocks is the exit.
    pub(crate) fn successors(&self, block: usize) -> &[u32] {
        &self.successors[block]
    }

    fn edge(&mut self, from: u32, to: u32) {
        self.successors[from as usize].push(to);
        self.predecessors[to as usize].push(from);
    }

    /// Gives blocks from which no exit is reached an edge to the exit, so that every block has a post-dominator.
    fn connect_endless_loops(&mut self) {
        let exit = self.successors.len() as u32 - 1;
        let mut reaches = vec![false; self.successors.len()];
        let mut work = vec![exit];
        for block in (0..=exit).rev() {
            if block != exit && !reaches[block as usize] && work.is_empty() {
                self.edge(block, exit);
                work.push(block);
            }
            while let Some(block) = work.pop() {
                if !std::mem::replace(&mut reaches[block as usize], true) {
                    work.extend(&self.predecessors[block as usize]);
                }
            }
        }
    }

    /// The immediate post-dominator of each block; the virtual exit's is itself.
    fn post_dominators(&self) -> Vec<u32> {
        let exit = self.successors.len() as u32 - 1;
        let order = self.reverse_postorder(exit);
        let mut rank = vec![NONE; self.successors.len()];
        for (index, &block) in order.iter().enumerate() {
            rank[block as usize] = index as u32;
        }
        let mut dominator = vec![NONE; self.successors.len()];
        dominator[exit as usize] = exit;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &order[1..] {
                let known =
                    self.successors[block as usize].iter().copied().filter(|&next| dominator[next as usize] != NONE);
                let found = known.reduce(|mut a, mut b| {
                    while a != b {
                        while rank[a as usize] > rank[b as usize] {
                            a = dominator[a as usize];
                        }
                        while rank[b as usize] > rank[a as usize] {
                            b = dominator[b as usize];
                        }
                    }
                    a
                });
                if let Some(found) = found
                    && dominator[block as usize] != found
                {
                    dominator[block as usize] = found;
                    changed = true;
                }
            }
        }
        dominator
    }

    /// Blocks in reverse postorder of the reversed graph.
    fn reverse_postorder(&self, exit: u32) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.successors.len());
        let mut seen = vec![false; self.successors.len()];
        let mut stack = vec![(exit, 0)];
        seen[exit as usize] = true;
        while let Some((block, edge)) = stack.last_mut() {
            match self.predecessors[*block as usize].get(*edge) {
                Some(&previous) => {
                    *edge += 1;
                    if !std::mem::replace(&mut seen[previous as usize], true) {
                        stack.push((previous, 0));
                    }
                }
                None => {
                    order.push(*block);
                    stack.pop();
                }
            }
        }
        order.reverse();
        order
    }
}
