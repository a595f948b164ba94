//! Cases of the attention benchmark: `BxHxSxD/mask/dtype`, or `BxHq:HkvxSxD/mask/dtype` where heads share keys.

use std::fmt;
use std::str::FromStr;

use ferrotile::{AttentionProblem, Dtype, Mask};

/// One shape, mask and element type to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    /// Batch entries.
    pub(crate) batch: usize,
    /// Query heads.
    pub(crate) q_heads: usize,
    /// Key-value heads.
    pub(crate) kv_heads: usize,
    /// Query rows and keys.
    pub(crate) len: usize,
    /// Head dimension.
    pub(crate) head_dim: usize,
    /// The mask.
    pub(crate) mask: Mask,
    /// f16 or bf16.
    pub(crate) dtype: Dtype,
}

/// The shapes (B, H, S, D) of the benchmark against vendor libraries.
const SHAPES: [(usize, usize, usize, usize); 15] = [
    (1, 1, 32, 64),
    (1, 8, 512, 64),
    (1, 8, 2048, 64),
    (2, 8, 512, 64),
    (32, 32, 512, 64),
    (16, 32, 1024, 64),
    (4, 32, 4096, 64),
    (1, 32, 16384, 64),
    (32, 16, 512, 128),
    (8, 16, 2048, 128),
    (4, 16, 4096, 128),
    (1, 16, 16384, 128),
    (32, 8, 512, 256),
    (4, 8, 4096, 256),
    (1, 8, 16384, 256),
];

/// How many of [`SHAPES`] are measured unless more are asked for: the small ones, in seconds.
const SHORT: usize = 4;

/// Work up to this many query rows in all is measured by replaying a graph, where a launch costs nothing.
pub(crate) const SMALL_ROWS: usize = 32768;

impl Case {
    /// The cases measured where none is named: the short list in f16, or with `all` every shape in f16 and bf16.
    pub(crate) fn defaults(all: bool) -> Vec<Case> {
        let (shapes, dtypes) =
            if all { (&SHAPES[..], &[Dtype::F16, Dtype::Bf16][..]) } else { (&SHAPES[..SHORT], &[Dtype::F16][..]) };
        let mut cases = Vec::new();
        for &(batch, heads, len, head_dim) in shapes {
            for &dtype in dtypes {
                for mask in [Mask::Full, Mask::Causal] {
                    cases.push(Case { batch, q_heads: heads, kv_heads: heads, len, head_dim, mask, dtype });
                }
            }
        }
        cases
    }

    /// Whether the case is so small that launching it would be measured instead of running it.
    pub(crate) fn is_small(&self) -> bool {
        self.batch * self.q_heads * self.len <= SMALL_ROWS
    }

    /// The sizes of the case.
    pub(crate) fn problem(&self) -> AttentionProblem {
        let Case { batch, q_heads, kv_heads, len, head_dim, .. } = *self;
        AttentionProblem { batch, q_heads, kv_heads, q_len: len, k_len: len, head_dim }
    }

    /// Floating-point operations by the convention of attention benchmarks: two products of the full size, half of that for
    /// a causal mask, and the visible part for a window.
    pub(crate) fn flops(&self) -> f64 {
        let heads = (self.batch * self.q_heads * self.head_dim) as f64;
        let square = (self.len as f64).powi(2);
        let pairs = match self.mask {
            Mask::Full => square,
            Mask::Causal => square / 2.0,
            Mask::Window { .. } => self.mask.visible_pairs(self.len, self.len) as f64,
        };
        4.0 * heads * pairs
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { batch, q_heads, kv_heads, len, head_dim, mask, dtype } = self;
        let heads = if q_heads == kv_heads { q_heads.to_string() } else { format!("{q_heads}:{kv_heads}") };
        f.pad(&format!("{batch}x{heads}x{len}x{head_dim}/{mask}/{dtype}"))
    }
}

/// The text is not a case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseCaseError {
    /// Not three parts, or not four sizes.
    #[error("expected BxHxSxD/mask/dtype, such as 1x8x512x64/causal/f16 (or BxHq:HkvxSxD)")]
    Grammar,
    /// Not a mask.
    #[error("{0}")]
    Mask(#[from] layout::attention::ParseMaskError),
    /// A size that cannot be measured.
    #[error("{0}")]
    Size(&'static str),
}

impl FromStr for Case {
    type Err = ParseCaseError;

    fn from_str(text: &str) -> Result<Case, ParseCaseError> {
        let [shape, mask, dtype] = split(text, '/')?;
        let [batch, heads, len, head_dim] = split(shape, 'x')?;
        let (q_heads, kv_heads) = heads.split_once(':').unwrap_or((heads, heads));
        let size = |text: &str| text.parse().map_err(|_| ParseCaseError::Grammar);
        let case = Case {
            batch: size(batch)?,
            q_heads: size(q_heads)?,
            kv_heads: size(kv_heads)?,
            len: size(len)?,
            head_dim: size(head_dim)?,
            mask: mask.parse()?,
            dtype: match dtype {
                "f16" => Dtype::F16,
                "bf16" => Dtype::Bf16,
                _ => return Err(ParseCaseError::Grammar),
            },
        };
        let sizes = [case.batch, case.q_heads, case.kv_heads, case.len, case.head_dim];
        if sizes.contains(&0) {
            return Err(ParseCaseError::Size("every size is at least 1"));
        }
        if sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).is_none() {
            return Err(ParseCaseError::Size("the sizes are too large"));
        }
        Ok(case)
    }
}

fn split<const N: usize>(text: &str, separator: char) -> Result<[&str; N], ParseCaseError> {
    text.split(separator).collect::<Vec<_>>().try_into().map_err(|_| ParseCaseError::Grammar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_parse_back() {
        for case in Case::defaults(true) {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        let grouped: Case = "2x8:2x33x64/window:3,0/bf16".parse().unwrap();
        assert_eq!((grouped.q_heads, grouped.kv_heads), (8, 2));
        assert_eq!(grouped.to_string(), "2x8:2x33x64/window:3,0/bf16");
    }

    #[test]
    fn what_is_not_a_case_is_refused() {
        for text in
            ["", "1x8x512x64", "1x8x512x64/full", "1x8x512/full/f16", "1x8x512x64/full/f32", "0x8x512x64/full/f16"]
        {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
        assert!("1x8x512x64/left/f16".parse::<Case>().unwrap_err().to_string().contains("window:"));
        assert!("99999999999x99999999999x9x9/full/f16".parse::<Case>().is_err());
    }

    #[test]
    fn operations_follow_the_mask() {
        let case = |text: &str| text.parse::<Case>().unwrap().flops();
        assert_eq!(case("1x8x512x64/full/f16"), 4.0 * 8.0 * 512.0 * 512.0 * 64.0);
        assert_eq!(case("1x8x512x64/causal/f16") * 2.0, case("1x8x512x64/full/f16"));
        assert_eq!(case("1x1x100x64/window:0,0/f16"), 4.0 * 100.0 * 64.0);
    }
}
