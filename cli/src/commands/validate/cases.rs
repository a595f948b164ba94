//! The problems that each kernel is validated by: plain data, as `ferrotile soak --repeat` takes it, which names the
//! kernel. Their sizes are about the edges of its tiles.

use ferrotile::{Accumulation, Arch, Dtype, GemmLayout, Mask};
use serde_json::{Value, json};
use variants::ata::{ATA, AtaConfig};
use variants::attention::{ATTENTION, AttentionConfig, AttentionKernel, COMBINE, DECODE_KEYS, ScoreMod, Seqlens};
use variants::cg::{CG, CgConfig};
use variants::gemm::{GEMM, GemmConfig, Operands, PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K};
use variants::quantize::KERNELS;
use variants::rotary::{ROTARY, RotaryKernel};
use variants::study::{ATA_STUDY, ATTENTION_STUDY};

use crate::soak::problem::Problem;

/// How large problems are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// A tile or two: what the emulator computes in less than a second.
    Small,
    /// Some tiles too, for a card.
    Large,
}

/// The problems of a kernel on `arch`. None where no call of the library launches it there.
pub(crate) fn problems(kernel: &str, arch: Arch, size: Size) -> Vec<Problem> {
    let attention = ATTENTION.iter().chain(ATTENTION_STUDY).find(|config| config.name == kernel);
    let ata = ATA.iter().chain(ATA_STUDY).find(|config| config.name == kernel);
    let values = if let Some(config) = attention {
        of_attention(config, size)
    } else if let Some(config) = ata {
        of_ata(config, size)
    } else if let Some(config) = CG.iter().find(|config| config.name == kernel) {
        of_cg(config)
    } else if let Some(config) = GEMM.iter().find(|config| config.name == kernel) {
        of_gemm(config, size)
    } else if let Some(combine) = COMBINE.iter().find(|combine| combine.name == kernel) {
        let types = (combine.part.name(), combine.out.name());
        let of = |shape: [usize; 4]| json!({"merge": {"parts": types.0, "out": types.1, "shape": shape}});
        vec![of([1, 2, 9, 64]), of([2, 3, 5, 136])]
    } else if KERNELS.iter().any(|quantize| quantize.name == kernel) {
        of_quantize(kernel == variants::quantize::DEQUANTIZE.name)
    } else if let Some(rotary) = ROTARY.iter().find(|rotary| rotary.name == kernel) {
        of_rotary(rotary)
    } else {
        beside_gemm(kernel, arch)
    };
    let numbered = values.into_iter().zip(1u64..);
    numbered
        .map(|(mut value, seed)| {
            for (_, problem) in value.as_object_mut().into_iter().flatten() {
                problem["seed"] = seed.into();
            }
            serde_json::from_value(value).expect("the fields are those of a problem")
        })
        .collect()
}

/// The lengths and masks of attention: about one tile, two tiles and two steps, and with `Size::Large` several.
fn lengths(config: &AttentionConfig, size: Size) -> Vec<(usize, usize, Mask)> {
    let step = match config.kernel {
        AttentionKernel::Mma(tile) => tile.n,
        AttentionKernel::Wgmma(tile) => tile.n,
        AttentionKernel::Scalar | AttentionKernel::Decode(_) => DECODE_KEYS,
    };
    let rows = config.rows();
    let window = Mask::Window { left: 4, right: 1 };
    let small = [
        (5, 9, Mask::Full),
        (rows + 1, step + 1, Mask::Causal),
        (rows + 1, step + 1, Mask::Full),
        (3, step + 2, window),
    ];
    let large = [(2 * rows + 3, 3 * step + 5, Mask::Causal), (3 * rows, 6 * step, Mask::Full)];
    let large = large.into_iter().filter(|_| size == Size::Large);
    small.into_iter().chain(large).filter(|&(rows, keys, mask)| config.takes(mask, rows, keys)).collect()
}

/// What the scores of the problem of this index are beside mask and scale: all that the configuration has.
fn terms(config: &AttentionConfig, mask: Mask, index: usize) -> Value {
    let mut terms = json!({"mask": mask.to_string()});
    if config.dtype == Dtype::U8 {
        terms["scale"] = 2e-5.into();
    }
    if index % 2 == 1 {
        terms["sink"] = "normal".into();
    }
    match config.score_mod {
        ScoreMod::General if index.is_multiple_of(2) => terms["bias"] = json!({"one_head": true}),
        ScoreMod::General | ScoreMod::Softcap => terms["softcap"] = 20.0.into(),
        ScoreMod::None => {}
    }
    terms
}

fn of_attention(config: &AttentionConfig, size: Size) -> Vec<Value> {
    // Of all integers, not those around 0 alone.
    let values = if config.dtype == Dtype::U8 { "hundreds" } else { "normal" };
    let heads = json!({
        "dtype": config.dtype.name(),
        "q_heads": 2,
        "kv_heads": 1,
        "head_dim": config.head_dim,
        "value_dim": config.value_dim,
        "values": [values, values, values],
    });
    let direct = matches!(config.kernel, AttentionKernel::Wgmma(tile) if tile.accumulation == Accumulation::Direct);
    let fp8 = match (config.has_e4m3_kv(), config.dtype) {
        (true, _) => json!({"out": config.out.name(), "descales": [null, {}, {"of": "group"}], "kv_alone": true}),
        (_, Dtype::E4M3) => {
            json!({"out": config.out.name(), "descales": [{"of": "none"}, {"of": "group"}, {}], "direct": direct})
        }
        (_, Dtype::U8) => json!({"out": config.out.name(), "descales": [{"of": "none"}, {"of": "group"}, {}]}),
        _ => Value::Null,
    };
    if let AttentionKernel::Decode(_) = config.kernel {
        return of_decode(config, &heads, &fp8);
    }
    let of_lengths = |(index, (q_len, k_len, mask)): (usize, (usize, usize, Mask))| {
        let terms = terms(config, mask, index);
        if config.seqlens == Seqlens::Varlen && config.dtype != Dtype::U8 && index % 2 == 1 {
            let seqlens = [[3, 5], [0, 2], [q_len, k_len]];
            return json!({"varlen": {"heads": heads, "seqlens": seqlens, "terms": terms, "fp8": fp8,
                "kernel": config.name}});
        }
        json!({"attention": {"heads": heads, "batch": 1, "q_len": q_len, "k_len": k_len, "terms": terms, "fp8": fp8,
            "kernel": config.name}})
    };
    lengths(config, size).into_iter().enumerate().map(of_lengths).collect()
}

/// Few rows: dense and in pages, in one part and in several.
fn of_decode(config: &AttentionConfig, heads: &Value, fp8: &Value) -> Vec<Value> {
    let terms = |index: usize| terms(config, Mask::Causal, index);
    vec![
        json!({"attention": {"heads": heads, "batch": 2, "q_len": 1, "k_len": 37, "terms": terms(0), "fp8": fp8,
            "kernel": config.name}}),
        json!({"attention": {"heads": heads, "batch": 1, "q_len": 5, "k_len": 70, "terms": terms(1), "fp8": fp8,
            "kernel": config.name, "splits": 3, "workspace": true}}),
        json!({"paged": {"heads": heads, "q_len": 1, "k_lens": [5, 0, 37], "page_len": DECODE_KEYS, "terms": terms(2),
            "fp8": fp8, "kernel": config.name}}),
        json!({"paged": {"heads": heads, "q_len": 3, "k_lens": [70], "page_len": 2 * DECODE_KEYS, "terms": terms(3),
            "fp8": fp8, "kernel": config.name, "splits": 2, "workspace": true}}),
    ]
}

fn of_gemm(config: &GemmConfig, size: Size) -> Vec<Value> {
    let tile = config.tile;
    let types: &[Dtype] = match config.a.size_bytes() {
        1 => &[Dtype::F16, Dtype::F32, Dtype::E4M3, Dtype::Bf16],
        _ => &[config.a, Dtype::F32],
    };
    // Rows that start on 16-byte boundaries where the configuration asks for them.
    let (aligned, layouts) = match config.operands {
        Operands::Aligned(layout) => (16, vec![layout]),
        Operands::Any if config.a.size_bytes() == 1 => (1, vec![GemmLayout::Nt]),
        Operands::Any => (1, GemmLayout::ALL.to_vec()),
    };
    let up = |size: usize| size.next_multiple_of(aligned);
    let small = [[5, 9, 33], [tile.m / 2 + 1, tile.n / 2 + 3, 2 * tile.k + 3]];
    let large = [[tile.m + 1, 2 * tile.n + 5, 6 * tile.k + 1], [3 * tile.m, 3 * tile.n, 3 * tile.k]];
    let large = large.into_iter().filter(|_| size == Size::Large);
    let of_sizes = |(index, [m, n, k]): (usize, [usize; 3])| {
        let mut problem = json!({
            "a": config.a.name(),
            "b": config.b.name(),
            "d": types[index % types.len()].name(),
            "layout": layouts[index % layouts.len()].to_string(),
            "batch": 1 + index % 2,
            "m": up(m),
            "n": up(n),
            "k": up(k),
            "direct": config.accumulation == Accumulation::Direct,
            "kernel": config.name,
            "workspace": true,
        });
        if index % 2 == 1 {
            problem["bias"] = "normal".into();
            problem["activation"] = "relu".into();
            (problem["beta"], problem["c"]) = (0.5.into(), "normal".into());
        }
        json!({"gemm": problem})
    };
    small.into_iter().chain(large).enumerate().map(of_sizes).collect()
}

/// What runs beside a product: the sum of its parts, and copies of its operands.
fn beside_gemm(kernel: &str, arch: Arch) -> Vec<Value> {
    let of = |dtype: Dtype, layout: GemmLayout, k: usize| {
        json!({"a": dtype.name(), "b": dtype.name(), "d": "f32", "layout": layout.to_string(), "batch": 2, "m": 5,
            "n": 9, "k": k, "workspace": true})
    };
    let aligned = |config: &&GemmConfig| config.is_in(arch) && config.operands == Operands::Aligned(GemmLayout::Nt);
    let first = |bytes: usize| GEMM.iter().filter(aligned).find(|config| config.a.size_bytes() == bytes);
    let problem = if kernel == REDUCE_SPLIT_K.name {
        let mut problem = of(Dtype::F16, GemmLayout::Nn, 500);
        problem["splits"] = 3.into();
        Some(problem)
    } else if kernel == PACK_16BIT.name {
        // Rows of 33 elements start on no 16-byte boundary.
        first(2).map(|config| {
            let mut problem = of(config.a, GemmLayout::Nt, 33);
            problem["kernel"] = config.name.into();
            problem
        })
    } else if kernel == PACK_8BIT.name {
        first(1).map(|config| {
            let mut problem = of(Dtype::E4M3, GemmLayout::Nn, 33);
            (problem["b"], problem["kernel"]) = (config.b.name().into(), config.name.into());
            problem["direct"] = (config.accumulation == Accumulation::Direct).into();
            problem
        })
    } else {
        None
    };
    problem.into_iter().map(|problem| json!({"gemm": problem})).collect()
}

fn of_ata(config: &AtaConfig, size: Size) -> Vec<Value> {
    let precision = config.precision.to_string();
    let of = |n: usize, channels: usize, diagonals: usize, frames: usize| {
        let matrix = json!({"n": n, "channels": channels, "diagonals": diagonals});
        json!({"ata": {"precision": precision, "matrix": matrix, "frames": frames, "kernel": config.name}})
    };
    let small = [of(20, 1, 2, 1), of(100, 2, 4, config.frames + 1)];
    let large = [of(1000, 3, 27, 2 * config.frames)].into_iter().filter(|_| size == Size::Large);
    small.into_iter().chain(large).collect()
}

fn of_cg(config: &CgConfig) -> Vec<Value> {
    let of = |n: usize, frames: usize, tolerance: i32, guess: Option<i32>| {
        json!({"cg": {"precision": "tf32", "matrix": {"n": n, "channels": 1, "diagonals": 2}, "frames": frames,
            "excess": 3, "tolerance": tolerance, "guess": guess, "max_iterations": 40, "test_every": 4,
            "graph": guess.is_some(), "block_jacobi": config.preconditioned}})
    };
    vec![of(20, 2, -3, None), of(50, 1, -6, Some(0))]
}

fn of_quantize(back: bool) -> Vec<Value> {
    let pairs = ["f16", "bf16", "f32"].into_iter().flat_map(|wide| ["e4m3", "u8"].map(|narrow| (wide, narrow)));
    pairs
        .enumerate()
        .map(|(index, (wide, narrow))| {
            let shape = if index.is_multiple_of(2) { [2, 3, 5, 64] } else { [1, 2, 33, 9] };
            json!({"quantize": {"wide": wide, "narrow": narrow, "shape": shape, "of_batch": index.is_multiple_of(3),
                "of_heads": index.is_multiple_of(2), "back": back}})
        })
        .collect()
}

/// Whole chunks and others, in either pairing, and columns that are not rotated.
fn of_rotary(kernel: &RotaryKernel) -> Vec<Value> {
    let of = |shape: [usize; 4], pairs: usize, interleaved: bool| {
        json!({"rotary": {"dtype": kernel.dtype.name(), "cache": kernel.cache_dtype.name(), "shape": shape,
            "kv_heads": 2, "pairs": pairs, "interleaved": interleaved}})
    };
    vec![of([2, 4, 5, 128], 64, false), of([1, 2, 9, 64], 16, true), of([1, 3, 7, 37], 11, false)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::kernels;

    #[test]
    fn every_kernel_has_problems_that_name_it() {
        for (arch, size) in Arch::ALL.into_iter().flat_map(|arch| [(arch, Size::Small), (arch, Size::Large)]) {
            for kernel in kernels() {
                let problems = problems(kernel.name, arch, size);
                // Nothing multiplies 8-bit elements on sm_80.
                let is_launched = kernel.name != PACK_8BIT.name || arch >= Arch::Sm89;
                assert_eq!(problems.len() > 1 || problems.len() == 1 && kernel.name.starts_with("gemm_"), is_launched);
                let named = problems
                    .iter()
                    .filter(|problem| problem.text().contains(&format!("\"kernel\":\"{}\"", kernel.name)))
                    .count();
                let has_options = ATTENTION.iter().chain(ATTENTION_STUDY).any(|config| config.name == kernel.name)
                    || ATA.iter().chain(ATA_STUDY).any(|config| config.name == kernel.name)
                    || GEMM.iter().any(|config| config.name == kernel.name);
                assert_eq!(named, if has_options { problems.len() } else { 0 }, "{}", kernel.name);
            }
        }
    }

    #[test]
    fn what_runs_less_often_is_among_the_problems() {
        let texts: Vec<String> = kernels()
            .flat_map(|kernel| problems(kernel.name, Arch::Sm90a, Size::Small))
            .map(|problem| problem.text())
            .collect();
        for part in
            ["varlen", "paged", "splits", "softcap", "bias", "sink", "window", "kv_alone", "block_jacobi", "merge"]
        {
            assert!(texts.iter().any(|text| text.contains(part)), "{part}");
        }
    }
}
