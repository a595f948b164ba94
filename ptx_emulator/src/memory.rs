//! Memory of the emulated device: global memory, which every CTA shares, and memory that one CTA or one thread owns.
//!
//! ```
//! use ptx_emulator::memory::GlobalMemory;
//!
//! let memory = GlobalMemory::new();
//! let address = memory.allocate(64)?;
//! let view = memory.view();
//! view.store(address, &7u32.to_le_bytes())?;
//! let mut word = [0; 4];
//! view.load(address, &mut word)?;
//! assert!(view.load(address + 64, &mut word).is_err());
//! # Ok::<(), ptx_emulator::memory::MemoryError>(())
//! ```
//!
//! Global memory is made of relaxed 64-bit atomic words, so the CTAs of a launch run on several threads of the CPU without
//! a data race in Rust, an access of up to 8 aligned bytes is never torn, as on the device, and the atomics of PTX are
//! real ones. Each word has a byte of shadow whose bits say which of its bytes were ever written.
//!
//! Allocations lie at multiples of [`ALIGNMENT`] with at least [`GUARD_BYTES`] between them, and no address is given out
//! twice, so that an access past an end or after a free does not land in another allocation.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64, fence};
use std::sync::{Arc, PoisonError, RwLock};

/// Every allocation of global memory starts at a multiple of this.
pub const ALIGNMENT: u64 = 256;

/// The bytes between two allocations that belong to neither.
pub const GUARD_BYTES: u64 = 4096;

/// The addresses of global memory: below them there is room for the windows of shared and local memory.
pub const GLOBAL_ADDRESSES: std::ops::Range<u64> = 1 << 40..1 << 47;

/// The freed allocations that errors can still name.
const FREED_KEPT: usize = 256;

/// A state space of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory of the device.
    Global,
    /// Memory of a CTA.
    Shared,
    /// Memory of a thread.
    Local,
    /// The parameters of a kernel.
    Param,
    /// Read-only memory of a module.
    Const,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "parameter",
            Space::Const => "constant",
        })
    }
}

/// The allocation next to an address that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearest {
    /// Its first address.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// The address of the access less `base`.
    pub offset: i64,
    /// It was freed before the access.
    pub freed: bool,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let freed = if self.freed { "freed " } else { "" };
        write!(f, "offset {} of the {freed}{} bytes at {:#x}", self.offset, self.bytes, self.base)
    }
}

/// `Display` of what may be known about the place of an error.
struct Place<'a>(&'a Option<Nearest>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(nearest) => write!(f, "{nearest}"),
            None => f.write_str("nothing is allocated"),
        }
    }
}

/// Why an access, an allocation or a free is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Some of the bytes belong to no allocation.
    #[error("{bytes} bytes of {space} memory at {address:#x} are out of bounds ({})", Place(nearest))]
    OutOfBounds {
        /// Where.
        space: Space,
        /// The first byte of the access.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The allocation next to it.
        nearest: Option<Nearest>,
    },
    /// The address is no multiple of the length.
    #[error("{bytes} bytes of {space} memory at {address:#x} are not aligned to their length")]
    Misaligned {
        /// Where.
        space: Space,
        /// The first byte of the access.
        address: u64,
        /// Its length.
        bytes: u64,
    },
    /// A load of bytes that nothing wrote.
    #[error(
        "{bytes} bytes of {space} memory at {address:#x} are read, and nothing wrote byte {first:#x} ({})",
        Place(nearest)
    )]
    Uninitialised {
        /// Where.
        space: Space,
        /// The first byte of the access.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The first address that nothing wrote.
        first: u64,
        /// The allocation it is in.
        nearest: Option<Nearest>,
    },
    /// More memory is asked for than there is.
    #[error("{bytes} bytes of {space} memory are needed, {available} are there")]
    TooLarge {
        /// Where.
        space: Space,
        /// What is asked for.
        bytes: u64,
        /// What there is.
        available: u64,
    },
    /// A free of an address that is not the start of an allocation.
    #[error("{address:#x} is not the start of an allocation ({})", Place(nearest))]
    NotAllocated {
        /// The address.
        address: u64,
        /// The allocation next to it.
        nearest: Option<Nearest>,
    },
}

type Result<T> = std::result::Result<T, MemoryError>;

/// Fails if an access of `bytes` at `address` is not aligned to its length.
fn check_alignment(space: Space, address: u64, bytes: usize) -> Result<()> {
    if bytes.is_power_of_two() && address & (bytes as u64 - 1) == 0 {
        return Ok(());
    }
    Err(MemoryError::Misaligned { space, address, bytes: bytes as u64 })
}

/// The global memory of a device. Every method may be called from any thread.
#[derive(Debug)]
pub struct GlobalMemory {
    state: RwLock<State>,
    capacity: u64,
}

#[derive(Debug)]
struct State {
    /// By address.
    live: Arc<Vec<Arc<Allocation>>>,
    /// Address and length of what was freed last.
    freed: Arc<VecDeque<(u64, u64)>>,
    next: u64,
    used: u64,
}

impl GlobalMemory {
    /// The memory of a card of 80 GiB, of which only what is written takes space on the host.
    pub fn new() -> Self {
        GlobalMemory::with_capacity(80 << 30)
    }

    /// Memory of which `capacity` bytes can be allocated at one time.
    pub fn with_capacity(capacity: u64) -> Self {
        let state = State { live: Arc::default(), freed: Arc::default(), next: GLOBAL_ADDRESSES.start, used: 0 };
        GlobalMemory { state: RwLock::new(state), capacity }
    }

    /// The bytes that can be allocated at one time.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The bytes that are allocated now.
    pub fn used(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).used
    }

    /// Allocates `bytes`, none of them written, and returns their address. Zero bytes get an address of their own.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let available = (self.capacity - state.used).min(GLOBAL_ADDRESSES.end - state.next);
        if bytes.saturating_add(GUARD_BYTES + ALIGNMENT) > available.saturating_add(GUARD_BYTES + ALIGNMENT) {
            return Err(MemoryError::TooLarge { space: Space::Global, bytes, available });
        }
        let base = state.next;
        state.next = (base + bytes + GUARD_BYTES).next_multiple_of(ALIGNMENT);
        state.used += bytes;
        // The new address is the highest, so the order by address stays.
        Arc::make_mut(&mut state.live).push(Arc::new(Allocation::new(base, bytes)));
        Ok(base)
    }

    /// Frees the allocation that starts at `address`. Views made before still see it.
    pub fn free(&self, address: u64) -> Result<()> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let Ok(index) = state.live.binary_search_by_key(&address, |allocation| allocation.base) else {
            return Err(MemoryError::NotAllocated { address, nearest: nearest(&state.live, &state.freed, address) });
        };
        let allocation = Arc::make_mut(&mut state.live).remove(index);
        state.used -= allocation.bytes;
        let freed = Arc::make_mut(&mut state.freed);
        if freed.len() == FREED_KEPT {
            freed.pop_front();
        }
        freed.push_back((allocation.base, allocation.bytes));
        Ok(())
    }

    /// The memory as it is allocated now, for accesses without a lock: one for each launch, or for each CTA of it.
    pub fn view(&self) -> GlobalView {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        GlobalView { live: Arc::clone(&state.live), freed: Arc::clone(&state.freed), recent: Cell::new(0) }
    }
}

impl Default for GlobalMemory {
    fn default() -> Self {
        GlobalMemory::new()
    }
}

/// One allocation: its words, and for each a byte whose bit `i` says that byte `i` of the word was written.
#[derive(Debug)]
struct Allocation {
    base: u64,
    bytes: u64,
    words: Box<[AtomicU64]>,
    written: Box<[AtomicU8]>,
}

/// The bits of the bytes `first..first + count` of a word in its shadow, and the same bytes in the word.
fn byte_masks(first: usize, count: usize) -> (u8, u64) {
    let bits = ((1u16 << count) - 1) << first;
    let bytes = if count == 8 { u64::MAX } else { ((1 << (8 * count)) - 1) << (8 * first) };
    (bits as u8, bytes)
}

impl Allocation {
    fn new(base: u64, bytes: u64) -> Self {
        let words = bytes.div_ceil(8) as usize;
        // SAFETY: atomic integers have no invalid bit patterns, so zero bytes are values of them.
        let words_of_zero = unsafe { Box::<[AtomicU64]>::new_zeroed_slice(words).assume_init() };
        // SAFETY: as above.
        let written = unsafe { Box::<[AtomicU8]>::new_zeroed_slice(words).assume_init() };
        Allocation { base, bytes, words: words_of_zero, written }
    }

    /// Calls `piece` with (word, first byte in it, range of the access) for each word of an access.
    fn pieces(offset: usize, bytes: usize, mut piece: impl FnMut(usize, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < bytes {
            let at = offset + done;
            let count = (8 - at % 8).min(bytes - done);
            piece(at / 8, at % 8, done..done + count);
            done += count;
        }
    }

    /// Reads from `offset` and returns the first byte of the access that nothing wrote.
    fn read(&self, offset: usize, into: &mut [u8]) -> Option<usize> {
        let mut unwritten = None;
        Self::pieces(offset, into.len(), |word, first, range| {
            let (bits, _) = byte_masks(first, range.len());
            let missing = !self.written[word].load(Relaxed) & bits;
            if missing != 0 && unwritten.is_none() {
                unwritten = Some(range.start + missing.trailing_zeros() as usize - first);
            }
            let bytes = self.words[word].load(Relaxed).to_le_bytes();
            into[range.clone()].copy_from_slice(&bytes[first..first + range.len()]);
        });
        unwritten
    }

    fn write(&self, offset: usize, from: &[u8]) {
        Self::pieces(offset, from.len(), |word, first, range| {
            let mut bytes = [0; 8];
            bytes[first..first + range.len()].copy_from_slice(&from[range.clone()]);
            self.write_word(word, first, range.len(), u64::from_le_bytes(bytes));
        });
    }

    /// Replaces `count` bytes of a word, at their place in `value`, and leaves its other bytes to their own writers.
    fn write_word(&self, word: usize, first: usize, count: usize, value: u64) {
        let (bits, mask) = byte_masks(first, count);
        if count == 8 {
            self.words[word].store(value, Relaxed);
        } else {
            self.words[word].update(Relaxed, Relaxed, |old| old & !mask | value);
        }
        self.mark_written(word, bits);
    }

    fn mark_written(&self, word: usize, bits: u8) {
        if self.written[word].load(Relaxed) & bits != bits {
            self.written[word].fetch_or(bits, Relaxed);
        }
    }
}

/// Global memory as it was allocated at one moment. Its loads and stores take no lock.
///
/// Two launches, or two CTAs, that use it at the same time see each other's stores, as on the device.
#[derive(Debug, Clone)]
pub struct GlobalView {
    live: Arc<Vec<Arc<Allocation>>>,
    freed: Arc<VecDeque<(u64, u64)>>,
    /// The index of the allocation of the last access: most accesses are to the one before.
    recent: Cell<usize>,
}

impl GlobalView {
    /// The allocation that holds all of the bytes, and their offset in it.
    fn find(&self, address: u64, bytes: usize) -> Result<(&Allocation, usize)> {
        let holds = |allocation: &Allocation| {
            address
                .checked_sub(allocation.base)
                .is_some_and(|offset| offset.checked_add(bytes as u64).is_some_and(|end| end <= allocation.bytes))
        };
        if let Some(allocation) = self.live.get(self.recent.get())
            && holds(allocation)
        {
            return Ok((allocation, (address - allocation.base) as usize));
        }
        let after = self.live.partition_point(|allocation| allocation.base <= address);
        if let Some(index) = after.checked_sub(1)
            && holds(&self.live[index])
        {
            self.recent.set(index);
            return Ok((&self.live[index], (address - self.live[index].base) as usize));
        }
        let nearest = nearest(&self.live, &self.freed, address);
        Err(MemoryError::OutOfBounds { space: Space::Global, address, bytes: bytes as u64, nearest })
    }

    /// Reads as many bytes as `into` has. Where some of them were never written the error says so, and `into` has
    /// their value, zero, all the same.
    ///
    /// The address must be a multiple of the length, which is a power of two.
    #[inline]
    pub fn load(&self, address: u64, into: &mut [u8]) -> Result<()> {
        check_alignment(Space::Global, address, into.len())?;
        self.copy_out(address, into)
    }

    /// Writes `bytes`. The address must be a multiple of their number, which is a power of two.
    #[inline]
    pub fn store(&self, address: u64, bytes: &[u8]) -> Result<()> {
        check_alignment(Space::Global, address, bytes.len())?;
        self.copy_in(address, bytes)
    }

    /// [`load`](Self::load) for any address and length.
    pub fn copy_out(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let (allocation, offset) = self.find(address, into.len())?;
        let Some(first) = allocation.read(offset, into) else { return Ok(()) };
        Err(MemoryError::Uninitialised {
            space: Space::Global,
            address,
            bytes: into.len() as u64,
            first: address + first as u64,
            nearest: nearest(&self.live, &self.freed, address),
        })
    }

    /// [`store`](Self::store) for any address and length.
    pub fn copy_in(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let (allocation, offset) = self.find(address, bytes.len())?;
        allocation.write(offset, bytes);
        Ok(())
    }

    /// Sets `bytes` bytes from `address` to `value`.
    pub fn fill(&self, address: u64, bytes: u64, value: u8) -> Result<()> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (allocation, offset) = self.find(address, length)?;
        let value = u64::from_le_bytes([value; 8]);
        Allocation::pieces(offset, length, |word, first, range| {
            let (_, mask) = byte_masks(first, range.len());
            allocation.write_word(word, first, range.len(), value & mask);
        });
        Ok(())
    }

    /// Replaces the `bytes` (2, 4 or 8) at `address` by `new` of them in one step, and returns what they were.
    ///
    /// `new` may be called more than once. The order of what this thread does around it is kept.
    ///
    /// # Panics
    /// If `bytes` is more than 8.
    pub fn atomic(&self, address: u64, bytes: usize, mut new: impl FnMut(u64) -> u64) -> Result<u64> {
        assert!(bytes <= 8, "an atomic has at most 8 bytes, not {bytes}");
        check_alignment(Space::Global, address, bytes)?;
        let (allocation, offset) = self.find(address, bytes)?;
        let (word, first) = (offset / 8, offset % 8);
        let (bits, mask) = byte_masks(first, bytes);
        let replaced = |old: u64| old & !mask | (new((old & mask) >> (8 * first)) << (8 * first)) & mask;
        let old = allocation.words[word].update(AcqRel, Relaxed, replaced);
        let missing = !allocation.written[word].load(Relaxed) & bits;
        allocation.mark_written(word, bits);
        if missing == 0 {
            return Ok((old & mask) >> (8 * first));
        }
        Err(MemoryError::Uninitialised {
            space: Space::Global,
            address,
            bytes: bytes as u64,
            first: address + u64::from(missing.trailing_zeros()) - first as u64,
            nearest: nearest(&self.live, &self.freed, address),
        })
    }

    /// Orders the accesses before it and after it, as `fence` and `membar` do.
    pub fn fence(&self) {
        fence(SeqCst);
    }

    /// The allocation next to `address`, live or freed.
    pub fn nearest(&self, address: u64) -> Option<Nearest> {
        nearest(&self.live, &self.freed, address)
    }
}

fn nearest(live: &[Arc<Allocation>], freed: &VecDeque<(u64, u64)>, address: u64) -> Option<Nearest> {
    let live = live.iter().map(|allocation| (allocation.base, allocation.bytes, false));
    let freed = freed.iter().map(|&(base, bytes)| (base, bytes, true));
    let distance = |base: u64, bytes: u64| {
        if address < base { base - address } else { address.saturating_sub(base + bytes.saturating_sub(1)) }
    };
    let (base, bytes, freed) = live.chain(freed).min_by_key(|&(base, bytes, _)| distance(base, bytes))?;
    Some(Nearest { base, bytes, offset: address.wrapping_sub(base) as i64, freed })
}

/// Memory that one CTA or one thread owns, from address 0: shared, local, parameters.
#[derive(Debug, Clone)]
pub struct OwnedMemory {
    space: Space,
    bytes: Vec<u8>,
    /// Bit `i % 64` of word `i / 64` says that byte `i` was written.
    written: Vec<u64>,
}

impl OwnedMemory {
    /// `bytes` of memory, none of them written.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`] if there are not that many.
    pub fn new(space: Space, bytes: u32, available: u32) -> Result<Self> {
        if bytes > available {
            return Err(MemoryError::TooLarge { space, bytes: bytes.into(), available: available.into() });
        }
        let words = bytes.div_ceil(64) as usize;
        Ok(OwnedMemory { space, bytes: vec![0; bytes as usize], written: vec![0; words] })
    }

    /// Memory that holds `bytes`.
    pub fn of(space: Space, bytes: &[u8]) -> Self {
        let written = vec![u64::MAX; bytes.len().div_ceil(64)];
        OwnedMemory { space, bytes: bytes.to_vec(), written }
    }

    /// Makes it as it was when it was new.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
        self.written.fill(0);
    }

    /// Its length.
    pub fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads as many bytes as `into` has. Where some of them were never written the error says so, and `into` has
    /// their value, zero, all the same.
    ///
    /// The address must be a multiple of the length, which is a power of two.
    #[inline]
    pub fn load(&self, address: u32, into: &mut [u8]) -> Result<()> {
        check_alignment(self.space, address.into(), into.len())?;
        self.copy_out(address, into)
    }

    /// Writes `bytes`. The address must be a multiple of their number, which is a power of two.
    #[inline]
    pub fn store(&mut self, address: u32, bytes: &[u8]) -> Result<()> {
        check_alignment(self.space, address.into(), bytes.len())?;
        self.copy_in(address, bytes)
    }

    /// [`load`](Self::load) for any address and length.
    #[inline]
    pub fn copy_out(&self, address: u32, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.bytes[self.range(address, into.len())?]);
        match self.first_unwritten(address as usize, into.len()) {
            None => Ok(()),
            Some(first) => Err(MemoryError::Uninitialised {
                space: self.space,
                address: address.into(),
                bytes: into.len() as u64,
                first: first as u64,
                nearest: Some(self.place(address)),
            }),
        }
    }

    /// [`store`](Self::store) for any address and length.
    #[inline]
    pub fn copy_in(&mut self, address: u32, bytes: &[u8]) -> Result<()> {
        let range = self.range(address, bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        let mut at = address as usize;
        let end = at + bytes.len();
        while at < end {
            let count = (64 - at % 64).min(end - at);
            self.written[at / 64] |= u64::MAX >> (64 - count) << (at % 64);
            at += count;
        }
        Ok(())
    }

    /// The first of the bytes that nothing wrote, by its address.
    fn first_unwritten(&self, address: usize, bytes: usize) -> Option<usize> {
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let missing = !self.written[at / 64] >> (at % 64) & (u64::MAX >> (64 - count));
            if missing != 0 {
                return Some(at + missing.trailing_zeros() as usize);
            }
            at += count;
        }
        None
    }

    #[inline]
    fn range(&self, address: u32, bytes: usize) -> Result<std::ops::Range<usize>> {
        let start = address as usize;
        match start.checked_add(bytes) {
            Some(end) if end <= self.bytes.len() => Ok(start..end),
            _ => Err(MemoryError::OutOfBounds {
                space: self.space,
                address: address.into(),
                bytes: bytes as u64,
                nearest: Some(self.place(address)),
            }),
        }
    }

    fn place(&self, address: u32) -> Nearest {
        Nearest { base: 0, bytes: self.bytes.len() as u64, offset: address.into(), freed: false }
    }
}
