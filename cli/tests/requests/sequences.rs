//! Requests for sequences of several lengths in one tensor.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{Scratch, assert_refused, assert_succeeded, ferrotile};
use crate::{ONE, attention, on};

/// Rows and keys of the sequences; one has no rows and one no keys.
const LENS: [(usize, usize); 5] = [(3, 4), (0, 2), (70, 33), (2, 0), (5, 65)];
const Q_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

impl Scratch {
    /// A file of where sequences of these lengths start, and the end of the last one.
    fn starts(&self, name: &str, lens: &[usize]) -> PathBuf {
        let mut numbers = vec![0];
        numbers.extend(lens.iter().scan(0, |end, len| {
            *end += *len as i32;
            Some(*end)
        }));
        self.integers(name, &numbers)
    }

    /// A file of these integers.
    pub(crate) fn integers(&self, name: &str, numbers: &[i32]) -> PathBuf {
        let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.npy_of(name, "<i4", &[numbers.len()], &data)
    }
}

fn lens() -> [Vec<usize>; 2] {
    LENS.into_iter().unzip().into()
}

/// The last `count` bytes of a file: the data of an NPY file.
fn data(path: &Path, count: usize) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    bytes[bytes.len() - count..].to_vec()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn sequences_in_one_tensor_give_what_each_gives_alone() {
    let scratch = Scratch::new("sequences");
    let [q_lens, k_lens] = lens();
    let (rows, keys): (usize, usize) = (q_lens.iter().sum(), k_lens.iter().sum());
    let packed = scratch.waves(&[rows, Q_HEADS, HEAD_DIM], &[keys, KV_HEADS, HEAD_DIM]);
    let [q_starts, k_starts] = [scratch.starts("q_starts.npy", &q_lens), scratch.starts("k_starts.npy", &k_lens)];
    let [q_longest, k_longest] = [&q_lens, &k_lens].map(|lens| *lens.iter().max().unwrap());
    let sink = scratch.npy("sink.npy", "<f4", &[Q_HEADS], &1f32.to_le_bytes());
    // Each element of the bias of one sequence differs from its neighbours.
    let bias_elems = LENS.len() * q_longest * k_longest;
    let bias_data: Vec<u8> = (0..bias_elems).flat_map(|i| (0x3000 + (i * 37 % 0x0C00) as u16).to_le_bytes()).collect();
    let bias = scratch.npy_of("bias.npy", "<f2", &[LENS.len(), 1, q_longest, k_longest], &bias_data);
    let (out, lse) = (scratch.path("o.npy"), scratch.path("lse.npy"));
    let lengths = ["--cu-seqlens-q", text(&q_starts), "--cu-seqlens-k", text(&k_starts), "--lse", text(&lse)];
    let terms = ["--mask", "causal", "--softcap", "3", "--sink", text(&sink), "--check"];
    for device in ["cpu", "emulator:sm_80", "emulator:sm_90a"] {
        let more = [&lengths[..], &terms, &["--bias", text(&bias)]].concat();
        let output = on(device, &packed, &out, &more);
        assert_succeeded(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains("largest error against f64"), "{device}");
    }
    // On the CPU the bits of a sequence do not depend on the others.
    assert_succeeded(&attention(&packed, &out, &[&lengths[..], &terms, &["--bias", text(&bias)]].concat()));
    let row_bytes = |heads: usize| heads * HEAD_DIM * 2;
    let all = [&packed[0], &packed[1], &packed[2]].map(|path| fs::read(path).unwrap());
    let part = |index: usize, total: usize, heads: usize, start: usize, len: usize| {
        let bytes = &all[index];
        let first = bytes.len() - total * row_bytes(heads);
        &bytes[first + start * row_bytes(heads)..][..len * row_bytes(heads)]
    };
    let out_data = data(&out, rows * row_bytes(Q_HEADS));
    let lse_data = data(&lse, Q_HEADS * rows * 4);
    assert!(String::from_utf8_lossy(&fs::read(&lse).unwrap()).contains(&format!("'shape': ({Q_HEADS}, {rows},)")));
    let [mut q_start, mut k_start] = [0, 0];
    for (entry, (q_len, k_len)) in LENS.into_iter().enumerate() {
        let tensor = |name: &str, heads: usize, len: usize, data: &[u8]| {
            scratch.npy_of(name, "<f2", &[1, len, heads, HEAD_DIM], data)
        };
        let alone = [
            tensor("q1.npy", Q_HEADS, q_len, part(0, rows, Q_HEADS, q_start, q_len)),
            tensor("k1.npy", KV_HEADS, k_len, part(1, keys, KV_HEADS, k_start, k_len)),
            tensor("v1.npy", KV_HEADS, k_len, part(2, keys, KV_HEADS, k_start, k_len)),
        ];
        let rows_of_bias = (0..q_len).flat_map(|row| {
            let first = 2 * ((entry * q_longest + row) * k_longest);
            bias_data[first..first + 2 * k_len].iter().copied()
        });
        let bias = scratch.npy_of("bias1.npy", "<f2", &[1, 1, q_len, k_len], &rows_of_bias.collect::<Vec<u8>>());
        let (out, lse) = (scratch.path("o1.npy"), scratch.path("lse1.npy"));
        let more = [&terms[..], &["--bias", text(&bias), "--lse", text(&lse), "--layout", "bshd"]].concat();
        assert_succeeded(&attention(&alone, &out, &more));
        let expected = &out_data[q_start * row_bytes(Q_HEADS)..][..q_len * row_bytes(Q_HEADS)];
        assert!(data(&out, expected.len()) == expected, "O of sequence {entry}");
        let lse = data(&lse, Q_HEADS * q_len * 4);
        for head in 0..Q_HEADS {
            let expected = &lse_data[(head * rows + q_start) * 4..][..q_len * 4];
            assert_eq!(&lse[head * q_len * 4..][..q_len * 4], expected, "LSE of sequence {entry}, head {head}");
        }
        (q_start, k_start) = (q_start + q_len, k_start + k_len);
    }
}

#[test]
fn starts_are_of_either_integer_type_and_those_of_keys_are_those_of_rows() {
    let scratch = Scratch::new("starts");
    let inputs = scratch.ones(&[4, 2, 8], &[4, 2, 8]);
    let starts = scratch.integers("starts.npy", &[0, 1, 4]);
    let wide: Vec<u8> = [0i64, 1, 4].into_iter().flat_map(i64::to_le_bytes).collect();
    let wide = scratch.npy_of("wide.npy", "<i8", &[3], &wide);
    let [out, again] = ["o.npy", "again.npy"].map(|name| scratch.path(name));
    assert_succeeded(&attention(&inputs, &out, &["--cu-seqlens-q", text(&starts), "--check"]));
    let both = ["--cu-seqlens-q", text(&wide), "--cu-seqlens-k", text(&starts)];
    assert_succeeded(&attention(&inputs, &again, &both));
    assert_eq!(fs::read(&out).unwrap(), fs::read(again).unwrap());
    assert!(data(&out, 4 * 2 * 8 * 2).chunks(2).all(|element| element == ONE));
}

#[test]
fn a_batch_without_sequences_gives_no_rows_and_passes_the_check() {
    let scratch = Scratch::new("no-sequences");
    let inputs = scratch.ones(&[0, 2, 8], &[0, 2, 8]);
    let (starts, out) = (scratch.integers("starts.npy", &[0]), scratch.path("o.npy"));
    let output = attention(&inputs, &out, &["--cu-seqlens-q", text(&starts), "--check"]);
    assert_succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("largest error against f64: 0"));
    assert!(String::from_utf8_lossy(&fs::read(&out).unwrap()).contains("'shape': (0, 2, 8,)"));
}

#[test]
fn sequences_that_do_not_fit_are_refused() {
    let scratch = Scratch::new("wrong-starts");
    let inputs = scratch.ones(&[4, 2, 8], &[6, 2, 8]);
    let rows = scratch.integers("rows.npy", &[0, 1, 4]);
    let keys = scratch.integers("keys.npy", &[0, 2, 6]);
    let bias = scratch.npy("bias.npy", "<f2", &[1, 1, 3, 6], &ONE);
    let good = ["--cu-seqlens-q", text(&rows), "--cu-seqlens-k", text(&keys)];
    let out = scratch.path("o.npy");
    assert_succeeded(&attention(&inputs, &out, &good));
    fs::remove_file(&out).unwrap();
    let before = scratch.names();
    let cases: [(&[i32], &str); 6] = [
        (&[], "there are no numbers"),
        (&[1, 4], "the first number is 1, expected 0"),
        (&[0, 3, 2, 4], "number 2 is 2, less than the 3 before it"),
        (&[0, 1, 5], "the last number is 5, expected 4, the rows of q"),
        (&[0, 1, 3], "the last number is 3, expected 4, the rows of q"),
        (&[0, 1, 2, 4], "3 sequences of rows and 2 of keys"),
    ];
    for (numbers, reason) in cases {
        let starts = scratch.integers("bad.npy", numbers);
        let more = ["--cu-seqlens-q", text(&starts), "--cu-seqlens-k", text(&keys)];
        assert_refused(&attention(&inputs, &out, &more), reason);
        fs::remove_file(starts).unwrap();
    }
    let refused = |inputs: &[PathBuf; 3], more: &[&str], reason: &str| {
        assert_refused(&attention(inputs, &out, more), reason);
    };
    refused(&inputs, &good[..2], "the last number is 4, expected 6, the rows of k");
    refused(&inputs, &["--cu-seqlens-q", text(&inputs[0])], "expected integers of one dimension");
    let floats = scratch.npy("floats.npy", "<f4", &[3], &[0; 4]);
    refused(&inputs, &["--cu-seqlens-q", text(&floats)], "floats.npy): f32 elements of shape [3], expected integers");
    fs::remove_file(floats).unwrap();
    refused(&inputs, &["--cu-seqlens-k", text(&keys)], "--cu-seqlens-q");
    refused(&inputs, &[&good[..], &["--layout", "bshd"]].concat(), "--layout");
    // The longest sequence has 3 rows and 4 keys.
    refused(&inputs, &[&good[..], &["--bias", text(&bias)]].concat(), "expected [2, 2, 3, 4]");
    assert_refused(&attention(&inputs, &rows, &good), "cannot be an output too");
    let [q, k, _] = inputs.clone();
    let narrow = scratch.npy("narrow.npy", "<f2", &[6, 2, 16], &ONE);
    refused(&[q.clone(), narrow.clone(), narrow], &good, "expected [6, 2, 8]");
    let lone = scratch.npy("lone.npy", "<f2", &[6, 1, 8], &ONE);
    refused(&[q.clone(), k.clone(), lone], &good, "lone.npy) has shape [6, 1, 8], expected [6, 2, 8]");
    let flat = scratch.npy("flat.npy", "<f2", &[4, 16], &ONE);
    refused(&[flat, k.clone(), k], &good, "expected the three dimensions");
    let args = ["attention", "--device", "cpu", "--q", text(&q), "--out", text(&out)];
    assert_refused(&ferrotile(&args), "--k");
    for name in ["narrow.npy", "lone.npy", "flat.npy"] {
        fs::remove_file(scratch.path(name)).unwrap();
    }
    assert_eq!(scratch.names(), before);
}
