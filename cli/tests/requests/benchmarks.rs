//! `ferrotile bench` and `compare`: what they refuse, what they need, and what they write.

use std::fs;

use variants::attention::{ATTENTION, AttentionConfig, AttentionKernel, ScoreMod, Seqlens};

use crate::program::{Scratch, assert_refused, assert_succeeded, ferrotile, stderr};

#[test]
fn a_benchmark_of_nothing_is_refused() {
    for (args, reason) in [
        (&["--case", "1x8x512x64"][..], "expected BxHxSxD/mask/dtype"),
        (&["--case", "1x8x512x60/full/f16"], "a multiple of 8"),
        (&["--case", "1x8x512x64v12/full/f16"], "a multiple of 8"),
        (&["--kernel", "fastest"], "no attention kernel is called 'fastest'"),
        (&["--iterations", "0"], "--iterations"),
        (&["--json", "/no/such/folder/o.json"], "folder does not exist"),
    ] {
        assert_refused(&ferrotile(&[&["bench", "attention"], args].concat()), reason);
    }
    for (args, reason) in [
        (["ata", "--kernel", "fastest"], "no ata kernel is called 'fastest'"),
        (["gemm", "--kernel", "fastest"], "no gemm kernel is called 'fastest'"),
        (["load", "--kernel", "fastest"], "no attention, gemm or ata kernel is called 'fastest'"),
        (["load", "--case", "512x512"], "expected a case such as 1x8x512x64/causal/f16"),
        (["gemm", "--case", "99999999999x1x1/f16"], "m is 99999999999"),
        (["decode", "--page", "7"], "a page size that divides the number of keys"),
        (["decode", "--softcap", "nan"], "expected a finite number"),
        (["decode", "--softcap", "-1"], "softcap is -1"),
        (["gemm", "--device", "emulator"], "a benchmark runs on a card: expected cuda, cuda:N or N"),
        (["ladder", "--device", "emulator"], "a benchmark runs on a card: expected cuda, cuda:N or N"),
        (["study", "--case", "1x2x64x256/full/f16"], "the study has kernels for head dimensions up to 128"),
        (["load", "--device", "emulator"], "a benchmark runs on a card: expected cuda, cuda:N or N"),
        (["gemm", "--chart", "chart.png"], "ends in .svg"),
        (["ata", "--chart", "/no/such/folder/chart.svg"], "folder does not exist"),
    ] {
        assert_refused(&ferrotile(&[&["bench"], &args[..]].concat()), reason);
    }
}

#[test]
fn a_benchmark_needs_a_card_and_writes_its_rows() {
    let scratch = Scratch::new("bench");
    let json = scratch.path("o.json");
    let case = "1x1x32x64/causal/f16";
    let fixed = ["bench", "attention", "--case", case, "--kernel", "all", "--iterations", "3", "--json"];
    let output = ferrotile(&[&fixed[..], &[json.to_str().unwrap()]].concat());
    if String::from_utf8_lossy(&ferrotile(&["info"]).stdout).contains("devices: none") {
        assert_eq!(output.status.code(), Some(1));
        let said = stderr(&output);
        assert!(said.starts_with("error: a benchmark measures a card: no NVIDIA driver"), "{said}");
        assert_eq!(said.lines().count(), 1);
        assert_eq!(scratch.names(), [""; 0]);
        for benchmark in ["ata", "decode", "gemm", "ladder", "load", "rotary", "study"] {
            let output = ferrotile(&["bench", benchmark]);
            assert_eq!(output.status.code(), Some(1), "{benchmark}");
            assert!(stderr(&output).contains("a benchmark measures a card"), "{benchmark}");
        }
        return;
    }
    assert_succeeded(&output);
    let text = fs::read_to_string(&json).unwrap();
    // Kernels made for more than the case has are left out, and its rows are too many for those that decode.
    let serves = |config: &&AttentionConfig| config.serves(layout::Arch::Sm80, layout::Dtype::F16, [64; 2]);
    let made_for_it = |config: &&AttentionConfig| {
        (config.score_mod, config.seqlens) == (ScoreMod::None, Seqlens::Fixed)
            && !matches!(config.kernel, AttentionKernel::Decode(_))
    };
    for config in ATTENTION.iter().filter(serves).filter(made_for_it) {
        assert!(text.contains(config.name), "{config}");
    }
    assert!(text.contains(case) && text.contains("p90_us") && text.contains("tflops"));
    let itself = ferrotile(&["compare", json.to_str().unwrap(), json.to_str().unwrap()]);
    assert_succeeded(&itself);
}

#[test]
fn results_are_compared_by_case() {
    let scratch = Scratch::new("compare");
    let report = |name: &str, implementation: &str, us: f64| {
        let text = format!(
            r#"{{"device": "card", "rows": [{{"family": "attention", "case": "1x1x32x64/full/f16", "impl": "{implementation}", "us": {us}, "tflops": 1.0}}]}}"#
        );
        scratch.write(name, text.as_bytes()).to_str().unwrap().to_owned()
    };
    let (ours, baseline) = (report("ours.json", "ours", 2.0), report("baseline.json", "cudnn", 3.0));
    let output = ferrotile(&["compare", &ours, &baseline]);
    assert_succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("geometric mean over cudnn: 1.500 (1 cases)"));
    let garbage = scratch.write("garbage.json", b"[]");
    assert_refused(&ferrotile(&["compare", garbage.to_str().unwrap(), &baseline]), "not a file of benchmark results");
    let negative = report("negative.json", "ours", -1.0);
    assert_refused(&ferrotile(&["compare", &negative, &baseline]), "took -1 us");
    let chart = |name: &str| {
        let path = scratch.path(name);
        (ferrotile(&["compare", &ours, &baseline, "--chart", path.to_str().unwrap()]), path)
    };
    assert_refused(&chart("chart.png").0, "ends in .svg");
    assert_refused(&chart("none/chart.svg").0, "folder does not exist");
    let (output, path) = chart("chart.svg");
    assert_succeeded(&output);
    assert!(fs::read_to_string(path).unwrap().starts_with("<svg"));
}
