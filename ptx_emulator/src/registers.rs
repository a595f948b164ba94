//! The registers of one warp, and the parts of an access that touch them.

use crate::program::{Address, Base, D, P, Program, Reg, Space, Special, Test, W};
use crate::windows;

/// The lanes of a warp.
pub(crate) const LANES: usize = 32;

/// One value of every lane.
pub(crate) type Words = [u32; LANES];

/// One 64-bit value of every lane.
pub(crate) type Doubles = [u64; LANES];

/// The set bits of a mask, from the lowest.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.checked_sub(1)?;
        Some(lane as usize)
    })
}

/// The banks of a warp.
#[derive(Debug, Clone)]
pub(crate) struct Registers {
    words: Vec<Words>,
    doubles: Vec<Doubles>,
    predicates: Vec<u32>,
}

impl Registers {
    /// All zero but for the constants; [`restart`](Self::restart) gives the special registers their values.
    pub(crate) fn new(program: &Program) -> Registers {
        let mut registers = Registers {
            words: vec![[0; LANES]; program.words as usize],
            doubles: vec![[0; LANES]; program.doubles as usize],
            predicates: vec![0; program.predicates as usize],
        };
        for &(slot, value) in &program.constants {
            registers.words[slot.0 as usize] = [value; LANES];
        }
        for &(slot, value) in &program.wide_constants {
            registers.doubles[slot.0 as usize] = [value; LANES];
        }
        registers
    }

    /// As a new warp finds them: zero where it may read what it did not write, and the special registers, whose values
    /// `special` gives; `variables` are the addresses of those of the module.
    pub(crate) fn restart(&mut self, program: &Program, special: impl Fn(Special, usize) -> u32, variables: &[u64]) {
        for &slot in &program.unwritten {
            self.set_wide(slot, &[0; LANES], u32::MAX);
        }
        for &(slot, which) in &program.specials {
            self.words[slot.0 as usize] = std::array::from_fn(|lane| special(which, lane));
        }
        for &(slot, index) in &program.variables {
            self.doubles[slot.0 as usize] = [variables[index]; LANES];
        }
    }

    #[inline(always)]
    pub(crate) fn word(&self, slot: W) -> &Words {
        &self.words[slot.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn double(&self, slot: D) -> &Doubles {
        &self.doubles[slot.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn word_mut(&mut self, slot: W) -> &mut Words {
        &mut self.words[slot.0 as usize]
    }

    /// The lanes in which the predicate is true.
    #[inline(always)]
    pub(crate) fn test(&self, test: Test) -> u32 {
        let bits = self.predicates[test.p.0 as usize];
        if test.negated { !bits } else { bits }
    }

    /// The lanes in which it is true.
    pub(crate) fn predicate(&self, slot: P) -> u32 {
        self.predicates[slot.0 as usize]
    }

    #[inline(always)]
    pub(crate) fn set_word(&mut self, slot: W, values: &Words, mask: u32) {
        blend(&mut self.words[slot.0 as usize], values, mask);
    }

    #[inline(always)]
    pub(crate) fn set_double(&mut self, slot: D, values: &Doubles, mask: u32) {
        blend(&mut self.doubles[slot.0 as usize], values, mask);
    }

    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, slot: P, bits: u32, mask: u32) {
        let old = &mut self.predicates[slot.0 as usize];
        *old = *old & !mask | bits & mask;
    }

    /// A register of any width, zero-extended.
    pub(crate) fn wide(&self, register: Reg) -> Doubles {
        match register {
            Reg::P(slot) => {
                let bits = self.predicates[slot.0 as usize];
                std::array::from_fn(|lane| u64::from(bits >> lane & 1))
            }
            Reg::H(slot) | Reg::W(slot) => self.word(slot).map(u64::from),
            Reg::D(slot) => *self.double(slot),
        }
    }

    /// One lane of [`wide`](Self::wide).
    pub(crate) fn lane(&self, register: Reg, lane: usize) -> u64 {
        match register {
            Reg::P(slot) => u64::from(self.predicates[slot.0 as usize] >> lane & 1),
            Reg::H(slot) | Reg::W(slot) => self.word(slot)[lane].into(),
            Reg::D(slot) => self.double(slot)[lane],
        }
    }

    /// Sets a register of any width to the low bits of the values.
    pub(crate) fn set_wide(&mut self, register: Reg, values: &Doubles, mask: u32) {
        match register {
            Reg::P(slot) => {
                let bits = values.iter().enumerate().fold(0, |bits, (lane, value)| bits | (*value as u32 & 1) << lane);
                self.set_predicate(slot, bits, mask);
            }
            Reg::H(slot) => self.set_word(slot, &values.map(|value| value as u32 & 0xFFFF), mask),
            Reg::W(slot) => self.set_word(slot, &values.map(|value| value as u32), mask),
            Reg::D(slot) => self.set_double(slot, values, mask),
        }
    }

    /// One lane of [`set_wide`](Self::set_wide).
    pub(crate) fn set_lane(&mut self, register: Reg, lane: usize, value: u64) {
        match register {
            Reg::P(slot) => self.set_predicate(slot, (value as u32 & 1) << lane, 1 << lane),
            Reg::H(slot) => self.words[slot.0 as usize][lane] = value as u32 & 0xFFFF,
            Reg::W(slot) => self.words[slot.0 as usize][lane] = value as u32,
            Reg::D(slot) => self.doubles[slot.0 as usize][lane] = value,
        }
    }

    /// The addresses that the lanes form. A 32-bit base is an address in a window, and its sum wraps in 32 bits.
    pub(crate) fn addresses(&self, address: Address) -> Doubles {
        let offset = address.offset as u64;
        match address.base {
            Base::None => [offset; LANES],
            Base::W(slot) => self.word(slot).map(|base| base.wrapping_add(offset as u32).into()),
            Base::D(slot) => self.double(slot).map(|base| base.wrapping_add(offset)),
        }
    }
}

#[inline(always)]
fn blend<T: Copy>(old: &mut [T; LANES], new: &[T; LANES], mask: u32) {
    if mask == u32::MAX {
        *old = *new;
        return;
    }
    for lane in 0..LANES {
        if mask >> lane & 1 != 0 {
            old[lane] = new[lane];
        }
    }
}

/// The memory that an address of a space is in, and where in it.
///
/// The address of a parameter that `mov` takes is its generic one, and does in `.param` too.
pub(crate) fn resolve(space: Space, address: u64) -> (Space, u64) {
    match space {
        Space::Generic => {}
        // A parameter of a function is in local memory, and named by its generic address.
        Space::Param if (windows::LOCAL..windows::PARAM).contains(&address) => {}
        Space::Param => return (space, address.checked_sub(windows::PARAM).unwrap_or(address)),
        _ => return (space, address),
    }
    for (space, base) in
        [(Space::Shared, windows::SHARED), (Space::Local, windows::LOCAL), (Space::Param, windows::PARAM)]
    {
        if let Some(offset) = address.checked_sub(base)
            && offset < windows::BYTES
        {
            let is_remote = space == Space::Shared && offset >> windows::RANK_SHIFT != 0;
            return (if is_remote { Space::Cluster } else { space }, offset);
        }
    }
    (Space::Global, address)
}
