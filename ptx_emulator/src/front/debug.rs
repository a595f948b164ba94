//! What a text says about the program that it comes from, and hints to `ptxas`: `.file`, `.loc`, `.section`, `.pragma`.

use std::sync::Arc;

use super::lexer::Token;
use super::lexer::show;
use super::state::Parser;
use crate::error::Result;

/// The numbers and names of the `.file` lines, which may stand behind the kernels that they belong to.
pub(super) fn file_names(text: &str) -> Vec<(u32, Arc<str>)> {
    let name = |line: &str| {
        let (number, name) =
            line.trim_start().strip_prefix(".file")?.trim_start().split_once(|c: char| c.is_whitespace())?;
        let name = name.trim_start().strip_prefix('"')?;
        Some((number.parse().ok()?, Arc::from(&name[..name.find('"')?])))
    };
    text.lines().filter_map(name).collect()
}

impl Parser<'_> {
    /// `.file 1 "name"`, with an optional time and size.
    pub(super) fn file(&mut self) -> Result<()> {
        self.count()?;
        let (token, line) = self.lexer.take();
        if !matches!(token, Token::Text(_)) {
            return self.syntax(line, format!("expected the name of a file, found {}", show(token)));
        }
        while self.has(',') {
            self.word("a number")?;
        }
        Ok(())
    }

    /// `.loc file line column`, and who inlined the code: `, function_name label, inlined_at file line column`.
    pub(super) fn location(&mut self) -> Result<()> {
        let (file, rust_line) = (self.count()?, self.count()?);
        self.count()?;
        if self.has(',') {
            while !matches!(self.lexer.peek(), Token::Word("inlined_at") | Token::End) {
                self.lexer.take();
            }
            self.lexer.take();
            for _ in 0..3 {
                self.count()?;
            }
        }
        // Line 0 is code that the compiler gives no line: the last one is the better hint.
        if rust_line > 0 {
            self.rust = (file, rust_line);
        }
        Ok(())
    }

    /// Debug information, which is skipped.
    pub(super) fn section(&mut self) -> Result<()> {
        self.word("the name of a section")?;
        self.mark('{')?;
        loop {
            match self.lexer.take() {
                (Token::Mark('}'), _) => return Ok(()),
                (Token::End, line) => return self.syntax(line, "the section has no end"),
                _ => {}
            }
        }
    }

    pub(super) fn pragma(&mut self) -> Result<()> {
        self.lexer.take();
        while self.has(',') {
            self.lexer.take();
        }
        self.mark(';')
    }
}
