//! `ferrotile gemm` as a whole, on the CPU and on the emulator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile};

/// Writes an NPY file of f32 numbers.
fn matrix(scratch: &Scratch, name: &str, shape: &[usize], element: impl Fn(usize) -> f32) -> PathBuf {
    let values: Vec<f32> = (0..shape.iter().product()).map(element).collect();
    scratch.write(name, &f32s(shape, &values))
}

fn gemm(device: &str, [a, b]: [&Path; 2], out: &Path, more: &[&str]) -> Output {
    let [a, b, out] = [a, b, out].map(|path| path.to_str().unwrap());
    let fixed = ["gemm", "--device", device, "--a", a, "--b", b, "--out", out];
    ferrotile(&[&fixed, more].concat())
}

/// The f32 numbers at the end of an NPY file.
fn numbers(path: &Path, count: usize) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let data = &bytes[bytes.len() - 4 * count..];
    data.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn the_cpu_and_the_emulator_give_the_same_integers_in_every_layout() {
    let scratch = Scratch::new("layouts");
    let (m, n, k) = (5, 12, 9);
    for (layout, a_shape, b_shape) in
        [("nn", [m, k], [k, n]), ("nt", [m, k], [n, k]), ("tn", [k, m], [k, n]), ("tt", [k, m], [n, k])]
    {
        let a = matrix(&scratch, "a.npy", &a_shape, |index| (index % 7) as f32 - 3.0);
        let b = matrix(&scratch, "b.npy", &b_shape, |index| (index % 5) as f32 - 2.0);
        let c = matrix(&scratch, "c.npy", &[m, n], |index| index as f32);
        let results = ["cpu", "emulator"].map(|device| {
            let out = scratch.path(&format!("{device}.npy"));
            let c = c.to_str().unwrap();
            let more =
                ["--layout", layout, "--dtype", "f16", "--out-dtype", "f32", "--c", c, "--beta", "-2", "--check"];
            let output = gemm(device, [&a, &b], &out, &more);
            assert_succeeded(&output);
            assert!(String::from_utf8_lossy(&output.stdout).contains(": 0.000e0, 0.00 of the tolerance"));
            numbers(&out, m * n)
        });
        assert_eq!(results[0], results[1], "{layout}");
        assert!(results[0].iter().any(|&x| x != 0.0));
    }
}

#[test]
fn a_batch_keeps_its_dimension_and_fp8_runs_on_sm_89() {
    let scratch = Scratch::new("batch");
    let a = matrix(&scratch, "a.npy", &[2, 3, 16], |_| 1.0);
    let b = matrix(&scratch, "b.npy", &[2, 16, 4], |_| 0.5);
    let out = scratch.path("d.npy");
    let more = ["--dtype", "e4m3", "--out-dtype", "f32", "--activation", "relu", "--check"];
    assert_succeeded(&gemm("emulator:sm_89", [&a, &b], &out, &more));
    assert_eq!(numbers(&out, 24), [8.0; 24]);
    let header = String::from_utf8_lossy(&fs::read(&out).unwrap()).into_owned();
    assert!(header.contains("(2, 3, 4,"), "{header}");
    let out = scratch.path("d.safetensors");
    assert_succeeded(&gemm("emulator:sm_89", [&a, &b], &out, &["--dtype", "e4m3", "--out-dtype", "e4m3", "--check"]));
    let file = fs::read(&out).unwrap();
    let header = String::from_utf8_lossy(&file);
    assert!(header.contains(r#""dtype":"F8_E4M3","shape":[2,3,4]"#), "{header}");
    // 8 is 2^3, and exponents count from -7 in the upper bits.
    assert_eq!(file[file.len() - 24..], [(3 + 7) << 3; 24]);
}

#[test]
fn requests_that_cannot_be_served_are_refused_in_one_line() {
    let scratch = Scratch::new("refused");
    let a = matrix(&scratch, "a.npy", &[3, 8], |_| 1.0);
    let b = matrix(&scratch, "b.npy", &[9, 4], |_| 1.0);
    let good = matrix(&scratch, "good.npy", &[8, 4], |_| 1.0);
    let out = scratch.path("d.npy");
    let refused = |inputs: [&Path; 2], out: &Path, more: &[&str], reason: &str| {
        assert_refused(&gemm("cpu", inputs, out, more), reason);
        assert!(!scratch.path("d.npy").exists());
    };
    refused([&a, &b], &out, &["--dtype", "f16"], "B has shape [1, 9, 4], expected [1, 8, 4]");
    refused([&a, &good], &out, &[], "give --dtype");
    refused([&a, &good], &out, &["--dtype", "bf16"], "cannot hold bf16");
    refused([&a, &good], &out, &["--dtype", "e4m3", "--out-dtype", "e4m3"], "cannot hold e4m3");
    let safetensors = scratch.path("d.safetensors");
    refused([&a, &good], &safetensors, &["--dtype", "f16", "--out-dtype", "e4m3"], "type of D");
    refused([&a, &good], &a, &["--dtype", "f16"], "an input cannot be an output too");
    refused([&a, &good], &out, &["--dtype", "f16", "--kernel", "fast"], "runs on the CPU");
    refused([&a, &good], &out, &["--dtype", "f16", "--beta", "2"], "--c");
    refused([&a, &good], &out, &["--dtype", "f16", "--alpha", "nan"], "alpha is NaN, expected a finite number");
    // An infinity of one row does not accept whatever the others are.
    let infinite = matrix(&scratch, "infinite.npy", &[3, 8], |index| if index == 0 { f32::INFINITY } else { 1.0 });
    let checked = gemm("cpu", [&infinite, &good], &scratch.path("checked.npy"), &["--dtype", "f16", "--check"]);
    assert_succeeded(&checked);
    assert!(!String::from_utf8_lossy(&checked.stdout).contains("tolerance: inf"));
    // What an architecture lacks is no fault of the request.
    let output = gemm("emulator:sm_80", [&a, &good], &out, &["--dtype", "e4m3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("e4m3 by e4m3 on sm_80 is not supported: it needs sm_89"));
}
