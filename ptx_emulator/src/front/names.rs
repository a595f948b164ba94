//! Registers and variables by name, in nested scopes, and the slots that they get.

use std::collections::HashMap;

use super::operand::{Symbol, SymbolSpace};
use crate::program::{D, P, Reg, Special, W};

/// The type of registers that a `.reg` declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegKind {
    P,
    H,
    W,
    D,
}

impl RegKind {
    /// That of the registers of a type.
    pub(crate) fn of(ty: &str) -> Option<RegKind> {
        match ty {
            ".pred" => Some(RegKind::P),
            ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Some(RegKind::H),
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => Some(RegKind::W),
            ".b64" | ".u64" | ".s64" | ".f64" => Some(RegKind::D),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Scope<'a> {
    registers: HashMap<&'a str, Reg>,
    /// Declarations `%r<5>`: the prefix, and how many.
    ranges: HashMap<&'a str, (RegKind, u32)>,
    /// Declarations `.v2 .f32 v`: the registers `v.x` and `v.y`.
    vectors: HashMap<&'a str, Vec<Reg>>,
    symbols: HashMap<&'a str, Symbol>,
    /// Number of the scope in the kernel, for labels.
    id: u32,
}

/// The slots of a kernel's banks: registers get theirs when they are first named.
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) words: u32,
    pub(crate) doubles: u32,
    pub(crate) predicates: u32,
    constants: HashMap<u32, W>,
    wide_constants: HashMap<u64, D>,
    specials: HashMap<Special, W>,
    /// The predicate that nothing writes.
    never: Option<P>,
    /// The flag of `add.cc` and its like.
    carry: Option<P>,
    /// Constants whose values are known later.
    late: Vec<(D, u64)>,
    /// The registers that were declared since [`own`](Self::own).
    owned: Vec<Reg>,
}

impl Slots {
    pub(crate) fn word(&mut self) -> W {
        self.words += 1;
        W(self.words - 1)
    }

    pub(crate) fn double(&mut self) -> D {
        self.doubles += 1;
        D(self.doubles - 1)
    }

    pub(crate) fn predicate(&mut self) -> P {
        self.predicates += 1;
        P(self.predicates - 1)
    }

    pub(crate) fn register(&mut self, kind: RegKind) -> Reg {
        let register = match kind {
            RegKind::P => Reg::P(self.predicate()),
            RegKind::H => Reg::H(self.word()),
            RegKind::W => Reg::W(self.word()),
            RegKind::D => Reg::D(self.double()),
        };
        self.owned.push(register);
        register
    }

    /// From here on the registers are those of a function.
    pub(crate) fn own(&mut self) {
        self.owned.clear();
    }

    /// The registers of the function.
    pub(crate) fn owned(&self) -> &[Reg] {
        &self.owned
    }

    /// A slot whose constant is given by [`set_late`](Self::set_late).
    pub(crate) fn late(&mut self) -> D {
        let slot = self.double();
        self.late.push((slot, 0));
        slot
    }

    pub(crate) fn set_late(&mut self, slot: D, value: u64) {
        self.late.iter_mut().filter(|late| late.0 == slot).for_each(|late| late.1 = value);
    }

    /// The flag of `add.cc` and its like.
    pub(crate) fn carry(&mut self) -> P {
        match self.carry {
            Some(slot) => slot,
            None => {
                let slot = self.predicate();
                self.carry = Some(slot);
                slot
            }
        }
    }

    /// The slot that always holds `value`.
    pub(crate) fn constant(&mut self, value: u32) -> W {
        if let Some(&slot) = self.constants.get(&value) {
            return slot;
        }
        let slot = self.word();
        self.constants.insert(value, slot);
        slot
    }

    /// The slot that always holds `value`.
    pub(crate) fn wide_constant(&mut self, value: u64) -> D {
        if let Some(&slot) = self.wide_constants.get(&value) {
            return slot;
        }
        let slot = self.double();
        self.wide_constants.insert(value, slot);
        slot
    }

    /// The slot of a special register.
    pub(crate) fn special(&mut self, special: Special) -> W {
        if let Some(&slot) = self.specials.get(&special) {
            return slot;
        }
        let slot = self.word();
        self.specials.insert(special, slot);
        slot
    }

    /// A predicate that nothing writes: false in every lane.
    pub(crate) fn never(&mut self) -> P {
        match self.never {
            Some(slot) => slot,
            None => {
                let slot = self.predicate();
                self.never = Some(slot);
                slot
            }
        }
    }

    pub(crate) fn constants(&self) -> Vec<(W, u32)> {
        sorted(self.constants.iter().map(|(&value, &slot)| (slot, value)), |slot| slot.0)
    }

    pub(crate) fn wide_constants(&self) -> Vec<(D, u64)> {
        let known = self.wide_constants.iter().map(|(&value, &slot)| (slot, value));
        sorted(known.chain(self.late.iter().copied()), |slot| slot.0)
    }

    pub(crate) fn specials(&self) -> Vec<(W, Special)> {
        sorted(self.specials.iter().map(|(&value, &slot)| (slot, value)), |slot| slot.0)
    }
}

fn sorted<S: Copy, T>(pairs: impl Iterator<Item = (S, T)>, key: impl Fn(S) -> u32) -> Vec<(S, T)> {
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_by_key(|pair| key(pair.0));
    pairs
}

/// The scopes that are open.
pub(crate) struct Names<'a> {
    open: Vec<Scope<'a>>,
    scopes: u32,
}

impl<'a> Names<'a> {
    /// The scope of the module alone.
    pub(crate) fn new() -> Self {
        Names { open: vec![Scope::default()], scopes: 1 }
    }

    /// Opens a scope and returns its number, from 1 in each kernel.
    pub(crate) fn open(&mut self) -> u32 {
        let id = self.scopes;
        self.scopes += 1;
        self.open.push(Scope { id, ..Scope::default() });
        id
    }

    pub(crate) fn close(&mut self) {
        if self.open.len() > 1 {
            self.open.pop();
        }
    }

    /// How many scopes are open, the module's among them.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// The numbers of the open scopes, the innermost first.
    pub(crate) fn open_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.iter().rev().map(|scope| scope.id)
    }

    fn innermost(&mut self) -> Option<&mut Scope<'a>> {
        self.open.last_mut()
    }

    /// Declares one register.
    pub(crate) fn declare(&mut self, slots: &mut Slots, name: &'a str, kind: RegKind) {
        let register = slots.register(kind);
        if let Some(scope) = self.innermost() {
            scope.registers.insert(name, register);
        }
    }

    /// Declares `prefix0` to `prefix{count - 1}`.
    pub(crate) fn declare_range(&mut self, prefix: &'a str, kind: RegKind, count: u32) {
        if let Some(scope) = self.innermost() {
            scope.ranges.insert(prefix, (kind, count));
        }
    }

    /// Gives a register a name; false if the scope has one of this name.
    pub(crate) fn bind(&mut self, name: &'a str, register: Reg) -> bool {
        self.innermost().is_some_and(|scope| scope.registers.insert(name, register).is_none())
    }

    /// Declares a vector of registers.
    pub(crate) fn declare_vector(&mut self, slots: &mut Slots, name: &'a str, kind: RegKind, elements: usize) {
        let registers = (0..elements).map(|_| slots.register(kind)).collect();
        if let Some(scope) = self.innermost() {
            scope.vectors.insert(name, registers);
        }
    }

    /// The registers of the vector of this name.
    pub(crate) fn vector(&self, name: &str) -> Option<&[Reg]> {
        self.open.iter().rev().find_map(|scope| scope.vectors.get(name).map(Vec::as_slice))
    }

    /// `v.x`, `v.y`, `v.z`, `v.w`, or `.r`, `.g`, `.b`, `.a`: the register of a vector.
    pub(crate) fn element(&self, name: &str) -> Option<Reg> {
        let (vector, element) = name.rsplit_once('.')?;
        let at = ["xr", "yg", "zb", "wa"].iter().position(|names| element.len() == 1 && names.contains(element))?;
        self.vector(vector)?.get(at).copied()
    }

    /// Declares a variable; false if the scope has one of this name.
    pub(crate) fn declare_symbol(&mut self, name: &'a str, symbol: Symbol) -> bool {
        self.innermost().is_some_and(|scope| scope.symbols.insert(name, symbol).is_none())
    }

    /// The register of this name. A register of a range gets its slot now.
    pub(crate) fn register(&mut self, slots: &mut Slots, name: &'a str) -> Option<Reg> {
        let prefix = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let digits = &name[prefix.len()..];
        let plain = digits == "0" || !digits.starts_with('0');
        let number = if plain { digits.parse::<u32>().ok() } else { None };
        for scope in self.open.iter_mut().rev() {
            if let Some(&register) = scope.registers.get(name) {
                return Some(register);
            }
            if let Some(number) = number
                && let Some(&(kind, count)) = scope.ranges.get(prefix)
                && number < count
            {
                let register = slots.register(kind);
                scope.registers.insert(name, register);
                return Some(register);
            }
        }
        None
    }

    /// The variable of this name.
    pub(crate) fn symbol(&self, name: &str) -> Option<Symbol> {
        self.open.iter().rev().find_map(|scope| scope.symbols.get(name).copied())
    }
}

/// Where a variable of `bytes` at a multiple of `align` goes behind `used` bytes, and moves `used` behind it.
pub(crate) fn place(used: &mut u32, bytes: u32, align: u32, space: SymbolSpace) -> Option<Symbol> {
    let address = used.checked_next_multiple_of(align.max(1))?;
    *used = address.checked_add(bytes)?;
    Some(Symbol { space, address })
}
