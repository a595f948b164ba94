//! Memory that one CTA or one thread owns.

use super::{MemoryError, Nearest, Result, Space, check_alignment};

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

    /// Elements at a multiple of their length, which is a power of two up to 32 bytes; `None` where
    /// [`load`](Self::load) is an error.
    #[inline(always)]
    pub(crate) fn load_elements<const BYTES: usize, const COUNT: usize>(
        &self,
        address: u32,
    ) -> Option<[[u8; BYTES]; COUNT]> {
        let (start, length) = (address as usize, BYTES * COUNT);
        let elements = self.bytes.get(start..start.checked_add(length)?)?.as_chunks().0;
        let written = self.written[start / 64] >> (start % 64) | !(u64::MAX >> (64 - length));
        (start.is_multiple_of(length) && written == u64::MAX).then(|| std::array::from_fn(|at| elements[at]))
    }

    /// [`store`](Self::store) of elements whose length together is a power of two up to 32 bytes; false, and nothing
    /// done, where it is an error.
    #[inline(always)]
    pub(crate) fn store_elements<const BYTES: usize, const COUNT: usize>(
        &mut self,
        address: u32,
        elements: &[[u8; BYTES]; COUNT],
    ) -> bool {
        let (start, length) = (address as usize, BYTES * COUNT);
        if !start.is_multiple_of(length) || self.bytes.len() < start + length {
            return false;
        }
        self.bytes[start..start + length].copy_from_slice(elements.as_flattened());
        self.written[start / 64] |= u64::MAX >> (64 - length) << (start % 64);
        true
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

    /// Copies bytes, written or not, to another place.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] where there are not as many.
    pub fn copy_within(&mut self, from: u32, to: u32, bytes: u32) -> Result<()> {
        let (source, target) = (self.range(from, bytes as usize)?, self.range(to, bytes as usize)?);
        let is_written = |written: &[u64], at: usize| written[at / 64] >> (at % 64) & 1;
        let copied: Vec<u64> = source.clone().map(|at| is_written(&self.written, at)).collect();
        self.bytes.copy_within(source, target.start);
        for (at, written) in target.zip(copied) {
            self.written[at / 64] = self.written[at / 64] & !(1 << (at % 64)) | written << (at % 64);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_memory_checks_bounds_alignment_and_initialisation() {
        let mut memory = OwnedMemory::new(Space::Shared, 100, 1000).unwrap();
        assert!(matches!(memory.load(96, &mut [0; 8]), Err(MemoryError::OutOfBounds { .. })));
        assert!(matches!(memory.load(2, &mut [0; 4]), Err(MemoryError::Misaligned { .. })));
        memory.copy_in(60, &[5; 9]).unwrap();
        let mut bytes = [0; 9];
        memory.copy_out(60, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 9]);
        for (address, length, expected) in [(60, 10, 69), (59, 2, 59), (0, 100, 0), (64, 36, 69)] {
            match memory.copy_out(address, &mut vec![0; length]) {
                Err(MemoryError::Uninitialised { first, .. }) => assert_eq!(first, expected),
                other => panic!("{other:?}"),
            }
        }
        memory.clear();
        assert!(memory.copy_out(60, &mut bytes).is_err());
        let error = OwnedMemory::new(Space::Shared, 1001, 1000).unwrap_err();
        assert_eq!(error.to_string(), "1001 bytes of shared memory are needed, 1000 are there");
        assert!(OwnedMemory::of(Space::Param, &[1, 2, 3]).load(2, &mut [0]).is_ok());
    }
}
