//! Which keys a query row sees.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use super::MAX_LEN;

/// Which keys a query row sees.
///
/// Rows and keys are aligned at their ends (bottom-right): row `i` of `q_len` stands at key `i + k_len - q_len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mask {
    /// Every key.
    #[default]
    Full,
    /// The keys up to the row's own position.
    Causal,
    /// The keys from `left` before to `right` after the row's own position.
    Window {
        /// Keys seen before the row's own position.
        left: usize,
        /// Keys seen after the row's own position.
        right: usize,
    },
}

impl Mask {
    /// The keys that query row `row` of `q_len` sees among `k_len`; empty where it sees none.
    ///
    /// ```
    /// use variants::attention::Mask;
    ///
    /// // Four rows stand at the last four of six keys.
    /// assert_eq!(Mask::Causal.key_range(0, 4, 6), 0..3);
    /// assert_eq!(Mask::Window { left: 1, right: 0 }.key_range(3, 4, 6), 4..6);
    /// ```
    pub fn key_range(self, row: usize, q_len: usize, k_len: usize) -> Range<usize> {
        let (first, last) = self.offsets(q_len, k_len);
        let start = (row as i128 + first).clamp(0, k_len as i128) as usize;
        let end = (row as i128 + last + 1).clamp(start as i128, k_len as i128) as usize;
        start..end
    }

    /// The canonical form: row `i` sees the keys `j` with `i + first <= j <= i + last` and `0 <= j < k_len`.
    ///
    /// Both are clamped to `-q_len - 1 ..= k_len`, beyond which nothing changes. No sum of two lengths and a width
    /// overflows an `i128`.
    fn offsets(self, q_len: usize, k_len: usize) -> (i128, i128) {
        let (least, most) = (-(q_len as i128) - 1, k_len as i128);
        let diagonal = k_len as i128 - q_len as i128;
        match self {
            Mask::Full => (least, most),
            Mask::Causal => (least, diagonal),
            Mask::Window { left, right } => {
                ((diagonal - left as i128).max(least), (diagonal + right as i128).min(most))
            }
        }
    }

    /// The canonical form that kernels take: row `i` sees the keys `j` with `i + first <= j <= i + last` and
    /// `0 <= j < k_len`.
    ///
    /// Both are clamped to `-q_len - 1 ..= k_len`, beyond which nothing changes. So `i + first` and `i + last` fit an
    /// `i32` for lengths up to [`MAX_LEN`]. For longer sequences, which no kernel takes, the offsets are the nearest
    /// that an `i32` has.
    pub fn key_offsets(self, q_len: usize, k_len: usize) -> (i32, i32) {
        let (first, last) = self.offsets(q_len, k_len);
        let nearest = |offset: i128| offset.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
        (nearest(first), nearest(last))
    }

    /// How many keys before and after its own position a row sees; [`MAX_LEN`] stands for all of them.
    pub fn reach(self) -> (i32, i32) {
        let all = MAX_LEN as i32;
        let width = |width: usize| width.min(MAX_LEN) as i32;
        match self {
            Mask::Full => (all, all),
            Mask::Causal => (all, 0),
            Mask::Window { left, right } => (width(left), width(right)),
        }
    }

    /// [`Mask::key_offsets`] of the mask of this [`Mask::reach`], for lengths up to [`MAX_LEN`].
    pub fn offsets_of_reach((left, right): (i32, i32), q_len: i32, k_len: i32) -> (i32, i32) {
        let diagonal = k_len - q_len;
        let clamp = |offset: i32| offset.max(-q_len - 1).min(k_len);
        (clamp(diagonal.saturating_sub(left)), clamp(diagonal.saturating_add(right)))
    }

    /// Whether every row sees every key.
    pub fn hides_nothing(self, q_len: usize, k_len: usize) -> bool {
        let (first, last) = self.offsets(q_len, k_len);
        q_len == 0 || k_len == 0 || (q_len as i128 - 1 + first <= 0 && last >= k_len as i128 - 1)
    }

    /// The number of (row, key) pairs that are visible: the work that the mask leaves.
    ///
    /// ```
    /// use variants::attention::Mask;
    ///
    /// assert_eq!(Mask::Causal.visible_pairs(4, 4), 1 + 2 + 3 + 4);
    /// ```
    pub fn visible_pairs(self, q_len: usize, k_len: usize) -> u128 {
        let (first, last) = self.offsets(q_len, k_len);
        keys_before(last + 1, q_len, k_len) - keys_before(first, q_len, k_len)
    }
}

/// The sum over the rows `i` of the keys before `i + offset`: of `(i + offset).clamp(0, k_len)`.
fn keys_before(offset: i128, q_len: usize, k_len: usize) -> u128 {
    let (rows, keys) = (q_len as i128, k_len as i128);
    // Rows below `some` have no key before them, rows from `all` on every key; in between each has one more than the
    // row above.
    let some = (-offset).clamp(0, rows);
    let all = (keys - offset).clamp(some, rows);
    let (between, after) = ((all - some) as u128, (rows - all) as u128);
    if between == 0 {
        return after * keys as u128;
    }
    let ends = (some + offset) as u128 + (all - 1 + offset) as u128;
    // One of the two is even: halved before the product, which has no more than 128 bits then.
    let pairs = if between.is_multiple_of(2) { between / 2 * ends } else { ends / 2 * between };
    pairs + after * keys as u128
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mask::Full => f.write_str("full"),
            Mask::Causal => f.write_str("causal"),
            Mask::Window { left, right } => write!(f, "window:{left},{right}"),
        }
    }
}

/// The text is not a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseMaskError;

impl fmt::Display for ParseMaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected full, causal or window:LEFT,RIGHT")
    }
}

impl core::error::Error for ParseMaskError {}

impl FromStr for Mask {
    type Err = ParseMaskError;

    fn from_str(text: &str) -> Result<Self, ParseMaskError> {
        match text {
            "full" => Ok(Mask::Full),
            "causal" => Ok(Mask::Causal),
            _ => {
                let (left, right) =
                    text.strip_prefix("window:").and_then(|sides| sides.split_once(',')).ok_or(ParseMaskError)?;
                let side = |text: &str| text.parse().map_err(|_| ParseMaskError);
                Ok(Mask::Window { left: side(left)?, right: side(right)? })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn key_range_is_the_definition() {
        for q_len in 0..6usize {
            for k_len in 0..7usize {
                for row in 0..q_len {
                    let position = (row + k_len) as i64 - q_len as i64;
                    for left in [0usize, 1, 2, 9, usize::MAX] {
                        for right in [0usize, 1, 3, usize::MAX] {
                            let sees = |key: usize| {
                                let distance = i128::from(key as i64 - position);
                                -(left as i128) <= distance && distance <= right as i128
                            };
                            let range = Mask::Window { left, right }.key_range(row, q_len, k_len);
                            for key in 0..k_len {
                                assert_eq!(
                                    range.contains(&key),
                                    sees(key),
                                    "{q_len} {k_len} {row} {left} {right} {key}"
                                );
                            }
                        }
                    }
                    assert_eq!(Mask::Full.key_range(row, q_len, k_len), 0..k_len);
                    let causal = Mask::Window { left: usize::MAX, right: 0 };
                    assert_eq!(
                        Mask::Causal.key_range(row, q_len, k_len).len(),
                        causal.key_range(row, q_len, k_len).len()
                    );
                }
            }
        }
    }

    #[test]
    fn a_mask_hides_nothing_where_every_pair_is_visible() {
        for (q_len, k_len) in (0..6).flat_map(|q_len| (0..7).map(move |k_len| (q_len, k_len))) {
            let windows = (0..8).flat_map(|left| (0..8).map(move |right| Mask::Window { left, right }));
            for mask in windows.chain([Mask::Full, Mask::Causal]) {
                let all = mask.visible_pairs(q_len, k_len) == (q_len * k_len) as u128;
                assert_eq!(mask.hides_nothing(q_len, k_len), all || q_len == 0, "{mask} {q_len} {k_len}");
            }
        }
    }

    #[test]
    fn visible_pairs_are_those_of_the_rows() {
        let sides = [0, 1, 2, 3, 5, 8, 13, usize::MAX];
        let windows = sides.into_iter().flat_map(|left| sides.map(|right| Mask::Window { left, right }));
        for mask in windows.chain([Mask::Full, Mask::Causal]) {
            for (q_len, k_len) in (0..16).flat_map(|q_len| (0..16).map(move |k_len| (q_len, k_len))) {
                let walked: usize = (0..q_len).map(|row| mask.key_range(row, q_len, k_len).len()).sum();
                assert_eq!(mask.visible_pairs(q_len, k_len), walked as u128, "{mask} {q_len} {k_len}");
            }
        }
    }

    #[test]
    fn the_longest_lengths_have_exact_ranges_and_counts() {
        const ALL: usize = usize::MAX;
        let all = ALL as u128;
        let square = all * all;
        // Half of the square and half of its diagonal, without the bit that twice it would need.
        let triangle = all.div_ceil(2) * all;
        assert_eq!(Mask::Full.visible_pairs(ALL, ALL), square);
        assert_eq!(Mask::Causal.visible_pairs(ALL, ALL), triangle);
        assert_eq!(Mask::Causal.visible_pairs(ALL, 1), 1);
        assert_eq!(Mask::Causal.visible_pairs(1, ALL), all);
        assert_eq!(Mask::Window { left: 0, right: 0 }.visible_pairs(ALL, ALL), all);
        assert_eq!(Mask::Window { left: 0, right: ALL }.visible_pairs(ALL, ALL), triangle);
        assert_eq!(Mask::Window { left: 1, right: 1 }.visible_pairs(ALL, ALL), 3 * all - 2);
        let lengths = [0, 1, 1 << 31, u32::MAX as usize, 1 << 32, i64::MAX as usize, 1 << 63, ALL];
        let sides = [0, 1, u32::MAX as usize, i64::MAX as usize, ALL];
        let windows = sides.into_iter().flat_map(|left| sides.map(|right| Mask::Window { left, right }));
        let masks: std::vec::Vec<Mask> = windows.chain([Mask::Full, Mask::Causal]).collect();
        for (q_len, k_len) in lengths.into_iter().flat_map(|q_len| lengths.map(|k_len| (q_len, k_len))) {
            for &mask in &masks {
                let pairs = mask.visible_pairs(q_len, k_len);
                let every = q_len as u128 * k_len as u128;
                assert_eq!(mask.hides_nothing(q_len, k_len), pairs == every || q_len == 0, "{mask} {q_len} {k_len}");
                let (first, last) = mask.key_offsets(q_len, k_len);
                assert!(first <= last, "{mask} {q_len} {k_len}: {first} {last}");
                for row in [0, q_len / 2, q_len.saturating_sub(1)].into_iter().filter(|&row| row < q_len) {
                    let position = row as i128 + k_len as i128 - q_len as i128;
                    let (left, right) = match mask {
                        Mask::Full => (i128::from(u64::MAX) * 2, i128::from(u64::MAX) * 2),
                        Mask::Causal => (i128::from(u64::MAX) * 2, 0),
                        Mask::Window { left, right } => (left as i128, right as i128),
                    };
                    let range = mask.key_range(row, q_len, k_len);
                    for key in [0, 1, k_len / 2, k_len.saturating_sub(1)].into_iter().filter(|&key| key < k_len) {
                        let distance = key as i128 - position;
                        let sees = -left <= distance && distance <= right;
                        assert_eq!(range.contains(&key), sees, "{mask} {q_len} {k_len} {row} {key}");
                    }
                }
            }
        }
    }

    #[test]
    fn key_offsets_do_not_overflow_at_the_longest_lengths() {
        for mask in [Mask::Full, Mask::Causal, Mask::Window { left: usize::MAX, right: usize::MAX }] {
            let (first, last) = mask.key_offsets(MAX_LEN, MAX_LEN);
            assert!((MAX_LEN as i32 - 1).checked_add(last).is_some());
            assert!(first.checked_sub(1).is_some());
        }
    }

    #[test]
    fn the_reach_of_a_mask_gives_the_keys_that_it_shows() {
        let windows = (0..9).flat_map(|left| (0..9).map(move |right| Mask::Window { left, right }));
        let all = usize::MAX;
        let wide = [Mask::Window { left: all, right: 1 }, Mask::Window { left: 0, right: all }];
        let masks: std::vec::Vec<Mask> = windows.chain(wide).chain([Mask::Full, Mask::Causal]).collect();
        let lens = [0, 1, 2, 5, 7, MAX_LEN];
        for (q_len, k_len) in lens.iter().flat_map(|&q_len| lens.map(|k_len| (q_len, k_len))) {
            for &mask in &masks {
                let (first, last) = Mask::offsets_of_reach(mask.reach(), q_len as i32, k_len as i32);
                for row in [0, 1, 3, q_len.saturating_sub(1)].into_iter().filter(|&row| row < q_len) {
                    let start = (row as i32 + first).max(0) as usize;
                    let end = ((row as i32 + last).min(k_len as i32 - 1) + 1).max(0) as usize;
                    let expected = mask.key_range(row, q_len, k_len);
                    let same = if expected.is_empty() { start >= end } else { (start..end) == expected };
                    assert!(same, "{mask} {q_len} {k_len} {row}: {start}..{end}, expected {expected:?}");
                }
            }
        }
    }

    #[test]
    fn masks_parse_back() {
        for mask in [Mask::Full, Mask::Causal, Mask::Window { left: 3, right: 0 }] {
            assert_eq!(mask.to_string().parse(), Ok(mask));
        }
        for text in ["", "window", "window:1", "window:-1,2", "window:1,2,3", "Full"] {
            assert_eq!(text.parse::<Mask>(), Err(ParseMaskError), "{text}");
        }
    }
}
