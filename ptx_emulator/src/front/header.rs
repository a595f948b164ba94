//! What a text begins with: `.version`, `.target`, `.address_size`. A driver loads no text without the first two.

use super::lexer::{Token, show};
use super::state::Parser;
use crate::error::{Error, Result};
use crate::program::Op;
use crate::requirement::{self, Need};
use crate::target::{Header, Target, Version};

impl<'a> Parser<'a> {
    /// Reads the header. Of several `.target` lines the last counts, as for `ptxas`; an `.address_size` may be missing.
    pub(super) fn text_header(&mut self) -> Result<()> {
        let line = self.lexer.line();
        let version = self.header_word(".version", "`.version` and `.target`")?;
        let version = match version.parse::<Version>() {
            Ok(version) if version.is_known() => version,
            _ => {
                let newest = Version::NEWEST;
                return self.wrong_header(line, format!("`.version {version}` is none from 1.0 to {newest}"));
            }
        };
        self.header = Header { version, ..self.header };
        let mut line = self.lexer.line();
        let mut name = self.header_word(".target", "`.target`, behind `.version`")?;
        loop {
            let target = match name.parse::<Target>().map(|target| (target, target.introduced())) {
                Ok((target, Some(first))) if version >= first => target,
                Ok(_) => return self.wrong_header(line, format!("PTX {version} has no target {name}")),
                Err(_) => return self.wrong_header(line, format!("there is no target `{name}`")),
            };
            self.header = Header { version, target };
            self.platform_options(line)?;
            line = self.lexer.line();
            if self.lexer.peek() != Token::Word(".target") {
                break;
            }
            self.lexer.take();
            name = self.word("a target")?;
        }
        if self.lexer.peek() == Token::Word(".address_size") {
            self.lexer.take();
            let bits = self.word("32 or 64")?;
            if bits != "64" {
                return self.wrong_header(line, format!("addresses of `{bits}` bits, where devices have 64"));
            }
        }
        Ok(())
    }

    /// `.target sm_80, texmode_independent, debug`.
    fn platform_options(&mut self, line: u32) -> Result<()> {
        while self.has(',') {
            let option = self.word("an option of the target")?;
            if !matches!(option, "texmode_unified" | "texmode_independent" | "debug") {
                return self.wrong_header(line, format!("targets have no option `{option}`"));
            }
        }
        Ok(())
    }

    fn header_word(&mut self, directive: &str, what: &str) -> Result<&'a str> {
        match self.lexer.take() {
            (Token::Word(found), _) if found == directive => self.word("its value"),
            (found, line) => self.wrong_header(line, format!("the text begins with {what}, found {}", show(found))),
        }
    }

    fn wrong_header<T>(&self, line: u32, problem: String) -> Result<T> {
        Err(Error::Header { place: self.place(line), problem })
    }

    /// Fails where the version or the target of the text does not have `name` yet: an opcode, a special register, or a
    /// directive without its dot.
    pub(super) fn require(&self, name: &str, line: u32) -> Result<()> {
        let Header { version, target } = self.header;
        requirement::missing(name, version, target).map_or(Ok(()), |need| self.not_in_target(name, line, need))
    }

    /// The same of what the operands of an instruction ask for.
    pub(super) fn require_operands(&self, opcode: &str, op: &Op, line: u32) -> Result<()> {
        let Header { version, target } = self.header;
        let missing = requirement::missing_for_operands(opcode, op, version, target);
        missing.map_or(Ok(()), |need| self.not_in_target(opcode, line, need))
    }

    fn not_in_target(&self, name: &str, line: u32, need: Need) -> Result<()> {
        let Header { version, target } = self.header;
        let (place, instruction) = (self.place(line), name.to_owned());
        let Need { version: needed_version, target: needed_target } = need;
        Err(Error::NotInTarget { place, instruction, needed_version, needed_target, version, target })
    }
}
