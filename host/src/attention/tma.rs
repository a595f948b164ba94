//! Tensor maps of Q, K and V: what kernels that copy by TMA are launched with.

use layout::Swizzle;
use variants::attention::Seqlens;

use super::layout::Layout;
use super::sizes::OP;
use crate::checks::{ALIGN_BYTES, argument, rows_aligned};
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::tensor_map::TensorMap;

/// Strides in elements that tensor maps do not reach.
const STRIDE_LIMIT: i64 = 1 << 39;

/// Whether TMA can copy Q, K and V, and 16-byte stores write the output where it is there.
pub(super) fn check(inputs: [&RawTensor; 3], out: Option<&RawTensor>) -> Result<()> {
    for (tensor, view) in ["Q", "K", "V"].into_iter().zip(inputs) {
        if !rows_aligned(view) {
            return Err(Error::Alignment { op: OP, tensor, align: ALIGN_BYTES });
        }
        let outer = view.shape().len().saturating_sub(1);
        if (0..outer).any(|dim| !(0..STRIDE_LIMIT).contains(&view.step(dim))) {
            let got = format!("{:?} of {tensor}", view.strides());
            return Err(argument(OP, "strides", got, "none negative, all below 2^40 bytes"));
        }
    }
    match out {
        Some(out) if !rows_aligned(out) => Err(Error::Alignment { op: OP, tensor: "O", align: ALIGN_BYTES }),
        _ => Ok(()),
    }
}

/// The map of a tensor for a configuration of these lengths, `[batch, head, row, column]` whatever its layout, whose
/// boxes are one panel of a tile of `rows` rows.
pub(super) fn map(
    gpu: &Gpu,
    seqlens: Seqlens,
    layout: Layout,
    tensor: &RawTensor,
    (rows, swizzle): (usize, Swizzle),
) -> Result<TensorMap> {
    let [batch, heads, len, columns] = layout.reorder(std::array::from_fn(|dim| tensor.dim(dim)));
    let [to_batch, to_head, to_row, _] = layout.reorder(std::array::from_fn(|dim| mapped_stride(tensor, dim)));
    let (element, address) = (tensor.element_type(), tensor.as_raw());
    let [tile_rows, tile_columns] = [rows as u32, panel_columns(tensor, swizzle)];
    match seqlens {
        Seqlens::Fixed => {
            let view = ([batch, heads, len, columns], [to_batch, to_head, to_row, 1]);
            TensorMap::of_parts(gpu, element, address, view, [1, 1, tile_rows, tile_columns], swizzle)
        }
        Seqlens::Varlen => {
            let view = ([1, batch, heads, len, columns], [row_elems(tensor), to_batch, to_head, to_row, 1]);
            TensorMap::of_parts(gpu, element, address, view, [1, 1, 1, tile_rows, tile_columns], swizzle)
        }
    }
}

/// The map of sequences that follow each other in a tensor `[1, total, head, column]`, with the same boxes.
pub(super) fn map_of_sequences(gpu: &Gpu, tensor: &RawTensor, (rows, swizzle): (usize, Swizzle)) -> Result<TensorMap> {
    let view = ([1, 2, 3].map(|dim| tensor.dim(dim)), [1, 2].map(|dim| mapped_stride(tensor, dim)));
    let tile = [rows as u32, panel_columns(tensor, swizzle)];
    TensorMap::sequences(gpu, tensor.element_type(), tensor.as_raw(), view, tile, swizzle)
}

/// Elements of a row of a tensor of rank 4 that ends on a boundary.
const fn row_elems(tensor: &RawTensor) -> i64 {
    tensor.dim(3).next_multiple_of(ALIGN_BYTES / tensor.element_type().size_bytes()) as i64
}

/// The stride of a dimension. A dimension of one element may have any stride, also one that TMA refuses, so it gets the
/// stride of a row.
const fn mapped_stride(tensor: &RawTensor, dim: usize) -> i64 {
    if tensor.dim(dim) > 1 { tensor.step(dim) } else { row_elems(tensor) }
}

/// Columns of a panel of a tile.
const fn panel_columns(tensor: &RawTensor, swizzle: Swizzle) -> u32 {
    swizzle.row_bytes() / tensor.element_type().size_bytes() as u32
}
