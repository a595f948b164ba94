//! Shuffles, votes, reductions, the warp barrier, election.

use layout::Arch;
use libtest_mimic::Failed;

use crate::{Probe, Test, WARP, expect_equal, expect_lanes};

pub(crate) const TESTS: &[Test] = &[
    Test::new("warp_shuffles", shuffles),
    Test::new("warp_votes", votes),
    Test::new("warp_reductions", reductions),
    Test::new("warp_sync", sync),
    Test::new("warp_elect", elect).since(Arch::Sm90a),
];

fn shuffles(probe: &Probe<'_>) -> Result<(), Failed> {
    for width in [1, 2, 4, 8, 16, 32] {
        for argument in 0..32 {
            let got = probe.run(&WARP, 9 * 32, &[&argument, &width])?;
            let value = |lane: u32| lane * 7 + 3;
            let expected = |lane: u32| {
                let group = lane / width * width;
                let end = group + width;
                let or_own = |source: Option<u32>| [value(source.unwrap_or(lane)), source.is_some() as u32];
                let idx = group + argument % width;
                let xor = Some(lane ^ argument).filter(|&source| source < end);
                let up = lane.checked_sub(argument).filter(|&source| source >= group);
                let down = Some(lane + argument).filter(|&source| source < end);
                let float = (value(idx) as f32).to_bits();
                [or_own(Some(idx)), or_own(xor), or_own(up), or_own(down)].concat().into_iter().chain([float]).collect()
            };
            expect_lanes(&got, 9, expected).map_err(|error| in_case(error, format!("width {width}, {argument}")))?;
        }
    }
    Ok(())
}

fn in_case(error: Failed, case: String) -> Failed {
    format!("{case}: {}", error.message().unwrap_or_default()).into()
}

fn votes(probe: &Probe<'_>) -> Result<(), Failed> {
    for mask in [u32::MAX, 0x0000_ffff, 0x8000_0001, 0x5555_5555, 1] {
        for predicates in [0, u32::MAX, 1, 1 << 31, 0x1234_5678, mask, !mask] {
            let got = probe.run(&WARP, 3 * 32, &[&predicates, &mask])?;
            let ballot = predicates & mask;
            let expected = |lane: u32| match mask >> lane & 1 {
                0 => vec![crate::POISON; 3],
                _ => vec![(ballot == mask) as u32, (ballot != 0) as u32, ballot],
            };
            let case = |error| in_case(error, format!("mask {mask:#x}, predicates {predicates:#x}"));
            expect_lanes(&got, 3, expected).map_err(case)?;
        }
    }
    Ok(())
}

fn reductions(probe: &Probe<'_>) -> Result<(), Failed> {
    // Small integers, whose sums are exact in any order.
    let integers: Vec<f32> = (0..32).map(|lane| ((lane * 37 + 11) % 64) as f32 - 40.0).collect();
    let negative: Vec<f32> = integers.iter().map(|value| value - 100.0).collect();
    let mut infinite = integers.clone();
    infinite[5] = f32::NEG_INFINITY;
    for input in [integers, negative, infinite] {
        let buffer = probe.upload(&input)?;
        let got = probe.run(&WARP, 4 * 32, &[&buffer.as_raw()])?;
        let sum = |values: &[f32]| values.iter().sum::<f32>().to_bits();
        let max = |values: &[f32]| values.iter().copied().fold(f32::NEG_INFINITY, f32::max).to_bits();
        expect_lanes(&got, 4, |lane| {
            let quad = &input[lane as usize / 4 * 4..][..4];
            vec![sum(quad), max(quad), sum(&input), max(&input)]
        })?;
    }
    // One NaN poisons the sums of its quad and of the warp, and no maximum.
    let mut input = vec![1.0_f32; 32];
    input[6] = f32::NAN;
    let buffer = probe.upload(&input)?;
    let got = probe.run(&WARP, 4 * 32, &[&buffer.as_raw()])?;
    let got: Vec<[bool; 4]> =
        got.as_chunks().0.iter().map(|lane| lane.map(|word| f32::from_bits(word).is_nan())).collect();
    let expected: Vec<[bool; 4]> = (0..32).map(|lane| [lane / 4 == 1, false, true, false]).collect();
    expect_equal(&got, &expected, |lane| format!("NaN, lane {lane}"))
}

fn sync(probe: &Probe<'_>) -> Result<(), Failed> {
    let got = probe.run(&WARP, 32, &[])?;
    expect_lanes(&got, 1, |lane| vec![(lane + 4) % 32])
}

fn elect(probe: &Probe<'_>) -> Result<(), Failed> {
    let got = probe.run(&WARP, 2 * 32, &[])?;
    let elected: Vec<usize> = (0..32).filter(|lane| got[2 * lane] == 1).collect();
    if elected.len() != 1 {
        return Err(format!("elected lanes: {elected:?}").into());
    }
    expect_lanes(&got, 2, |lane| vec![(lane as usize == elected[0]) as u32; 2])
}
