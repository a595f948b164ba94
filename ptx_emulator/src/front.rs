//! PTX text to programs.
//!
//! | file | what it reads |
//! | --- | --- |
//! | `lexer` | words and punctuation |
//! | `header` | what the text is for |
//! | `constant` | constant expressions |
//! | `parser` | directives and scopes |
//! | `state` | what has been read, and the next tokens |
//! | `statement`, `operand` | what stands in scopes |
//! | `variable`, `function`, `call` | what kernels share |
//! | `debug` | where the text comes from |
//! | `names` | registers and symbols of the scopes that are open |
//!
//! `crate::decode` then makes typed instructions of opcodes and operands. A program is complete when the text is read:
//! an instruction that the machine does not know is an error here, wherever it stands.

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
mod state;
mod statement;
mod variable;

pub(crate) use lexer::opcode_parts;
pub(crate) use parser::{Text, parse};
