//! PTX is taken from the cache where its inputs are the same, and never otherwise.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cuda_builder::{Build, Cache, CudaBuilder};

const KERNEL: &str = "#![cfg(target_arch = \"nvptx64\")]\n#![no_std]\n#![feature(abi_gpu_kernel)]\n\
    #[panic_handler]\nfn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }\n\
    #[unsafe(no_mangle)]\npub unsafe extern \"gpu-kernel\" fn store(to: *mut u32) {\n    unsafe { *to = part::VALUE };\n}\n";

/// A clone of a small workspace of a kernel and a library, and a cache.
struct Clone {
    folder: PathBuf,
    cache: Cache,
}

impl Clone {
    fn new(folder: &Path, cache: &Cache) -> Clone {
        let clone = Clone { folder: folder.to_owned(), cache: cache.clone() };
        let package = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
        clone.write("Cargo.toml", "[workspace]\nmembers = [\"kernel\", \"part\"]\nresolver = \"3\"\n");
        clone.write("kernel/Cargo.toml", &(package("kernel") + "[dependencies]\npart = { path = \"../part\" }\n"));
        clone.write("kernel/src/lib.rs", &KERNEL.replace("#[panic_handler]", "extern crate part;\n#[panic_handler]"));
        clone.write("part/Cargo.toml", &package("part"));
        clone.write("part/src/lib.rs", "#![no_std]\npub const VALUE: u32 = 7;\n");
        // The toolchain is that of this repository.
        let toolchain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rust-toolchain.toml");
        clone.write("rust-toolchain.toml", &fs::read_to_string(toolchain).unwrap());
        clone
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn build(&self) -> Build {
        self.build_crate("kernel")
    }

    fn build_crate(&self, name: &str) -> Build {
        let builder = CudaBuilder::new(self.folder.join(name)).cache(self.cache.clone());
        builder.build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes the library, which looks as if it came from an archive: older than any build.
    fn write_old_library(&self, value: u32) {
        self.write("part/src/lib.rs", &format!("#![no_std]\npub const VALUE: u32 = {value};\n"));
        let library = OpenOptions::new().append(true).open(self.folder.join("part/src/lib.rs")).unwrap();
        library.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    /// The PTX, which must come from the cache or must not.
    fn expect(&self, is_kept: bool, what: &str) -> String {
        let build = self.build();
        assert_eq!(build.messages().is_empty(), is_kept, "{what}: {}", build.messages());
        build.ptx().to_owned()
    }
}

#[test]
fn kept_ptx_is_that_of_the_same_inputs() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept");
    // What an earlier run left would be found.
    let _ = fs::remove_dir_all(&root);
    let cache = Cache::new(root.join("cache"), 1 << 24);
    let here = Clone::new(&root.join("here"), &cache);
    let there = Clone::new(&root.join("some/where else"), &cache);

    let first = here.expect(false, "nothing is kept");
    assert!(first.contains("\"./kernel/src/lib.rs\""), "{first}");
    assert_eq!(here.expect(true, "the same again"), first);
    assert_eq!(there.expect(true, "another clone"), first);

    there.write("part/src/lib.rs", "#![no_std]\npub const VALUE: u32 = 8;\n");
    let second = there.expect(false, "another value in the library");
    assert!(second.contains("], 8;") && first.contains("], 7;"), "{second}");
    there.write_old_library(9);
    let third = there.expect(false, "a value from an archive");
    assert!(third.contains("], 9;"), "{third}");
    there.write("part/src/lib.rs", "#![no_std]\n\npub const VALUE: u32 = 7;\n");
    there.expect(false, "another line");
    there.write("part/src/lib.rs", "#![no_std]\npub const VALUE: u32 = 7;\n");
    assert_eq!(there.expect(true, "as it was"), first);

    let manifest = fs::read_to_string(there.folder.join("Cargo.toml")).unwrap();
    there.write("Cargo.toml", &(manifest.clone() + "[workspace.dependencies]\nlibc = \"0.2\"\n"));
    assert_eq!(there.expect(true, "what no kernel takes"), first);
    there.write("Cargo.toml", &manifest);

    for entry in fs::read_dir(cache.folder()).unwrap().flatten().filter(|entry| entry.metadata().unwrap().len() > 0) {
        fs::write(entry.path(), "damage").unwrap();
    }
    assert_eq!(here.expect(false, "every entry is damaged"), first);
    assert_eq!(there.expect(true, "mended"), first);
}

#[test]
fn crates_of_a_workspace_share_a_target_folder() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shared");
    let _ = fs::remove_dir_all(&root);
    let clone = Clone::new(&root.join("here"), &Cache::new(root.join("cache"), 1 << 24));
    for file in ["Cargo.toml", "src/lib.rs"] {
        let text = fs::read_to_string(clone.folder.join("kernel").join(file)).unwrap();
        clone.write(&format!("second/{file}"), &text.replace("\"kernel\"", "\"second\""));
    }
    clone.write("Cargo.toml", "[workspace]\nmembers = [\"kernel\", \"part\", \"second\"]\nresolver = \"3\"\n");

    let compiles_core = |build: &Build| build.messages().contains("Compiling core");
    assert!(compiles_core(&clone.build()));
    assert!(!compiles_core(&clone.build_crate("second")), "what the first crate has compiled is there");
    // Both at once, and one of them has to start anew.
    for value in [8, 9] {
        clone.write_old_library(value);
        let [first, second] = std::thread::scope(|scope| {
            ["kernel", "second"]
                .map(|name| scope.spawn(|| clone.build_crate(name)))
                .map(|thread| thread.join().unwrap())
        });
        assert!([&first, &second].iter().all(|build| build.ptx().contains(&format!("], {value};"))));
        assert!(![&first, &second].into_iter().any(compiles_core), "the toolchain's sources have not changed");
    }
    crates_of_unknown_inputs_are_compiled_in_every_build(&clone);
}

/// In a target folder that is there, which saves the time of another `core`.
fn crates_of_unknown_inputs_are_compiled_in_every_build(clone: &Clone) {
    let library = "#![no_std]\npub const VALUE: u32 = ";
    for (what, source) in [
        ("the environment", "option_env!(\"FERROTILE_TEST\").is_some() as u32;\n"),
        ("a file elsewhere", "include_bytes!(\"../value\")[0] as u32;\n"),
        ("a warning", "{ let unused = 1; 7 };\n"),
    ] {
        clone.write("part/value", "7");
        clone.write("part/src/lib.rs", &format!("{library}{source}"));
        for _ in 0..2 {
            clone.expect(false, what);
        }
    }
    assert!(clone.build().has_warnings());
    clone.write("part/src/lib.rs", &format!("{library}7;\n"));
    clone.write("part/build.rs", "fn main() {}\n");
    clone.expect(false, "a build script");
    clone.expect(false, "a build script, again");
}
