//! The slots of a cluster, for names without a hash tag.

/// The number of slots.
const SLOTS: u16 = 16_384;

/// The slots below this one belong to the first of three primaries.
const HOME: u16 = 5461;

/// The slot of a name without a hash tag.
pub(crate) fn slot_of(name: &str) -> u16 {
    let crc = name.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// A name that starts with `stem` and whose slot is initially at the first primary.
pub(crate) fn name_at_home(stem: &str) -> String {
    let names = (0..).map(|number| match number {
        0 => stem.to_owned(),
        number => format!("{stem}-{number}"),
    });
    names.into_iter().find(|name| slot_of(name) < HOME).unwrap_or_else(|| stem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_server() {
        // From the specification of Redis Cluster, and from `CLUSTER KEYSLOT`.
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12_182);
        assert!(slot_of(&name_at_home("foo")) < HOME);
    }
}
