//! The program as a whole: good requests give files, bad ones one line, exit code 2 and nothing written.

mod ata;
mod benchmarks;
mod conversions;
mod files;
mod fp8;
mod gemm;
mod info;
mod json;
mod manual;
mod masks;
mod profile;
mod program;
mod quantize;
mod sequences;
mod soak;
mod validate;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use program::{Scratch, assert_refused, assert_succeeded, ferrotile, program};
use variants::attention::{ATTENTION, AttentionConfig, AttentionKernel, ScoreMod, Seqlens};

/// 1.0 in f16, little-endian.
const ONE: [u8; 2] = [0x00, 0x3C];

impl Scratch {
    /// Q, K and V of f16 ones.
    fn ones(&self, q: &[usize], kv: &[usize]) -> [PathBuf; 3] {
        [self.npy("q.npy", "<f2", q, &ONE), self.npy("k.npy", "<f2", kv, &ONE), self.npy("v.npy", "<f2", kv, &ONE)]
    }

    /// Q, K and V of f16 numbers between 1 and 2 of either sign, different for each element.
    fn waves(&self, q: &[usize], kv: &[usize]) -> [PathBuf; 3] {
        [("q", q, 7_u32), ("k", kv, 11), ("v", kv, 13)].map(|(name, shape, step)| {
            let path = self.npy(&format!("{name}.npy"), "<f2", shape, &ONE);
            let mut bytes = fs::read(&path).unwrap();
            let data = shape.iter().product::<usize>() * 2;
            let start = bytes.len() - data;
            for (index, element) in bytes[start..].chunks_mut(2).enumerate() {
                let hash = (index as u32 + 1).wrapping_mul(2_654_435_761).wrapping_mul(step) >> 16;
                element.copy_from_slice(&(0x3C00 | (hash as u16 & 0x83FF)).to_le_bytes());
            }
            self.write(&format!("{name}.npy"), &bytes)
        })
    }
}

fn attention(inputs: &[PathBuf; 3], out: &Path, more: &[&str]) -> Output {
    on("cpu", inputs, out, more)
}

fn on(device: &str, inputs: &[PathBuf; 3], out: &Path, more: &[&str]) -> Output {
    let [q, k, v] = inputs.each_ref().map(|path| path.to_str().unwrap());
    let fixed = ["attention", "--device", device, "--q", q, "--k", k, "--v", v, "--out", out.to_str().unwrap()];
    ferrotile(&[&fixed, more].concat())
}

#[test]
fn attention_of_ones_is_ones() {
    let scratch = Scratch::new("ones");
    let inputs = scratch.ones(&[1, 4, 3, 8], &[1, 2, 5, 8]);
    let (out, lse) = (scratch.path("o.npy"), scratch.path("lse.npy"));
    let output = attention(&inputs, &out, &["--check", "--mask", "causal", "--lse", lse.to_str().unwrap()]);
    assert_succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("largest error against f64: 0"));
    let out = fs::read(&out).unwrap();
    let data = &out[out.len() - 4 * 3 * 8 * 2..];
    assert!(data.chunks(2).all(|element| element == ONE));
    assert!(String::from_utf8_lossy(&out).contains("'descr': '<f2', 'fortran_order': False, 'shape': (1, 4, 3, 8,)"));
    // Row 2 sees five keys of score 8 / sqrt(8).
    let lse = fs::read(&lse).unwrap();
    let last = f32::from_le_bytes(*lse.last_chunk().unwrap());
    assert!((last - (5f32.ln() + 8f32.sqrt())).abs() < 1e-5, "{last}");
    assert_eq!(scratch.names(), ["k.npy", "lse.npy", "o.npy", "q.npy", "v.npy"]);
}

#[test]
fn v_may_have_a_head_dimension_of_its_own() {
    let scratch = Scratch::new("values");
    let [q, k, _] = scratch.waves(&[1, 4, 3, 8], &[1, 2, 5, 8]);
    let v = scratch.npy("wide.npy", "<f2", &[1, 2, 5, 24], &ONE);
    let starts = scratch.integers("starts.npy", &[0, 3]);
    let out = scratch.path("o.npy");
    for device in ["cpu", "emulator:sm_80", "emulator:sm_90a"] {
        assert_succeeded(&on(device, &[q.clone(), k.clone(), v.clone()], &out, &["--check"]));
        let bytes = fs::read(&out).unwrap();
        assert!(String::from_utf8_lossy(&bytes).contains("'shape': (1, 4, 3, 24,)"), "{device}");
        assert!(bytes[bytes.len() - 4 * 3 * 24 * 2..].chunks(2).all(|element| element == ONE), "{device}");
    }
    // Rows of two heads, sequence after sequence.
    let packed = [
        scratch.npy("q3.npy", "<f2", &[3, 2, 8], &ONE),
        scratch.npy("k3.npy", "<f2", &[3, 2, 8], &ONE),
        scratch.npy("v3.npy", "<f2", &[3, 2, 24], &ONE),
    ];
    let lengths = ["--cu-seqlens-q", starts.to_str().unwrap(), "--check"];
    for device in ["cpu", "emulator:sm_90a"] {
        assert_succeeded(&on(device, &packed, &out, &lengths));
        assert!(String::from_utf8_lossy(&fs::read(&out).unwrap()).contains("'shape': (3, 2, 24,)"), "{device}");
    }
}

#[test]
fn softcap_sink_and_bias_are_those_of_the_formula() {
    let scratch = Scratch::new("terms");
    let inputs = scratch.ones(&[1, 2, 1, 8], &[1, 2, 2, 8]);
    let (out, lse) = (scratch.path("o.npy"), scratch.path("lse.npy"));
    let sink = scratch.npy("sink.npy", "<f4", &[2], &1f32.to_le_bytes());
    let bias = scratch.npy("bias.npy", "<f2", &[1, 1, 1, 2], &ONE);
    let [sink, bias, lse_path] = [&sink, &bias, &lse].map(|path| path.to_str().unwrap());
    let terms = ["--softcap", "2", "--sink", sink, "--bias", bias, "--check", "--lse", lse_path];
    for device in ["cpu", "emulator"] {
        assert_succeeded(&on(device, &inputs, &out, &terms));
        let data = fs::read(&lse).unwrap();
        let got = f32::from_le_bytes(*data.last_chunk().unwrap());
        // Two keys of score 8 / sqrt(8), capped at 2, plus 1; and a sink of 1.
        let score = 2.0 * (8f32.sqrt() / 2.0).tanh() + 1.0;
        assert!((got - (2.0 * score.exp() + 1f32.exp()).ln()).abs() < 1e-5, "{device}: {got}");
    }
    let wrong = scratch.npy("wrong.npy", "<f2", &[1, 1, 2, 2], &ONE);
    let wrong = wrong.to_str().unwrap();
    assert_refused(&attention(&inputs, &out, &["--bias", wrong]), "has shape [1, 1, 2, 2], expected [1, 2, 1, 2]");
    assert_refused(&attention(&inputs, &out, &["--sink", wrong]), "has shape [1, 1, 2, 2], expected [2]");
    assert_refused(&attention(&inputs, Path::new(bias), &["--bias", bias]), "an input cannot be an output too");
}

#[test]
fn empty_tensors_give_an_empty_file() {
    let scratch = Scratch::new("empty");
    for (index, (q, kv)) in [([0, 2, 3, 8], [0, 2, 3, 8]), ([1, 2, 0, 8], [1, 2, 3, 8])].iter().enumerate() {
        let out = scratch.path(&format!("o{index}.npy"));
        assert_succeeded(&attention(&scratch.ones(q, kv), &out, &["--check"]));
        assert_eq!(fs::read(&out).unwrap().len() % 64, 0, "a header alone");
    }
    let out = scratch.path("no_keys.npy");
    assert_succeeded(&attention(&scratch.ones(&[1, 1, 2, 8], &[1, 1, 0, 8]), &out, &["--check"]));
    assert!(fs::read(&out).unwrap().ends_with(&[0; 32]), "rows without keys are 0");
}

#[test]
fn bshd_tensors_give_a_bshd_result() {
    let scratch = Scratch::new("bshd");
    let inputs = scratch.ones(&[1, 3, 4, 8], &[1, 5, 2, 8]);
    let out = scratch.path("o.npy");
    assert_succeeded(&attention(&inputs, &out, &["--layout", "bshd", "--check"]));
    assert!(String::from_utf8_lossy(&fs::read(&out).unwrap()).contains("(1, 3, 4, 8,)"));
    assert_refused(&attention(&inputs, &scratch.path("o2.npy"), &[]), "a divisor");
}

#[test]
fn more_heads_than_rows_are_noted_where_no_layout_is_named() {
    let scratch = Scratch::new("layout");
    let inputs = scratch.ones(&[1, 33, 4, 8], &[1, 33, 4, 8]);
    let says = |more: &[&str]| {
        let output = attention(&inputs, &scratch.path("o.npy"), more);
        assert_succeeded(&output);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let stderr = says(&[]);
    assert!(stderr.contains("heads 33 (of keys 33), rows 4") && stderr.contains("layout bhsd"), "{stderr}");
    assert!(stderr.contains("note: 33 heads of 4 rows each: ") && stderr.contains("--layout bshd"), "{stderr}");
    for layout in ["bhsd", "bshd"] {
        assert!(!says(&["--layout", layout]).contains("note: "), "{layout}");
    }
    // One row of many heads on many keys is a step of decoding.
    let step = scratch.ones(&[1, 32, 1, 8], &[1, 8, 100, 8]);
    let output = attention(&step, &scratch.path("o.npy"), &[]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("note: "));
}

#[test]
fn wider_floats_are_converted_only_when_asked() {
    let scratch = Scratch::new("convert");
    let one = 1f32.to_le_bytes();
    let inputs = ["q", "k", "v"].map(|name| scratch.npy(&format!("{name}.npy"), "<f4", &[1, 1, 2, 8], &one));
    let out = scratch.path("o.npy");
    assert_refused(&attention(&inputs, &out, &[]), "--dtype f16");
    assert_refused(&attention(&inputs, &out, &["--dtype", "bf16"]), "cannot hold bf16");
    assert_succeeded(&attention(&inputs, &out, &["--dtype", "f16"]));
    let out = scratch.path("o.safetensors");
    assert_succeeded(&attention(&inputs, &out, &["--dtype", "bf16"]));
    // What it wrote is read again, under the name that it has there.
    let again = ferrotile(&["attention", "--device", "cpu", "--safetensors", out.to_str().unwrap(), "--out", "x.npy"]);
    assert_refused(&again, "no tensor is called 'q'; it has: o");
}

#[test]
fn files_that_are_not_tensors_are_refused() {
    let scratch = Scratch::new("files");
    let good = scratch.ones(&[1, 1, 4, 8], &[1, 1, 4, 8]);
    let whole = fs::read(&good[0]).unwrap();
    let cases = [
        (scratch.path("absent.npy"), "absent.npy"),
        (scratch.folder.clone(), "directory"),
        (scratch.write("nothing.npy", b""), "not an NPY file"),
        (scratch.write("garbage.npy", &[0xA5; 1000]), "not an NPY file"),
        (scratch.write("cut.npy", &whole[..whole.len() - 1]), "needs 64 bytes of data, the file has 63"),
        (scratch.write("header.npy", &whole[..20]), "the NPY header is damaged"),
        (scratch.npy("integers.npy", "<i4", &[1, 1, 4, 8], &[0; 4]), "integers.npy) has i32"),
        (scratch.npy("complex.npy", "<c8", &[1, 1, 4, 8], &[0; 8]), "complex.npy): elements of type '<c8'"),
        (scratch.npy("rank.npy", "<f2", &[4, 8], &ONE), "rank.npy) has shape [4, 8], expected the four dimensions"),
        (scratch.npy("batch.npy", "<f2", &[2, 1, 4, 8], &ONE), "K has shape [1, 1, 4, 8], expected [2, 1, 4, 8]"),
        (scratch.npy("head_dim.npy", "<f2", &[1, 1, 4, 16], &ONE), "expected [1, 1, 4, 16]"),
        (scratch.npy("single.npy", "<f4", &[1, 1, 4, 8], &[0; 4]), "single.npy) has f32, k ("),
    ];
    let before = scratch.names();
    for (q, reason) in cases {
        let [_, k, v] = good.clone();
        assert_refused(&attention(&[q, k, v], &scratch.path("o.npy"), &["--lse", "lse.npy"]), reason);
    }
    assert_eq!(scratch.names(), before);
}

#[test]
fn sizes_without_a_kernel_are_refused() {
    let scratch = Scratch::new("sizes");
    for (head_dim, reason) in [(12, "a multiple of 8 up to 256"), (264, "up to 256"), (0, "up to 256")] {
        let inputs = scratch.ones(&[1, 1, 2, head_dim], &[1, 1, 2, head_dim]);
        assert_refused(&attention(&inputs, &scratch.path("o.npy"), &[]), reason);
    }
    assert_eq!(scratch.names(), ["k.npy", "q.npy", "v.npy"]);
}

#[test]
fn empty_tensors_with_more_elements_than_the_address_space_are_refused() {
    let scratch = Scratch::new("vast");
    let batchless = [0, 1 << 62, 1, 8];
    let inputs = scratch.ones(&batchless, &batchless);
    assert_refused(&attention(&inputs, &scratch.path("o.npy"), &[]), "too many elements");
    let keyless = [1, 1 << 60, 0, 8];
    let inputs = scratch.ones(&[1, 0, 1, 8], &keyless);
    assert_refused(&attention(&inputs, &scratch.path("o.npy"), &[]), "too many elements");
    assert_eq!(scratch.names(), ["k.npy", "q.npy", "v.npy"]);
}

#[test]
fn an_input_is_never_an_output() {
    let scratch = Scratch::new("in-place");
    let inputs = scratch.ones(&[1, 1, 4, 8], &[1, 1, 4, 8]);
    let roundabout = |name: &str| scratch.path(&format!("./{name}"));
    for name in ["q.npy", "k.npy", "v.npy"] {
        let before = fs::read(scratch.path(name)).unwrap();
        assert_refused(&attention(&inputs, &roundabout(name), &[]), "cannot be an output too");
        let lse = roundabout(name);
        let more = ["--lse", lse.to_str().unwrap()];
        assert_refused(&attention(&inputs, &scratch.path("o.npy"), &more), "cannot be an output too");
        assert_eq!(fs::read(scratch.path(name)).unwrap(), before);
    }
    assert_eq!(scratch.names(), ["k.npy", "q.npy", "v.npy"]);
}

#[test]
fn scores_beyond_f32_have_a_result() {
    let scratch = Scratch::new("overflow");
    let inputs = scratch.ones(&[1, 1, 4, 8], &[1, 1, 4, 8]);
    // Scores of 8e38, all alike.
    let output = attention(&inputs, &scratch.path("o.npy"), &["--check", "--scale", "1e38"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(scratch.names(), ["k.npy", "o.npy", "q.npy", "v.npy"]);
}

#[test]
fn options_out_of_range_are_refused() {
    let scratch = Scratch::new("options");
    let inputs = scratch.ones(&[1, 1, 4, 8], &[1, 1, 4, 8]);
    let cases: &[(&[&str], &str)] = &[
        (&["--mask", "left"], "expected full, causal or window:LEFT,RIGHT"),
        (&["--mask", "window:1"], "window:LEFT,RIGHT"),
        (&["--causal"], "unexpected argument '--causal' found: give --mask causal"),
        (&["--bf16"], "give --dtype bf16"),
        (&["--scale", "nan"], "expected a finite number"),
        (&["--layout", "bdhs"], "possible values: bhsd, bshd"),
        (&["--dtype", "f32"], "possible values: f16, bf16"),
        (&["--kernel", "fastest"], "--kernel names a kernel of the GPU"),
        // The name that the option had before.
        (&["--variant", "fastest"], "--kernel names a kernel of the GPU"),
        (&["--scale", "-inf"], "expected a finite number"),
        (&["--softcap", "0"], "softcap is 0, expected a number from"),
        (&["--softcap", "-1"], "softcap is -1, expected a number from"),
        (&["--mask", "window:1,99999999999999999999"], "window:LEFT,RIGHT"),
        (&["--wat"], "--wat"),
        (&["--safetensors", "x"], "cannot be used with"),
    ];
    for (options, reason) in cases {
        assert_refused(&attention(&inputs, &scratch.path("o.npy"), options), reason);
    }
    // What a kernel refuses is refused where the CPU computes, in every command.
    let [q, k, _] = inputs.each_ref().map(|path| path.to_str().unwrap());
    let odd = scratch.npy("odd.npy", "<f2", &[1, 1, 4, 12], &ONE);
    let odd_values = [inputs[0].clone(), inputs[1].clone(), odd.clone()];
    assert_refused(&attention(&odd_values, &scratch.path("o.npy"), &[]), "value_dim is 12");
    let demo = ["demo", "--device", "cpu", "--q", q, "--k", k, "--v", odd.to_str().unwrap()];
    assert_refused(&ferrotile(&demo), "value_dim is 12");
    fs::remove_file(odd).unwrap();
    let starts = scratch.integers("starts.npy", &[0, 4]);
    let flat = scratch.npy("flat.npy", "<f2", &[4, 1, 8], &ONE);
    let more = ["--cu-seqlens-q", starts.to_str().unwrap(), "--softcap", "0"];
    assert_refused(
        &attention(&[flat.clone(), flat.clone(), flat.clone()], &scratch.path("o.npy"), &more),
        "softcap is 0",
    );
    [starts, flat].into_iter().for_each(|path| fs::remove_file(path).unwrap());
    // Where the device is chosen too, nothing is said about the choice.
    assert_refused(&on("auto", &inputs, &scratch.path("o.npy"), &["--kernel", "fastest"]), "kernel");
    assert_refused(&attention(&inputs, &scratch.path("o.txt"), &[]), ".npy or .safetensors");
    assert_refused(&attention(&inputs, &scratch.path("none/o.npy"), &[]), "folder does not exist");
    let out = scratch.path("o.npy");
    assert_refused(&attention(&inputs, &out, &["--lse", out.to_str().unwrap()]), "the same file");
    let roundabout = scratch.path(&format!("../{}/o.npy", scratch.folder.file_name().unwrap().to_str().unwrap()));
    assert_refused(&attention(&inputs, &out, &["--lse", roundabout.to_str().unwrap()]), "the same file");
    assert_refused(
        &ferrotile(&["demo", "--device", "gpu"]),
        "expected auto, cpu, cuda, cuda:N, emulator or emulator:ARCH",
    );
    assert_refused(&ferrotile(&["attention", "--q", "q.npy", "--out", "o.npy"]), "--k");
    assert_refused(&ferrotile(&["attention", "--out", "o.npy"]), "give --q, --k and --v, or --safetensors");
    assert_eq!(scratch.names(), ["k.npy", "q.npy", "v.npy"]);
}

#[test]
fn damaged_safetensors_are_refused() {
    let scratch = Scratch::new("safetensors");
    let header = br#"{"q":{"dtype":"F16","shape":[1,1,2,8],"data_offsets":[0,32]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 32]].concat();
    let other =
        String::from_utf8_lossy(header).replace("\"F16\",\"shape\":[1,1,2,8]", "\"F8_E5M2\",\"shape\":[1,1,4,8]");
    let cases = [
        (scratch.write("a.safetensors", b""), "not a valid safetensors file"),
        (scratch.write("b.safetensors", &[0xFF; 64]), "not a valid safetensors file"),
        (scratch.write("c.safetensors", &file[..file.len() - 1]), "not a valid safetensors file"),
        (scratch.write("d.safetensors", &file), "no tensor is called 'k'; it has: q"),
        (
            scratch.write(
                "e.safetensors",
                &[&(other.len() as u64).to_le_bytes()[..], other.as_bytes(), &[0; 32]].concat(),
            ),
            "tensor 'q' has elements of type F8_E5M2",
        ),
    ];
    for (path, reason) in cases {
        let args = ["attention", "--device", "cpu", "--safetensors", path.to_str().unwrap(), "--out", "o.npy"];
        assert_refused(&ferrotile(&args), reason);
    }
}

#[test]
fn attention_is_right_wherever_it_runs() {
    let scratch = Scratch::new("auto");
    let inputs = scratch.waves(&[2, 4, 33, 64], &[2, 2, 65, 64]);
    let [q, k, v] = inputs.each_ref().map(|path| path.to_str().unwrap());
    let out = scratch.path("o.npy");
    for mask in ["full", "causal", "window:5,2"] {
        let fixed =
            ["attention", "--q", q, "--k", k, "--v", v, "--out", out.to_str().unwrap(), "--check", "--mask", mask];
        let output = ferrotile(&fixed);
        assert_succeeded(&output);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("no CUDA device here") || stderr.contains(" on "), "says where it ran: {stderr}");
    }
}

#[test]
fn the_demo_runs_on_the_cpu() {
    let scratch = Scratch::new("demo");
    let [q, k, v] = scratch.ones(&[1, 1, 4, 8], &[1, 1, 4, 8]).map(|path| path.to_str().unwrap().to_owned());
    let bare = ferrotile(&["demo", "--device", "cpu"]);
    assert_succeeded(&bare);
    assert!(!String::from_utf8_lossy(&bare.stdout).contains("given input"));
    let output = ferrotile(&["demo", "--device", "cpu", "--q", &q, "--k", &k, "--v", &v]);
    assert_succeeded(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    for expected in ["generated input", "given input", "CPU reference, f64", "CPU reference, f16", "tolerance"] {
        assert!(stdout.contains(expected), "{expected} is not in: {stdout}");
    }
    let brain = ferrotile(&["demo", "--device", "cpu", "--dtype", "bf16"]);
    assert!(String::from_utf8_lossy(&brain.stdout).contains("CPU reference, bf16"));
}

#[test]
fn the_demo_runs_every_kernel_in_the_emulator() {
    let output = ferrotile(&["demo", "--all", "--device", "emulator:sm_89"]);
    assert_succeeded(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.starts_with("emulated sm_89, sm_89 PTX"), "{stdout}");
    assert!(stdout.contains("time us") && !stdout.contains("TFLOP/s"), "{stdout}");
    // Its rows are too many for the kernels that decode.
    let serves = |config: &&AttentionConfig| config.serves(layout::Arch::Sm80, layout::Dtype::F16, [64; 2]);
    for config in ATTENTION.iter().filter(serves).filter(|config| !matches!(config.kernel, AttentionKernel::Decode(_)))
    {
        assert!(stdout.contains(config.name), "{config} is not in: {stdout}");
    }
}

#[test]
fn the_demo_runs_a_kernel_of_each_kind() {
    let output = ferrotile(&["demo", "--device", "emulator:sm_90a", "--mask", "causal"]);
    assert_succeeded(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let kernels: Vec<_> = stdout.lines().filter(|line| line.starts_with("attention_")).collect();
    for (kernel, kind) in kernels.iter().zip(["_d64_wgmma_masked_", "_d64_mma_", "_scalar "]) {
        assert!(kernel.contains(kind), "{kind} is not in: {stdout}");
    }
    assert_eq!(kernels.len(), 3, "{stdout}");
}

/// Hopper has kernels that compute nothing but scores with a softcap, which the demo has not.
#[test]
fn the_demo_leaves_out_kernels_of_other_scores() {
    let output = ferrotile(&["demo", "--all", "--device", "emulator:sm_90a"]);
    assert_succeeded(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let covers = |config: &&AttentionConfig| config.covers(ScoreMod::None, Seqlens::Fixed);
    let on_hopper = |config: &&AttentionConfig| matches!(config.kernel, AttentionKernel::Wgmma(_));
    assert!(ATTENTION.iter().filter(covers).filter(on_hopper).any(|config| stdout.contains(config.name)), "{stdout}");
    for config in ATTENTION.iter().filter(|config| !covers(config)) {
        assert!(!stdout.contains(config.name), "{config} is in: {stdout}");
    }
}

#[test]
fn the_emulator_reports_what_a_kernel_does() {
    let scratch = Scratch::new("report");
    let json = scratch.path("o.json");
    let to_json = ["--json", json.to_str().unwrap()];
    let attention = ["emulate-report", "attention", "--case", "1x1x32x64/full/f16"];
    let ata = ["emulate-report", "ata", "--case", "n64_c1_d2_f8", "--precision", "f16", "--lines", "3"];
    let solver = ["emulate-report", "solver", "--case", "n64_c1_d2_f1", "--precision", "f16", "--lines", "3"];
    let gemm = ["emulate-report", "gemm", "--case", "40x64x64/bf16", "--lines", "3"];
    for args in [&attention[..], &ata, &solver, &gemm] {
        let output = ferrotile(&[args, &to_json].concat());
        assert_succeeded(&output);
        let stdout = String::from_utf8_lossy(&output.stdout);
        for expected in ["(sm_80), grid", "instructions", "sectors of 32 bytes", "by bank conflicts"] {
            assert!(stdout.contains(expected), "{expected} is not in: {stdout}");
        }
        let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let kernel = &report[0];
        assert!(stdout.starts_with(kernel["kernel"].as_str().unwrap()), "{stdout}");
        let multiplies = |kernel: &serde_json::Value| kernel["total"]["tensor_operations"].as_u64() > Some(0);
        assert!(report.as_array().unwrap().iter().any(multiplies), "{report}");
        let sum = |list: &str| -> u64 {
            kernel[list].as_array().unwrap().iter().map(|part| part["executed"].as_u64().unwrap()).sum()
        };
        assert_eq!(sum("instructions"), sum("classes"));
        assert!(!kernel["rust_lines"].as_array().unwrap().is_empty());
    }
    // What a case has beside a mask is counted too.
    for extra in ["softcap", "bias", "varlen"] {
        let case = format!("1x1x32x64/full/f16/{extra}");
        let output = ferrotile(&["emulate-report", "attention", "--case", &case]);
        assert_succeeded(&output);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.lines().next().is_some_and(|line| line.contains("_general ")), "{extra}: {stdout}");
    }
    for [family, case] in [
        ["attention", "1x1x1000000000x64/full/f16"],
        ["ata", "n99999999999_c1_d1_f1"],
        ["ata", "n18446744073709551615_c1_d1_f1"],
        ["ata", "n16_c1_d1_f99999999999999"],
        ["gemm", "1000000000x1x1000000/f16"],
    ] {
        assert_refused(&ferrotile(&["emulate-report", family, "--case", case]), "too many elements");
    }
    // What an allocation would get from a system that promises more than it has.
    for [family, case] in [["attention", "1x1x1000000000x64/full/f16"], ["ata", "n9999999999_c1_d1_f1"]] {
        assert_refused(&ferrotile(&["emulate-report", family, "--case", case]), "GB of memory left");
    }
    assert_refused(&ferrotile(&["emulate-report", "attention", "--kernel", "fastest"]), "fastest");
    assert_refused(&ferrotile(&["emulate-report", "ata", "--json", "/no/such/folder/o.json"]), "folder does not exist");
}

#[test]
fn names_are_understood_in_any_case() {
    let scratch = Scratch::new("case");
    let inputs = scratch.waves(&[1, 1, 4, 8], &[1, 1, 4, 8]);
    let [lower, upper] = ["lower.npy", "upper.npy"].map(|name| scratch.path(name));
    assert_succeeded(&attention(&inputs, &lower, &["--mask", "causal", "--layout", "bshd", "--dtype", "f16"]));
    let names = ["--mask", "Causal", "--layout", "BSHD", "--dtype", "F16"];
    assert_succeeded(&on("CPU", &inputs, &upper, &names));
    assert_eq!(fs::read(lower).unwrap(), fs::read(&upper).unwrap());
    assert_succeeded(&attention(&inputs, &upper, &["--mask", "Window:1,0"]));
    assert_succeeded(&on("Emulator:SM_80", &inputs, &upper, &[]));
}

#[test]
fn the_help_of_every_command_says_what_exit_codes_mean() {
    for command in ["info", "attention", "ata", "gemm", "quantize", "bench", "demo", "emulate-report", "compare"] {
        let output = ferrotile(&[command, "--help"]);
        assert_succeeded(&output);
        let stdout = String::from_utf8_lossy(&output.stdout);
        for code in ["  0  the work is done", "  1  the work failed", "  2  the request is at fault"] {
            assert!(stdout.contains(code), "{command}: {stdout}");
        }
    }
    assert!(String::from_utf8_lossy(&ferrotile(&["--help"]).stdout).contains("Exit codes:"));
}

#[test]
fn a_reader_may_stop_early() {
    let mut child = Command::new(program()).arg("info").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_succeeded(&output);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
