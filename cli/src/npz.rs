//! Reading NPZ files: ZIP archives of NPY files, as `numpy.savez` and `scipy.sparse.save_npz` write them, compressed or
//! not.

use std::io::{Cursor, Read};

use zip::ZipArchive;
use zip::result::ZipError;

use crate::npy::{self, NpyError};
use crate::tensor::Tensor;

/// Why an NPZ file, or a member of it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpzError {
    /// Not a ZIP archive, or a damaged one.
    #[error("not a readable NPZ file: {0}")]
    Zip(#[from] ZipError),
    /// The data of a member cannot be unpacked.
    #[error("member '{member}' is damaged: {source}")]
    Unpack {
        /// The member.
        member: String,
        /// What is wrong.
        source: std::io::Error,
    },
    /// A member is not the NPY file that it ought to be.
    #[error("member '{member}': {source}")]
    Npy {
        /// The member.
        member: String,
        /// What is wrong.
        source: NpyError,
    },
}

/// An open archive.
pub(crate) struct Npz {
    archive: ZipArchive<Cursor<Vec<u8>>>,
}

impl Npz {
    /// Reads the directory of an archive.
    pub(crate) fn new(bytes: Vec<u8>) -> Result<Npz, NpzError> {
        Ok(Npz { archive: ZipArchive::new(Cursor::new(bytes))? })
    }

    /// The names of the arrays, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.archive.file_names().filter_map(|name| name.strip_suffix(".npy")).collect();
        names.sort_unstable();
        names
    }

    /// The array of floats of this name; `None` where there is none.
    pub(crate) fn floats(&mut self, name: &str) -> Result<Option<Tensor>, NpzError> {
        self.read(name, npy::decode)
    }

    /// The integers of the array of this name, in C order; `None` where there is none.
    pub(crate) fn integers(&mut self, name: &str) -> Result<Option<Vec<i64>>, NpzError> {
        self.read(name, npy::decode_integers)
    }

    /// The text of this name; `None` where there is none.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, NpzError> {
        self.read(name, npy::decode_text)
    }

    fn read<T>(
        &mut self,
        name: &str,
        decode: impl FnOnce(&[u8]) -> Result<T, NpyError>,
    ) -> Result<Option<T>, NpzError> {
        let mut file = match self.archive.by_name(&format!("{name}.npy")) {
            Ok(file) => file,
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let member = || name.to_owned();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| NpzError::Unpack { member: member(), source })?;
        decode(&bytes).map(Some).map_err(|source| NpzError::Npy { member: member(), source })
    }
}
