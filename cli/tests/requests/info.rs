//! `ferrotile info`: short by default, kernels by name, and everything as JSON.

use variants::ata::ATA;
use variants::attention::ATTENTION;
use variants::gemm::GEMM;
use variants::study::{ATA_STUDY, ATTENTION_STUDY};

use crate::program::{assert_succeeded, ferrotile};

fn stdout(args: &[&str]) -> String {
    let output = ferrotile(&[&["info"], args].concat());
    assert_succeeded(&output);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names() -> impl Iterator<Item = &'static str> {
    let attention = ATTENTION.iter().chain(ATTENTION_STUDY).map(|config| config.name);
    let ata = ATA.iter().chain(ATA_STUDY).map(|config| config.name);
    attention.chain(GEMM.iter().map(|config| config.name)).chain(ata)
}

#[test]
fn it_fits_a_screen_unless_the_kernels_are_wanted() {
    let text = stdout(&[]);
    assert!(text.contains("sm_80") && text.contains("device") && text.contains("info --kernels"), "{text}");
    assert!(text.lines().count() <= 16, "{text}");
    let counted = ATA.len() + variants::cg::CG.len();
    let is_counted = |line: &str| line.starts_with("ata ") && line.contains(&format!("  {counted}"));
    assert!(text.lines().any(is_counted), "{counted} kernels of ata: {text}");
    assert!(names().all(|name| !text.contains(name)), "{text}");
}

#[test]
fn every_kernel_is_named() {
    let text = stdout(&["--kernels"]);
    for name in names() {
        assert!(text.contains(name), "{name}");
    }
}

#[test]
fn json_has_devices_and_the_kernels_of_each_architecture() {
    let text = stdout(&["--json"]);
    assert_eq!(text, stdout(&["--kernels", "--json"]), "it has the kernels in any case");
    let facts: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    let devices = facts["devices"].as_array().unwrap();
    assert_eq!(devices.is_empty(), facts["no_device"].is_string());
    let ptx = facts["ptx"].as_array().unwrap();
    for name in names() {
        let has = |ptx: &serde_json::Value| ptx["kernels"].as_array().unwrap().iter().any(|kernel| kernel == name);
        assert!(ptx.iter().any(has), "{name}");
    }
    assert!(ptx.iter().all(|ptx| ptx["bytes"].as_u64() > Some(0) && ptx["arch"].is_string()));
}
