//! Memory for arrays whose sizes a file or the user names.
//!
//! Where the system promises more memory than it has, an allocation succeeds, and the program is killed when it writes
//! there. So large arrays are held against what the machine has left.

use ferrotile::{Element, Error, Result};
use sysinfo::{MemoryRefreshKind, System};

/// Smaller arrays are not held against the memory that is left.
const SMALL_BYTES: usize = 64 << 20;

/// The bytes of an array of this shape, if it can be one; dimensions of 0 do not make the others smaller.
pub(crate) fn array_bytes<T>(shape: &[usize]) -> Result<usize> {
    let bytes = shape.iter().try_fold(size_of::<T>(), |bytes, &size| bytes.checked_mul(size.max(1)));
    match bytes {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(if shape.contains(&0) { 0 } else { bytes }),
        _ => Err(too_large::<T>(shape, None)),
    }
}

/// Refuses an array of this shape where the machine has not as much memory left.
pub(crate) fn check<T>(shape: &[usize]) -> Result<()> {
    check_within::<T>(shape, available_bytes)
}

/// The zeros of an array of this shape, if there is memory for them.
pub(crate) fn zeros<T: Element>(shape: &[usize]) -> Result<Vec<T>> {
    check::<T>(shape)?;
    let len = array_bytes::<T>(shape)? / size_of::<T>();
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| too_large::<T>(shape, available_bytes()))?;
    values.resize(len, T::default());
    Ok(values)
}

fn check_within<T>(shape: &[usize], available_bytes: impl FnOnce() -> Option<u64>) -> Result<()> {
    let bytes = array_bytes::<T>(shape)?;
    if bytes < SMALL_BYTES {
        return Ok(());
    }
    match available_bytes() {
        Some(available) if (bytes as u64) > available => Err(too_large::<T>(shape, Some(available))),
        _ => Ok(()),
    }
}

/// What the machine, and the control group of the process, have left. None where the system does not say.
fn available_bytes() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    // The files that the system keeps in memory count as used in a control group, and make way.
    let of_group = system.cgroup_limits().map(|group| group.total_memory.saturating_sub(group.rss));
    let of_machine = (system.total_memory() > 0).then(|| system.available_memory());
    of_machine.into_iter().chain(of_group).min()
}

fn too_large<T>(shape: &[usize], available_bytes: Option<u64>) -> Error {
    Error::TooLarge { shape: shape.to_vec(), element_bytes: size_of::<T>(), available_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_beyond_memory_are_refused() {
        assert_eq!(array_bytes::<f64>(&[2, 3]), Ok(48));
        assert_eq!(array_bytes::<f64>(&[2, 0]), Ok(0));
        assert_eq!(zeros::<f32>(&[2, 3]), Ok(vec![0.0; 6]));
        for shape in [[usize::MAX, 0], [1 << 32, 1 << 32]] {
            let too_large = Err(Error::TooLarge { shape: shape.to_vec(), element_bytes: 4, available_bytes: None });
            assert_eq!(zeros::<f32>(&shape), too_large, "{shape:?}");
        }
        let error = zeros::<f32>(&[1 << 50, 1]).unwrap_err();
        assert!(matches!(error, Error::TooLarge { available_bytes: Some(1..), .. }), "{error}");
        assert!(error.to_string().contains(": they take 4503599.6 GB, and the machine has "), "{error}");
    }

    #[test]
    fn what_is_left_is_the_limit() {
        let check = |elements: usize, available: Option<u64>| check_within::<f32>(&[elements], || available);
        assert_eq!(check(1 << 25, Some(1 << 27)), Ok(()));
        let too_large =
            Error::TooLarge { shape: vec![(1 << 25) + 1], element_bytes: 4, available_bytes: Some(1 << 27) };
        assert_eq!(check((1 << 25) + 1, Some(1 << 27)), Err(too_large));
        assert_eq!(check(1 << 40, None), Ok(()), "a system that does not say is tried");
        assert_eq!(check(1, Some(0)), Ok(()), "few bytes are not worth the question");
    }

    #[test]
    fn the_machine_has_memory_for_this_test() {
        let available = available_bytes().expect("the system says what it has");
        assert!((1 << 20..1 << 50).contains(&available), "{available}");
    }
}
