//! PTX text to programs.
//!
//! `lexer` makes words, `header` reads what the text is for, `constant` constant expressions, `parser` directives and
//! scopes, `statement` what stands in them, `variable`, `function` and `call` what kernels share, `debug` where the
//! text comes from; `names` resolves registers and symbols of the scopes that are open, and `crate::decode` makes typed
//! instructions of opcodes and operands. A program is complete when the text is read: an instruction that the machine
//! does not know is an error here, wherever it stands.

mod call;
mod constant;
mod debug;
mod function;
mod header;
mod indexed_branch;
mod lexer;
pub(crate) mod names;
pub(crate) mod operand;
mod parser;
mod statement;
mod variable;

pub(crate) use header::Header;
pub(crate) use lexer::opcode_parts;
pub(crate) use parser::{Text, parse};
