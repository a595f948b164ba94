//! The entries of attention, and what their kernels are made of.

use core::marker::PhantomData;

use attention::sm80::mainloop::{self, KernelTraits};
use attention::sm80::pv::{PvAccumulator, TensorCore};
use cuda_std::convert::{Bf16, F16};
use cuda_std::kernel;
use variants::attention::{AttentionArgs, AttentionConfig};
use variants::study::{ATTENTION_STUDY, attention_index};

use crate::multiply_add::MultiplyAdd;

/// The kernel of configuration `ID` of [`ATTENTION_STUDY`], which computes P V by `P`.
struct Configuration<const ID: usize, P>(PhantomData<P>);

impl<E, P, const ID: usize, const KEY_TILES: usize, const DIM_TILES: usize> KernelTraits<E, KEY_TILES, DIM_TILES>
    for Configuration<ID, P>
where
    P: PvAccumulator<E, KEY_TILES, DIM_TILES>,
{
    const CONFIG: AttentionConfig = ATTENTION_STUDY[ID];

    type Pv = P;
}

/// Declares the entry of a configuration by its element type and what computes P V.
/// `entry!(NAME: F16, tensor_core);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ATTENTION_STUDY[ID].threads(), min_blocks = ATTENTION_STUDY[ID].min_blocks())]
/// pub unsafe fn NAME(args: AttentionArgs) {
///     const ID: usize = attention_index("NAME");
///     mainloop::forward::<F16, Configuration<ID, TensorCore<F16, ..>>, ..>(&args)
/// }
/// ```
///
/// A name that no configuration has does not compile, nor do parts that are not the configuration's.
macro_rules! entry {
    ($name:ident: $element:ident, tensor_core) => {
        entry!(@ $name $element TensorCore<$element, { mainloop::dim_tiles(&CONFIG) }>);
    };
    ($name:ident: $element:ident, multiply_add) => {
        entry!(@ $name $element MultiplyAdd<$element, ID>);
    };
    (@ $name:ident $element:ident $pv:ty) => {
        /// The kernel of the configuration of this name.
        ///
        /// # Safety
        /// The grid, block and dynamic shared memory are the configuration's; the addresses and strides of `args`
        /// describe tensors of its lengths.
        #[kernel(
            max_threads = ATTENTION_STUDY[attention_index(stringify!($name))].threads(),
            min_blocks = ATTENTION_STUDY[attention_index(stringify!($name))].min_blocks()
        )]
        pub unsafe fn $name(args: AttentionArgs) {
            const ID: usize = attention_index(stringify!($name));
            const CONFIG: AttentionConfig = ATTENTION_STUDY[ID];
            // SAFETY: the caller's contract is the body's.
            unsafe {
                mainloop::forward::<
                    $element,
                    Configuration<ID, $pv>,
                    { mainloop::key_tiles(&CONFIG) },
                    { mainloop::dim_tiles(&CONFIG) },
                >(&args, None);
            }
        }
    };
}

entry!(attention_f16_d64_mma_32x64_s2: F16, tensor_core);
entry!(attention_bf16_d64_mma_32x64_s2: Bf16, tensor_core);
entry!(attention_f16_d64_mma_128x64_s2: F16, tensor_core);
entry!(attention_bf16_d64_mma_128x64_s2: Bf16, tensor_core);
entry!(attention_f16_d64_mma_64x64_s1: F16, tensor_core);
entry!(attention_f16_d64_mma_32x64_s1: F16, tensor_core);
entry!(attention_f16_d64_mma_128x64_s1: F16, tensor_core);
entry!(attention_f16_d64_mma_64x32_s2: F16, tensor_core);
entry!(attention_f16_d64_mma_32x32_s2: F16, tensor_core);
entry!(attention_f16_d64_mma_128x32_s2: F16, tensor_core);
entry!(attention_f16_d64_mma_64x64_s2_ldg: F16, tensor_core);
entry!(attention_f16_d64_mma_64x64_s2_fma: F16, multiply_add);
entry!(attention_f16_d64_mma_64x64_s2_ldg_fma: F16, multiply_add);
entry!(attention_f16_d128_mma_32x32_s2: F16, tensor_core);
entry!(attention_bf16_d128_mma_32x32_s2: Bf16, tensor_core);
entry!(attention_f16_d128_mma_128x32_s1: F16, tensor_core);
entry!(attention_f16_d128_mma_64x32_s2_fma: F16, multiply_add);
