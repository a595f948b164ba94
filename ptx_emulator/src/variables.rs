//! Variables of a module in global and constant memory, and where they are on a device.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::memory::{GlobalMemory, MemoryError};

/// A variable of a module.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// In constant memory, which is a part of global memory that nothing writes.
    pub(crate) constant: bool,
    /// The first bytes; the others are zero.
    pub(crate) initial: Vec<u8>,
    pub(crate) references: Vec<Reference>,
}

/// The address of a variable in the initial value of another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference {
    /// Where it stands.
    pub(crate) at: u64,
    /// The variable, by its number in the module.
    pub(crate) target: usize,
    pub(crate) addend: i64,
}

/// Where the variables of a module are on a device.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    pub(crate) addresses: Vec<u64>,
    constants: Vec<Range<u64>>,
}

impl Placed {
    pub(crate) fn is_constant(&self, address: u64) -> bool {
        self.constants.iter().any(|range| range.contains(&address))
    }
}

/// The variables of the modules that a device has.
#[derive(Debug, Default)]
pub(crate) struct ModuleVariables {
    placed: Mutex<Vec<OfModule>>,
}

/// The variables of a module, and where they are.
type OfModule = (Weak<Vec<Variable>>, Arc<Placed>);

/// Bytes that are written at a time.
const CHUNK: usize = 1 << 16;

impl ModuleVariables {
    /// The variables of one module. They get their place and their values when they are first asked for. They are freed
    /// when the module is gone and another module asks for its own.
    pub(crate) fn of(&self, memory: &GlobalMemory, module: &Arc<Vec<Variable>>) -> Result<Arc<Placed>, MemoryError> {
        let mut all = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, placed)) = all.iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(module))) {
            return Ok(Arc::clone(placed));
        }
        let (live, dead) = std::mem::take(&mut *all).into_iter().partition(|(known, _)| known.strong_count() > 0);
        *all = live;
        for (_, placed) in dead {
            placed.addresses.iter().try_for_each(|&address| memory.free(address))?;
        }
        let mut placed = Placed::default();
        for variable in &**module {
            let address = memory.allocate(variable.bytes)?;
            placed.addresses.push(address);
            if variable.constant {
                placed.constants.push(address..address + variable.bytes);
            }
        }
        let view = memory.view();
        for (variable, &address) in module.iter().zip(&placed.addresses) {
            view.copy_in(address, &variable.initial)?;
            let mut at = variable.initial.len() as u64;
            while at < variable.bytes {
                let length = (variable.bytes - at).min(CHUNK as u64);
                view.copy_in(address + at, &vec![0; length as usize])?;
                at += length;
            }
            for reference in &variable.references {
                let target = placed.addresses[reference.target].wrapping_add_signed(reference.addend);
                view.copy_in(address + reference.at, &target.to_le_bytes())?;
            }
        }
        let placed = Arc::new(placed);
        all.push((Arc::downgrade(module), Arc::clone(&placed)));
        Ok(placed)
    }
}
