//! Files of several arrays: NPZ, which are ZIP archives of NPY files as `numpy.savez` and `scipy.sparse.save_npz` write
//! them, compressed or not; and safetensors.
//!
//! A few bytes of an archive may stand for a thousand times as many. So the caller gets the shape of an array before
//! its data, and judges it. Then no more is unpacked than the shape needs. Nothing is unpacked where the directory of
//! the archive has another size than the shape.

use std::fs::File;
use std::io::{self, BufReader};

use zip::ZipArchive;
use zip::read::ZipFile;
use zip::result::ZipError;

use crate::files::input::{FileError, Origin, SafetensorsFile, is_safetensors};
use crate::files::npy::{NpyError, NpyReader, Opaque};
use crate::files::tensor::{Elements, Tensor};

/// Why an archive, or a member of it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    /// The operating system does not let the file be read, or it is not a safetensors file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a ZIP archive, or a damaged one.
    #[error("{origin}: not a readable NPZ file: {source}")]
    Zip {
        /// What the archive is, and where.
        origin: Origin,
        /// What is wrong with it.
        source: ZipError,
    },
    /// A member is not the NPY file that it ought to be, or cannot be unpacked.
    #[error("{origin}: member '{member}': {source}")]
    Npy {
        /// What the archive is, and where.
        origin: Origin,
        /// The member.
        member: String,
        /// What is wrong.
        source: NpyError,
    },
    /// Floats where integers are expected.
    #[error("{origin}: member '{member}' has elements of type {dtype}, expected integers")]
    NotIntegers {
        /// What the archive is, and where.
        origin: Origin,
        /// The member.
        member: &'static str,
        /// The type of its elements.
        dtype: &'static str,
    },
}

/// An open archive.
pub(crate) struct Archive {
    origin: Origin,
    kind: Format,
}

enum Format {
    Npz(ZipArchive<BufReader<File>>),
    Safetensors(SafetensorsFile),
}

/// A member of an NPZ file.
type Member<'a> = NpyReader<ZipFile<'a, BufReader<File>>>;

impl Archive {
    /// Reads the directory of an archive.
    pub(crate) fn open(origin: Origin) -> Result<Archive, ArchiveError> {
        if is_safetensors(&origin.path) {
            let kind = Format::Safetensors(SafetensorsFile::read(&origin)?);
            return Ok(Archive { origin, kind });
        }
        let cannot_read = |source: io::Error| FileError::Read { origin: origin.clone(), source };
        let file = File::open(&origin.path).map_err(cannot_read)?;
        match ZipArchive::new(BufReader::new(file)) {
            Ok(archive) => Ok(Archive { origin, kind: Format::Npz(archive) }),
            Err(source) => Err(ArchiveError::Zip { origin, source }),
        }
    }

    /// The names of the arrays, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>, ArchiveError> {
        match &self.kind {
            Format::Npz(archive) => {
                let names = archive.file_names().filter_map(|name| name.strip_suffix(".npy"));
                let mut names: Vec<String> = names.map(str::to_owned).collect();
                names.sort_unstable();
                Ok(names)
            }
            Format::Safetensors(file) => Ok(file.names(&self.origin)?),
        }
    }

    /// The shape of the array of this name; `None` where there is none.
    pub(crate) fn shape(&mut self, name: &str) -> Result<Option<Vec<usize>>, ArchiveError> {
        if let Format::Npz(_) = self.kind {
            return self.member(name, |member| Ok(member.shape().to_vec()));
        }
        Ok(self.tensor(name)?.map(|tensor| tensor.shape))
    }

    /// The array of this name; `None` where there is none.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<Option<Tensor>, ArchiveError> {
        let Format::Safetensors(file) = &self.kind else {
            return self.member(name, |member| member.tensor(Opaque::REFUSED));
        };
        let present = file.names(&self.origin)?.iter().any(|present| present == name);
        Ok(present.then(|| file.named(&self.origin, name)).transpose()?)
    }

    /// The integers of the array of this name, in C order; `None` where there is none, or it has more than `most`.
    pub(crate) fn integers(&mut self, name: &'static str, most: usize) -> Result<Option<Vec<i64>>, ArchiveError> {
        let elements = |shape: &[usize]| shape.iter().fold(1usize, |elements, &size| elements.saturating_mul(size));
        if self.shape(name)?.is_none_or(|shape| elements(&shape) > most) {
            return Ok(None);
        }
        match self.tensor(name)?.map(|tensor| tensor.elements) {
            Some(Elements::Integers(_, values)) => Ok(Some(values.into_iter().map(|value| value as i64).collect())),
            Some(others) => {
                let (origin, dtype) = (self.origin.clone(), others.dtype_name());
                Err(ArchiveError::NotIntegers { origin, member: name, dtype })
            }
            None => Ok(None),
        }
    }

    /// The text of this name; `None` where there is none.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ArchiveError> {
        match self.kind {
            Format::Npz(_) => self.member(name, |member| member.text()),
            Format::Safetensors(_) => Ok(None),
        }
    }

    /// What `read` makes of the member of this name of an NPZ file; `None` where there is none.
    fn member<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Member<'_>) -> Result<T, NpyError>,
    ) -> Result<Option<T>, ArchiveError> {
        let Format::Npz(archive) = &mut self.kind else { return Ok(None) };
        let file = match archive.by_name(&format!("{name}.npy")) {
            Ok(file) => file,
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(source) => return Err(ArchiveError::Zip { origin: self.origin.clone(), source }),
        };
        let bytes = file.size();
        let result = NpyReader::open(file, Some(bytes)).and_then(read);
        let wrong = |source| ArchiveError::Npy { origin: self.origin.clone(), member: name.to_owned(), source };
        result.map(Some).map_err(wrong)
    }
}
