//! Tensor maps: what the tensor memory accelerator (TMA) of sm_90 needs to know about a tensor to copy tiles of it.

use layout::swizzle::Swizzle;
use variants::attention::{SEQUENCE_END, SEQUENCE_PERIOD};

use crate::backend::TiledMap;
use crate::checks::same_device;
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::param::KernelParam;
use crate::runtime::tensor::TensorRef;

const OP: &str = "TensorMap::tiled";

/// What addresses and strides are multiples of, in bytes.
const ALIGN: usize = 16;

/// The limits of the driver's `cuTensorMapEncodeTiled`.
const MAX_DIM: usize = 1 << 32;
const MAX_STRIDE_BYTES: u64 = 1 << 40;
const MAX_BOX_DIM: u32 = 256;

/// A tensor and the tile that one TMA instruction copies, as a kernel parameter by value.
///
/// It holds the tensor's address and not a borrow: the memory must outlive the kernels that are given the map.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu, Swizzle, TensorMap, TensorRef};
///
/// let gpu = Gpu::emulated(Arch::Sm90a);
/// let buffer = Buffer::<f32>::zeroed(&gpu, 64 * 64)?;
/// let tensor = TensorRef::contiguous(&buffer, [64, 64])?;
/// let map = TensorMap::tiled(&gpu, &tensor, [16, 32], Swizzle::B128)?; // tiles of 16 rows of 128 bytes
/// # let _ = map;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap([u64; 16]);

// SAFETY: this is `CUtensorMap` of cuda.h, 128 opaque bytes, which kernels declare as a parameter of the same size.
unsafe impl KernelParam for TensorMap {}

impl TensorMap {
    pub(crate) const fn as_raw(&self) -> [u64; 16] {
        self.0
    }

    /// A map of tiles of `box_shape` elements, whose dimensions are those of the tensor, in its order.
    ///
    /// A tile lies in shared memory in row-major order, swizzled. Elements of it that are outside the tensor arrive as
    /// zeros and are not written.
    ///
    /// # Errors
    /// [`Error::Alignment`] and [`Error::Argument`] where TMA cannot take the tensor or the tile,
    /// [`Error::WrongDevice`], and [`Error::DriverTooOld`] before CUDA 12.0.
    pub fn tiled<T: Element, const RANK: usize>(
        gpu: &Gpu,
        tensor: &TensorRef<'_, T, RANK>,
        box_shape: [u32; RANK],
        swizzle: Swizzle,
    ) -> Result<TensorMap> {
        const { assert!(RANK >= 1 && RANK <= 5, "TMA copies tiles of 1 to 5 dimensions") };
        same_device("tensor", tensor.ordinal(), gpu.ordinal())?;
        encode(gpu, T::TYPE, tensor.as_raw(), tensor.shape(), tensor.strides(), &box_shape, swizzle)
    }

    /// As [`TensorMap::tiled`], of a tensor on the device of `gpu` whose type and rank are values.
    pub(crate) fn of_parts<const RANK: usize>(
        gpu: &Gpu,
        element: ElementType,
        address: u64,
        (shape, strides): ([usize; RANK], [i64; RANK]),
        box_shape: [u32; RANK],
        swizzle: Swizzle,
    ) -> Result<TensorMap> {
        encode(gpu, element, address, &shape, &strides, &box_shape, swizzle)
    }

    /// A map of tiles of the rows of matrices, `shape` being their number, their rows and the elements of a row;
    /// `strides` are from one matrix and one row to the next, in elements. A stride of 0 is that of a dimension of one.
    pub(crate) fn matrices(
        gpu: &Gpu,
        element: ElementType,
        address: u64,
        (shape, strides): ([u32; 3], [i64; 2]),
        box_shape: [u32; 2],
        swizzle: Swizzle,
    ) -> Result<TensorMap> {
        let shape = shape.map(|len| len as usize);
        let [matrix, row] =
            strides.map(|stride| if stride == 0 { (ALIGN / element.size_bytes()) as i64 } else { stride });
        encode(gpu, element, address, &shape, &[matrix, row, 1], &[1, box_shape[0], box_shape[1]], swizzle)
    }

    /// A map of tiles of rows of sequences that follow each other in a tensor `[total, heads, columns]` at `address`;
    /// `strides` are from one row and one head to the next, in elements.
    ///
    /// Its dimensions are `[period, end, head, row, column]`: [`variants::attention::SEQUENCE_END`] says where the rows
    /// of a sequence are.
    pub(crate) fn sequences(
        gpu: &Gpu,
        element: ElementType,
        address: u64,
        ([total, heads, columns], [row, head]): ([usize; 3], [i64; 2]),
        box_shape: [u32; 2],
        swizzle: Swizzle,
    ) -> Result<TensorMap> {
        check_tensor(&[total + 1, heads, columns], &[row, head, 1], address, element.size_bytes())?;
        let box_shape = [1, 1, 1, box_shape[0], box_shape[1]];
        check_box(&box_shape, element.size_bytes(), swizzle)?;
        let bytes = |stride: i64| stride as u64 * element.size_bytes() as u64;
        let Some(back) = SEQUENCE_PERIOD.checked_sub(bytes(row)) else {
            let (got, expected) = (format!("{row} from row to row"), "less than 2^34 bytes".to_owned());
            return Err(Error::Argument { op: OP, argument: "the strides", got, expected });
        };
        let map = TiledMap {
            data_type: element.tensor_map_type(),
            address,
            dims: &[
                columns as u64,
                u64::from(SEQUENCE_END),
                heads as u64,
                total as u64 + 1,
                u64::from(SEQUENCE_END) + 1,
            ],
            strides_bytes: &[bytes(row), bytes(head), bytes(row), back],
            box_dims: &[box_shape[4], box_shape[3], 1, 1, 1],
            swizzle: swizzle_code(swizzle),
        };
        gpu.device().encode_tiled(&map).map(TensorMap)
    }
}

/// The most dimensions of a map.
const MAX_RANK: usize = 5;

/// Checks a tensor and a box and has the driver encode their map. The driver counts dimensions from the innermost,
/// whose stride it takes for granted.
fn encode(
    gpu: &Gpu,
    element: ElementType,
    address: u64,
    shape: &[usize],
    strides: &[i64],
    box_shape: &[u32],
    swizzle: Swizzle,
) -> Result<TensorMap> {
    let (rank, element_bytes) = (shape.len(), element.size_bytes());
    check_tensor(shape, strides, address, element_bytes)?;
    check_box(box_shape, element_bytes, swizzle)?;
    let (mut dims, mut strides_bytes, mut box_dims) = ([0_u64; MAX_RANK], [0_u64; MAX_RANK], [0_u32; MAX_RANK]);
    for dim in 0..rank {
        let outer = rank - 1 - dim;
        dims[dim] = shape[outer] as u64;
        strides_bytes[dim] = strides[outer].unsigned_abs().saturating_mul(element_bytes as u64);
        box_dims[dim] = box_shape[outer];
    }
    let map = TiledMap {
        data_type: element.tensor_map_type(),
        address,
        dims: &dims[..rank],
        strides_bytes: &strides_bytes[1..rank],
        box_dims: &box_dims[..rank],
        swizzle: swizzle_code(swizzle),
    };
    gpu.device().encode_tiled(&map).map(TensorMap)
}

/// `CUtensorMapSwizzle` of cuda.h.
const fn swizzle_code(swizzle: Swizzle) -> u32 {
    match swizzle {
        Swizzle::None => 0,
        Swizzle::B32 => 1,
        Swizzle::B64 => 2,
        Swizzle::B128 => 3,
    }
}

fn check_tensor(shape: &[usize], strides: &[i64], address: u64, element_bytes: usize) -> Result<()> {
    let argument = |argument, got: String, expected: &str| {
        Err(Error::Argument { op: OP, argument, got, expected: expected.to_owned() })
    };
    if shape.iter().any(|dim| !(1..=MAX_DIM).contains(dim)) {
        return argument("the shape", format!("{shape:?}"), "1 to 2^32 in each dimension");
    }
    let outer_strides = &strides[..strides.len() - 1];
    let too_far = |&stride: &i64| stride < 0 || stride as u64 >= MAX_STRIDE_BYTES / element_bytes as u64;
    if outer_strides.iter().any(too_far) {
        return argument("the strides", format!("{strides:?}"), "none negative and all below 2^40 bytes");
    }
    let misaligned = |&stride: &i64| !(stride as usize * element_bytes).is_multiple_of(ALIGN);
    if !address.is_multiple_of(ALIGN as u64) || outer_strides.iter().any(misaligned) {
        return Err(Error::Alignment { op: OP, tensor: "the tensor", align: ALIGN });
    }
    Ok(())
}

fn check_box(box_shape: &[u32], element_bytes: usize, swizzle: Swizzle) -> Result<()> {
    let argument = |expected: String| {
        Err(Error::Argument { op: OP, argument: "the box shape", got: format!("{box_shape:?}"), expected })
    };
    if box_shape.iter().any(|dim| !(1..=MAX_BOX_DIM).contains(dim)) {
        return argument(format!("1 to {MAX_BOX_DIM} in each dimension"));
    }
    let row_bytes = box_shape[box_shape.len() - 1] as usize * element_bytes;
    if !row_bytes.is_multiple_of(ALIGN) {
        return argument(format!("rows that are multiples of {ALIGN} bytes"));
    }
    if swizzle != Swizzle::None && row_bytes > swizzle.row_bytes() as usize {
        return argument(format!("rows of at most {} bytes for this swizzle", swizzle.row_bytes()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejects_tensor(shape: &[usize], strides: &[i64], address: u64) -> Option<&'static str> {
        match check_tensor(shape, strides, address, 2) {
            Ok(()) => None,
            Err(Error::Argument { argument, .. }) => Some(argument),
            Err(Error::Alignment { .. }) => Some("alignment"),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn tensors_that_the_hardware_cannot_address_are_rejected() {
        assert_eq!(rejects_tensor(&[3, 64], &[64, 1], 256), None);
        assert_eq!(rejects_tensor(&[1 << 32, 64], &[64, 1], 256), None);
        assert_eq!(rejects_tensor(&[7], &[1], 16), None);
        assert_eq!(rejects_tensor(&[0, 64], &[64, 1], 256), Some("the shape"));
        assert_eq!(rejects_tensor(&[(1 << 32) + 1, 64], &[64, 1], 256), Some("the shape"));
        assert_eq!(rejects_tensor(&[3, 64], &[-64, 1], 256), Some("the strides"));
        assert_eq!(rejects_tensor(&[3, 64], &[1 << 39, 1], 256), Some("the strides"));
        assert_eq!(rejects_tensor(&[3, 64], &[(1 << 39) - 8, 1], 256), None);
        assert_eq!(rejects_tensor(&[3, 64], &[68, 1], 256), Some("alignment"));
        assert_eq!(rejects_tensor(&[3, 64], &[64, 1], 264), Some("alignment"));
    }

    #[test]
    fn boxes_that_the_hardware_cannot_copy_are_rejected() {
        assert!(check_box(&[256, 64], 2, Swizzle::B128).is_ok());
        assert!(check_box(&[256, 256], 4, Swizzle::None).is_ok());
        assert!(check_box(&[256, 72], 2, Swizzle::B128).is_err());
        assert!(check_box(&[257, 64], 2, Swizzle::B128).is_err());
        assert!(check_box(&[0, 64], 2, Swizzle::B128).is_err());
        assert!(check_box(&[8, 4], 2, Swizzle::None).is_err());
    }

    #[test]
    fn a_map_is_128_bytes_on_a_64_byte_boundary() {
        assert_eq!((size_of::<TensorMap>(), align_of::<TensorMap>()), (128, 64));
    }
}
