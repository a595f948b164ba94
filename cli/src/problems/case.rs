//! Cases of the attention benchmark: `BxHxSxD/mask/dtype`, or `BxHq:HkvxSxD/mask/dtype` where heads share keys, with
//! `DvE` in place of `D` where V has head dimension E; then `/softcap`, `/bias` or `/varlen`. The type is f16, bf16,
//! e4m3 with an O of bf16 and without factors, or u8 with an O of f16 and a factor for each tensor.

use std::fmt;
use std::str::FromStr;

use ferrotile::{BatchedSizes, Dtype, Layout, Mask, VarlenSizes};

use crate::problems::request::Request;

/// What a case has beside a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Nothing.
    None,
    /// Scores are bounded by [`SOFTCAP`].
    Softcap,
    /// A bias `[1, 1, S, S]`, which all heads share.
    Bias,
    /// Sequences of several lengths, [`Case::lens`], that follow each other.
    Varlen,
}

/// What bounds scores in cases with a softcap.
const SOFTCAP: f32 = 50.0;

impl Extra {
    /// All but [`Extra::None`], by name.
    const NAMED: [(Extra, &str); 3] = [(Extra::Softcap, "softcap"), (Extra::Bias, "bias"), (Extra::Varlen, "varlen")];
}

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
    /// Head dimension of Q and K.
    pub(crate) head_dim: usize,
    /// Head dimension of V.
    pub(crate) value_dim: usize,
    /// The mask.
    pub(crate) mask: Mask,
    /// f16, bf16, e4m3 with an O of bf16, or u8 with an O of f16.
    pub(crate) dtype: Dtype,
    /// What else is to be computed.
    pub(crate) extra: Extra,
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

/// What is measured beside them with `all`: V with a head dimension of its own, shared keys, a window, and each
/// of [`Extra`].
const FEATURES: [&str; 27] = [
    "4x16x4096x192v128/full/f16",
    "4x16x4096x192v128/causal/f16",
    "4x32:8x4096x128/causal/f16",
    "4x32:4x4096x64/causal/f16",
    "1x16x16384x128/window:1024,0/f16",
    "4x32x4096x64/window:1024,0/f16",
    "4x16x4096x128/causal/f16/softcap",
    "4x32x4096x64/causal/f16/softcap",
    "4x8x4096x256/causal/f16/softcap",
    "4x16x4096x128/full/f16/bias",
    "4x32x4096x64/full/f16/bias",
    "8x16x4096x128/full/f16/varlen",
    "8x16x4096x128/causal/f16/varlen",
    "8x32x4096x64/causal/f16/varlen",
    "64x32x1024x64/causal/f16/varlen",
    "8x8x4096x256/causal/f16/varlen",
    "8x16x4096x192v128/causal/f16/varlen",
    "4x32:8x4096x128/causal/e4m3",
    "4x16x4096x96/causal/e4m3",
    "4x16x4096x192/causal/e4m3",
    "4x16x4096x192v128/causal/e4m3",
    "4x16x4096x128/causal/e4m3/softcap",
    "4x16x4096x128/full/e4m3/bias",
    "8x16x4096x128/causal/e4m3/varlen",
    "1x8x512x64/full/u8",
    "1x8x2048x64/full/u8",
    "4x16x4096x128/full/u8",
];

/// How many of [`SHAPES`] are measured unless more are asked for: the small ones, in seconds.
const SHORT: usize = 4;

/// Work up to this many query rows in all is measured by replaying a graph, where a launch costs nothing.
pub(crate) const SMALL_ROWS: usize = 32768;

impl Case {
    /// The cases measured where none is named: the short list in f16, or with `all` every shape in every type.
    pub(crate) fn defaults(all: bool) -> Vec<Case> {
        let every = [Dtype::F16, Dtype::Bf16, Dtype::E4M3];
        let (shapes, dtypes) = if all { (&SHAPES[..], &every[..]) } else { (&SHAPES[..SHORT], &every[..1]) };
        let mut cases = Vec::new();
        for &(batch, heads, len, head_dim) in shapes {
            for &dtype in dtypes {
                for mask in [Mask::Full, Mask::Causal] {
                    let (q_heads, kv_heads, value_dim, extra) = (heads, heads, head_dim, Extra::None);
                    cases.push(Case { batch, q_heads, kv_heads, len, head_dim, value_dim, mask, dtype, extra });
                }
            }
        }
        if all {
            cases.extend(FEATURES.map(|text| text.parse::<Case>().expect("a case of the list")));
        }
        cases
    }

    /// How long the sequences of the batch entries are: from a part of the length, as many as there are entries, up to
    /// all of it.
    pub(crate) fn lens(&self) -> impl Iterator<Item = usize> {
        let Case { batch, len, extra, .. } = *self;
        (1..=batch).map(move |entry| if extra == Extra::Varlen { (len * entry).div_ceil(batch) } else { len })
    }

    /// The sizes of the case where sequences follow each other.
    pub(crate) fn sequences(&self) -> VarlenSizes {
        let Case { batch, q_heads, kv_heads, len, head_dim, .. } = *self;
        let total = self.lens().sum();
        VarlenSizes {
            batch,
            q_heads,
            kv_heads,
            q_total: total,
            k_total: total,
            max_q_len: len,
            max_k_len: len,
            head_dim,
        }
    }

    /// Whether the case is so small that launching it would be measured instead of running it.
    pub(crate) fn is_small(&self) -> bool {
        self.q_heads * self.lens().sum::<usize>() <= SMALL_ROWS
    }

    /// The sizes of the case.
    pub(crate) fn problem(&self) -> BatchedSizes {
        let Case { batch, q_heads, kv_heads, len, head_dim, .. } = *self;
        BatchedSizes { batch, q_heads, kv_heads, q_len: len, k_len: len, head_dim }
    }

    /// What a card is asked for the case.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::new(Layout::Bhsd).of_tensors(self.extra == Extra::Bias, self.value_dim);
        request.params.mask = self.mask;
        request.params.softcap = (self.extra == Extra::Softcap).then_some(SOFTCAP);
        request
    }

    /// Whether attention takes the sizes.
    pub(crate) fn check(&self) -> ferrotile::Result<()> {
        self.problem().check()?;
        self.request().check(self.head_dim)?;
        if self.extra == Extra::Varlen { self.sequences().check() } else { Ok(()) }
    }

    /// Floating-point operations as attention benchmarks count them: two products of the full size, half of that for a
    /// causal mask, and the visible part for a window.
    pub(crate) fn flops(&self) -> f64 {
        let pairs = |len: usize| match self.mask {
            Mask::Full => (len as f64).powi(2),
            Mask::Causal => (len as f64).powi(2) / 2.0,
            Mask::Window { .. } => self.mask.visible_pairs(len, len) as f64,
        };
        let columns = self.q_heads * (self.head_dim + self.value_dim);
        2.0 * columns as f64 * self.lens().map(pairs).sum::<f64>()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { batch, q_heads, kv_heads, len, head_dim, value_dim, mask, dtype, extra } = self;
        let heads = if q_heads == kv_heads { q_heads.to_string() } else { format!("{q_heads}:{kv_heads}") };
        let dims = if head_dim == value_dim { head_dim.to_string() } else { format!("{head_dim}v{value_dim}") };
        let named = Extra::NAMED.iter().find(|(known, _)| known == extra);
        let end = named.map_or(String::new(), |(_, name)| format!("/{name}"));
        f.pad(&format!("{batch}x{heads}x{len}x{dims}/{mask}/{dtype}{end}"))
    }
}

/// The text is not a case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseCaseError {
    /// Not these parts, or not four sizes.
    #[error(
        "expected BxHxSxD/mask/dtype, such as 1x8x512x64/causal/f16 (or bf16, e4m3 or u8; or BxHq:HkvxSxD, or BxHxSxDvE), and then /softcap, /bias or /varlen"
    )]
    Grammar,
    /// Not a mask.
    #[error("{0}")]
    Mask(#[from] variants::attention::ParseMaskError),
    /// A size that cannot be measured.
    #[error("{0}")]
    Size(&'static str),
}

impl FromStr for Case {
    type Err = ParseCaseError;

    fn from_str(text: &str) -> Result<Case, ParseCaseError> {
        let named = Extra::NAMED.iter().find_map(|&(extra, name)| {
            let rest = text.strip_suffix(name)?.strip_suffix('/')?;
            Some((rest, extra))
        });
        let (text, extra) = named.unwrap_or((text, Extra::None));
        let [shape, mask, dtype] = split(text, '/')?;
        let [batch, heads, len, dims] = split(shape, 'x')?;
        let (head_dim, value_dim) = dims.split_once('v').unwrap_or((dims, dims));
        let (q_heads, kv_heads) = heads.split_once(':').unwrap_or((heads, heads));
        let size = |text: &str| text.parse().map_err(|_| ParseCaseError::Grammar);
        let case = Case {
            batch: size(batch)?,
            q_heads: size(q_heads)?,
            kv_heads: size(kv_heads)?,
            len: size(len)?,
            head_dim: size(head_dim)?,
            value_dim: size(value_dim)?,
            mask: mask.parse()?,
            dtype: match dtype {
                "f16" => Dtype::F16,
                "bf16" => Dtype::Bf16,
                "e4m3" => Dtype::E4M3,
                "u8" => Dtype::U8,
                _ => return Err(ParseCaseError::Grammar),
            },
            extra,
        };
        let sizes = [case.batch, case.q_heads, case.kv_heads, case.len, case.head_dim, case.value_dim];
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
        let values: Case = "2x8x33x192v128/full/f16/varlen".parse().unwrap();
        assert_eq!((values.head_dim, values.value_dim), (192, 128));
        assert_eq!(values.to_string(), "2x8x33x192v128/full/f16/varlen");
    }

    #[test]
    fn what_is_not_a_case_is_refused() {
        for text in [
            "",
            "1x8x512x64",
            "1x8x512x64v/full/f16",
            "1x8x512x64v0/full/f16",
            "1x8x512v64/full/f16",
            "1x8x512x64/full",
            "1x8x512/full/f16",
            "1x8x512x64/full/f32",
            "0x8x512x64/full/f16",
        ] {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
        for end in ["/", "//softcap", "/softcap/", "/softcap/bias", "/sink", "softcap"] {
            let text = format!("1x8x512x64/full/f16{end}");
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
        assert!("1x8x512x64/left/f16".parse::<Case>().unwrap_err().to_string().contains("window:"));
        assert!("99999999999x99999999999x9x9/full/f16".parse::<Case>().is_err());
    }

    #[test]
    fn operations_follow_the_mask() {
        let case = |text: &str| text.parse::<Case>().unwrap().flops();
        assert_eq!(case("1x8x512x64/full/f16"), 4.0 * 8.0 * 512.0 * 512.0 * 64.0);
        assert_eq!(case("1x8x512x64v32/full/f16"), 2.0 * 8.0 * 512.0 * 512.0 * 96.0);
        assert_eq!(case("1x8x512x64/causal/f16") * 2.0, case("1x8x512x64/full/f16"));
        assert_eq!(case("1x1x100x64/window:0,0/f16"), 4.0 * 100.0 * 64.0);
        assert_eq!(case("2x1x100x64/full/f16/varlen"), 4.0 * (50.0 * 50.0 + 100.0 * 100.0) * 64.0);
    }
}
