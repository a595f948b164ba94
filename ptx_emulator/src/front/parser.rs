//! Directives, scopes, bodies: the text of a module to its programs.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::debug::file_names;
use super::lexer::{Lexer, Token, show};
use super::names::{Names, RegKind, place};
use super::operand::SymbolSpace;
use super::state::{Kernel, MAX_COUNT, Parser, SharedVariable};
use crate::error::{Error, Result};
use crate::fences;
use crate::program::{Op, Order, Param, Program, Space};
use crate::target::Header;
use crate::variables::Variable as GlobalVariable;
use crate::{allocate, control};

/// Scopes in scopes, and vectors in vectors, that the front follows.
const MAX_DEPTH: usize = 64;

/// What a text has.
pub(crate) struct Text {
    pub(crate) programs: Vec<Arc<Program>>,
    /// What it is for.
    pub(crate) header: Header,
    /// The variables that its kernels share.
    pub(crate) variables: Vec<GlobalVariable>,
}

/// The kernels of a text, and what they share.
pub(crate) fn parse(text: &str) -> Result<Text> {
    let files = Arc::new(file_names(text));
    let mut parser = Parser {
        lexer: Lexer::new(text),
        header: Header::default(),
        names: Names::new(),
        variables: HashMap::new(),
        unusable: HashMap::new(),
        globals: Vec::new(),
        module_variables: HashMap::new(),
        kernel: Kernel::default(),
        files,
        rust: (0, 0),
        opcodes: HashMap::new(),
        functions: HashMap::new(),
    };
    parser.text_header()?;
    if text.contains(".func") {
        parser.find_functions()?;
    }
    let programs = parser.module()?;
    Ok(Text { programs, header: parser.header, variables: parser.globals })
}

/// Name, bytes and alignment of a variable; no bytes for `name[]`.
type Variable<'a> = (&'a str, Option<u32>, u32);

impl<'a> Parser<'a> {
    fn module(&mut self) -> Result<Vec<Arc<Program>>> {
        let mut programs = Vec::new();
        loop {
            let (token, line) = self.lexer.take();
            match token {
                Token::End => return Ok(programs),
                Token::Word(".visible") => {}
                Token::Word(linking @ (".weak" | ".common")) => self.require(&linking[1..], line)?,
                Token::Word(".extern") => {
                    let line = self.lexer.line();
                    match self.word("a declaration")? {
                        ".shared" => self.shared_variables()?,
                        ".func" => self.function()?,
                        ".global" => self.module_variable(false, true)?,
                        ".const" => self.module_variable(true, true)?,
                        ".entry" => drop(self.entry()?),
                        other => return self.unsupported(line, &format!(".extern {other}"), ""),
                    }
                }
                Token::Word(".shared") => self.shared_variables()?,
                Token::Word(".global") => self.module_variable(false, false)?,
                Token::Word(".const") => self.module_variable(true, false)?,
                Token::Word(".file") => self.file()?,
                Token::Word(".func") => self.function()?,
                Token::Word(".entry") => programs.extend(self.entry()?.map(Arc::new)),
                Token::Word(".pragma") => self.pragma()?,
                Token::Word(".section") => self.section()?,
                Token::Word(other) => return self.unsupported(line, other, ""),
                other => return self.syntax(line, format!("expected a directive, found {}", show(other))),
            }
        }
    }

    /// `.align 16 .b8 name[1024]`: name, bytes, alignment; no bytes for `name[]`.
    fn variable(&mut self) -> Result<Variable<'a>> {
        let (element, align) = self.variable_type()?;
        let name = self.word("the name of a variable")?;
        Ok((name, self.dimensions(element)?, align))
    }

    /// `.align 16 .b8 a[1024], b[8];`, each as [`variable`](Self::variable) gives it.
    fn variables(&mut self) -> Result<Vec<Variable<'a>>> {
        let (element, align) = self.variable_type()?;
        let mut variables = Vec::new();
        loop {
            let name = self.word("the name of a variable")?;
            variables.push((name, self.dimensions(element)?, align));
            if !self.has(',') {
                self.mark(';')?;
                return Ok(variables);
            }
        }
    }

    /// What stands before the name of a variable: the bytes of an element, and the alignment.
    fn variable_type(&mut self) -> Result<(u32, u32)> {
        let (mut align, mut bytes, mut elements, mut is_pointer) = (0, 0, 1, false);
        while let Token::Word(word) = self.lexer.peek()
            && word.starts_with('.')
        {
            let (_, line) = self.lexer.take();
            match word {
                ".align" => {
                    let given = self.count()?;
                    if !given.is_power_of_two() {
                        return self.syntax(line, format!("the alignment {given} is no power of two"));
                    }
                    // Behind `.ptr` it is that of what the parameter points to.
                    align = if is_pointer { align } else { given };
                }
                ".ptr" => {
                    self.require("ptr", line)?;
                    is_pointer = true;
                }
                ".global" | ".shared" | ".const" | ".local" => {}
                ".v2" => elements = 2,
                ".v4" => elements = 4,
                _ => match word[1..].trim_start_matches(['b', 'u', 's', 'f']).parse() {
                    Ok(bits @ (8 | 16 | 32 | 64 | 128)) => bytes = bits / 8,
                    _ => return self.unsupported(line, word, "as the type of a variable"),
                },
            }
        }
        let (line, next) = (self.lexer.line(), self.lexer.peek());
        match bytes * elements {
            0 => self.syntax(line, format!("{} has no type", show(next))),
            bytes => Ok((bytes, align.max(bytes))),
        }
    }

    /// `[4][2]` behind the name of a variable whose elements have so many bytes; none for `[]`.
    fn dimensions(&mut self, element: u32) -> Result<Option<u32>> {
        let line = self.lexer.line();
        let mut bytes = Some(element);
        while self.has('[') {
            if self.has(']') {
                bytes = None;
                continue;
            }
            let count = self.integer()?;
            self.mark(']')?;
            bytes = match bytes.map(|bytes| u64::from(bytes).saturating_mul(count)) {
                Some(product) if product > MAX_COUNT => return self.syntax(line, "the variable is too large"),
                product => product.map(|product| product as u32),
            };
        }
        Ok(bytes)
    }

    fn shared_variables(&mut self) -> Result<()> {
        let line = self.lexer.line();
        for (name, bytes, align) in self.variables()? {
            let variable = SharedVariable { bytes: bytes.unwrap_or(0), align, dynamic: bytes.is_none() };
            if self.variables.insert(name, variable).is_some() {
                return self.syntax(line, format!("`{name}` is declared twice"));
            }
        }
        Ok(())
    }

    /// A kernel; none where the text only declares it.
    fn entry(&mut self) -> Result<Option<Program>> {
        let name = self.word("the name of a kernel")?;
        self.kernel = Kernel::default();
        self.names = Names::new();
        self.rust = (0, 0);
        let (params, param_bytes) = self.params()?;
        let mut program = Program { name: name.to_owned(), params, param_bytes, ..Program::default() };
        if !self.bounds(&mut program)? {
            return Ok(None);
        }
        self.place_shared()?;
        self.body()?;
        self.place_functions()?;
        self.finish(program).map(Some)
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

    pub(super) fn param_variable(&mut self) -> Result<(&'a str, u32, u32)> {
        let line = self.lexer.line();
        match self.variable()? {
            (name, Some(bytes), align) => Ok((name, bytes, align)),
            (name, None, _) => self.syntax(line, format!("`{name}` has no size")),
        }
    }

    /// What stands between the parameters and the body; whether there is a body.
    fn bounds(&mut self, program: &mut Program) -> Result<bool> {
        loop {
            if self.has('{') {
                return Ok(true);
            }
            if self.has(';') {
                return Ok(false);
            }
            let line = self.lexer.line();
            let directive = self.word("the body of a kernel")?;
            self.require(directive.trim_start_matches('.'), line)?;
            match directive {
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

    /// Reads ahead to the end of the body for the shared variables that the body names or declares, and places them.
    /// Static ones come first, so that dynamic memory begins where it begins in a kernel without static ones.
    fn place_shared(&mut self) -> Result<()> {
        let ahead = self.lexer.clone();
        let (mut used, mut dynamic, mut dynamic_align, mut depth) = (0, Vec::new(), 1, 1);
        let (mut called, mut bodies) = (HashSet::new(), None);
        while depth > 0 {
            let line = self.lexer.line();
            match self.lexer.take().0 {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => {
                    depth -= 1;
                    // The functions that it reaches are read behind it.
                    if depth == 0
                        && let Some(body) = bodies.get_or_insert_with(|| self.reached_bodies(&called)).pop()
                    {
                        (self.lexer, depth) = (body, 1);
                    }
                }
                Token::End => return self.syntax(line, "the kernel has no end"),
                Token::Word(".shared") => {
                    for (name, bytes, align) in self.variables()? {
                        let Some(bytes) = bytes else { return self.syntax(line, format!("`{name}` has no size")) };
                        match place(&mut used, bytes, align, SymbolSpace::Shared) {
                            Some(symbol) => {
                                let placed = self.kernel.body_variables.entry((line, name)).or_default();
                                placed.push_back(symbol);
                            }
                            None => return self.syntax(line, "the shared variables are too large"),
                        }
                    }
                }
                // `.shared` behind an opcode names its memory.
                Token::Word(word) if word.as_bytes()[0].is_ascii_alphabetic() && self.is_modifier_next() => {
                    while self.is_modifier_next() {
                        self.lexer.take();
                    }
                }
                Token::Word(word) => {
                    if self.functions.contains_key(word) {
                        called.insert(word);
                    }
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
    pub(super) fn body(&mut self) -> Result<()> {
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
            ".loc" => self.location(),
            ".file" => self.file(),
            ".pragma" => self.pragma(),
            ".shared" => {
                for (name, ..) in self.variables()? {
                    match self.kernel.body_variables.get_mut(&(line, name)).and_then(VecDeque::pop_front) {
                        Some(symbol) if self.names.declare_symbol(name, symbol) => {}
                        _ => return self.syntax(line, format!("`{name}` is declared twice")),
                    }
                }
                Ok(())
            }
            ".param" => self.frame_variable(true),
            ".local" if self.kernel.function.is_some() => self.frame_variable(false),
            ".local" => {
                for (name, bytes, align) in self.variables()? {
                    let used = &mut self.kernel.local_bytes;
                    match bytes.and_then(|bytes| place(used, bytes, align, SymbolSpace::Local)) {
                        Some(symbol) if self.names.declare_symbol(name, symbol) => {}
                        _ => return self.syntax(line, format!("`{name}` is declared twice or has no size")),
                    }
                }
                Ok(())
            }
            other => self.unsupported(line, other, ""),
        }
    }

    fn registers(&mut self) -> Result<()> {
        let line = self.lexer.line();
        let mut ty = self.word("the type of registers")?;
        let elements = match ty {
            ".v2" => 2,
            ".v4" => 4,
            _ => 1,
        };
        if elements > 1 {
            ty = self.word("the type of registers")?;
        }
        let Some(kind) = RegKind::of(ty) else { return self.unsupported(line, &format!(".reg {ty}"), "") };
        loop {
            let name = self.word("a register")?;
            if elements > 1 {
                self.names.declare_vector(&mut self.kernel.slots, name, kind, elements);
            } else if self.has('<') {
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
        program.frame = kernel.calls.frame;
        program.variables = kernel.addresses.into_iter().map(|(index, slot)| (slot, index)).collect();
        program.variables.sort_by_key(|variable| variable.1);
        program.local_bytes = kernel.local_bytes;
        program.shared_bytes = kernel.shared_bytes;
        // The memory of accesses that other threads can wait for.
        let mut signals = program.code.iter().filter_map(|instruction| match &instruction.op {
            Op::Atomic(atomic) => Some(atomic.space),
            Op::Hopper(hopper) if hopper.is_ordered() => Some(Space::Global),
            Op::General(general) if general.is_ordered() => Some(Space::Global),
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
