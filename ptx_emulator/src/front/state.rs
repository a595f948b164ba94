//! What a parser has read and holds: the kernel at hand, functions, variables, and the next tokens.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::lexer::{Lexer, Token, show};
use super::names::{Names, RegKind, Slots};
use super::operand::{Operand, Symbol, number};
use crate::error::{Error, Result};
use crate::program::{D, Instruction};
use crate::target::Header;
use crate::variables::Variable as GlobalVariable;

/// Registers that one `.reg` declares, shared and local bytes of a kernel, and the like, at most.
pub(super) const MAX_COUNT: u64 = 1 << 24;

/// A parameter or result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Formal<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: u32,
    /// Where it is in the frame.
    pub(super) offset: u32,
    /// The bank of the register that it is; none if it is a variable.
    pub(super) register: Option<RegKind>,
}

/// A function of the text.
#[derive(Clone, Default)]
pub(super) struct Function<'a> {
    pub(super) results: Vec<Formal<'a>>,
    pub(super) parameters: Vec<Formal<'a>>,
    /// Bytes of the frame that they take.
    pub(super) formal_bytes: u32,
    pub(super) returns: bool,
    /// At the first token of the body; none where it is only declared.
    pub(super) body: Option<Lexer<'a>>,
    /// The words of the body: among them, the functions that it calls and the variables that it names.
    pub(super) words: HashSet<&'a str>,
}

/// What is collected while the body of a function is read.
#[derive(Default)]
pub(super) struct Frame<'a> {
    pub(super) name: &'a str,
    pub(super) used: u32,
    /// The slot that holds the size of the frame.
    pub(super) size: Option<D>,
    /// Branches to the end.
    pub(super) returns: Vec<usize>,
    /// Instructions whose registers or offset depend on the size.
    pub(super) spills: Vec<usize>,
    pub(super) behind: Vec<usize>,
}

/// The functions that a kernel calls.
#[derive(Default)]
pub(super) struct Calls<'a> {
    /// Where the frame of the running function begins.
    pub(super) frame: Option<D>,
    /// The size of the kernel's own.
    pub(super) size: Option<D>,
    /// The instructions that wait for the place or the size of a function.
    pub(super) sites: Vec<(usize, &'a str)>,
    /// The first instruction and the bytes of each function.
    pub(super) placed: HashMap<&'a str, (u32, u32)>,
    /// The addresses of variables in `.param` space.
    pub(super) variables: HashSet<u32>,
}

/// A `.shared` variable of the module. It takes space in the kernels that name it.
#[derive(Clone, Copy)]
pub(super) struct SharedVariable {
    pub(super) bytes: u32,
    pub(super) align: u32,
    pub(super) dynamic: bool,
}

/// What is collected for the kernel at hand.
#[derive(Default)]
pub(super) struct Kernel<'a> {
    pub(super) slots: Slots,
    pub(super) code: Vec<Instruction>,
    pub(super) opcodes: Vec<Arc<str>>,
    pub(super) labels: HashMap<(u32, &'a str), u32>,
    /// Instruction, label, open scopes.
    pub(super) branches: Vec<(usize, String, Vec<u32>)>,
    /// The lists of `.branchtargets`, by scope and label.
    pub(super) targets: HashMap<(u32, &'a str), Vec<&'a str>>,
    pub(super) local_bytes: u32,
    pub(super) shared_bytes: u32,
    /// The functions that it calls, and the one that is read for it.
    pub(super) calls: Calls<'a>,
    pub(super) function: Option<Frame<'a>>,
    /// The registers with the addresses of variables of the module.
    pub(super) addresses: HashMap<usize, D>,
    /// Addresses of `.shared` variables declared in the bodies, by their lines and names, in their order.
    pub(super) body_variables: HashMap<(u32, &'a str), VecDeque<Symbol>>,
}

pub(super) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    pub(super) header: Header,
    pub(super) names: Names<'a>,
    pub(super) variables: HashMap<&'a str, SharedVariable>,
    /// Variables of the module in global and constant memory, by their numbers.
    pub(super) globals: Vec<GlobalVariable>,
    pub(super) module_variables: HashMap<&'a str, usize>,
    /// Those that no kernel may name, and why.
    pub(super) unusable: HashMap<&'a str, String>,
    pub(super) kernel: Kernel<'a>,
    pub(super) files: Arc<Vec<(u32, Arc<str>)>>,
    pub(super) rust: (u32, u32),
    /// One allocation for each opcode of the text, all of which its version and target have.
    pub(super) opcodes: HashMap<&'a str, Arc<str>>,
    pub(super) functions: HashMap<&'a str, Rc<Function<'a>>>,
}

impl<'a> Parser<'a> {
    /// Adds an instruction to the kernel.
    pub(super) fn push(&mut self, opcode: &'a str, instruction: Instruction) {
        let opcode = self.opcodes.entry(opcode).or_insert_with(|| Arc::from(opcode));
        self.kernel.opcodes.push(Arc::clone(opcode));
        self.kernel.code.push(instruction);
    }

    pub(super) fn place(&self, line: u32) -> crate::error::PtxLine {
        crate::program::place(&self.files, line, self.rust)
    }

    pub(super) fn syntax<T>(&self, line: u32, problem: impl Into<String>) -> Result<T> {
        Err(Error::Syntax { place: self.place(line), problem: problem.into() })
    }

    pub(super) fn unsupported<T>(&self, line: u32, instruction: &str, reason: impl Into<String>) -> Result<T> {
        let (place, instruction) = (self.place(line), instruction.to_owned());
        Err(Error::Unsupported { place, instruction, reason: reason.into() })
    }

    pub(super) fn mark(&mut self, mark: char) -> Result<()> {
        match self.lexer.take() {
            (Token::Mark(found), _) if found == mark => Ok(()),
            (found, line) => self.syntax(line, format!("expected `{mark}`, found {}", show(found))),
        }
    }

    /// Takes the mark if it is next.
    pub(super) fn has(&mut self, mark: char) -> bool {
        let found = self.lexer.peek() == Token::Mark(mark);
        if found {
            self.lexer.take();
        }
        found
    }

    pub(super) fn word(&mut self, what: &str) -> Result<&'a str> {
        match self.lexer.take() {
            (Token::Word(word), _) => Ok(word),
            (found, line) => self.syntax(line, format!("expected {what}, found {}", show(found))),
        }
    }

    /// A number that is small enough to be a size or a count.
    pub(super) fn count(&mut self) -> Result<u32> {
        let line = self.lexer.line();
        let word = self.word("a number")?;
        match number(word) {
            Some(Operand::Int(value)) if value <= MAX_COUNT => Ok(value as u32),
            _ => self.syntax(line, format!("`{word}` is no count up to {MAX_COUNT}")),
        }
    }
}
