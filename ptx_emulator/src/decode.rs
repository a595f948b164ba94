//! Opcodes and operands to typed instructions.
//!
//! An opcode is a name and modifiers. Each decoder takes the modifiers that it knows out of the [`Form`] and refuses
//! the instruction if one is left, so that nothing is ignored by accident.

mod arithmetic;
mod convert;
mod general;
mod hopper;
mod matrix;
mod memory;
mod select;
mod sync;

use crate::front::operand::{self, Operand, SymbolSpace};
use crate::front::{self, names::Slots};
use crate::program::{Address, Base, D, Op, P, Reg, Space, Test, Type, W};

/// Why an instruction is not covered.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

type Result<T> = std::result::Result<T, Refusal>;

fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Refusal(reason.into()))
}

/// The instruction of an opcode with these operands.
pub(crate) fn decode(slots: &mut Slots, opcode: &str, operands: &[Operand]) -> Result<Op> {
    let mut form = Form::new(opcode);
    let mut args = Args { slots, list: operands };
    // A policy of the caches is one operand more.
    if matches!(form.name, "ld" | "st" | "atom" | "red" | "cp")
        && !form.modifiers.contains(&"bulk")
        && form.flag("L2::cache_hint")
    {
        let Some((_, others)) = operands.split_last() else { return refuse("it has no policy") };
        args.list = others;
    }
    if let Some(op) = general::rounded(&mut form, &mut args)? {
        return finished(&form, op);
    }
    let op = match form.name {
        "addc" | "subc" | "madc" => general::carry(&mut form, &mut args),
        "add" | "sub" | "mad" if form.modifiers.contains(&"cc") => general::carry(&mut form, &mut args),
        "rcp" | "rsqrt" if form.modifiers[..].ends_with(&["f64"]) && form.modifiers.contains(&"approx") => {
            general::approximate_f64(&mut form, &mut args)
        }
        "dp4a" | "dp2a" => general::dot(&mut form, &mut args),
        "szext" | "bmsk" | "fns" => general::field(&mut form, &mut args),
        "prmt" if form.modifiers.len() > 1 => general::field(&mut form, &mut args),
        "testp" => general::test_number(&mut form, &mut args),
        "isspacep" => general::is_space(&mut form, &mut args),
        "createpolicy" => general::create_policy(&mut form, &mut args),
        "prefetchu" | "applypriority" | "discard" => general::cache(&mut form, &mut args),
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "abs" | "neg" | "sad" | "copysign" => {
            arithmetic::arithmetic(&mut form, &mut args)
        }
        "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => arithmetic::function(&mut form, &mut args),
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" => arithmetic::bits(&mut form, &mut args),
        "bfe" | "bfi" | "popc" | "clz" | "brev" | "bfind" | "lop3" | "prmt" | "shf" => {
            arithmetic::fields(&mut form, &mut args)
        }
        "setp" => select::setp(&mut form, &mut args),
        "selp" => select::selp(&mut form, &mut args),
        "mov" => convert::mov(&mut form, &mut args),
        "cvt" => convert::cvt(&mut form, &mut args),
        "cvta" => convert::cvta(&mut form, &mut args),
        "ld" | "ldu" => memory::load(&mut form, &mut args),
        "st" => memory::store(&mut form, &mut args),
        "atom" | "red" => memory::atomic(&mut form, &mut args),
        "cp" => memory::copy_async(&mut form, &mut args),
        "wgmma" | "mapa" | "getctarank" | "setmaxnreg" | "griddepcontrol" | "nanosleep" | "prefetch" => {
            hopper::other(&mut form, &mut args)
        }
        "bar" | "barrier" => sync::barrier(&mut form, &mut args),
        "fence" | "membar" => sync::fence(&mut form),
        "shfl" | "vote" | "redux" | "match" | "elect" | "activemask" => sync::warp(&mut form, &mut args),
        "mbarrier" => sync::mbarrier(&mut form, &mut args),
        "ldmatrix" => matrix::ldmatrix(&mut form, &mut args),
        "stmatrix" => matrix::stmatrix(&mut form, &mut args),
        "wmma" => matrix::wmma(&mut form, &mut args),
        "mma" => matrix::mma(&mut form, &mut args),
        "ret" | "exit" => {
            form.flag("uni");
            Ok(Op::Exit)
        }
        "trap" => Ok(Op::Trap { what: "trap" }),
        "brkpt" => Ok(Op::Trap { what: "stop at a breakpoint" }),
        _ => return refuse(""),
    }?;
    finished(&form, op)
}

/// The instruction, if no modifier is left.
fn finished(form: &Form<'_>, op: Op) -> Result<Op> {
    match form.modifiers.first() {
        Some(left) => refuse(format!("`.{left}` is not known here")),
        None => Ok(op),
    }
}

/// What `bar.red` does: a vote, a barrier and its result.
pub(crate) fn reducing_barrier(slots: &mut Slots, modifiers: &str, operands: &[Operand]) -> Result<[Op; 3]> {
    let mut form = Form::new(modifiers);
    let mut args = Args { slots, list: operands };
    let ops = sync::reducing_barrier(&mut form, &mut args)?;
    match form.modifiers.first() {
        Some(left) => refuse(format!("`.{left}` is not known here")),
        None => Ok(ops),
    }
}

/// An opcode: its name, and the modifiers that no decoder has taken yet.
struct Form<'a> {
    name: &'a str,
    modifiers: Vec<&'a str>,
}

impl<'a> Form<'a> {
    fn new(opcode: &'a str) -> Self {
        let mut parts = front::opcode_parts(opcode).into_iter();
        Form { name: parts.next().unwrap_or_default(), modifiers: parts.collect() }
    }

    /// Takes the modifier if it is there.
    fn flag(&mut self, modifier: &str) -> bool {
        let at = self.modifiers.iter().position(|&found| found == modifier);
        at.map(|at| self.modifiers.remove(at)).is_some()
    }

    /// Takes the first of the modifiers that is there.
    fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        table.iter().find(|row| self.flag(row.0)).map(|row| row.1)
    }

    /// Takes the first modifier if it is this one.
    fn next_is(&mut self, modifier: &str) -> bool {
        let found = self.modifiers.first() == Some(&modifier);
        if found {
            self.modifiers.remove(0);
        }
        found
    }

    /// Takes the last modifier, which is a type.
    fn ty(&mut self) -> Result<Type> {
        let Some(last) = self.modifiers.pop() else { return refuse("it has no type") };
        type_of(last).ok_or_else(|| Refusal(format!("the type `.{last}` is not known")))
    }
}

fn type_of(name: &str) -> Option<Type> {
    let int = |bits, signed| Some(Type::Int { bits, signed });
    match name {
        "b8" | "u8" => int(8, false),
        "b16" | "u16" => int(16, false),
        "b32" | "u32" => int(32, false),
        "b64" | "u64" => int(64, false),
        "s8" => int(8, true),
        "s16" => int(16, true),
        "s32" => int(32, true),
        "s64" => int(64, true),
        "f16" => Some(Type::F16),
        "bf16" => Some(Type::Bf16),
        "f32" => Some(Type::F32),
        "f64" => Some(Type::F64),
        "tf32" => Some(Type::Tf32),
        "f16x2" => Some(Type::F16x2),
        "bf16x2" => Some(Type::Bf16x2),
        "e4m3x2" => Some(Type::E4m3x2),
        "e5m2x2" => Some(Type::E5m2x2),
        _ => None,
    }
}

/// Operands, and the slots that immediates among them take.
struct Args<'a> {
    slots: &'a mut Slots,
    list: &'a [Operand],
}

impl<'a> Args<'a> {
    fn len(&self) -> usize {
        self.list.len()
    }

    fn exactly(&self, count: usize) -> Result<()> {
        self.between(count, count)
    }

    fn between(&self, least: usize, most: usize) -> Result<()> {
        if (least..=most).contains(&self.list.len()) {
            return Ok(());
        }
        refuse(format!("it has {} operands", self.list.len()))
    }

    fn get(&self, at: usize) -> Result<&'a Operand> {
        self.list.get(at).ok_or_else(|| Refusal(format!("operand {} is missing", at + 1)))
    }

    fn wrong<T>(at: usize, expected: &str) -> Result<T> {
        refuse(format!("operand {} is not {expected}", at + 1))
    }

    /// A register that is written.
    fn reg(&self, at: usize) -> Result<Reg> {
        match *self.get(at)? {
            Operand::Reg(register) => Ok(register),
            _ => Self::wrong(at, "a register"),
        }
    }

    fn to_word(&self, at: usize) -> Result<W> {
        match self.reg(at)? {
            Reg::W(slot) => Ok(slot),
            _ => Self::wrong(at, "a 32-bit register"),
        }
    }

    fn to_half(&self, at: usize) -> Result<W> {
        match self.reg(at)? {
            Reg::H(slot) => Ok(slot),
            _ => Self::wrong(at, "a 16-bit register"),
        }
    }

    fn to_double(&self, at: usize) -> Result<D> {
        match self.reg(at)? {
            Reg::D(slot) => Ok(slot),
            _ => Self::wrong(at, "a 64-bit register"),
        }
    }

    fn to_predicate(&self, at: usize) -> Result<P> {
        match self.reg(at)? {
            Reg::P(slot) => Ok(slot),
            _ => Self::wrong(at, "a predicate"),
        }
    }

    fn word(&mut self, at: usize) -> Result<W> {
        let operand = self.get(at)?;
        self.word_of(operand).ok_or(()).or_else(|()| Self::wrong(at, "a 32-bit source"))
    }

    fn word_of(&mut self, operand: &Operand) -> Option<W> {
        match *operand {
            Operand::Reg(Reg::W(slot)) => Some(slot),
            Operand::Int(value) => Some(self.slots.constant(value as u32)),
            Operand::F32(bits) => Some(self.slots.constant(bits)),
            Operand::Special(special) => Some(self.slots.special(special)),
            Operand::Symbol(symbol) => Some(self.slots.constant(symbol.address)),
            _ => None,
        }
    }

    /// A source of `f32`: decimal and `0d` numbers are rounded to it.
    fn single(&mut self, at: usize) -> Result<W> {
        match *self.get(at)? {
            Operand::F64(bits) => Ok(self.slots.constant((f64::from_bits(bits) as f32).to_bits())),
            _ => self.word(at),
        }
    }

    fn half(&mut self, at: usize) -> Result<W> {
        match *self.get(at)? {
            Operand::Reg(Reg::H(slot)) => Ok(slot),
            Operand::Int(value) => Ok(self.slots.constant(value as u32 & 0xFFFF)),
            _ => Self::wrong(at, "a 16-bit source"),
        }
    }

    fn double(&mut self, at: usize) -> Result<D> {
        match *self.get(at)? {
            Operand::Reg(Reg::D(slot)) => Ok(slot),
            Operand::Int(value) => Ok(self.slots.wide_constant(value)),
            Operand::F64(bits) => Ok(self.slots.wide_constant(bits)),
            Operand::F32(bits) => Ok(self.slots.wide_constant(f64::from(f32::from_bits(bits)).to_bits())),
            Operand::Symbol(symbol) => Ok(self.slots.wide_constant(match symbol.space {
                SymbolSpace::Param => crate::windows::PARAM + u64::from(symbol.address),
                SymbolSpace::Shared | SymbolSpace::Local => symbol.address.into(),
            })),
            _ => Self::wrong(at, "a 64-bit source"),
        }
    }

    /// A source of a type, in the bank of its width; narrow types live in words or halves.
    fn source(&mut self, at: usize, ty: Type) -> Result<Reg> {
        match (ty, ty.bits()) {
            (_, 64) => Ok(Reg::D(self.double(at)?)),
            (Type::F32, _) => Ok(Reg::W(self.single(at)?)),
            (_, 32) => Ok(Reg::W(self.word(at)?)),
            _ => Ok(Reg::H(self.half(at)?)),
        }
    }

    fn test(&mut self, at: usize) -> Result<Test> {
        match *self.get(at)? {
            Operand::Reg(Reg::P(p)) => Ok(Test { p, negated: false }),
            Operand::Not(Reg::P(p)) => Ok(Test { p, negated: true }),
            Operand::Int(value) => Ok(Test { p: self.slots.never(), negated: value != 0 }),
            _ => Self::wrong(at, "a predicate"),
        }
    }

    /// `[register + offset]`, `[symbol + offset]`, in memory of this space.
    fn address(&self, at: usize, space: Space) -> Result<Address> {
        match *self.get(at)? {
            Operand::Address(base, offset) => Self::address_of(at, (base, offset), space),
            _ => Self::wrong(at, "an address"),
        }
    }

    fn address_of(at: usize, (base, offset): (operand::Base, i64), space: Space) -> Result<Address> {
        match base {
            operand::Base::Reg(Reg::W(slot)) => Ok(Address { base: Base::W(slot), offset }),
            operand::Base::Reg(Reg::D(slot)) => Ok(Address { base: Base::D(slot), offset }),
            operand::Base::Reg(_) => Self::wrong(at, "an address of 32 or 64 bits"),
            operand::Base::None => Ok(Address { base: Base::None, offset }),
            operand::Base::Symbol(symbol) => {
                let expected = match symbol.space {
                    SymbolSpace::Shared => Space::Shared,
                    SymbolSpace::Local => Space::Local,
                    SymbolSpace::Param => Space::Param,
                };
                if space != expected && (space, expected) != (Space::Cluster, Space::Shared) {
                    return Self::wrong(at, "in the memory that the instruction names");
                }
                Ok(Address { base: Base::None, offset: offset.wrapping_add(symbol.address.into()) })
            }
        }
    }

    /// The parts of `{a, b}`; a single operand is one part.
    fn parts(&self, at: usize) -> Result<&'a [Operand]> {
        match self.get(at)? {
            Operand::Vector(parts) => Ok(parts),
            single => Ok(std::slice::from_ref(single)),
        }
    }

    /// `{a, b, ..}` of 32-bit registers that are written or read.
    fn words(&self, at: usize, counts: &[usize]) -> Result<Vec<W>> {
        let parts = self.parts(at)?;
        let word = |part: &Operand| match *part {
            Operand::Reg(Reg::W(slot)) => Ok(slot),
            _ => Self::wrong(at, "a vector of 32-bit registers"),
        };
        if !counts.contains(&parts.len()) {
            return refuse(format!("operand {} has {} registers", at + 1, parts.len()));
        }
        parts.iter().map(word).collect()
    }
}
