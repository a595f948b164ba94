//! How the fields of a problem are written in its text.

/// Whether a field has its default value, which a text leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Fields that their `Display` writes and their `FromStr` reads.
pub(crate) mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("'{text}' is not understood")))
    }
}

/// One of several values by its name.
pub(crate) mod as_name {
    use std::fmt::Display;

    use ferrotile::{Activation, Dtype};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// A type of which every value is known.
    pub(crate) trait Named: Display + Copy + 'static {
        /// All of them.
        const ALL: &'static [Self];
    }

    impl Named for Dtype {
        const ALL: &'static [Dtype] = &[Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::E4M3, Dtype::E5M2, Dtype::U8];
    }

    impl Named for Activation {
        const ALL: &'static [Activation] = &Activation::ALL;
    }

    pub(crate) fn serialize<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        let found = T::ALL.iter().copied().find(|value| value.to_string() == text);
        found.ok_or_else(|| D::Error::custom(format!("'{text}' is not a name that is known")))
    }
}
