//! Tensors from NPY and safetensors files, by the name that a request has for them.
//!
//! `x.safetensors` gives the tensor that has the name of the option, or the only one; `x.safetensors:NAME` any other.
//! `-` is an NPY file on stdin.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as StoredDtype, SafeTensorError, SafeTensors};

use crate::files::npy::{NpyError, NpyReader, Opaque};
use crate::files::tensor::{Elements, Tensor};

/// The path of stdin among inputs, and of stdout among outputs.
pub(crate) const STANDARD_STREAM: &str = "-";

/// What stands between the path of a safetensors file and the name of a tensor in it.
const BEFORE_NAME: &str = ".safetensors:";

/// What a request calls a tensor, and the file that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The name.
    pub(crate) name: &'static str,
    /// The file, as the user wrote it.
    pub(crate) path: PathBuf,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.path.display())
    }
}

/// A tensor of a request.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    /// Its name and file.
    pub(crate) origin: Origin,
    /// What the file has.
    pub(crate) tensor: Tensor,
}

/// What the library says of sizes, with the tensors that have them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}: {tensors}")]
pub(crate) struct SizesError {
    reason: ferrotile::Error,
    tensors: String,
}

impl SizesError {
    /// `reason` where these tensors are at fault.
    pub(crate) fn new(reason: ferrotile::Error, tensors: String) -> SizesError {
        SizesError { reason, tensors }
    }
}

/// What tensors a request has, for an error: their names, shapes and files.
pub(crate) fn listed_shapes<'a>(inputs: impl IntoIterator<Item = &'a Input>) -> String {
    let one = |input: &Input| {
        let Origin { name, path } = &input.origin;
        format!("{name} is {:?} ({})", input.tensor.shape, path.display())
    };
    inputs.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Why a file could not be read or cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The operating system does not let the file be read.
    #[error("{origin}: {source}")]
    Read {
        /// Tensor and file.
        origin: Origin,
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
    #[error("{origin}: {source}")]
    Npy {
        /// Tensor and file.
        origin: Origin,
        /// What is wrong with it.
        source: NpyError,
    },
    /// Not a readable safetensors file.
    #[error("{origin}: not a valid safetensors file: {reason}")]
    Safetensors {
        /// Tensor and file.
        origin: Origin,
        /// What is wrong with it.
        reason: SafeTensorError,
    },
    /// A safetensors file without the tensor.
    #[error("{origin}: no tensor is called '{tensor}'; it has: {present} (name one: FILE.safetensors:NAME)")]
    NoTensor {
        /// Tensor and file.
        origin: Origin,
        /// The tensor wanted.
        tensor: String,
        /// The tensors in the file.
        present: String,
    },
    /// A safetensors file with a tensor of a type that is not read.
    #[error("{origin}: tensor '{tensor}' has elements of type {dtype:?}; expected floats, integers or bool")]
    Dtype {
        /// Tensor and file.
        origin: Origin,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: StoredDtype,
    },
    /// Numbers that are not a list of integers.
    #[error("{origin}: {dtype} elements of shape {shape:?}, expected integers of one dimension")]
    NotIntegers {
        /// Tensor and file.
        origin: Origin,
        /// The type of its elements.
        dtype: &'static str,
        /// Its shape.
        shape: Vec<usize>,
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

/// The file of an input: its path without the name of a tensor.
pub(crate) fn file_of(path: &Path) -> &Path {
    split(path).0
}

/// Whether the file of an input is a safetensors file.
pub(crate) fn is_safetensors(path: &Path) -> bool {
    file_of(path).extension().is_some_and(|extension| extension == "safetensors")
}

/// A path, and the name of a tensor behind it.
fn split(path: &Path) -> (&Path, Option<&str>) {
    let Some(text) = path.to_str() else { return (path, None) };
    let Some(at) = text.rfind(BEFORE_NAME) else { return (path, None) };
    let (file, name) = text.split_at(at + BEFORE_NAME.len());
    (Path::new(&file[..file.len() - 1]), Some(name))
}

/// Reads the tensor that a request calls `name`.
pub(crate) fn read(path: &Path, name: &'static str, opaque: Opaque) -> Result<Input, FileError> {
    let origin = Origin { name, path: path.to_owned() };
    let tensor =
        if is_safetensors(path) { SafetensorsFile::read(&origin)?.tensor(&origin)? } else { npy(&origin, opaque)? };
    Ok(Input { origin, tensor })
}

/// Reads a list of integers.
pub(crate) fn read_integers(path: &Path, name: &'static str) -> Result<Vec<i64>, FileError> {
    let Input { origin, tensor } = read(path, name, Opaque::REFUSED)?;
    match tensor {
        // Beyond 2^53 they are near enough to be refused.
        Tensor { shape, elements: Elements::Integers(_, values) } if shape.len() == 1 => {
            Ok(values.into_iter().map(|value| value as i64).collect())
        }
        Tensor { shape, elements } => Err(FileError::NotIntegers { origin, dtype: elements.dtype_name(), shape }),
    }
}

/// Reads tensors of one safetensors file, each by the name that a request has for it.
pub(crate) fn read_all<const N: usize>(path: &Path, names: [&'static str; N]) -> Result<[Input; N], FileError> {
    let origins = names.map(|name| Origin { name, path: path.to_owned() });
    let file = SafetensorsFile::read(&origins[0])?;
    let mut inputs = Vec::with_capacity(N);
    for origin in origins {
        let tensor = file.named(&origin, origin.name)?;
        inputs.push(Input { origin, tensor });
    }
    Ok(inputs.try_into().unwrap_or_else(|_| unreachable!("one tensor was pushed for each name")))
}

fn npy(origin: &Origin, opaque: Opaque) -> Result<Tensor, FileError> {
    let cannot_read = |source| FileError::Read { origin: origin.clone(), source };
    let (source, source_bytes): (Box<dyn Read>, _) = if origin.path == Path::new(STANDARD_STREAM) {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(&origin.path).map_err(cannot_read)?;
        let metadata = file.metadata().map_err(cannot_read)?;
        // A pipe does not know its length.
        (Box::new(BufReader::new(file)), metadata.is_file().then_some(metadata.len()))
    };
    NpyReader::open(source, source_bytes)
        .and_then(|reader| reader.tensor(opaque))
        .map_err(|source| FileError::Npy { origin: origin.clone(), source })
}

/// A safetensors file in memory.
pub(crate) struct SafetensorsFile {
    bytes: Vec<u8>,
}

impl SafetensorsFile {
    /// Reads the file that a tensor is from.
    pub(crate) fn read(origin: &Origin) -> Result<SafetensorsFile, FileError> {
        let bytes =
            fs::read(file_of(&origin.path)).map_err(|source| FileError::Read { origin: origin.clone(), source })?;
        let file = SafetensorsFile { bytes };
        file.open(origin)?;
        Ok(file)
    }

    fn open(&self, origin: &Origin) -> Result<SafeTensors<'_>, FileError> {
        SafeTensors::deserialize(&self.bytes)
            .map_err(|reason| FileError::Safetensors { origin: origin.clone(), reason })
    }

    /// The names of the tensors, in order.
    pub(crate) fn names(&self, origin: &Origin) -> Result<Vec<String>, FileError> {
        let mut names: Vec<String> = self.open(origin)?.names().into_iter().map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The tensor that the path names, or that has the name of the request in any case, or the only one.
    pub(crate) fn tensor(&self, origin: &Origin) -> Result<Tensor, FileError> {
        let names = self.names(origin)?;
        let of_request = names.iter().find(|name| name.eq_ignore_ascii_case(origin.name));
        let name = match (split(&origin.path).1, &names[..], of_request) {
            (Some(name), ..) => name,
            (None, [only], _) => only,
            (None, _, Some(name)) => name,
            (None, _, None) => origin.name,
        };
        self.named(origin, name)
    }

    /// The tensor of this name.
    pub(crate) fn named(&self, origin: &Origin, name: &str) -> Result<Tensor, FileError> {
        let file = self.open(origin)?;
        let view = file.tensor(name).map_err(|_| FileError::NoTensor {
            origin: origin.clone(),
            tensor: name.to_owned(),
            present: listed(file.names()),
        })?;
        let wrong = |dtype| FileError::Dtype { origin: origin.clone(), tensor: name.to_owned(), dtype };
        let elements = elements(&view).ok_or_else(|| wrong(view.dtype()))?;
        Ok(Tensor { shape: view.shape().to_vec(), elements })
    }
}

/// The elements of a tensor; `None` for those of a type that is not read.
fn elements(view: &TensorView<'_>) -> Option<Elements> {
    let data = view.data();
    Some(match view.dtype() {
        StoredDtype::F16 => Elements::F16(numbers(data, f16::from_le_bytes)),
        StoredDtype::BF16 => Elements::Bf16(numbers(data, bf16::from_le_bytes)),
        StoredDtype::F32 => Elements::F32(numbers(data, f32::from_le_bytes)),
        StoredDtype::F64 => Elements::F64(numbers(data, f64::from_le_bytes)),
        StoredDtype::F8_E4M3 => Elements::E4m3(data.to_vec()),
        StoredDtype::I8 => Elements::Integers("i8", numbers(data, |x| i8::from_le_bytes(x).into())),
        StoredDtype::I16 => Elements::Integers("i16", numbers(data, |x| i16::from_le_bytes(x).into())),
        StoredDtype::I32 => Elements::Integers("i32", numbers(data, |x| i32::from_le_bytes(x).into())),
        StoredDtype::I64 => Elements::Integers("i64", numbers(data, |x| i64::from_le_bytes(x) as f64)),
        StoredDtype::U8 => Elements::Integers("u8", numbers(data, |x| u8::from_le_bytes(x).into())),
        StoredDtype::U16 => Elements::Integers("u16", numbers(data, |x| u16::from_le_bytes(x).into())),
        StoredDtype::U32 => Elements::Integers("u32", numbers(data, |x| u32::from_le_bytes(x).into())),
        StoredDtype::U64 => Elements::Integers("u64", numbers(data, |x| u64::from_le_bytes(x) as f64)),
        StoredDtype::BOOL => Elements::Bool(numbers(data, |[byte]| byte != 0)),
        _ => return None,
    })
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

fn numbers<T, const SIZE: usize>(data: &[u8], from_le_bytes: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
    data.as_chunks::<SIZE>().0.iter().map(|&bytes| from_le_bytes(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_with_many_tensors_is_not_listed_in_full() {
        assert_eq!(listed(vec!["b", "a"]), "a, b");
        let names: Vec<String> = (0..3000).map(|index| format!("{index:04}")).collect();
        let text = listed(names.iter().map(String::as_str).collect());
        assert!(text.starts_with("0000, 0001, ") && text.ends_with("0007 and 2992 more"), "{text}");
    }

    #[test]
    fn a_path_may_name_a_tensor_of_its_file() {
        let cases = [
            ("a.npy", ("a.npy", None)),
            ("a.safetensors", ("a.safetensors", None)),
            ("b/a.safetensors:layers.0.q:k", ("b/a.safetensors", Some("layers.0.q:k"))),
            ("a.npy:x", ("a.npy:x", None)),
        ];
        for (path, (file, name)) in cases {
            assert_eq!(split(Path::new(path)), (Path::new(file), name));
        }
    }
}
