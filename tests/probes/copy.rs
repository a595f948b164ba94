//! Asynchronous copies: every number of source bytes, groups, waits.

use libtest_mimic::Failed;
use variants::probe::{COPIES, COPY_GROUPS};

use crate::{Probe, Test, expect_equal, one_warp};

pub(crate) const TESTS: &[Test] = &[
    Test::new("cp_async_ca_4", |probe| zero_fill(probe, 4)),
    Test::new("cp_async_ca_8", |probe| zero_fill(probe, 8)),
    Test::new("cp_async_cg_16", |probe| zero_fill(probe, 16)),
    Test::new("cp_async_groups", groups),
    Test::new("cp_async_wait_all", wait_all),
];

fn zero_fill(probe: &Probe<'_>, copy_bytes: u32) -> Result<(), Failed> {
    let input: Vec<u8> = (0..32 * copy_bytes).map(|i| (i % 251) as u8 + 1).collect();
    let buffer = probe.upload(&input)?;
    for source_bytes in 0..=copy_bytes {
        let words = 32 * copy_bytes as usize / 4;
        let got = probe.run(&one_warp(&COPIES), words, &[&buffer.as_raw(), &source_bytes])?;
        let got: Vec<u8> = got.into_iter().flat_map(u32::to_le_bytes).collect();
        let is_read = |at: &usize| *at as u32 % copy_bytes < source_bytes;
        let expected: Vec<u8> = (0..input.len()).map(|at| if is_read(&at) { input[at] } else { 0 }).collect();
        expect_equal(&got, &expected, |at| format!("{source_bytes} of {copy_bytes} source bytes, byte {at}"))?;
    }
    Ok(())
}

fn groups(probe: &Probe<'_>) -> Result<(), Failed> {
    let input: Vec<u32> = (0..32 * COPY_GROUPS).map(|i| i * 3 + 1).collect();
    let buffer = probe.upload(&input)?;
    for _ in 0..20 {
        let got = probe.run(&one_warp(&COPIES), input.len(), &[&buffer.as_raw()])?;
        let expected: Vec<u32> = input.chunks(32).flat_map(|group| group.iter().rev().copied()).collect();
        expect_equal(&got, &expected, |at| format!("group {}, lane {}", at / 32, at % 32))?;
    }
    Ok(())
}

fn wait_all(probe: &Probe<'_>) -> Result<(), Failed> {
    let input: Vec<u32> = (0..32 * 4).map(|i| i * 5 + 2).collect();
    let buffer = probe.upload(&input)?;
    for _ in 0..20 {
        let got = probe.run(&one_warp(&COPIES), input.len(), &[&buffer.as_raw()])?;
        let expected: Vec<u32> = input.chunks(4).rev().flatten().copied().collect();
        expect_equal(&got, &expected, |at| format!("lane {}, word {}", at / 4, at % 4))?;
    }
    Ok(())
}
