//! Tensor maps: what a bulk copy needs to know about a tensor in global memory and the box of it that it copies.
//!
//! ```
//! use layout::Swizzle;
//! use ptx_emulator::tensor_map::{ElementType, TensorMap};
//!
//! let map = TensorMap {
//!     element: ElementType::F16,
//!     address: 0x1000,
//!     dims: vec![64, 100],
//!     strides_bytes: vec![128],
//!     box_dims: vec![64, 8],
//!     swizzle: Swizzle::B128,
//! };
//! assert_eq!(TensorMap::decode(map.encode()?), Some(map));
//! # Ok::<(), ptx_emulator::tensor_map::InvalidMap>(())
//! ```
//!
//! A map is 128 bytes, which only its maker and the copies understand. These here are the emulator's own.

use layout::Swizzle;

/// The first word of a map: none but [`TensorMap::encode`] is likely to make it.
const MAGIC: u64 = 0x7065_6d65_746d_6170;

/// Addresses and strides are multiples of this.
const ALIGN: u64 = 16;
/// The limits of the driver's `cuTensorMapEncodeTiled`.
const MAX_DIM: u64 = 1 << 32;
const MAX_STRIDE_BYTES: u64 = 1 << 40;
const MAX_BOX_DIM: u32 = 256;

/// A type of elements, with the numbers of `CUtensorMapDataType` in cuda.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names say all")]
pub enum ElementType {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    I32 = 3,
    U64 = 4,
    I64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    Bf16 = 9,
    F32Ftz = 10,
    Tf32 = 11,
    Tf32Ftz = 12,
}

impl ElementType {
    const ALL: [ElementType; 13] = [
        ElementType::U8,
        ElementType::U16,
        ElementType::U32,
        ElementType::I32,
        ElementType::U64,
        ElementType::I64,
        ElementType::F16,
        ElementType::F32,
        ElementType::F64,
        ElementType::Bf16,
        ElementType::F32Ftz,
        ElementType::Tf32,
        ElementType::Tf32Ftz,
    ];

    /// The type of this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<ElementType> {
        Self::ALL.get(code as usize).copied()
    }

    /// The size of an element.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            ElementType::U8 => 1,
            ElementType::U16 | ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::U64 | ElementType::I64 | ElementType::F64 => 8,
            _ => 4,
        }
    }
}

/// Why the hardware cannot copy such boxes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no tensor map has {0}")]
pub struct InvalidMap(String);

/// A tensor of 1 to 5 dimensions, innermost first, and the box of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap {
    /// The type of its elements, in which additions are done.
    pub element: ElementType,
    /// The address of the first element in global memory, a multiple of 16.
    pub address: u64,
    /// Elements in each dimension, 1 to 2^32.
    pub dims: Vec<u64>,
    /// The distance of neighbours in each dimension but the innermost: multiples of 16 below 2^40.
    pub strides_bytes: Vec<u64>,
    /// Elements of the box in each dimension, 1 to 256; a row is a multiple of 16 bytes.
    pub box_dims: Vec<u32>,
    /// The swizzle of the box in shared memory.
    pub swizzle: Swizzle,
}

impl TensorMap {
    fn check(&self) -> Result<(), InvalidMap> {
        let invalid = |what: String| Err(InvalidMap(what));
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) || self.strides_bytes.len() + 1 != rank || self.box_dims.len() != rank {
            let (strides, boxes) = (self.strides_bytes.len(), self.box_dims.len());
            return invalid(format!("{rank} dimensions, {strides} strides and {boxes} dimensions of the box"));
        }
        if !self.address.is_multiple_of(ALIGN) {
            return invalid(format!("the address {:#x}, which is no multiple of 16", self.address));
        }
        if let Some(dim) = self.dims.iter().find(|dim| !(1..=MAX_DIM).contains(dim)) {
            return invalid(format!("a dimension of {dim} elements"));
        }
        let is_stride = |stride: &&u64| stride.is_multiple_of(ALIGN) && **stride < MAX_STRIDE_BYTES;
        if let Some(stride) = self.strides_bytes.iter().find(|stride| !is_stride(stride)) {
            return invalid(format!("a stride of {stride} bytes"));
        }
        if let Some(dim) = self.box_dims.iter().find(|dim| !(1..=MAX_BOX_DIM).contains(dim)) {
            return invalid(format!("a box of {dim} elements in a dimension"));
        }
        let row_bytes = self.row_bytes();
        if !u64::from(row_bytes).is_multiple_of(ALIGN) {
            return invalid(format!("a box with rows of {row_bytes} bytes, which is no multiple of 16"));
        }
        if self.swizzle != Swizzle::None && row_bytes > self.swizzle.row_bytes() {
            return invalid(format!(
                "a box with rows of {row_bytes} bytes in a swizzle of {}",
                self.swizzle.row_bytes()
            ));
        }
        Ok(())
    }

    /// The 128 bytes.
    ///
    /// # Errors
    /// Where the driver refuses such a map.
    pub fn encode(&self) -> Result<[u64; 16], InvalidMap> {
        self.check()?;
        let mut words = [0; 16];
        let swizzle = Swizzle::ALL.iter().position(|&swizzle| swizzle == self.swizzle).unwrap_or(0) as u64;
        words[..3].copy_from_slice(&[
            MAGIC,
            self.address,
            self.dims.len() as u64 | (self.element as u64) << 8 | swizzle << 16,
        ]);
        words[3..][..self.dims.len()].copy_from_slice(&self.dims);
        words[8..][..self.strides_bytes.len()].copy_from_slice(&self.strides_bytes);
        for (dim, &length) in self.box_dims.iter().enumerate() {
            words[12 + dim / 2] |= u64::from(length) << (32 * (dim % 2));
        }
        Ok(words)
    }

    /// The map in these bytes, if one is.
    #[must_use]
    pub fn decode(words: [u64; 16]) -> Option<TensorMap> {
        let [MAGIC, address, kind, ..] = words else { return None };
        let rank = (kind & 0xFF) as usize;
        let map = TensorMap {
            element: ElementType::from_code((kind >> 8) as u32 & 0xFF)?,
            address,
            dims: words[3..8].get(..rank)?.to_vec(),
            strides_bytes: words[8..12].get(..rank.checked_sub(1)?)?.to_vec(),
            box_dims: (0..rank).map(|dim| (words[12 + dim / 2] >> (32 * (dim % 2))) as u32).collect(),
            swizzle: *Swizzle::ALL.get((kind >> 16) as usize)?,
        };
        map.check().is_ok().then_some(map)
    }

    /// The bytes of a row of the box.
    #[must_use]
    pub fn row_bytes(&self) -> u32 {
        self.box_dims.first().map_or(0, |&dim| dim * self.element.bytes())
    }

    /// The bytes of the box.
    #[must_use]
    pub fn box_bytes(&self) -> u32 {
        self.box_dims.iter().skip(1).fold(self.row_bytes(), |bytes, dim| bytes * dim)
    }

    /// The pieces of the box at these coordinates that are in the tensor.
    pub(crate) fn pieces(&self, at: &[i32]) -> Vec<Piece> {
        let each = i64::from(self.element.bytes());
        let (length, start) = (i64::from(self.box_dims[0]), i64::from(at[0]));
        let first = (-start).clamp(0, length);
        let last = (self.dims[0] as i64 - start).clamp(first, length);
        let rows = self.box_dims[1..].iter().product::<u32>();
        let mut pieces = Vec::new();
        for row in 0..if first < last { rows } else { 0 } {
            let (mut rest, mut inside) = (row, true);
            let mut address = self.address.wrapping_add_signed((start + first) * each);
            for dim in 1..self.dims.len() {
                let place = i64::from(at[dim]) + i64::from(rest % self.box_dims[dim]);
                rest /= self.box_dims[dim];
                inside &= (0..self.dims[dim] as i64).contains(&place);
                address = address.wrapping_add((place as u64).wrapping_mul(self.strides_bytes[dim - 1]));
            }
            if inside {
                let offset = (row * self.row_bytes()) as usize + (first * each) as usize;
                pieces.push(Piece { offset, address, bytes: ((last - first) * each) as usize });
            }
        }
        pieces
    }
}

/// A part of a box that lies in one piece in both memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it is in the box before the swizzle.
    pub(crate) offset: usize,
    /// Where it is in global memory.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> TensorMap {
        TensorMap {
            element: ElementType::U32,
            address: 0x100,
            dims: vec![10, 3],
            strides_bytes: vec![48],
            box_dims: vec![8, 2],
            swizzle: Swizzle::None,
        }
    }

    #[test]
    fn maps_survive_their_encoding() {
        for rank in 1..=5 {
            for element in ElementType::ALL {
                for swizzle in Swizzle::ALL {
                    let map = TensorMap {
                        element,
                        address: 0x7fff_ffff_fff0,
                        dims: [16, 1 << 32, 3, 4, 5][..rank].to_vec(),
                        strides_bytes: [(1 << 40) - 16, 32, 48, 64][..rank - 1].to_vec(),
                        box_dims: [16 / element.bytes(), 256, 2, 3, 4][..rank].to_vec(),
                        swizzle,
                    };
                    assert_eq!(TensorMap::decode(map.encode().unwrap()), Some(map));
                }
            }
        }
        assert_eq!(TensorMap::decode([0; 16]), None);
        assert_eq!(TensorMap::decode([MAGIC; 16]), None);
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        let refused = |change: fn(&mut TensorMap)| {
            let mut map = matrix();
            change(&mut map);
            map.encode().unwrap_err().to_string()
        };
        assert!(matrix().encode().is_ok());
        assert!(refused(|map| map.address += 8).contains("address 0x108"));
        assert!(refused(|map| map.dims[1] = 0).contains("dimension of 0"));
        assert!(refused(|map| map.dims[1] = (1 << 32) + 1).contains("dimension of"));
        assert!(refused(|map| map.strides_bytes[0] = 40).contains("stride of 40"));
        assert!(refused(|map| map.strides_bytes[0] = 1 << 40).contains("stride of"));
        assert!(refused(|map| map.box_dims[1] = 257).contains("box of 257"));
        assert!(refused(|map| map.box_dims[0] = 6).contains("rows of 24 bytes"));
        assert!(refused(|map| (map.box_dims[0], map.swizzle) = (16, Swizzle::B32)).contains("a swizzle of 32"));
        assert!(refused(|map| map.strides_bytes.push(16)).contains("2 dimensions, 2 strides"));
    }

    #[test]
    fn a_box_is_cut_at_the_edges_of_the_tensor() {
        let map = matrix();
        let piece = |offset, address, bytes| Piece { offset, address, bytes };
        assert_eq!(map.pieces(&[0, 0]), [piece(0, 0x100, 32), piece(32, 0x130, 32)]);
        assert_eq!(map.pieces(&[4, 2]), [piece(0, 0x100 + 96 + 16, 24)]);
        assert_eq!(map.pieces(&[-4, -1]), [piece(32 + 16, 0x100, 16)]);
        for outside in [[12, 0], [-8, 0], [0, 3], [0, -2], [i32::MIN, 0], [i32::MAX, i32::MAX]] {
            assert_eq!(map.pieces(&outside), [], "{outside:?}");
        }
    }
}
