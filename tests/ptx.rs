//! The instructions of the probes, in the PTX of every architecture. Each wrapper is exactly the instruction that it
//! names, as often as it is called. Nothing goes through local memory or generic addresses.

use cuda_builder::ptx::Module;
use layout::{Arch, Dtype};
use tests::probe_ptx::probe_ptx;
use variants::probe::wgmma::WGMMA;

/// The instructions of one probe: how often each opcode stands in it, with any further modifiers.
type Instructions = (&'static str, &'static [(&'static str, usize)]);

const SM_80: &[Instructions] = &[
    ("thread_sync", &[("bar.sync", 1), ("st.shared", 2), ("ld.shared", 2)]),
    ("barrier_warps", &[("bar.sync", 1), ("bar.arrive", 1)]),
    ("barrier_numbered", &[("bar.arrive", 1), ("bar.sync", 1)]),
    ("thread_block_fence", &[("fence.acq_rel.cta", 2)]),
    ("thread_device_fence", &[("fence.acq_rel.gpu", 2)]),
    (
        "warp_shuffles",
        &[("shfl.sync.idx.b32", 2), ("shfl.sync.bfly.b32", 1), ("shfl.sync.up.b32", 1), ("shfl.sync.down.b32", 1)],
    ),
    ("warp_votes", &[("vote.sync.all.pred", 1), ("vote.sync.any.pred", 1), ("vote.sync.ballot.b32", 1)]),
    // 2 + 2 exchanges for a quad, 5 + 5 for a warp.
    ("warp_reductions", &[("shfl.sync.bfly.b32", 14), ("max.f32", 7), ("add.rn.f32", 7)]),
    ("warp_sync", &[("bar.warp.sync", 8)]),
    (
        "shared_words",
        &[
            ("ld.shared.b8", 1),
            ("ld.shared.b16", 1),
            ("ld.shared.b32", 2),
            ("ld.shared.v2.b32", 1),
            ("ld.shared.v4.b32", 1),
            ("st.shared.b8", 1),
            ("st.shared.b16", 1),
            ("st.shared.b32", 2),
            ("st.shared.v2.b32", 1),
            ("st.shared.v4.b32", 1),
        ],
    ),
    (
        "global_words",
        &[
            ("ld.global.nc.b8", 1),
            ("ld.global.nc.b16", 1),
            ("ld.global.nc.b32", 2),
            ("ld.global.nc.v2.b32", 1),
            ("ld.global.nc.v4.b32", 1),
            ("ld.global.b8", 3),
            ("ld.global.b16", 3),
            ("ld.global.b32", 6),
            ("ld.global.v2.b32", 3),
            ("ld.global.v4.b32", 3),
            ("st.global.v4.b32", 3),
        ],
    ),
    (
        "convert_narrow",
        &[("cvt.rn.f16.f32", 1), ("cvt.rn.bf16.f32", 1), ("cvt.rn.f16x2.f32", 1), ("cvt.rn.bf16x2.f32", 1)],
    ),
    ("convert_tf32", &[("cvt.rna.tf32.f32", 1)]),
    ("convert_permute_bytes", &[("prmt.b32", 1)]),
    // The value alone and the lower one of the pair are the same: pure conversions are done once.
    ("convert_widen", &[("cvt.f32.f16", 2)]),
    (
        "convert_math",
        &[
            ("ex2.approx.ftz.f32", 1),
            ("lg2.approx.ftz.f32", 1),
            ("rcp.approx.ftz.f32", 1),
            ("fma.rn.f32", 1),
            ("max.f32", 1),
        ],
    ),
    ("convert_fma_f16x2", &[("fma.rn.f16x2", 1)]),
    ("cp_async_ca_4", &[("cp.async.ca.shared.global", 1), ("cp.async.commit_group", 1), ("cp.async.wait_group", 1)]),
    ("cp_async_ca_8", &[("cp.async.ca.shared.global", 1)]),
    ("cp_async_cg_16", &[("cp.async.cg.shared.global", 1)]),
    ("cp_async_groups", &[("cp.async.commit_group", 4), ("cp.async.wait_group", 4)]),
    ("cp_async_wait_all", &[("cp.async.cg.shared.global", 1), ("cp.async.wait_all", 1)]),
    (
        "mbarrier_phases",
        &[("mbarrier.init.shared.b64", 1), ("mbarrier.arrive.shared.b64", 3), ("mbarrier.test_wait.shared.b64", 4)],
    ),
    ("ldmatrix_x1", &[("ldmatrix.sync.aligned.m8n8.x1.shared.b16", 1)]),
    ("ldmatrix_x1_trans", &[("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1)]),
    ("ldmatrix_x2", &[("ldmatrix.sync.aligned.m8n8.x2.shared.b16", 1)]),
    ("ldmatrix_x2_trans", &[("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 1)]),
    ("ldmatrix_x4", &[("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 1)]),
    ("ldmatrix_x4_trans", &[("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 1)]),
    ("mma_m16n8k16_f16", &[("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 1), ("mma", 1)]),
    ("mma_m16n8k16_bf16", &[("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 1), ("mma", 1)]),
    ("mma_m16n8k8_tf32", &[("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 1), ("mma", 1)]),
    (
        "mma_from_ldmatrix_f16",
        &[("ldmatrix", 2), ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 2), ("wmma", 0)],
    ),
    (
        "mma_from_ldmatrix_bf16",
        &[("ldmatrix", 2), ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 2), ("wmma", 0)],
    ),
];

const SM_89: &[Instructions] = &[
    ("convert_fp8_narrow", &[("cvt.rn.satfinite.e4m3x2.f32", 1), ("cvt.rn.satfinite.e5m2x2.f32", 1)]),
    ("convert_fp8_widen", &[("cvt.rn.f16x2.e4m3x2", 3), ("cvt.rn.f16x2.e5m2x2", 1)]),
    ("mma_m16n8k32_e4m3_e4m3", &[("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", 1), ("mma", 1)]),
    ("mma_m16n8k32_e4m3_e5m2", &[("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", 1), ("mma", 1)]),
];

const SM_90A: &[Instructions] = &[
    // The rank, and the three registers that number the block.
    ("thread_cluster_rank", &[("mov.u32", 4)]),
    ("griddepcontrol_chain", &[("griddepcontrol.launch_dependents", 1), ("griddepcontrol.wait", 1)]),
    ("warp_elect", &[("elect.sync", 2)]),
    (
        "mbarrier_parity",
        &[
            ("mbarrier.arrive.expect_tx.shared::cta.b64", 2),
            ("mbarrier.try_wait.parity.shared::cta.b64", 7),
            ("fence.mbarrier_init.release.cluster", 1),
            ("fence.proxy.async.shared::cta", 1),
        ],
    ),
    (
        "mbarrier_cluster",
        &[
            ("mbarrier.arrive.shared::cta.b64", 1),
            ("mapa.shared::cluster.u32", 1),
            ("mbarrier.arrive.shared::cluster.b64", 1),
            ("barrier.cluster", 6),
        ],
    ),
    (
        "cluster_load",
        &[("mapa.shared::cluster.u32", 1), ("ld.shared::cluster.v2.b32", 1), ("ld.shared::cluster.b32", 2)],
    ),
    (
        "cluster_store_async",
        &[
            ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32", 1),
            ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32", 1),
            ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32", 1),
        ],
    ),
    ("cluster_sync", &[("barrier.cluster.arrive.release.aligned", 2), ("barrier.cluster.wait.acquire.aligned", 2)]),
    ("stmatrix_x1", &[("stmatrix.sync.aligned.m8n8.x1.shared.b16", 1)]),
    ("stmatrix_x1_trans", &[("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1)]),
    ("stmatrix_x2", &[("stmatrix.sync.aligned.m8n8.x2.shared.b16", 1)]),
    ("stmatrix_x2_trans", &[("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 1)]),
    ("stmatrix_x4", &[("stmatrix.sync.aligned.m8n8.x4.shared.b16", 1)]),
    ("stmatrix_x4_trans", &[("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 1)]),
    ("setmaxnreg_exchange", &[("setmaxnreg.dec.sync.aligned.u32", 1), ("setmaxnreg.inc.sync.aligned.u32", 1)]),
    (
        "tma_groups",
        &[
            // Two rounds, and one wait behind them.
            ("cp.async.bulk.commit_group", 2),
            ("cp.async.bulk.wait_group.read", 2),
            ("cp.async.bulk.wait_group", 2 + 1),
            ("fence.proxy.async.global", 1),
        ],
    ),
    (
        "wgmma_groups",
        &[
            ("wgmma.fence.sync.aligned", 4),
            ("wgmma.mma_async", 3 * 4),
            ("wgmma.commit_group.sync.aligned", 4),
            ("wgmma.wait_group.sync.aligned", 2),
        ],
    ),
    ("wgmma_product", &[("wgmma.fence", 1), ("wgmma.mma_async", 4), ("wgmma.commit_group", 1)]),
    ("wgmma_product_registers", &[("wgmma.fence", 1), ("wgmma.mma_async", 4), ("wgmma.commit_group", 1)]),
];

fn module(arch: Arch) -> Module {
    Module::parse(probe_ptx(arch)).expect("the PTX of the probes is well-formed")
}

fn assert_instructions(module: &Module, probe: &str, instructions: &[(&str, usize)]) {
    let entry = module.entry(probe).unwrap_or_else(|| panic!("{}: no probe {probe}", module.target));
    for &(opcode, count) in instructions {
        assert_eq!(entry.count(opcode), count, "{} {probe}: {opcode}; has {:#?}", module.target, entry.opcodes);
    }
}

#[test]
fn each_probe_has_the_instructions_of_its_wrapper() {
    for arch in Arch::ALL {
        let module = module(arch);
        let tables = [(Arch::Sm80, SM_80), (Arch::Sm89, SM_89), (Arch::Sm90a, SM_90A)];
        for (probe, instructions) in tables.iter().filter(|table| arch >= table.0).flat_map(|table| table.1) {
            assert_instructions(&module, probe, instructions);
        }
    }
}

#[test]
fn each_wmma_probe_has_the_instructions_of_its_shape_type_and_orders() {
    for arch in Arch::ALL {
        let module = module(arch);
        for shape in ["m16n16k16", "m32n8k16", "m8n32k16"] {
            for (element, types) in [("f16", "f32.f32"), ("bf16", "f32.bf16.bf16.f32")] {
                for (a, b) in [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")] {
                    let expected = [
                        (format!("wmma.load.a.sync.aligned.{a}.{shape}.shared.{element}"), 1),
                        (format!("wmma.load.b.sync.aligned.{b}.{shape}.shared.{element}"), 1),
                        (format!("wmma.load.c.sync.aligned.{a}.{shape}.shared.f32"), 1),
                        (format!("wmma.mma.sync.aligned.{a}.{b}.{shape}.{types}"), 1),
                        (format!("wmma.store.d.sync.aligned.{a}.{shape}.shared.f32"), 1),
                        (format!("wmma.store.d.sync.aligned.{b}.{shape}.global.f32"), 1),
                        ("wmma".to_owned(), 6),
                    ];
                    let expected: Vec<(&str, usize)> =
                        expected.iter().map(|(opcode, count)| (&**opcode, *count)).collect();
                    assert_instructions(&module, &format!("wmma_{shape}_{element}_{a}_{b}"), &expected);
                }
            }
        }
    }
}

#[test]
fn each_wgmma_probe_is_one_group_of_its_row() {
    let module = module(Arch::Sm90a);
    for case in WGMMA {
        let name = |dtype: Dtype| if dtype == Dtype::F32 { "tf32" } else { dtype.name() };
        let (d, a, b) = (case.d.name(), name(case.a.dtype()), name(case.b.dtype()));
        let (n, k) = (case.n, case.a.k_step_elems());
        let instruction = format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b}");
        let expected = [
            ("wgmma.fence.sync.aligned", 1),
            (&*instruction, case.steps as usize),
            ("wgmma.commit_group.sync.aligned", 1),
            ("wgmma.wait_group.sync.aligned", 1),
            ("wgmma", case.steps as usize + 3),
        ];
        assert_instructions(&module, case.name, &expected);
        assert!(case.name.starts_with(&format!("wgmma_{d}_{a}_{b}_n{n}_s{}_", case.steps)), "{}", case.name);
    }
}

#[test]
fn each_tma_probe_has_the_copy_of_its_rank_and_an_aligned_map() {
    let module = module(Arch::Sm90a);
    for rank in 1..=5 {
        let tensor = |form: &str, modes: &str| format!("cp.{form}.bulk.tensor.{rank}d.{modes}");
        let load = tensor("async", "shared::cluster.global.tile.mbarrier::complete_tx::bytes");
        let probes = [
            ("load", load.clone()),
            ("load_multicast", format!("{load}.multicast::cluster")),
            ("store", tensor("async", "global.shared::cta.tile.bulk_group")),
            ("reduce_add", tensor("reduce.async", "global.shared::cta.add.tile.bulk_group")),
        ];
        for (probe, instruction) in probes {
            let name = format!("tma_{probe}_{rank}d");
            assert_instructions(&module, &name, &[(&*instruction, 1)]);
            let map = &module.entry(&name).expect("it has just been found").parameters[2];
            assert_eq!((map.size_bytes, map.align_bytes), (128, 64), "{name}");
        }
        let name = format!("tma_load_{rank}d");
        let prefetch = format!("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile");
        let expected =
            [("prefetch.tensormap", 1), (&*prefetch, 1), ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", 1)];
        assert_instructions(&module, &name, &expected);
    }
}

#[test]
fn no_probe_uses_local_memory_calls_or_generic_addresses() {
    for arch in Arch::ALL {
        let module = module(arch);
        assert_eq!(module.functions, [""; 0], "{arch}: everything is inlined");
        for entry in &module.entries {
            assert!(!entry.uses_local, "{arch} {}: local memory", entry.name);
            assert_eq!(entry.generic_accesses(), 0, "{arch} {}: {:#?}", entry.name, entry.opcodes);
        }
    }
}

#[test]
fn modules_are_pinned_to_target_and_version() {
    for arch in Arch::ALL {
        let module = module(arch);
        assert_eq!((&*module.target, module.version), (arch.target_cpu(), arch.ptx_version()));
    }
}

#[test]
fn each_static_shared_array_is_declared_once() {
    for arch in Arch::ALL {
        let ptx = probe_ptx(arch);
        let declarations: Vec<&str> = ptx.lines().filter(|line| line.starts_with(".shared ")).collect();
        // Two arrays of 256 words in `thread_sync`, one of 32 in `warp_sync`.
        let of_bytes = |bytes: u32| declarations.iter().filter(|line| line.contains(&format!("[{bytes}]"))).count();
        assert_eq!((declarations.len(), of_bytes(1024), of_bytes(128)), (3, 2, 1), "{declarations:?}");
    }
}
