//! The PTX that the library embeds, against the tables of configurations. Every configuration is an entry, and every
//! entry a configuration. An entry has its configuration's launch bounds, and as many tensor-core, copy and barrier
//! instructions as its loop has.

use std::collections::BTreeSet;

use cuda_builder::ptx::{Entry, Module, entry_ranges};
use ferrotile::embedded_ptx;
use layout::descriptor::Major;
use layout::{Arch, Dtype};
use variants::ata::{ATA, AtaUnit, Precision};
use variants::attention::{
    ATTENTION, AttentionConfig, AttentionKernel, COMBINE, DECODE_KEYS, PvUnit, QuerySource, ScoreMod, Seqlens,
    TRANSPOSED_COLUMNS, TRANSPOSED_KEYS, TRANSPOSING_WARPS, TileCopy, WgmmaTile,
};
use variants::cg::{CG, CgStage};
use variants::gemm::wgmma::Side;
use variants::gemm::{
    AUXILIARY_MIN_BLOCKS, Accumulation, GEMM, GemmConfig, GemmUnit, Operands, PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K,
};

use variants::ladder::{LADDER, Pipeline, STORE_COLUMNS};
use variants::quantize::{self, QuantizeKernel};
use variants::rotary::{ROTARY, RotaryKernel};
use variants::study::{ATA_STUDY, ATTENTION_STUDY, STUDY};
use variants::{FAMILIES, OPTIONAL_FAMILIES};

fn attention(arch: Arch) -> Module {
    module("attention", arch)
}

fn module(family: &str, arch: Arch) -> Module {
    Module::parse(&embedded_ptx(family, arch).expect("every architecture is embedded by default")).unwrap()
}

/// What the emulator does not cover shows here, and not in the middle of some trial.
#[test]
fn the_emulator_loads_every_kernel() {
    for arch in Arch::ALL {
        for family in FAMILIES.into_iter().chain(OPTIONAL_FAMILIES) {
            let ptx = embedded_ptx(family, arch).expect("every architecture is embedded by default");
            if let Err(error) = ptx_emulator::Module::parse(&ptx) {
                panic!("{family}, {arch}: {error}");
            }
        }
    }
}

/// The two tables of attention, with the family that compiles each.
const TABLES: [(&str, &[AttentionConfig]); 2] = [("attention", ATTENTION), (STUDY, ATTENTION_STUDY)];

/// Calls `check` with every configuration and its entry, on every architecture.
fn for_every_config(check: impl Fn(&AttentionConfig, &Entry)) {
    for (arch, (family, table)) in Arch::ALL.into_iter().flat_map(|arch| TABLES.map(|table| (arch, table))) {
        let module = module(family, arch);
        for config in table.iter().filter(|config| config.compiled_for(arch)) {
            assert_eq!(config.family, family, "{config}");
            let entry = module.entries.iter().find(|entry| entry.name == config.name);
            check(config, entry.unwrap_or_else(|| panic!("{arch}: no entry for {config}")));
        }
    }
}

#[test]
fn entries_are_exactly_the_configurations() {
    let sorted = |names: &mut dyn Iterator<Item = &str>| {
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        names
    };
    for (arch, (family, table)) in Arch::ALL.into_iter().flat_map(|arch| TABLES.map(|table| (arch, table))) {
        let module = module(family, arch);
        let entries = sorted(&mut module.entries.iter().map(|entry| entry.name.as_str()));
        let combine = COMBINE.iter().filter(|_| family == "attention").map(|config| config.name);
        let ata = ATA_STUDY.iter().filter(|config| config.family == family).map(|config| config.name);
        let configs = table.iter().filter(|config| config.compiled_for(arch)).map(|config| config.name);
        assert_eq!(entries, sorted(&mut configs.chain(combine).chain(ata)), "{family} for {arch}");
    }
}

#[test]
fn version_and_target_are_pinned() {
    for (arch, (family, _)) in Arch::ALL.into_iter().flat_map(|arch| TABLES.map(|table| (arch, table))) {
        let module = module(family, arch);
        assert_eq!(module.version, arch.ptx_version(), "{family} for {arch}");
        assert_eq!(module.target, arch.target_cpu());
        assert!(module.functions.is_empty() && module.extern_functions.is_empty(), "{arch}: everything is inlined");
    }
}

#[test]
fn launch_bounds_are_those_of_the_configurations() {
    for_every_config(|config, entry| {
        assert_eq!(entry.max_threads, Some(config.threads()), "{config}");
        assert_eq!(entry.min_blocks, Some(config.min_blocks()), "{config}");
        assert_eq!(entry.cluster, (config.cluster() > 1).then_some([config.cluster(), 1, 1]), "{config}");
    });
}

#[test]
fn memory_is_addressed_in_its_own_space() {
    for_every_config(|config, entry| {
        assert!(!entry.uses_local, "{config} uses local memory");
        assert_eq!(entry.generic_accesses(), 0, "{config} has generic accesses");
    });
}

#[test]
fn instructions_are_those_of_the_algorithm() {
    for_every_config(|config, entry| {
        check_numbers(config, entry);
        let tile = match config.kernel {
            AttentionKernel::Scalar => {
                assert_eq!((entry.count("wmma"), entry.count("bar.sync")), (0, 0), "{config}");
                return;
            }
            AttentionKernel::Wgmma(tile) => return check_wgmma(config, tile, entry),
            AttentionKernel::Decode(_) => return check_decode(config, entry),
            AttentionKernel::Mma(tile) => tile,
        };
        // Of 16 rows by 32 bytes and as many columns as rows.
        let products = (tile.n / 16) * (config.head_dim * config.tile_elem_bytes() / 32);
        let tensor_core_pv = usize::from(tile.pv == PvUnit::TensorCore);
        check_products(config, entry, products * (1 + tensor_core_pv));
        assert_eq!(entry.count("ldmatrix.sync.aligned.m8n8.x4.trans"), products * tensor_core_pv, "{config}");
        // With two stages one barrier a step serves K and V; with one stage each has its own. Lengths stand between
        // two.
        let passing_on = if config.seqlens == Seqlens::Varlen { 2 } else { 0 };
        assert_eq!(entry.count("bar.sync"), 3 - tile.stages + passing_on, "{config}");
        assert_eq!(entry.count("cp.async.cg.shared.global") > 0, tile.copy == TileCopy::Async, "{config}");
        // A load of 16 bytes moves a chunk through registers, or one of 8 bytes what becomes a chunk; no other
        // configuration has one.
        let is_integer = config.dtype == Dtype::U8;
        let through_registers = tile.copy == TileCopy::ThroughRegisters;
        assert_eq!(entry.count("ld.global.v4") > 0, through_registers && !is_integer, "{config}");
        assert_eq!(entry.count("ld.global.v2") > 0, through_registers && is_integer, "{config}");
        // Four instructions widen the integers of a chunk: of Q, and of K and V of the first step and in the loop; and
        // in five loops where rows start anywhere.
        let [q_chunks, chunks] = [tile.m, tile.n].map(|rows| rows * config.head_dim / 8 / config.threads() as usize);
        let widens = if is_integer { 4 * (q_chunks + 4 * chunks + 5) } else { 0 };
        assert_eq!(entry.count("fma.rn.f16x2"), widens, "{config}");
    });
}

/// `products` of fragments of 16 rows by 32 bytes, two `mma` each; none by `wmma`, whose fragments PTX leaves open.
fn check_products(config: &AttentionConfig, entry: &Entry, products: usize) {
    let of = |dtype: Dtype| {
        let k = 32 / dtype.size_bytes();
        entry.count(&format!("mma.sync.aligned.m16n8k{k}.row.col.f32.{0}.{0}.f32", dtype.name()))
    };
    // Beside K and V of E4M3, P V is of f16 whatever Q is.
    let as_queries = if config.has_e4m3_kv() && config.dtype != Dtype::F16 {
        assert_eq!(of(Dtype::F16), products, "{config}");
        products
    } else {
        2 * products
    };
    let dtype = if config.dtype == Dtype::U8 { Dtype::F16 } else { config.dtype };
    let all = (of(dtype), entry.count("mma"), entry.count("wmma"));
    assert_eq!(all, (as_queries, 2 * products, 0), "{config}");
}

/// One loop over the steps of a warp, and two barriers of the block after it: before and after its warps' sums meet.
/// The sum of the splits has five more: around the count of the blocks that are done, behind the numbers of the splits,
/// behind their weights and where threads share an element.
fn check_decode(config: &AttentionConfig, entry: &Entry) {
    let products = DECODE_KEYS / 16 * (config.head_dim / 16);
    let m_tiles = config.rows() / 16;
    check_products(config, entry, m_tiles * 2 * products);
    // Those of E4M3 bring two fragments at once. A fragment takes four instructions that widen two elements.
    let fragments = if config.has_e4m3_kv() { 2 } else { 1 };
    assert_eq!(entry.count("ldmatrix.sync.aligned.m8n8.x4.trans"), products / fragments, "{config}");
    assert_eq!(entry.count("ldmatrix.sync.aligned.m8n8.x4"), 2 * products / fragments, "{config}");
    let widened = if config.has_e4m3_kv() { 8 * products } else { 0 };
    assert_eq!(entry.count("cvt.rn.f16x2.e4m3x2"), widened, "{config}");
    let adds_up = usize::from(config.adds_up_splits());
    assert_eq!(entry.count("bar.sync"), 2 + 5 * adds_up, "{config}");
    assert!(entry.count("cp.async.cg.shared.global") > 0, "{config}");
    // The count of the splits of a tile, between fences.
    let counts = ["atom", "atom.global.inc.u32", "fence.acq_rel.gpu", "red"].map(|name| entry.count(name));
    assert_eq!(counts, [1, 1, 2, 0].map(|count| count * adds_up), "{config}");
}

#[test]
fn combine_entries_are_the_rows_with_their_bounds() {
    for arch in Arch::ALL {
        let module = attention(arch);
        for config in COMBINE {
            let entry = module.entry(config.name).unwrap_or_else(|| panic!("{arch}: no entry for {config}"));
            assert_eq!(entry.max_threads, Some(config.threads()), "{config}");
            assert!(!entry.uses_local, "{config} uses local memory");
            assert_eq!(entry.generic_accesses(), 0, "{config} has generic accesses");
            assert_eq!((entry.count("bar.sync"), entry.count("atom"), entry.count("red")), (0, 0, 0), "{config}");
            assert_eq!(entry.count("griddepcontrol.wait"), usize::from(arch >= Arch::Sm90a), "{config}");
        }
    }
}

/// Q K^T and P V stand in the loop and once outside it. Q comes to registers by ldmatrix, 32 bytes of a row at a time.
fn check_wgmma(config: &AttentionConfig, tile: WgmmaTile, entry: &Entry) {
    let is_fp8 = config.dtype == Dtype::E4M3;
    let step = if is_fp8 { 32 } else { 16 };
    let (k_steps, n_steps) = (config.head_dim / step, tile.n / step);
    let products = |n: usize| entry.count(&format!("wgmma.mma_async.sync.aligned.m64n{n}k{step}"));
    if is_fp8 {
        // P V may be computed for some columns after the others.
        let widths = BTreeSet::from([tile.n, config.value_dim, 64, 32]);
        let columns: usize = widths.into_iter().map(|n| n * products(n)).sum();
        assert_eq!(columns, 2 * (k_steps * tile.n + n_steps * config.value_dim), "{config}");
    } else {
        let expected = wgmmas(tile.n, config.value_dim, 2 * k_steps, 2 * n_steps);
        assert_eq!(products(tile.n), expected, "{config}");
    }
    let in_registers = tile.query == QuerySource::Registers;
    // A bias comes for the first step, for the one after it and in the loop, a chunk a lane and 16 keys, and is read in
    // the first step and in the loop.
    let biases = if config.score_mod == ScoreMod::General { tile.n / 16 } else { 0 };
    assert_eq!(entry.count("cp.async.cg.shared.global"), 3 * biases, "{config}");
    let queries = if in_registers { k_steps } else { 0 };
    // Each warp that transposes V has units of its own of columns, and all of keys.
    let (columns, keys) = (TRANSPOSED_COLUMNS as usize, TRANSPOSED_KEYS as usize);
    let of_warp = (config.value_dim / columns).div_ceil(TRANSPOSING_WARPS as usize) * (tile.n / keys);
    let transposed = if is_fp8 { of_warp } else { 0 };
    assert_eq!(entry.count("ldmatrix.sync.aligned.m8n8.x4"), queries + 2 * biases + transposed, "{config}");
    assert_eq!(entry.count("stmatrix.sync.aligned.m8n8.x4"), transposed, "{config}");
    // A box a panel: of K of the last step, of Q, of K and V in the loop.
    // Where lengths differ there is one dimension more, in which sequences end.
    let dimensions = if config.seqlens == Seqlens::Fixed { 4 } else { 5 };
    let copies = entry.count(&format!("cp.async.bulk.tensor.{dimensions}d.shared::cluster.global"));
    let (panels, value_panels) = (config.panels() as usize, config.value_panels() as usize);
    assert_eq!(copies, 3 * panels + value_panels, "{config}");
    // Of K and V, where blocks copy them for each other.
    let to_all = format!(
        "cp.async.bulk.tensor.{dimensions}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    );
    assert_eq!(entry.count(&to_all), if tile.multicast_ctas > 1 { 2 * panels + value_panels } else { 0 }, "{config}");
    assert_eq!(entry.count("setmaxnreg"), if tile.consumers() > 1 { 2 } else { 0 }, "{config}");
    // Factors are read before the first copy, as lengths are.
    let reads_factors = is_fp8 && config.seqlens == Seqlens::Fixed;
    assert_eq!(entry.count("griddepcontrol.wait"), 1 + usize::from(reads_factors), "{config}");
}

/// Numbers that other work may write meanwhile: where sequences of queries and keys start and end, or how many keys
/// there are. Read twice they might be two.
fn check_numbers(config: &AttentionConfig, entry: &Entry) {
    let numbers = match (config.kernel, config.seqlens) {
        (AttentionKernel::Decode(_), _) => 1,
        // And one of the search, whose outcome is cut to the tensors as well.
        (AttentionKernel::Wgmma(_), Seqlens::Varlen) => 5,
        (_, Seqlens::Varlen) => 4,
        (_, Seqlens::Fixed) => 0,
    };
    assert_eq!(entry.count("ld.relaxed.cta.global.b32"), numbers, "{config}");
}

/// Instructions of `n` columns: those of Q K^T, and those of P V where V is as wide.
const fn wgmmas(n: usize, value_dim: usize, scores: usize, values: usize) -> usize {
    if n == value_dim { scores + values } else { scores }
}

#[test]
fn ata_entries_are_the_rows_with_their_bounds_and_instructions() {
    for arch in Arch::ALL {
        let module = module("ata", arch);
        assert_eq!((module.version, module.target.as_str()), (arch.ptx_version(), arch.target_cpu()));
        assert!(module.functions.is_empty() && module.extern_functions.is_empty(), "{arch}: everything is inlined");
        assert_eq!(module.entries.len(), ATA.len() + CG.len(), "{arch}");
        let study = self::module(STUDY, arch);
        for config in ATA.iter().chain(ATA_STUDY) {
            let module = if config.family == STUDY { &study } else { &module };
            let entry = module.entry(config.name).unwrap_or_else(|| panic!("{arch}: no entry for {config}"));
            assert_eq!(
                (entry.max_threads, entry.min_blocks),
                (Some(config.threads()), Some(config.min_blocks)),
                "{config}"
            );
            assert!(!entry.uses_local, "{config} uses local memory");
            assert_eq!(entry.generic_accesses(), 0, "{config} has generic accesses");
            assert_eq!(entry.count("bar.sync"), 1, "{config}: the sums of the warps meet once");
            assert_eq!((entry.count("atom"), entry.count("red")), (0, 0), "{config} has atomics");
            // A tile of 32x32 takes eight products of m16n8k8, three times as many with two terms; four of m16n8k16, or
            // eight with the two terms of X, which one frame has side by side; or four of m32n8k16 with the two terms
            // of X. All of them stand there for direct and for transposed tiles, for each pair row, and once more where
            // the first two tiles are taken at once.
            let tiles = if config.prefetches_two() { 4 } else { 2 } * config.pair_rows * config.vectors();
            let [tf32, f16, bf16, wmma] = match (config.unit, config.precision) {
                (AtaUnit::Mma, Precision::Tf32) => [8, 0, 0, 0],
                (AtaUnit::Mma, Precision::Tf32x3) => [24, 0, 0, 0],
                (AtaUnit::Mma, Precision::F16) => [0, 4, 0, 0],
                (AtaUnit::Mma, Precision::Bf16) => [0, 0, if config.frames == 1 { 4 } else { 8 }, 0],
                (AtaUnit::Wmma, _) => [0, 0, 0, 4],
                _ => [0; 4],
            };
            let name = |shape: &str| format!("mma.sync.aligned.{shape}.f32");
            assert_eq!(entry.count(&name("m16n8k8.row.col.f32.tf32.tf32")), tf32 * tiles, "{config}");
            assert_eq!(entry.count(&name("m16n8k16.row.col.f32.f16.f16")), f16 * tiles, "{config}");
            assert_eq!(entry.count(&name("m16n8k16.row.col.f32.bf16.bf16")), bf16 * tiles, "{config}");
            assert_eq!(entry.count("wmma.mma.sync.aligned"), wmma * tiles, "{config}");
            // Rows that take two uses at once have another way for tensors that are not aligned.
            let waits = if arch >= Arch::Sm90a { 1 + usize::from(config.prefetches_two()) } else { 0 };
            assert_eq!(entry.count("griddepcontrol.wait"), waits, "{config}");
            // Pairs come in 16-byte loads.
            let chunks = 2 * config.pair_rows * config.precision.terms() * config.precision.storage().chunks();
            assert!(entry.count("ld.global.v4") >= chunks, "{config}");
        }
    }
}

/// Which elements the registers of a `wmma` fragment hold is left open by PTX, so a product takes whole fragments of
/// `wmma.load`.
#[test]
fn factors_of_wmma_are_what_wmma_loads() {
    let mut kernels = BTreeSet::new();
    let families = || FAMILIES.into_iter().chain(OPTIONAL_FAMILIES);
    for (arch, family) in Arch::ALL.into_iter().flat_map(|arch| families().map(move |family| (arch, family))) {
        let ptx = embedded_ptx(family, arch).expect("every architecture is embedded by default");
        for (name, range) in entry_ranges(&ptx) {
            let mut loaded = BTreeSet::new();
            for line in ptx[range].lines().map(str::trim) {
                let fragments: Vec<&str> = line.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
                if line.starts_with("wmma.load.") {
                    loaded.insert((line.as_bytes()["wmma.load.".len()], fragments[0]));
                } else if line.starts_with("wmma.mma.") {
                    let [_, a, b, _] = fragments[..] else { panic!("{name}: {line}") };
                    assert!(loaded.contains(&(b'a', a)) && loaded.contains(&(b'b', b)), "{arch} {name}: {line}");
                    kernels.insert(name.to_owned());
                }
            }
        }
    }
    let configs = ATA.iter().chain(ATA_STUDY).filter(|config| config.unit == AtaUnit::Wmma);
    let configs = configs.map(|config| config.name.to_owned());
    assert_eq!(kernels, configs.collect(), "the kernels that multiply by `wmma`");
}

#[test]
fn ladder_entries_are_the_steps_with_their_bounds_and_instructions() {
    let module = module("ladder", Arch::Sm90a);
    assert!(module.functions.is_empty() && module.extern_functions.is_empty(), "everything is inlined");
    assert_eq!(module.entries.len(), LADDER.len());
    for step in LADDER {
        let entry = module.entry(step.name).unwrap_or_else(|| panic!("no entry for {step}"));
        assert_eq!((entry.max_threads, entry.min_blocks), (Some(step.threads()), Some(1)), "{step}");
        assert!(!entry.uses_local, "{step} uses local memory");
        assert_eq!(entry.generic_accesses(), 0, "{step} has generic accesses");
        let product = format!("wgmma.mma_async.sync.aligned.m64n{}k16.f32.f16.f16", step.n);
        assert_eq!(entry.count(&product), step.k_steps() as usize, "{step}");
        let loads = entry.count("cp.async.bulk.tensor.2d.shared::cluster.global");
        let (copies, stores, moves) = match step.pipeline {
            Pipeline::Threads => (0, 0, 0),
            // A and B ahead of the loop, for each stage, and in it.
            Pipeline::Tma => (2 * (1 + step.stages as usize), 0, 0),
            Pipeline::Specialised => (2, 0, 2),
            Pipeline::Persistent => (2, (step.n / STORE_COLUMNS) as usize, 2),
        };
        // LLVM unrolls the producer's loop.
        assert!(loads >= copies && (loads > 0) == (copies > 0), "{step}: {loads} copies");
        assert_eq!(entry.count("cp.async.bulk.tensor.2d.global"), stores, "{step}");
        assert!(entry.count("setmaxnreg") >= moves && (moves > 0 || entry.count("setmaxnreg") == 0), "{step}");
    }
}

#[test]
fn solver_entries_are_the_rows_with_their_bounds_and_barriers() {
    for arch in Arch::ALL {
        let module = module("ata", arch);
        for config in CG {
            let entry = module.entry(config.name).unwrap_or_else(|| panic!("{arch}: no entry for {config}"));
            assert_eq!((entry.max_threads, entry.min_blocks), (Some(config.threads()), Some(1)), "{config}");
            assert!(!entry.uses_local, "{config} uses local memory");
            assert_eq!(entry.generic_accesses(), 0, "{config} has generic accesses");
            assert_eq!((entry.count("atom"), entry.count("red")), (0, 0), "{config} has atomics");
            // A barrier for each sum over the block.
            let sums = match (config.stage, config.preconditioned) {
                (CgStage::Finish, _) => 0,
                (_, false) => 2,
                (_, true) => 3,
            };
            assert_eq!(entry.count("bar.sync"), sums, "{config}");
        }
    }
}

#[test]
fn gemm_entries_are_the_rows_with_their_bounds_and_instructions() {
    let beside = [
        (REDUCE_SPLIT_K.name, REDUCE_SPLIT_K.threads),
        (PACK_8BIT.name, PACK_8BIT.threads),
        (PACK_16BIT.name, PACK_16BIT.threads),
    ];
    for arch in Arch::ALL {
        let module = module("gemm", arch);
        assert_eq!((module.version, module.target.as_str()), (arch.ptx_version(), arch.target_cpu()));
        assert!(module.functions.is_empty() && module.extern_functions.is_empty(), "{arch}: everything is inlined");
        let configs: Vec<_> = GEMM.iter().filter(|config| config.is_in(arch)).collect();
        assert_eq!(module.entries.len(), configs.len() + beside.len(), "{arch}");
        for (name, threads) in beside {
            let entry = module.entry(name).unwrap_or_else(|| panic!("{arch}: no entry {name}"));
            assert_eq!((entry.max_threads, entry.min_blocks), (Some(threads), Some(AUXILIARY_MIN_BLOCKS)), "{name}");
        }
        for entry in &module.entries {
            assert!(!entry.uses_local, "{arch} {} uses local memory", entry.name);
            assert_eq!(entry.generic_accesses(), 0, "{arch} {} has generic accesses", entry.name);
            assert_eq!((entry.count("atom"), entry.count("red")), (0, 0), "{arch} {} has atomics", entry.name);
        }
        for config in configs {
            let entry = module.entry(config.name).unwrap_or_else(|| panic!("{arch}: no entry for {config}"));
            assert_eq!(
                (entry.max_threads, entry.min_blocks),
                (Some(config.threads()), Some(config.min_blocks)),
                "{config}"
            );
            match config.unit {
                GemmUnit::Mma => check_mma(config, entry),
                GemmUnit::Wgmma => check_gemm_wgmma(config, entry),
            }
        }
    }
}

#[test]
fn quantize_entries_are_the_rows_with_their_bounds_and_instructions() {
    for arch in Arch::ALL {
        let module = module("quantize", arch);
        assert!(module.functions.is_empty() && module.extern_functions.is_empty(), "{arch}: everything is inlined");
        assert_eq!(module.entries.len(), quantize::KERNELS.len(), "{arch}");
        for kernel in quantize::KERNELS {
            let entry = module.entry(kernel.name).unwrap_or_else(|| panic!("{arch}: no entry for {kernel}"));
            let bounds = (Some(QuantizeKernel::THREADS), Some(QuantizeKernel::MIN_BLOCKS));
            assert_eq!((entry.max_threads, entry.min_blocks), bounds, "{kernel}");
            assert!(!entry.uses_local, "{arch} {kernel} uses local memory");
            assert_eq!(entry.generic_accesses(), 0, "{arch} {kernel} has generic accesses");
            // Architectures with FP8 round by an instruction: two numbers at a time, of three types.
            let pairs = 3 * quantize::CHUNK * quantize::THREAD_CHUNKS / 2;
            let expected = if kernel == quantize::QUANTIZE && arch >= Arch::Sm89 { pairs } else { 0 };
            assert_eq!(entry.count("cvt.rn.satfinite.e4m3x2.f32"), expected, "{arch} {kernel}");
        }
    }
}

#[test]
fn rotary_entries_are_the_rows_with_their_bounds() {
    for arch in Arch::ALL {
        let module = module("rotary", arch);
        assert!(module.functions.is_empty() && module.extern_functions.is_empty(), "{arch}: everything is inlined");
        assert_eq!(module.entries.len(), ROTARY.len(), "{arch}");
        for kernel in ROTARY {
            let entry = module.entry(kernel.name).unwrap_or_else(|| panic!("{arch}: no entry for {kernel}"));
            let bounds = (Some(RotaryKernel::THREADS), Some(RotaryKernel::MIN_BLOCKS));
            assert_eq!((entry.max_threads, entry.min_blocks), bounds, "{kernel}");
            assert!(!entry.uses_local, "{arch} {kernel} uses local memory");
            assert_eq!(entry.generic_accesses(), 0, "{arch} {kernel} has generic accesses");
            assert_eq!(entry.count("bar.sync"), 0, "{arch} {kernel}: no thread waits for another");
            let rounds = entry.count("cvt.rn.satfinite.e4m3x2.f32") > 0;
            assert_eq!(rounds, kernel.cache_dtype == Dtype::E4M3 && arch >= Arch::Sm89, "{arch} {kernel}");
        }
    }
}

/// The loop over the stages is the only one that multiplies, and has each step once.
fn check_mma(config: &GemmConfig, entry: &Entry) {
    let (a, b, steps) = (config.a_fragments(), config.b_fragments(), config.k_steps());
    assert_eq!(entry.count("mma.sync.aligned"), 2 * a * b * steps, "{config}");
    let transposed = |major| if major == Major::Mn { 1 } else { 0 };
    let (a_transposed, b_transposed) = (transposed(config.tile_layout().a()), transposed(config.tile_layout().b()));
    // Of operands by `cp.async`, the fragments of the first step are loaded ahead of the loop.
    let loads = steps + usize::from(config.operands != Operands::Any);
    assert_eq!(entry.count("ldmatrix.sync.aligned.m8n8.x4"), (a + b) * loads, "{config}");
    let of_transposed = (a * a_transposed + b * b_transposed) * loads;
    assert_eq!(entry.count("ldmatrix.sync.aligned.m8n8.x4.trans"), of_transposed, "{config}");
    let asynchronous = config.operands != Operands::Any;
    assert_eq!(entry.count("cp.async.cg.shared.global") > 0, asynchronous, "{config}");
    // One barrier a stage, one before the first, and one before the sums take the place of the stages.
    assert_eq!(entry.count("bar.sync"), if asynchronous { 3 } else { 2 }, "{config}");
}

/// There is one loop over the stages, with the copies and the products of one stage. Direct sums have the products of a
/// tile's first stage ahead of the loop.
fn check_gemm_wgmma(config: &GemmConfig, entry: &Entry) {
    let product = format!("wgmma.mma_async.sync.aligned.m64n{}k{}", config.tile.n, config.tile.k / config.k_steps());
    let stages = match config.accumulation {
        Accumulation::Direct => 2,
        Accumulation::TwoLevel => 1,
    };
    assert_eq!(entry.count(&product), stages * config.k_steps(), "{config}");
    assert_eq!(entry.count("wgmma.mma_async"), stages * config.k_steps(), "{config}");
    let loads = entry.count("cp.async.bulk.tensor.3d.shared::cluster.global");
    assert_eq!(loads as u32, config.boxes(Side::A) + config.boxes(Side::B), "{config}");
    // In the loop over tiles and, for the last, behind it.
    let stores = if config.warps_store() { 0 } else { 2 * config.buffers() };
    assert_eq!(entry.count("cp.async.bulk.tensor.3d.global") as u32, stores, "{config}");
    assert_eq!(entry.count("setmaxnreg"), if config.moves_registers() { 2 } else { 0 }, "{config}");
}
