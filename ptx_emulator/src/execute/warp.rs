//! What lanes of a warp do together: shuffles, votes, reductions, elections.

use super::Fault;
use crate::program::{IntOp, P, Reg, Shuffle, Test, Vote, W};
use crate::registers::{LANES, Words, lanes};
use crate::turn::Turn;

impl Turn<'_, '_> {
    /// The lanes that each executing lane names and that execute it too.
    fn groups(&self, mask: W) -> Words {
        self.registers.word(mask).map(|named| named & self.mask)
    }
}

pub(crate) fn shuffle(
    turn: &mut Turn<'_, '_>,
    kind: Shuffle,
    (d, p): (W, Option<P>),
    [a, b, c, mask]: [W; 4],
) -> Result<(), Box<Fault>> {
    let groups = turn.groups(mask);
    let (a, b, c) = (*turn.registers.word(a), *turn.registers.word(b), *turn.registers.word(c));
    let (mut out, mut valid) = (a, 0);
    for lane in lanes(turn.mask) {
        let here = lane as u32;
        let (segment, clamp, step) = (c[lane] >> 8 & 31, c[lane] & 31, b[lane] & 31);
        let last = here & segment | clamp & !segment;
        let (source, inside) = match kind {
            Shuffle::Up => (here.wrapping_sub(step), here as i32 - step as i32 >= last as i32),
            Shuffle::Down => (here + step, here + step <= last),
            Shuffle::Butterfly => (here ^ step, here ^ step <= last),
            Shuffle::Index => {
                let source = here & segment | step & !segment;
                (source, source <= last)
            }
        };
        let source = if inside { source as usize } else { lane };
        if groups[lane] >> source & 1 == 0 {
            return Err(Fault::lane(lane, format!("it asks for the value of lane {source}, which takes no part")));
        }
        out[lane] = a[source];
        valid |= u32::from(inside) << lane;
    }
    turn.registers.set_word(d, &out, turn.mask);
    if let Some(p) = p {
        turn.registers.set_predicate(p, valid, turn.mask);
    }
    Ok(())
}

pub(crate) fn vote(turn: &mut Turn<'_, '_>, kind: Vote, d: Reg, a: Test, mask: W) {
    let groups = turn.groups(mask);
    let bits = turn.registers.test(a);
    for lane in lanes(turn.mask) {
        let (group, yes) = (groups[lane], bits & groups[lane]);
        let value = match kind {
            Vote::All => u32::from(yes == group),
            Vote::Any => u32::from(yes != 0),
            Vote::Uni => u32::from(yes == 0 || yes == group),
            Vote::Ballot => yes,
        };
        turn.registers.set_lane(d, lane, value.into());
    }
}

pub(crate) fn redux(turn: &mut Turn<'_, '_>, op: IntOp, d: W, a: W, mask: W) {
    let groups = turn.groups(mask);
    let a = *turn.registers.word(a);
    let combine = |x: u32, y: u32| match op {
        IntOp::Add => x.wrapping_add(y),
        IntOp::Min { signed: true } => (x as i32).min(y as i32) as u32,
        IntOp::Min { signed: false } => x.min(y),
        IntOp::Max { signed: true } => (x as i32).max(y as i32) as u32,
        IntOp::Max { signed: false } => x.max(y),
        IntOp::And => x & y,
        IntOp::Or => x | y,
        // The front gives no other operation here.
        _ => x ^ y,
    };
    let mut out = [0; LANES];
    for lane in lanes(turn.mask) {
        out[lane] = lanes(groups[lane]).map(|lane| a[lane]).reduce(combine).unwrap_or(0);
    }
    turn.registers.set_word(d, &out, turn.mask);
}

pub(crate) fn matching(turn: &mut Turn<'_, '_>, all: bool, d: W, p: Option<P>, a: Reg, mask: W) {
    let groups = turn.groups(mask);
    let values = turn.registers.wide(a);
    let (mut out, mut same) = ([0; LANES], 0);
    for lane in lanes(turn.mask) {
        let equal =
            lanes(groups[lane]).filter(|&other| values[other] == values[lane]).fold(0, |bits, other| bits | 1 << other);
        let is_all = equal == groups[lane];
        out[lane] = if all && !is_all { 0 } else { equal };
        same |= u32::from(is_all) << lane;
    }
    turn.registers.set_word(d, &out, turn.mask);
    if let Some(p) = p {
        turn.registers.set_predicate(p, same, turn.mask);
    }
}

/// The lowest lane of the mask is elected.
pub(crate) fn elect(turn: &mut Turn<'_, '_>, d: Option<W>, p: P, mask: W) {
    let groups = turn.groups(mask);
    let leaders = groups.map(u32::trailing_zeros);
    let chosen = lanes(turn.mask).filter(|&lane| leaders[lane] == lane as u32).fold(0, |bits, lane| bits | 1 << lane);
    turn.registers.set_predicate(p, chosen, turn.mask);
    if let Some(d) = d {
        turn.registers.set_word(d, &leaders, turn.mask);
    }
}
