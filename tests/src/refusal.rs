//! Calls that must fail, with the right error.

use ferrotile::Error;
use libtest_mimic::Failed;

/// Checks that a call failed with the right error.
pub fn expect_error<R>(result: ferrotile::Result<R>, is_right: impl Fn(&Error) -> bool) -> Result<(), Failed> {
    match result {
        Ok(_) => Err("the call succeeded".into()),
        Err(error) if is_right(&error) => Ok(()),
        Err(error) => Err(format!("another error was expected than: {error} ({error:?})").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_and_other_errors_fail() {
        let too_large = || Error::TooLarge { shape: vec![1], element_bytes: 4, available_bytes: None };
        let is_too_large = |error: &Error| matches!(error, Error::TooLarge { .. });
        assert!(expect_error(Err::<(), _>(too_large()), is_too_large).is_ok());
        assert!(expect_error(Ok(()), is_too_large).is_err());
        assert!(expect_error(Err::<(), _>(Error::LastStride { stride: 2 }), is_too_large).is_err());
    }
}
