//! From rustc's unoptimised LLVM module to PTX.
//!
//! `opt -O3` runs twice, as rustc's own two rounds (crate, then LTO) do: one run leaves the accumulator arrays of large
//! kernels in local memory.
//!
//! The passes take minutes for a large family, so the PTX of a module is kept in a cache. A change of a library that no
//! kernel of a family shows costs that family no passes.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use kernel_cache::{Cache, Key};
use layout::Arch;

use crate::compact::compact;
use crate::error::Error;
use crate::join::join;
use crate::lines::at_calls;
use crate::marks::mark;
use crate::split::split;
use crate::toolchain::{Toolchain, run};

/// The steps themselves: what they do to a module is part of what the PTX is made from.
pub(crate) const STEPS: [&str; 7] = [
    include_str!("compact.rs"),
    include_str!("join.rs"),
    include_str!("lines.rs"),
    include_str!("llvm_text.rs"),
    include_str!("lower.rs"),
    include_str!("marks.rs"),
    include_str!("split.rs"),
];

/// Marks the module and makes PTX of it, group by group, on all cores. Takes groups that it has made before from the
/// cache.
pub(crate) fn lower(toolchain: &Toolchain, arch: Arch, raw_module: &Path, cache: &Cache) -> Result<String, Error> {
    let module = fs::read_to_string(raw_module).map_err(Error::io(raw_module))?;
    let marked = mark(&module, arch)?;
    drop(module);
    let marked = at_calls(&marked);
    let groups = split(&marked);
    let passes = Passes { toolchain, arch, raw_module, cache };
    match join(&passes.lower_all(&groups)?) {
        Some(ptx) => Ok(ptx),
        None => passes.lower(&marked, "whole"),
    }
}

/// What the passes need beside a module.
struct Passes<'a> {
    toolchain: &'a Toolchain,
    arch: Arch,
    /// The file of the whole module, beside which those of the groups lie.
    raw_module: &'a Path,
    cache: &'a Cache,
}

impl Passes<'_> {
    fn lower_all(&self, groups: &[String]) -> Result<Vec<String>, Error> {
        let kernels = |text: &str, start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        let all: usize = groups.iter().map(|group| kernels(group, "define ptx_kernel ")).sum();
        let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(group) = groups.get(index) else { return Ok(done) };
                let ptx = self.lower(group, &index.to_string())?;
                let count = kernels(&ptx, ".visible .entry ");
                let finished = finished.fetch_add(count, Ordering::Relaxed) + count;
                // cargo shows what a build script prints with -vv.
                let family = self.raw_module.file_stem().unwrap_or_default().display();
                eprintln!("PTX {} {family}, {finished} of {all} kernels", self.arch);
                done.push((index, ptx));
            }
        };
        let workers = SLOTS.count().min(groups.len());
        let mut done = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let results = threads.into_iter().map(|thread| thread.join());
            let results = results.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            results.collect::<Result<Vec<_>, Error>>()
        })?
        .concat();
        done.sort_unstable_by_key(|(index, _)| *index);
        Ok(done.into_iter().map(|(_, ptx)| ptx).collect())
    }

    /// Makes PTX of a marked module, or takes it from the cache.
    fn lower(&self, module: &str, name: &str) -> Result<String, Error> {
        let key = key(module, self.toolchain, self.arch);
        if let Some(ptx) = kept_text(self.cache, &key) {
            return Ok(ptx);
        }
        let _slot = SLOTS.take();
        let file = |extension: &str| self.raw_module.with_extension(format!("{name}.{extension}"));
        let [marked, optimised, assembly] = ["ll", "bc", "s"].map(file);
        fs::write(&marked, module).map_err(Error::io(&marked))?;
        // Twice, as rustc does it (for the crate, then for the merged module), and with loops unrolled whatever the
        // size of their body: a loop over a register array that stays a loop leaves the array in local memory.
        run(self
            .toolchain
            .llvm_tool("opt")
            .args(["-passes=default<O3>,default<O3>", "-unroll-threshold=4000"])
            .arg(&marked)
            .arg("-o")
            .arg(&optimised))?;
        let (major, minor) = self.arch.ptx_version();
        run(self
            .toolchain
            .llvm_tool("llc")
            .arg("-O3")
            .arg(format!("-mcpu={}", self.arch))
            .arg(format!("-mattr=+ptx{major}{minor}"))
            // The chain of inlined calls would need a section of strings, and PTX 7.2.
            .arg("-line-info-inlined-at=false")
            .arg(&optimised)
            .arg("-o")
            .arg(&assembly))?;
        let ptx = compact(&fs::read_to_string(&assembly).map_err(Error::io(&assembly))?);
        for file in [marked, optimised, assembly] {
            fs::remove_file(&file).map_err(Error::io(&file))?;
        }
        keep_text(self.cache, &key, &ptx);
        Ok(ptx)
    }
}

/// How many tools run at once, in all builds of this process together.
static SLOTS: Slots = Slots { taken: Mutex::new(0), freed: Condvar::new() };

struct Slots {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A slot, which ends with the value.
struct Slot;

impl Slots {
    /// As many as there are cores.
    fn count(&self) -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// Waits for a slot.
    fn take(&self) -> Slot {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_while(taken, |taken| *taken >= self.count());
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *SLOTS.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        SLOTS.freed.notify_one();
    }
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
        let toolchain = toolchain("1");
        let passes =
            Passes { toolchain: &toolchain, arch: Arch::Sm80, raw_module: &folder.join("k.ll"), cache: &cache };
        let before = passes.lower("; a module", "0");
        keep_text(&cache, &key("; a module", &toolchain, Arch::Sm80), "// kept");
        let groups = ["; a module", "; another module"].map(String::from);
        let (kept, of_another) = (passes.lower_all(&groups[..1]), passes.lower_all(&groups));
        fs::remove_dir_all(&folder).unwrap();
        assert!(before.is_err() && of_another.is_err());
        assert_eq!(kept.unwrap(), ["// kept"]);
    }
}
