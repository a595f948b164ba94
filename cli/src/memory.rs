//! Memory for arrays whose sizes a file or the user names.

use ferrotile::{Element, Error, Result};

/// The bytes of an array of this shape, if it can be one; dimensions of 0 do not make the others smaller.
pub(crate) fn array_bytes<T>(shape: &[usize]) -> Result<usize> {
    let bytes = shape.iter().try_fold(size_of::<T>(), |bytes, &size| bytes.checked_mul(size.max(1)));
    match bytes {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(if shape.contains(&0) { 0 } else { bytes }),
        _ => Err(too_large::<T>(shape)),
    }
}

/// The zeros of an array of this shape, if there is memory for them.
pub(crate) fn zeros<T: Element>(shape: &[usize]) -> Result<Vec<T>> {
    let len = array_bytes::<T>(shape)? / size_of::<T>();
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| too_large::<T>(shape))?;
    values.resize(len, T::default());
    Ok(values)
}

fn too_large<T>(shape: &[usize]) -> Error {
    Error::TooLarge { shape: shape.to_vec(), element_bytes: size_of::<T>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_beyond_memory_are_refused() {
        assert_eq!(array_bytes::<f64>(&[2, 3]), Ok(48));
        assert_eq!(array_bytes::<f64>(&[2, 0]), Ok(0));
        assert_eq!(zeros::<f32>(&[2, 3]), Ok(vec![0.0; 6]));
        for shape in [[usize::MAX, 0], [1 << 32, 1 << 32], [1 << 60, 1]] {
            let too_large = Err(Error::TooLarge { shape: shape.to_vec(), element_bytes: 4 });
            assert_eq!(zeros::<f32>(&shape), too_large, "{shape:?}");
        }
    }
}
