//! `cargo xtask tools`.

use std::process::Command;

use anyhow::{Context, Result};
use cuda_builder::ptxas::Ptxas;

use crate::workspace::{root, run as run_command};

/// NVIDIA's packages on PyPI, each of which holds one program. What they depend on is of no use here.
const PACKAGES: [&str; 3] =
    ["nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-nvdisasm==13.5.37", "nvidia-cuda-cuobjdump==13.5.37"];

/// Makes the virtual environment `.cuda-tools` with ptxas, nvdisasm and cuobjdump in it.
pub(crate) fn run() -> Result<()> {
    let folder = root().join(".cuda-tools");
    let python = folder.join("bin/python3");
    if !python.is_file() {
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]).args(PACKAGES);
    run_command(&mut pip)?;
    let ptxas = Ptxas::find(root()).context("the packages hold no ptxas")?;
    println!("{}", ptxas.path().display());
    Ok(())
}
