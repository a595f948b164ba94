//! Tensors read from and written to files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ferrotile::{F8E4M3, Float};
use half::{bf16, f16};
use safetensors::{Dtype as StoredDtype, SafeTensorError, SafeTensors, View};

use crate::npy::{self, NpyError};

/// A tensor in C order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    /// The size of each dimension.
    pub(crate) shape: Vec<usize>,
    /// Its elements.
    pub(crate) elements: Elements,
}

/// The elements of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Elements {
    /// IEEE binary16.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE binary32.
    F32(Vec<f32>),
    /// IEEE binary64.
    F64(Vec<f64>),
    /// The bits of FP8 with four bits of exponent.
    E4m3(Vec<u8>),
}

/// Why a file could not be read or cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The operating system does not let the file be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// The operating system does not let the file be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Not a readable NPY file.
    #[error("{path}: {source}")]
    Npy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: NpyError,
    },
    /// Not a readable safetensors file.
    #[error("{path}: not a valid safetensors file: {reason}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: SafeTensorError,
    },
    /// A safetensors file without the tensor.
    #[error("{path}: no tensor is called '{tensor}'; it has: {present}")]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The tensor wanted.
        tensor: &'static str,
        /// The tensors in the file.
        present: String,
    },
    /// A safetensors file with a tensor of another type.
    #[error(
        "{path}: tensor '{tensor}' has elements of type {dtype:?}; expected F16 or BF16, or F32 or F64 with --dtype"
    )]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: &'static str,
        /// Its type.
        dtype: StoredDtype,
    },
    /// NPY has no bfloat16 and no FP8.
    #[error("{path}: NPY files cannot hold {dtype}; name the output *.safetensors")]
    NotInNpy {
        /// The file.
        path: PathBuf,
        /// The type of the elements.
        dtype: String,
    },
    /// Not a place for an output file.
    #[error("{path}: {reason}")]
    Output {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Elements {
    /// The name of the type, as `--dtype` and messages spell it.
    pub(crate) fn dtype_name(&self) -> &'static str {
        match self {
            Elements::F16(_) => "f16",
            Elements::Bf16(_) => "bf16",
            Elements::F32(_) => "f32",
            Elements::F64(_) => "f64",
            Elements::E4m3(_) => "e4m3",
        }
    }

    /// The elements in f64, which holds them all.
    pub(crate) fn into_f64(self) -> Vec<f64> {
        match self {
            Elements::F16(values) => values.into_iter().map(f64::from).collect(),
            Elements::Bf16(values) => values.into_iter().map(f64::from).collect(),
            Elements::F32(values) => values.into_iter().map(f64::from).collect(),
            Elements::F64(values) => values,
            Elements::E4m3(bits) => bits.into_iter().map(|bits| F8E4M3::from_bits(bits).to_f64()).collect(),
        }
    }

    /// The elements as the nearest f32; those beyond its range are infinite.
    pub(crate) fn into_f32(self) -> Vec<f32> {
        match self {
            Elements::F32(values) => values,
            others => others.into_f64().into_iter().map(|value| value as f32).collect(),
        }
    }

    fn stored(&self) -> (StoredDtype, Vec<u8>) {
        match self {
            Elements::F16(values) => (StoredDtype::F16, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::Bf16(values) => (StoredDtype::BF16, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::F32(values) => (StoredDtype::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::F64(values) => (StoredDtype::F64, values.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::E4m3(bits) => (StoredDtype::F8_E4M3, bits.clone()),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })
}

/// Reads an NPY file.
pub(crate) fn read_npy(path: &Path) -> Result<Tensor, FileError> {
    npy::decode(&read(path)?).map_err(|source| FileError::Npy { path: path.to_owned(), source })
}

/// Reads the numbers of an NPY file of integers.
pub(crate) fn read_npy_integers(path: &Path) -> Result<Vec<i64>, FileError> {
    npy::decode_integers(&read(path)?).map_err(|source| FileError::Npy { path: path.to_owned(), source })
}

/// Reads the named tensors of a safetensors file.
pub(crate) fn read_safetensors<const N: usize>(
    path: &Path,
    names: [&'static str; N],
) -> Result<[Tensor; N], FileError> {
    let bytes = read(path)?;
    let file =
        SafeTensors::deserialize(&bytes).map_err(|reason| FileError::Safetensors { path: path.to_owned(), reason })?;
    let mut tensors = Vec::with_capacity(N);
    for tensor in names {
        let view = file.tensor(tensor).map_err(|_| FileError::NoTensor {
            path: path.to_owned(),
            tensor,
            present: listed(file.names()),
        })?;
        let data = view.data();
        let elements = match view.dtype() {
            StoredDtype::F16 => Elements::F16(numbers(data, f16::from_le_bytes)),
            StoredDtype::BF16 => Elements::Bf16(numbers(data, bf16::from_le_bytes)),
            StoredDtype::F32 => Elements::F32(numbers(data, f32::from_le_bytes)),
            StoredDtype::F64 => Elements::F64(numbers(data, f64::from_le_bytes)),
            dtype => return Err(FileError::Dtype { path: path.to_owned(), tensor, dtype }),
        };
        tensors.push(Tensor { shape: view.shape().to_vec(), elements });
    }
    Ok(tensors.try_into().unwrap_or_else(|_| unreachable!("one tensor was pushed for each name")))
}

/// The first names in order, and how many there are besides: the file of a model has thousands.
fn listed(mut names: Vec<&str>) -> String {
    const SHOWN: usize = 8;
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let shown = names.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

fn numbers<T, const SIZE: usize>(data: &[u8], from_le_bytes: fn([u8; SIZE]) -> T) -> Vec<T> {
    data.as_chunks::<SIZE>().0.iter().map(|&bytes| from_le_bytes(bytes)).collect()
}

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
    path: PathBuf,
    safetensors: bool,
}

impl OutputFile {
    /// Checks, before any work, that a tensor of type `dtype` can be written to `path`; touches nothing.
    pub(crate) fn plan(path: &Path, dtype: &str) -> Result<OutputFile, FileError> {
        let wrong = |reason| Err(FileError::Output { path: path.to_owned(), reason });
        let safetensors = match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") if matches!(dtype, "bf16" | "e4m3") => {
                return Err(FileError::NotInNpy { path: path.to_owned(), dtype: dtype.to_owned() });
            }
            Some("npy") => false,
            Some("safetensors") => true,
            _ => return wrong("the name of an output ends in .npy or .safetensors"),
        };
        check_place(path)?;
        Ok(OutputFile { path: path.to_owned(), safetensors })
    }

    /// Whether it would take the place of the file at `path`.
    pub(crate) fn replaces(&self, path: &Path) -> bool {
        let place = |path: &Path| Some((folder(path).canonicalize().ok()?, path.file_name()?.to_owned()));
        place(&self.path) == place(path)
    }

    /// Writes the tensor, called `name` in a safetensors file, beside the final path: a reader never sees half a file.
    pub(crate) fn write(&self, name: &str, tensor: &Tensor) -> Result<Written<'_>, FileError> {
        let (dtype, data) = tensor.elements.stored();
        let bytes = if self.safetensors {
            let stored = StoredTensor { dtype, shape: &tensor.shape, data };
            safetensors::serialize([(name, stored)], None)
                .map_err(|reason| FileError::Safetensors { path: self.path.clone(), reason })?
        } else {
            let descr = match dtype {
                StoredDtype::F16 => "<f2",
                StoredDtype::F32 => "<f4",
                StoredDtype::F64 => "<f8",
                _ => {
                    let dtype = tensor.elements.dtype_name().to_owned();
                    return Err(FileError::NotInNpy { path: self.path.clone(), dtype });
                }
            };
            npy::encode(descr, &tensor.shape, &data)
        };
        let mut file_name = std::ffi::OsString::from(".");
        file_name.push(self.path.file_name().unwrap_or_default());
        file_name.push(format!(".{}.part", std::process::id()));
        let written = Written { part: folder(&self.path).join(file_name), path: &self.path };
        fs::write(&written.part, bytes)
            .map_err(|source| FileError::Write { path: written.part.clone(), source })
            .map(|()| written)
    }
}

/// A complete file under a temporary name; it is removed unless it is published.
#[derive(Debug)]
#[must_use = "the file is removed unless it is published"]
pub(crate) struct Written<'a> {
    part: PathBuf,
    path: &'a Path,
}

impl Written<'_> {
    /// Gives the file its final name.
    pub(crate) fn publish(self) -> Result<(), FileError> {
        fs::rename(&self.part, self.path).map_err(|source| FileError::Write { path: self.path.to_owned(), source })
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        // After `publish` there is nothing left under this name; a failure to remove leaves a file that says what it
        // is.
        let _ = fs::remove_file(&self.part);
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
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
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ferrotile-tensor-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn tensor() -> Tensor {
        Tensor { shape: vec![2, 1], elements: Elements::Bf16(vec![bf16::ONE, bf16::NEG_ONE]) }
    }

    #[test]
    fn safetensors_round_trip() {
        let folder = scratch("round-trip");
        let output = OutputFile::plan(&folder.join("o.safetensors"), "bf16").unwrap();
        output.write("o", &tensor()).unwrap().publish().unwrap();
        assert_eq!(read_safetensors(&folder.join("o.safetensors"), ["o"]).unwrap(), [tensor()]);
        let error = read_safetensors(&folder.join("o.safetensors"), ["q"]).unwrap_err().to_string();
        assert!(error.contains("no tensor is called 'q'; it has: o"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_model_with_many_tensors_is_not_listed_in_full() {
        assert_eq!(listed(vec!["b", "a"]), "a, b");
        let names: Vec<String> = (0..3000).map(|index| format!("{index:04}")).collect();
        let text = listed(names.iter().map(String::as_str).collect());
        assert!(text.starts_with("0000, 0001, ") && text.ends_with("0007 and 2992 more"), "{text}");
    }

    #[test]
    fn an_unpublished_file_leaves_nothing_behind() {
        let folder = scratch("unpublished");
        let output = OutputFile::plan(&folder.join("o.safetensors"), "bf16").unwrap();
        drop(output.write("o", &tensor()).unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn impossible_outputs_are_refused_before_any_work() {
        let folder = scratch("impossible");
        let cases = [
            (folder.join("o.npy"), "bf16", "cannot hold bf16"),
            (folder.join("o"), "f16", "ends in .npy or .safetensors"),
            (folder.join("none/o.npy"), "f16", "folder does not exist"),
        ];
        for (path, dtype, reason) in cases {
            let error = OutputFile::plan(&path, dtype).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }
}
