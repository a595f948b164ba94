//! What WGMMA kernels are launched with beside the common arguments: tensor maps and the order of tiles.

use variants::attention::{GROUP_BYTES, MaskKind, Seqlens, TILE_SWIZZLE, TileSchedulerArgs};

use super::plan::rows_aligned;
use super::{AttentionProblem, Layout, OP};
use crate::element::Float;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::tensor::TensorRef;
use crate::runtime::tensor_map::TensorMap;

/// What addresses and strides are multiples of, in bytes.
const ALIGN: usize = 16;

/// Strides in elements that tensor maps do not reach.
const STRIDE_LIMIT: i64 = 1 << 39;

/// Whether TMA can copy the inputs, and 16-byte stores write the output.
pub(super) fn check<T: Float>(
    inputs: &[(&'static str, &TensorRef<'_, T, 4>); 3],
    out: &TensorRef<'_, T, 4>,
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

/// The map of a tensor for a variant of these lengths, `[batch, head, row, column]` whatever its layout, whose boxes
/// are one panel of a tile of `rows` rows.
///
pub(super) fn map<T: Float>(
    gpu: &Gpu,
    lengths: Seqlens,
    layout: Layout,
    tensor: &TensorRef<'_, T, 4>,
    rows: usize,
) -> Result<TensorMap> {
    let shape = layout.reorder(*tensor.shape());
    let strides = layout.reorder(*tensor.strides());
    let row_elems = row_elems::<T>(shape[3]);
    let taken = [0, 1, 2, 3].map(|dim| if dim == 3 { strides[3] } else { taken_stride::<T>(&shape, &strides, dim) });
    let ([batch, heads, len, columns], [to_batch, to_head, to_row, to_column]) = (shape, taken);
    let (ordinal, address) = (tensor.ordinal(), tensor.as_raw());
    let tile = [rows as u32, panel_columns::<T>()];
    // SAFETY: the same elements as those of `tensor`, in another order of its dimensions.
    unsafe {
        match lengths {
            Seqlens::Fixed => {
                let view: TensorRef<'_, T, 4> = TensorRef::from_raw(ordinal, address, shape, taken)?;
                TensorMap::tiled(gpu, &view, [1, 1, tile[0], tile[1]], TILE_SWIZZLE)
            }
            Seqlens::Varlen => {
                let (shape, strides) =
                    ([1, batch, heads, len, columns], [row_elems, to_batch, to_head, to_row, to_column]);
                let view: TensorRef<'_, T, 5> = TensorRef::from_raw(ordinal, address, shape, strides)?;
                TensorMap::tiled(gpu, &view, [1, 1, 1, tile[0], tile[1]], TILE_SWIZZLE)
            }
        }
    }
}

/// The map of sequences that follow each other in a tensor `[1, total, head, column]`, with the same boxes.
pub(super) fn map_of_sequences<T: Float>(gpu: &Gpu, tensor: &TensorRef<'_, T, 4>, rows: usize) -> Result<TensorMap> {
    let [_, total, heads, columns] = *tensor.shape();
    let taken = [1, 2].map(|dim| taken_stride::<T>(tensor.shape(), tensor.strides(), dim));
    let (shape, tile) = ([total, heads, columns], [rows as u32, panel_columns::<T>()]);
    TensorMap::sequences::<T>(gpu, tensor.as_raw(), shape, taken, tile, TILE_SWIZZLE)
}

/// Elements of a row of so many columns that ends on a boundary.
const fn row_elems<T>(columns: usize) -> i64 {
    columns.next_multiple_of(ALIGN / size_of::<T>()) as i64
}

/// The stride of a dimension. That of a dimension of one can be anything, also what TMA refuses; here it is that of a
/// row.
const fn taken_stride<T>(shape: &[usize; 4], strides: &[i64; 4], dim: usize) -> i64 {
    if shape[dim] > 1 { strides[dim] } else { row_elems::<T>(shape[3]) }
}

/// Columns of a panel of a tile.
const fn panel_columns<T>() -> u32 {
    TILE_SWIZZLE.row_bytes() / size_of::<T>() as u32
}

/// The order of the `tiles` tiles of a problem that has some, in a launch of `blocks` blocks; its counter is another's
/// to choose.
pub(super) fn order(
    problem: &AttentionProblem,
    value_dim: usize,
    tiles: u32,
    blocks: u32,
    mask: MaskKind,
) -> TileSchedulerArgs {
    let heads = problem.batch * problem.q_heads;
    let shared = problem.q_heads / problem.kv_heads;
    let m_tiles = tiles as usize / heads;
    let kv_heads = match mask {
        MaskKind::Full => 1,
        MaskKind::Masked => {
            // K and V of one head, in 16-bit elements.
            let head_bytes = 2 * problem.k_len * (problem.head_dim + value_dim);
            let group_bytes = if m_tiles <= FEW_M_TILES { BURST_BYTES } else { GROUP_BYTES };
            let most = (group_bytes / head_bytes.max(1)).max(1);
            group_size(heads / shared, most, blocks as usize / (m_tiles * shared))
        }
    };
    TileSchedulerArgs {
        semaphore: 0,
        tiles,
        m_tiles: m_tiles as u32,
        heads: heads as u32,
        group_heads: kv_heads.saturating_mul(shared).min(heads) as u32,
    }
}

/// Heads of few tiles are read as fast as memory can: their groups are small, so that the start of one, when all its
/// keys and values come, is beside the end of another (1 to 5 % at 512 keys,
/// `docs/measurements/attention_sm90_scheduling.md`).
const FEW_M_TILES: usize = 4;

/// Bytes of keys and values of such a group.
const BURST_BYTES: usize = 8 << 20;

/// How many of `heads` heads form a group: at most `most`, from `wave`, which give each block a tile, to twice as many.
/// The last group is the end of the launch, where blocks run out of tiles: of these sizes, the one that leaves most
/// heads for it (3 to 9 % at 4096 keys, `docs/measurements/attention_sm90_scheduling.md`).
fn group_size(heads: usize, most: usize, wave: usize) -> usize {
    let least = wave.clamp(1, most);
    let last = |size: usize| (heads - 1) % size + 1;
    (least..=most.min(2 * least)).max_by_key(|&size| last(size)).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::group_size;

    #[test]
    fn groups_give_blocks_a_tile_or_two_and_the_last_is_no_remainder() {
        // Heads, most of a group, heads of a wave; 132 blocks at 4x16x4096x128, 4x32x4096x64, 1x16x16384x128,
        // 4x8x4096x256, 32x16x512x128, 32x8x512x256.
        for (heads, most, wave, size) in
            [(64, 12, 4, 8), (128, 24, 8, 16), (16, 3, 1, 2), (32, 6, 4, 4), (512, 32, 33, 32), (256, 16, 33, 16)]
        {
            assert_eq!(group_size(heads, most, wave), size, "{heads} {most} {wave}");
        }
        for heads in 1..200 {
            for (most, wave) in [(1, 0), (3, 9), (12, 4), (1000, 66)] {
                let size = group_size(heads, most, wave);
                assert!((1..=most).contains(&size), "{heads} {most} {wave}: {size}");
            }
        }
    }
}
