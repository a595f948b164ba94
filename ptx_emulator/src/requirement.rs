//! Since when an instruction, a special register or a directive exists: the PTX version and the target that a text
//! must declare to use it. From the "PTX ISA Notes" and "Target ISA Notes" of the PTX ISA, checked against ptxas 13.5.
//!
//! A requirement has a name and modifiers. An opcode must have them in this order, with others between them, or with
//! none between where the name begins with `=`. `*` is any name, and in a modifier any letters. An opcode must meet
//! every requirement that it matches, and one of the pairs of each.

use crate::front::opcode_parts;
use crate::program::Op;
use crate::target::{Target, Version};

/// A version and a target that have something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Need {
    pub(crate) version: Version,
    pub(crate) target: Target,
}

/// The version 7.8 is 78, the target `sm_90` is 90.
const fn since(version: u16, capability: u16) -> Need {
    Need { version: Version::of(version), target: Target::onward(capability) }
}

const fn only(version: u16, target: Target) -> Need {
    Need { version: Version::of(version), target }
}

type Requirement = (&'static str, &'static [Need]);

const REQUIREMENTS: &[Requirement] = &[
    // Orders, scopes and windows of memory.
    ("*.weak", &[since(60, 70)]),
    ("*.relaxed", &[since(60, 70)]),
    ("*.acquire", &[since(60, 70)]),
    ("*.release", &[since(60, 70)]),
    ("*.acq_rel", &[since(60, 70)]),
    ("*.cluster", &[since(78, 90)]),
    ("*.shared::cluster", &[since(78, 90)]),
    ("ld.shared::cta", &[since(78, 30)]),
    ("st.shared::cta", &[since(78, 30)]),
    ("atom.shared::cta", &[since(78, 30)]),
    ("red.shared::cta", &[since(78, 30)]),
    ("cvta.shared::cta", &[since(78, 30)]),
    ("isspacep.shared::cta", &[since(78, 30)]),
    ("mbarrier.shared::cta", &[since(78, 80)]),
    ("ldmatrix.shared::cta", &[since(78, 75)]),
    ("stmatrix.shared::cta", &[since(78, 90)]),
    ("*.param::entry", &[since(83, 20)]),
    ("*.param::func", &[since(83, 20)]),
    ("cvta.param", &[since(77, 70)]),
    ("isspacep.param", &[since(77, 70)]),
    ("*.L1::*", &[since(74, 70)]),
    ("*.L2::*", &[since(74, 75)]),
    ("*.L2::cache_hint", &[since(74, 80)]),
    ("ld.nc", &[since(31, 32)]),
    ("ld.mmio", &[since(82, 70)]),
    ("st.mmio", &[since(82, 70)]),
    ("ld.v8", &[since(88, 100)]),
    ("st.v8", &[since(88, 100)]),
    ("ld.v4.*64", &[since(88, 100)]),
    ("st.v4.*64", &[since(88, 100)]),
    ("st.async", &[since(81, 90)]),
    ("st.bulk", &[since(86, 100)]),
    ("red.async", &[since(81, 90)]),
    ("atom.cta", &[since(50, 60)]),
    ("atom.gpu", &[since(50, 60)]),
    ("atom.sys", &[since(50, 60)]),
    ("red.cta", &[since(50, 60)]),
    ("red.gpu", &[since(50, 60)]),
    ("red.sys", &[since(50, 60)]),
    ("atom.add.f64", &[since(50, 60)]),
    ("red.add.f64", &[since(50, 60)]),
    ("atom.min.*64", &[since(31, 32)]),
    ("atom.max.*64", &[since(31, 32)]),
    ("atom.and.b64", &[since(31, 32)]),
    ("atom.or.b64", &[since(31, 32)]),
    ("atom.xor.b64", &[since(31, 32)]),
    ("red.min.*64", &[since(31, 32)]),
    ("red.max.*64", &[since(31, 32)]),
    ("red.and.b64", &[since(31, 32)]),
    ("red.or.b64", &[since(31, 32)]),
    ("red.xor.b64", &[since(31, 32)]),
    ("atom.noftz.f16", &[since(63, 70)]),
    ("red.noftz.f16", &[since(63, 70)]),
    ("atom.noftz.f16x2", &[since(62, 60)]),
    ("red.noftz.f16x2", &[since(62, 60)]),
    ("atom.noftz.bf16*", &[since(78, 90)]),
    ("red.noftz.bf16*", &[since(78, 90)]),
    ("atom.cas.b16", &[since(63, 70)]),
    ("atom.b128", &[since(83, 90)]),
    ("atom.v2", &[since(81, 90)]),
    ("atom.v4", &[since(81, 90)]),
    ("atom.v8", &[since(81, 90)]),
    ("red.v2", &[since(81, 90)]),
    ("red.v4", &[since(81, 90)]),
    ("red.v8", &[since(81, 90)]),
    ("prefetch.tensormap", &[since(80, 90)]),
    ("createpolicy", &[since(74, 80)]),
    ("discard", &[since(74, 80)]),
    ("applypriority", &[since(74, 80)]),
    ("multimem", &[since(81, 90)]),
    ("alloca", &[since(73, 52)]),
    ("stacksave", &[since(73, 52)]),
    ("stackrestore", &[since(73, 52)]),
    ("mapa", &[since(78, 90)]),
    ("getctarank", &[since(78, 90)]),
    // Asynchronous copies.
    ("cp.async", &[since(70, 80)]),
    ("cp.async.bulk", &[since(80, 90)]),
    ("cp.async.bulk.shared::cta.global", &[since(86, 90)]),
    ("cp.reduce", &[since(80, 90)]),
    // Barriers and fences.
    ("barrier", &[since(60, 30)]),
    ("barrier.cta", &[since(78, 30)]),
    ("barrier.cluster.arrive.release", &[since(80, 90)]),
    ("barrier.cluster.arrive.relaxed", &[since(80, 90)]),
    ("barrier.cluster.wait.acquire", &[since(80, 90)]),
    ("bar.cta", &[since(78, 30)]),
    ("bar.warp", &[since(60, 30)]),
    ("mbarrier", &[since(70, 80)]),
    ("mbarrier.test_wait.parity", &[since(71, 80)]),
    ("mbarrier.try_wait", &[since(78, 90)]),
    ("mbarrier.expect_tx", &[since(80, 90)]),
    ("mbarrier.complete_tx", &[since(80, 90)]),
    ("mbarrier.relaxed", &[since(80, 90)]),
    ("mbarrier.acquire", &[since(80, 80)]),
    ("mbarrier.release", &[since(80, 80)]),
    ("mbarrier.arrive.shared::cluster", &[since(80, 90)]),
    ("fence", &[since(60, 70)]),
    ("=fence.acquire", &[since(86, 90)]),
    ("=fence.release", &[since(86, 90)]),
    ("fence.proxy", &[since(75, 70)]),
    ("fence.proxy.async*", &[since(80, 90)]),
    ("fence.proxy.tensormap::generic", &[since(83, 90)]),
    ("fence.mbarrier_init", &[since(80, 90)]),
    ("membar.proxy", &[since(75, 60)]),
    // Warps.
    ("shfl.sync", &[since(60, 30)]),
    ("vote.sync", &[since(60, 30)]),
    ("match", &[since(60, 70)]),
    ("redux", &[since(70, 80)]),
    ("redux.f32", &[since(86, 100)]),
    ("elect", &[since(80, 90)]),
    ("activemask", &[since(62, 30)]),
    ("griddepcontrol", &[since(78, 90)]),
    ("nanosleep", &[since(62, 70)]),
    ("brx", &[since(60, 30)]),
    (
        "setmaxnreg",
        &[
            only(80, Target::exact(90)),
            only(86, Target::family(100)),
            only(90, Target::family(110)),
            only(87, Target::family(120)),
        ],
    ),
    // Tensor cores.
    ("ldmatrix", &[since(65, 75)]),
    ("stmatrix", &[since(78, 90)]),
    ("movmatrix", &[since(78, 75)]),
    ("wmma", &[since(60, 70)]),
    ("wmma.sync", &[since(63, 70)]),
    ("wmma.m32n8k16", &[since(61, 70)]),
    ("wmma.m8n32k16", &[since(61, 70)]),
    ("wmma.s8", &[since(63, 72)]),
    ("wmma.u8", &[since(63, 72)]),
    ("wmma.bf16", &[since(70, 80)]),
    ("wmma.tf32", &[since(70, 80)]),
    ("wmma.f64", &[since(70, 80)]),
    ("mma", &[since(64, 70)]),
    ("mma.m8n8k16", &[since(65, 75)]),
    ("mma.m8n8k32", &[since(65, 75)]),
    ("mma.m16n8k8", &[since(65, 75)]),
    ("mma.m16n8k4", &[since(70, 80)]),
    ("mma.m16n8k16", &[since(70, 80)]),
    ("mma.m16n8k32", &[since(70, 80)]),
    ("mma.m16n8k64", &[since(70, 80)]),
    ("mma.f64", &[since(70, 80)]),
    ("mma.e4m3", &[since(84, 89)]),
    ("mma.e5m2", &[since(84, 89)]),
    ("mma.sp", &[since(71, 80)]),
    ("wgmma", &[only(80, Target::exact(90))]),
    // Arithmetic and types.
    ("*.bf16", &[since(70, 80)]),
    ("*.bf16x2", &[since(70, 80)]),
    ("*.tf32", &[since(70, 80)]),
    ("*.e4m3x2", &[since(78, 90), since(81, 89)]),
    ("*.e5m2x2", &[since(78, 90), since(81, 89)]),
    ("*.b128", &[since(83, 70)]),
    ("*.f32x2", &[since(86, 100)]),
    ("*.u16x2", &[since(80, 90)]),
    ("*.s16x2", &[since(80, 90)]),
    ("*.relu", &[since(70, 80)]),
    ("*.relu.s32", &[since(80, 90)]),
    ("*.oob", &[since(81, 90)]),
    ("min.NaN", &[since(70, 80)]),
    ("max.NaN", &[since(70, 80)]),
    ("min.xorsign", &[since(72, 86)]),
    ("max.xorsign", &[since(72, 86)]),
    ("min.f16*", &[since(70, 80)]),
    ("max.f16*", &[since(70, 80)]),
    ("add.f16*", &[since(42, 53)]),
    ("sub.f16*", &[since(42, 53)]),
    ("mul.f16*", &[since(42, 53)]),
    ("fma.f16*", &[since(42, 53)]),
    ("set.f16*", &[since(42, 53)]),
    ("setp.f16*", &[since(42, 53)]),
    ("neg.f16*", &[since(60, 53)]),
    ("abs.f16*", &[since(65, 53)]),
    ("add.bf16*", &[since(78, 90)]),
    ("sub.bf16*", &[since(78, 90)]),
    ("mul.bf16*", &[since(78, 90)]),
    ("set.bf16*", &[since(78, 90)]),
    ("setp.bf16*", &[since(78, 90)]),
    ("ex2.f16*", &[since(70, 75)]),
    ("ex2.bf16*", &[since(78, 90)]),
    ("tanh", &[since(70, 75)]),
    ("tanh.bf16*", &[since(78, 90)]),
    ("rsqrt.ftz.f64", &[since(40, 20)]),
    ("cvt.f16x2.f32", &[since(70, 80)]),
    ("cvt.f32.bf16", &[since(71, 80)]),
    ("cvt.bf16.bf16", &[since(78, 90)]),
    ("cvt.bf16.f16", &[since(78, 90)]),
    ("cvt.bf16.f64", &[since(78, 90)]),
    ("cvt.bf16.s*", &[since(78, 90)]),
    ("cvt.bf16.u*", &[since(78, 90)]),
    ("cvt.f16.bf16", &[since(78, 90)]),
    ("cvt.f64.bf16", &[since(78, 90)]),
    ("cvt.s8.bf16", &[since(78, 90)]),
    ("cvt.s16.bf16", &[since(78, 90)]),
    ("cvt.s32.bf16", &[since(78, 90)]),
    ("cvt.s64.bf16", &[since(78, 90)]),
    ("cvt.u8.bf16", &[since(78, 90)]),
    ("cvt.u16.bf16", &[since(78, 90)]),
    ("cvt.u32.bf16", &[since(78, 90)]),
    ("cvt.u64.bf16", &[since(78, 90)]),
    ("cvt.rn.tf32", &[since(78, 90)]),
    ("cvt.rz.tf32", &[since(78, 90)]),
    ("cvt.satfinite.f16.f32", &[since(81, 70)]),
    ("cvt.satfinite.f16x2.f32", &[since(81, 80)]),
    ("cvt.satfinite.bf16*", &[since(81, 80)]),
    ("cvt.satfinite.tf32", &[since(81, 80)]),
    ("cvt.rn.satfinite.tf32", &[since(86, 100)]),
    ("cvt.rz.satfinite.tf32", &[since(86, 100)]),
    ("cvt.pack", &[since(65, 72)]),
    ("add.cc.*64", &[since(43, 20)]),
    ("sub.cc.*64", &[since(43, 20)]),
    ("dp4a", &[since(50, 61)]),
    ("dp2a", &[since(50, 61)]),
    ("lop3", &[since(43, 50)]),
    ("lop3.*.b32", &[since(82, 70)]),
    ("shf", &[since(31, 32)]),
    ("fns", &[since(60, 30)]),
    ("szext", &[since(76, 70)]),
    ("bmsk", &[since(76, 70)]),
    // Special registers.
    ("%clock_hi", &[since(50, 20)]),
    ("%dynamic_smem_size", &[since(41, 20)]),
    ("%total_smem_size", &[since(41, 20)]),
    ("%aggr_smem_size", &[since(81, 90)]),
    ("%globaltimer", &[since(31, 30)]),
    ("%cluster_ctaid", &[since(78, 90)]),
    ("%cluster_nctaid", &[since(78, 90)]),
    ("%cluster_ctarank", &[since(78, 90)]),
    ("%cluster_nctarank", &[since(78, 90)]),
    ("%clusterid", &[since(78, 90)]),
    ("%nclusterid", &[since(78, 90)]),
    ("%is_explicit_cluster", &[since(78, 90)]),
    // Directives, without their dots.
    ("noreturn", &[since(64, 30)]),
    ("reqnctapercluster", &[since(78, 90)]),
    ("maxclusterrank", &[since(78, 90)]),
    ("explicitcluster", &[since(78, 90)]),
    ("blocksareclusters", &[since(90, 90)]),
    ("alias", &[since(63, 30)]),
    ("common", &[since(50, 20)]),
    ("weak", &[since(31, 20)]),
    ("ptr", &[since(22, 20)]),
    ("branchtargets", &[since(21, 20)]),
    ("attribute", &[since(40, 30)]),
];

/// The latest of what an opcode, a special register or a directive needs and a text of this version and target does not
/// have.
pub(crate) fn missing(name: &str, version: Version, target: Target) -> Option<Need> {
    let has = |need: &Need| version >= need.version && target.has(need.target);
    let parts = opcode_parts(name);
    let unmet = REQUIREMENTS.iter().filter(|(name, needs)| !needs.iter().any(has) && matches(name, &parts));
    unmet.filter_map(|(_, needs)| needs.first().copied()).max()
}

/// [`missing`] of what the operands of an instruction ask for beyond its opcode.
pub(crate) fn missing_for_operands(opcode: &str, op: &Op, version: Version, target: Target) -> Option<Need> {
    // A count that may complete the phase.
    let counted = matches!(op, Op::MbarrierArrive { count: Some(_), .. }) && !opcode.contains("noComplete");
    let need = since(78, 90);
    (counted && !(version >= need.version && target.has(need.target))).then_some(need)
}

/// Whether an opcode of these parts has the name and the modifiers of a requirement.
fn matches(required: &str, parts: &[&str]) -> bool {
    if let Some(required) = required.strip_prefix('=') {
        return required.split('.').enumerate().all(|(at, wanted)| parts.get(at) == Some(&wanted));
    }
    let mut parts = parts.iter();
    let mut wanted = required.split('.');
    let name = wanted.next().unwrap_or_default();
    if parts.next().is_none_or(|&found| name != "*" && name != found) {
        return false;
    }
    wanted.all(|wanted| {
        parts.any(|found| match wanted.split_once('*') {
            Some((start, end)) => {
                found.len() >= start.len() + end.len() && found.starts_with(start) && found.ends_with(end)
            }
            None => *found == wanted,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(opcode: &str, version: u16, target: Target) -> Option<String> {
        missing(opcode, Version::of(version), target).map(|need| format!("{} {}", need.version, need.target))
    }

    #[test]
    fn an_opcode_needs_what_its_name_and_its_modifiers_need() {
        for (opcode, needs) in [
            ("add.s32", None),
            ("shfl.sync.idx.b32", Some("6.0 sm_30")),
            ("ld.acquire.gpu.global.b32", Some("6.0 sm_70")),
            ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", Some("7.0 sm_80")),
            ("wgmma.fence.sync.aligned", Some("8.0 sm_90a")),
            ("cvt.rn.f16.f32", None),
            ("%cluster_nctaid.x", Some("7.8 sm_90")),
            ("%tid.x", None),
        ] {
            assert_eq!(names(opcode, 20, Target::onward(20)).as_deref(), needs, "{opcode}");
        }
        let sm_80 = Target::onward(80);
        for (opcode, needs) in [
            ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", None),
            ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", Some("8.4 sm_89")),
            ("cp.async.cg.shared.global", None),
            ("cp.async.cg.shared.global.L2::128B", Some("7.4 sm_75")),
            ("cp.async.bulk.commit_group", Some("8.0 sm_90")),
            ("cvt.rn.bf16.f32", None),
            ("cvt.rn.bf16.s32", Some("7.8 sm_90")),
            ("cvt.f32.bf16", Some("7.1 sm_80")),
            ("fence.acquire.gpu", Some("8.6 sm_90")),
            ("fence.mbarrier_init.release.cluster", Some("8.0 sm_90")),
            ("cvt.rna.tf32.f32", None),
            ("add.rn.bf16x2", Some("7.8 sm_90")),
            ("fma.rn.bf16x2", None),
            ("ld.global.v4.b32", None),
            ("ld.global.v4.f64", Some("8.8 sm_100")),
        ] {
            assert_eq!(names(opcode, 70, sm_80).as_deref(), needs, "{opcode}");
        }
    }

    #[test]
    fn one_of_the_alternatives_is_enough() {
        let e4m3 = "cvt.rn.satfinite.e4m3x2.f32";
        assert_eq!(names(e4m3, 81, Target::onward(89)), None);
        assert_eq!(names(e4m3, 78, Target::onward(90)), None);
        assert_eq!(names(e4m3, 78, Target::onward(89)).as_deref(), Some("7.8 sm_90"));
        for (target, fits) in [
            (Target::exact(90), true),
            (Target::exact(100), true),
            (Target::family(120), true),
            (Target::onward(90), false),
            (Target::onward(120), false),
        ] {
            assert_eq!(names("setmaxnreg.inc.sync.aligned.u32", 90, target).is_none(), fits, "{target}");
        }
        assert!(names("wgmma.fence.sync.aligned", 90, Target::exact(100)).is_some());
    }
}
