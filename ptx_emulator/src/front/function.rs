//! Functions: their headers, their bodies and their frames.
//!
//! The functions of a text are found before its kernels are read. The code of a kernel is followed by the code of the
//! functions that it reaches; a function that no kernel reaches is not read.
//!
//! A thread's local memory is its stack. Behind the kernel's own variables each running function has a frame with its
//! results, parameters and local variables. A function that may be called again before it returns keeps its registers
//! there, too. The register `frame` holds where the frame of the running function begins.

use std::collections::HashSet;
use std::rc::Rc;

use super::lexer::{Lexer, Token, show};
use super::names::{RegKind, place};
use super::operand::SymbolSpace;
use super::state::{Formal, Frame, Function, Parser};
use crate::error::Result;
use crate::program::{Access, Address, Base, D, General, Instruction, IntOp, Op, Order, Reg, Space, Test, W};
use crate::windows;

/// Bytes of stack of a thread in a kernel that reaches a function which calls itself.
const RECURSION_BYTES: u32 = 16 << 10;
/// Every frame begins at a multiple of this.
const FRAME_ALIGNMENT: u32 = 16;

fn unguarded(op: Op, line: u32, rust: (u32, u32)) -> Instruction {
    Instruction { guard: None, op, meet: 0, line, rust }
}

impl<'a> Parser<'a> {
    /// Finds all functions of the text.
    pub(super) fn find_functions(&mut self) -> Result<()> {
        let start = self.lexer.clone();
        loop {
            match self.lexer.take().0 {
                Token::End => break,
                Token::Word(".func") => {
                    let (name, mut function) = self.header()?;
                    if self.has('{') {
                        function.body = Some(self.lexer.clone());
                        function.words = self.skip_body()?;
                    }
                    match self.functions.get(name) {
                        Some(known) if known.body.is_some() => {}
                        _ => {
                            self.functions.insert(name, Rc::new(function));
                        }
                    }
                }
                _ => {}
            }
        }
        self.lexer = start;
        Ok(())
    }

    /// A function in its place in the text, which is known already.
    pub(super) fn function(&mut self) -> Result<()> {
        self.header()?;
        if self.has('{') {
            self.skip_body()?;
            return Ok(());
        }
        self.mark(';')
    }

    /// `(results) name (parameters)` and what follows up to the body.
    fn header(&mut self) -> Result<(&'a str, Function<'a>)> {
        let mut function = Function { returns: true, ..Function::default() };
        self.attributes()?;
        if self.lexer.peek() == Token::Mark('(') {
            function.results = self.formals(&mut function.formal_bytes)?;
        }
        let name = self.word("the name of a function")?;
        if self.lexer.peek() == Token::Mark('(') {
            function.parameters = self.formals(&mut function.formal_bytes)?;
        }
        loop {
            let line = self.lexer.line();
            match self.lexer.peek() {
                Token::Mark('{' | ';') => return Ok((name, function)),
                Token::Word(".noreturn") => {
                    self.lexer.take();
                    function.returns = false;
                }
                Token::Word(".unique" | ".noinline" | ".abi_preserve" | ".abi_preserve_control") => {
                    if let (Token::Word(".abi_preserve" | ".abi_preserve_control"), _) = self.lexer.take() {
                        self.count()?;
                    }
                }
                Token::Word(".pragma") => {
                    self.lexer.take();
                    self.pragma()?;
                }
                Token::Word(other) => return self.unsupported(line, other, format!("of the function `{name}`")),
                other => return self.syntax(line, format!("expected the body of `{name}`, found {}", show(other))),
            }
        }
    }

    /// `.attribute(..)`, which says nothing here.
    pub(super) fn attributes(&mut self) -> Result<()> {
        while self.lexer.peek() == Token::Word(".attribute") {
            self.lexer.take();
            self.mark('(')?;
            while self.lexer.peek() != Token::End && !self.has(')') {
                self.lexer.take();
            }
        }
        Ok(())
    }

    fn formals(&mut self, used: &mut u32) -> Result<Vec<Formal<'a>>> {
        let mut formals = Vec::new();
        self.mark('(')?;
        if self.has(')') {
            return Ok(formals);
        }
        loop {
            let line = self.lexer.line();
            let register = match self.word("a parameter")? {
                ".param" => None,
                ".reg" => {
                    let ty = self.lexer.peek();
                    match ty {
                        Token::Word(ty) => match RegKind::of(ty) {
                            Some(RegKind::P) | None => return self.unsupported(line, ty, "as a parameter"),
                            kind => kind,
                        },
                        other => return self.syntax(line, format!("expected a type, found {}", show(other))),
                    }
                }
                other => return self.syntax(line, format!("expected `.param` or `.reg`, found `{other}`")),
            };
            let (name, bytes, align) = self.param_variable()?;
            let Some(symbol) = place(used, bytes, align, SymbolSpace::Local) else {
                return self.syntax(line, "the parameters are too large");
            };
            formals.push(Formal { name, bytes, offset: symbol.address, register });
            if !self.has(',') {
                self.mark(')')?;
                return Ok(formals);
            }
        }
    }

    /// The rest of a body, whose `{` is taken, and its words.
    fn skip_body(&mut self) -> Result<HashSet<&'a str>> {
        let (mut depth, mut words) = (1, HashSet::new());
        while depth > 0 {
            match self.lexer.take() {
                (Token::Mark('{'), _) => depth += 1,
                (Token::Mark('}'), _) => depth -= 1,
                (Token::Word(word), _) => {
                    words.insert(word);
                }
                (Token::End, line) => return self.syntax(line, "the function has no end"),
                _ => {}
            }
        }
        Ok(words)
    }

    /// The bodies of the functions that these words name, directly or through others.
    pub(super) fn reached_bodies(&self, words: &HashSet<&'a str>) -> Vec<Lexer<'a>> {
        let (mut seen, mut work): (HashSet<&str>, Vec<&str>) = (HashSet::new(), words.iter().copied().collect());
        let mut bodies = Vec::new();
        work.sort_unstable();
        while let Some(word) = work.pop() {
            if let Some(function) = self.functions.get(word)
                && seen.insert(word)
            {
                bodies.extend(function.body.clone());
                let mut more: Vec<&str> = function.words.iter().copied().collect();
                more.sort_unstable();
                work.extend(more);
            }
        }
        bodies
    }

    /// Whether `to` may run before a call of `from` returns.
    pub(super) fn reaches(&self, from: &str, to: &str) -> bool {
        let (mut seen, mut work) = (HashSet::new(), vec![from]);
        while let Some(name) = work.pop() {
            if name == to {
                return true;
            }
            if let Some((name, function)) = self.functions.get_key_value(name)
                && seen.insert(*name)
            {
                work.extend(function.words.iter().copied().filter(|word| self.functions.contains_key(word)));
            }
        }
        false
    }

    /// A variable of a body in local memory, `.local` or `.param`. A variable of a function is in the function's frame,
    /// and its name stands for a register with its address.
    pub(super) fn frame_variable(&mut self, is_param: bool) -> Result<()> {
        let line = self.lexer.line();
        let (name, bytes, align) = self.param_variable()?;
        self.mark(';')?;
        let used = match &mut self.kernel.function {
            Some(function) => &mut function.used,
            None => &mut self.kernel.local_bytes,
        };
        let Some(symbol) = place(used, bytes, align, SymbolSpace::Local) else {
            return self.syntax(line, format!("`{name}` is too large"));
        };
        let window = if is_param { windows::LOCAL } else { 0 };
        let address = self.frame_address(window + u64::from(symbol.address), line);
        if is_param {
            self.kernel.calls.variables.insert(address.0);
        }
        if !self.names.bind(name, Reg::D(address)) {
            return self.syntax(line, format!("`{name}` is declared twice"));
        }
        Ok(())
    }

    /// A register with an address in the frame: in a kernel, whose frame begins at 0, a constant.
    fn frame_address(&mut self, offset: u64, line: u32) -> D {
        let offset = self.kernel.slots.wide_constant(offset);
        if self.kernel.function.is_none() {
            return offset;
        }
        let (d, frame) = (self.double(), self.frame());
        self.push_plain(line, Op::Int64 { op: IntOp::Add, d, s: [frame, offset, frame], n: [W(0); 2] });
        d
    }

    /// A new register of the function.
    fn double(&mut self) -> D {
        match self.kernel.slots.register(RegKind::D) {
            Reg::D(slot) => slot,
            _ => D(0),
        }
    }

    pub(super) fn frame(&mut self) -> D {
        let slots = &mut self.kernel.slots;
        *self.kernel.calls.frame.get_or_insert_with(|| slots.double())
    }

    pub(super) fn push_plain(&mut self, line: u32, mut op: Op) {
        if let Op::Int64 { n, .. } = &mut op {
            *n = [self.kernel.slots.constant(0); 2];
        }
        self.push("call", unguarded(op, line, self.rust));
    }

    /// `ret;` in a function.
    pub(super) fn push_return(&mut self, guard: Option<Test>, opcode: &'a str, line: u32) -> bool {
        let at = self.kernel.code.len();
        let Some(function) = &mut self.kernel.function else { return false };
        function.returns.push(at);
        self.push(opcode, Instruction { guard, op: Op::Branch { target: 0 }, meet: 0, line, rust: self.rust });
        true
    }

    /// Reads the functions that the kernel at hand calls, behind its own code, which is complete.
    pub(super) fn place_functions(&mut self) -> Result<()> {
        if self.kernel.calls.sites.is_empty() {
            return Ok(());
        }
        self.push_plain(0, Op::Exit);
        let after = self.lexer.clone();
        let kernel_bytes = self.kernel.local_bytes.next_multiple_of(FRAME_ALIGNMENT);
        let mut next = 0;
        while let Some(&(_, name)) = self.kernel.calls.sites.get(next) {
            next += 1;
            if !self.kernel.calls.placed.contains_key(name) {
                self.body_of(name)?;
            }
        }
        self.lexer = after;
        let calls = std::mem::take(&mut self.kernel.calls);
        for &(at, name) in &calls.sites {
            let Some(&(first, size)) = calls.placed.get(name) else { continue };
            self.kernel.code[at].op = match &self.kernel.code[at].op {
                Op::Call { .. } => Op::Call { target: first },
                _ => Op::General(Box::new(General::Reserve { bytes: size })),
            };
        }
        if let Some(size) = calls.size {
            self.kernel.slots.set_late(size, kernel_bytes.into());
        }
        let is_recursive = calls.placed.keys().any(|name| self.calls_itself(name));
        let stack = calls.placed.values().fold(0, |sum: u32, function| sum.saturating_add(function.1));
        let stack = if is_recursive { stack.max(RECURSION_BYTES) } else { stack };
        self.kernel.local_bytes = kernel_bytes.saturating_add(stack);
        self.kernel.calls = calls;
        Ok(())
    }

    fn calls_itself(&self, name: &str) -> bool {
        let callees = self.functions.get(name).map(|function| &function.words);
        callees
            .is_some_and(|words| words.iter().any(|word| self.functions.contains_key(word) && self.reaches(word, name)))
    }

    /// The code of a function, at the end of the kernel's.
    fn body_of(&mut self, name: &'a str) -> Result<()> {
        let function = self.functions.get(name).cloned().unwrap_or_default();
        let Some(body) = function.body.clone() else { return Ok(()) };
        self.lexer = body;
        let line = self.lexer.line();
        let first = self.kernel.code.len() as u32;
        self.kernel.slots.own();
        self.kernel.function = Some(Frame { name, used: function.formal_bytes, ..Frame::default() });
        self.names.open();
        for formal in &function.parameters {
            self.bind_formal(formal, true, line);
        }
        for formal in &function.results {
            self.bind_formal(formal, false, line);
        }
        self.body()?;
        let end = self.kernel.code.len() as u32;
        for formal in function.results.iter().filter(|formal| formal.register.is_some()) {
            if let Some(register) = self.names.register(&mut self.kernel.slots, formal.name) {
                let base = Base::D(self.frame());
                let address = Address { base, offset: formal.offset.into() };
                self.push_plain(line, Op::Store(local_access(address, formal.bytes, register)));
            }
        }
        self.names.close();
        self.push_plain(line, Op::Return);
        let frame = self.kernel.function.take().unwrap_or_default();
        for at in frame.returns {
            self.kernel.code[at].op = Op::Branch { target: end };
        }
        let spilled = frame.used.next_multiple_of(8);
        let owned = if frame.spills.is_empty() { Vec::new() } else { self.kernel.slots.owned().to_vec() };
        let bytes = (spilled + 8 * owned.len() as u32).next_multiple_of(FRAME_ALIGNMENT);
        for at in frame.spills {
            if let Op::General(general) = &mut self.kernel.code[at].op
                && let General::Spill { to, registers, .. } = &mut **general
            {
                to.offset = spilled.into();
                registers.clone_from(&owned);
            }
        }
        for at in frame.behind {
            match &mut self.kernel.code[at].op {
                Op::General(general) => {
                    if let General::CopyLocal { from, .. } = &mut **general {
                        from.offset += i64::from(bytes);
                    }
                }
                Op::Load(access) => access.address.offset += i64::from(bytes),
                _ => {}
            }
        }
        if let Some(size) = frame.size {
            self.kernel.slots.set_late(size, bytes.into());
        }
        self.kernel.calls.placed.insert(name, (first, bytes));
        Ok(())
    }

    fn bind_formal(&mut self, formal: &Formal<'a>, is_parameter: bool, line: u32) {
        let Some(kind) = formal.register else {
            let address = self.frame_address(windows::LOCAL + u64::from(formal.offset), line);
            self.kernel.calls.variables.insert(address.0);
            self.names.bind(formal.name, Reg::D(address));
            return;
        };
        let register = self.kernel.slots.register(kind);
        self.names.bind(formal.name, register);
        if is_parameter {
            let address = Address { base: Base::D(self.frame()), offset: formal.offset.into() };
            self.push_plain(line, Op::Load(local_access(address, formal.bytes, register)));
        }
    }
}

/// An access of one register to local memory.
pub(super) fn local_access(address: Address, bytes: u32, register: Reg) -> Box<Access> {
    let (space, order, bytes) = (Space::Local, Order::Weak, bytes as u8);
    Box::new(Access { space, order, address, bytes, signed: false, registers: vec![Some(register)] })
}
