//! Thousands of damaged PTX texts: each is a module or an error, soon and without a panic, and each module that a text
//! still is runs to an end or an error. The texts are the same in every run. Fuzzers in `ptx_emulator/fuzz` look for
//! more.

use std::time::{Duration, Instant};

use ferrotile::embedded_ptx;
use layout::Arch;
use ptx_emulator::{Device, LaunchShape, Module};

/// Longer than any text here takes on a busy machine, and shorter than what does not end.
const SOON: Duration = Duration::from_secs(20);

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// Kernels of one parameter with a bit of everything.
const SNIPPETS: [&str; 5] = [
    ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 out)\n.maxntid 64\n{
.reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<8>;
ld.param.b64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, dynamic;\nmad.lo.u32 %r2, %r1, 4, %r2;
st.shared.b32 [%r2], %r1;\nbar.sync 0;\nxor.b32 %r3, %r2, 4;\nld.shared.b32 %r4, [%r3];
mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.b32 [%rd3], %r4;
setp.lt.u32 %p1, %r1, 7;\n@%p1 bra DONE;\nAGAIN:\nadd.u32 %r1, %r1, 9;\nsetp.lt.u32 %p2, %r1, 100;\n@%p2 bra AGAIN;
DONE:\nshfl.sync.bfly.b32 %r5|%p3, %r4, 3, 31, -1;\nvote.sync.ballot.b32 %r6, %p3, -1;\nret;\n}\n",
    ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out)\n{
.shared .align 1024 .b8 tile[2048];\n.shared .align 8 .b8 barrier[8];\n.local .align 8 .b8 own[64];
.reg .pred %p<4>;\n.reg .b32 %r<24>;\n.reg .b64 %rd<8>;
ld.param.b64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nshl.b32 %r2, %r1, 4;\nmov.u32 %r3, tile;\nadd.u32 %r3, %r3, %r2;
setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared.b64 [barrier], 64;\nbar.sync 0;
cp.async.ca.shared.global [%r3], [%rd1], 16, 8;\ncp.async.commit_group;\ncp.async.wait_group 0;
mbarrier.arrive.shared.b64 %rd2, [barrier];\nWAIT:\nmbarrier.test_wait.shared.b64 %p2, [barrier], %rd2;\n@!%p2 bra WAIT;
and.b32 %r4, %r2, 511;\nmov.u32 %r5, tile;\nadd.u32 %r4, %r4, %r5;
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r6, %r7, %r8, %r9}, [%r4];
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r10, %r11, %r12, %r13}, {%r6, %r7, %r8, %r9}, {%r6, %r7}, {%r10, %r11, %r12, %r13};
st.local.v2.b32 [own+8], {%r10, %r11};\nld.local.b64 %rd3, [own+8];\nred.global.add.u32 [%rd1], 1;\nret;\n}\n",
    ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out)\n{
.reg .f32 %f<8>;\n.reg .f64 %fd<4>;\n.reg .b16 %h<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n.reg .pred p;
{ .reg .b32 t; mov.b32 t, 0f3F800000; mov.b32 %f1, t; }\ncvt.rn.f16.f32 %h1, %f1;\nmov.b32 %r1, {%h1, %h1};
fma.rn.f16x2 %r2, %r1, %r1, %r1;\nex2.approx.ftz.f32 %f2, %f1;\ndiv.rn.f32 %f3, %f2, %f1;\ncvt.f64.f32 %fd1, %f3;
sqrt.rn.f64 %fd2, %fd1;\nsetp.gtu.f32 p, %f3, 0f00000000;\nselp.f32 %f4, %f2, %f3, p;\nbfe.u32 %r3, %r2, 3, 9;
prmt.b32 %r4, %r2, %r3, 0x5410;\nlop3.b32 %r5, %r2, %r3, %r4, 0xE8;\nshf.l.wrap.b32 %r6, %r5, %r4, 7;
ld.param.b64 %rd1, [out];\natom.global.cas.b32 %r7, [%rd1], %r6, %r5;\ncvt.u64.u32 %rd2, %r7;\nbrev.b64 %rd3, %rd2;\nret;\n}\n",
    ".version 8.0\n.target sm_90a\n.file 1 \"a/b.rs\"\n.shared .align 4 .b8 all[256];\n.visible .entry a(.param .align 64 .b8 map[128]) { ret; }
.visible .entry k(.param .u64 .ptr .global .align 1 out)\n.reqntid 64, 1, 1\n{
.reg .pred %p1;\n.reg .b32 %r<4>;\n.loc 1 2 3, function_name $L__info, inlined_at 1 4 5\nmov.u32 %r1, all;\n.pragma \"nounroll\";
elect.sync %r2|%p1, -1;\n@%p1 st.shared.v2.b16 [%r1+4], {1, 2};\nbar.warp.sync -1;\nredux.sync.add.s32 %r3, %r1, -1;
match.any.sync.b32 %r2, %r3, -1;\nactivemask.b32 %r2;\nfence.acq_rel.gpu;\nbar.arrive 1, 64;\ntrap;\n}\n.section .debug { .b8 1 }\n",
    ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out)\n{
.shared .align 1024 .b8 tile[2048];\n.shared .align 8 .b8 barrier[8];
.reg .pred %p<4>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<8>;
ld.param.b64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, tile;\nmov.u32 %r3, barrier;\nsetp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\nbar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 256, [%r3];
WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;\n@!%p2 bra WAIT;
mapa.shared::cluster.u32 %r4, %r2, 0;\nld.shared::cluster.b32 %r5, [%r4];\nbarrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;\nfence.proxy.async.shared::cta;\nbar.sync 0;
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;\n@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;\nmov.u32 %r6, %cluster_ctarank;\nret;\n}\n",
];

/// What stands in numbers and names in place of others.
const TOKENS: [&str; 42] = [
    "0",
    "1",
    "-1",
    "31",
    "32",
    "4294967295",
    "0x7fffffff",
    "18446744073709551615",
    "0f7F800000",
    "0d7FF8000000000000",
    "%r0",
    "%r1",
    "%r15",
    "%rd1",
    "%rd7",
    "%p1",
    "!%p1",
    "%h1",
    "%f1",
    "_",
    "{%r1, %r2}",
    "[%rd1]",
    "[%r1+-4]",
    "[0]",
    ".b32",
    ".u64",
    ".f16",
    ".v4",
    ".sync",
    ".shared",
    ".global",
    ".param",
    "bra",
    "ret",
    "bar.sync",
    "{",
    "}",
    ";",
    "%tid.x",
    "%clock64",
    "[%r3]",
    "[%r2]",
];

/// Where words begin and end.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, letter) in text.char_indices() {
        let inside = letter.is_ascii_alphanumeric() || "_$%.:".contains(letter);
        match (inside, start) {
            (true, None) => start = Some(at),
            (false, Some(first)) => {
                words.push((first, at));
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// The text with some of its bytes, words or lines changed, dropped, doubled or moved.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut text = text.to_owned();
    for _ in 0..1 + random.below(4) {
        let words = words(&text);
        if words.is_empty() {
            return text;
        }
        let (start, end) = words[random.below(words.len())];
        let (other_start, other_end) = words[random.below(words.len())];
        let other = text[other_start..other_end].to_owned();
        match random.below(8) {
            0 => text.replace_range(start..end, random.pick(&TOKENS)),
            1 => text.replace_range(start..end, &other),
            2 => text.replace_range(start..end, ""),
            // A modifier of one instruction at another.
            3 => {
                let modifier = other.rsplit_once('.').map_or("", |parts| parts.1);
                text.insert_str(end, &format!(".{modifier}"));
            }
            4 => {
                let mut lines: Vec<&str> = text.lines().collect();
                let (from, to) = (random.below(lines.len()), random.below(lines.len()));
                match random.below(3) {
                    0 => lines.insert(to, lines[from]),
                    1 => drop(lines.remove(from)),
                    _ => lines.swap(from, to),
                }
                text = lines.join("\n");
            }
            5 => text.truncate(end),
            6 => text.insert_str(start, random.pick(&TOKENS)),
            _ => {
                let mut bytes = std::mem::take(&mut text).into_bytes();
                bytes[start] = random.below(256) as u8;
                text = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
    }
    text
}

/// Parses; the module where it is one.
fn parse(text: &str) -> Option<Module> {
    let start = Instant::now();
    let module = Module::parse(text);
    let took = start.elapsed();
    assert!(took < SOON, "{took:?} for {} bytes:\n{}", text.len(), &text[..text.floor_char_boundary(2000)]);
    if let Err(error) = &module {
        assert!(!error.to_string().is_empty());
    }
    module.ok()
}

#[test]
fn damaged_snippets_are_modules_that_run_or_errors() {
    let mut random = Random(1);
    let mut ran = 0;
    for snippet in SNIPPETS {
        assert!(parse(snippet).is_some(), "{:?}\n{snippet}", Module::parse(snippet));
        for _ in 0..2500 {
            let text = mutated(snippet, &mut random);
            let Some(module) = parse(&text) else { continue };
            let device = Device::new(Arch::Sm90a).with_instruction_limit(1 << 12);
            let out = device.allocate(1 << 10).unwrap();
            device.write(out, &[1; 1 << 10]).unwrap();
            let shape = LaunchShape { block: [64, 1, 1], shared_bytes: 1 << 10, ..LaunchShape::default() };
            let start = Instant::now();
            let result = module.launch(&device, "k", shape, &[&out.to_le_bytes()]);
            assert!(start.elapsed() < SOON, "{result:?}:\n{text}");
            ran += u32::from(result.is_ok());
        }
    }
    assert!(ran > 100, "damage is not all that happens: {ran} of the kernels run");
}

#[test]
fn damaged_kernels_of_the_library_are_modules_or_errors() {
    let mut random = Random(2);
    let mut kernels = Vec::new();
    for (family, arch) in [("attention", Arch::Sm80), ("ata", Arch::Sm90a)] {
        let text = embedded_ptx(family, arch).expect("the test builds the PTX of every architecture");
        let mut entries = text.split_inclusive(".visible .entry ");
        let head = entries.next().unwrap_or_default();
        kernels.extend(entries.map(|entry| format!("{head}{}", entry.trim_end_matches(".visible .entry "))));
    }
    kernels.sort_by_key(String::len);
    let (mut bytes, mut modules) = (0, 0);
    for round in 0.. {
        let kernel = &kernels[round % (kernels.len() / 2)];
        bytes += kernel.len();
        modules += u32::from(parse(&mutated(kernel, &mut random)).is_some());
        if bytes > 30 << 20 {
            break;
        }
    }
    assert!(modules > 0, "damage in a comment or a line number is none");
}

#[test]
fn what_grows_without_end_is_refused_or_soon_done() {
    let body = |lines: String| format!(".entry k() {{ .reg .pred %p<2>; .reg .b32 %r<9>; {lines} }}");
    let count = 20_000;
    let each = |line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    for text in [
        // A ladder of branches: every block is reached from many.
        body(each(&|at| format!("L{at}: @%p1 bra L{};\n", count - 1 - at))),
        body(each(&|at| format!("L{at}: @%p1 bra L{};\n", at / 2))),
        body(each(&|at| format!("L{at}: @%p1 bra L{};\n", (at * 7919 + 13) % count))),
        body(each(&|at| format!("L{at}: bra L{};\n", (at + 1) % count))),
        body(each(&|at| format!("{{ .reg .b32 x{at}; mov.b32 x{at}, {at}; }}\n"))),
        body(each(&|at| format!("mov.b32 %r1, {at};\nadd.u32 %r2, %r1, {at};\n"))),
        body(each(&|at| format!(".shared .align 4 .b8 s{at}[16777216];\n"))),
        body(each(&|at| format!(".local .align 4 .b8 s{at}[16777216];\n"))),
        body("{".repeat(count)),
        body("mov.b32 %r1, {".to_owned() + &"{".repeat(count)),
        body("mov.b32 %r1, ".to_owned() + &"1?".repeat(count)),
        body("mov.b32 %r1, ".to_owned() + &"-(".repeat(count)),
        body("mov.b32 %r1, 1".to_owned() + &"+1*2".repeat(count) + ";"),
        ".shared.align 4.b8 s[1];".repeat(count),
        ".pragma \"nounroll\"; .visible.weak.common.entry k();".repeat(count),
        format!(".entry k({}) {{ ret; }}", each(&|at| format!(".param .b8 p{at}[16777216],"))),
        format!("{}.entry k() {{ ret; }}", each(&|at| format!(".shared .align 4 .b8 s{at}[64];\n"))),
        each(&|at| format!(".entry k{at}() {{ ret; }}\n")),
        each(&|at| format!(".file {at} \"a.rs\"\n")) + &body(each(&|at| format!(".loc {at} 1 1\nmov.b32 %r1, 0;\n"))),
        format!("/*{}", "*".repeat(count)),
        "\"".repeat(count),
        ".reg ".repeat(count),
        body(".reg .b32 %q<16777216>; mov.b32 %q16777215, %q0;".to_owned()),
    ] {
        parse(&format!(".version 8.0\n.target sm_90a\n{text}"));
    }
}
