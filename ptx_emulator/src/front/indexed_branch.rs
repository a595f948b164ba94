//! `brx.idx`: a branch to one of a list of labels. It becomes comparisons and branches, at which lanes diverge and meet
//! as at all others.

use super::operand::Operand;
use super::state::Parser;
use crate::error::Result;
use crate::program::{Cmp, Instruction, Op, P, Reg, Test, Type, W};

/// Targets of one list, at most.
const MAX_TARGETS: usize = 128;

impl<'a> Parser<'a> {
    /// The labels behind `label: .branchtargets`.
    pub(super) fn branch_targets(&mut self, scope: u32, label: &'a str) -> Result<()> {
        let mut targets = vec![self.word("a label")?];
        while self.has(',') {
            targets.push(self.word("a label")?);
        }
        if targets.len() > MAX_TARGETS {
            let line = self.lexer.line();
            return self.unsupported(line, ".branchtargets", format!("of more than {MAX_TARGETS}"));
        }
        self.kernel.targets.insert((scope, label), targets);
        self.mark(';')
    }

    /// A branch to a label that may stand further on.
    pub(super) fn branch_to(&mut self, label: &str) -> Op {
        let scopes = self.names.open_ids().collect();
        self.kernel.branches.push((self.kernel.code.len(), label.to_owned(), scopes));
        Op::Branch { target: 0 }
    }

    /// `brx.idx index, label;` of a list that stands before it.
    pub(super) fn indexed_branch(
        &mut self,
        guard: Option<Test>,
        opcode: &'a str,
        line: u32,
        operands: &[Operand],
    ) -> Result<()> {
        let &[Operand::Reg(Reg::W(index)), Operand::Name(ref label)] = operands else {
            return self.syntax(line, "expected a 32-bit register and the label of a list of targets");
        };
        if guard.is_some() {
            return self.unsupported(line, opcode, "with a guard");
        }
        let scopes: Vec<u32> = self.names.open_ids().collect();
        let list = scopes.iter().find_map(|&scope| self.kernel.targets.get(&(scope, label.as_str())));
        let Some((last, others)) = list.cloned().and_then(|mut list| list.pop().map(|last| (last, list))) else {
            return self.syntax(line, format!("there is no list of targets `{label}` before it"));
        };
        let p = self.kernel.slots.predicate();
        let guard = Some(Test { p, negated: false });
        let rust = self.rust;
        let instruction = |guard, op| Instruction { guard, op, meet: 0, line, rust };
        let beyond = self.kernel.slots.constant(others.len() as u32);
        self.push(opcode, instruction(None, compare(Cmp::Gt, p, index, beyond)));
        self.push(opcode, instruction(guard, Op::Trap { what: "branch to none of the targets" }));
        for (number, target) in others.into_iter().enumerate() {
            let number = self.kernel.slots.constant(number as u32);
            self.push(opcode, instruction(None, compare(Cmp::Eq, p, index, number)));
            let branch = self.branch_to(target);
            self.push(opcode, instruction(guard, branch));
        }
        let branch = self.branch_to(last);
        self.push(opcode, instruction(None, branch));
        Ok(())
    }
}

fn compare(cmp: Cmp, p: P, a: W, b: W) -> Op {
    let ty = Type::Int { bits: 32, signed: false };
    Op::Set { ty, cmp, ftz: false, d: Some(p), q: None, a: Reg::W(a), b: Reg::W(b), with: None }
}
