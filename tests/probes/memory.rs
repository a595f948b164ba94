//! Loads and stores of shared and global memory, word by word, and mbarriers.

use ferrotile::LaunchConfig;
use layout::Arch;
use libtest_mimic::Failed;
use variants::probe::{
    ATOMIC_MOST, GLOBAL_WORDS_BYTES, MBARRIER, MBARRIER_PHASES, MBARRIER_THREADS, SHARED_WORDS, WORDS,
};

use crate::{POISON, Probe, Test, WARP, blocks_of, expect_equal, expect_lanes, one_warp};

pub(crate) const TESTS: &[Test] = &[
    Test::new("shared_words", shared_words),
    Test::new("global_words", global_words),
    Test::new("global_atomic_inc", global_atomic_inc),
    Test::new("global_atomic_max", global_atomic_max),
    Test::new("mbarrier_phases", mbarrier_phases),
    Test::new("mbarrier_exchange", mbarrier_exchange),
    Test::new("mbarrier_parity", mbarrier_parity).since(Arch::Sm90a),
    Test::new("mbarrier_cluster", mbarrier_cluster).since(Arch::Sm90a),
];

fn shared_words(probe: &Probe<'_>) -> Result<(), Failed> {
    let words = SHARED_WORDS as usize;
    let got = probe.run(&one_warp(&WORDS), words * 32, &[])?;
    expect_lanes(&got, words, |lane| {
        let i = 31 - lane;
        vec![i * 257, i + 1000, (i as f32 + 0.25).to_bits(), i, i + 100, i, i + 10, i + 20, i + 30, i * 7, 0]
    })
}

fn global_words(probe: &Probe<'_>) -> Result<(), Failed> {
    let input: Vec<u8> = (0..512_u32).map(|i| (i * 89 + i / 256) as u8).collect();
    let buffer = probe.upload(&input)?;
    let area = GLOBAL_WORDS_BYTES as usize;
    let got = probe.run(&WARP, 6 * area / 4, &[&buffer.as_raw()])?;
    let got: Vec<u8> = got.into_iter().flat_map(u32::to_le_bytes).collect();
    let mut expected: Vec<u8> = POISON.to_le_bytes().repeat(6 * area / 4);
    for (kind, word_bytes) in [2, 4, 4, 8, 16, 1].into_iter().enumerate() {
        // One copy by each kind of load that takes every word.
        for copy in expected[kind * area..][..2 * 32 * word_bytes].chunks_mut(32 * word_bytes) {
            copy.copy_from_slice(&input[..32 * word_bytes]);
        }
        // Odd lanes keep the word of the facing lane.
        for lane in 0..32 {
            let from = if lane % 2 == 0 { lane } else { 31 - lane };
            expected[kind * area + (64 + lane) * word_bytes..][..word_bytes]
                .copy_from_slice(&input[from * word_bytes..][..word_bytes]);
        }
    }
    expect_equal(&got, &expected, |at| format!("type {}, byte {}", at / area, at % area))
}

fn global_atomic_inc(probe: &Probe<'_>) -> Result<(), Failed> {
    let counter = probe.upload(&[0; 4])?;
    let words = probe.run(&WARP, 96, &[&counter.as_raw()])?;
    let last: Vec<u32> = words.chunks(3).map(|lane| lane[2]).collect();
    expect_equal(&last, &[64 % (ATOMIC_MOST + 1); 32], |lane| format!("the last number in lane {lane}"))?;
    let mut got: Vec<u32> = words.chunks(3).flat_map(|lane| [lane[0], lane[1]]).collect();
    got.sort_unstable();
    // In some order, each lane gets its own numbers of 0 to the most, again and again.
    let mut expected: Vec<u32> = (0..64).map(|count| count % (ATOMIC_MOST + 1)).collect();
    expected.sort_unstable();
    expect_equal(&got, &expected, |at| format!("number {at} in order"))
}

/// In whatever order lanes come, each finds what some lanes of those before it have left, or 0.
fn global_atomic_max(probe: &Probe<'_>) -> Result<(), Failed> {
    let number = probe.upload(&[0; 4])?;
    let words = probe.run(&WARP, 64, &[&number.as_raw()])?;
    let last: Vec<u32> = words.chunks(2).map(|lane| lane[1]).collect();
    expect_equal(&last, &[31 * 7; 32], |lane| format!("the last number in lane {lane}"))?;
    let before: Vec<u32> = words.chunks(2).map(|lane| lane[0]).collect();
    // Of lanes that raise the number, each finds another one.
    let mut raising: Vec<u32> = (0..32).filter(|&lane| before[lane as usize] < lane * 7).collect();
    raising.sort_unstable_by_key(|&lane| before[lane as usize]);
    let found: Vec<u32> = raising.iter().map(|&lane| before[lane as usize]).collect();
    let left: Vec<u32> = [0].into_iter().chain(raising.iter().map(|lane| lane * 7)).collect();
    expect_equal(&found, &left[..raising.len()], |at| format!("number {at} in order"))
}

fn mbarrier_phases(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: MBARRIER.total_bytes(), ..blocks_of(1, 1) };
    let got = probe.run(&config, 4, &[])?;
    let questions = ["first phase after 1 arrival", "first after 2", "first after 3", "second after 3"];
    expect_equal(&got, &[0, 1, 1, 0], |at| questions[at].into())
}

fn mbarrier_exchange(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: MBARRIER.total_bytes(), ..blocks_of(1, MBARRIER_THREADS) };
    let threads = MBARRIER_THREADS;
    for _ in 0..20 {
        let got = probe.run(&config, (MBARRIER_PHASES * threads) as usize, &[])?;
        let expected: Vec<u32> = (0..MBARRIER_PHASES)
            .flat_map(|round| (0..threads).map(move |thread| round * 1000 + (thread + 32) % threads))
            .collect();
        expect_equal(&got, &expected, |at| format!("round {}, thread {}", at as u32 / threads, at as u32 % threads))?;
    }
    Ok(())
}

fn mbarrier_parity(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: MBARRIER.total_bytes(), ..blocks_of(1, 1) };
    let got = probe.run(&config, 6, &[])?;
    // Before the first phase completes, the one "before" it, of parity 1, counts as complete.
    let when = ["at the start", "after the first arrival", "after an arrival that announces bytes"];
    expect_equal(&got, &[0, 1, 1, 0, 1, 0], |at| format!("{}, parity {}", when[at / 2], at % 2))
}

fn mbarrier_cluster(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: MBARRIER.total_bytes(), cluster: [2, 1, 1], ..blocks_of(2, 32) };
    for _ in 0..20 {
        let got = probe.run(&config, 2, &[])?;
        let when = ["after the block's own arrival", "after the other block's"];
        expect_equal(&got, &[0, 1], |at| when[at].into())?;
    }
    Ok(())
}
