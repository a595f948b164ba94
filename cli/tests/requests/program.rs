//! The program under test, folders for its files, and what is checked of every run.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A folder for one test, removed when the test passes.
pub(crate) struct Scratch {
    pub(crate) folder: PathBuf,
}

impl Scratch {
    /// An empty folder.
    pub(crate) fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("ferrotile-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scratch { folder }
    }

    /// A file of this name in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes an NPY file of this element type with each element the bytes of `element`.
    pub(crate) fn npy(&self, name: &str, descr: &str, shape: &[usize], element: &[u8]) -> PathBuf {
        self.npy_of(name, descr, shape, &element.repeat(shape.iter().product()))
    }

    /// Writes an NPY file of this data.
    pub(crate) fn npy_of(&self, name: &str, descr: &str, shape: &[usize], data: &[u8]) -> PathBuf {
        self.write(name, &npy(descr, shape, data))
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The names of the files in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

/// An NPY file as NumPy writes it.
pub(crate) fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}\n", sizes.trim_end());
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// That of f32 numbers.
pub(crate) fn f32s(shape: &[usize], values: &[f32]) -> Vec<u8> {
    npy("<f4", shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// A safetensors file of tensors: name, type, shape and data.
pub(crate) fn safetensors(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|&(name, dtype, shape, data)| {
        (name, TensorView::new(dtype, shape.to_vec(), data).expect("the data fills the shape"))
    });
    safetensors::serialize(views, None).unwrap()
}

/// What the program says on stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The program: the one that the environment names, as a bundle's script does, or the one that cargo built.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_ferrotile").unwrap_or_else(|| env!("CARGO_BIN_EXE_ferrotile").into()).into()
}

/// Runs the program.
pub(crate) fn ferrotile(args: &[&str]) -> Output {
    Command::new(program()).args(args).output().unwrap()
}

/// The one line on stderr of a request that is refused, which must name `reason`.
pub(crate) fn assert_refused(output: &Output, reason: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(reason), "'{reason}' is not in: {stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Checks that the program succeeded.
pub(crate) fn assert_succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
