//! Statements: guard, opcode, operands.

use super::lexer::Token;
use super::operand::{Base, Operand, number, special};
use super::parser::{Parser, show};
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

    pub(super) fn statement(&mut self, guard: Option<Test>, opcode: &'a str, line: u32) -> Result<()> {
        if matches!(opcode, "call" | "call.uni") {
            let op = self.call(opcode, line)?;
            self.push(opcode, Instruction { guard, op, meet: 0, line, rust: self.rust });
            return Ok(());
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
        self.push(opcode, Instruction { guard, op, meet: 0, line, rust: self.rust });
        Ok(())
    }

    fn operand(&mut self, depth: usize) -> Result<Operand> {
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
            Token::Mark('[') if depth < 2 => {
                let base = match self.operand(depth + 1)? {
                    Operand::Reg(register) => (Base::Reg(register), 0),
                    Operand::Symbol(symbol) => (Base::Symbol(symbol), 0),
                    Operand::Int(value) => (Base::None, value as i64),
                    _ => return self.syntax(line, "expected an address"),
                };
                let mut offset = 0;
                if self.has('+') || self.lexer.peek() == Token::Mark('-') {
                    offset = self.signed()?;
                }
                let offset = offset.wrapping_add(base.1);
                if self.has(',') {
                    let coordinates = match self.operand(depth + 1)? {
                        Operand::Vector(coordinates) => coordinates,
                        single => vec![single],
                    };
                    self.mark(']')?;
                    return Ok(Operand::Tensor(base.0, offset, coordinates));
                }
                self.mark(']')?;
                Operand::Address(base.0, offset)
            }
            Token::Mark('-') => {
                let word = self.word("a number")?;
                match number(word) {
                    Some(Operand::Int(value)) => Operand::Int(value.wrapping_neg()),
                    Some(Operand::F64(bits)) => Operand::F64(bits ^ 1 << 63),
                    _ => return self.syntax(line, format!("`-{word}` is no number")),
                }
            }
            Token::Mark('!') => {
                let name = self.word("a predicate")?;
                match self.names.register(&mut self.kernel.slots, name) {
                    Some(register @ Reg::P(_)) => Operand::Not(register),
                    _ => return self.syntax(line, format!("`{name}` is no predicate")),
                }
            }
            Token::Word("_") => Operand::Sink,
            Token::Word(word) => self.named(word, line)?,
            other => return self.syntax(line, format!("expected an operand, found {}", show(other))),
        };
        if depth < 3 && self.has('|') {
            return Ok(Operand::Pair(Box::new(operand), Box::new(self.operand(3)?)));
        }
        Ok(operand)
    }

    /// A signed integer, as in `[%r1+-4]`.
    fn signed(&mut self) -> Result<i64> {
        let negative = self.has('-');
        let line = self.lexer.line();
        let word = self.word("a number")?;
        match number(word) {
            Some(Operand::Int(value)) if negative => Ok((value as i64).wrapping_neg()),
            Some(Operand::Int(value)) => Ok(value as i64),
            _ => self.syntax(line, format!("`{word}` is no integer")),
        }
    }

    fn named(&mut self, word: &'a str, line: u32) -> Result<Operand> {
        if word.starts_with(|letter: char| letter.is_ascii_digit()) {
            return match number(word) {
                Some(operand) => Ok(operand),
                None => self.syntax(line, format!("`{word}` is no number")),
            };
        }
        if let Some(register) = self.names.register(&mut self.kernel.slots, word) {
            return Ok(Operand::Reg(register));
        }
        if let Some(operand) = special(word) {
            return Ok(operand);
        }
        if word == "WARP_SZ" {
            return Ok(Operand::Int(32));
        }
        if let Some(symbol) = self.names.symbol(word) {
            return Ok(Operand::Symbol(symbol));
        }
        if self.unusable.contains(word) {
            return self.unsupported(line, word, "a variable of the module in global or constant memory");
        }
        if word.starts_with('%') {
            return self.unsupported(line, word, "no register of this name is declared, nor known as a special one");
        }
        Ok(Operand::Name(word.to_owned()))
    }
}
