//! Directives, scopes, bodies: the text of a module to its programs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::lexer::{Lexer, Token};
use super::names::{Names, RegKind, Slots, place};
use super::operand::{Operand, Symbol, SymbolSpace, number};
use crate::error::{Error, Result};
use crate::fences;
use crate::program::{Instruction, Op, Order, Param, Program, Space};
use crate::{allocate, control};

/// Scopes in scopes, and vectors in vectors, that the front follows.
const MAX_DEPTH: usize = 64;

/// Registers that one `.reg` declares, shared and local bytes of a kernel, and the like, at most.
const MAX_COUNT: u64 = 1 << 24;

/// The programs of the kernels in the text.
pub(crate) fn parse(text: &str) -> Result<Vec<Arc<Program>>> {
    let files = Arc::new(file_names(text));
    let mut parser = Parser {
        lexer: Lexer::new(text),
        names: Names::new(),
        variables: HashMap::new(),
        unusable: HashSet::new(),
        kernel: Kernel::default(),
        files,
        rust: (0, 0),
        opcodes: HashMap::new(),
        panics: HashSet::new(),
    };
    parser.module()
}

/// The numbers and names of the `.file` lines, which may stand behind the kernels that they belong to.
fn file_names(text: &str) -> Vec<(u32, Arc<str>)> {
    let name = |line: &str| {
        let (number, name) =
            line.trim_start().strip_prefix(".file")?.trim_start().split_once(|c: char| c.is_whitespace())?;
        let name = name.trim_start().strip_prefix('"')?;
        Some((number.parse().ok()?, Arc::from(&name[..name.find('"')?])))
    };
    text.lines().filter_map(name).collect()
}

/// A `.shared` variable of the module. It takes space in the kernels that name it.
#[derive(Clone, Copy)]
struct Variable {
    bytes: u32,
    align: u32,
    dynamic: bool,
}

/// What is collected for the kernel at hand.
#[derive(Default)]
pub(super) struct Kernel<'a> {
    pub(super) slots: Slots,
    pub(super) code: Vec<Instruction>,
    opcodes: Vec<Arc<str>>,
    labels: HashMap<(u32, &'a str), u32>,
    /// Instruction, label, open scopes.
    pub(super) branches: Vec<(usize, String, Vec<u32>)>,
    /// The lists of `.branchtargets`, by scope and label.
    pub(super) targets: HashMap<(u32, &'a str), Vec<&'a str>>,
    local_bytes: u32,
    shared_bytes: u32,
    /// Addresses of `.shared` variables declared in the body, in their order.
    body_variables: std::collections::VecDeque<Symbol>,
}

pub(super) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    pub(super) names: Names<'a>,
    variables: HashMap<&'a str, Variable>,
    /// Variables of the module in global and constant memory, which no kernel may name.
    pub(super) unusable: HashSet<&'a str>,
    pub(super) kernel: Kernel<'a>,
    files: Arc<Vec<(u32, Arc<str>)>>,
    pub(super) rust: (u32, u32),
    /// One allocation for each opcode of the text.
    opcodes: HashMap<&'a str, Arc<str>>,
    /// The functions that never return.
    pub(super) panics: HashSet<&'a str>,
}

impl<'a> Parser<'a> {
    /// Adds an instruction to the kernel.
    pub(super) fn push(&mut self, opcode: &'a str, instruction: Instruction) {
        let opcode = self.opcodes.entry(opcode).or_insert_with(|| Arc::from(opcode));
        self.kernel.opcodes.push(Arc::clone(opcode));
        self.kernel.code.push(instruction);
    }

    pub(super) fn place(&self, line: u32) -> crate::error::Place {
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
    fn count(&mut self) -> Result<u32> {
        let line = self.lexer.line();
        let word = self.word("a number")?;
        match number(word) {
            Some(Operand::Int(value)) if value <= MAX_COUNT => Ok(value as u32),
            _ => self.syntax(line, format!("`{word}` is no count up to {MAX_COUNT}")),
        }
    }

    fn module(&mut self) -> Result<Vec<Arc<Program>>> {
        let mut programs = Vec::new();
        loop {
            let (token, line) = self.lexer.take();
            match token {
                Token::End => return Ok(programs),
                Token::Word(".version" | ".address_size") => {
                    self.word("a version")?;
                }
                Token::Word(".target") => {
                    self.word("a target")?;
                    while self.has(',') {
                        self.word("a target")?;
                    }
                }
                Token::Word(".visible" | ".weak") => {}
                Token::Word(".extern") => {
                    let line = self.lexer.line();
                    match self.word("a declaration")? {
                        ".shared" => self.shared_variable()?,
                        ".func" => self.function()?,
                        other => return self.unsupported(line, &format!(".extern {other}"), ""),
                    }
                }
                Token::Word(".shared") => self.shared_variable()?,
                Token::Word(".global" | ".const") => self.unusable_variable()?,
                Token::Word(".file") => self.file()?,
                Token::Word(".func") => self.function()?,
                Token::Word(".entry") => programs.push(Arc::new(self.entry()?)),
                Token::Word(".section") => self.section()?,
                Token::Word(other) => return self.unsupported(line, other, ""),
                other => return self.syntax(line, format!("expected a directive, found {}", show(other))),
            }
        }
    }

    /// `.file 1 "name"`, with an optional time and size.
    fn file(&mut self) -> Result<()> {
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

    /// Debug information, which is skipped.
    fn section(&mut self) -> Result<()> {
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

    /// `.align 16 .b8 name[1024]`: name, bytes, alignment; no bytes for `name[]`.
    fn variable(&mut self) -> Result<(&'a str, Option<u32>, u32)> {
        let (mut align, mut element) = (0, 0);
        loop {
            let line = self.lexer.line();
            let word = self.word("a variable")?;
            if word == ".align" {
                align = self.count()?;
                if !align.is_power_of_two() {
                    return self.syntax(line, format!("the alignment {align} is no power of two"));
                }
            } else if matches!(word, ".ptr" | ".global" | ".shared" | ".const" | ".local") {
                continue;
            } else if let Some(ty) = word.strip_prefix('.') {
                let bits = ty.trim_start_matches(['b', 'u', 's', 'f']).parse::<u32>().ok();
                match bits {
                    Some(bits @ (8 | 16 | 32 | 64)) => element = bits / 8,
                    _ => return self.unsupported(line, word, "as the type of a variable"),
                }
            } else {
                let mut bytes = Some(element);
                while self.has('[') {
                    if self.has(']') {
                        bytes = None;
                        continue;
                    }
                    let count = self.count()?;
                    self.mark(']')?;
                    let product = bytes.map(|bytes| u64::from(bytes) * u64::from(count));
                    bytes = match product {
                        Some(product) if product > MAX_COUNT => return self.syntax(line, "the variable is too large"),
                        product => product.map(|product| product as u32),
                    };
                }
                if element == 0 {
                    return self.syntax(line, format!("`{word}` has no type"));
                }
                return Ok((word, bytes, align.max(element)));
            }
        }
    }

    /// A variable in global or constant memory, with its initial value. Compilers leave some that no kernel names.
    fn unusable_variable(&mut self) -> Result<()> {
        let (name, ..) = self.variable()?;
        self.unusable.insert(name);
        while self.lexer.peek() != Token::End && !self.has(';') {
            self.lexer.take();
        }
        Ok(())
    }

    fn shared_variable(&mut self) -> Result<()> {
        let line = self.lexer.line();
        let (name, bytes, align) = self.variable()?;
        self.mark(';')?;
        let variable = Variable { bytes: bytes.unwrap_or(0), align, dynamic: bytes.is_none() };
        if self.variables.insert(name, variable).is_some() {
            return self.syntax(line, format!("`{name}` is declared twice"));
        }
        Ok(())
    }

    fn entry(&mut self) -> Result<Program> {
        let name = self.word("the name of a kernel")?;
        self.kernel = Kernel::default();
        self.names = Names::new();
        self.rust = (0, 0);
        let (params, param_bytes) = self.params()?;
        let mut program = Program { name: name.to_owned(), params, param_bytes, ..Program::default() };
        self.bounds(&mut program)?;
        self.place_shared()?;
        self.body()?;
        self.finish(program)
    }

    fn params(&mut self) -> Result<(Vec<Param>, u32)> {
        let (mut params, mut used) = (Vec::new(), 0);
        if !self.has('(') || self.has(')') {
            return Ok((params, used));
        }
        loop {
            let line = self.lexer.line();
            if self.word("a parameter")? != ".param" {
                return self.syntax(line, "expected `.param`");
            }
            // `.ptr .align n` speaks of what the parameter points to.
            let (name, bytes, align) = self.param_variable()?;
            let Some(symbol) = place(&mut used, bytes, align, SymbolSpace::Param) else {
                return self.syntax(line, "the parameters are too large");
            };
            if !self.names.declare_symbol(name, symbol) {
                return self.syntax(line, format!("`{name}` is declared twice"));
            }
            params.push(Param { offset: symbol.address, bytes, align });
            if !self.has(',') {
                self.mark(')')?;
                return Ok((params, used));
            }
        }
    }

    fn param_variable(&mut self) -> Result<(&'a str, u32, u32)> {
        let line = self.lexer.line();
        let (name, bytes, align) = self.variable()?;
        match bytes {
            // A pointer of 8 bytes with `.ptr .align 128` is itself aligned to 8.
            Some(8) => Ok((name, 8, 8)),
            Some(bytes) => Ok((name, bytes, align)),
            None => self.syntax(line, format!("`{name}` has no size")),
        }
    }

    /// What stands between the parameters and the body.
    fn bounds(&mut self, program: &mut Program) -> Result<()> {
        loop {
            if self.has('{') {
                return Ok(());
            }
            let line = self.lexer.line();
            match self.word("the body of a kernel")? {
                ".maxntid" => {
                    program.max_threads = Some(self.triple()?.iter().fold(1, |n: u32, &d| n.saturating_mul(d)))
                }
                ".reqntid" => program.required_threads = Some(self.triple()?),
                ".reqnctapercluster" => program.cluster = Some(self.triple()?),
                ".minnctapersm" => program.min_blocks = Some(self.count()?),
                ".maxnreg" => program.max_registers = Some(self.count()?),
                ".maxnctapersm" | ".maxclusterrank" => {
                    self.count()?;
                }
                ".explicitcluster" | ".noreturn" => {}
                ".pragma" => self.pragma()?,
                other => return self.unsupported(line, other, ""),
            }
        }
    }

    fn triple(&mut self) -> Result<[u32; 3]> {
        let mut dims = [self.count()?, 1, 1];
        for dim in &mut dims[1..] {
            if self.has(',') {
                *dim = self.count()?;
            }
        }
        Ok(dims)
    }

    fn pragma(&mut self) -> Result<()> {
        self.lexer.take();
        while self.has(',') {
            self.lexer.take();
        }
        self.mark(';')
    }

    /// Reads ahead to the end of the body for the shared variables that it names or declares, and places them: static
    /// ones first, so that dynamic memory begins where a kernel without static ones has it.
    fn place_shared(&mut self) -> Result<()> {
        let ahead = self.lexer.clone();
        let (mut used, mut dynamic, mut dynamic_align, mut depth) = (0, Vec::new(), 1, 1);
        while depth > 0 {
            let line = self.lexer.line();
            match self.lexer.take().0 {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth -= 1,
                Token::End => return self.syntax(line, "the kernel has no end"),
                Token::Word(".shared") => {
                    let (name, bytes, align) = self.variable()?;
                    let Some(bytes) = bytes else { return self.syntax(line, format!("`{name}` has no size")) };
                    match place(&mut used, bytes, align, SymbolSpace::Shared) {
                        Some(symbol) => self.kernel.body_variables.push_back(symbol),
                        None => return self.syntax(line, "the shared variables are too large"),
                    }
                }
                Token::Word(word) => {
                    let Some(&variable) = self.variables.get(word) else { continue };
                    if self.names.symbol(word).is_some() || dynamic.contains(&word) {
                        continue;
                    }
                    if variable.dynamic {
                        dynamic.push(word);
                        dynamic_align = dynamic_align.max(variable.align);
                        continue;
                    }
                    match place(&mut used, variable.bytes, variable.align, SymbolSpace::Shared) {
                        Some(symbol) => self.names.declare_symbol(word, symbol),
                        None => return self.syntax(line, "the shared variables are too large"),
                    };
                }
                _ => {}
            }
        }
        let Some(base) = place(&mut used, 0, dynamic_align, SymbolSpace::Shared) else {
            return self.syntax(0, "the shared variables are too large");
        };
        for name in dynamic {
            self.names.declare_symbol(name, base);
        }
        self.kernel.shared_bytes = used;
        self.lexer = ahead;
        Ok(())
    }

    /// The statements up to the `}` that closes the body.
    fn body(&mut self) -> Result<()> {
        self.names.open();
        let depth = self.names.depth();
        while self.names.depth() >= depth {
            let (token, line) = self.lexer.take();
            match token {
                Token::Mark('{') if self.names.depth() > MAX_DEPTH => return self.syntax(line, "too many scopes"),
                Token::Mark('{') => {
                    self.names.open();
                }
                Token::Mark('}') => self.names.close(),
                Token::Mark(';') => {}
                Token::Mark('@') => self.guarded()?,
                Token::Word(word) if word.starts_with('.') => self.directive(word, line)?,
                Token::Word(word) if self.lexer.peek() == Token::Mark(':') => {
                    self.lexer.take();
                    let scope = self.names.open_ids().next().unwrap_or(0);
                    if self.kernel.labels.insert((scope, word), self.kernel.code.len() as u32).is_some() {
                        return self.syntax(line, format!("the label `{word}` is declared twice"));
                    }
                    if self.lexer.peek() == Token::Word(".branchtargets") {
                        self.lexer.take();
                        self.branch_targets(scope, word)?;
                    }
                }
                Token::Word(opcode) => self.statement(None, opcode, line)?,
                other => return self.syntax(line, format!("expected a statement, found {}", show(other))),
            }
        }
        Ok(())
    }

    fn directive(&mut self, word: &'a str, line: u32) -> Result<()> {
        match word {
            ".reg" => self.registers(),
            ".loc" => {
                let (file, rust_line) = (self.count()?, self.count()?);
                self.count()?;
                // `, function_name label, inlined_at file line column` says who inlined the code.
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
            ".file" => self.file(),
            ".pragma" => self.pragma(),
            ".shared" => {
                let (name, ..) = self.variable()?;
                self.mark(';')?;
                match self.kernel.body_variables.pop_front() {
                    Some(symbol) if self.names.declare_symbol(name, symbol) => Ok(()),
                    _ => self.syntax(line, format!("`{name}` is declared twice")),
                }
            }
            ".local" => {
                let (name, bytes, align) = self.variable()?;
                self.mark(';')?;
                let used = &mut self.kernel.local_bytes;
                match bytes.and_then(|bytes| place(used, bytes, align, SymbolSpace::Local)) {
                    Some(symbol) if self.names.declare_symbol(name, symbol) => Ok(()),
                    _ => self.syntax(line, format!("`{name}` is declared twice or has no size")),
                }
            }
            other => self.unsupported(line, other, ""),
        }
    }

    fn registers(&mut self) -> Result<()> {
        let line = self.lexer.line();
        let ty = self.word("the type of registers")?;
        let kind = match ty {
            ".pred" => RegKind::P,
            ".b16" | ".u16" | ".s16" | ".f16" => RegKind::H,
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => RegKind::W,
            ".b64" | ".u64" | ".s64" | ".f64" => RegKind::D,
            other => return self.unsupported(line, &format!(".reg {other}"), ""),
        };
        loop {
            let name = self.word("a register")?;
            if self.has('<') {
                let count = self.count()?;
                self.mark('>')?;
                self.names.declare_range(name, kind, count);
            } else {
                self.names.declare(&mut self.kernel.slots, name, kind);
            }
            if !self.has(',') {
                return self.mark(';');
            }
        }
    }

    /// Resolves the branches and finds where divergent lanes meet.
    fn finish(&mut self, mut program: Program) -> Result<Program> {
        let kernel = std::mem::take(&mut self.kernel);
        program.code = kernel.code;
        program.opcodes = kernel.opcodes;
        for (at, label, scopes) in kernel.branches {
            let target = scopes.iter().find_map(|&scope| kernel.labels.get(&(scope, label.as_str())));
            let Some(&target) = target else {
                let place = program.place(at as u32);
                return Err(Error::Syntax { place, problem: format!("there is no label `{label}`") });
            };
            program.code[at].op = Op::Branch { target };
        }
        let starts = control::block_starts(&program.code);
        control::find_meeting_points(&mut program.code, &starts);
        fences::find_unfenced(&mut program.code, &starts, kernel.slots.words);
        program.words = kernel.slots.words;
        program.doubles = kernel.slots.doubles;
        program.predicates = kernel.slots.predicates;
        program.constants = kernel.slots.constants();
        program.wide_constants = kernel.slots.wide_constants();
        program.specials = kernel.slots.specials();
        program.local_bytes = kernel.local_bytes;
        program.shared_bytes = kernel.shared_bytes;
        // The memory of accesses that other threads can wait for.
        let mut signals = program.code.iter().filter_map(|instruction| match &instruction.op {
            Op::Atomic(atomic) => Some(atomic.space),
            Op::Hopper(hopper) if hopper.is_ordered() => Some(Space::Global),
            Op::Load(access) | Op::Store(access) if access.order != Order::Weak => Some(access.space),
            _ => None,
        });
        (program.signals, program.ordered) =
            (signals.clone().next().is_some(), signals.any(|space| space != Space::Shared));
        program.files = Arc::clone(&self.files);
        allocate::allocate(&mut program, &starts);
        Ok(program)
    }
}

pub(super) fn show(token: Token<'_>) -> String {
    match token {
        Token::Word(word) => format!("`{word}`"),
        Token::Text(text) => format!("\"{text}\""),
        Token::Mark(mark) => format!("`{mark}`"),
        Token::End => "the end of the text".to_owned(),
    }
}
