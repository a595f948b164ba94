//! The forms of input files, archives that stand for more than they say, and outputs through links.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use half::bf16;
use safetensors::Dtype;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile, npy, program, safetensors, stderr};
use crate::{ONE, attention};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn gemm(a: &str, b: &str, out: &Path, more: &[&str]) -> Output {
    ferrotile(&[&["gemm", "--device", "cpu", "--check", "--a", a, "--b", b, "--out", text(out)], more].concat())
}

/// The data of the only tensor of a safetensors file of so many bytes of it.
fn data(path: &Path, bytes: usize) -> Vec<u8> {
    let file = fs::read(path).unwrap();
    file[file.len() - bytes..].to_vec()
}

#[test]
fn gemm_reads_what_it_writes() {
    let scratch = Scratch::new("gemm-round-trip");
    let a = scratch.write("a.npy", &f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    for dtype in ["f16", "bf16", "e4m3", "f32"] {
        let (d, again) = (scratch.path("d.safetensors"), scratch.path("again.safetensors"));
        let inputs = if dtype == "e4m3" { "e4m3" } else { "f16" };
        assert_succeeded(&gemm(text(&a), text(&a), &d, &["--dtype", inputs, "--out-dtype", dtype]));
        let more: &[&str] = if dtype == "f32" { &["--dtype", "f16"] } else { &[] };
        let output = gemm(text(&d), text(&d), &again, &[more, &["--out-dtype", "f32"]].concat());
        assert_succeeded(&output);
        // [[7, 10], [15, 22]] squared.
        let expected: Vec<u8> = [199f32, 290.0, 435.0, 634.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(data(&again, 16), expected, "{dtype}");
    }
}

/// Runs the program with these bytes on stdin.
fn with_stdin(bytes: &[u8], args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_dash_is_stdin_or_stdout() {
    let scratch = Scratch::new("dash");
    let a = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let file = scratch.write("a.npy", &a);
    let gemm = ["gemm", "--device", "cpu", "--check", "--dtype", "f16", "--a", text(&file), "--b", "-", "--out", "-"];
    for more in [&["--out-dtype", "f32"][..], &["--out-dtype", "f32", "--json"]] {
        let output = with_stdin(&a, &[&gemm, more].concat());
        assert_succeeded(&output);
        // The tensor alone; what is printed otherwise goes to stderr.
        let d: Vec<u8> = [7f32, 10.0, 15.0, 22.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(output.stdout.starts_with(b"\x93NUMPY") && output.stdout.ends_with(&[&b"\n"[..], &d].concat()));
        assert!(stderr(&output).contains(if more.len() == 3 { "\"check\"" } else { "f64" }), "{}", stderr(&output));
    }
    let quantize =
        ["quantize", "--device", "cpu", "--dtype", "u8", "--per", "tensor", "--x", "-", "--out", "-", "--descale"];
    assert_refused(&with_stdin(&a, &[&quantize[..], &["-"]].concat()), "the same file");
    let factors = scratch.path("factors.npy");
    let output = with_stdin(&a, &[&quantize[..], &[text(&factors)]].concat());
    assert_succeeded(&output);
    assert!(output.stdout.starts_with(b"\x93NUMPY") && factors.exists());
    // NPY alone, and one input alone.
    assert_refused(&with_stdin(&a, &[&gemm[..], &["--out-dtype", "bf16"]].concat()), "cannot hold bf16");
    let d = scratch.path("d.npy");
    let twice = ["gemm", "--device", "cpu", "--a", "-", "--b", "-", "--out", text(&d)];
    assert_refused(&with_stdin(&a, &twice), "not an NPY file");
    assert_eq!(scratch.names(), ["a.npy", "factors.npy"]);
}

#[test]
fn a_tensor_of_a_file_is_found_by_its_name() {
    let scratch = Scratch::new("names");
    let of = |value: f32| value.to_le_bytes().repeat(4);
    let (one, two, three) = (of(1.0), of(2.0), of(3.0));
    let tensors: [(&str, Dtype, &[usize], &[u8]); 3] =
        [("a", Dtype::F32, &[2, 2], &one), ("b", Dtype::F32, &[2, 2], &two), ("layer.w", Dtype::F32, &[2, 2], &three)];
    let file = scratch.write("w.safetensors", &safetensors(&tensors));
    let out = scratch.path("d.safetensors");
    let sums = |a: &str, b: &str| {
        assert_succeeded(&gemm(a, b, &out, &["--dtype", "f16", "--out-dtype", "f32"]));
        f32::from_le_bytes(*data(&out, 16).first_chunk().unwrap())
    };
    let file = text(&file);
    assert_eq!(sums(file, file), 4.0);
    assert_eq!(sums(&format!("{file}:layer.w"), file), 12.0);
    let other = scratch.write("c.safetensors", &safetensors(&tensors[1..]));
    let reason = "no tensor is called 'A'; it has: b, layer.w (name one: FILE.safetensors:NAME)";
    assert_refused(&gemm(text(&other), file, &out, &["--dtype", "f16"]), reason);
    assert_refused(&gemm(&format!("{file}:none"), file, &out, &["--dtype", "f16"]), "no tensor is called 'none'");
    assert_refused(&gemm(&format!("{file}:b"), file, Path::new(file), &["--dtype", "f16"]), "cannot be an output too");
    // Attention has its tensors in files of their own as well as in one.
    let q = scratch.write("q.safetensors", &safetensors(&[("x", Dtype::F16, &[1, 1, 2, 8], &ONE.repeat(16))]));
    let [q, o] = [q, scratch.path("o.npy")];
    assert_succeeded(&attention(&[q.clone(), q.clone(), q], &o, &["--check"]));
}

#[test]
fn ata_reads_every_form_from_safetensors() {
    let scratch = Scratch::new("ata-safetensors");
    let n = 20usize;
    let element = |i: usize, j: usize| {
        if i == j {
            3.0f32
        } else if i.abs_diff(j) == 1 {
            1.0
        } else {
            0.0
        }
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let dense = bytes(&(0..n * n).map(|i| element(i / n, i % n)).collect::<Vec<_>>());
    let mut blocks = vec![0f32; 2 * 2 * 256];
    for (d, r, i) in (0..2).flat_map(|d| (0..2 - d).flat_map(move |r| (0..256).map(move |i| (d, r, i)))) {
        let (row, column) = (r * 16 + i / 16, (r + d) * 16 + i % 16);
        if row < n && column < n {
            blocks[(d * 2 + r) * 256 + i] = element(row, column);
        }
    }
    let blocks = bytes(&blocks);
    let diagonals = bytes(&[vec![3.0; n], vec![1.0; n]].concat());
    let shape: Vec<u8> = [n as i64; 2].iter().flat_map(|size| size.to_le_bytes()).collect();
    let offsets: Vec<u8> = [0i32, 1].iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let forms = [
        safetensors(&[("a", Dtype::F32, &[n, n], &dense)]),
        safetensors(&[("blocks", Dtype::F32, &[1, 2, 2, 16, 16], &blocks), ("shape", Dtype::I64, &[2], &shape)]),
        safetensors(&[
            ("data", Dtype::F32, &[2, n], &diagonals),
            ("offsets", Dtype::I32, &[2], &offsets),
            ("shape", Dtype::I64, &[2], &shape),
        ]),
    ];
    let ones = bytes(&vec![1.0; n]);
    let x = scratch.write("x.safetensors", &safetensors(&[("y", Dtype::F32, &[1, 1, n], &ones)]));
    let y = scratch.path("y.safetensors");
    let expected = bytes(&(0..n).map(|i| if i == 0 || i == n - 1 { 4.0 } else { 5.0 }).collect::<Vec<_>>());
    for (index, form) in forms.iter().enumerate() {
        let matrix = scratch.write("m.safetensors", form);
        let args = ["ata", "--device", "cpu", "--check", "--matrix", text(&matrix), "--x", text(&x), "--out", text(&y)];
        assert_succeeded(&ferrotile(&args));
        assert_eq!(data(&y, 4 * n), expected, "form {index}");
        // What it writes it reads.
        let again = scratch.path("again.npy");
        let args = ["ata", "--device", "cpu", "--matrix", text(&matrix), "--x", text(&y), "--out", text(&again)];
        assert_succeeded(&ferrotile(&args));
    }
}

#[test]
fn bf16_of_ml_dtypes_is_read_where_it_is_asked_for() {
    let scratch = Scratch::new("ml-dtypes");
    let one = bf16::ONE.to_le_bytes();
    let inputs = ["q", "k", "v"].map(|name| scratch.npy(&format!("{name}.npy"), "<V2", &[1, 1, 2, 8], &one));
    let out = scratch.path("o.safetensors");
    let cure =
        "q.npy): elements of type '<V2', of which NumPy knows the size alone: bf16 of ml_dtypes? give --dtype bf16";
    assert_refused(&attention(&inputs, &out, &[]), cure);
    assert_refused(&attention(&inputs, &out, &["--dtype", "f16"]), cure);
    let output = attention(&inputs, &out, &["--dtype", "bf16", "--check"]);
    assert_succeeded(&output);
    // They are bf16: nothing is converted.
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("largest error against f64: 0.000e0"));
    assert!(data(&out, 32).chunks(2).all(|element| element == one));
    let a = scratch.npy("a.npy", "<V2", &[2, 2], &one);
    assert_succeeded(&gemm(text(&a), text(&a), &out, &["--dtype", "bf16"]));
    assert_refused(&gemm(text(&a), text(&a), &out, &["--dtype", "e4m3"]), "give --dtype bf16");
    let fp8 = scratch.npy("fp8.npy", "<V1", &[2, 2], &[0x38]);
    assert_succeeded(&gemm(text(&fp8), text(&fp8), &out, &["--dtype", "e4m3", "--out-dtype", "f32"]));
    assert!(data(&out, 16).chunks(4).all(|element| element == 2f32.to_le_bytes()));
    let args = ["ata", "--matrix", text(&a), "--x", text(&a), "--out", text(&out)];
    assert_refused(&ferrotile(&args), "bf16 of ml_dtypes? save them as float32");
}

#[test]
fn integers_are_converted_where_it_is_asked_for() {
    let scratch = Scratch::new("integers");
    for (descr, one) in
        [("|i1", &[1u8][..]), ("<u2", &[1, 0]), (">i4", &[0, 0, 0, 1]), ("<i8", &[1, 0, 0, 0, 0, 0, 0, 0])]
    {
        let inputs = ["q", "k", "v"].map(|name| scratch.npy(&format!("{name}.npy"), descr, &[1, 1, 2, 8], one));
        let out = scratch.path("o.npy");
        assert_refused(&attention(&inputs, &out, &[]), "give --dtype f16, bf16, e4m3 or u8 to convert them");
        assert_succeeded(&attention(&inputs, &out, &["--dtype", "f16", "--check"]));
        assert!(data(&out, 32).chunks(2).all(|element| element == ONE), "{descr}");
        let a = scratch.npy("a.npy", descr, &[2, 2], one);
        let d = scratch.path("d.safetensors");
        assert_refused(&gemm(text(&a), text(&a), &d, &[]), "give --dtype to convert them");
        assert_succeeded(&gemm(text(&a), text(&a), &d, &["--dtype", "e4m3", "--out-dtype", "f32"]));
        let y = scratch.path("y.safetensors");
        let args = ["ata", "--device", "cpu", "--check", "--matrix", text(&a), "--x", text(&a), "--out", text(&y)];
        // X of two vectors does not fit one matrix.
        assert_refused(&ferrotile(&args), "a.npy) has shape [2, 2], expected [frames, 1, 2]");
        let x = scratch.npy("x.npy", descr, &[2], one);
        let args = ["ata", "--device", "cpu", "--check", "--matrix", text(&a), "--x", text(&x), "--out", text(&y)];
        assert_succeeded(&ferrotile(&args));
        assert_eq!(data(&y, 8), [2f32, 2.0].iter().flat_map(|y| y.to_le_bytes()).collect::<Vec<_>>());
    }
}

/// A compressed archive of members: name, header, and as many mebibytes of zeros.
fn archive(scratch: &Scratch, name: &str, members: &[(&str, Vec<u8>, usize)]) -> std::path::PathBuf {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).large_file(true);
    for (member, start, mebibytes) in members {
        archive.start_file(format!("{member}.npy"), options).unwrap();
        archive.write_all(start).unwrap();
        for _ in 0..*mebibytes {
            archive.write_all(&vec![0; 1 << 20]).unwrap();
        }
    }
    scratch.write(name, &archive.finish().unwrap().into_inner())
}

#[test]
fn no_more_of_an_archive_is_unpacked_than_its_shapes_need() {
    let scratch = Scratch::new("bombs");
    let shape = || ("shape", npy("<i8", &[2], &[40i64, 40].map(i64::to_le_bytes).concat()), 0);
    let offsets = || ("offsets", npy("<i4", &[1], &[0; 4]), 0);
    let elements = 4 << 18;
    let cases = [
        (
            archive(&scratch, "more.npz", &[("blocks", npy("<f4", &[1, 1, 1, 16, 16], &[]), 4)]),
            "needs 1024 bytes of data, the file has 4194304",
        ),
        (
            archive(&scratch, "less.npz", &[("blocks", npy("<f4", &[1 << 40, 1, 1, 16, 16], &[]), 1)]),
            "bytes of data, the file has 1048576",
        ),
        (
            archive(&scratch, "wide.npz", &[shape(), offsets(), ("data", npy("<f4", &[1, elements], &[]), 4)]),
            "at most n columns",
        ),
        (
            archive(
                &scratch,
                "many.npz",
                &[shape(), ("offsets", npy("<i4", &[elements], &[]), 4), ("data", npy("<f4", &[1, 40], &[0; 160]), 0)],
            ),
            "offsets has shape",
        ),
        (
            archive(
                &scratch,
                "sizes.npz",
                &[
                    ("shape", npy("<i8", &[elements / 2], &[]), 4),
                    offsets(),
                    ("data", npy("<f4", &[1, 40], &[0; 160]), 0),
                ],
            ),
            "no matrix",
        ),
        (archive(&scratch, "text.npz", &[("format", npy("|S4194304", &[], &[]), 4)]), "expected a short text"),
        (
            archive(&scratch, "rows.npz", &[shape(), ("blocks", npy("<f4", &[1, 1, 4 << 10, 16, 16], &[]), 4)]),
            "as many block rows as n has",
        ),
    ];
    let x = scratch.write("x.npy", &f32s(&[40], &[0.0; 40]));
    for (matrix, reason) in cases {
        assert!(fs::metadata(&matrix).unwrap().len() < 1 << 18, "the archive is small");
        let out = scratch.path("y.npy");
        let args = ["ata", "--device", "cpu", "--matrix", text(&matrix), "--x", text(&x), "--out", text(&out)];
        assert_refused(&ferrotile(&args), reason);
    }
}

#[cfg(unix)]
#[test]
fn an_output_through_a_link_is_that_of_its_target() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new("links");
    let inputs = scratch.ones(&[1, 1, 2, 8], &[1, 1, 2, 8]);
    let (target, link) = (scratch.write("target.npy", b"stale"), scratch.path("link.npy"));
    symlink(&target, &link).unwrap();
    assert_succeeded(&attention(&inputs, &link, &[]));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(data(&target, 32).chunks(2).all(|element| element == ONE));
    // A link to an input is that input.
    let to_input = scratch.path("to_input.npy");
    symlink(&inputs[0], &to_input).unwrap();
    assert_refused(&attention(&inputs, &to_input, &[]), "cannot be an output too");
    let through_link = [to_input, inputs[1].clone(), inputs[2].clone()];
    assert_refused(&attention(&through_link, &inputs[0], &[]), "cannot be an output too");
    let lse = ["--lse", text(&link)];
    assert_refused(&attention(&inputs, &target, &lse), "the same file");
}

#[cfg(unix)]
#[test]
fn what_is_put_in_the_way_is_not_followed() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new("in-the-way");
    let inputs = scratch.ones(&[1, 1, 2, 8], &[1, 1, 2, 8]);
    let victim = scratch.write("victim", b"untouched");
    // A temporary name made of the name of the output and the number of the process can be foreseen.
    let first = std::process::id();
    for id in first..first + 300 {
        symlink(&victim, scratch.path(&format!(".o.npy.{id}.part"))).unwrap();
    }
    assert_succeeded(&attention(&inputs, &scratch.path("o.npy"), &[]));
    assert_eq!(fs::read(&victim).unwrap(), b"untouched");
}

#[test]
fn an_error_names_tensor_and_file() {
    let scratch = Scratch::new("named");
    let inputs = scratch.ones(&[1, 1, 2, 8], &[1, 1, 2, 8]);
    let out = scratch.path("o.npy");
    let single = scratch.npy("single.npy", "<f4", &[1, 1, 2, 8], &1f32.to_le_bytes());
    let refused = attention(&[single.clone(), single.clone(), single], &out, &[]);
    assert_refused(&refused, "single.npy) has f32");
    let wide = scratch.npy("wide.npy", "<f2", &[1, 1, 2, 16], &ONE);
    let refused = attention(&[inputs[0].clone(), wide, inputs[2].clone()], &out, &[]);
    assert_refused(&refused, "K has shape [1, 1, 2, 16], expected [1, 1, 2, 8]: q is [1, 1, 2, 8] (");
    assert!(stderr(&refused).contains("k is [1, 1, 2, 16] (") && stderr(&refused).contains("wide.npy)"));
    let a = scratch.write("a.npy", &f32s(&[3, 8], &[0.0; 24]));
    let refused = gemm(text(&a), text(&a), &out, &["--dtype", "f16"]);
    assert_refused(&refused, "B has shape [1, 3, 8], expected [1, 8, 8]: A is [3, 8] (");
    let flat = scratch.write("flat.npy", &f32s(&[3], &[0.0; 3]));
    assert_refused(&gemm(text(&flat), text(&a), &out, &["--dtype", "f16"]), "A (");
    assert_refused(&gemm(text(&scratch.path("absent.npy")), text(&a), &out, &[]), "absent.npy): No such file");
}
