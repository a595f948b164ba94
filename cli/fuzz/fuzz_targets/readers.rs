//! The readers of the program, and what a fuzz target calls them with.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use files::convert::Converter;
use files::npy::Opaque;

/// The modules of the program that read files. A target imports them to where the program has them: `crate::files`.
#[allow(dead_code, unused_imports)]
#[path = "../../src/files"]
pub mod files {
    pub(crate) mod archive;
    pub(crate) mod convert;
    pub(crate) mod input;
    pub(crate) mod matrix;
    pub(crate) mod npy;
    pub(crate) mod tensor;
}

#[allow(dead_code)]
#[path = "../../src/memory.rs"]
pub mod memory;

thread_local! {
    /// The file of this process, which each input overwrites.
    static PATH: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Reads a file of these bytes whose name has this extension, as a tensor and as a matrix. Either is an error, or takes
/// no more memory than the size of the file lets one expect.
pub fn read(extension: &str, bytes: &[u8]) {
    let path = PATH.with_borrow_mut(|path| {
        let name = format!("ferrotile-fuzz-{}.{extension}", std::process::id());
        path.get_or_insert_with(|| std::env::temp_dir().join(name)).clone()
    });
    fs::write(&path, bytes).expect("there is room for temporary files");
    if extension != "npz" {
        let opaque = Opaque { dtype: Some("bf16"), offered: &["bf16"] };
        let _ = files::input::read(&path, "q", opaque);
    }
    let _ = files::matrix::read(&path, 0.0, &mut Converter::new(true, true));
}
