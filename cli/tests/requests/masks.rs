//! Biases of few dimensions, and masks of bool.

use std::fs;
use std::path::{Path, PathBuf};

use half::f16;

use crate::on;
use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, stderr};

const HEADS: usize = 2;
const ROWS: usize = 3;
const KEYS: usize = 5;
const DIM: usize = 8;

fn visible(row: usize, key: usize) -> bool {
    // Row 1 sees nothing.
    row != 1 && !(row * 5 + key * 3).is_multiple_of(4)
}

/// O with a bias, which is checked.
fn out(scratch: &Scratch, device: &str, inputs: &[PathBuf; 3], bias: &Path) -> Vec<u8> {
    let out = scratch.path("o.npy");
    let output = on(device, inputs, &out, &["--check", "--bias", bias.to_str().unwrap()]);
    assert_succeeded(&output);
    fs::read(&out).unwrap()
}

#[test]
fn a_bias_of_few_dimensions_is_the_same_for_the_others() {
    let scratch = Scratch::new("bias-dimensions");
    let inputs = scratch.waves(&[2, HEADS, ROWS, DIM], &[2, 1, KEYS, DIM]);
    let value = |i: usize| (i * 7 % 5) as f32 * 0.5 - 1.0;
    let of_shape = |name: &str, shape: &[usize], at: &dyn Fn(usize, usize, usize, usize) -> f32| {
        let full = [2, HEADS, ROWS, KEYS];
        let sizes: Vec<usize> = [1; 4].into_iter().take(4 - shape.len()).chain(shape.iter().copied()).collect();
        let [batch, heads, rows, keys] = sizes[..] else { unreachable!("four sizes") };
        assert!(sizes.iter().zip(full).all(|(&size, full)| size == 1 || size == full));
        let index = |i: usize| (i / (heads * rows * keys), i / (rows * keys) % heads, i / keys % rows, i % keys);
        let values: Vec<f32> = (0..batch * heads * rows * keys)
            .map(|i| {
                let (b, h, r, k) = index(i);
                at(b, h, r, k)
            })
            .collect();
        scratch.write(name, &f32s(shape, &values))
    };
    type At = fn(usize, usize, usize, usize) -> usize;
    let cases: [(&[usize], At); 6] = [
        (&[KEYS], |_, _, _, k| k),
        (&[ROWS, KEYS], |_, _, r, k| 5 * r + k),
        (&[ROWS, 1], |_, _, r, _| r),
        (&[HEADS, 1, KEYS], |_, h, _, k| 11 * h + k),
        (&[2, 1, 1, KEYS], |b, _, _, k| 13 * b + k),
        (&[2, HEADS, 1, 1], |b, h, _, _| 13 * b + h),
    ];
    for (shape, at) in cases {
        let at = |b, h, r, k| value(at(b, h, r, k));
        let short = of_shape("short.npy", shape, &at);
        let full = of_shape("full.npy", &[2, HEADS, ROWS, KEYS], &at);
        assert_eq!(out(&scratch, "cpu", &inputs, &short), out(&scratch, "cpu", &inputs, &full), "{shape:?}");
        out(&scratch, "emulator", &inputs, &short);
    }
    let wrong = scratch.write("wrong.npy", &f32s(&[2, KEYS], &[0.0; 2 * KEYS]));
    let refused = on("cpu", &inputs, &scratch.path("o2.npy"), &["--bias", wrong.to_str().unwrap()]);
    let reason = "wrong.npy) has shape [2, 5], expected [2, 2, 3, 5] (batch, heads, rows, keys): any may be 1";
    assert_refused(&refused, reason);
}

#[test]
fn true_is_a_key_that_a_row_sees() {
    let scratch = Scratch::new("bool-mask");
    let inputs = scratch.waves(&[1, HEADS, ROWS, DIM], &[1, 1, KEYS, DIM]);
    let pairs = || (0..ROWS * KEYS).map(|i| visible(i / KEYS, i % KEYS));
    let mask = scratch.npy_of("mask.npy", "|b1", &[ROWS, KEYS], &pairs().map(u8::from).collect::<Vec<_>>());
    let infinities: Vec<f32> = pairs().map(|visible| if visible { 0.0 } else { f32::NEG_INFINITY }).collect();
    let bias = scratch.write("bias.npy", &f32s(&[ROWS, KEYS], &infinities));
    for device in ["cpu", "emulator", "emulator:sm_90a"] {
        let of_mask = out(&scratch, device, &inputs, &mask);
        assert_eq!(of_mask, out(&scratch, device, &inputs, &bias), "{device}");
        let elements = of_mask[of_mask.len() - HEADS * ROWS * DIM * 2..].as_chunks().0;
        let rows: Vec<Vec<f32>> = elements
            .chunks(DIM)
            .map(|row| row.iter().map(|&element| f16::from_le_bytes(element).to_f32()).collect())
            .collect();
        assert!(rows[1].iter().all(|&element| element == 0.0), "{device}: a row without keys is 0");
        assert!(rows[0].iter().any(|&element| element != 0.0), "{device}");
    }
    // The mask of one key alone gives its value.
    let one = scratch.npy_of("one.npy", "|b1", &[KEYS], &[0, 0, 0, 1, 0]);
    let of_one = out(&scratch, "cpu", &inputs, &one);
    let values = fs::read(&inputs[2]).unwrap();
    let value = &values[values.len() - 2 * DIM * 2..][..DIM * 2];
    assert!(of_one.ends_with(value));
}

#[test]
fn what_may_be_a_mask_or_a_bias_is_refused() {
    let scratch = Scratch::new("mask-or-bias");
    let inputs = scratch.waves(&[1, 1, ROWS, DIM], &[1, 1, KEYS, DIM]);
    let integers = scratch.npy("integers.npy", "|u1", &[KEYS], &[1]);
    let out = scratch.path("o.npy");
    let refused = on("cpu", &inputs, &out, &["--bias", integers.to_str().unwrap()]);
    assert_refused(&refused, "integers.npy) has u8 elements: save a mask as bool, true where a key is visible");
    // The lowest number of f32, with which models hide keys, is beyond f16.
    let lowest = scratch.npy("lowest.npy", "<f4", &[KEYS], &f32::MIN.to_le_bytes());
    let refused = on("cpu", &inputs, &out, &["--bias", lowest.to_str().unwrap()]);
    assert_refused(&refused, "5 of 5 elements become infinite in f16");
    assert!(stderr(&refused).contains("hide keys by -inf or by a bias of bool"), "{}", stderr(&refused));
}
