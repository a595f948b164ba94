//! Attention on E4M3: factors from files and computed ones, and the type of O.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::on;
use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile, safetensors, stderr};

/// The emulated architecture that has kernels for E4M3.
const HOPPER: &str = "emulator:sm_90a";
/// The other one.
const ADA: &str = "emulator:sm_89";

const Q: [usize; 4] = [2, 4, 3, 16];
const KV: [usize; 4] = [2, 2, 5, 16];

/// The line of the check.
fn checked(device: &str, inputs: &[PathBuf; 3], out: &Path, more: &[&str]) -> String {
    let output = on(device, inputs, out, &[&["--check"], more].concat());
    assert_succeeded(&output);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn elements_are_divided_by_factors_that_kernels_multiply_by() {
    let scratch = Scratch::new("quantize");
    // V of 3e4, which E4M3 has not.
    let [q, k, v] = scratch.waves(&Q, &KV);
    let large: Vec<f32> = (0..KV.iter().product()).map(|i: usize| 3e4 * (i as f32 * 0.7).sin()).collect();
    let large = scratch.write("large.npy", &f32s(&KV, &large));
    let out = scratch.path("o.npy");
    let reason = "cut off in e4m3, the first at [0, 0, 0, 1]: 1.9326529296875e4 (give --quantize tensor or head";
    assert_refused(&on("cpu", &[q.clone(), k.clone(), large.clone()], &out, &["--dtype", "e4m3"]), reason);
    for (device, sharing) in [("cpu", "tensor"), (HOPPER, "tensor"), (HOPPER, "head")] {
        let inputs = [q.clone(), k.clone(), large.clone()];
        let line = checked(device, &inputs, &out, &["--dtype", "e4m3", "--quantize", sharing]);
        assert!(line.contains("of the files' values") && line.contains("of the converted values"), "{line}");
    }
    // What is not of E4M3 has none.
    let refused = on("cpu", &[q, k, v], &out, &["--quantize", "head"]);
    assert_refused(&refused, "elements of f16 have no factors: give --dtype e4m3");
    // Sequences of one and two rows, on three keys and two.
    let [q3, k3] = [[3, 4, 16], [5, 2, 16]];
    let inputs = scratch.waves(&q3, &k3);
    let [rows, keys] =
        [("rows.npy", [0, 1, 3]), ("keys.npy", [0, 3, 5])].map(|(name, starts)| scratch.integers(name, &starts));
    let lengths = ["--cu-seqlens-q", rows.to_str().unwrap(), "--cu-seqlens-k", keys.to_str().unwrap()];
    let bias = scratch.write("bias.npy", &f32s(&[2, 3], &[0.5, -1.0, 2.0, 0.0, f32::NEG_INFINITY, 1.0]));
    let terms = ["--softcap", "3", "--bias", bias.to_str().unwrap()];
    for device in ["cpu", ADA, HOPPER] {
        for more in [&[][..], &terms[..2], &terms] {
            let fixed = ["--dtype", "e4m3", "--quantize", "head"];
            let line = checked(device, &inputs, &out, &[&lengths[..], &fixed, more].concat());
            assert!(line.contains("of the converted values"), "{line}");
        }
    }
}

#[test]
fn elements_and_factors_of_files_are_taken_as_they_are() {
    let scratch = Scratch::new("descale");
    // 2, 0.5 and 1 in E4M3: all scores are 0.25 times the factors, and O is the factor of V.
    let stored = |shape: &[usize], bits: u8| vec![bits; shape.iter().product()];
    let (q, k, v) = (stored(&Q, 0x40), stored(&KV, 0x30), stored(&KV, 0x38));
    let tensors: [(&str, Dtype, &[usize], &[u8]); 3] =
        [("q", Dtype::F8_E4M3, &Q, &q), ("k", Dtype::F8_E4M3, &KV, &k), ("v", Dtype::F8_E4M3, &KV, &v)];
    let file = scratch.write("qkv.safetensors", &safetensors(&tensors));
    let of_q = scratch.write("of_q.npy", &f32s(&[4], &[-1.0, 0.5, 2.0, 0.0]));
    let of_v = scratch.write("of_v.npy", &f32s(&[2, 2], &[1.0, 2.0, 3.0, -4.0]));
    let (out, lse) = (scratch.path("o.safetensors"), scratch.path("lse.npy"));
    let request = |device: &str, more: &[&str]| {
        let fixed = ["attention", "--device", device, "--check", "--safetensors", file.to_str().unwrap(), "--out"];
        ferrotile(&[&fixed[..], &[out.to_str().unwrap()], more].concat())
    };
    let [of_q, of_v, lse_path] = [&of_q, &of_v, &lse].map(|path| path.to_str().unwrap());
    let factors = ["--descale-q", of_q, "--descale-v", of_v, "--lse", lse_path];
    for (device, more) in
        [("cpu", &["--out-dtype", "bf16"][..]), (HOPPER, &["--out-dtype", "bf16"]), (HOPPER, &["--direct"])]
    {
        let output = request(device, &[&factors[..], more].concat());
        assert_succeeded(&output);
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("largest error against f64: 0.000e0"));
        let is_bf16 = more[0] == "--out-dtype";
        assert!(stderr(&output).contains(if is_bf16 { "e4m3 to bf16" } else { "e4m3 to f16" }));
        let bytes = fs::read(&out).unwrap();
        let data = &bytes[bytes.len() - Q.iter().product::<usize>() * 2..];
        let last = u16::from_le_bytes(*data.last_chunk().unwrap());
        assert_eq!(last, if is_bf16 { 0xC080 } else { 0xC400 }, "-4 of {device}");
        // Heads of Q score -1, 0.5, 2 and 0 times 16 / sqrt(16), and see five keys.
        let data = fs::read(&lse).unwrap();
        let lse = |index: usize| f32::from_le_bytes(data[data.len() - 96 + 4 * index..][..4].try_into().unwrap());
        for (index, score) in [(0, -4.0), (3, 2.0), (6, 8.0), (9, 0.0)] {
            assert!((lse(index) - (score + 5f32.ln())).abs() < 1e-4, "{device}: {}", lse(index));
        }
    }
    // Q of another type is converted, and the files' own V is what its elements stand for.
    let halves = scratch.npy("q.npy", "<f2", &Q, &[0x00, 0x40]);
    let stored = |name: &str| PathBuf::from(format!("{}:{name}", file.display()));
    let line = checked("cpu", &[halves, stored("k"), stored("v")], &out, &["--dtype", "e4m3", "--descale-v", of_v]);
    assert!(line.starts_with("largest error against f64 of the files' values: 0.000e0"), "{line}");
    assert_refused(&request("cpu", &["--quantize", "tensor"]), "has e4m3 elements already");
    assert_refused(&request("cpu", &["--descale-k", of_q]), "has shape [4], expected [2, 2] (batch, heads)");
    let output = request("emulator:sm_80", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("e4m3 on sm_80 is not supported: it needs sm_89 or later"), "{}", stderr(&output));
}

#[test]
fn what_inputs_of_other_types_have_not_is_refused() {
    let scratch = Scratch::new("fp8-refused");
    let inputs = scratch.waves(&Q, &KV);
    let out = scratch.path("o.safetensors");
    let of_k = scratch.write("of_k.npy", &f32s(&[1], &[0.5]));
    for more in [&["--out-dtype", "bf16"][..], &["--direct"]] {
        assert_refused(&on("cpu", &inputs, &out, more), "O has the type of q, k and v, f16");
    }
    assert_refused(
        &on("cpu", &inputs, &out, &["--descale-k", of_k.to_str().unwrap()]),
        "elements of f16 have no factors",
    );
    let more = ["--dtype", "e4m3", "--quantize", "head", "--descale-k", of_k.to_str().unwrap()];
    assert_eq!(on("cpu", &inputs, &out, &more).status.code(), Some(2));
}
