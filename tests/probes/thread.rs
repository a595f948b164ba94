//! Indices, the barriers of block, warps and cluster, and the fences.

use ferrotile::LaunchConfig;
use layout::Arch;
use libtest_mimic::Failed;
use variants::probe::{BLOCK_THREADS, PAIRS, STORE_WORDS, STORES, WARPS};

use crate::{POISON, Probe, Test, blocks_of, expect_equal, expect_lanes};

pub(crate) const TESTS: &[Test] = &[
    Test::new("thread_indices", indices),
    Test::new("thread_index_1d", index_1d),
    Test::new("thread_cluster_rank", cluster_rank).since(Arch::Sm90a),
    Test::new("griddepcontrol_chain", chain).since(Arch::Sm90a),
    Test::new("barrier_warps", barrier_warps),
    Test::new("barrier_numbered", barrier_numbered),
    Test::new("cluster_sync", cluster_sync).since(Arch::Sm90a),
    Test::new("cluster_load", cluster_load).since(Arch::Sm90a),
    Test::new("cluster_store_async", cluster_store_async).since(Arch::Sm90a),
    Test::new("thread_sync", sync),
    Test::new("thread_block_fence", |probe| fence(probe, blocks_of(1, 64))),
    Test::new("thread_device_fence", |probe| fence(probe, blocks_of(2, 1))),
];

fn indices(probe: &Probe<'_>) -> Result<(), Failed> {
    let (grid, block) = ([2, 3, 5], [4, 2, 3]);
    let config = LaunchConfig { grid, block, ..blocks_of(1, 1) };
    let count = |dim: [u32; 3]| dim.into_iter().product::<u32>();
    let unflatten = |n: u32, dim: [u32; 3]| [n % dim[0], n / dim[0] % dim[1], n / dim[0] / dim[1]];
    let threads = count(grid) * count(block);
    let got = probe.run(&config, 12 * threads as usize, &[])?;
    let expected: Vec<u32> = (0..threads)
        .flat_map(|n| [unflatten(n % count(block), block), unflatten(n / count(block), grid), block, grid].concat())
        .collect();
    expect_equal(&got, &expected, |at| format!("thread {}, word {}", at / 12, at % 12))
}

fn index_1d(probe: &Probe<'_>) -> Result<(), Failed> {
    let got = probe.run(&blocks_of(7, 96), 7 * 96, &[])?;
    let expected: Vec<u32> = (0..7 * 96).collect();
    expect_equal(&got, &expected, |at| format!("thread {at}"))
}

fn cluster_rank(probe: &Probe<'_>) -> Result<(), Failed> {
    let (width, height) = (16, 4);
    for cluster in [[1, 1, 1], [2, 1, 1], [8, 1, 1], [1, 4, 1], [4, 2, 1]] {
        let config = LaunchConfig { grid: [width, height, 1], cluster, ..blocks_of(1, 1) };
        let got = probe.run(&config, (width * height) as usize, &[])?;
        let rank = |block: u32| block % width % cluster[0] + block / width % cluster[1] * cluster[0];
        let expected: Vec<u32> = (0..width * height).map(rank).collect();
        expect_equal(&got, &expected, |at| format!("clusters of {cluster:?}, block {at}"))?;
    }
    Ok(())
}

/// Launches that overlap, each of which reads what the one before wrote and overwrites what the one before that read.
fn chain(probe: &Probe<'_>) -> Result<(), Failed> {
    const LAUNCHES: u32 = 64;
    let config = LaunchConfig { overlaps: true, ..blocks_of(64, 128) };
    let kernel = probe.module.kernel(probe.name)?;
    let buffers = [probe.output(64 * 128)?, probe.output(64 * 128)?];
    let [first, second] = buffers.each_ref().map(|buffer| buffer.as_raw());
    for launch in 0..LAUNCHES {
        let (from, to) = if launch % 2 == 0 { (first, second) } else { (second, first) };
        // SAFETY: the buffers have a word for each thread and outlive the wait of `read`; the launches take turns.
        unsafe { kernel.launch(probe.stream.as_ref(), &config, &[&from, &to])? };
    }
    expect_equal(&probe.read(&buffers[0])?, &[POISON + LAUNCHES; 64 * 128], |at| format!("thread {at}"))
}

fn barrier_warps(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: WARPS.total_bytes(), ..blocks_of(1, 96) };
    for _ in 0..20 {
        let got = probe.run(&config, 32, &[])?;
        expect_lanes(&got, 1, |lane| vec![100 + 31 - lane])?;
    }
    Ok(())
}

fn barrier_numbered(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: PAIRS.total_bytes(), ..blocks_of(1, 128) };
    for _ in 0..20 {
        let got = probe.run(&config, 64, &[])?;
        let expected: Vec<u32> = (0..64).map(|i| 100 + i / 32 * 32 + 31 - i % 32).collect();
        expect_equal(&got, &expected, |at| format!("pair {}, lane {}", at / 32, at % 32))?;
    }
    Ok(())
}

fn cluster_sync(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { cluster: [2, 1, 1], ..blocks_of(2, 32) };
    for _ in 0..20 {
        let got = probe.run(&config, 4 * 32, &[])?;
        let block = |rank: u32| (0..32).map(move |lane| 1 + rank * 1000 + lane);
        let expected: Vec<u32> = [0, 1, 1, 0].into_iter().flat_map(block).collect();
        expect_equal(&got, &expected, |at| format!("part {}, lane {}", at / 32, at % 32))?;
    }
    Ok(())
}

fn cluster_load(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: PAIRS.total_bytes(), cluster: [2, 1, 1], ..blocks_of(2, 32) };
    for _ in 0..20 {
        let got = probe.run(&config, 2 * 32 * 4, &[])?;
        let words = |rank: u32, lane: u32| [0, 100, 0, 100].map(|word| 1000 * (1 - rank) + word + lane);
        let expected: Vec<u32> = (0..64).flat_map(|thread| words(thread / 32, thread % 32)).collect();
        expect_equal(&got, &expected, |at| format!("block {}, lane {}, word {}", at / 128, at / 4 % 32, at % 4))?;
    }
    Ok(())
}

fn cluster_store_async(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: STORES.total_bytes(), cluster: [2, 1, 1], ..blocks_of(2, 32) };
    for _ in 0..20 {
        let got = probe.run(&config, 2 * 32 * STORE_WORDS as usize, &[])?;
        let words = |rank: u32, lane: u32| (0..STORE_WORDS).map(move |word| 1000 * (1 - rank) + 100 * word + lane);
        let expected: Vec<u32> = (0..64).flat_map(|thread| words(thread / 32, thread % 32)).collect();
        expect_equal(&got, &expected, |at| {
            let (thread, word) = (at / STORE_WORDS as usize, at % STORE_WORDS as usize);
            format!("block {}, lane {}, word {word}", thread / 32, thread % 32)
        })?;
    }
    Ok(())
}

fn sync(probe: &Probe<'_>) -> Result<(), Failed> {
    let got = probe.run(&blocks_of(1, BLOCK_THREADS), 2 * BLOCK_THREADS as usize, &[])?;
    let facing = (0..BLOCK_THREADS).rev();
    let expected: Vec<u32> = facing.flat_map(|thread| [thread, (thread as f32 + 0.5).to_bits()]).collect();
    expect_equal(&got, &expected, |at| format!("thread {}, array {}", at / 2, at % 2))
}

fn fence(probe: &Probe<'_>, config: LaunchConfig) -> Result<(), Failed> {
    for _ in 0..20 {
        let message = probe.upload(&[0_u32; 3])?;
        probe.launch(&config, &[&message.as_raw()])?;
        let got = message.download_blocking(&probe.stream)?;
        expect_equal(&got, &[42, 1, 42], |at| ["data", "flag", "result"][at].into())?;
    }
    Ok(())
}
