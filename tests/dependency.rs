//! The library as a dependency of a crate outside this workspace: a plug-in, built as its author builds it.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_builder::toolchain::clean_environment;
use libloading::Library;
use object::{Object, ObjectSymbol};

type Outcome = Result<(), Box<dyn Error>>;

/// What the plug-in does: it calls the driver, if there is one.
const SOURCE: &str = r#"
/// The cards of this machine; -1 where the driver fails.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_cards() -> i32 {
    ferrotile::Gpu::all().map_or(-1, |cards| cards.len() as i32)
}
"#;

/// Builds the plug-in in a folder of its own, without what this workspace sets, and returns the file.
///
/// It has no PTX, which takes long to build, and so no cards.
fn build() -> Result<PathBuf, Box<dyn Error>> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host").canonicalize()?;
    let folder = tempfile::tempdir()?;
    let manifest = format!(
        "[package]\nname = \"plugin\"\nedition = \"2024\"\n[lib]\ncrate-type = [\"cdylib\"]\n[dependencies]\n\
         ferrotile = {{ path = {library:?}, default-features = false }}\n[workspace]\n"
    );
    fs::write(folder.path().join("Cargo.toml"), manifest)?;
    fs::create_dir(folder.path().join("src"))?;
    fs::write(folder.path().join("src/lib.rs"), SOURCE)?;
    // The versions that this workspace has are there without a network.
    fs::copy(library.join("../Cargo.lock"), folder.path().join("Cargo.lock"))?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dependency");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--target-dir"]).arg(&target).current_dir(folder.path());
    clean_environment(&mut cargo);
    // It makes the build longer, and no other symbols.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    // `.cargo/config.toml` sets it for this workspace.
    cargo.env_remove("CUDA_LIBRARY_PATH");
    // The compiler is the one of this build.
    if let Some(toolchain) = std::env::var_os("RUSTUP_TOOLCHAIN") {
        cargo.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        return Err(format!("cargo build: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    Ok(target.join("debug").join(format!("{prefix}plugin{suffix}")))
}

/// The names that a program or library exports, and those that it wants from elsewhere.
fn dynamic_symbols(file: &Path) -> Result<[BTreeSet<String>; 2], Box<dyn Error>> {
    let data = fs::read(file)?;
    let object = object::File::parse(&*data)?;
    let mut symbols = [BTreeSet::new(), BTreeSet::new()];
    for symbol in object.dynamic_symbols() {
        symbols[usize::from(symbol.is_undefined())].insert(symbol.name()?.to_owned());
    }
    Ok(symbols)
}

/// Whether a name is that of a function of the CUDA driver: `cuInit`.
fn is_of_the_driver(name: &str) -> bool {
    name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

#[test]
fn a_plug_in_builds_as_it_is_and_has_no_symbol_of_the_driver() -> Outcome {
    let file = build()?;
    let [exported, undefined] = dynamic_symbols(&file)?;
    assert!(exported.contains("plugin_cards"), "{exported:?}");
    assert!(undefined.contains("dlopen"), "the driver is opened: {undefined:?}");
    let of_the_driver: Vec<_> = exported.iter().chain(&undefined).filter(|name| is_of_the_driver(name)).collect();
    assert!(of_the_driver.is_empty(), "{of_the_driver:?}");
    // SAFETY: the plug-in initialises nothing, and the function has this type.
    let cards = unsafe { Library::new(&file)?.get::<extern "C" fn() -> i32>("plugin_cards")?() };
    assert_eq!(cards, i32::try_from(ferrotile::Gpu::all()?.len())?, "a plug-in without PTX has the same cards");
    Ok(())
}

#[test]
fn functions_of_the_driver_are_known_by_their_names() {
    for name in ["cuInit", "cuMemAlloc_v2", "cuGetErrorString"] {
        assert!(is_of_the_driver(name), "{name}");
    }
    for name in ["cu", "cube", "cudaMalloc", "currency", "plugin_cards", "Cu"] {
        assert!(!is_of_the_driver(name), "{name}");
    }
}
