//! What a PTX text says it is for, and on which devices that runs.

use std::fmt;
use std::str::FromStr;

use layout::Arch;

/// A version of the PTX language, as `.version` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// What stands before the dot.
    pub major: u16,
    /// What stands behind it.
    pub minor: u16,
}

/// The last minor version of each major one (PTX ISA, "Release Notes").
const LAST_MINOR: [u16; 10] = [0, 5, 3, 2, 3, 0, 5, 8, 8, 5];

impl Version {
    /// The newest version that the emulator reads. A driver refuses texts of versions that are newer than itself.
    pub const NEWEST: Version = Version { major: 9, minor: LAST_MINOR[9] };

    /// Version 7.8 by the number 78.
    pub(crate) const fn of(number: u16) -> Version {
        Version { major: number / 10, minor: number % 10 }
    }

    /// Whether there is such a version.
    pub(crate) fn is_known(self) -> bool {
        let last = LAST_MINOR.get(usize::from(self.major));
        self.major > 0 && last.is_some_and(|&last| self.minor <= last)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The text is not a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a version as 7.8")]
pub struct ParseVersionError;

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.map(|(major, minor)| Version { major, minor }).ok_or(ParseVersionError)
    }
}

/// Which devices have the features of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reach {
    /// `sm_90`: its compute capability and all later ones.
    Onward,
    /// `sm_100f`: its compute capability and later ones of the same major number.
    Family,
    /// `sm_90a`: its compute capability alone.
    Exact,
}

/// What a `.target` line names.
///
/// ```
/// use layout::Arch;
/// use ptx_emulator::Target;
///
/// let hopper: Target = "sm_90a".parse()?;
/// assert!(hopper.runs_on(Arch::Sm90a) && !hopper.runs_on(Arch::Sm80));
/// assert!("sm_75".parse::<Target>()?.runs_on(Arch::Sm80));
/// # Ok::<(), ptx_emulator::ParseTargetError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Ten times the major number of the compute capability, and the minor one.
    capability: u16,
    reach: Reach,
}

/// The targets there are: their compute capabilities, which forms of them, and the PTX versions that introduced the
/// forms, as 70 for 7.0 (PTX ISA, "PTX Module Directives: .target").
const TARGETS: [(u16, u16, Option<u16>, Option<u16>); 33] = [
    (10, 10, None, None),
    (11, 10, None, None),
    (12, 12, None, None),
    (13, 12, None, None),
    (20, 20, None, None),
    (21, 20, None, None),
    (30, 30, None, None),
    (32, 40, None, None),
    (35, 31, None, None),
    (37, 41, None, None),
    (50, 40, None, None),
    (52, 41, None, None),
    (53, 42, None, None),
    (60, 50, None, None),
    (61, 50, None, None),
    (62, 50, None, None),
    (70, 60, None, None),
    (72, 61, None, None),
    (75, 63, None, None),
    (80, 70, None, None),
    (86, 71, None, None),
    (87, 74, None, None),
    (88, 90, None, None),
    (89, 78, None, None),
    (90, 78, Some(80), None),
    (100, 86, Some(86), Some(88)),
    (101, 86, Some(86), Some(88)),
    (103, 88, Some(88), Some(88)),
    (107, 94, Some(94), Some(94)),
    (110, 90, Some(90), Some(90)),
    (120, 87, Some(87), Some(88)),
    (121, 88, Some(88), Some(88)),
    // Drivers and ptxas take it; no card has it.
    (82, 62, None, None),
];

impl Target {
    /// `sm_80` by the number 80.
    pub(crate) const fn onward(capability: u16) -> Target {
        Target { capability, reach: Reach::Onward }
    }

    /// `sm_100f` by the number 100.
    pub(crate) const fn family(capability: u16) -> Target {
        Target { capability, reach: Reach::Family }
    }

    /// `sm_90a` by the number 90.
    pub(crate) const fn exact(capability: u16) -> Target {
        Target { capability, reach: Reach::Exact }
    }

    /// Whether a driver loads a text of this target on a device: `sm_80` on every device of this or a later compute
    /// capability, `sm_90a` on 9.0 alone, `sm_100f` on 10.x alone.
    #[must_use]
    pub fn runs_on(self, device: Arch) -> bool {
        let (major, minor) = device.compute_capability();
        let device = 10 * major as u16 + minor as u16;
        match self.reach {
            Reach::Onward => self.capability <= device,
            Reach::Family => self.capability <= device && self.capability / 10 == device / 10,
            Reach::Exact => self.capability == device,
        }
    }

    /// Whether a text of this target may use what `needed` introduced.
    pub(crate) fn has(self, needed: Target) -> bool {
        match needed.reach {
            Reach::Onward => self.capability >= needed.capability,
            Reach::Family => {
                let same = self.capability / 10 == needed.capability / 10;
                self.reach != Reach::Onward && same && self.capability >= needed.capability
            }
            Reach::Exact => self == needed,
        }
    }

    /// The version that introduced it; none if there is no such target.
    pub(crate) fn introduced(self) -> Option<Version> {
        let &(_, onward, exact, family) = TARGETS.iter().find(|row| row.0 == self.capability)?;
        let number = match self.reach {
            Reach::Onward => Some(onward),
            Reach::Family => family,
            Reach::Exact => exact,
        };
        number.map(Version::of)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.reach {
            Reach::Onward => "",
            Reach::Family => "f",
            Reach::Exact => "a",
        };
        write!(f, "sm_{}{suffix}", self.capability)
    }
}

/// The text is not the name of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a target as sm_80 or sm_90a")]
pub struct ParseTargetError;

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, ParseTargetError> {
        let name = text.strip_prefix("sm_").ok_or(ParseTargetError)?;
        let digits = name.trim_end_matches(['a', 'f']);
        let reach = match &name[digits.len()..] {
            "" => Reach::Onward,
            "a" => Reach::Exact,
            "f" => Reach::Family,
            _ => return Err(ParseTargetError),
        };
        let target = Target { capability: digits.parse().map_err(|_| ParseTargetError)?, reach };
        target.introduced().map(|_| target).ok_or(ParseTargetError)
    }
}

/// The version and the target of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) version: Version,
    pub(crate) target: Target,
}

impl Default for Header {
    /// What stands in a parser until the header is read.
    fn default() -> Self {
        Header { version: Version::NEWEST, target: Target::onward(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_targets_and_versions_parse_back() {
        for name in ["sm_10", "sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_103a", "sm_121f"] {
            assert_eq!(name.parse::<Target>().unwrap().to_string(), name);
        }
        for name in ["", "sm_", "sm_81", "sm_80a", "sm_90f", "sm_90aa", "sm_90af", "compute_80", "sm_99999999", "80"] {
            assert_eq!(name.parse::<Target>(), Err(ParseTargetError), "{name}");
        }
        for (name, known) in [("1.0", true), ("7.8", true), ("7.9", false), ("0.9", false), ("9.5", true)] {
            let version: Version = name.parse().unwrap();
            assert_eq!((version.to_string().as_str(), version.is_known()), (name, known));
        }
        assert!(!Version { major: 9, minor: Version::NEWEST.minor + 1 }.is_known());
        assert!("8".parse::<Version>().is_err() && "8.0.1".parse::<Version>().is_err());
    }

    #[test]
    fn later_devices_run_what_is_not_of_one_device() {
        let runs = |name: &str| Arch::ALL.map(|device| name.parse::<Target>().unwrap().runs_on(device));
        assert_eq!(runs("sm_52"), [true; 3]);
        assert_eq!(runs("sm_80"), [true; 3]);
        assert_eq!(runs("sm_86"), [false, true, true]);
        assert_eq!(runs("sm_89"), [false, true, true]);
        assert_eq!(runs("sm_90"), [false, false, true]);
        assert_eq!(runs("sm_90a"), [false, false, true]);
        assert_eq!(runs("sm_100"), [false; 3]);
        assert_eq!(runs("sm_100f"), [false; 3]);
    }

    #[test]
    fn a_target_has_what_earlier_ones_and_its_family_introduced() {
        let has = |text: &str, needed: Target| text.parse::<Target>().unwrap().has(needed);
        assert!(has("sm_90a", Target::onward(80)) && !has("sm_75", Target::onward(80)));
        assert!(has("sm_90a", Target::exact(90)) && !has("sm_90", Target::exact(90)));
        assert!(!has("sm_100a", Target::exact(90)));
        assert!(has("sm_103a", Target::family(100)) && has("sm_100f", Target::family(100)));
        assert!(!has("sm_103", Target::family(100)) && !has("sm_120a", Target::family(100)));
    }
}
