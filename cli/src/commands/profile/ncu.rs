//! NVIDIA's profiler: where it is, and what it writes.
//!
//! `ncu --csv --page raw` writes a line of names, a line of units, and a line for each launch. Lines of its own stand
//! before and after them and start with `==`.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// There is no profiler.
#[derive(Debug, thiserror::Error)]
#[error(
    "ncu was found neither in PATH nor in CUDA_HOME, /usr/local/cuda* or /opt/nvidia/nsight-compute: it is NVIDIA's \
     profiler Nsight Compute, a part of the CUDA toolkit and the package nsight-compute of NVIDIA's repositories"
)]
pub(crate) struct NoNcu;

/// One launch that was profiled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Launch {
    /// The name of the kernel.
    pub(crate) kernel: String,
    /// Blocks of the grid, as written.
    pub(crate) grid: String,
    /// Threads of a block, as written.
    pub(crate) block: String,
    /// Metrics by name, with value and unit; those that are not available are left out.
    pub(crate) values: Vec<(String, f64, String)>,
}

impl Launch {
    /// A metric, and its unit.
    pub(crate) fn value(&self, metric: &str) -> Option<(f64, &str)> {
        let (_, value, unit) = self.values.iter().find(|(name, ..)| name == metric)?;
        Some((*value, unit))
    }
}

/// The profiler: the first of PATH, else that of a toolkit, the newest of several.
pub(crate) fn find() -> Result<PathBuf, NoNcu> {
    let in_path = env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let installed = newest_first(Path::new("/usr/local"), "cuda");
    let in_toolkits = toolkits.chain(installed).map(|toolkit| toolkit.join("bin"));
    let alone = newest_first(Path::new("/opt/nvidia/nsight-compute"), "");
    first_with_ncu(in_path.into_iter().chain(in_toolkits).chain(alone)).ok_or(NoNcu)
}

/// The profiler in the first folder that has it.
fn first_with_ncu(folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.map(|folder| folder.join("ncu").with_extension(env::consts::EXE_EXTENSION)).find(|path| path.is_file())
}

/// The folders of a folder whose names start so; the last in the order of names first.
fn newest_first(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let starts = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(start));
    let mut found: Vec<_> = entries.filter(starts).collect();
    found.sort();
    found.reverse();
    found
}

/// The launches of what the profiler wrote; none where it wrote no table.
pub(crate) fn launches(text: &str) -> Vec<Launch> {
    let lines = text.lines().filter(|line| line.starts_with('"')).collect::<Vec<_>>().join("\n");
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(lines.as_bytes());
    let Ok(names) = reader.headers().cloned() else { return Vec::new() };
    let column = |name: &str| names.iter().position(|known| known == name);
    let (Some(kernel), Some(block), Some(grid)) = (column("Kernel Name"), column("Block Size"), column("Grid Size"))
    else {
        return Vec::new();
    };
    let mut records = reader.records().flatten();
    let Some(units) = records.next() else { return Vec::new() };
    let launch = |record: csv::StringRecord| {
        let cell = |column: usize| record.get(column).unwrap_or_default().to_owned();
        // Thousands are marked by commas, and what is not available is n/a.
        let value = |cell: &str| cell.replace(',', "").parse::<f64>().ok().filter(|value| value.is_finite());
        let metrics = names.iter().zip(&record).zip(&units).filter(|((name, _), _)| name.contains("__"));
        let values = metrics.filter_map(|((name, cell), unit)| Some((name.to_owned(), value(cell)?, unit.to_owned())));
        Launch { kernel: cell(kernel), grid: cell(grid), block: cell(block), values: values.collect() }
    };
    records.map(launch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_among_other_lines() {
        let launches = launches(include_str!("sample.csv"));
        assert_eq!(launches.len(), 2);
        let Launch { kernel, grid, block, .. } = &launches[1];
        assert!(kernel.starts_with("attention_") && grid == "(132, 1, 1)" && block == "(384, 1, 1)", "{launches:?}");
        assert_eq!(launches[1].value("gpu__time_duration.sum"), Some((441_312.0, "ns")));
        assert_eq!(launches[1].value("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"), None, "n/a");
        assert_eq!(launches[1].value("absent"), None);
    }

    #[test]
    fn what_is_no_table_has_no_launches() {
        let names = r#""ID","Kernel Name","Block Size","Grid Size""#;
        for text in ["", "==ERROR== no", names, "\"a\",\"b\"\n\"1\",\"2\"\n\"3\",\"4\""] {
            assert_eq!(launches(text), [], "{text}");
        }
        assert_eq!(launches(&format!("{names}\n\"\",\"\",\"\",\"\"\n\"0\",\"k\"")).len(), 1);
    }

    #[test]
    fn the_first_folder_that_has_it_and_the_newest_toolkit_count() {
        let folder = tempfile::tempdir().unwrap();
        for toolkit in ["cuda-12.4", "cuda-13.0", "other"] {
            fs::create_dir_all(folder.path().join(toolkit)).unwrap();
            fs::write(folder.path().join(toolkit).join("ncu"), "").unwrap();
        }
        let toolkits = newest_first(folder.path(), "cuda");
        assert_eq!(toolkits, ["cuda-13.0", "cuda-12.4"].map(|name| folder.path().join(name)));
        let folders = [folder.path().to_owned()].into_iter().chain(toolkits);
        if cfg!(unix) {
            assert_eq!(first_with_ncu(folders), Some(folder.path().join("cuda-13.0/ncu")));
        }
    }
}
