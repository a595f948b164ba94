//! Results as JSON, which `--json` prints. `docs/json.md` has every field; a test holds it against what is printed.
//!
//! JSON alone is on stdout then. What was understood, notes and errors stay lines of text on stderr. Where a tensor
//! goes to stdout, the result goes to stderr.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use serde::Serialize;

use crate::files::output::OutputFile;
use crate::files::tensor::Tensor;

/// How a result is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JsonArgs {
    /// Print the result as JSON, alone on stdout (docs/json.md).
    #[arg(long)]
    json: bool,
}

impl JsonArgs {
    /// Text.
    #[cfg(test)]
    pub(crate) const TEXT: JsonArgs = JsonArgs { json: false };

    /// Whether JSON is to be printed.
    pub(crate) fn is_wanted(self) -> bool {
        self.json
    }

    /// Prints a result as JSON, or as the text that is made of it.
    pub(crate) fn print<T: Serialize>(self, result: &T, text: impl FnOnce(&T) -> String) -> io::Result<()> {
        self.print_to(io::stdout(), result, text)
    }

    /// The same beside outputs of the request: to stderr where one of them is stdout.
    pub(crate) fn print_beside<'a, T: Serialize>(
        self,
        outputs: impl IntoIterator<Item = &'a OutputFile>,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        if outputs.into_iter().any(OutputFile::is_stdout) {
            self.print_to(io::stderr(), result, text)
        } else {
            self.print(result, text)
        }
    }

    fn print_to<T: Serialize>(
        self,
        mut stream: impl Write,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        if self.json { write(stream, result) } else { stream.write_all(text(result).as_bytes()) }
    }
}

/// Prints a result as JSON. A number that is not finite is null.
pub(crate) fn print<T: Serialize>(result: &T) -> io::Result<()> {
    write(io::stdout(), result)
}

fn write<T: Serialize>(mut stream: impl Write, result: &T) -> io::Result<()> {
    writeln!(stream, "{}", serde_json::to_string_pretty(result)?)
}

/// Who computed a result, and how long it took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RunFacts {
    /// The device, by name.
    pub(crate) device: String,
    /// The kernels, as a plan names them; `None` for the reference on the CPU.
    pub(crate) kernel: Option<String>,
    /// From the request to the result in host memory: copies, and the loading of kernels, included.
    pub(crate) seconds: f64,
}

/// A tensor that was written to a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct WrittenTensor {
    path: String,
    dtype: &'static str,
    shape: Vec<usize>,
}

impl WrittenTensor {
    /// The tensor of the file at `path`, as the user wrote the path.
    pub(crate) fn new(path: &Path, tensor: &Tensor) -> WrittenTensor {
        let path = path.display().to_string();
        WrittenTensor { path, dtype: tensor.elements.dtype_name(), shape: tensor.shape.clone() }
    }
}
