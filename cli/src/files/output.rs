//! Files that are written once the work has succeeded.
//!
//! A file is written under a temporary name beside its place, and gets its own name when it is complete. So a reader
//! never sees half of a file. The temporary file is always new: whatever stands under its name is neither opened nor
//! followed. An output that is a symbolic link stays a link, and its target is written. The path `-` is stdout, which
//! gets an NPY file.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::{Dtype as StoredDtype, View};
use tempfile::NamedTempFile;

use crate::files::input::{FileError, STANDARD_STREAM};
use crate::files::npy;
use crate::files::tensor::{Elements, Tensor};

/// Checks that a file can be at `path`: not a folder, and in one that exists.
pub(crate) fn check_place(path: &Path) -> Result<(), FileError> {
    let reason = match () {
        () if path.is_dir() => "is a folder",
        () if !folder(path).is_dir() => "its folder does not exist",
        () => return Ok(()),
    };
    Err(FileError::Output { path: path.to_owned(), reason })
}

/// A file to be written once the work has succeeded.
#[derive(Debug)]
pub(crate) struct OutputFile {
    /// Where it is: behind every symbolic link.
    path: PathBuf,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Npy,
    Safetensors,
    /// NPY, to stdout.
    Stdout,
}

impl OutputFile {
    /// Checks, before any work, that a tensor of type `dtype` can be written to `path`; touches nothing.
    pub(crate) fn plan(path: &Path, dtype: &str) -> Result<OutputFile, FileError> {
        let wrong = |reason| Err(FileError::Output { path: path.to_owned(), reason });
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            None if path == Path::new(STANDARD_STREAM) => Format::Stdout,
            Some("npy") => Format::Npy,
            Some("safetensors") => Format::Safetensors,
            _ => return wrong("the name of an output ends in .npy or .safetensors, or is - (stdout)"),
        };
        if format != Format::Safetensors && matches!(dtype, "bf16" | "e4m3") {
            return Err(FileError::NotInNpy { path: path.to_owned(), dtype: dtype.to_owned() });
        }
        if format == Format::Stdout {
            return Ok(OutputFile { path: path.to_owned(), format });
        }
        let Some(target) = target(path) else { return wrong("its symbolic links lead nowhere") };
        check_place(&target)?;
        Ok(OutputFile { path: target, format })
    }

    /// Refuses an output that would take the place of one of these inputs.
    pub(crate) fn check_inputs<'a>(&self, inputs: impl IntoIterator<Item = &'a Path>) -> Result<(), FileError> {
        let mut files = inputs.into_iter().filter(|input| *input != Path::new(STANDARD_STREAM));
        files.find(|input| self.replaces(input)).map_or(Ok(()), |input| {
            Err(FileError::Output { path: input.to_owned(), reason: "an input cannot be an output too" })
        })
    }

    /// Whether it would take the place of the file at `path`.
    pub(crate) fn replaces(&self, path: &Path) -> bool {
        let place = |path: &Path| Some((folder(path).canonicalize().ok()?, path.file_name()?.to_owned()));
        place(&self.path) == target(path).and_then(|path| place(&path))
    }

    /// Whether it is stdout.
    pub(crate) fn is_stdout(&self) -> bool {
        self.format == Format::Stdout
    }

    /// Writes the tensor, called `name` in a safetensors file, beside the final path.
    pub(crate) fn write(&self, name: &str, tensor: &Tensor) -> Result<Written<'_>, FileError> {
        let (dtype, data) = stored(&tensor.elements);
        let bytes = if self.format == Format::Safetensors {
            let stored = StoredTensor { dtype, shape: &tensor.shape, data };
            safetensors::serialize([(name, stored)], None)
                .map_err(|error| self.cannot_write(io::Error::other(error.to_string())))?
        } else {
            let descr = match dtype {
                StoredDtype::F16 => "<f2",
                StoredDtype::F32 => "<f4",
                StoredDtype::F64 => "<f8",
                StoredDtype::U8 => "|u1",
                _ => {
                    let dtype = tensor.elements.dtype_name().to_owned();
                    return Err(FileError::NotInNpy { path: self.path.clone(), dtype });
                }
            };
            npy::encode(descr, &tensor.shape, &data)
        };
        if self.is_stdout() {
            return Ok(Written { complete: Complete::Stdout(bytes), output: self });
        }
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(self.path.file_name().unwrap_or_default());
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        // Temporary files are for their owner alone unless it is said; the umask takes away what others may not have.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut part = builder.tempfile_in(folder(&self.path)).map_err(|error| self.cannot_write(error))?;
        part.write_all(&bytes).map_err(|error| self.cannot_write(error))?;
        Ok(Written { complete: Complete::File(part), output: self })
    }

    fn cannot_write(&self, source: io::Error) -> FileError {
        FileError::Write { path: self.path.clone(), source }
    }
}

/// A complete file under a temporary name; it is removed unless it is published.
#[derive(Debug)]
#[must_use = "the file is removed unless it is published"]
pub(crate) struct Written<'a> {
    complete: Complete,
    output: &'a OutputFile,
}

#[derive(Debug)]
enum Complete {
    File(NamedTempFile),
    Stdout(Vec<u8>),
}

impl Written<'_> {
    /// Gives the file its final name, or sends it to stdout.
    pub(crate) fn publish(self) -> Result<(), FileError> {
        let published = match self.complete {
            Complete::File(part) => part.persist(&self.output.path).map(drop).map_err(|error| error.error),
            Complete::Stdout(bytes) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&bytes).and_then(|()| stdout.flush())
            }
        };
        published.map_err(|error| self.output.cannot_write(error))
    }
}

/// What a path leads to through symbolic links, whether or not there is a file; `None` where they go round in circles.
fn target(path: &Path) -> Option<PathBuf> {
    // As many links as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=MOST_LINKS {
        let Ok(next) = fs::read_link(&path) else { return Some(path) };
        // A relative link starts where it lies.
        path = folder(&path).join(next);
    }
    None
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The type and the bytes of elements in a file.
fn stored(elements: &Elements) -> (StoredDtype, Vec<u8>) {
    match elements {
        Elements::F16(values) => (StoredDtype::F16, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::Bf16(values) => (StoredDtype::BF16, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::F32(values) => (StoredDtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Elements::Integers("u8", values) => (StoredDtype::U8, values.iter().map(|&value| value as u8).collect()),
        Elements::F64(values) | Elements::Integers(_, values) => {
            (StoredDtype::F64, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        Elements::E4m3(bits) => (StoredDtype::F8_E4M3, bits.clone()),
        Elements::Bool(values) => (StoredDtype::BOOL, values.iter().map(|&value| value.into()).collect()),
    }
}

struct StoredTensor<'a> {
    dtype: StoredDtype,
    shape: &'a [usize],
    data: Vec<u8>,
}

impl View for StoredTensor<'_> {
    fn dtype(&self) -> StoredDtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.data).into()
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use tempfile::TempDir;

    use super::*;
    use crate::files::input;
    use crate::files::npy::Opaque;

    fn tensor() -> Tensor {
        Tensor { shape: vec![2, 1], elements: Elements::Bf16(vec![bf16::ONE, bf16::NEG_ONE]) }
    }

    fn write(path: &Path) {
        OutputFile::plan(path, "bf16").unwrap().write("o", &tensor()).unwrap().publish().unwrap();
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.safetensors");
        write(&path);
        let read = input::read(&path, "q", Opaque::REFUSED).unwrap();
        assert_eq!(read.tensor, tensor());
        assert_eq!(names(&folder), ["o.safetensors"]);
    }

    #[test]
    fn an_unpublished_file_leaves_nothing_behind() {
        let folder = TempDir::new().unwrap();
        let output = OutputFile::plan(&folder.path().join("o.safetensors"), "bf16").unwrap();
        drop(output.write("o", &tensor()).unwrap());
        assert_eq!(names(&folder), [""; 0]);
    }

    #[test]
    fn impossible_outputs_are_refused_before_any_work() {
        let folder = TempDir::new().unwrap();
        let cases = [
            (folder.path().join("o.npy"), "bf16", "cannot hold bf16"),
            (folder.path().join("o"), "f16", "ends in .npy or .safetensors"),
            (folder.path().join("none/o.npy"), "f16", "folder does not exist"),
        ];
        for (path, dtype, reason) in cases {
            let error = OutputFile::plan(&path, dtype).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(names(&folder), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_their_targets_are_written() {
        use std::os::unix::fs::symlink;
        let folder = TempDir::new().unwrap();
        let [inside, outside] = [folder.path().join("inside"), folder.path().join("outside")];
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        // One link to another, which is relative and at first leads to no file.
        let (link, second) = (inside.join("o.safetensors"), outside.join("second.safetensors"));
        symlink(&second, &link).unwrap();
        symlink("target.safetensors", &second).unwrap();
        let target = outside.join("target.safetensors");
        for _ in 0..2 {
            write(&link);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert!(fs::symlink_metadata(&second).unwrap().is_symlink());
            assert!(fs::symlink_metadata(&target).unwrap().is_file());
        }
        for path in [&link, &second, &target] {
            assert!(OutputFile::plan(path, "bf16").unwrap().replaces(&target));
            assert!(OutputFile::plan(&target, "bf16").unwrap().replaces(path));
        }
        let circle = inside.join("circle.safetensors");
        symlink(&circle, &circle).unwrap();
        assert!(OutputFile::plan(&circle, "bf16").unwrap_err().to_string().contains("lead nowhere"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_has_the_permissions_of_any_other() {
        use std::os::unix::fs::PermissionsExt;
        let folder = TempDir::new().unwrap();
        let (path, other) = (folder.path().join("o.safetensors"), folder.path().join("other"));
        write(&path);
        fs::write(&other, b"").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&other));
    }
}
