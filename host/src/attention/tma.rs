//! What WGMMA kernels are launched with beside the common arguments: tensor maps and the order of tiles.

use layout::attention::{GROUP_BYTES, MaskKind, TILE_SWIZZLE, TileOrder};

use super::plan::rows_aligned;
use super::{AttentionProblem, Layout, OP};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::tensor::{TensorMut, TensorRef};
use crate::tensor_map::TensorMap;

/// What addresses and strides are multiples of, in bytes.
const ALIGN: usize = 16;

/// Strides in elements that tensor maps do not reach.
const STRIDE_LIMIT: i64 = 1 << 39;

/// Whether TMA can copy the inputs, and 16-byte stores write the output.
pub(super) fn check<T: Float>(
    inputs: &[(&'static str, &TensorRef<'_, T, 4>); 3],
    out: &TensorMut<'_, T, 4>,
) -> Result<()> {
    for &(tensor, view) in inputs {
        let (shape, strides) = (view.shape(), view.strides());
        if !rows_aligned(view.as_raw(), shape, strides) {
            return Err(Error::Alignment { op: OP, tensor, align: ALIGN });
        }
        let steps = shape.iter().zip(strides).take(3);
        if steps.into_iter().any(|(&len, &stride)| len > 1 && !(0..STRIDE_LIMIT).contains(&stride)) {
            let (got, expected) =
                (format!("{strides:?} of {tensor}"), "none negative, all below 2^40 bytes".to_owned());
            return Err(Error::Argument { op: OP, argument: "strides", got, expected });
        }
    }
    if rows_aligned(out.as_raw(), out.shape(), out.strides()) {
        Ok(())
    } else {
        Err(Error::Alignment { op: OP, tensor: "O", align: ALIGN })
    }
}

/// The map of a tensor, `[batch, head, row, column]` whatever its layout, whose boxes are one panel of a tile of `rows` rows.
///
/// The stride of a dimension of one can be anything, also what TMA refuses; here it is that of a row.
pub(super) fn map<T: Float>(gpu: &Gpu, layout: Layout, tensor: &TensorRef<'_, T, 4>, rows: usize) -> Result<TensorMap> {
    let shape = layout.reorder(*tensor.shape());
    let strides = layout.reorder(*tensor.strides());
    let row_elems = shape[3].next_multiple_of(ALIGN / size_of::<T>()) as i64;
    let taken = [0, 1, 2, 3].map(|dim| if shape[dim] > 1 || dim == 3 { strides[dim] } else { row_elems });
    // SAFETY: the same elements as those of `tensor`, in another order of its dimensions.
    let view: TensorRef<'_, T, 4> = unsafe { TensorRef::from_raw(tensor.ordinal(), tensor.as_raw(), shape, taken)? };
    let panel_columns = TILE_SWIZZLE.row_bytes() / size_of::<T>() as u32;
    TensorMap::tiled(gpu, &view, [1, 1, rows as u32, panel_columns], TILE_SWIZZLE)
}

/// The order of the `tiles` tiles of a problem that has some; its counter is another's to choose.
pub(super) fn order(problem: &AttentionProblem, tiles: u32, mask: MaskKind) -> TileOrder {
    let heads = problem.batch * problem.q_heads;
    let shared = problem.q_heads / problem.kv_heads;
    // K and V of one head, in 16-bit elements.
    let head_bytes = 4 * problem.k_len * problem.head_dim;
    let row_tiles = tiles as usize / heads;
    let kv_heads = match mask {
        MaskKind::Full => 1,
        MaskKind::Band => (GROUP_BYTES / head_bytes.max(1)).max(1),
    };
    TileOrder {
        counter: 0,
        tiles,
        row_tiles: row_tiles as u32,
        heads: heads as u32,
        group_heads: kv_heads.saturating_mul(shared).min(heads) as u32,
    }
}
