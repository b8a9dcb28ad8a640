//! Names of the channels on which wake-ups come.

use std::fmt::Write;

/// The offset and the prime of the 128-bit FNV-1a hash.
const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// 2^64 divided by the golden ratio, whose multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash that is the same in every process. Two names with the same hash cause spurious wake-ups
/// of each other, which do no harm.
fn hash(parts: &[&str]) -> u128 {
    let mut hash = OFFSET;
    for part in parts {
        // This byte does not occur in UTF-8, so the parts cannot run into each other.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
    hash
}

/// The channel for `parts`. It is a hash, because PostgreSQL allows 63 bytes, and the name of a
/// lock may have more.
pub(crate) fn channel(parts: &[&str]) -> String {
    let mut channel = "lockcore_".to_owned();
    // Writing to a string does not fail.
    let _ = write!(channel, "{:032x}", hash(parts));
    channel
}

/// The index of the connection, out of `count`, that the requests for a name go over. It is always
/// the same one, so that they arrive in the order in which they were sent.
pub(crate) fn place_of(name: &str, count: usize) -> usize {
    let hash = hash(&[name]);
    // Names that differ only at their ends differ in few bits of the hash. This spreads them.
    let spread = (hash ^ (hash >> 64)) & u128::from(u64::MAX);
    let spread = ((spread * u128::from(GOLDEN)) >> 32) & u128::from(u32::MAX);
    let count = u128::try_from(count.max(1)).unwrap_or(1);
    usize::try_from(spread % count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_differ_and_fit() {
        assert_eq!(channel(&["a", "b"]), channel(&["a", "b"]));
        assert_ne!(channel(&["a", "b"]), channel(&["ab"]));
        assert_ne!(channel(&["a", "b"]), channel(&["a"]));
        assert!(channel(&[&"x".repeat(512)]).len() < 64);
    }

    #[test]
    fn names_are_spread_over_the_connections() {
        let mut counts = [0; 4];
        for number in 0..400 {
            counts[place_of(&format!("order:{number}"), 4)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }
}
