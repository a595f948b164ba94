//! Which keys a row and a block see.

use variants::attention::{AttentionArgs, Mask};

/// The visible keys of the rows of a launch, in the canonical form of [`variants::attention::Mask::key_offsets`].
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

    /// Those of sequences of `q_len` rows and `k_len` keys.
    #[inline(always)]
    pub(crate) fn of_seqlens(args: &AttentionArgs, q_len: u32, k_len: u32) -> Self {
        let (first, last) = Mask::offsets_of_reach((args.left, args.right), q_len as i32, k_len as i32);
        Self { first, last, k_len: k_len as i32 }
    }

    /// Keys there are.
    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        self.k_len as u32
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

    /// The steps of `step_keys` keys that some row of `first_row ..= last_row` sees: from the first number up to the
    /// second. Where there is no such step the second is not above the first.
    #[inline(always)]
    pub(crate) fn steps(self, first_row: i32, last_row: i32, step_keys: u32) -> (u32, u32) {
        (self.start(first_row) as u32 / step_keys, (self.end(last_row).max(0) as u32).div_ceil(step_keys))
    }

    /// Sets the scores of unseen keys to minus infinity.
    ///
    /// `scores` are this lane's accumulators of 16 rows by keys from `key` on. Registers 0, 1, 4, 5, .. belong to the
    /// lane's first row, `row`, and 2, 3, 6, 7, .. to the row 8 below. `pair` is the lane's position in its quad.
    #[inline(always)]
    pub(crate) fn apply(self, scores: &mut [f32], row: i32, pair: i32, key: i32) {
        self.hide(scores, [row, row + 8], pair, key);
    }

    /// [`Self::apply`] for any two rows.
    #[inline(always)]
    pub(crate) fn hide(self, scores: &mut [f32], rows: [i32; 2], pair: i32, key: i32) {
        for half in 0..2 {
            let row = rows[half];
            // Bounds relative to this lane's first column.
            let start = self.start(row) - key - 2 * pair;
            let end = self.end(row) - key - 2 * pair;
            for four in 0..scores.len() / 4 {
                for offset in 0..2 {
                    let column = (8 * four + offset) as i32;
                    if column < start || column >= end {
                        scores[4 * four + 2 * half + offset] = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// The steps of `step_keys` keys that every row of `first_row ..= last_row` sees whole, as [`Self::steps`].
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn full_steps(self, first_row: i32, last_row: i32, step_keys: u32) -> (u32, u32) {
        ((self.start(last_row) as u32).div_ceil(step_keys), self.end(first_row).max(0) as u32 / step_keys)
    }

    /// [`Self::apply`] for keys after the last visible one alone.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn hide_after(self, scores: &mut [f32], row: i32, pair: i32, key: i32) {
        for half in 0..2 {
            let end = self.end(row + 8 * half as i32) - key - 2 * pair;
            for index in 0..scores.len() {
                if index / 2 % 2 == half && (8 * (index / 4) + index % 2) as i32 >= end {
                    scores[index] = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// [`Self::apply`] for keys before the first visible one alone.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn hide_before(self, scores: &mut [f32], row: i32, pair: i32, key: i32) {
        for half in 0..2 {
            let start = self.start(row + 8 * half as i32) - key - 2 * pair;
            for index in 0..scores.len() {
                if index / 2 % 2 == half && ((8 * (index / 4) + index % 2) as i32) < start {
                    scores[index] = f32::NEG_INFINITY;
                }
            }
        }
    }
}
