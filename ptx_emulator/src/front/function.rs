//! Functions: those that never return, which is how a panic of Rust code ends. Calls of others are not covered.

use super::lexer::Token;
use super::parser::{Parser, show};
use crate::error::Result;
use crate::program::Op;

impl<'a> Parser<'a> {
    /// `.func name() .noreturn`, declared or defined.
    pub(super) fn function(&mut self) -> Result<()> {
        let line = self.lexer.line();
        let Token::Word(name) = self.lexer.take().0 else {
            // A value that it returns stands before its name.
            return self.unsupported(line, ".func", "of parameters, or that returns");
        };
        let mut known = self.has('(') && self.has(')');
        let mut returns = true;
        loop {
            match self.lexer.take().0 {
                Token::Word(".noreturn") => returns = false,
                Token::Mark(';') => break,
                Token::Mark('{') => {
                    self.skip_body()?;
                    break;
                }
                _ => {
                    known = false;
                    break;
                }
            }
        }
        if !known || returns {
            return self.unsupported(line, ".func", "of parameters, or that returns");
        }
        self.panics.insert(name);
        Ok(())
    }

    /// The rest of a body, whose `{` is taken.
    fn skip_body(&mut self) -> Result<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.lexer.take() {
                (Token::Mark('{'), _) => depth += 1,
                (Token::Mark('}'), _) => depth -= 1,
                (Token::End, line) => return self.syntax(line, "the function has no end"),
                _ => {}
            }
        }
        Ok(())
    }

    /// `call name, ();` of a function that does not return.
    pub(super) fn call(&mut self, opcode: &str, line: u32) -> Result<Op> {
        let (token, _) = self.lexer.take();
        let Token::Word(name) = token else {
            return self.unsupported(line, opcode, format!("of {}", show(token)));
        };
        if !self.panics.contains(name) {
            return self.unsupported(line, opcode, format!("of `{name}`, which is not known to never return"));
        }
        if self.has(',') {
            self.mark('(')?;
            self.mark(')')?;
        }
        self.mark(';')?;
        Ok(Op::Trap { what: "panic" })
    }
}
