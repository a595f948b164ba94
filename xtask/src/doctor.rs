//! `cargo xtask doctor`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use cuda_builder::ptxas::{Ptxas, find_tool};
use cuda_builder::toolchain::Toolchain;

use crate::workspace::root;

/// What a look at one thing found: what is there, or what to do about its absence.
type Finding = std::result::Result<String, String>;

/// Looks at everything that a build, a test or a run can need.
pub(crate) fn run() -> Result<()> {
    let required = [("toolchain", toolchain()), ("linker", linker())];
    let optional = [
        ("driver", driver()),
        ("cards", cards()),
        ("ptxas", ptxas()),
        (
            "compute-sanitizer",
            tool("compute-sanitizer", "comes with the CUDA toolkit; needed by `xtask test --sanitize` only"),
        ),
    ];
    for (name, finding) in &required {
        println!("{}", line(name, finding, "missing"));
    }
    for (name, finding) in &optional {
        println!("{}", line(name, finding, "absent"));
    }
    let missing: Vec<&str> = required.iter().filter(|(_, finding)| finding.is_err()).map(|&(name, _)| name).collect();
    if !missing.is_empty() {
        bail!("a build needs what is missing: {}", missing.join(", "));
    }
    Ok(())
}

/// One line of the report, however many the finding has.
fn line(name: &str, finding: &Finding, absence: &str) -> String {
    let (state, words) = match finding {
        Ok(found) => ("ok", found),
        Err(cure) => (absence, cure),
    };
    format!("{name:18} {state:8} {}", words.trim().replace('\n', "; "))
}

fn toolchain() -> Finding {
    match Toolchain::find(root()) {
        Ok(toolchain) => Ok(format!("{} with rust-src and llvm-tools", toolchain.channel)),
        Err(error) => Err(error.to_string()),
    }
}

fn linker() -> Finding {
    tool("cc", "install a C compiler, which rustc links with: the package gcc or build-essential")
}

/// The driver is what the program needs to run on a card; its library is loaded by name at run time.
fn driver() -> Finding {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let libraries =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];
    let library = libraries.iter().map(|folder| Path::new(folder).join("libcuda.so.1")).find(|path| path.exists());
    match (version.lines().next(), library) {
        (Some(line), _) => Ok(line.trim_start_matches("NVRM version: ").to_owned()),
        (None, Some(library)) => Ok(library.display().to_string()),
        (None, None) => Err("install the NVIDIA driver to run on a card; nothing else needs it".into()),
    }
}

fn cards() -> Finding {
    let mut command = Command::new("nvidia-smi");
    let output = command.args(["--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(_) => Err("no nvidia-smi: without a card, the tests of kernels run on the emulator".into()),
    }
}

fn ptxas() -> Finding {
    match Ptxas::find(root()) {
        Some(ptxas) => Ok(ptxas.path().display().to_string()),
        None => Err("`cargo xtask tools` installs it; needed by `xtask build --ptxas` only".into()),
    }
}

fn tool(name: &str, cure: &str) -> Finding {
    find_tool(name, root()).map(|path| path.display().to_string()).ok_or_else(|| cure.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        let failed = Err("NVIDIA-SMI has failed\nmake sure that the driver runs\n".to_owned());
        let expected = "cards              absent   NVIDIA-SMI has failed; make sure that the driver runs";
        assert_eq!(line("cards", &failed, "absent"), expected);
        assert_eq!(line("linker", &Ok("/usr/bin/cc".to_owned()), "missing"), "linker             ok       /usr/bin/cc");
    }
}
