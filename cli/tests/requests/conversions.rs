//! What a conversion loses, what a result loses, and what is NaN or infinite: said and refused by one rule in every
//! command.

use std::path::{Path, PathBuf};

use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile, stderr};

const N: usize = 8;

/// Files of three tensors of a command, and how it is run on them.
struct Request {
    args: Vec<String>,
    out: PathBuf,
}

impl Request {
    fn new(scratch: &Scratch, command: &str, files: [(&str, &Path); 3]) -> Request {
        let out = scratch.path("result.safetensors");
        let mut args = vec![command.to_owned(), "--device".to_owned(), "cpu".to_owned(), "--check".to_owned()];
        for (option, path) in files.into_iter().chain([("--out", &*out)]) {
            args.extend([option.to_owned(), path.to_str().unwrap().to_owned()]);
        }
        Request { args, out }
    }

    fn run(&self, more: &[&str]) -> std::process::Output {
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        ferrotile(&args)
    }

    /// Runs what has to be refused for `reason`, which leaves nothing behind, and with the elements allowed.
    fn refused(&self, more: &[&str], reason: &str) -> String {
        assert_refused(&self.run(more), reason);
        assert!(!self.out.exists());
        let allowed = self.run(&[more, &["--allow-overflow"]].concat());
        assert_ne!(allowed.status.code(), Some(2), "{}", stderr(&allowed));
        stderr(&allowed)
    }

    /// Runs what computes something that fails.
    fn fails(&self, more: &[&str], reason: &str) {
        let output = self.run(more);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(reason), "'{reason}' is not in: {}", stderr(&output));
        assert!(!self.out.exists());
    }

    /// Runs what succeeds; the line of the check.
    fn succeeds(&self, more: &[&str]) -> String {
        let output = self.run(more);
        assert_succeeded(&output);
        std::fs::remove_file(&self.out).unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A file of numbers of either sign around 1, of which some are others.
fn numbers(scratch: &Scratch, name: &str, shape: &[usize], scale: f32, others: &[(usize, f32)]) -> PathBuf {
    let count = shape.iter().product::<usize>();
    let mut values: Vec<f32> = (0..count).map(|i| scale * (i as f32 * 0.77 + 1.0).sin()).collect();
    others.iter().for_each(|&(index, value)| values[index] = value);
    scratch.write(name, &f32s(shape, &values))
}

fn attention(scratch: &Scratch, q_scale: f32, q: &[(usize, f32)]) -> Request {
    let shape = [1, 1, 4, N];
    let q = numbers(scratch, "q.npy", &shape, q_scale, q);
    let (k, v) = (numbers(scratch, "k.npy", &shape, 1.0, &[]), numbers(scratch, "v.npy", &shape, 1.0, &[]));
    Request::new(scratch, "attention", [("--q", &q), ("--k", &k), ("--v", &v)])
}

fn gemm(scratch: &Scratch, a_scale: f32, a: &[(usize, f32)]) -> Request {
    let a = numbers(scratch, "ga.npy", &[4, N], a_scale, a);
    let (b, c) = (numbers(scratch, "b.npy", &[N, 4], 1.0, &[]), numbers(scratch, "c.npy", &[4, 4], 1.0, &[]));
    Request::new(scratch, "gemm", [("--a", &a), ("--b", &b), ("--c", &c)])
}

fn ata(scratch: &Scratch, x: &[(usize, f64)]) -> Request {
    let dense: Vec<f32> = (0..N * N).map(|i| if i / N == i % N { 2.0 } else { 0.5 }).collect();
    let matrix = scratch.write("matrix.npy", &f32s(&[N, N], &dense));
    let mut values: Vec<f64> = (0..2 * N).map(|i| (i as f64).cos()).collect();
    x.iter().for_each(|&(index, value)| values[index] = value);
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let x = scratch.npy_of("x.npy", "<f8", &[2, 1, N], &data);
    Request::new(scratch, "ata", [("--matrix", &matrix), ("--x", &x), ("--symmetry-tolerance", Path::new("0"))])
}

#[test]
fn elements_that_attention_would_lose_are_refused() {
    let scratch = Scratch::new("lost-attention");
    let request = attention(&scratch, 1.0, &[(9, 1e6), (10, -7e4)]);
    let allowed = request.refused(
        &["--dtype", "f16"],
        "q.npy): 2 of 32 elements become infinite in f16, the first at [0, 0, 1, 1]: 1e6 (use --dtype bf16",
    );
    // The f64 result of the file has numbers where that of f16 has NaN.
    assert!(allowed.contains("2 of 32 elements become infinite") && allowed.contains("NaN: 8 elements of O, 0 in f64"));
    // As bf16 nothing is lost, and the row is right.
    request.succeeds(&["--dtype", "bf16"]);
    let request = attention(&scratch, 1e-9, &[]);
    request.refused(&["--dtype", "f16"], "32 of 32 elements become 0 in f16, the first at [0, 0, 0, 0]");
    request.succeeds(&["--dtype", "bf16"]);
    let request = attention(&scratch, 1.0, &[(3, 3.4e38)]);
    request.refused(&["--dtype", "bf16"], "1 of 32 elements become infinite in bf16");
    // One that is small beside the others is rounded.
    let output = attention(&scratch, 1.0, &[(3, 1e-9)]).run(&["--dtype", "f16"]);
    assert_succeeded(&output);
    assert!(stderr(&output).contains("note: q ("), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 32 elements become 0 in f16, the first at [0, 0, 0, 3]"));
}

#[test]
fn elements_that_gemm_would_lose_are_refused() {
    let scratch = Scratch::new("lost-gemm");
    let request = gemm(&scratch, 1.0, &[(9, 7e4)]);
    let to_f32 = ["--dtype", "f16", "--out-dtype", "f32"];
    request.refused(&to_f32, "a.npy): 1 of 32 elements become infinite in f16, the first at [1, 1]: 7e4");
    let to_f32 = ["--dtype", "e4m3", "--out-dtype", "f32"];
    let reason = "a.npy): 1 of 32 elements are beyond its range and are cut off in e4m3, the first at [1, 1]: 7e4";
    let allowed = request.refused(&to_f32, reason);
    // The product of the cut off element is right, and far from that of the file's.
    assert!(allowed.contains("the check failed: largest error against f64 of the files' values"), "{allowed}");
    let request = gemm(&scratch, 1.0, &[(9, 440.0), (10, -448.0)]);
    request.succeeds(&to_f32);
    // C is of the type of D.
    let c = numbers(&scratch, "huge.npy", &[4, 4], 1.0, &[(5, 1e5)]);
    let huge = Request::new(
        &scratch,
        "gemm",
        [("--a", &scratch.path("ga.npy")), ("--b", &scratch.path("b.npy")), ("--c", &c)],
    );
    huge.refused(
        &["--dtype", "f16"],
        "huge.npy): 1 of 16 elements become infinite in f16, the first at [1, 1]: 1e5 (use --out-dtype bf16 or f32)",
    );
}

#[test]
fn elements_that_ata_would_lose_are_refused() {
    let scratch = Scratch::new("lost-ata");
    ata(&scratch, &[(3, 1e39)]).refused(&[], "x.npy): 1 of 16 elements become infinite in f32, the first at [0, 0, 3]");
    ata(&scratch, &[]).succeeds(&[]);
    let wide: Vec<u8> = [1e300f64, 0.0, 0.0, 1.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let matrix = scratch.npy_of("wide.npy", "<f8", &[2, 2], &wide);
    let x = scratch.write("x2.npy", &f32s(&[2], &[1.0, 2.0]));
    let args =
        ["ata", "--device", "cpu", "--matrix", matrix.to_str().unwrap(), "--x", x.to_str().unwrap(), "--out", "y.npy"];
    assert_refused(&ferrotile(&args), "expected a finite number");
}

#[test]
fn a_check_is_against_the_files_own_elements() {
    let scratch = Scratch::new("own");
    for request in [attention(&scratch, 1.0, &[]), gemm(&scratch, 1.0, &[])] {
        let line = request.succeeds(&["--dtype", "f16"]);
        let (own, converted) = line.split_once("; of the converted values: ").unwrap_or_else(|| panic!("{line}"));
        let error = |text: &str| -> f64 { text.split([' ', ',']).find_map(|word| word.parse().ok()).unwrap() };
        let own = own.strip_prefix("largest error against f64 of the files' values: ").unwrap();
        // The f16 of an input is farther from it than the result from the product of the rounded inputs.
        assert!(error(own) > 0.0 && error(own) != error(converted), "{line}");
    }
    assert!(ata(&scratch, &[]).succeeds(&["--precision", "f32"]).contains("of the files' values"));
    // Nothing is converted.
    let out = scratch.path("o.npy");
    let q = scratch.npy("half.npy", "<f2", &[1, 1, 4, N], &[0, 0x3C]);
    let q = q.to_str().unwrap();
    let args =
        ["attention", "--device", "cpu", "--q", q, "--k", q, "--v", q, "--out", out.to_str().unwrap(), "--check"];
    let output = ferrotile(&args);
    assert_succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("largest error against f64: 0.000e0, "));
}

#[test]
fn nan_and_infinities_are_counted_by_one_rule() {
    let scratch = Scratch::new("not-finite");
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    type Make<'a> = &'a dyn Fn() -> Request;
    let cases: [(Make<'_>, &[&str], &str); 5] = [
        (&|| attention(&scratch, 1.0, &[(9, nan)]), &["--dtype", "bf16"], "NaN: 8 elements of O, 8 in f64"),
        (&|| gemm(&scratch, 1.0, &[(9, nan)]), &["--dtype", "f16"], "NaN: 4 elements of D, 4 in f64"),
        (&|| gemm(&scratch, 1.0, &[(9, infinity)]), &["--dtype", "f16"], "infinite: 4 elements of D, 4 in f64"),
        (&|| ata(&scratch, &[(3, f64::NAN)]), &[], "NaN: 8 elements of Y, 8 in f64"),
        (&|| ata(&scratch, &[(3, f64::INFINITY)]), &[], "infinite: 8 elements of Y, 8 in f64"),
    ];
    for (request, more, counted) in cases {
        let request = request();
        let output = request.run(more);
        assert_succeeded(&output);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains(counted), "'{counted}' is not in: {stdout}");
        let noted = stderr(&output);
        assert!(noted.contains("1 are NaN and 0 infinite") || noted.contains("0 are NaN and 1 infinite"), "{noted}");
    }
}

#[test]
fn kernels_are_held_to_the_same_rule() {
    let scratch = Scratch::new("not-finite-kernels");
    let on_emulator = ["--device", "emulator"];
    let request = Request { args: ata(&scratch, &[(3, f64::NAN)]).args, out: scratch.path("result.safetensors") };
    // One frame of two, and no zeros in the matrix.
    let args: Vec<&str> =
        request.args.iter().map(String::as_str).filter(|&arg| arg != "--device" && arg != "cpu").collect();
    for precision in ["f32", "tf32", "tf32x3", "f16", "bf16"] {
        let output = ferrotile(&[&args[..], &on_emulator, &["--precision", precision]].concat());
        assert_succeeded(&output);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("NaN: 8 elements of Y, 8 in f64"), "{precision}: {stdout}");
    }
}

#[test]
fn a_result_beyond_its_type_is_no_success() {
    let scratch = Scratch::new("beyond");
    let request = gemm(&scratch, 1e4, &[(9, 6e4), (10, 6e4), (11, -6e4)]);
    let cure = "use --out-dtype bf16 or f32, or a smaller --alpha, or allow it by --allow-overflow";
    let to_f16 = ["--dtype", "f16", "--alpha", "8"];
    request.fails(&to_f16, "elements are beyond the type of D, the first at [");
    request.fails(&to_f16, cure);
    let allowed = request.succeeds(&[&to_f16[..], &["--allow-overflow"]].concat());
    assert!(allowed.contains("elements are beyond the type of D"), "{allowed}");
    request.succeeds(&[&to_f16[..], &["--out-dtype", "f32"]].concat());
    // Without a check, an infinite result of finite inputs says enough.
    let unchecked =
        Request { args: request.args.iter().filter(|&arg| arg != "--check").cloned().collect(), out: request.out };
    unchecked.fails(&to_f16, "elements of D are NaN or infinite, the first at [");
    unchecked.fails(&to_f16, cure);
    // e4m3 has no infinities: what is cut off is counted by a check, and else told of.
    let request = gemm(&scratch, 100.0, &[]);
    let to_e4m3 = ["--dtype", "e4m3", "--out-dtype", "e4m3", "--alpha", "40"];
    request.fails(&to_e4m3, "elements are beyond the type of D, the first at [");
    let unchecked =
        Request { args: request.args.iter().filter(|&arg| arg != "--check").cloned().collect(), out: request.out };
    let output = unchecked.run(&to_e4m3);
    assert_succeeded(&output);
    assert!(stderr(&output).contains("elements of D are 448, where e4m3 ends"), "{}", stderr(&output));
}

#[test]
fn every_command_says_what_it_understood() {
    let scratch = Scratch::new("understood");
    let requests = [
        (
            attention(&scratch, 1.0, &[]),
            &["--dtype", "f16"][..],
            "attention: batch 1, heads 1 (of keys 1), rows 4, keys 4, head dimension 8 (of values 8), layout bhsd, mask full, f16",
        ),
        (gemm(&scratch, 1.0, &[]), &["--dtype", "f16"], "gemm: batch 1, m 4, n 4, k 8, layout nn, f16 to f16"),
        (
            ata(&scratch, &[]),
            &[],
            "ata: A from both halves, channels 1, n 8, block diagonals 1, frames 2, precision tf32",
        ),
    ];
    for (request, more, line) in requests {
        let output = request.run(more);
        assert_succeeded(&output);
        assert_eq!(stderr(&output).lines().next(), Some(line));
    }
}
