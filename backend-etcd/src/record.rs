//! [`Record`]: the stored value of a hold or a place. Nothing here does I/O.

use std::time::Duration;

use lockcore::Mode;

/// The value of a key: `<mode> <count> <seconds> <owner>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) mode: Mode,
    pub(crate) count: u32,
    /// The time for which the lease was granted, which a keep-alive restores.
    pub(crate) seconds: i64,
    pub(crate) owner: String,
}

impl Record {
    pub(crate) fn encode(&self) -> String {
        format!("{} {} {} {}", word(self.mode), self.count, self.seconds, self.owner)
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.splitn(4, ' ');
        let mode = mode(parts.next()?)?;
        let (count, seconds) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { mode, count, seconds, owner: parts.next()?.to_owned() })
    }
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Fair => "fair",
        Mode::Read => "read",
        Mode::Write => "write",
        // Other modes were refused before.
        _ => "exclusive",
    }
}

fn mode(word: &str) -> Option<Mode> {
    Some(match word {
        "exclusive" => Mode::Exclusive,
        "fair" => Mode::Fair,
        "read" => Mode::Read,
        "write" => Mode::Write,
        _ => return None,
    })
}

/// The whole seconds that a lease needs: rounded up, so that it does not end early.
pub(crate) fn seconds(lease: Duration) -> i64 {
    let seconds = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for owner in ["5f0b8f3e:1", "a job with spaces", " ", ""] {
            for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write] {
                let record = Record { mode, count: 3, seconds: 30, owner: owner.to_owned() };
                assert_eq!(Record::decode(record.encode().as_bytes()), Some(record));
            }
        }
    }

    #[test]
    fn what_others_have_written_is_no_record() {
        for value in ["", "exclusive", "exclusive 1 x owner", "shared 1 30 owner", "fair 1 30"] {
            assert_eq!(Record::decode(value.as_bytes()), None, "{value:?}");
        }
        assert_eq!(Record::decode(&[0xff, 0xfe]), None);
    }

    #[test]
    fn leases_are_rounded_up_to_whole_seconds() {
        let cases = [(1, 1), (999, 1), (1_000, 1), (1_001, 2), (30_000, 30), (30_001, 31)];
        for (milliseconds, expected) in cases {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), expected);
        }
    }
}
