//! `ferrotile soak`: what it prints repeats what it found.

use super::program::{assert_refused, assert_succeeded, ferrotile};

/// A product whose every element is 3.
const PRODUCT: &str = r#"{"gemm":{"a":"f16","b":"f16","d":"f32","layout":"nt","batch":1,"m":2,"n":2,"k":3,
    "values":["ones","ones"],"seed":0}}"#;

#[test]
fn problems_of_a_seed_are_right_and_counted() {
    let arguments = ["--device", "emulator:sm_80", "--problems", "5", "--seed", "3", "--family", "merge"];
    let output = ferrotile(&[&["soak"], &arguments[..]].concat());
    assert_succeeded(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("seed 3\n") && text.contains("5 problems, 0 wrong"), "{text}");
}

#[test]
fn one_problem_is_repeated_by_its_text() {
    let output = ferrotile(&["soak", "--device", "emulator:sm_90a", "--repeat", PRODUCT]);
    assert_succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("right, 0.00 of the tolerance"));
}

#[test]
fn attention_on_fp8_is_repeated_with_its_factors() {
    let text = r#"{"attention":{"heads":{"dtype":"e4m3","q_heads":2,"kv_heads":1,"head_dim":64,"value_dim":64},
        "batch":2,"q_len":3,"k_len":17,"terms":{"mask":"causal","sink":"normal"},"fp8":{"out":"bf16",
        "descales":[{"of_batch":true,"of":"none"},null,{"size":"large"}]},"seed":1}}"#;
    let output = ferrotile(&["soak", "--device", "emulator:sm_90a", "--repeat", text]);
    assert_succeeded(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\nright, "));
}

#[test]
fn texts_that_are_no_problems_and_devices_without_kernels_are_refused() {
    assert_refused(&ferrotile(&["soak", "--device", "emulator", "--repeat", "{}"]), "not a problem");
    assert_refused(&ferrotile(&["soak", "--device", "emulator", "--repeat", r#"{"gemm":{"a":"f17"}}"#]), "f17");
    assert_refused(&ferrotile(&["soak", "--device", "cpu"]), "runs kernels");
    assert_refused(&ferrotile(&["soak", "--device", "emulator", "--family", "fft"]), "fft");
    assert_refused(&ferrotile(&["soak", "--device", "emulator", "--minutes", "0"]), "minutes");
}
