//! `ferrotile validate`: a table, a report, and the exit code.

use std::fs;

use serde_json::{Value, json};

use crate::json::assert_documented;
use crate::program::{Scratch, assert_refused, assert_succeeded, ferrotile};

#[test]
fn kernels_are_run_and_reported() {
    let scratch = Scratch::new("validate");
    let out = scratch.path("report.json");
    let fixed = ["validate", "--device", "emulator:sm_80", "--out", out.to_str().unwrap(), "--family"];
    let output = ferrotile(&[&fixed[..], &["quantize"]].concat());
    assert_succeeded(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    for kernel in variants::quantize::KERNELS {
        let is_right = |line: &str| line.starts_with(kernel.name) && line.ends_with("right");
        assert!(text.lines().any(is_right), "{kernel}: {text}");
    }
    assert!(text.contains("3 kernels, 18 cases, 0 wrong"), "{text}");
    let report: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert_eq!((&report["passed"], &report["device"]["emulated"]), (&json!(true), &json!(true)));
    assert_eq!(report["kernels"].as_array().unwrap().len(), 3);
    assert_eq!(report["build"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(report["date"].as_str().unwrap().ends_with('Z'));
    assert_eq!((&report["kernels"][0]["threads"], &report["kernels"][0]["registers"]), (&json!(256), &json!(null)));

    let output = ferrotile(&[&fixed[..], &["ata", "--json"]].concat());
    assert_succeeded(&output);
    assert_eq!(output.stdout, fs::read(&out).unwrap(), "what is printed is what is written");
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let share = |kernel: &Value| kernel["share_of_tolerance"].as_f64().unwrap();
    let kernels = report["kernels"].as_array().unwrap();
    assert!(kernels.iter().all(|kernel| (0.0..=1.0).contains(&share(kernel)) && kernel["cases"].as_u64() > Some(1)));
    assert!(kernels.iter().any(|kernel| share(kernel) > 0.0));
    // No kernel is wrong, so a failure is written here.
    report["kernels"][0]["failures"] = json!([{"message": "", "repeat": ""}]);
    assert_documented("validate", &report);
}

#[test]
fn what_cannot_be_validated_is_refused() {
    assert_refused(&ferrotile(&["validate", "--device", "cpu"]), "runs kernels");
    assert_refused(&ferrotile(&["validate", "--device", "emulator", "--family", "fft"]), "fft");
    assert_refused(&ferrotile(&["validate", "--device", "emulator", "--out", "/no/such/folder/v.json"]), "folder");
}
