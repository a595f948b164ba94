//! The order of the tiles of a persistent launch.

use variants::attention::{GROUP_BYTES, MaskKind, TileSchedulerArgs};

use super::sizes::BatchedSizes;
use crate::runtime::param::KernelParam;

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for TileSchedulerArgs {}

/// The order of the `tiles` tiles of sizes that have some, in a launch of `blocks` blocks; its counter is another's
/// to choose.
pub(super) fn order(
    sizes: &BatchedSizes,
    value_dim: usize,
    tiles: u32,
    blocks: u32,
    mask: MaskKind,
) -> TileSchedulerArgs {
    let heads = sizes.batch * sizes.q_heads;
    let shared = sizes.q_heads / sizes.kv_heads;
    let m_tiles = tiles as usize / heads;
    let kv_heads = match mask {
        MaskKind::Full => 1,
        MaskKind::Masked => {
            // K and V of one head, in 16-bit elements.
            let head_bytes = 2 * sizes.k_len * (sizes.head_dim + value_dim);
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

/// Heads of few tiles are read as fast as memory can. Their groups are small: at the start of a group all its keys and
/// values come, and that start then lies beside the end of another group (1 to 5 % at 512 keys,
/// `docs/measurements/attention_sm90_scheduling.md`).
const FEW_M_TILES: usize = 4;

/// Bytes of keys and values of such a group.
const BURST_BYTES: usize = 8 << 20;

/// How many of `heads` heads form a group: at most `most`, and from `wave` heads, which give each block a tile, to
/// twice as many. In the last group of a launch blocks run out of tiles. So the size is the one that leaves most heads
/// for the last group (3 to 9 % at 4096 keys, `docs/measurements/attention_sm90_scheduling.md`).
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
