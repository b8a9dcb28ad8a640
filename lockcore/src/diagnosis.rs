//! [`Diagnosis`]: the problems that a backend has found in its store.

use std::fmt::{self, Write as _};

/// The result of a backend's check of whether its store is fit for locks. It contains no secrets.
///
/// # Examples
/// ```
/// use lockcore::{Diagnosis, Finding, Severity};
///
/// let mut diagnosis = Diagnosis::new();
/// assert!(diagnosis.is_sound());
/// diagnosis.add(
///     Finding::new("clock", Severity::Problem, "the clock of db:6379 is 90 s behind")
///         .because("places in queues end at the wrong time")
///         .to_do("synchronize the clock of that host"),
/// );
/// assert!(diagnosis.has_problems() && !diagnosis.is_sound());
/// for finding in diagnosis.findings() {
///     eprintln!("{finding}");
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The worst first.
    findings: Vec<Finding>,
}

impl Diagnosis {
    /// A diagnosis without findings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding. If there is one with the same id, severity, reason and advice, which was
    /// made at another server, the two become one.
    pub fn add(&mut self, finding: Finding) {
        let same = self.findings.iter_mut().find(|known| known.is_like(&finding));
        match same {
            Some(known) if known.seen.split("; ").any(|seen| seen == finding.seen) => {}
            Some(known) => known.seen = format!("{}; {}", known.seen, finding.seen),
            None => {
                let at = self.findings.partition_point(|known| known.severity <= finding.severity);
                self.findings.insert(at, finding);
            }
        }
    }

    /// The findings: problems, failed checks, and advice, in this order.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns `true` if locks can fail or be lost because of what was found.
    #[must_use]
    pub fn has_problems(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Problem)
    }

    /// Returns `true` if every check could be made, and nothing but advice was found.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Advice)
    }
}

/// One finding of a [`Diagnosis`]. Its [`Display`](fmt::Display) is one line with all of its parts,
/// in which control characters are escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    id: &'static str,
    severity: Severity,
    seen: String,
    reason: String,
    advice: String,
}

impl Finding {
    /// A finding that says what was seen, and where. The `id` names the check, for programs, and
    /// stays the same from version to version.
    #[must_use]
    pub fn new(id: &'static str, severity: Severity, seen: impl Into<String>) -> Self {
        Self { id, severity, seen: seen.into(), reason: String::new(), advice: String::new() }
    }

    /// Says why it matters.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// Says what to do.
    #[must_use]
    pub fn to_do(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// The name of the check.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// The severity of the finding.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// The observation, and the servers that it was made at. It may contain text from the store,
    /// such as the names of locks, with control characters.
    #[must_use]
    pub fn seen(&self) -> &str {
        &self.seen
    }

    /// The reason why it matters.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The advice on what to do.
    #[must_use]
    pub fn advice(&self) -> &str {
        &self.advice
    }

    fn is_like(&self, other: &Self) -> bool {
        let key = |finding: &Self| (finding.id, finding.severity);
        key(self) == key(other) && self.reason == other.reason && self.advice == other.advice
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.severity, self.id)?;
        write_escaped(f, &self.seen)?;
        for part in [&self.reason, &self.advice] {
            if !part.is_empty() {
                f.write_str("; ")?;
                write_escaped(f, part)?;
            }
        }
        Ok(())
    }
}

/// The store chooses some of the text, and a terminal may show it.
fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|character| match character.is_control() {
        true => write!(f, "{}", character.escape_default()),
        false => f.write_char(character),
    })
}

/// The severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Locks can fail or be lost because of it.
    Problem,
    /// The check could not be made, so it is unknown whether something is wrong.
    Unknown,
    /// Locks work, and would work better without it.
    Advice,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Problem => "problem",
            Self::Unknown => "unknown",
            Self::Advice => "advice",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_servers_with_the_same_finding_are_one() {
        let mut diagnosis = Diagnosis::new();
        for (id, severity, seen) in [
            ("a", Severity::Advice, "1"),
            ("b", Severity::Unknown, "1"),
            ("c", Severity::Problem, "1"),
            ("b", Severity::Unknown, "2"),
            ("b", Severity::Unknown, "2"),
            ("b", Severity::Unknown, "1"),
            ("b", Severity::Problem, "3"),
        ] {
            diagnosis.add(Finding::new(id, severity, seen).because("r").to_do("d"));
        }
        let shown: Vec<String> = diagnosis.findings().iter().map(ToString::to_string).collect();
        let expected = ["problem (c): 1; r; d", "problem (b): 3; r; d", "unknown (b): 1; 2; r; d"];
        assert_eq!(shown[..3], expected);
        assert_eq!(shown[3..], ["advice (a): 1; r; d"]);
        assert!(diagnosis.has_problems() && !diagnosis.is_sound());
    }

    #[test]
    fn control_characters_are_shown_escaped() {
        let finding = Finding::new("endless", Severity::Problem, "`a\u{1b}[2J\r\n\u{9b}é`");
        assert_eq!(finding.to_string(), "problem (endless): `a\\u{1b}[2J\\r\\n\\u{9b}é`");
    }

    #[test]
    fn advice_alone_is_sound_and_what_was_not_looked_at_is_not() {
        let with = |severity| {
            let mut diagnosis = Diagnosis::new();
            diagnosis.add(Finding::new("a", severity, "1"));
            (diagnosis.has_problems(), diagnosis.is_sound())
        };
        assert_eq!(with(Severity::Advice), (false, true));
        assert_eq!(with(Severity::Unknown), (false, false));
        assert_eq!(with(Severity::Problem), (true, false));
    }
}
