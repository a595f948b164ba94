//! From rustc's unoptimised LLVM module to PTX.
//!
//! `opt -O3` runs twice, as rustc's own two rounds (crate, then LTO) do: one run leaves the accumulator arrays of large
//! kernels in local memory.
//!
//! The passes take minutes for a large family, so the PTX of a module is kept in a cache. A change of a library that no
//! kernel of a family shows costs that family no passes.

use std::fs;
use std::path::Path;

use kernel_cache::{Cache, Key};
use layout::Arch;

use crate::compact::compact;
use crate::error::Error;
use crate::lines::at_calls;
use crate::marks::mark;
use crate::toolchain::{Toolchain, run};

/// The steps themselves: what they do to a module is part of what the PTX is made from.
pub(crate) const STEPS: [&str; 5] = [
    include_str!("compact.rs"),
    include_str!("lines.rs"),
    include_str!("llvm_text.rs"),
    include_str!("lower.rs"),
    include_str!("marks.rs"),
];

/// Marks the module, makes PTX of it, and returns the PTX, or what an earlier call made from the same.
pub(crate) fn lower(toolchain: &Toolchain, arch: Arch, raw_module: &Path, cache: &Cache) -> Result<String, Error> {
    let module = fs::read_to_string(raw_module).map_err(Error::io(raw_module))?;
    let key = key(&module, toolchain, arch);
    if let Some(ptx) = kept_text(cache, &key) {
        return Ok(ptx);
    }
    let marked = raw_module.with_extension("marked.ll");
    fs::write(&marked, at_calls(&mark(&module, arch)?)).map_err(Error::io(&marked))?;

    let optimised = raw_module.with_extension("opt.bc");
    // Twice, as rustc does it (for the crate, then for the merged module), and with loops unrolled whatever the
    // size of their body: a loop over a register array that stays a loop leaves the array in local memory.
    run(toolchain
        .llvm_tool("opt")
        .args(["-passes=default<O3>,default<O3>", "-unroll-threshold=4000"])
        .arg(&marked)
        .arg("-o")
        .arg(&optimised))?;
    let (major, minor) = arch.ptx_version();
    let assembly = raw_module.with_extension("s");
    run(toolchain
        .llvm_tool("llc")
        .arg("-O3")
        .arg(format!("-mcpu={arch}"))
        .arg(format!("-mattr=+ptx{major}{minor}"))
        // The chain of inlined calls would need a section of strings, and PTX 7.2.
        .arg("-line-info-inlined-at=false")
        .arg(&optimised)
        .arg("-o")
        .arg(&assembly))?;
    let ptx = compact(&fs::read_to_string(&assembly).map_err(Error::io(&assembly))?);
    keep_text(cache, &key, &ptx);
    Ok(ptx)
}

/// The text of an entry of the cache.
pub(crate) fn kept_text(cache: &Cache, key: &Key) -> Option<String> {
    String::from_utf8(cache.get(key)?).ok()
}

/// Makes a text an entry of the cache.
pub(crate) fn keep_text(cache: &Cache, key: &Key, text: &str) {
    // Where the cache cannot be written, the next build takes as long as this one.
    let _ = cache.put(key, text.as_bytes());
}

/// What PTX is made from.
fn key(module: &str, toolchain: &Toolchain, arch: Arch) -> Key {
    let (major, minor) = arch.ptx_version();
    let of_arch = format!("{} {major}.{minor}", arch.target_cpu());
    let key = Key::builder("module").add(&toolchain.version).add(of_arch).add(module);
    STEPS.iter().fold(key, |key, step| key.add(step)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(version: &str) -> Toolchain {
        // Tools that do not exist: whatever must be made anew is an error.
        Toolchain { channel: "a".into(), sysroot: "b".into(), llvm_bin: "none".into(), version: version.into() }
    }

    #[test]
    fn a_key_covers_module_tools_and_architecture() {
        let first = key("module", &toolchain("1"), Arch::Sm80);
        assert_eq!(first, key("module", &toolchain("1"), Arch::Sm80));
        assert_ne!(first, key("other", &toolchain("1"), Arch::Sm80));
        assert_ne!(first, key("module", &toolchain("2"), Arch::Sm80));
        assert_ne!(first, key("module", &toolchain("1"), Arch::Sm89));
    }

    #[test]
    fn kept_ptx_is_returned_for_its_module_alone() {
        let folder = std::env::temp_dir().join(format!("cuda_builder-lower-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let cache = Cache::new(folder.join("cache"), 1 << 20);
        let module = folder.join("k.ll");
        fs::write(&module, "; a module").unwrap();
        let before = lower(&toolchain("1"), Arch::Sm80, &module, &cache);
        keep_text(&cache, &key("; a module", &toolchain("1"), Arch::Sm80), "// kept");
        let kept = lower(&toolchain("1"), Arch::Sm80, &module, &cache);
        fs::write(&module, "; another module").unwrap();
        let of_another = lower(&toolchain("1"), Arch::Sm80, &module, &cache);
        fs::remove_dir_all(&folder).unwrap();
        assert!(before.is_err() && of_another.is_err());
        assert_eq!(kept.unwrap(), "// kept");
    }
}
