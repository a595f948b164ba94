//! Matrix descriptors: how `wgmma` is told where in shared memory an operand lies.
//!
//! An [`Operand`] says how a tile is stored, and is the only source of [`Descriptor`]s. A tile consists of rows of
//! [`Swizzle::row_bytes`], in panels that follow each other ([`Swizzle::tile_offset`]). A TMA box of one panel's width
//! leaves a panel just so. What a row is depends on the order:
//!
//! | order | rows | columns | one step along K, 32 bytes of it, moves by |
//! | --- | --- | --- | --- |
//! | [`Major::K`] | of A or columns of B | along K | 32 bytes, and to the next panel at the end of a row |
//! | [`Major::Mn`], 16-bit types | along K | rows of A or columns of B | 16 rows |
//!
//! The hardware walks cores of 8 rows of 16 bytes ("Canonical layouts" of the PTX ISA). A descriptor has two distances.
//! The stride offset is the distance between cores along the rows of a panel, the leading offset the distance between
//! panels. Without swizzle the rows of a core are adjacent, and for [`Major::Mn`] the two distances change places. With
//! a swizzled K-major operand one instruction stays inside a panel, and the leading offset is not read.
//!
//! ```
//! use layout::descriptor::{Descriptor, Major, Operand};
//! use layout::{Dtype, Swizzle};
//!
//! const A: Operand = Operand::new(Dtype::F16, Major::K, Swizzle::B128, 128);
//! const SECOND_TILE: Descriptor = A.descriptor(A.tile_bytes(64)); // a misaligned offset does not compile
//! assert_eq!(SECOND_TILE.stride_bytes(), 1024);
//! ```
//!
//! Swizzles permute the bits of addresses, so every tile starts on a multiple of [`Swizzle::period_bytes`]. The field
//! of a descriptor for other starts, the base offset, is 0.

use crate::dtype::Dtype;
use crate::swizzle::Swizzle;

/// The bytes along K that one `wgmma` takes: 16 elements of 16 bits, 8 of tf32, 32 of 8 bits.
pub const K_STEP_BYTES: u32 = 32;

/// The dimension along which the elements of an operand are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Major {
    /// Along K: A is row-major, B column-major.
    K,
    /// Along M or N: A is column-major, B row-major. 16-bit types only.
    Mn,
}

/// How a matrix operand of `wgmma` is stored in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    dtype: Dtype,
    major: Major,
    swizzle: Swizzle,
    rows: u32,
}

impl Operand {
    /// A tile of `rows` rows, which are along M or N if it is K-major and along K if it is MN-major. [`Dtype::F32`]
    /// stands for tf32.
    ///
    /// # Panics
    /// If the rows do not fill cores of 8, there are more than 256 of them, or the type has no such order. Used in a
    /// constant, it stops the build.
    #[must_use]
    pub const fn new(dtype: Dtype, major: Major, swizzle: Swizzle, rows: u32) -> Operand {
        assert!(rows > 0 && rows.is_multiple_of(8) && rows <= 256, "rows of a wgmma operand");
        assert!(matches!(major, Major::K) || dtype.size_bytes() == 2, "only 16-bit operands can be MN-major");
        Operand { dtype, major, swizzle, rows }
    }

    /// An operand A that is in registers, of which only the type counts.
    #[must_use]
    pub const fn in_registers(dtype: Dtype) -> Operand {
        Operand { dtype, major: Major::K, swizzle: Swizzle::None, rows: 0 }
    }

    /// The type of its elements.
    #[must_use]
    pub const fn dtype(self) -> Dtype {
        self.dtype
    }

    /// The dimension along which its elements are adjacent.
    #[must_use]
    pub const fn major(self) -> Major {
        self.major
    }

    /// How it is swizzled.
    #[must_use]
    pub const fn swizzle(self) -> Swizzle {
        self.swizzle
    }

    /// Whether it is in registers.
    #[must_use]
    pub const fn is_in_registers(self) -> bool {
        self.rows == 0
    }

    /// The elements along K that one `wgmma` takes.
    #[must_use]
    pub const fn k_step_elems(self) -> u32 {
        K_STEP_BYTES / self.element_bytes()
    }

    /// The size of a tile of `columns` columns, whole panels of it.
    #[must_use]
    pub const fn tile_bytes(self, columns: u32) -> u32 {
        (columns * self.element_bytes()).next_multiple_of(self.swizzle.row_bytes()) * self.rows
    }

    /// Where element `mn`, `k` is stored, from the start of the tile.
    #[inline(always)]
    #[must_use]
    pub const fn offset_bytes(self, mn: u32, k: u32) -> u32 {
        match self.major {
            Major::K => self.swizzle.tile_offset(mn, k * self.element_bytes(), self.rows),
            Major::Mn => self.swizzle.tile_offset(k, mn * self.element_bytes(), self.rows),
        }
    }

    /// The distance between descriptors from the start of the tile to row (or column) `mn` of it: to the part of
    /// one warpgroup among several.
    ///
    /// # Panics
    /// If `mn` is not the start of a core or, in an MN-major operand, of a panel.
    #[must_use]
    pub const fn mn_offset_bytes(self, mn: u32) -> u32 {
        let unit = match self.major {
            Major::K => 8,
            Major::Mn => self.swizzle.row_bytes() / self.element_bytes(),
        };
        assert!(mn.is_multiple_of(unit), "no descriptor can start in the middle of a core");
        self.offset_bytes(mn, 0)
    }

    /// The distance between descriptors from the start of the tile to step `k_step` along K.
    #[inline(always)]
    #[must_use]
    pub const fn k_step_offset_bytes(self, k_step: u32) -> u32 {
        self.offset_bytes(0, k_step * self.k_step_elems())
    }

    /// The descriptor of the tile that starts `offset_bytes` bytes from the base of the dynamic shared memory, or at
    /// this address.
    ///
    /// ```compile_fail
    /// # use layout::descriptor::{Descriptor, Major, Operand};
    /// # use layout::{Dtype, Swizzle};
    /// const A: Operand = Operand::new(Dtype::F16, Major::K, Swizzle::B128, 128);
    /// const MISALIGNED: Descriptor = A.descriptor(512);
    /// ```
    ///
    /// # Panics
    /// If the offset is not a multiple of [`Swizzle::period_bytes`], or the operand is in registers. Used in a
    /// constant, it stops the build.
    #[must_use]
    pub const fn descriptor(self, offset_bytes: u32) -> Descriptor {
        assert!(!self.is_in_registers(), "an operand in registers has no descriptor");
        assert!(
            offset_bytes.is_multiple_of(self.swizzle.period_bytes()),
            "a wgmma operand starts on a multiple of the period of its swizzle"
        );
        let panel = self.rows * self.swizzle.row_bytes();
        let core = 8 * self.swizzle.row_bytes();
        let (leading, stride) = match (self.swizzle, self.major) {
            (Swizzle::None, Major::Mn) => (core, panel),
            // The value that the hardware takes for granted.
            (Swizzle::B32 | Swizzle::B64 | Swizzle::B128, Major::K) => (16, core),
            _ => (panel, core),
        };
        Descriptor::new(offset_bytes, leading, stride, 0, self.swizzle)
    }

    const fn element_bytes(self) -> u32 {
        self.dtype.size_bytes() as u32
    }
}

/// A matrix descriptor, the 64-bit operand of `wgmma` (PTX ISA, "Matrix Descriptor Format").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Descriptor(u64);

/// Addresses and distances are stored in units of this many bytes,
const UNIT_BYTES: u32 = 16;
/// and in this many bits.
const FIELD_BITS: u32 = 14;

impl Descriptor {
    /// The descriptor with these fields: start address, leading and stride offset, and `(address >> 7) % 8` of where
    /// the swizzle's pattern starts, if that is not a multiple of its period.
    const fn new(start_bytes: u32, leading_bytes: u32, stride_bytes: u32, base_offset: u32, swizzle: Swizzle) -> Self {
        assert!(base_offset < 8, "base offset of a matrix descriptor");
        let mode = match swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        Descriptor(
            field(start_bytes)
                | field(leading_bytes) << 16
                | field(stride_bytes) << 32
                | (base_offset as u64) << 49
                | mode << 62,
        )
    }

    /// The operand of the instruction.
    #[inline(always)]
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// The descriptor that an instruction is given, whoever made it.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Descriptor {
        Descriptor(raw)
    }

    /// Where the hardware finds element `mn`, `k` of the K step that this describes, from nothing but the fields: the
    /// canonical layouts of the PTX ISA.
    ///
    /// The swizzle acts on bits of the address, less the base offset, which says where its pattern starts.
    #[must_use]
    pub const fn element_address(self, major: Major, element_bytes: u32, mn: u32, k: u32) -> u32 {
        let (leading, stride) = (self.leading_bytes(), self.stride_bytes());
        // Elements of 16 bytes, the unit in which the ISA gives the layouts.
        let unit = UNIT_BYTES / element_bytes;
        let (mn_bytes, k_bytes) = (mn * element_bytes, k * element_bytes);
        let row_bytes = self.swizzle().row_bytes();
        let plain = match (major, self.swizzle()) {
            (Major::K, Swizzle::None) => mn / 8 * stride + mn % 8 * 16 + k / unit * leading + k_bytes % 16,
            (Major::K, _) => mn / 8 * stride + mn % 8 * row_bytes + k_bytes,
            (Major::Mn, Swizzle::None) => mn / unit * stride + k / 8 * leading + k % 8 * 16 + mn_bytes % 16,
            (Major::Mn, _) => {
                mn_bytes / row_bytes * leading + k / 8 * stride + k % 8 * row_bytes + mn_bytes % row_bytes
            }
        };
        let address = self.start_bytes() + plain;
        let pattern_row = (address >> 7).wrapping_sub(self.base_offset());
        address ^ (pattern_row & (row_bytes / UNIT_BYTES - 1)) << 4
    }

    /// The descriptor of the same tile `bytes` bytes further on; `bytes` is a multiple of 16.
    ///
    /// Adding the base of the dynamic shared memory turns the descriptor of an offset into that of an address. Only
    /// distances that leave the swizzle's pattern in place make sense: multiples of its period, and those that
    /// [`Operand`] gives. Only the bits of an address below 2^18 count. The upper bits are the rank of the block in its
    /// cluster, and would change the fields behind the address.
    #[inline(always)]
    #[must_use]
    pub const fn offset(self, bytes: u32) -> Descriptor {
        Descriptor(self.0.wrapping_add((bytes % (UNIT_BYTES << FIELD_BITS) / UNIT_BYTES) as u64))
    }

    /// Where the operand starts.
    #[must_use]
    pub const fn start_bytes(self) -> u32 {
        self.field(0)
    }

    /// The leading offset.
    #[must_use]
    pub const fn leading_bytes(self) -> u32 {
        self.field(16)
    }

    /// The stride offset.
    #[must_use]
    pub const fn stride_bytes(self) -> u32 {
        self.field(32)
    }

    /// The base offset, from 0 to 7.
    #[must_use]
    pub const fn base_offset(self) -> u32 {
        (self.0 >> 49) as u32 % 8
    }

    /// The swizzle.
    #[must_use]
    pub const fn swizzle(self) -> Swizzle {
        match self.0 >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        }
    }

    const fn field(self, shift: u32) -> u32 {
        ((self.0 >> shift) as u32 & ((1 << FIELD_BITS) - 1)) * UNIT_BYTES
    }
}

/// An address or distance as a field of a descriptor.
const fn field(bytes: u32) -> u64 {
    assert!(bytes.is_multiple_of(UNIT_BYTES), "a matrix descriptor counts in units of 16 bytes");
    assert!(bytes < UNIT_BYTES << FIELD_BITS, "an address or distance beyond the reach of a matrix descriptor");
    (bytes / UNIT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [Dtype; 5] = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::E4M3, Dtype::E5M2];

    /// Every operand with these numbers of rows.
    fn operands(rows: &'static [u32]) -> impl Iterator<Item = Operand> {
        let majors = |dtype: Dtype| if dtype.size_bytes() == 2 { &[Major::K, Major::Mn][..] } else { &[Major::K] };
        TYPES.into_iter().flat_map(move |dtype| {
            majors(dtype).iter().flat_map(move |&major| {
                let of_swizzle = move |swizzle| rows.iter().map(move |&rows| Operand::new(dtype, major, swizzle, rows));
                Swizzle::ALL.into_iter().flat_map(of_swizzle)
            })
        })
    }

    #[test]
    fn the_hardware_finds_every_element_where_the_tile_has_it() {
        for operand in operands(&[8, 24, 64, 128, 256]) {
            let step = operand.k_step_elems();
            // As many columns as fill two panels, or three steps if those are more.
            let columns = (2 * operand.swizzle().row_bytes() / operand.element_bytes()).max(3 * step);
            let (mn_extent, k_extent) = match operand.major() {
                Major::K => (operand.rows, columns),
                Major::Mn => (columns, operand.rows),
            };
            let start = 3 * operand.swizzle().period_bytes();
            let tile = operand.descriptor(start);
            for k in 0..k_extent / step * step {
                let descriptor = tile.offset(operand.k_step_offset_bytes(k / step));
                for mn in 0..mn_extent {
                    let found = descriptor.element_address(operand.major(), operand.element_bytes(), mn, k % step);
                    assert_eq!(found, start + operand.offset_bytes(mn, k), "{operand:?} mn {mn} k {k}");
                }
            }
        }
    }

    #[test]
    fn the_part_of_a_warpgroup_starts_at_its_rows() {
        for operand in operands(&[128]) {
            let (first, tile) = (64, operand.descriptor(0));
            for k in 0..operand.k_step_elems() {
                for mn in 0..64 {
                    let descriptor = tile.offset(operand.mn_offset_bytes(first));
                    let found = descriptor.element_address(operand.major(), operand.element_bytes(), mn, k);
                    assert_eq!(found, operand.offset_bytes(first + mn, k), "{operand:?} mn {mn} k {k}");
                }
            }
        }
    }

    #[test]
    fn the_base_offset_moves_the_pattern() {
        // A tile one row of 128 bytes behind a period, whose pattern starts with it.
        let at = |mn| Descriptor::new(128, 16, 1024, 1, Swizzle::B128).element_address(Major::K, 2, mn, 0);
        for mn in 0..8 {
            assert_eq!(at(mn), 128 + ((mn * 128) | (mn * 16)));
        }
    }

    #[test]
    fn fields_are_where_the_isa_has_them() {
        let descriptor = Descriptor::new(0x12340, 0x2000, 0x400, 5, Swizzle::B128);
        assert_eq!(descriptor.as_raw(), 1 << 62 | 5 << 49 | 0x40 << 32 | 0x200 << 16 | 0x1234);
        assert_eq!(descriptor.start_bytes(), 0x12340);
        assert_eq!((descriptor.leading_bytes(), descriptor.stride_bytes()), (0x2000, 0x400));
        assert_eq!((descriptor.base_offset(), descriptor.swizzle()), (5, Swizzle::B128));
        for swizzle in Swizzle::ALL {
            assert_eq!(Operand::new(Dtype::F16, Major::K, swizzle, 64).descriptor(0).swizzle(), swizzle);
        }
        assert_eq!(descriptor.offset(0x2cbc0).start_bytes(), 0x3ef00);
        let of_rank_3 = 3 << 24;
        assert_eq!(descriptor.offset(of_rank_3 + 0x2cbc0), descriptor.offset(0x2cbc0));
        assert_eq!(Descriptor::from_raw(descriptor.as_raw()), descriptor);
    }

    #[test]
    fn a_tile_holds_all_its_elements() {
        for operand in operands(&[8, 64]) {
            let columns = 3 * operand.swizzle().row_bytes() / operand.element_bytes();
            let mut most = 0;
            for row in 0..operand.rows {
                for column in 0..columns {
                    most = most.max(match operand.major() {
                        Major::K => operand.offset_bytes(row, column),
                        Major::Mn => operand.offset_bytes(column, row),
                    });
                }
            }
            assert_eq!(most + operand.element_bytes(), operand.tile_bytes(columns), "{operand:?}");
        }
    }

    #[test]
    #[should_panic = "multiple of the period"]
    fn a_misaligned_tile_is_refused() {
        let _ = Operand::new(Dtype::F16, Major::K, Swizzle::B128, 64).descriptor(512);
    }

    #[test]
    #[should_panic = "only 16-bit operands"]
    fn an_mn_major_operand_of_8_bits_is_refused() {
        let _ = Operand::new(Dtype::E4M3, Major::Mn, Swizzle::B128, 64);
    }

    #[test]
    #[should_panic = "middle of a core"]
    fn a_part_inside_a_core_is_refused() {
        let _ = Operand::new(Dtype::F16, Major::Mn, Swizzle::B128, 64).mn_offset_bytes(32);
    }
}
