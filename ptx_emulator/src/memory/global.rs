//! Global memory: allocations that every CTA reads and writes.
//!
//! Global memory is made of relaxed 64-bit atomic words. So the CTAs of a launch run on several threads of the CPU
//! without a data race in Rust. An access of up to 8 aligned bytes is never torn, as on the device, and the atomics of
//! PTX are real ones. Each word has a byte of shadow, whose bits say which bytes of the word were ever written.
//!
//! Allocations lie at multiples of [`ALIGNMENT`] with at least [`GUARD_BYTES`] between them, and no address is given
//! out twice, so that an access past an end or after a free does not land in another allocation.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64, fence};
use std::sync::{Arc, PoisonError, RwLock};

use super::{MemoryError, Nearest, Result, Space, check_alignment};

/// Every allocation of global memory starts at a multiple of this.
pub const ALIGNMENT: u64 = 256;

/// The bytes between two allocations that belong to neither.
pub const GUARD_BYTES: u64 = 4096;

/// The addresses of global memory: below them there is room for the windows of shared and local memory.
pub const GLOBAL_ADDRESSES: std::ops::Range<u64> = 1 << 40..1 << 47;

/// The freed allocations that errors can still name.
const FREED_KEPT: usize = 256;

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

    /// Elements of up to 8 bytes at a multiple of their length together, which is a power of two; `None` where
    /// [`load`](Self::load) is an error.
    #[inline(always)]
    pub(crate) fn load_elements<const BYTES: usize, const COUNT: usize>(
        &self,
        address: u64,
    ) -> Option<[[u8; BYTES]; COUNT]> {
        let (allocation, offset) = self.holding(address, BYTES * COUNT)?;
        let mut elements = [[0; BYTES]; COUNT];
        for (at, element) in elements.iter_mut().enumerate() {
            let start = offset + at * BYTES;
            let (bits, _) = byte_masks(start % 8, BYTES);
            if allocation.written[start / 8].load(Relaxed) & bits != bits {
                return None;
            }
            let word = allocation.words[start / 8].load(Relaxed) >> (8 * (start % 8));
            element.copy_from_slice(&word.to_le_bytes()[..BYTES]);
        }
        Some(elements)
    }

    /// [`store`](Self::store) of elements of up to 8 bytes; false, and nothing done, where it is an error.
    #[inline(always)]
    pub(crate) fn store_elements<const BYTES: usize, const COUNT: usize>(
        &self,
        address: u64,
        elements: &[[u8; BYTES]; COUNT],
    ) -> bool {
        let Some((allocation, offset)) = self.holding(address, BYTES * COUNT) else { return false };
        for chunk in (0..BYTES * COUNT).step_by(8) {
            let (start, count) = (offset + chunk, (BYTES * COUNT).min(8));
            let mut word = [0; 8];
            word[..count].copy_from_slice(&elements.as_flattened()[chunk..][..count]);
            allocation.write_word(start / 8, start % 8, count, u64::from_le_bytes(word) << (8 * (start % 8)));
        }
        true
    }

    /// The allocation that holds an aligned access, and where; none where there is a fault.
    #[inline(always)]
    fn holding(&self, address: u64, bytes: usize) -> Option<(&Allocation, usize)> {
        address.is_multiple_of(bytes as u64).then(|| self.find(address, bytes).ok()).flatten()
    }

    /// Whether one allocation holds all of these bytes.
    ///
    /// # Errors
    /// Where none does.
    pub fn check(&self, address: u64, bytes: usize) -> Result<()> {
        self.find(address, bytes).map(|_| ())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(memory: &GlobalMemory, bytes: u64) -> u64 {
        let address = memory.allocate(bytes).unwrap();
        memory.view().fill(address, bytes, 0).unwrap();
        address
    }

    #[test]
    fn allocations_are_aligned_and_apart() {
        let memory = GlobalMemory::new();
        let addresses: Vec<u64> = [1, 0, 256, 1000, 3].map(|bytes| memory.allocate(bytes).unwrap()).into();
        assert!(addresses.iter().all(|address| address % ALIGNMENT == 0));
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= GUARD_BYTES));
        assert_eq!(memory.used(), 1260);
    }

    #[test]
    fn every_length_comes_back_from_every_offset() {
        let memory = GlobalMemory::new();
        let address = filled(&memory, 64);
        let view = memory.view();
        for bytes in [1usize, 2, 4, 8, 16] {
            for offset in (0..64 - bytes + 1).step_by(bytes) {
                let mut before = [0; 64];
                view.copy_out(address, &mut before).unwrap();
                let stored: Vec<u8> = (0..bytes).map(|byte| (offset + byte * 7 + bytes) as u8).collect();
                view.store(address + offset as u64, &stored).unwrap();
                let mut loaded = vec![0; bytes];
                view.load(address + offset as u64, &mut loaded).unwrap();
                assert_eq!(loaded, stored);
                before[offset..offset + bytes].copy_from_slice(&stored);
                let mut after = [0; 64];
                view.copy_out(address, &mut after).unwrap();
                assert_eq!(after, before, "the neighbours of {bytes} bytes at {offset} stay");
            }
        }
    }

    #[test]
    fn accesses_across_an_end_name_the_allocation() {
        let memory = GlobalMemory::new();
        let (first, second) = (filled(&memory, 10), filled(&memory, 16));
        let view = memory.view();
        let error = view.load(first + 8, &mut [0; 4]).unwrap_err();
        let nearest = Some(Nearest { base: first, bytes: 10, offset: 8, freed: false });
        assert_eq!(error, MemoryError::OutOfBounds { space: Space::Global, address: first + 8, bytes: 4, nearest });
        let error = view.store(second - 4, &[0; 4]).unwrap_err();
        let nearest = Some(Nearest { base: second, bytes: 16, offset: -4, freed: false });
        assert_eq!(error, MemoryError::OutOfBounds { space: Space::Global, address: second - 4, bytes: 4, nearest });
        for address in [0, u64::MAX - 3, first + 10_000] {
            assert!(matches!(view.load(address, &mut [0; 1]), Err(MemoryError::OutOfBounds { .. })));
        }
        assert!(view.fill(second, u64::MAX, 0).is_err());
        assert!(GlobalMemory::new().view().load(first, &mut [0]).unwrap_err().to_string().contains("nothing"));
    }

    #[test]
    fn a_freed_allocation_is_named_and_its_address_not_reused() {
        let memory = GlobalMemory::new();
        let address = filled(&memory, 32);
        let old = memory.view();
        memory.free(address).unwrap();
        assert_eq!(memory.used(), 0);
        assert_ne!(memory.allocate(32).unwrap(), address);
        let error = memory.view().load(address + 4, &mut [0; 4]).unwrap_err();
        assert!(error.to_string().contains("offset 4 of the freed 32 bytes"), "{error}");
        assert!(old.load(address, &mut [0; 4]).is_ok(), "a view keeps what it sees");
        assert!(matches!(memory.free(address), Err(MemoryError::NotAllocated { .. })));
    }

    #[test]
    fn misaligned_accesses_are_refused() {
        let memory = GlobalMemory::new();
        let address = filled(&memory, 64);
        let view = memory.view();
        assert!(matches!(view.load(address + 2, &mut [0; 4]), Err(MemoryError::Misaligned { .. })));
        assert!(matches!(view.store(address + 8, &[0; 16]), Err(MemoryError::Misaligned { .. })));
        assert!(matches!(view.load(address, &mut [0; 12]), Err(MemoryError::Misaligned { .. })));
        assert!(matches!(view.atomic(address + 4, 8, |x| x), Err(MemoryError::Misaligned { .. })));
        assert!(view.copy_in(address + 3, &[1; 13]).is_ok());
    }

    #[test]
    fn the_first_byte_that_nothing_wrote_is_named() {
        let memory = GlobalMemory::new();
        let address = memory.allocate(64).unwrap();
        let view = memory.view();
        for written in 0..16u64 {
            let mut bytes = [9; 16];
            match view.load(address, &mut bytes) {
                Err(MemoryError::Uninitialised { first, .. }) => assert_eq!(first, address + written),
                other => panic!("{other:?} with {written} bytes written"),
            }
            assert!(bytes[..written as usize].iter().all(|&byte| byte == 7), "the bytes are there all the same");
            view.store(address + written, &[7]).unwrap();
        }
        assert!(view.load(address, &mut [0; 16]).is_ok());
        assert!(matches!(view.atomic(address + 16, 4, |x| x + 1), Err(MemoryError::Uninitialised { .. })));
        assert_eq!(view.atomic(address + 16, 4, |x| x + 1), Ok(1), "the atomic has written");
    }

    #[test]
    fn what_is_there_is_all_that_can_be_allocated() {
        let memory = GlobalMemory::with_capacity(100);
        memory.allocate(60).unwrap();
        let error = memory.allocate(41).unwrap_err();
        assert_eq!(error, MemoryError::TooLarge { space: Space::Global, bytes: 41, available: 40 });
        assert!(memory.allocate(u64::MAX).is_err());
        memory.allocate(40).unwrap();
    }

    #[test]
    fn atomics_of_many_threads_all_count() {
        let memory = GlobalMemory::new();
        let address = filled(&memory, 16);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let view = memory.view();
                    for _ in 0..1000 {
                        view.atomic(address, 4, |x| x + 1).unwrap();
                        view.atomic(address + 4, 4, |x| x + 2).unwrap();
                        view.atomic(address + 8, 8, |x| x.wrapping_sub(1)).unwrap();
                    }
                });
            }
        });
        let view = memory.view();
        assert_eq!(view.atomic(address, 4, |x| x), Ok(4000));
        assert_eq!(view.atomic(address + 4, 4, |x| x), Ok(8000));
        assert_eq!(view.atomic(address + 8, 8, |x| x), Ok(4000u64.wrapping_neg()));
    }

    #[test]
    fn stores_of_many_threads_to_one_word_all_stay() {
        let memory = GlobalMemory::new();
        let address = filled(&memory, 8);
        std::thread::scope(|scope| {
            for part in 0..4u64 {
                let view = memory.view();
                scope.spawn(move || {
                    for round in 0..=1000u16 {
                        view.store(address + 2 * part, &(round + part as u16).to_le_bytes()).unwrap();
                    }
                });
            }
        });
        let mut word = [0; 8];
        memory.view().load(address, &mut word).unwrap();
        assert_eq!(word, [1000u16, 1001, 1002, 1003].map(u16::to_le_bytes).concat()[..]);
    }
}
