//! The tables of README.md that say which kernels compute what on which architecture are those of the library's own
//! choice.
//!
//! `FERROTILE_WRITE_SUPPORT=1 cargo test -p tests --test support` writes them anew.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use ferrotile::{Arch, BatchedSizes, Dtype, Error, Gpu, Layout, Mask, VarlenSizes};
use tests::catalogue::config_of;
use tests::request::Request;
use variants::attention::{AttentionKernel, HEAD_DIM_STEP, MAX_HEAD_DIM, ScoreMod, Seqlens};

/// The lines around the tables.
const START: &str = "<!-- The table of attention kernels: tests/support.rs -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// What a call can ask for.
#[derive(Clone, Copy)]
struct Feature {
    name: &'static str,
    scores: ScoreMod,
    lengths: Seqlens,
    /// Whether the query rows are as few as decoding kernels take.
    few_rows: bool,
}

const PLAIN: Feature = Feature {
    name: "full, causal and window masks, grouped heads, sinks, log-sum-exp",
    scores: ScoreMod::None,
    lengths: Seqlens::Fixed,
    few_rows: false,
};

const FEATURES: [Feature; 5] = {
    let general = Feature { name: "softcap and bias, beside all of these", scores: ScoreMod::General, ..PLAIN };
    [
        PLAIN,
        Feature { name: "several lengths (`cu_seqlens`)", lengths: Seqlens::Varlen, ..PLAIN },
        Feature { lengths: Seqlens::Varlen, ..general },
        Feature { name: "up to 16 query rows: split keys, keys in pages", few_rows: true, ..PLAIN },
        Feature { name: "softcap and bias beside those", few_rows: true, ..general },
    ]
};

/// The same for inputs of FP8.
const FP8_FEATURES: [Feature; 3] = [PLAIN, FEATURES[1], FEATURES[2]];

/// The same for K and V of FP8 alone.
const FP8_KV_FEATURES: [Feature; 1] = [FEATURES[3]];

/// The step of the head dimensions of FP8, whose rows start on 16-byte boundaries.
const FP8_HEAD_DIM_STEP: usize = 16;

/// The kernel that the library takes for tensors on 16-byte boundaries; `None` where it has none. It is of the same
/// kind with a softcap alone, with a bias alone and with both.
fn kernel(feature: &Feature, gpu: &Gpu, types: [Dtype; 2], head_dim: usize) -> Option<&'static str> {
    let terms: &[_] = match feature.scores {
        ScoreMod::General => &[(Some(1.0), true), (Some(1.0), false), (None, true)],
        _ => &[(None, false)],
    };
    let mut kernels = terms.iter().map(|&terms| kernel_with(terms, feature, gpu, types, head_dim));
    let kernel = kernels.next().expect("a feature has terms");
    assert!(kernels.all(|other| other == kernel), "{} at {head_dim} on {}", feature.name, gpu.arch());
    kernel
}

/// The same with this softcap and, where there is one, a bias, for a Q and a K of these types.
fn kernel_with(
    (softcap, bias): (Option<f32>, bool),
    feature: &Feature,
    gpu: &Gpu,
    [dtype, kv]: [Dtype; 2],
    head_dim: usize,
) -> Option<&'static str> {
    let (heads, q_len, k_len) = (1, if feature.few_rows { 1 } else { 4096 }, 4096);
    let options = Request { mask: Mask::Causal, softcap, bias, kv: Some(kv), ..Request::new(Layout::Bhsd) };
    let config = match feature.lengths {
        Seqlens::Fixed => {
            let (q_heads, kv_heads) = (heads, heads);
            let problem = BatchedSizes { batch: 1, q_heads, kv_heads, q_len, k_len, head_dim };
            options.plan(gpu, dtype, problem).map(|plan| config_of(&plan))
        }
        Seqlens::Varlen => {
            let problem = VarlenSizes {
                batch: 1,
                q_heads: heads,
                kv_heads: heads,
                q_total: q_len,
                k_total: k_len,
                max_q_len: q_len,
                max_k_len: k_len,
                head_dim,
            };
            options.plan(gpu, dtype, problem).map(|plan| config_of(&plan))
        }
    };
    match config.map(|config| config.kernel) {
        Ok(AttentionKernel::Scalar) => Some("scalar"),
        Ok(AttentionKernel::Mma(_)) => Some("`mma`"),
        Ok(AttentionKernel::Wgmma(_)) => Some("`wgmma`"),
        Ok(AttentionKernel::Decode(_)) => Some("decoding"),
        Err(Error::UnsupportedType { .. } | Error::Unsupported { .. }) => None,
        Err(error) => panic!("{} at {head_dim} on {}: {error}", feature.name, gpu.arch()),
    }
}

/// The tables as Markdown.
fn tables() -> String {
    let halves = [Dtype::F16, Dtype::Bf16];
    let of_halves = table("attention, f16 and bf16", &FEATURES, &halves.map(|dtype| [dtype; 2]), HEAD_DIM_STEP);
    let name = "attention, e4m3 with an O of f16, bf16 or e4m3";
    let of_fp8 = table(name, &FP8_FEATURES, &[[Dtype::E4M3; 2]], FP8_HEAD_DIM_STEP);
    let name = "attention, f16 and bf16 with K and V of e4m3";
    let of_fp8_kv = table(name, &FP8_KV_FEATURES, &halves.map(|dtype| [dtype, Dtype::E4M3]), HEAD_DIM_STEP);
    let name = "attention, u8 with an O of f16 or bf16";
    let of_u8 = table(name, &FEATURES[..3], &[[Dtype::U8; 2]], HEAD_DIM_STEP);
    [of_halves, of_fp8, of_fp8_kv, of_u8].join("\n")
}

/// A line for each feature and range of head dimensions with the same kernels, which are those of each type.
fn table(name: &str, features: &[Feature], types: &[[Dtype; 2]], step: usize) -> String {
    let gpus = Arch::ALL.map(Gpu::emulated);
    let mut text = format!("| {name} | head dimension |");
    Arch::ALL.iter().for_each(|arch| write!(text, " {arch} |").expect("a String takes any text"));
    text += &format!("\n|{}\n", " --- |".repeat(2 + Arch::ALL.len()));
    for feature in features {
        let kernels = |head_dim: usize| {
            gpus.each_ref().map(|gpu| {
                let of_types = |types: &[Dtype; 2]| kernel(feature, gpu, *types, head_dim);
                let of_first = of_types(&types[0]);
                let same = types.iter().all(|types| of_types(types) == of_first);
                assert!(same, "{} at {head_dim} on {}", feature.name, gpu.arch());
                of_first.unwrap_or("no")
            })
        };
        let mut first = step;
        for head_dim in (step..=MAX_HEAD_DIM).step_by(step) {
            if head_dim == MAX_HEAD_DIM || kernels(head_dim + step) != kernels(head_dim) {
                let cells = kernels(head_dim).join(" | ");
                writeln!(text, "| {} | {first} to {head_dim} | {cells} |", feature.name)
                    .expect("a String takes any text");
                first = head_dim + step;
            }
        }
    }
    text
}

#[test]
fn the_readme_says_what_is_compiled() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("README.md");
    let readme = fs::read_to_string(&path).expect("README.md is beside the tests");
    let (before, rest) = readme.split_once(START).expect("README.md has the start of the table");
    let (found, after) = rest.split_once(END).expect("README.md has the end of the table");
    if std::env::var_os("FERROTILE_WRITE_SUPPORT").is_some() {
        let text = format!("{before}{START}\n{}\n{END}{after}", tables());
        fs::write(&path, text).expect("README.md can be written");
        return;
    }
    assert_eq!(found.trim(), tables().trim(), "FERROTILE_WRITE_SUPPORT=1 writes the tables anew");
}
