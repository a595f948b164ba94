//! PTX text to programs.
//!
//! `lexer` makes words, `parser` reads directives and scopes, `statement` what stands in them, `names` resolves
//! registers and symbols of the scopes that are open, and `crate::decode` makes typed instructions of opcodes and
//! operands. A program is complete when the text is read: an instruction that the machine does not know is an error
//! here, wherever it stands.

mod function;
mod indexed_branch;
mod lexer;
pub(crate) mod names;
pub(crate) mod operand;
mod parser;
mod statement;

pub(crate) use parser::parse;
