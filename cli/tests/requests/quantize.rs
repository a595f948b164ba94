//! `ferrotile quantize` and `ferrotile dequantize`.

use std::fs;

use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile};

fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// The f32 elements of an NPY file of this program.
fn floats(path: &std::path::Path, count: usize) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let data = &bytes[bytes.len() - 4 * count..];
    data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn a_tensor_comes_back_from_both_types_on_every_device() {
    let scratch = Scratch::new("quantize_both");
    let shape = [1, 5, 3, 8]; // batch, rows, heads, columns
    let values: Vec<f32> = (0..120).map(|i| (1 + i / 8 % 3) as f32 * (i as f32 * 0.7).sin()).collect();
    let x = scratch.write("x.npy", &f32s(&shape, &values));
    let [factors, back] = ["factors.npy", "back.npy"].map(|name| scratch.path(name));
    // Half of the widest step of each type: that from 256 to 448 is 32.
    for (dtype, out, share) in [("u8", "q.npy", 0.501 / 127.5), ("e4m3", "q.safetensors", 16.001 / 448.0)] {
        let mut results = Vec::new();
        for device in ["cpu", "emulator:sm_80", "emulator:sm_90a"] {
            let out = scratch.path(out);
            let on = ["--device", device, "--layout", "bshd"];
            let files = ["--x", text(&x), "--out", text(&out), "--descale", text(&factors), "--dtype", dtype];
            assert_succeeded(&ferrotile(&[&["quantize"], &files[..], &on[..]].concat()));
            let files = ["--x", text(&out), "--descale", text(&factors), "--out", text(&back), "--dtype", "f32"];
            assert_succeeded(&ferrotile(&[&["dequantize"], &files[..], &on[..]].concat()));
            let (of_heads, returned) = (floats(&factors, 3), floats(&back, values.len()));
            for (index, (x, back)) in values.iter().zip(&returned).enumerate() {
                let limit = share * 448.0 * of_heads[index / 8 % 3];
                assert!((x - back).abs() <= limit, "{dtype} on {device}, element {index}: {x} comes back as {back}");
            }
            results.push((fs::read(&out).unwrap(), of_heads));
        }
        assert!(results.iter().all(|result| result == &results[0]), "devices differ");
    }
    // One factor, for a tensor of any shape.
    let line = scratch.write("line.npy", &f32s(&[3], &[1.0, -4.0, 2.0]));
    let out = scratch.path("line_q.npy");
    let files = ["--x", text(&line), "--out", text(&out), "--descale", text(&factors), "--dtype", "u8"];
    assert_succeeded(&ferrotile(&[&["quantize", "--per", "tensor", "--device", "cpu"], &files[..]].concat()));
    assert_eq!(floats(&factors, 1), [4.0 / 448.0]);
    assert_eq!(fs::read(&out).unwrap()[128..], [159, 0, 191]);
}

#[test]
fn what_is_not_quantised_is_refused() {
    let scratch = Scratch::new("quantize_refused");
    let x = scratch.write("x.npy", &f32s(&[2, 3], &[1.0; 6]));
    let integers = scratch.integers("i.npy", &[1, 2]);
    let [out, factors, many] = ["q.npy", "f.npy", "many.npy"].map(|name| scratch.path(name));
    let quantize = |x, out, more: &[&str]| {
        let files = ["quantize", "--x", text(x), "--out", text(out), "--descale", text(&factors), "--device", "cpu"];
        ferrotile(&[&files[..], more].concat())
    };
    assert_refused(&quantize(&x, &out, &["--dtype", "u8"]), "expected four dimensions for factors of heads");
    assert_refused(&quantize(&x, &out, &["--dtype", "e4m3", "--per", "tensor"]), "NPY files cannot hold e4m3");
    let refused = quantize(&integers, &out, &["--dtype", "u8", "--per", "tensor"]);
    assert_refused(&refused, "expected f16, bf16 or f32");
    assert_refused(&quantize(&x, &x, &["--dtype", "u8", "--per", "tensor"]), "an input cannot be an output too");
    fs::write(&many, f32s(&[2], &[1.0; 2])).unwrap();
    let files = ["--x", text(&x), "--descale", text(&many), "--out", text(&out), "--device", "cpu"];
    assert_refused(&ferrotile(&[&["dequantize"], &files[..]].concat()), "expected four dimensions");
    let files = ["--x", text(&x), "--descale", text(&x), "--out", text(&out), "--device", "cpu"];
    assert_refused(&ferrotile(&[&["dequantize"], &files[..]].concat()), "expected four dimensions");
    let one = scratch.write("one.npy", &f32s(&[1], &[1.0]));
    let files = ["--x", text(&x), "--descale", text(&one), "--out", text(&out), "--device", "cpu"];
    assert_refused(&ferrotile(&[&["dequantize"], &files[..]].concat()), "expected e4m3 or u8");
}
