//! `ferrotile ata`: the forms of a matrix, the shapes of X, and requests that are refused. The CPU and the emulator
//! compute.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::Output;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile, npy};

fn f64s(shape: &[usize], values: &[f64]) -> Vec<u8> {
    npy("<f8", shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

fn i32s(shape: &[usize], values: &[i32]) -> Vec<u8> {
    npy("<i4", shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

fn i64s(shape: &[usize], values: &[i64]) -> Vec<u8> {
    npy("<i8", shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// An NPZ file of these members.
fn npz(scratch: &Scratch, name: &str, compression: CompressionMethod, members: &[(&str, Vec<u8>)]) -> PathBuf {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (member, bytes) in members {
        // NumPy makes room for sizes of 64 bits.
        let options = SimpleFileOptions::default().compression_method(compression).large_file(true);
        archive.start_file(format!("{member}.npy"), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    scratch.write(name, &archive.finish().unwrap().into_inner())
}

/// What `scipy.sparse.save_npz` writes of a `dia_array`.
fn dia(scratch: &Scratch, name: &str, n: i64, offsets: &[i32], columns: usize, data: &[f64]) -> PathBuf {
    let members = [
        ("offsets", i32s(&[offsets.len()], offsets)),
        ("format", npy("|S3", &[], b"dia")),
        ("shape", i64s(&[2], &[n, n])),
        ("data", f64s(&[offsets.len(), columns], data)),
        ("_is_array", npy("|b1", &[], &[1])),
    ];
    npz(scratch, name, CompressionMethod::Deflated, &members)
}

fn ata(device: &str, matrix: &Path, x: &Path, out: &Path, more: &[&str]) -> Output {
    let [matrix, x, out] = [matrix, x, out].map(|path| path.to_str().unwrap());
    ferrotile(&[&["ata", "--device", device, "--matrix", matrix, "--x", x, "--out", out], more].concat())
}

/// The shape in the header of an NPY file of f32, and the elements.
fn read(path: &Path) -> (String, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8_lossy(&bytes[10..start]).into_owned();
    assert!(header.contains("'descr': '<f4'"), "{header}");
    let shape = header.split("'shape': ").nth(1).unwrap().split(", }").next().unwrap().to_owned();
    (shape, bytes[start..].as_chunks().0.iter().map(|&element| f32::from_le_bytes(element)).collect())
}

/// Element (row, column) of the matrices of these tests, small integers: near the diagonal alone.
fn element(channel: usize, row: usize, column: usize) -> f32 {
    let (near, far) = (row.min(column), row.max(column));
    match far - near {
        0 => (2 + channel + near % 3) as f32,
        17 => (near % 5) as f32 - 2.0,
        _ => 0.0,
    }
}

fn dense(channels: usize, n: usize) -> Vec<f32> {
    let index = |i: usize| element(i / (n * n), i / n % n, i % n);
    (0..channels * n * n).map(index).collect()
}

/// X of small integers, and `A X`.
fn product(frames: usize, channels: usize, n: usize) -> (Vec<f32>, Vec<f32>) {
    let x: Vec<f32> = (0..frames * channels * n).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
    let row = |i: usize| {
        let (vector, row) = (i / n, i % n);
        (0..n).map(|column| element(vector % channels, row, column) * x[vector * n + column]).sum()
    };
    let y = (0..x.len()).map(row).collect();
    (x, y)
}

const N: usize = 40;

/// The diagonals 0 and 17 of one channel, as SciPy has them, and -17.
fn diagonals() -> [Vec<f64>; 3] {
    let upper = |offset: usize| (0..N).map(move |j| if j < offset { 9.0 } else { element(0, j - offset, j).into() });
    let lower = (0..N).map(|j| if j + 17 < N { element(0, j + 17, j).into() } else { -9.0 });
    [upper(0).collect(), upper(17).collect(), lower.collect()]
}

#[test]
fn every_form_of_a_matrix_gives_the_same_product() {
    let scratch = Scratch::new("ata-forms");
    let [main, upper, lower] = diagonals();
    let stored = CompressionMethod::Stored;
    let blocks = |n: usize| {
        let rows = N.div_ceil(16);
        let mut blocks = vec![0f32; 3 * rows * 256];
        for (d, r, row, column) in
            (0..3).flat_map(|d| (0..rows - d).flat_map(move |r| (0..256).map(move |i| (d, r, i / 16, i % 16))))
        {
            let (at_row, at_column) = (r * 16 + row, (r + d) * 16 + column);
            if at_row < n && at_column < n {
                blocks[((d * rows + r) * 16 + row) * 16 + column] = element(0, at_row, at_column);
            }
        }
        f32s(&[1, 3, rows, 16, 16], &blocks)
    };
    let matrices = [
        (scratch.write("dense.npy", &f32s(&[N, N], &dense(1, N))), N),
        (dia(&scratch, "half.npz", N as i64, &[17, 0], N, &[&upper[..], &main].concat()), N),
        (dia(&scratch, "lower.npz", N as i64, &[0, -17], N, &[&main[..], &lower].concat()), N),
        (dia(&scratch, "short.npz", N as i64, &[-17, 0], N, &[&lower[..], &main].concat()), N),
        (dia(&scratch, "both.npz", N as i64, &[-17, 0, 17], N, &[&lower[..], &main, &upper].concat()), N),
        (npz(&scratch, "blocks.npz", stored, &[("blocks", blocks(N)), ("shape", i64s(&[2], &[N as i64; 2]))]), N),
        (npz(&scratch, "padded.npz", stored, &[("blocks", blocks(48))]), 48),
    ];
    for (matrix, n) in matrices {
        let half = match matrix.file_stem().and_then(|stem| stem.to_str()) {
            Some("dense") => "both halves",
            Some("lower" | "short") => "the lower half, the only one",
            Some("both") => "the upper half (the lower one agrees",
            _ => "the upper half",
        };
        let (x, y) = product(3, 1, n);
        let x = scratch.write("x.npy", &f32s(&[3, 1, n], &x));
        for device in ["cpu", "emulator"] {
            let out = scratch.path("y.npy");
            let output = ata(device, &matrix, &x, &out, &["--check"]);
            assert_succeeded(&output);
            assert!(String::from_utf8_lossy(&output.stdout).contains(": 0.000e0, 0.00 of the tolerance"));
            let understood = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(understood.contains(&format!("A from {half}")), "{understood}");
            assert_eq!(read(&out), (format!("(3, 1, {n},)"), y.clone()), "{} on {device}", matrix.display());
        }
    }
}

#[test]
fn the_result_has_the_shape_of_x() {
    let scratch = Scratch::new("ata-shapes");
    let matrix = scratch.write("a.npy", &f32s(&[2, N, N], &dense(2, N)));
    let (x, y) = product(1, 2, N);
    for (shape, text) in [(&[1, 2, N][..], "(1, 2, 40,)"), (&[2, N], "(2, 40,)")] {
        let (x, out) = (scratch.write("x.npy", &f32s(shape, &x)), scratch.path("y.npy"));
        assert_succeeded(&ata("cpu", &matrix, &x, &out, &[]));
        assert_eq!(read(&out), (text.to_owned(), y.clone()));
    }
    let matrix = scratch.write("a.npy", &f32s(&[N, N], &dense(1, N)));
    let (x, y) = product(1, 1, N);
    let (x, out) = (scratch.write("x.npy", &f32s(&[N], &x)), scratch.path("y.npy"));
    assert_succeeded(&ata("emulator:sm_89", &matrix, &x, &out, &[]));
    assert_eq!(read(&out), ("(40,)".to_owned(), y));
    // No frames, and a file of another kind.
    let (x, out) = (scratch.write("x.npy", &f32s(&[0, 1, N], &[])), scratch.path("y.safetensors"));
    assert_succeeded(&ata("emulator", &matrix, &x, &out, &["--check"]));
    assert!(String::from_utf8_lossy(&fs::read(&out).unwrap()).contains(r#""y":{"dtype":"F32","shape":[0,1,40]"#));
}

#[test]
fn every_precision_keeps_its_tolerance() {
    let scratch = Scratch::new("ata-precisions");
    let matrix =
        scratch.write("a.npy", &f32s(&[N, N], &dense(1, N).iter().map(|a| a * 2.7e7 + a / 3.0).collect::<Vec<_>>()));
    let x: Vec<f64> = (0..9 * N).map(|i| (i as f64 * 0.77).sin()).collect();
    let x = scratch.write("x.npy", &f64s(&[9, 1, N], &x));
    let error = |precision: &str| {
        let output = ata("emulator", &matrix, &x, &scratch.path("y.npy"), &["--check", "--precision", precision]);
        assert_succeeded(&output);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(&format!("ata_{precision}_")) && stderr.contains("emulated"), "{stderr}");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, error) = stdout.split_once(": ").unwrap_or_else(|| panic!("{stdout}"));
        error.split(',').next().and_then(|error| error.parse::<f64>().ok()).unwrap_or_else(|| panic!("{stdout}"))
    };
    let [f32, tf32x3, tf32, f16, bf16] = ["f32", "tf32x3", "tf32", "f16", "bf16"].map(error);
    assert!(f32.max(tf32x3) * 50.0 < tf32 && tf32 < bf16 && f16 < bf16, "{f32} {tf32x3} {tf32} {f16} {bf16}");
}

#[test]
fn matrices_that_cannot_be_used_are_refused() {
    let scratch = Scratch::new("ata-refused");
    let [main, upper, lower] = diagonals();
    let whole = fs::read(dia(&scratch, "whole.npz", N as i64, &[0], N, &main)).unwrap();
    let stored = CompressionMethod::Stored;
    let mut asymmetric = dense(1, N);
    asymmetric[3 * N + 20] += 1.0;
    let mut other = lower.clone();
    other[4] += 1.0;
    let mut block = vec![0f32; 256];
    block[1] = 1.0;
    let cases = [
        (scratch.path("absent.npz"), "absent.npz"),
        (scratch.write("a.txt", b""), "ends in .npy (dense), .npz"),
        (scratch.write("garbage.npz", &[0xA5; 100]), "not a readable NPZ file"),
        (scratch.write("cut.npz", &whole[..whole.len() / 2]), "not a readable NPZ file"),
        (scratch.write("oblong.npy", &f32s(&[2, 3], &[0.0; 6])), "expected [1, 2, 2]"),
        (scratch.write("rank.npy", &f32s(&[4], &[0.0; 4])), "expected [n, n] or [channels, n, n]"),
        (scratch.write("complex.npy", &npy("<c8", &[1, 1], &[0; 8])), "'<c8'"),
        (scratch.write("nan.npy", &f32s(&[1, 1], &[f32::NAN])), "finite"),
        (scratch.write("asymmetric.npy", &f32s(&[N, N], &asymmetric)), "(3, 20) and (20, 3) of channel 0"),
        (scratch.write("lower.npy", &f32s(&[2, 2], &[1.0, 0.0, 2.0, 1.0])), "only the lower half has elements"),
        (scratch.write("upper.npy", &f32s(&[2, 2], &[1.0, 2.0, 0.0, 1.0])), "only the upper half has elements"),
        (
            dia(&scratch, "columns.npz", N as i64, &[0], N + 1, &[&main[..], &[0.0]].concat()),
            "at most n columns: leave out those beyond the matrix",
        ),
        (
            npz(&scratch, "rows.npz", stored, &[("blocks", f32s(&[1, 2, 1, 16, 16], &[0.0; 512]))]),
            "no more block diagonals",
        ),
        (
            npz(&scratch, "csr.npz", stored, &[("format", npy("|S3", &[], b"csr")), ("data", f32s(&[1], &[1.0]))]),
            "format 'csr'; save it as diagonals",
        ),
        (npz(&scratch, "other.npz", stored, &[("weights", f32s(&[1], &[1.0]))]), "it has: weights"),
        (
            dia(&scratch, "beyond.npz", N as i64, &[0, 40], N, &[&main[..], &upper].concat()),
            "is 40, expected each once",
        ),
        (
            dia(&scratch, "below.npz", N as i64, &[0, -40], N, &[&main[..], &upper].concat()),
            "is 40, expected each once",
        ),
        (dia(&scratch, "twice.npz", N as i64, &[0, 0], N, &[&main[..], &main].concat()), "is 0, expected each once"),
        (
            dia(&scratch, "unequal.npz", N as i64, &[0, 17, -17], N, &[&main[..], &upper, &other].concat()),
            "(4, 21) and (21, 4) of channel 0",
        ),
        (
            npz(
                &scratch,
                "ragged.npz",
                stored,
                &[("data", f64s(&[1, N], &main)), ("offsets", i64s(&[2], &[0, 1])), ("shape", i64s(&[2], &[40, 40]))],
            ),
            "a diagonal for each offset",
        ),
        (
            npz(
                &scratch,
                "wide.npz",
                stored,
                &[("blocks", f32s(&[1, 1, 1, 16, 16], &[0.0; 256])), ("shape", i64s(&[2], &[16, 17]))],
            ),
            "two equal sizes",
        ),
        (npz(&scratch, "block.npz", stored, &[("blocks", f32s(&[1, 1, 1, 16, 16], &block))]), "(0, 1) and (1, 0)"),
        (dia(&scratch, "vast.npz", 1 << 60, &[0], 3, &[1.0; 3]), "too many elements"),
        (dia(&scratch, "far.npz", 1 << 22, &[0, (1 << 22) - 1], 1, &[1.0; 2]), "too many elements"),
        (npz(&scratch, "flat.npz", stored, &[("blocks", f32s(&[256], &block))]), "block rows, 16, 16]"),
    ];
    let x = scratch.write("x.npy", &f32s(&[1, 1, N], &[0.0; N]));
    let before = scratch.names();
    for (matrix, reason) in cases {
        assert_refused(&ata("emulator", &matrix, &x, &scratch.path("y.npy"), &["--check"]), reason);
    }
    assert_eq!(scratch.names(), before);
    // A little asymmetry is allowed where it is asked for.
    let asymmetric = scratch.path("asymmetric.npy");
    assert_succeeded(&ata("cpu", &asymmetric, &x, &scratch.path("y.npy"), &["--symmetry-tolerance", "1"]));
}

#[test]
fn vectors_and_options_that_do_not_fit_are_refused() {
    let scratch = Scratch::new("ata-options");
    let matrix = scratch.write("a.npy", &f32s(&[2, N, N], &dense(2, N)));
    let x = scratch.write("x.npy", &f32s(&[1, 2, N], &[0.0; 2 * N]));
    let out = scratch.path("y.npy");
    let wrong = [
        (scratch.write("channels.npy", &f32s(&[2, 1, N], &[0.0; 2 * N])), "expected [frames, 2, 40], [2, 40]"),
        (scratch.write("n.npy", &f32s(&[1, 2, 41], &[0.0; 82])), "n.npy) has shape [1, 2, 41]"),
        (scratch.write("rank.npy", &f32s(&[1, 1, 2, N], &[0.0; 2 * N])), "A has 2 channels and n = 40"),
        (scratch.write("one.npy", &f32s(&[N], &[0.0; N])), "one.npy) has shape [40]"),
        (scratch.write("cut.npy", &f32s(&[1, 2, N], &[0.0; N])), "bytes of data"),
        (scratch.path("absent.npy"), "absent.npy"),
    ];
    let before = scratch.names();
    for (x, reason) in wrong {
        assert_refused(&ata("emulator", &matrix, &x, &out, &[]), reason);
    }
    let cases: &[(&[&str], &str)] = &[
        (&["--precision", "f64"], "expected f32, tf32, tf32x3, f16 or bf16"),
        (&["--symmetry-tolerance", "-1"], "--symmetry-tolerance"),
        (&["--kernel", "fastest"], "no kernel fastest"),
        (&["--wat"], "--wat"),
    ];
    for (options, reason) in cases {
        assert_refused(&ata("emulator", &matrix, &x, &out, options), reason);
    }
    assert_refused(&ata("cpu", &matrix, &x, &out, &["--kernel", "fastest"]), "--kernel names a kernel of the GPU");
    assert_refused(&ata("cpu", &matrix, &x, &scratch.path("y.txt"), &[]), ".npy or .safetensors");
    assert_refused(&ata("cpu", &matrix, &x, &scratch.path("none/y.npy"), &[]), "folder does not exist");
    for input in [&matrix, &x] {
        assert_refused(&ata("cpu", &matrix, &x, input, &[]), "cannot be an output too");
    }
    assert_refused(&ferrotile(&["ata", "--x", "x.npy", "--out", "y.npy"]), "--matrix");
    assert_eq!(scratch.names(), before);
}
