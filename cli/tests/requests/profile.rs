//! `ferrotile profile`, with a program in the place of NVIDIA's profiler.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::json::assert_documented;
use crate::program::{Scratch, assert_refused, assert_succeeded, ferrotile, program, stderr};

/// Runs `ferrotile profile` with a script as `ncu`.
fn profile(scratch: &Scratch, script: &str, more: &[&str]) -> Output {
    let ncu = scratch.write("ncu", format!("#!/bin/sh\n{script}\n").as_bytes());
    fs::set_permissions(&ncu, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", scratch.folder.display());
    let args = [&["profile", "4x16x4096x128/causal/f16"], more].concat();
    Command::new(program()).args(args).env("PATH", path).output().unwrap()
}

/// A script that writes a recorded table to where it is told, and how it was called to `arguments`.
fn recorded(scratch: &Scratch) -> String {
    let sample = scratch.write("sample.csv", include_bytes!("../../src/commands/profile/sample.csv"));
    let arguments = scratch.path("arguments");
    format!(
        "echo \"$@\" > {}\nwhile [ \"$1\" != --log-file ]; do shift; done\ncat {} > \"$2\"",
        arguments.display(),
        sample.display()
    )
}

#[test]
fn the_numbers_of_a_kernel_are_printed_with_what_they_mean() {
    let scratch = Scratch::new("profile");
    let output = profile(&scratch, &recorded(&scratch), &[]);
    assert_succeeded(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["duration", "441.31 us", "71.3 %", "bank conflicts", "n/a", "wgmma (gmma)", "grid (132, 1, 1)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let arguments = fs::read_to_string(scratch.path("arguments")).unwrap();
    let benchmark = "bench attention --case 4x16x4096x128/causal/f16 --warmup 0 --iterations 1 --device 0";
    assert!(arguments.contains(benchmark) && arguments.contains("--page raw"), "{arguments}");
    let output = profile(&scratch, &recorded(&scratch), &["--json"]);
    assert_succeeded(&output);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_documented("profile", &result);
    assert_eq!(result["kernels"][0]["bank_conflicts"], json!(null));
}

#[test]
fn what_fails_is_said_in_one_line() {
    let scratch = Scratch::new("profile_fails");
    let said = |script: &str| {
        let output = profile(&scratch, script, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
        stderr(&output)
    };
    assert!(said("echo ==ERROR== ERR_NVGPUCTRPERM; exit 1").contains("NVreg_RestrictProfilingToAdminUsers=0"));
    assert!(said("echo no card >&2; exit 9").contains("no card"));
    assert!(said("exit 0").contains("has seen no kernel"));
    assert_refused(&ferrotile(&["profile", "512x512"]), "expected a case such as");
}
