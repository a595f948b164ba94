//! From a device crate to PTX.
//!
//! cargo compiles the crate in a target folder of its own, `<target>/cuda-builder/<arch>`, so that device and host
//! builds do not wait for each other and both are incremental. Three choices shape the module:
//!
//! - `-Cno-prepopulate-passes`: rustc leaves the LLVM module unoptimised, so that the marks come before the first pass
//!   that could move an instruction they protect.
//! - crate type `staticlib` with fat LTO: one merged module, with neither a linker nor an optimiser run behind it.
//! - `-Zbuild-std=core`: rustup has no precompiled `core` for the target.
//!
//! `lower` then makes PTX of the module. Where the user's cache has the PTX of the same inputs, nothing is compiled.

use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use kernel_cache::{Cache, Key, KeyBuilder};
use layout::Arch;

use crate::error::{Error, UndefinedFunction};
use crate::inputs::Inputs;
use crate::lower::{STEPS, keep_text, kept_text, lower};
use crate::ptx::Module;
use crate::toolchain::{Toolchain, run};

/// rustc's name of the target.
const TARGET: &str = "nvptx64-nvidia-cuda";

/// The limit of the cache in a target folder, which takes the place of the user's.
const TARGET_CACHE_BYTES: u64 = 1 << 30;

/// Functions that the driver defines for device code.
const DRIVER_FUNCTIONS: [&str; 4] = ["vprintf", "malloc", "free", "__assertfail"];

/// Builds one device crate for one architecture.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CudaBuilder {
    path: PathBuf,
    arch: Arch,
    copy_to: Option<PathBuf>,
    line_tables: bool,
    cache: Option<Cache>,
}

impl CudaBuilder {
    /// Starts the build of the device crate at `path`, which is relative to the current directory or to the root of its
    /// workspace.
    pub fn new(path: impl Into<PathBuf>) -> CudaBuilder {
        CudaBuilder { path: path.into(), arch: Arch::Sm80, copy_to: None, line_tables: true, cache: None }
    }

    /// Sets the architecture; the default is the oldest, `sm_80`.
    pub fn arch(mut self, arch: Arch) -> CudaBuilder {
        self.arch = arch;
        self
    }

    /// Copies the PTX to a file.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> CudaBuilder {
        self.copy_to = Some(path.into());
        self
    }

    /// Sets whether the PTX names the source line of each instruction (`.file` and `.loc`). For instructions of `core`
    /// and `cuda_std` this is the line of the call. The default is yes; instructions are the same either way.
    pub fn line_tables(mut self, line_tables: bool) -> CudaBuilder {
        self.line_tables = line_tables;
        self
    }

    /// Sets where PTX is kept between builds. The default is the user's cache ([`Cache::of_user`]), or where there is
    /// none a cache in the target folder.
    pub fn cache(mut self, cache: Cache) -> CudaBuilder {
        self.cache = Some(cache);
        self
    }

    /// Builds the crate, or takes the PTX of an earlier build with the same inputs from the cache.
    ///
    /// # Errors
    /// [`Error::Compile`] holds what rustc printed; the other errors name what is missing or malformed, and the cure.
    pub fn build(self) -> Result<Build, Error> {
        let folder = self.resolve_path()?;
        let name = package_name(&folder)?;
        let toolchain = Toolchain::find(&folder)?;
        let workspace = workspace_root(&toolchain, &folder)?;
        let target = device_target_folder(&target_folder(&workspace), &workspace);
        let cache = self.cache.clone().or_else(Cache::of_user);
        let cache = cache.unwrap_or_else(|| Cache::new(target.join("cache"), TARGET_CACHE_BYTES));
        let target = target.join(self.arch.target_cpu());
        fs::create_dir_all(&target).map_err(Error::io(&target))?;
        let job = Job { name, folder, workspace, target, toolchain, cache };

        let made = match job.inputs()? {
            Some(inputs) => self.make_once(&job, &inputs)?,
            None => {
                let _target = job.lock_target()?;
                self.make(&job)?
            }
        };
        let module = Module::parse(&made.ptx)?;
        let ptx_path = self.copy_to.unwrap_or_else(|| job.target.join(format!("{}.ptx", job.name)));
        if let Some(parent) = ptx_path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent))?;
        }
        fs::write(&ptx_path, &made.ptx).map_err(Error::io(&ptx_path))?;
        Ok(Build { ptx_path, ptx: made.ptx, module, messages: made.messages, sources: made.sources })
    }

    /// Makes the PTX, or takes it from the cache. Of several processes that want it at once, one makes it.
    fn make_once(&self, job: &Job, inputs: &Inputs) -> Result<Made, Error> {
        let key = self.key(job, inputs);
        let kept = || {
            let ptx = kept_text(&job.cache, &key)?;
            Some(Made { ptx, messages: String::new(), sources: inputs.files.clone() })
        };
        if let Some(kept) = kept() {
            return Ok(kept);
        }
        // A file system without locks costs time alone.
        let _lock = job.cache.lock(&key);
        if let Some(kept) = kept() {
            return Ok(kept);
        }
        let made = {
            let _target = job.lock_target()?;
            let record = job.target.join("sources");
            if inputs.may_look_unchanged(&record)? {
                job.forget_units()?;
            }
            inputs.record(&record)?;
            self.make(job)?
        };
        // Warnings are to be seen in every build.
        let is_kept = inputs.cover(&made.sources, &job.toolchain) && !has_warnings(&made.messages);
        // Somebody may have edited a source meanwhile.
        if is_kept && job.inputs()?.is_some_and(|now| self.key(job, &now) == key) {
            keep_text(&job.cache, &key, &made.ptx);
        }
        Ok(made)
    }

    /// What the PTX is made from.
    fn key(&self, job: &Job, inputs: &Inputs) -> Key {
        let key = self.settings(Key::builder("ptx")).add(&job.name).add(&job.toolchain.version);
        let own = [include_str!("builder.rs"), include_str!("inputs.rs")];
        let key = own.iter().chain(&STEPS).fold(key, |key, step| key.add(step));
        inputs.add_to(key).finish()
    }

    /// Adds what this builder is set to.
    fn settings(&self, key: KeyBuilder) -> KeyBuilder {
        let (major, minor) = self.arch.ptx_version();
        key.add(format!("{} {major}.{minor} {}", self.arch.target_cpu(), self.line_tables))
    }

    /// Makes the PTX. The caller has the target folder's lock.
    fn make(&self, job: &Job) -> Result<Made, Error> {
        let stem = if self.line_tables { job.name.clone() } else { format!("{}-nolines", job.name) };
        let raw_module = job.target.join(format!("{stem}.ll"));
        let messages = self.compile(job, &raw_module)?;
        let ptx = lower(&job.toolchain, self.arch, &raw_module, &job.cache)?;
        refuse_undefined(&Module::parse(&ptx)?, &job.name, self.arch)?;
        Ok(Made { ptx, messages, sources: job.sources()? })
    }

    fn resolve_path(&self) -> Result<PathBuf, Error> {
        let absolute = std::path::absolute(&self.path).map_err(Error::io(&self.path))?;
        let current = std::env::current_dir().map_err(Error::io("."))?;
        let mut candidates = vec![absolute.clone()];
        candidates.extend(current.ancestors().skip(1).map(|ancestor| ancestor.join(&self.path)));
        let found = candidates.into_iter().find(|folder| folder.join("Cargo.toml").is_file());
        found.ok_or(Error::NoCrate { path: absolute })
    }

    /// Has cargo write the merged, unoptimised module; returns what it printed.
    fn compile(&self, job: &Job, raw_module: &Path) -> Result<String, Error> {
        if job.dep_info().is_file() && !raw_module.is_file() {
            // cargo does not know of the module, so it would not write it anew.
            job.forget_units()?;
        }
        let flags = format!("-Ctarget-cpu={}\x1f-Cno-prepopulate-passes", self.arch);
        let debug = if self.line_tables { "line-tables-only" } else { "none" };
        let mut cargo = job.toolchain.cargo();
        cargo
            .current_dir(&job.folder)
            .env("CARGO_ENCODED_RUSTFLAGS", flags)
            .args([
                "rustc",
                "--lib",
                "--crate-type",
                "staticlib",
                "--release",
                "--target",
                TARGET,
                "-Zbuild-std=core",
                "-Ztrim-paths",
            ])
            .args(["--color", if std::io::stderr().is_terminal() { "always" } else { "never" }])
            .arg("--target-dir")
            .arg(&job.target);
        for setting in [
            "lto=\"fat\"",
            "codegen-units=1",
            "opt-level=3",
            "incremental=false",
            "debug-assertions=false",
            "overflow-checks=false",
            // No path of this machine belongs in the PTX.
            "trim-paths=\"all\"",
            &format!("debug=\"{debug}\""),
        ] {
            cargo.arg("--config").arg(format!("profile.release.{setting}"));
        }
        cargo.arg("--").arg(format!("--emit=llvm-ir={}", raw_module.display()));
        let output = cargo.output().map_err(Error::io(cargo.get_program()))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            Err(Error::Compile { name: job.name.clone(), arch: self.arch, output: text })
        }
    }
}

/// The crates that `-Zbuild-std=core` compiles, by the names of their folders.
const OF_TOOLCHAIN: [&str; 3] = ["compiler_builtins", "core", "rustc-std-workspace-core"];

/// Removes what is in a folder, which need not exist, but for these names.
fn remove_all_but(folder: &Path, is_kept: impl Fn(&str) -> bool) -> Result<(), Error> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io(folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(Error::io(folder))?;
        if is_kept(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = entry.path();
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(Error::io(&path))?;
    }
    Ok(())
}

/// What is built, where, and with what.
struct Job {
    name: String,
    /// The folder of the crate.
    folder: PathBuf,
    /// The root of its workspace.
    workspace: PathBuf,
    /// The target folder of the architecture.
    target: PathBuf,
    toolchain: Toolchain,
    cache: Cache,
}

impl Job {
    fn inputs(&self) -> Result<Option<Inputs>, Error> {
        Inputs::find(&self.toolchain, &self.name, &self.folder, &self.workspace, TARGET)
    }

    /// Locks the target folder, in which two build scripts may want a crate at once, until the file is dropped.
    fn lock_target(&self) -> Result<File, Error> {
        let path = self.target.join(".build-lock");
        let lock = File::create(&path).map_err(Error::io(&path))?;
        lock.lock().map_err(Error::io(&path))?;
        Ok(lock)
    }

    /// Has cargo compile everything anew but the toolchain's own crates, whose sources do not change. The caller has
    /// the target folder's lock.
    fn forget_units(&self) -> Result<(), Error> {
        let built = self.target.join(TARGET).join("release");
        let units = built.join("build");
        remove_all_but(&built, |name| name == "build" || name.starts_with(".cargo-"))?;
        remove_all_but(&units, |name| OF_TOOLCHAIN.contains(&name))
    }

    /// Where cargo lists the sources of the crate and of its path dependencies.
    fn dep_info(&self) -> PathBuf {
        self.target.join(TARGET).join("release").join(format!("lib{}.d", self.name.replace('-', "_")))
    }

    /// The files that the PTX depends on: what cargo's dep-info names, the manifests, the lock file and the toolchain
    /// file.
    fn sources(&self) -> Result<Vec<PathBuf>, Error> {
        let dep_info = self.dep_info();
        let text = fs::read_to_string(&dep_info).map_err(Error::io(&dep_info))?;
        let mut sources = parse_dep_info(&text);
        for source in sources.clone() {
            let manifests = source.ancestors().map(|ancestor| ancestor.join("Cargo.toml"));
            sources.extend(manifests.filter(|manifest| manifest.is_file()).take(1));
        }
        sources.push(self.folder.join("Cargo.toml"));
        sources.extend(["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"].map(|file| self.workspace.join(file)));
        sources.retain(|file| file.is_file());
        sources.sort();
        sources.dedup();
        Ok(sources)
    }
}

/// What a build gives before its PTX is looked at.
struct Made {
    ptx: String,
    messages: String,
    sources: Vec<PathBuf>,
}

/// The PTX of one device crate for one architecture.
#[derive(Debug, Clone)]
pub struct Build {
    ptx_path: PathBuf,
    ptx: String,
    module: Module,
    messages: String,
    sources: Vec<PathBuf>,
}

impl Build {
    /// The file that holds the PTX: that of `copy_to`, if it was given.
    pub fn ptx_path(&self) -> &Path {
        &self.ptx_path
    }

    /// The PTX.
    pub fn ptx(&self) -> &str {
        &self.ptx
    }

    /// The PTX as the reader sees it.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// What cargo and rustc printed, warnings among it. Nothing where the PTX came from the cache; that of a crate with
    /// warnings never does.
    pub fn messages(&self) -> &str {
        &self.messages
    }

    /// Whether warnings are among the messages.
    pub fn has_warnings(&self) -> bool {
        has_warnings(&self.messages)
    }

    /// In a build script: has cargo run it again when a source file of the crate or of a path dependency changes.
    pub fn emit_rerun(&self) {
        for source in &self.sources {
            println!("cargo::rerun-if-changed={}", source.display());
        }
    }
}

/// The name in the `[package]` section of a crate's manifest.
fn package_name(folder: &Path) -> Result<String, Error> {
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(Error::io(&manifest))?;
    let section = text.split("[package]").nth(1).unwrap_or_default();
    let name = section.lines().find_map(|line| line.trim().strip_prefix("name")?.trim_start().strip_prefix('='));
    let name = name.and_then(|value| value.trim().strip_prefix('"')?.split('"').next());
    name.map(str::to_owned).ok_or_else(|| {
        Error::io(manifest)(std::io::Error::new(std::io::ErrorKind::InvalidData, "the manifest names no package"))
    })
}

fn workspace_root(toolchain: &Toolchain, folder: &Path) -> Result<PathBuf, Error> {
    let mut cargo = toolchain.cargo();
    cargo.current_dir(folder).args(["locate-project", "--workspace", "--message-format", "plain"]);
    let manifest = PathBuf::from(String::from_utf8_lossy(&run(&mut cargo)?.stdout).trim());
    Ok(manifest.parent().unwrap_or(folder).to_owned())
}

/// The target folder of the calling build: that of the build script that runs, else what `CARGO_TARGET_DIR` says, else
/// the workspace's own.
fn target_folder(workspace: &Path) -> PathBuf {
    let of_build_script = std::env::var_os("OUT_DIR").and_then(|out| {
        let out = PathBuf::from(out);
        out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).map(Path::to_owned)
    });
    let named = || std::env::var_os("CARGO_TARGET_DIR").and_then(|folder| std::path::absolute(folder).ok());
    of_build_script.or_else(named).unwrap_or_else(|| workspace.join("target"))
}

/// The folder of device builds in a target folder. cargo names its units by paths within the workspace, so workspaces
/// that share a target folder need folders of their own there.
fn device_target_folder(target: &Path, workspace: &Path) -> PathBuf {
    let folder = target.join("cuda-builder");
    if target.starts_with(workspace) {
        return folder;
    }
    let key = Key::builder("workspace").add(workspace.as_os_str().as_encoded_bytes()).finish();
    folder.join(&key.to_string()[.."workspace-".len() + 8])
}

/// Whether warnings are among what cargo printed. Colours stand between the word and its colon.
fn has_warnings(messages: &str) -> bool {
    messages.contains("warning")
}

/// The prerequisites in a dep-info file, `target: file file`, where a space within a name is escaped.
fn parse_dep_info(text: &str) -> Vec<PathBuf> {
    let (_, list) = text.split_once(": ").unwrap_or_default();
    let escaped = list.lines().next().unwrap_or_default().replace("\\ ", "\0");
    escaped.split_whitespace().map(|file| PathBuf::from(file.replace('\0', " "))).collect()
}

/// No function is called that neither the module nor the driver defines.
fn refuse_undefined(module: &Module, name: &str, arch: Arch) -> Result<(), Error> {
    let is_undefined = |function: &&String| !DRIVER_FUNCTIONS.contains(&function.as_str());
    let undefined = |function: &String| UndefinedFunction {
        function: function.clone(),
        kernels: module.kernels_that_call(function).into_iter().map(str::to_owned).collect(),
    };
    let functions: Vec<_> = module.extern_functions.iter().filter(is_undefined).map(undefined).collect();
    if functions.is_empty() { Ok(()) } else { Err(Error::Undefined { name: name.to_owned(), arch, functions }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_with_spaces_is_read() {
        assert_eq!(parse_dep_info("/t/lib.a: /a/b.rs /c\\ d/e.rs\n"), [Path::new("/a/b.rs"), Path::new("/c d/e.rs")]);
    }

    #[test]
    fn workspaces_that_share_a_target_folder_are_apart_in_it() {
        let folder = |target: &str, workspace: &str| device_target_folder(Path::new(target), Path::new(workspace));
        assert_eq!(folder("/a/target", "/a"), Path::new("/a/target/cuda-builder"));
        let [a, b] = ["/a", "/b"].map(|workspace| folder("/target", workspace));
        assert!(a != b && a.parent() == Some(Path::new("/target/cuda-builder")), "{}", a.display());
    }

    #[test]
    fn a_key_covers_the_settings() {
        let key = |builder: CudaBuilder| builder.settings(Key::builder("ptx")).finish();
        let builder = || CudaBuilder::new("crate");
        assert_eq!(key(builder()), key(builder().copy_to("file")));
        assert_ne!(key(builder()), key(builder().arch(Arch::Sm89)));
        assert_ne!(key(builder()), key(builder().line_tables(false)));
    }

    #[test]
    fn a_path_without_a_crate_is_named() {
        let error = CudaBuilder::new("no/such/crate").build().unwrap_err().to_string();
        assert!(error.contains("no/such/crate is not a crate"), "{error}");
    }

    #[test]
    fn a_panic_left_in_a_kernel_is_refused_by_name() {
        let refuse = |called: &str| {
            let text = format!(
                ".version 8.0\n.target sm_80\n.func {called}()\n.noreturn;\n.visible .entry first() {{ ret; }}\n\
                 .visible .entry second() {{ call.uni {called}, (); ret; }}\n"
            );
            refuse_undefined(&Module::parse(&text).unwrap(), "device", Arch::Sm80)
        };
        refuse(DRIVER_FUNCTIONS[0]).unwrap();
        let error = refuse("panic_bounds_check").unwrap_err();
        assert!(matches!(&error, Error::Undefined { functions, .. } if functions[0].kernels == ["second"]), "{error}");
        assert!(error.to_string().contains("panic_bounds_check in second;"), "{error}");
    }
}
