//! NVIDIA's assembler, where there is one: from the CUDA toolkit, or from the PyPI package `nvidia-cuda-nvcc`.
//!
//! The driver has the same compiler inside, so nothing needs `ptxas` at run time; its report is what the gates read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use layout::Arch;

use crate::error::Error;

/// An installed `ptxas`.
#[derive(Debug, Clone)]
pub struct Ptxas {
    path: PathBuf,
}

/// What `ptxas -v` says of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// One for each entry, in the order of the assembler.
    pub entries: Vec<EntryReport>,
    /// Warnings and performance advisories, such as C7510 (wgmma serialised) and C7508 (setmaxnreg ignored).
    pub warnings: Vec<String>,
}

/// What `ptxas -v` says of an entry point.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryReport {
    /// The entry.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes stored because registers ran out.
    pub spill_store_bytes: u32,
    /// Bytes loaded because registers ran out.
    pub spill_load_bytes: u32,
    /// The stack of a thread: what lies in local memory.
    pub stack_bytes: u32,
    /// Static shared memory of a block.
    pub shared_bytes: u32,
}

impl Ptxas {
    /// Finds `ptxas` on PATH, in the toolkit of `CUDA_PATH` or `CUDA_HOME`, or in the virtual environment `.cuda-tools`
    /// of the folder, which `cargo xtask tools` makes.
    pub fn find(folder: &Path) -> Option<Ptxas> {
        find_tool("ptxas", folder).map(|path| Ptxas { path })
    }

    /// The program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Assembles a PTX file to a cubin file.
    ///
    /// # Errors
    /// [`Error::Tool`] if the assembler refuses the PTX.
    pub fn assemble(&self, ptx: &Path, arch: Arch, cubin: &Path) -> Result<Report, Error> {
        let mut command = Command::new(&self.path);
        command.arg(format!("-arch={arch}")).arg("-v").arg(ptx).arg("-o").arg(cubin);
        let output = command.output().map_err(Error::io(&self.path))?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(Report::parse(&text))
        } else {
            Err(Error::Tool { command: format!("{command:?}"), output: text.into_owned() })
        }
    }
}

/// Finds a tool of CUDA: on PATH, in the toolkit of `CUDA_PATH` or `CUDA_HOME`, or in `.cuda-tools` of the folder.
pub fn find_tool(name: &str, folder: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(
        ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(|v| Some(PathBuf::from(std::env::var_os(v)?).join("bin"))),
    );
    // .cuda-tools/lib/python3.12/site-packages/nvidia/cu13/bin
    for python in subfolders(&folder.join(".cuda-tools/lib")) {
        let packages = subfolders(&python.join("site-packages/nvidia"));
        folders.extend(packages.iter().map(|package| package.join("bin")));
    }
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    folders.into_iter().map(|folder| folder.join(&file)).find(|path| path.is_file())
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

impl Report {
    /// Reads what `ptxas -v` prints.
    pub fn parse(text: &str) -> Report {
        let mut report = Report::default();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next())
            {
                report.entries.push(EntryReport { name: name.to_owned(), ..EntryReport::default() });
            } else if line.contains("bytes stack frame") {
                if let Some(entry) = report.entries.last_mut() {
                    entry.stack_bytes = number_before(line, " bytes stack frame");
                    entry.spill_store_bytes = number_before(line, " bytes spill stores");
                    entry.spill_load_bytes = number_before(line, " bytes spill loads");
                }
            } else if line.contains(": Used ") {
                if let Some(entry) = report.entries.last_mut() {
                    entry.registers = number_before(line, " registers");
                    entry.shared_bytes = number_before(line, " bytes smem");
                }
            } else if line.contains("(C7") || line.starts_with("ptxas warning") {
                report.warnings.push(line.to_owned());
            }
        }
        report
    }

    /// What the report says of that entry.
    pub fn entry(&self, name: &str) -> Option<&EntryReport> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// The number that stands before the unit; 0 if the line does not name it.
fn number_before(line: &str, unit: &str) -> u32 {
    let before = line.split_once(unit).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_read() {
        let report = Report::parse(
            "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function 'scale' for 'sm_90a'\n\
             ptxas info    : Function properties for scale\n    \
             128 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n\
             ptxas info    : Used 24 registers, used 1 barriers, 128 bytes cumulative stack size, 40 bytes smem\n\
             ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n\
             ptxas info    : Compiling entry function 'plain' for 'sm_90a'\n\
             ptxas info    : Used 8 registers\n",
        );
        let scale = EntryReport {
            name: "scale".into(),
            registers: 24,
            spill_store_bytes: 4,
            spill_load_bytes: 8,
            stack_bytes: 128,
            shared_bytes: 40,
        };
        assert_eq!(report.entry("scale"), Some(&scale));
        assert_eq!(report.entry("plain").map(|entry| (entry.registers, entry.shared_bytes)), Some((8, 0)));
        assert!(report.warnings.len() == 1 && report.warnings[0].contains("C7510"));
    }
}
