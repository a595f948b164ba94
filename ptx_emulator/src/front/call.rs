//! Calls: of functions, whose arguments and results go through their frames, and of the driver's own.

use std::rc::Rc;

use super::function::local_access;
use super::lexer::Token;
use super::lexer::show;
use super::names::RegKind;
use super::operand::Operand;
use super::state::Function;
use super::state::Parser;
use crate::error::Result;
use crate::program::{Access, Address, Base, D, General, Instruction, IntOp, Op, Reg, Space, Test, W};

impl<'a> Parser<'a> {
    fn push_general(&mut self, line: u32, general: General) {
        self.push_plain(line, Op::General(Box::new(general)));
    }

    /// `call (results), name, (arguments);`
    pub(super) fn call(&mut self, guard: Option<Test>, opcode: &'a str, line: u32) -> Result<()> {
        let results = if self.lexer.peek() == Token::Mark('(') { Some(self.actuals()?) } else { None };
        if results.is_some() {
            self.mark(',')?;
        }
        let (token, _) = self.lexer.take();
        let Token::Word(name) = token else {
            return self.unsupported(line, opcode, format!("of {}", show(token)));
        };
        let mut arguments = Vec::new();
        if self.has(',') {
            arguments = self.actuals()?;
        }
        if self.lexer.peek() == Token::Mark(',') || self.names.register(&mut self.kernel.slots, name).is_some() {
            return self.unsupported(line, opcode, format!("through the pointer `{name}`"));
        }
        self.mark(';')?;
        let Some((name, function)) = self.functions.get_key_value(name).map(|(name, it)| (*name, Rc::clone(it))) else {
            return self.unsupported(line, opcode, format!("of `{name}`, which is not declared"));
        };
        if !function.returns && function.parameters.is_empty() {
            let op = Op::Trap { what: "panic" };
            self.push(opcode, Instruction { guard, op, meet: 0, line, rust: self.rust });
            return Ok(());
        }
        let results = results.unwrap_or_default();
        if results.len() != function.results.len() || arguments.len() != function.parameters.len() {
            return self.syntax(line, format!("`{name}` has other parameters or results"));
        }
        let around = guard.map(|guard| {
            let guard = Some(Test { negated: !guard.negated, ..guard });
            self.push(opcode, Instruction { guard, op: Op::Branch { target: 0 }, meet: 0, line, rust: self.rust });
            self.kernel.code.len() - 1
        });
        if function.body.is_some() {
            self.call_function(name, &function, (&results, &arguments), line)?;
        } else {
            self.call_builtin((opcode, name), (&results, &arguments), line)?;
        }
        if let Some(at) = around {
            let target = self.kernel.code.len() as u32;
            self.kernel.code[at].op = Op::Branch { target };
        }
        Ok(())
    }

    /// `(a, b)`
    fn actuals(&mut self) -> Result<Vec<Operand>> {
        let mut list = Vec::new();
        self.mark('(')?;
        if self.has(')') {
            return Ok(list);
        }
        loop {
            list.push(self.operand(0)?);
            if !self.has(',') {
                self.mark(')')?;
                return Ok(list);
            }
        }
    }

    fn call_function(
        &mut self,
        name: &'a str,
        function: &Function<'a>,
        (results, arguments): (&[Operand], &[Operand]),
        line: u32,
    ) -> Result<()> {
        let frame = self.frame();
        let spills = match &self.kernel.function {
            Some(caller) => self.reaches(name, caller.name),
            None => false,
        };
        let size = self.frame_size();
        let in_function = self.kernel.function.is_some();
        let step = |op| Op::Int64 { op, d: frame, s: [frame, size, frame], n: [W(0); 2] };
        let spill = |parser: &mut Self, restores| {
            let at = parser.kernel.code.len();
            let to = Address { base: Base::D(frame), offset: 0 };
            parser.push_general(line, General::Spill { restores, to, registers: Vec::new() });
            parser.kernel.function.iter_mut().for_each(|function| function.spills.push(at));
        };
        if spills {
            spill(self, false);
        }
        let enter = if in_function {
            step(IntOp::Add)
        } else {
            Op::Int64 { op: IntOp::Mov, d: frame, s: [size; 3], n: [W(0); 2] }
        };
        self.push_plain(line, enter);
        self.kernel.calls.sites.push((self.kernel.code.len(), name));
        self.push_general(line, General::Reserve { bytes: 0 });
        for (formal, actual) in function.parameters.iter().zip(arguments) {
            let to = Address { base: Base::D(frame), offset: formal.offset.into() };
            match self.is_variable(actual) {
                Some(variable) if formal.register.is_none() => {
                    let from = Address { base: Base::D(variable), offset: 0 };
                    self.push_general(line, General::CopyLocal { to, from, bytes: formal.bytes });
                }
                _ => {
                    let register = self.value(actual, formal.bytes, line)?;
                    self.push_plain(line, Op::Store(local_access(to, formal.bytes, register)));
                }
            }
        }
        self.kernel.calls.sites.push((self.kernel.code.len(), name));
        self.push_plain(line, Op::Call { target: 0 });
        if in_function {
            self.push_plain(line, step(IntOp::Sub));
        }
        if spills {
            spill(self, true);
        }
        for (formal, actual) in function.results.iter().zip(results) {
            let from = Address { base: Base::D(frame), offset: formal.offset.into() };
            let at = self.kernel.code.len();
            match (actual, self.is_variable(actual)) {
                (Operand::Sink, _) => continue,
                (_, Some(variable)) if formal.register.is_none() => {
                    let to = Address { base: Base::D(variable), offset: 0 };
                    self.push_general(line, General::CopyLocal { to, from, bytes: formal.bytes });
                }
                (&Operand::Reg(register), _) => {
                    self.push_plain(line, Op::Load(local_access(from, formal.bytes, register)));
                }
                _ => return self.syntax(line, format!("the result of `{name}` goes to no register")),
            }
            self.kernel.function.iter_mut().for_each(|function| function.behind.push(at));
        }
        Ok(())
    }

    /// The slot with the size of the frame of the function or kernel at hand, which is known at its end.
    fn frame_size(&mut self) -> D {
        let size = match &mut self.kernel.function {
            Some(function) => &mut function.size,
            None => &mut self.kernel.calls.size,
        };
        let slots = &mut self.kernel.slots;
        *size.get_or_insert_with(|| slots.late())
    }

    /// The address of the `.param` variable that an argument is.
    fn is_variable(&self, actual: &Operand) -> Option<D> {
        match *actual {
            Operand::Reg(Reg::D(slot)) if self.kernel.calls.variables.contains(&slot.0) => Some(slot),
            _ => None,
        }
    }

    /// A register or number as an argument.
    fn value(&mut self, actual: &Operand, bytes: u32, line: u32) -> Result<Reg> {
        match *actual {
            Operand::Reg(register) => Ok(register),
            Operand::Int(value) if bytes == 8 => Ok(Reg::D(self.kernel.slots.wide_constant(value))),
            Operand::F64(value) if bytes == 8 => Ok(Reg::D(self.kernel.slots.wide_constant(value))),
            Operand::Int(value) => Ok(Reg::W(self.kernel.slots.constant(value as u32))),
            Operand::F32(bits) => Ok(Reg::W(self.kernel.slots.constant(bits))),
            _ => self.unsupported(line, "call", "of this argument"),
        }
    }

    /// What the argument of a builtin function holds.
    fn loaded(&mut self, actual: &Operand, bytes: u32, line: u32) -> Result<Reg> {
        let Some(variable) = self.is_variable(actual) else { return self.value(actual, bytes, line) };
        let register = self.kernel.slots.register(if bytes == 8 { RegKind::D } else { RegKind::W });
        let address = Address { base: Base::D(variable), offset: 0 };
        let access = Access { space: Space::Generic, ..*local_access(address, bytes, register) };
        self.push_plain(line, Op::Load(Box::new(access)));
        Ok(register)
    }

    /// The functions of the driver.
    fn call_builtin(
        &mut self,
        (opcode, name): (&str, &str),
        (results, arguments): (&[Operand], &[Operand]),
        line: u32,
    ) -> Result<()> {
        let sizes: &[u32] = match name {
            "vprintf" => &[8, 8],
            "__assertfail" => &[8, 8, 4, 8, 8],
            _ => &[],
        };
        if sizes.is_empty() || sizes.len() != arguments.len() {
            return self.unsupported(line, opcode, format!("of `{name}`, which has no body here"));
        }
        let mut values = Vec::new();
        for (actual, &bytes) in arguments.iter().zip(sizes) {
            values.push(self.loaded(actual, bytes, line)?);
        }
        match (values[..].as_ref(), results) {
            (&[Reg::D(format), Reg::D(arguments)], results) => {
                let Reg::W(d) = self.kernel.slots.register(RegKind::W) else { return Ok(()) };
                self.push_general(line, General::Print { format, arguments, d });
                match (results.first(), results.first().and_then(|result| self.is_variable(result))) {
                    (_, Some(variable)) => {
                        let address = Address { base: Base::D(variable), offset: 0 };
                        let access = Access { space: Space::Generic, ..*local_access(address, 4, Reg::W(d)) };
                        self.push_plain(line, Op::Store(Box::new(access)));
                    }
                    (Some(&Operand::Reg(Reg::W(result))), _) => {
                        self.push_plain(line, Op::Int32 { op: IntOp::Mov, d: result, s: [d; 4] });
                    }
                    _ => {}
                }
                Ok(())
            }
            (&[Reg::D(message), Reg::D(file), Reg::W(number), Reg::D(function), _], _) => {
                self.push_general(line, General::AssertFail { message, file, line: number, function });
                Ok(())
            }
            _ => self.syntax(line, format!("`{name}` has other parameters")),
        }
    }
}
