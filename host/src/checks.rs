//! What more than one family checks of its tensors before anything is enqueued.

use layout::Dtype;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::runtime::raw_tensor::RawTensor;

/// What vector loads, 16-byte stores and TMA ask addresses and strides to be multiples of, in bytes.
pub(crate) const ALIGN_BYTES: usize = 16;

/// An argument or option that an operation cannot take.
pub(crate) fn argument(
    op: &'static str,
    argument: &'static str,
    got: impl ToString,
    expected: impl Into<String>,
) -> Error {
    Error::Argument { op, argument, got: got.to_string(), expected: expected.into() }
}

/// Reports `what` on device `got` where the stream is on `expected`.
pub(crate) fn same_device(what: &'static str, got: u32, expected: u32) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::WrongDevice { what, got, expected }) }
}

/// Reports the first tensor that is not on the stream's device `expected`. A missing tensor is on every device.
pub(crate) fn same_devices<'t>(
    tensors: impl IntoIterator<Item = (&'static str, Option<&'t RawTensor>)>,
    expected: u32,
) -> Result<()> {
    tensors
        .into_iter()
        .try_for_each(|(what, tensor)| tensor.map_or(Ok(()), |tensor| same_device(what, tensor.ordinal(), expected)))
}

/// Reports a tensor that has not this shape.
pub(crate) fn has_shape(op: &'static str, tensor: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { op, tensor, got: got.to_vec(), expected: expected.to_vec() })
}

/// Reports elements of another type than those that a plan was made for.
pub(crate) fn has_type(op: &'static str, name: &'static str, got: ElementType, planned: Dtype) -> Result<()> {
    if got == ElementType::from(planned) {
        return Ok(());
    }
    Err(argument(op, name, got, format!("{planned}, the plan's")))
}

/// Reports elements of another type than the one that a tensor always has.
pub(crate) fn has_element_type(
    op: &'static str,
    tensor: &'static str,
    got: &RawTensor,
    expected: ElementType,
) -> Result<()> {
    if got.element_type() == expected {
        return Ok(());
    }
    Err(argument(op, tensor, format!("a tensor of {}", got.element_type()), expected.to_string()))
}

/// Reports a tensor with gaps, whose strides are called `strides`.
pub(crate) fn is_contiguous(op: &'static str, strides: &'static str, tensor: &RawTensor) -> Result<()> {
    if tensor.is_contiguous() {
        return Ok(());
    }
    Err(argument(op, strides, format!("{:?}", tensor.strides()), "those of a contiguous tensor"))
}

/// Whether every row of a tensor starts on a 16-byte boundary. A dimension of one is never stepped along.
pub(crate) fn rows_aligned(tensor: &RawTensor) -> bool {
    rows_aligned_to(tensor, ALIGN_BYTES)
}

/// The same for boundaries of so many bytes.
pub(crate) fn rows_aligned_to(tensor: &RawTensor, align_bytes: usize) -> bool {
    let bytes = tensor.element_type().size_bytes() as i64;
    let outer = tensor.shape().len().saturating_sub(1);
    let step_aligned = |dim| tensor.step(dim).wrapping_mul(bytes) % align_bytes as i64 == 0;
    tensor.as_raw().is_multiple_of(align_bytes as u64) && (0..outer).all(step_aligned)
}

/// The address of a workspace of at least `needed` bytes on a 16-byte boundary of the stream's device `ordinal`; 0
/// where none is needed.
pub(crate) fn workspace_address(
    op: &'static str,
    workspace: Option<&RawTensor>,
    needed: usize,
    ordinal: u32,
) -> Result<u64> {
    if needed == 0 {
        return Ok(0);
    }
    let refused = |got: String| {
        let expected = format!("at least {needed} bytes on a {ALIGN_BYTES}-byte boundary");
        Err(argument(op, "workspace", got, expected))
    };
    let Some(workspace) = workspace else { return refused("none".to_owned()) };
    same_device("workspace", workspace.ordinal(), ordinal)?;
    let elements = workspace.shape().iter().fold(1_usize, |count, &dim| count.saturating_mul(dim));
    let (address, bytes) = (workspace.as_raw(), elements.saturating_mul(workspace.element_type().size_bytes()));
    if bytes < needed || !workspace.is_contiguous() || !address.is_multiple_of(ALIGN_BYTES as u64) {
        return refused(format!("{bytes} bytes at {address:#x}"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_aligned_where_address_and_the_strides_in_use_are() {
        let aligned = |element, address, shape: &[usize], strides: &[i64]| {
            rows_aligned(&RawTensor::new(0, address, element, shape, strides).unwrap())
        };
        let [half, float] = [ElementType::F16, ElementType::F32];
        assert!(aligned(float, 256, &[2, 3, 17], &[60, 20, 1]));
        assert!(!aligned(float, 264, &[2, 3, 17], &[60, 20, 1]));
        assert!(!aligned(float, 256, &[2, 3, 17], &[51, 17, 1]));
        assert!(aligned(float, 256, &[1, 1, 17], &[51, 17, 1]), "a dimension of one is never stepped along");
        assert!(aligned(half, 256, &[2, 3, 17], &[72, 24, 1]));
        assert!(!aligned(half, 256, &[2, 3, 17], &[72, 20, 1]));
        assert!(!aligned(ElementType::E4M3, 256, &[2, 3, 17], &[72, 24, 1]));
        let bytes = RawTensor::new(0, 264, ElementType::U8, &[2, 3, 17], &[72, 24, 1]).unwrap();
        assert!(rows_aligned_to(&bytes, 8) && !rows_aligned(&bytes));
    }

    #[test]
    fn a_workspace_is_large_enough_aligned_and_on_the_device() {
        let of = |ordinal, address, bytes| {
            let tensor = RawTensor::new(ordinal, address, ElementType::U8, &[bytes], &[1]).unwrap();
            workspace_address("op", Some(&tensor), 64, 1)
        };
        assert_eq!(of(1, 512, 64), Ok(512));
        assert!(matches!(of(1, 512, 63), Err(Error::Argument { argument: "workspace", .. })));
        assert!(matches!(of(1, 520, 64), Err(Error::Argument { argument: "workspace", .. })));
        assert!(matches!(of(0, 512, 64), Err(Error::WrongDevice { what: "workspace", .. })));
        assert!(matches!(workspace_address("op", None, 1, 0), Err(Error::Argument { .. })));
        assert_eq!(workspace_address("op", None, 0, 0), Ok(0));
    }
}
