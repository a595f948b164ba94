//! Which keys a row and a block see.

use layout::attention::AttentionArgs;

/// The visible keys of the rows of a launch, in the canonical form of [`layout::attention::Mask::key_offsets`].
#[derive(Clone, Copy)]
pub(crate) struct KeyRange {
    first: i32,
    last: i32,
    k_len: i32,
}

impl KeyRange {
    #[inline(always)]
    pub(crate) fn new(args: &AttentionArgs) -> Self {
        Self { first: args.first_key, last: args.last_key, k_len: args.k_len as i32 }
    }

    /// First key that `row` sees; beyond [`Self::end`] where it sees none.
    #[inline(always)]
    pub(crate) fn start(self, row: i32) -> i32 {
        (row + self.first).max(0)
    }

    /// The key after the last one that `row` sees.
    #[inline(always)]
    pub(crate) fn end(self, row: i32) -> i32 {
        (row + self.last).min(self.k_len - 1) + 1
    }

    /// Whether every row of `first_row ..= last_row` sees all of the `keys` keys from `key` on.
    #[inline(always)]
    pub(crate) fn covers(self, first_row: i32, last_row: i32, key: i32, keys: i32) -> bool {
        self.start(last_row) <= key && key + keys <= self.end(first_row)
    }

    /// Sets the scores of unseen keys to minus infinity.
    ///
    /// `scores` are this lane's accumulators of 16 rows by `16 * KEY_TILES` keys from `key` on; `row` is the lane's first row
    /// (the other one is 8 below) and `pair` its position in its quad.
    #[inline(always)]
    pub(crate) fn apply<const KEY_TILES: usize>(
        self,
        scores: &mut [[f32; 8]; KEY_TILES],
        row: i32,
        pair: i32,
        key: i32,
    ) {
        for half in 0..2 {
            let row = row + 8 * half as i32;
            // Bounds relative to this lane's first column.
            let start = self.start(row) - key - 2 * pair;
            let end = self.end(row) - key - 2 * pair;
            for tile in 0..KEY_TILES {
                for register in 0..4 {
                    let column = (16 * tile + 8 * (register / 2) + register % 2) as i32;
                    if column < start || column >= end {
                        scores[tile][4 * (register / 2) + 2 * half + register % 2] = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
