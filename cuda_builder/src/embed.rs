//! For build scripts: the PTX of kernel families, built or prebuilt, as a table that the crate includes.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use kernel_cache::Cache;
use layout::Arch;

use crate::builder::CudaBuilder;
use crate::error::Error;
use crate::pack::Packed;

/// Provides the PTX of each family for each architecture to the crate whose build script calls this.
///
/// A family is the folder of a device crate, relative to the calling crate or to the root of its workspace; its last
/// component is the family's name. The result is a file `ptx_table.rs` in `OUT_DIR`, an expression of the type
/// `&[(&str, Arch, &[u8], Index)]`: family, architecture, streams in the format `.lzma`, and where each stream is. The
/// first two streams are the text before the first entry and the text behind the last one. Any one entry between these
/// two is a module of its own, see [`entry_ranges`](crate::ptx::entry_ranges).
///
/// ```ignore
/// use std::ops::Range;
/// use layout::Arch;
/// type Index = ([Range<usize>; 2], &'static [(&'static str, Range<usize>)]);
/// static TABLE: &[(&str, Arch, &[u8], Index)] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));
/// ```
///
/// Where the variable `FERROTILE_PTX` names a folder, or the calling crate has a folder `ptx` (a packaged crate has
/// one), the files `<family>.<arch>.ptx` in that folder are taken. Nothing is compiled then, and stable Rust is enough.
/// On docs.rs the table is empty.
///
/// # Errors
/// Those of [`CudaBuilder::build`], and [`Error::Io`] for a prebuilt file that is missing.
pub fn embed(families: &[&str], archs: &[Arch]) -> Result<(), Error> {
    for variable in ["FERROTILE_PTX", "DOCS_RS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let cache = Cache::of_user();
    let mut table = String::from("&[\n");
    if std::env::var_os("DOCS_RS").is_none() {
        let files: Vec<_> = archs.iter().flat_map(|&arch| families.iter().map(move |family| (*family, arch))).collect();
        match prebuilt_folder() {
            Some(folder) => copy_prebuilt(&folder, &files, &out)?,
            None => build_all(families, archs, &out)?,
        }
        for (family, arch) in files {
            let name = family_name(family);
            let path = out.join(file_name(family, arch));
            let ptx = fs::read_to_string(&path).map_err(Error::io(&path))?;
            let packed = Packed::new(&ptx, cache.as_ref());
            let path = path.with_extension("lzma");
            fs::write(&path, packed.bytes).map_err(Error::io(&path))?;
            let file = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.{arch}.lzma\"))");
            // Writing to a String cannot fail.
            let _ = writeln!(table, "(\"{name}\", Arch::{arch:?}, {file}, {}),", packed.index);
        }
    }
    table.push_str("]\n");
    let path = out.join("ptx_table.rs");
    fs::write(&path, table).map_err(Error::io(&path))
}

/// The file that holds the PTX of a family for an architecture, in `OUT_DIR` and in a folder of prebuilt PTX.
pub fn file_name(family: &str, arch: Arch) -> String {
    format!("{}.{arch}.ptx", family_name(family))
}

fn family_name(family: &str) -> &str {
    family.rsplit('/').next().unwrap_or(family)
}

fn prebuilt_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("FERROTILE_PTX").filter(|folder| !folder.is_empty()) {
        return Some(folder.into());
    }
    Some(PathBuf::from("ptx")).filter(|folder| folder.is_dir())
}

fn copy_prebuilt(folder: &Path, files: &[(&str, Arch)], out: &Path) -> Result<(), Error> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for (family, arch) in files {
        let name = file_name(family, *arch);
        let source = folder.join(&name);
        fs::copy(&source, out.join(&name)).map_err(Error::io(&source))?;
    }
    Ok(())
}

/// Builds the architectures at the same time and the families of one, which share a target folder, in turn.
fn build_all(families: &[&str], archs: &[Arch], out: &Path) -> Result<(), Error> {
    let build_arch = |arch: Arch| -> Result<(), Error> {
        for family in families {
            let ptx = out.join(file_name(family, arch));
            CudaBuilder::new(family).arch(arch).copy_to(ptx).build()?.emit_rerun();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = archs.iter().map(|&arch| scope.spawn(move || build_arch(arch))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
