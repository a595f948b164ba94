//! Which problems a configuration serves.

use layout::{Arch, Dtype};

use super::config::{AttentionConfig, AttentionKernel, MaskKind, ScoreMod, Seqlens};
use super::fp8::has_transposed_values;
use super::{DECODE_ROWS, Mask};

impl AttentionConfig {
    /// Whether this configuration serves problems whose Q, K and V have this element type, of these head dimensions
    /// (that of Q and K, and that of V and O), in the module of `arch`.
    pub const fn serves(&self, arch: Arch, dtype: Dtype, head_dims: [usize; 2]) -> bool {
        self.serves_types(arch, [dtype; 2], head_dims)
    }

    /// The same for an element type of Q and one of K and V.
    pub const fn serves_types(
        &self,
        arch: Arch,
        [dtype, kv_dtype]: [Dtype; 2],
        [head_dim, value_dim]: [usize; 2],
    ) -> bool {
        self.compiled_for(arch)
            && self.dtype as u8 == dtype as u8
            && self.kv_dtype as u8 == kv_dtype as u8
            && head_dim <= self.head_dim
            && value_dim <= self.value_dim
    }

    /// Whether it computes these scores of sequences of these lengths.
    pub fn covers(&self, score_mod: ScoreMod, seqlens: Seqlens) -> bool {
        self.score_mod.includes(score_mod) && seqlens <= self.seqlens
    }

    /// Whether the kernel takes factors of its inputs, as its last argument: [`DescaleArgs`](super::DescaleArgs).
    pub const fn has_descales(&self) -> bool {
        matches!(self.kv_dtype, Dtype::E4M3 | Dtype::U8)
    }

    /// Whether it serves a bias beside inputs of E4M3.
    pub(super) const fn is_general_e4m3(&self) -> bool {
        matches!((self.dtype, self.score_mod), (Dtype::E4M3, ScoreMod::General))
    }

    /// Whether the kernel can round O to E4M3 in place of its element type, where the launch says so
    /// ([`DescaleArgs::out_scale`](super::DescaleArgs::out_scale)).
    ///
    /// At head dimension 128 the plain `mma` kernel has no registers for it on sm_90a, and the general one takes its
    /// place.
    pub const fn may_narrow_out(&self) -> bool {
        let is_plain_mma = matches!((self.kernel, self.score_mod), (AttentionKernel::Mma(_), ScoreMod::None));
        matches!((self.dtype, self.out), (Dtype::E4M3, Dtype::F16)) && !(is_plain_mma && self.head_dim == 128)
    }

    /// Whether it takes a problem of these lengths and this mask.
    pub fn takes(&self, mask: Mask, q_len: usize, k_len: usize) -> bool {
        match self.kernel {
            AttentionKernel::Scalar | AttentionKernel::Mma(_) => true,
            AttentionKernel::Decode(_) => q_len <= DECODE_ROWS,
            AttentionKernel::Wgmma(tile) => {
                (k_len > 0 || has_transposed_values(self.dtype))
                    && (tile.mask == MaskKind::Masked || mask.hides_nothing(q_len, k_len))
            }
        }
    }
}
