//! Variables of the module in global and constant memory, with their initial values.

use super::constant::Constant;
use super::lexer::Token;
use super::lexer::show;
use super::state::Parser;
use crate::error::Result;
use crate::memory::ALIGNMENT;
use crate::program::{D, Reg};
use crate::variables::{Reference, Variable};

/// Bytes of a variable, at most.
const MAX_BYTES: u64 = 1 << 30;
/// Braces in braces of an initial value.
const MAX_DEPTH: usize = 16;

/// The type of the elements of a variable.
#[derive(Clone, Copy)]
struct Element {
    bytes: u32,
    is_float: bool,
}

impl<'a> Parser<'a> {
    /// `.align 4 .b8 name[8] = {1, 2};` behind `.global` or `.const`. One that cannot be used is refused where a kernel
    /// names it.
    pub(super) fn module_variable(&mut self, constant: bool, is_extern: bool) -> Result<()> {
        let (mut element, mut count) = (Element { bytes: 0, is_float: false }, 1);
        self.attributes()?;
        while let Token::Word(word) = self.lexer.peek()
            && let Some(ty) = word.strip_prefix('.')
        {
            let (_, line) = self.lexer.take();
            match word {
                ".align" => {
                    let align = self.count()?;
                    if !align.is_power_of_two() {
                        return self.syntax(line, format!("the alignment {align} is no power of two"));
                    }
                    if u64::from(align) > ALIGNMENT {
                        return self.unsupported(line, ".align", format!("{align}, of more than {ALIGNMENT} bytes"));
                    }
                }
                ".v2" => count = 2,
                ".v4" => count = 4,
                _ => match ty.trim_start_matches(['b', 'u', 's', 'f']).parse::<u32>() {
                    Ok(bits @ (8 | 16 | 32 | 64 | 128)) => {
                        element = Element { bytes: bits / 8, is_float: ty.starts_with('f') };
                    }
                    _ => return self.unsupported(line, word, "as the type of a variable"),
                },
            }
            self.attributes()?;
        }
        loop {
            self.declared((constant, is_extern), element, count)?;
            if !self.has(',') {
                return self.mark(';');
            }
        }
    }

    /// `name[8] = {1, 2}`, of vectors of `count` elements.
    fn declared(&mut self, (constant, is_extern): (bool, bool), element: Element, count: u64) -> Result<()> {
        let line = self.lexer.line();
        let name = self.word("the name of a variable")?;
        if element.bytes == 0 {
            return self.syntax(line, format!("`{name}` has no type"));
        }
        let (mut bytes, mut is_open) = (count * u64::from(element.bytes), false);
        while self.has('[') {
            if self.has(']') {
                is_open = true;
                continue;
            }
            bytes = bytes.saturating_mul(self.integer()?);
            self.mark(']')?;
        }
        if bytes > MAX_BYTES {
            return self.syntax(line, "the variable is too large");
        }
        if is_open {
            bytes = MAX_BYTES;
        }
        let mut variable =
            Variable { name: name.to_owned(), bytes, constant, initial: Vec::new(), references: Vec::new() };
        let mut problem = is_extern.then(|| "a variable that another module defines".to_owned());
        if self.has('=') {
            let mut at = 0;
            self.initial(&mut variable, element, &mut at, &mut problem, 0)?;
            if is_open {
                variable.bytes = at;
            }
        } else if is_open && !is_extern {
            return self.syntax(line, format!("`{name}` has no size"));
        }
        match problem {
            Some(problem) => {
                self.unusable.insert(name, problem);
            }
            None => {
                self.unusable.remove(name);
                self.module_variables.insert(name, self.globals.len());
                self.globals.push(variable);
            }
        }
        Ok(())
    }

    /// A value, or values in braces, from the byte `at` on.
    fn initial(
        &mut self,
        variable: &mut Variable,
        element: Element,
        at: &mut u64,
        problem: &mut Option<String>,
        depth: usize,
    ) -> Result<()> {
        let line = self.lexer.line();
        if self.has('{') {
            if depth == MAX_DEPTH {
                return self.syntax(line, "too many braces");
            }
            if self.has('}') {
                return Ok(());
            }
            loop {
                self.initial(variable, element, at, problem, depth + 1)?;
                if !self.has(',') {
                    return self.mark('}');
                }
            }
        }
        let value = self.initial_value(variable, element, *at, problem)?;
        let length = u64::from(element.bytes).min(8);
        variable.initial.resize(*at as usize, 0);
        variable.initial.extend_from_slice(&value.to_le_bytes()[..length as usize]);
        *at += u64::from(element.bytes);
        if *at > variable.bytes {
            return self.syntax(line, "more values than the variable has elements");
        }
        Ok(())
    }

    fn initial_value(
        &mut self,
        variable: &mut Variable,
        element: Element,
        at: u64,
        problem: &mut Option<String>,
    ) -> Result<u64> {
        if self.is_constant_next() || self.lexer.peek() == Token::Mark('!') {
            let bits = match self.constant()? {
                Constant::Int { bits, signed } if element.is_float => {
                    (if signed { bits as i64 as f64 } else { bits as f64 }).to_bits()
                }
                Constant::Int { bits, .. } => return Ok(bits),
                Constant::F32(bits) => f64::from(f32::from_bits(bits)).to_bits(),
                Constant::F64(bits) => bits,
            };
            let is_single = element.is_float && element.bytes == 4;
            return Ok(if is_single { (f64::from_bits(bits) as f32).to_bits().into() } else { bits });
        }
        let (token, line) = self.lexer.take();
        let Token::Word(word) = token else {
            return self.syntax(line, format!("expected a value, found {}", show(token)));
        };
        // Addresses of global memory are the same in its own space and in the generic one.
        let mut name = word;
        if word == "generic" {
            self.mark('(')?;
            name = self.word("a variable")?;
            self.mark(')')?;
        }
        let mut addend = 0;
        if self.has('+') || self.lexer.peek() == Token::Mark('-') {
            addend = self.integer()? as i64;
        }
        match self.module_variables.get(name) {
            Some(&target) if element.bytes == 8 => variable.references.push(Reference { at, target, addend }),
            _ => *problem = Some(format!("its initial value names `{name}`, which is no variable before it")),
        }
        Ok(0)
    }

    /// The register that holds the address of a variable of the module.
    pub(super) fn variable_address(&mut self, name: &str) -> Option<Reg> {
        let &index = self.module_variables.get(name)?;
        let slots = &mut self.kernel.slots;
        let slot: D = *self.kernel.addresses.entry(index).or_insert_with(|| slots.double());
        Some(Reg::D(slot))
    }
}
