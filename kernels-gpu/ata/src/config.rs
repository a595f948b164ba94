//! A configuration as a type: what the functions of a kernel are generic over.

use variants::ata::{ATA, AtaConfig};

/// A configuration. Kernels read its numbers in constants.
pub trait Configuration {
    /// The configuration.
    const CONFIG: AtaConfig;
}

/// Configuration `ID` of [`ATA`].
pub(crate) enum OfTable<const ID: usize> {}

impl<const ID: usize> Configuration for OfTable<ID> {
    const CONFIG: AtaConfig = ATA[ID];
}
