//! Statements: guard, opcode, operands.

use super::constant::{Constant, is_literal};
use super::lexer::Token;
use super::lexer::show;
use super::operand::{Base, Operand, special};
use super::state::Parser;
use crate::decode::{self, Refusal};
use crate::error::Result;
use crate::program::{Instruction, Reg, Test};

impl<'a> Parser<'a> {
    pub(super) fn guarded(&mut self) -> Result<()> {
        let negated = self.has('!');
        let line = self.lexer.line();
        let name = self.word("a predicate")?;
        let Some(Reg::P(p)) = self.names.register(&mut self.kernel.slots, name) else {
            return self.syntax(line, format!("`{name}` is no predicate"));
        };
        let line = self.lexer.line();
        let opcode = self.word("an instruction")?;
        self.statement(Some(Test { p, negated }), opcode, line)
    }

    /// Whether a modifier of an opcode follows after a space: `ld .global .b32`.
    pub(super) fn is_modifier_next(&mut self) -> bool {
        matches!(self.lexer.peek(), Token::Word(word) if word.starts_with('.') && !is_literal(word))
    }

    pub(super) fn statement(&mut self, guard: Option<Test>, opcode: &'a str, line: u32) -> Result<()> {
        let opcode = if self.is_modifier_next() { self.lexer.with_modifiers(opcode) } else { opcode };
        if !self.opcodes.contains_key(opcode) {
            self.require(opcode, line)?;
        }
        if matches!(opcode, "call" | "call.uni") {
            return self.call(guard, opcode, line);
        }
        let mut operands = Vec::new();
        if !self.has(';') {
            loop {
                operands.push(self.operand(0)?);
                if !self.has(',') {
                    break;
                }
            }
            self.mark(';')?;
        }
        if matches!(opcode, "ret" | "ret.uni") && self.push_return(guard, opcode, line) {
            return Ok(());
        }
        let reducing = ["bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red"];
        if let Some(modifiers) = reducing.iter().find_map(|name| opcode.strip_prefix(name)) {
            return self.reducing_barrier(guard, (opcode, modifiers), line, &operands);
        }
        let op = if matches!(opcode, "bra" | "bra.uni") {
            let [Operand::Name(label)] = &operands[..] else {
                return self.syntax(line, "expected the label of a branch");
            };
            self.branch_to(label)
        } else if matches!(opcode, "brx.idx" | "brx.idx.uni") {
            return self.indexed_branch(guard, opcode, line, &operands);
        } else {
            match decode::decode(&mut self.kernel.slots, opcode, &operands) {
                Ok(op) => op,
                Err(Refusal(reason)) => return self.unsupported(line, opcode, reason),
            }
        };
        self.require_operands(opcode, &op, line)?;
        self.push(opcode, Instruction { guard, op, meet: 0, line, rust: self.rust });
        Ok(())
    }

    /// `bar.red`: the warp's lanes give their part, arrive, and take what all of them gave.
    fn reducing_barrier(
        &mut self,
        guard: Option<Test>,
        (opcode, modifiers): (&'a str, &str),
        line: u32,
        operands: &[Operand],
    ) -> Result<()> {
        if opcode.starts_with("barrier") && !modifiers.contains(".aligned") {
            return self.unsupported(line, opcode, "it is covered with `.aligned` alone");
        }
        let ops = match decode::reducing_barrier(&mut self.kernel.slots, modifiers, operands) {
            Ok(ops) => ops,
            Err(Refusal(reason)) => return self.unsupported(line, opcode, reason),
        };
        for op in ops {
            self.push(opcode, Instruction { guard, op, meet: 0, line, rust: self.rust });
        }
        Ok(())
    }

    pub(super) fn operand(&mut self, depth: usize) -> Result<Operand> {
        if self.is_constant_next() {
            return self.constant().map(Constant::operand);
        }
        let (token, line) = self.lexer.take();
        let operand = match token {
            Token::Mark('{') if depth < 2 => {
                let mut parts = Vec::new();
                loop {
                    parts.push(self.operand(depth + 1)?);
                    if !self.has(',') {
                        break;
                    }
                }
                self.mark('}')?;
                Operand::Vector(parts)
            }
            Token::Mark('[') if depth < 2 => self.address(depth)?,
            Token::Mark('!') => self.negated()?,
            Token::Word("_") => Operand::Sink,
            Token::Word(word) => match self.named(word, line)? {
                Operand::Symbol(symbol) if self.has('+') => Operand::Symbol(symbol.behind(self.integer()?)),
                operand => operand,
            },
            other => return self.syntax(line, format!("expected an operand, found {}", show(other))),
        };
        if depth < 3 && self.has('|') {
            return Ok(Operand::Pair(Box::new(operand), Box::new(self.operand(3)?)));
        }
        Ok(operand)
    }

    /// `[register + offset]`, `[variable + offset]`, `[offset]`, with coordinates or not, whose `[` is taken.
    fn address(&mut self, depth: usize) -> Result<Operand> {
        let line = self.lexer.line();
        let (base, mut offset) = if self.is_constant_next() {
            (Base::None, self.integer()? as i64)
        } else {
            let word = self.word("an address")?;
            match self.named(word, line)? {
                Operand::Reg(register) => (Base::Reg(register), 0),
                Operand::Symbol(symbol) => (Base::Symbol(symbol), 0),
                _ => return self.syntax(line, "expected an address"),
            }
        };
        if self.has('+') || self.lexer.peek() == Token::Mark('-') {
            offset = offset.wrapping_add(self.integer()? as i64);
        }
        if self.has(',') {
            let coordinates = match self.operand(depth + 1)? {
                Operand::Vector(coordinates) => coordinates,
                single => vec![single],
            };
            self.mark(']')?;
            return Ok(Operand::Tensor(base, offset, coordinates));
        }
        self.mark(']')?;
        Ok(Operand::Address(base, offset))
    }

    fn named(&mut self, word: &'a str, line: u32) -> Result<Operand> {
        if let Some(register) = self.names.register(&mut self.kernel.slots, word).or_else(|| self.names.element(word)) {
            return Ok(Operand::Reg(register));
        }
        if let Some(operand) = special(word) {
            self.require(word, line)?;
            return Ok(operand);
        }
        if let Some(symbol) = self.names.symbol(word) {
            return Ok(Operand::Symbol(symbol));
        }
        if let Some(registers) = self.names.vector(word) {
            return Ok(Operand::Vector(registers.iter().copied().map(Operand::Reg).collect()));
        }
        if let Some(register) = self.variable_address(word) {
            return Ok(Operand::Reg(register));
        }
        if let Some(problem) = self.unusable.get(word) {
            return self.unsupported(line, word, problem.clone());
        }
        if word.starts_with('%') {
            return self.unsupported(line, word, "no register of this name is declared, nor known as a special one");
        }
        Ok(Operand::Name(word.to_owned()))
    }
}
