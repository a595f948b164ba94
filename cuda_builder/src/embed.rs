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
/// two is a module of its own, see [`entry_ranges`](crate::ptx::entry_ranges). The number beside an entry is that of
/// its base, whose text the dictionary of its stream starts with.
///
/// ```ignore
/// use std::ops::Range;
/// use layout::Arch;
/// type Index = ([Range<usize>; 2], &'static [(&'static str, Range<usize>, Option<usize>)]);
/// static TABLE: &[(&str, Arch, &[u8], Index)] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));
/// ```
///
/// Where the variable `FERROTILE_PTX` names a folder, its files `<family>.<arch>.ptx` are taken. Otherwise, where the
/// calling crate has a folder `ptx` (a published crate has one), its files `<family>.<arch>.packed` are, which [`pack`]
/// makes. Nothing is compiled then, and stable Rust is enough. On docs.rs the table is empty.
///
/// # Errors
/// Those of [`CudaBuilder::build`], and [`Error::Io`] for a file that is missing or damaged.
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
        let source = Source::find();
        if let Source::Texts(folder) | Source::Packed(folder) = &source {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
        match &source {
            Source::Texts(folder) => copy_texts(folder, &files, &out)?,
            Source::Packed(_) => {}
            Source::Build => build_all(families, archs, &out)?,
        }
        for (family, arch) in files {
            let name = family_name(family);
            let path = out.join(file_name(family, arch));
            let packed = match &source {
                Source::Packed(folder) => read_packed(&folder.join(packed_file_name(family, arch)))?,
                Source::Texts(_) | Source::Build => {
                    Packed::new(&fs::read_to_string(&path).map_err(Error::io(&path))?, cache.as_ref())
                }
            };
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

/// The file that holds what [`pack`] made of that PTX, in the folder `ptx` of a published crate.
pub fn packed_file_name(family: &str, arch: Arch) -> String {
    format!("{}.{arch}.packed", family_name(family))
}

/// The PTX of a family for an architecture as [`embed`] takes it from a published crate: compressed, with its index.
pub fn pack(ptx: &str) -> Vec<u8> {
    Packed::new(ptx, Cache::of_user().as_ref()).to_file()
}

fn family_name(family: &str) -> &str {
    family.rsplit('/').next().unwrap_or(family)
}

/// Where PTX comes from.
enum Source {
    /// A folder of texts.
    Texts(PathBuf),
    /// A folder of packed files.
    Packed(PathBuf),
    /// The device crates.
    Build,
}

impl Source {
    fn find() -> Source {
        if let Some(folder) = std::env::var_os("FERROTILE_PTX").filter(|folder| !folder.is_empty()) {
            return Source::Texts(folder.into());
        }
        let folder = PathBuf::from("ptx");
        if folder.is_dir() { Source::Packed(folder) } else { Source::Build }
    }
}

fn copy_texts(folder: &Path, files: &[(&str, Arch)], out: &Path) -> Result<(), Error> {
    for (family, arch) in files {
        let name = file_name(family, *arch);
        let source = folder.join(&name);
        fs::copy(&source, out.join(&name)).map_err(Error::io(&source))?;
    }
    Ok(())
}

fn read_packed(path: &Path) -> Result<Packed, Error> {
    let file = fs::read(path).map_err(Error::io(path))?;
    let damaged = || std::io::Error::new(std::io::ErrorKind::InvalidData, "the file is damaged: it has no index");
    Packed::from_file(&file).ok_or_else(damaged).map_err(Error::io(path))
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
