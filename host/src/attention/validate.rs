//! Checks of the numbers that stand on the card alone: where sequences start, how many keys there are and in which
//! pages.

use super::sizes::{OP, PagedSizes, VarlenSizes};
use crate::checks::has_shape;
use crate::error::{Error, Result};
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::TensorRef;

impl VarlenSizes {
    /// Downloads the lengths, which waits for the stream, and checks that they describe sequences of these sizes.
    /// Lengths must ascend, from 0 or more to at most the rows of their tensor, and no batch entry may be longer than
    /// the problem's longest.
    ///
    /// [`attention_varlen`](crate::attention_varlen) says what a call computes where they do not.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for the first number that is wrong, `cu_seqlens_q` before `cu_seqlens_k`. [`Error::Shape`]
    /// and [`Error::WrongDevice`] for the tensors, those of [`VarlenSizes::check`], and those of the copies.
    pub fn validate_blocking<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        cu_seqlens_q: TensorRef<'_, i32, 1>,
        cu_seqlens_k: TensorRef<'_, i32, 1>,
    ) -> Result<()> {
        let stream = stream.into();
        self.check()?;
        for (tensor, starts, total, longest) in [
            ("cu_seqlens_q", cu_seqlens_q, self.q_total, self.max_q_len),
            ("cu_seqlens_k", cu_seqlens_k, self.k_total, self.max_k_len),
        ] {
            has_shape(OP, tensor, starts.shape(), &[self.batch + 1])?;
            check_starts(tensor, &starts.download_blocking(tensor, stream)?, total, longest)?;
        }
        Ok(())
    }
}

impl PagedSizes {
    /// Downloads the numbers of keys and the block table, which waits for the stream, and checks that they describe
    /// keys of these sizes. There must be no more keys than the table has room for, and their pages must exist. Entries
    /// of the table without keys can be anything.
    ///
    /// [`paged_attention`](crate::paged_attention()) says what a call computes where they do not.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for the first number that is wrong, numbers of keys before the table. [`Error::Shape`] and
    /// [`Error::WrongDevice`] for the tensors, those of [`PagedSizes::check`], and those of the copies.
    pub fn validate_blocking<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        block_table: TensorRef<'_, i32, 2>,
        k_lens: TensorRef<'_, i32, 1>,
    ) -> Result<()> {
        let stream = stream.into();
        self.check()?;
        has_shape(OP, "block table", block_table.shape(), &[self.batch, self.table_len])?;
        has_shape(OP, "numbers of keys", k_lens.shape(), &[self.batch])?;
        let k_lens = k_lens.download_blocking("numbers of keys", stream)?;
        let table = block_table.download_blocking("block table", stream)?;
        self.check_pages(&k_lens, &table)
    }

    fn check_pages(&self, k_lens: &[i32], table: &[i32]) -> Result<()> {
        let most_keys = (self.page_len * self.table_len) as i64;
        for (entry, &keys) in k_lens.iter().enumerate() {
            check_range("numbers of keys", &[entry], keys, 0, most_keys)?;
        }
        for (entry, &keys) in k_lens.iter().enumerate() {
            let used = (keys as usize).div_ceil(self.page_len);
            for (index, &page) in table[entry * self.table_len..][..used].iter().enumerate() {
                check_range("block table", &[entry, index], page, 0, self.pages as i64 - 1)?;
            }
        }
        Ok(())
    }
}

/// Whether sequences of at most `longest` rows start and end at these numbers, in a tensor of `total` rows.
fn check_starts(tensor: &'static str, starts: &[i32], total: usize, longest: usize) -> Result<()> {
    let (total, longest) = (total as i64, longest as i64);
    let (mut least, mut most) = (0, total);
    for (index, &start) in starts.iter().enumerate() {
        check_range(tensor, &[index], start, least, most)?;
        least = i64::from(start);
        most = total.min(least + longest);
    }
    Ok(())
}

fn check_range(tensor: &'static str, index: &[usize], got: i32, least: i64, most: i64) -> Result<()> {
    let got = i64::from(got);
    if (least..=most).contains(&got) {
        return Ok(());
    }
    Err(Error::OutOfRange { op: OP, tensor, index: index.to_vec(), got, least, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(tensor: &'static str, index: &[usize], got: i64, least: i64, most: i64) -> Result<()> {
        Err(Error::OutOfRange { op: OP, tensor, index: index.to_vec(), got, least, most })
    }

    #[test]
    fn starts_ascend_within_the_tensor_and_leave_no_entry_too_long() {
        let check = |starts: &[i32]| check_starts("starts", starts, 64, 34);
        for right in [&[0][..], &[64], &[0, 30, 64], &[5, 5, 39, 39], &[]] {
            assert_eq!(check(right), Ok(()), "{right:?}");
        }
        assert_eq!(check(&[0, 30, 64, 70]), wrong("starts", &[3], 70, 64, 64));
        assert_eq!(check(&[-4, 30, 64]), wrong("starts", &[0], -4, 0, 64));
        assert_eq!(check(&[0, 30, 29]), wrong("starts", &[2], 29, 30, 64));
        assert_eq!(check(&[0, 35]), wrong("starts", &[1], 35, 0, 34));
        assert_eq!(check(&[i32::MIN]), wrong("starts", &[0], i32::MIN.into(), 0, 64));
        assert_eq!(check(&[0, i32::MAX]), wrong("starts", &[1], i32::MAX.into(), 0, 34));
    }

    #[test]
    fn pages_in_use_exist_and_others_may_be_anything() {
        let problem = PagedSizes {
            batch: 2,
            q_heads: 1,
            kv_heads: 1,
            q_len: 1,
            head_dim: 64,
            pages: 3,
            page_len: 16,
            table_len: 2,
        };
        let check = |k_lens: [i32; 2], table: [i32; 4]| problem.check_pages(&k_lens, &table);
        assert_eq!(check([32, 0], [0, 2, -1, 9]), Ok(()));
        assert_eq!(check([16, 17], [1, -7, 0, 1]), Ok(()));
        assert_eq!(check([33, 0], [0; 4]), wrong("numbers of keys", &[0], 33, 0, 32));
        assert_eq!(check([0, -1], [9; 4]), wrong("numbers of keys", &[1], -1, 0, 32));
        assert_eq!(check([17, 0], [0, 3, 0, 0]), wrong("block table", &[0, 1], 3, 0, 2));
        assert_eq!(check([0, 1], [9, 9, -1, 9]), wrong("block table", &[1, 0], -1, 0, 2));
        let text = check([0, 1], [9, 9, -1, 9]).unwrap_err().to_string();
        assert_eq!(text, "attention: block table[1, 0] is -1, allowed: 0 to 2");
    }
}
