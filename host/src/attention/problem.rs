//! The sizes of attention problems.

use variants::attention::{HEAD_DIM_STEP, MAX_HEAD_DIM, MAX_LEN, Mask};

use super::{Layout, OP};
use crate::error::{Error, Result};

/// The sizes of an attention problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionProblem {
    /// Batch entries.
    pub batch: usize,
    /// Heads of Q and O.
    pub q_heads: usize,
    /// Heads of K and V, a divisor of `q_heads`: query head h reads key-value head `h / (q_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Rows of Q and O.
    pub q_len: usize,
    /// Rows of K and V.
    pub k_len: usize,
    /// Head dimension of Q and K, and unless the options say otherwise of V and O: a multiple of 8 up to 256.
    pub head_dim: usize,
}

impl AttentionProblem {
    /// The sizes of tensors of these shapes, which are in `layout`. V may have a head dimension of its own.
    ///
    /// # Errors
    /// [`Error::Shape`] where V is not shaped like K otherwise, or K does not have the batch and head dimension of Q.
    pub fn of_shapes(q: [usize; 4], k: [usize; 4], v: [usize; 4], layout: Layout) -> Result<Self> {
        let [batch, q_heads, q_len, head_dim] = layout.reorder(q);
        let [_, kv_heads, k_len, _] = layout.reorder(k);
        let problem = Self { batch, q_heads, kv_heads, q_len, k_len, head_dim };
        check_shape("K", &k, &problem.kv_shape(layout))?;
        check_shape("V", &v, &problem.v_shape(layout, v[3]))?;
        Ok(problem)
    }

    /// The shape of Q, and of O where V has the head dimension of Q.
    #[must_use]
    pub fn q_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.q_heads, self.q_len, self.head_dim])
    }

    /// The shape of K, and of V where it has the same head dimension.
    #[must_use]
    pub fn kv_shape(&self, layout: Layout) -> [usize; 4] {
        layout.reorder([self.batch, self.kv_heads, self.k_len, self.head_dim])
    }

    /// The shape of V that has a head dimension of its own.
    #[must_use]
    pub fn v_shape(&self, layout: Layout, value_dim: usize) -> [usize; 4] {
        with_columns(self.kv_shape(layout), value_dim)
    }

    /// The shape of O where V has a head dimension of its own.
    #[must_use]
    pub fn out_shape(&self, layout: Layout, value_dim: usize) -> [usize; 4] {
        with_columns(self.q_shape(layout), value_dim)
    }

    /// The floating-point operations of the keys that `mask` leaves: a multiplication and an addition for each element
    /// of Q K^T and of P V.
    #[must_use]
    pub fn flops(&self, mask: Mask) -> f64 {
        let pairs = mask.visible_pairs(self.q_len, self.k_len) as f64;
        4.0 * self.batch as f64 * self.q_heads as f64 * self.head_dim as f64 * pairs
    }

    /// Whether attention takes these sizes; [`AttentionPlan::new`](super::AttentionPlan::new) checks it too. Needs no
    /// card.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the size and what is allowed.
    pub fn check(&self) -> Result<()> {
        let argument = |argument, got: usize, expected: String| Error::Argument {
            op: OP,
            argument,
            got: got.to_string(),
            expected,
        };
        check_head_dim("head_dim", self.head_dim)?;
        if self.q_heads > 0 && (self.kv_heads == 0 || !self.q_heads.is_multiple_of(self.kv_heads)) {
            return Err(argument("kv_heads", self.kv_heads, format!("a divisor of the {} query heads", self.q_heads)));
        }
        for (name, len) in [("q_len", self.q_len), ("k_len", self.k_len)] {
            if len > MAX_LEN {
                return Err(argument(name, len, format!("at most {MAX_LEN}")));
            }
        }
        Ok(())
    }
}

/// Whether kernels take this head dimension.
pub(super) fn check_head_dim(argument: &'static str, head_dim: usize) -> Result<()> {
    if head_dim > 0 && head_dim <= MAX_HEAD_DIM && head_dim.is_multiple_of(HEAD_DIM_STEP) {
        return Ok(());
    }
    let expected = format!("a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}: pad with zeros and give the scale");
    Err(Error::Argument { op: OP, argument, got: head_dim.to_string(), expected })
}

/// The same shape with so many columns: those of V in place of those of Q.
pub(super) const fn with_columns<const RANK: usize>(mut shape: [usize; RANK], columns: usize) -> [usize; RANK] {
    shape[RANK - 1] = columns;
    shape
}

pub(super) fn check_shape(tensor: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: AttentionProblem =
        AttentionProblem { batch: 2, q_heads: 6, kv_heads: 3, q_len: 5, k_len: 7, head_dim: 64 };

    fn rejected(problem: AttentionProblem) -> &'static str {
        match problem.check() {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{problem:?}: {other:?}"),
        }
    }

    #[test]
    fn shapes_give_the_problem_back_in_both_layouts() {
        for layout in [Layout::Bhsd, Layout::Bshd] {
            let (q, kv) = (PROBLEM.q_shape(layout), PROBLEM.kv_shape(layout));
            assert_eq!(AttentionProblem::of_shapes(q, kv, kv, layout), Ok(PROBLEM));
        }
        assert_eq!(PROBLEM.q_shape(Layout::Bshd), [2, 5, 6, 64]);
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let (q, kv) = (PROBLEM.q_shape(Layout::Bhsd), PROBLEM.kv_shape(Layout::Bhsd));
        let wider = [2, 3, 7, 128];
        assert_eq!(AttentionProblem::of_shapes(q, kv, wider, Layout::Bhsd), Ok(PROBLEM));
        for (k, v, named) in [([3, 3, 7, 64], kv, "K"), (wider, kv, "K"), (kv, [2, 3, 8, 64], "V")] {
            match AttentionProblem::of_shapes(q, k, v, Layout::Bhsd) {
                Err(Error::Shape { tensor, .. }) => assert_eq!(tensor, named),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn sizes_that_no_variant_takes_are_named() {
        assert_eq!(PROBLEM.check(), Ok(()));
        for head_dim in [0, 4, 12, 257, 264] {
            assert_eq!(rejected(AttentionProblem { head_dim, ..PROBLEM }), "head_dim");
        }
        for kv_heads in [0, 4, 12] {
            assert_eq!(rejected(AttentionProblem { kv_heads, ..PROBLEM }), "kv_heads");
        }
        assert_eq!(rejected(AttentionProblem { k_len: MAX_LEN + 1, ..PROBLEM }), "k_len");
        assert_eq!(AttentionProblem { q_heads: 0, kv_heads: 0, ..PROBLEM }.check(), Ok(()));
    }

    #[test]
    fn flops_count_what_the_mask_leaves() {
        assert_eq!(PROBLEM.flops(Mask::Full), 4.0 * 12.0 * 64.0 * 35.0);
        assert_eq!(PROBLEM.flops(Mask::Causal), 4.0 * 12.0 * 64.0 * (3 + 4 + 5 + 6 + 7) as f64);
        let vast = AttentionProblem { batch: 1 << 40, q_heads: 1 << 40, ..PROBLEM };
        assert_eq!(vast.flops(Mask::Full), 4.0 * 2f64.powi(80) * 64.0 * 35.0);
    }
}
