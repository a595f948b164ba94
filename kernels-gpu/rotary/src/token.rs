//! The member, the position and the place in the cache of a token.
//!
//! Others may write numbers on the card meanwhile. A thread reads each once and cuts it to its tensor after that.

use cuda_std::global;
use variants::rotary::RotaryArgs;

/// One row of Q, K and V.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    /// The batch entry of Q, K and V.
    pub(crate) batch: u32,
    /// Its row.
    pub(crate) row: u32,
    /// Whose token it is.
    pub(crate) member: u32,
    /// Its place among all rows of the member, those in the cache before it included.
    place: i64,
}

impl Token {
    /// Token `token`; `None` where it belongs to no member.
    ///
    /// # Safety
    /// `args` describes the numbers on the card.
    #[inline(always)]
    pub(crate) unsafe fn find(args: &RotaryArgs, token: u32) -> Option<Self> {
        let (batch, row) = div_rem(token, args.rows);
        let (mut member, mut of_member) = (batch, row);
        if args.cu_seqlens != 0 {
            // SAFETY: there are `members + 1` numbers.
            let start = |member| unsafe { number(args.cu_seqlens, i64::from(member)) };
            let mut end = args.members;
            member = 0;
            while member + 1 < end {
                let middle = member + (end - member) / 2;
                if start(middle) <= row as i32 { member = middle } else { end = middle }
            }
            let first = start(member);
            if first < 0 || first > row as i32 || start(member + 1) <= row as i32 {
                return None;
            }
            of_member = row - first as u32;
        }
        let cached = match args.cache_seqlens {
            0 => 0,
            // SAFETY: there is a number for each member.
            seqlens => unsafe { number(seqlens, i64::from(member)) },
        };
        // A number of cached rows below 0 has no place.
        let place = if cached < 0 { -1 } else { i64::from(cached) + i64::from(of_member) };
        Some(Self { batch, row, member, place })
    }

    /// The row of the tables; `None` where they have not the position.
    ///
    /// # Safety
    /// `args` describes the positions.
    #[inline(always)]
    pub(crate) unsafe fn position(self, args: &RotaryArgs) -> Option<u32> {
        let position = match args.positions {
            0 => self.place,
            positions => {
                let index = i64::from(self.batch) * args.position_stride + i64::from(self.row);
                // SAFETY: there is a position for each row, of so many words.
                unsafe {
                    if args.position_words == 2 {
                        let [low, high] = [0, 1].map(|word| number(positions, 2 * index + word));
                        i64::from(high) << 32 | i64::from(low as u32)
                    } else {
                        i64::from(number(positions, index))
                    }
                }
            }
        };
        (position >= 0 && position < i64::from(args.table_len)).then_some(position as u32)
    }

    /// Page and row of the cache; `None` where the cache has no room or the block table names no page.
    ///
    /// # Safety
    /// `args` describes the block table.
    #[inline(always)]
    pub(crate) unsafe fn slot(self, args: &RotaryArgs) -> Option<(u32, u32)> {
        if self.place < 0 || self.place > i64::from(i32::MAX) || args.page_len == 0 {
            return None;
        }
        let (index, row) = div_rem(self.place as u32, args.page_len);
        if index >= args.member_pages {
            return None;
        }
        let page = match args.block_table {
            0 => self.member,
            table => {
                let index = i64::from(self.member) * args.block_table_stride + i64::from(index);
                // SAFETY: the index is below the pages of the member.
                unsafe { number(table, index) as u32 }
            }
        };
        (page < args.pages).then_some((page, row))
    }
}

/// Number `index` of those at `address`.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn number(address: u64, index: i64) -> i32 {
    // SAFETY: as required of the caller.
    unsafe { global::load_relaxed(address.wrapping_add_signed(4 * index) as *const u32) as i32 }
}

/// Quotient and remainder for a divisor that is not 0; without the panic call that a plain `/` links.
#[inline(always)]
pub(crate) fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the divisors are sizes of a launched grid, or were compared with 0.
    let quotient = unsafe { dividend.checked_div(divisor).unwrap_unchecked() };
    (quotient, dividend - quotient * divisor)
}
