//! The entries of ATA.

use ata::config::Configuration;
use ata::mainloop;
use cuda_std::kernel;
use variants::ata::{AtaArgs, AtaConfig};
use variants::study::{ATA_STUDY, ata_index};

use crate::wmma::Wmma;

/// Configuration `ID` of [`ATA_STUDY`].
enum OfTable<const ID: usize> {}

impl<const ID: usize> Configuration for OfTable<ID> {
    const CONFIG: AtaConfig = ATA_STUDY[ID];
}

/// The configuration called `name`.
const fn config(name: &str) -> &'static AtaConfig {
    &ATA_STUDY[ata_index(name)]
}

/// Declares the entry of a configuration by its unit. `entry!(NAME: Wmma);` becomes
///
/// ```ignore
/// #[kernel(max_threads = CONFIG.threads(), min_blocks = CONFIG.min_blocks)]
/// pub unsafe fn NAME(args: AtaArgs) {
///     mainloop::product::<Wmma, OfTable<{ ata_index("NAME") }>, WORDS, ROWS, VECTORS>(&args)
/// }
/// ```
///
/// A name that no configuration has does not compile.
macro_rules! entry {
    ($name:ident: $unit:ty) => {
        /// The kernel of the configuration of this name.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the configuration's; the addresses, strides and tiles of
        /// `args` describe tensors and stored pairs of its sizes and of the configuration's precision.
        #[kernel(max_threads = config(stringify!($name)).threads(), min_blocks = config(stringify!($name)).min_blocks)]
        pub unsafe fn $name(args: AtaArgs) {
            const CONFIG: &AtaConfig = config(stringify!($name));
            // SAFETY: the caller's contract is the body's.
            unsafe {
                mainloop::product::<
                    $unit,
                    OfTable<{ ata_index(stringify!($name)) }>,
                    { CONFIG.precision.cell_words() },
                    { CONFIG.pair_rows },
                    { CONFIG.vectors() },
                >(&args);
            }
        }
    };
}

entry!(ata_bf16_wmma_8x64x16: Wmma);
