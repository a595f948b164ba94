//! Constant expressions: `(1 << 4) | WARP_SZ - 1`, in operands, offsets, sizes and initial values.
//!
//! Integers have 64 bits. They are signed, but for those with the suffix `U` and those that need the sign bit. One
//! unsigned operand makes arithmetic, bit operations and comparisons unsigned; `%` and `~` are always unsigned. A shift
//! has the type of its left operand and counts modulo 64. A comparison or a logical operator gives a signed 0 or 1. The
//! source is the PTX ISA, "Constant Expressions", and where that leaves a case open, what ptxas 13.5 computes.
//! Floating-point numbers have sums, products, quotients and comparisons.

use super::lexer::Token;
use super::lexer::show;
use super::operand::{Operand, number};
use super::state::Parser;
use crate::error::Result;
use crate::program::Reg;

/// Parentheses and prefix operators in each other, at most.
const MAX_DEPTH: usize = 64;

/// A constant and its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Constant {
    Int {
        bits: u64,
        signed: bool,
    },
    /// Bits of an f64: a decimal number, or one of the form `0d..`.
    F64(u64),
    /// Bits of `0f..`, which no operator takes.
    F32(u32),
}

impl Constant {
    pub(super) fn operand(self) -> Operand {
        match self {
            Constant::Int { bits, .. } => Operand::Int(bits),
            Constant::F64(bits) => Operand::F64(bits),
            Constant::F32(bits) => Operand::F32(bits),
        }
    }
}

/// The binary operators, by how much they bind: the tighter, the higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Shl,
    Shr,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

impl Binary {
    fn strength(self) -> u32 {
        match self {
            Binary::Or => 1,
            Binary::And => 2,
            Binary::BitOr => 3,
            Binary::BitXor => 4,
            Binary::BitAnd => 5,
            Binary::Eq | Binary::Ne => 6,
            Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => 7,
            Binary::Shl | Binary::Shr => 8,
            Binary::Add | Binary::Sub => 9,
            Binary::Mul | Binary::Div | Binary::Rem => 10,
        }
    }
}

impl<'a> Parser<'a> {
    /// Whether the next token begins a constant, but for `!`, which may also stand before a predicate.
    pub(super) fn is_constant_next(&mut self) -> bool {
        match self.lexer.peek() {
            Token::Word(word) => is_literal(word),
            Token::Mark(mark) => matches!(mark, '-' | '+' | '~' | '('),
            _ => false,
        }
    }

    /// An expression.
    pub(super) fn constant(&mut self) -> Result<Constant> {
        self.conditional(0)
    }

    /// An expression that is an integer, in two's complement.
    pub(super) fn integer(&mut self) -> Result<u64> {
        let line = self.lexer.line();
        match self.constant()? {
            Constant::Int { bits, .. } => Ok(bits),
            _ => self.syntax(line, "expected an integer"),
        }
    }

    /// `!` is taken: a predicate that is negated, or the rest of an expression.
    pub(super) fn negated(&mut self) -> Result<Operand> {
        if let Token::Word(name) = self.lexer.peek()
            && !is_literal(name)
        {
            let (_, line) = self.lexer.take();
            return match self.names.register(&mut self.kernel.slots, name) {
                Some(register @ Reg::P(_)) => Ok(Operand::Not(register)),
                _ => self.syntax(line, format!("`{name}` is no predicate")),
            };
        }
        let line = self.lexer.line();
        let operand = self.prefixed(0)?;
        let first = self.apply_prefix('!', operand, line)?;
        Ok(self.conditional_from(first, 0)?.operand())
    }

    fn conditional(&mut self, depth: usize) -> Result<Constant> {
        let first = self.prefixed(depth)?;
        self.conditional_from(first, depth)
    }

    /// The rest of an expression of which the first operand is known: `? :` binds least.
    fn conditional_from(&mut self, first: Constant, depth: usize) -> Result<Constant> {
        let condition = self.binary(first, 0, depth)?;
        let line = self.lexer.line();
        if !self.has('?') {
            return Ok(condition);
        }
        if depth > MAX_DEPTH {
            return self.syntax(line, "the expression is too deep");
        }
        let yes = self.conditional(depth + 1)?;
        self.mark(':')?;
        let no = self.conditional(depth + 1)?;
        match (condition, yes, no) {
            (Constant::Int { bits, .. }, Constant::Int { .. }, Constant::Int { .. }) => {
                Ok(if bits != 0 { yes } else { no })
            }
            _ => self.syntax(line, "`? :` takes integers"),
        }
    }

    /// Operators that bind more than `strength`, from the left.
    fn binary(&mut self, mut left: Constant, strength: u32, depth: usize) -> Result<Constant> {
        loop {
            // The operator is taken only if it is one of these.
            let ahead = self.lexer.clone();
            let line = self.lexer.line();
            let Some(operator) = self.operator().filter(|operator| operator.strength() > strength) else {
                self.lexer = ahead;
                return Ok(left);
            };
            let right = self.prefixed(depth)?;
            let right = self.binary(right, operator.strength(), depth)?;
            left = match apply(operator, left, right) {
                Ok(value) => value,
                Err(problem) => return self.syntax(line, problem),
            };
        }
    }

    /// The binary operator that is next.
    fn operator(&mut self) -> Option<Binary> {
        let first = match self.lexer.take().0 {
            Token::Mark(mark) => mark,
            // A `%` that nothing follows is a word to the lexer.
            Token::Word("%") => '%',
            _ => return None,
        };
        Some(match first {
            '|' if self.has('|') => Binary::Or,
            '&' if self.has('&') => Binary::And,
            '|' => Binary::BitOr,
            '^' => Binary::BitXor,
            '&' => Binary::BitAnd,
            '=' if self.has('=') => Binary::Eq,
            '!' if self.has('=') => Binary::Ne,
            '<' if self.has('<') => Binary::Shl,
            '>' if self.has('>') => Binary::Shr,
            '<' if self.has('=') => Binary::Le,
            '>' if self.has('=') => Binary::Ge,
            '<' => Binary::Lt,
            '>' => Binary::Gt,
            '+' => Binary::Add,
            '-' => Binary::Sub,
            '*' => Binary::Mul,
            '/' => Binary::Div,
            '%' => Binary::Rem,
            _ => return None,
        })
    }

    /// A number, an expression in parentheses, or one of these behind prefix operators.
    fn prefixed(&mut self, depth: usize) -> Result<Constant> {
        let (token, line) = self.lexer.take();
        if depth > MAX_DEPTH {
            return self.syntax(line, "the expression is too deep");
        }
        match token {
            Token::Mark('(') => {
                if let Token::Word(cast @ (".s64" | ".u64")) = self.lexer.peek() {
                    self.lexer.take();
                    self.mark(')')?;
                    return match self.prefixed(depth + 1)? {
                        Constant::Int { bits, .. } => Ok(Constant::Int { bits, signed: cast == ".s64" }),
                        _ => self.syntax(line, format!("`({cast})` takes an integer")),
                    };
                }
                let inside = self.conditional(depth + 1)?;
                self.mark(')')?;
                Ok(inside)
            }
            Token::Mark(mark @ ('-' | '+' | '!' | '~')) => {
                let operand = self.prefixed(depth + 1)?;
                self.apply_prefix(mark, operand, line)
            }
            Token::Word("WARP_SZ") => Ok(Constant::Int { bits: 32, signed: true }),
            Token::Word(word) => match number(word) {
                Some(Operand::Int(bits)) => Ok(Constant::Int { bits, signed: !word.ends_with('U') && bits >> 63 == 0 }),
                Some(Operand::F64(bits)) => Ok(Constant::F64(bits)),
                Some(Operand::F32(bits)) => Ok(Constant::F32(bits)),
                _ => self.syntax(line, format!("`{word}` is no number")),
            },
            other => self.syntax(line, format!("expected a number, found {}", show(other))),
        }
    }

    fn apply_prefix(&self, operator: char, operand: Constant, line: u32) -> Result<Constant> {
        match (operator, operand) {
            ('+', Constant::Int { .. } | Constant::F64(_)) => Ok(operand),
            ('-', Constant::Int { bits, signed }) => Ok(Constant::Int { bits: bits.wrapping_neg(), signed }),
            ('-', Constant::F64(bits)) => Ok(Constant::F64(bits ^ 1 << 63)),
            ('!', Constant::Int { bits, .. }) => Ok(truth(bits == 0)),
            ('~', Constant::Int { bits, .. }) => Ok(Constant::Int { bits: !bits, signed: false }),
            _ => self.syntax(line, format!("`{operator}` does not take such a number")),
        }
    }
}

/// Whether a word is a number or stands for one.
pub(super) fn is_literal(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_ascii_digit())
        || word.strip_prefix('.').is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
        || word == "WARP_SZ"
}

fn truth(holds: bool) -> Constant {
    Constant::Int { bits: holds.into(), signed: true }
}

/// The value, or what is wrong.
fn apply(operator: Binary, left: Constant, right: Constant) -> std::result::Result<Constant, &'static str> {
    match (left, right) {
        (Constant::Int { bits: a, signed: left_signed }, Constant::Int { bits: b, signed: right_signed }) => {
            integers(operator, (a, left_signed), (b, right_signed))
        }
        (Constant::F64(a), Constant::F64(b)) => {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            let number = |value: f64| Ok(Constant::F64(value.to_bits()));
            match operator {
                Binary::Add => number(a + b),
                Binary::Sub => number(a - b),
                Binary::Mul => number(a * b),
                Binary::Div if b == 0.0 => Err("a division by zero"),
                Binary::Div => number(a / b),
                Binary::Eq => Ok(truth(a == b)),
                Binary::Ne => Ok(truth(a != b)),
                Binary::Lt => Ok(truth(a < b)),
                Binary::Le => Ok(truth(a <= b)),
                Binary::Gt => Ok(truth(a > b)),
                Binary::Ge => Ok(truth(a >= b)),
                _ => Err("the operator takes integers"),
            }
        }
        _ => Err("the operands of the operator have different types"),
    }
}

fn integers(
    operator: Binary,
    (a, left_signed): (u64, bool),
    (b, right_signed): (u64, bool),
) -> std::result::Result<Constant, &'static str> {
    let signed = left_signed && right_signed;
    let (x, y) = (a as i64, b as i64);
    let int = |bits: u64| Ok(Constant::Int { bits, signed });
    let order = if signed { x.cmp(&y) } else { a.cmp(&b) };
    match operator {
        Binary::Or => Ok(truth(a != 0 || b != 0)),
        Binary::And => Ok(truth(a != 0 && b != 0)),
        Binary::BitOr => int(a | b),
        Binary::BitXor => int(a ^ b),
        Binary::BitAnd => int(a & b),
        Binary::Eq => Ok(truth(a == b)),
        Binary::Ne => Ok(truth(a != b)),
        Binary::Lt => Ok(truth(order.is_lt())),
        Binary::Le => Ok(truth(order.is_le())),
        Binary::Gt => Ok(truth(order.is_gt())),
        Binary::Ge => Ok(truth(order.is_ge())),
        Binary::Shl => Ok(Constant::Int { bits: a.wrapping_shl(b as u32), signed: left_signed }),
        Binary::Shr => {
            let bits = if left_signed { x.wrapping_shr(b as u32) as u64 } else { a.wrapping_shr(b as u32) };
            Ok(Constant::Int { bits, signed: left_signed })
        }
        Binary::Add => int(a.wrapping_add(b)),
        Binary::Sub => int(a.wrapping_sub(b)),
        Binary::Mul => int(a.wrapping_mul(b)),
        Binary::Div | Binary::Rem if b == 0 => Err("a division by zero"),
        Binary::Div => int(if signed { x.wrapping_div(y) as u64 } else { a / b }),
        Binary::Rem => Ok(Constant::Int { bits: a % b, signed: false }),
    }
}
