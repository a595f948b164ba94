//! The shared-memory map of a kernel: named regions, placed one after the other at compile time.
//!
//! ```
//! use layout::smem::SmemLayout;
//! use layout::Arch;
//!
//! const MAP: SmemLayout = SmemLayout::new()
//!     .region("q", 128 * 128, 1024)
//!     .stages("k", 2, 64 * 128, 1024)
//!     .region("barriers", 16, 8)
//!     .assert_fits(Arch::Sm89);
//! const K: layout::smem::SmemRegion = MAP.get("k");
//! assert_eq!(K.stage_offset(1), 128 * 128 + 64 * 128);
//! ```
//!
//! The kernel reads offsets from it and the host the number of bytes to launch with, so the two cannot differ. Offsets
//! count from the base of the dynamic shared memory, which is aligned to [`BASE_ALIGN_BYTES`].

use crate::Arch;
use crate::text::same_text;

/// The alignment of the base of the dynamic shared memory of every kernel: the period of the 128-byte swizzle.
pub const BASE_ALIGN_BYTES: u32 = 1024;

/// The most regions of one map.
const MAX_REGIONS: usize = 20;

/// One named region of a map: one or more stages of the same size, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmemRegion {
    /// What the kernel calls it.
    pub name: &'static str,
    /// Where its first stage starts, from the base of the dynamic shared memory.
    pub offset_bytes: u32,
    /// The size of one stage.
    pub stage_bytes: u32,
    /// The number of stages.
    pub stages: u32,
    /// The alignment of every stage.
    pub align_bytes: u32,
}

impl SmemRegion {
    /// The distance from one stage to the next: the size of a stage rounded up to its alignment.
    pub const fn stage_stride_bytes(self) -> u32 {
        self.stage_bytes.next_multiple_of(self.align_bytes)
    }

    /// Where stage `stage` starts, from the base of the dynamic shared memory.
    #[inline(always)]
    pub const fn stage_offset(self, stage: u32) -> u32 {
        self.offset_bytes + stage * self.stage_stride_bytes()
    }

    /// The end of the last stage.
    pub const fn end_bytes(self) -> u32 {
        if self.stages == 0 { self.offset_bytes } else { self.stage_offset(self.stages - 1) + self.stage_bytes }
    }
}

/// The shared-memory map of a kernel. Every method is evaluated at compile time, where a mistake is a build error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a map is a value: every method returns the extended one"]
pub struct SmemLayout {
    regions: [SmemRegion; MAX_REGIONS],
    len: usize,
}

impl SmemLayout {
    /// A map without regions.
    pub const fn new() -> Self {
        let unused = SmemRegion { name: "", offset_bytes: 0, stage_bytes: 0, stages: 0, align_bytes: 1 };
        SmemLayout { regions: [unused; MAX_REGIONS], len: 0 }
    }

    /// Appends a region of `bytes` bytes.
    ///
    /// # Panics
    /// As [`SmemLayout::stages`].
    pub const fn region(self, name: &'static str, bytes: u32, align_bytes: u32) -> Self {
        self.stages(name, 1, bytes, align_bytes)
    }

    /// Appends a region of `stages` stages of `stage_bytes` bytes, each of them aligned.
    ///
    /// # Panics
    /// If the name is taken, the alignment is not a power of two up to [`BASE_ALIGN_BYTES`], or the map is full.
    pub const fn stages(mut self, name: &'static str, stages: u32, stage_bytes: u32, align_bytes: u32) -> Self {
        assert!(
            align_bytes.is_power_of_two() && align_bytes <= BASE_ALIGN_BYTES,
            "alignment of a shared-memory region"
        );
        assert!(self.len < MAX_REGIONS, "too many shared-memory regions");
        assert!(self.find(name).is_none(), "two shared-memory regions of one name");
        let offset_bytes = self.total_bytes().next_multiple_of(align_bytes);
        self.regions[self.len] = SmemRegion { name, offset_bytes, stage_bytes, stages, align_bytes };
        self.len += 1;
        self
    }

    /// The region called `name`.
    ///
    /// # Panics
    /// If there is none.
    pub const fn get(&self, name: &str) -> SmemRegion {
        match self.find(name) {
            Some(region) => region,
            None => panic!("no shared-memory region of this name"),
        }
    }

    /// All regions, in order of their offsets.
    pub const fn regions(&self) -> &[SmemRegion] {
        self.regions.split_at(self.len).0
    }

    /// The bytes of dynamic shared memory that the map takes.
    pub const fn total_bytes(&self) -> u32 {
        if self.len == 0 { 0 } else { self.regions[self.len - 1].end_bytes() }
    }

    /// Whether a block of `arch` can have this map.
    pub const fn fits(&self, arch: Arch) -> bool {
        self.total_bytes() <= arch.limits().shared_bytes_per_block
    }

    /// The map itself, if a block of `arch` can have it.
    ///
    /// # Panics
    /// If it is too large: used in a constant, it stops the build.
    pub const fn assert_fits(self, arch: Arch) -> Self {
        assert!(self.fits(arch), "the shared-memory map is larger than what a block of this architecture can have");
        self
    }

    const fn find(&self, name: &str) -> Option<SmemRegion> {
        let mut i = 0;
        while i < self.len {
            if same_text(self.regions[i].name, name) {
                return Some(self.regions[i]);
            }
            i += 1;
        }
        None
    }
}

impl Default for SmemLayout {
    fn default() -> Self {
        SmemLayout::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: SmemLayout = SmemLayout::new()
        .region("q", 1000, 16)
        .stages("k", 3, 1000, 1024)
        .region("empty", 0, 8)
        .region("barriers", 24, 8);

    #[test]
    fn regions_are_aligned_and_do_not_overlap() {
        let mut end = 0;
        for region in MAP.regions() {
            for stage in 0..region.stages {
                let start = region.stage_offset(stage);
                assert_eq!(start % region.align_bytes, 0);
                assert!(start >= end, "{} starts at {start}, before {end}", region.name);
                end = start + region.stage_bytes;
            }
        }
        assert_eq!(MAP.total_bytes(), end);
    }

    #[test]
    fn offsets_are_the_smallest_aligned_ones() {
        assert_eq!(MAP.get("q").offset_bytes, 0);
        assert_eq!(MAP.get("k").offset_bytes, 1024);
        assert_eq!(MAP.get("k").stage_offset(2), 3 * 1024);
        assert_eq!(MAP.get("barriers").offset_bytes, 4072);
        assert_eq!(MAP.total_bytes(), 4096);
        assert_eq!(SmemLayout::new().total_bytes(), 0);
    }

    #[test]
    fn the_limit_of_the_architecture_is_exact() {
        for arch in Arch::ALL {
            let limit = arch.limits().shared_bytes_per_block;
            assert!(SmemLayout::new().region("all", limit, 16).fits(arch));
            assert!(!SmemLayout::new().region("all", limit + 1, 16).fits(arch));
        }
    }

    #[test]
    #[should_panic = "two shared-memory regions of one name"]
    fn a_name_is_used_once() {
        let _ = MAP.region("k", 16, 16);
    }

    #[test]
    #[should_panic = "no shared-memory region of this name"]
    fn an_unknown_name_is_refused() {
        MAP.get("v");
    }

    #[test]
    #[should_panic = "larger than what a block"]
    fn an_oversized_map_is_refused() {
        let _ = MAP.region("v", 1 << 20, 16).assert_fits(Arch::Sm90a);
    }
}
