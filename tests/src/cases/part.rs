//! [`Part`]: the optional parts of the contract, and the words for them.

use lockcore::backend::{Backend, Capabilities};

/// An optional part of the [`Backend`] contract. Exclusive locks are not optional.
///
/// Each part has a word in [`conformance_tests!`](crate::conformance_tests), whose table says which
/// clauses belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// Fair locks: `fair`.
    Fair,
    /// Read-write locks: `read_write`.
    ReadWrite,
    /// Semaphores, of leased and of plain permits: `permits`.
    Permits,
    /// Several tokens with one grant: `hand_over`.
    HandOver,
    /// The demand for exclusive locks: `demand`.
    Demand,
    /// Direct grants of fair locks, a separate part: `direct_grant`.
    DirectGrant,
    /// Tokens that several stores agree on: `proposed_tokens`.
    ProposedTokens,
    /// Count-down latches: `latches`.
    Latches,
    /// Conditions: `conditions`.
    Conditions,
    /// A directory of names and clients: `directory`.
    Directory,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 10] = [
        Self::Fair,
        Self::ReadWrite,
        Self::Permits,
        Self::HandOver,
        Self::Demand,
        Self::DirectGrant,
        Self::ProposedTokens,
        Self::Latches,
        Self::Conditions,
        Self::Directory,
    ];

    /// The word for this part in [`conformance_tests!`](crate::conformance_tests).
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::ReadWrite => "read_write",
            Self::Permits => "permits",
            Self::HandOver => "hand_over",
            Self::Demand => "demand",
            Self::DirectGrant => "direct_grant",
            Self::ProposedTokens => "proposed_tokens",
            Self::Latches => "latches",
            Self::Conditions => "conditions",
            Self::Directory => "directory",
        }
    }

    /// The capability that declares this part. Latches, conditions and the directory have methods
    /// instead.
    pub(crate) fn capability(self) -> Option<Capabilities> {
        match self {
            Self::Fair => Some(Capabilities::FAIR),
            Self::ReadWrite => Some(Capabilities::READ_WRITE),
            Self::Permits => Some(Capabilities::PERMITS),
            Self::HandOver => Some(Capabilities::HAND_OVER),
            Self::Demand => Some(Capabilities::DEMAND),
            Self::DirectGrant => Some(Capabilities::DIRECT_GRANT),
            Self::ProposedTokens => Some(Capabilities::PROPOSED_TOKENS),
            Self::Latches | Self::Conditions | Self::Directory => None,
        }
    }

    /// How a backend declares this part.
    pub(crate) fn declaration(self) -> &'static str {
        match self {
            Self::Fair => "`Capabilities::FAIR`",
            Self::ReadWrite => "`Capabilities::READ_WRITE`",
            Self::Permits => "`Capabilities::PERMITS`",
            Self::HandOver => "`Capabilities::HAND_OVER`",
            Self::Demand => "`Capabilities::DEMAND`",
            Self::DirectGrant => "`Capabilities::DIRECT_GRANT`",
            Self::ProposedTokens => "`Capabilities::PROPOSED_TOKENS`",
            Self::Latches => "`Backend::latches`",
            Self::Conditions => "`Backend::conditions`",
            Self::Directory => "`Backend::directory`",
        }
    }

    /// Returns `true` if `backend` declares this part.
    pub(crate) fn is_declared_by(self, backend: &impl Backend) -> bool {
        match self {
            Self::Latches => backend.latches().is_some(),
            Self::Conditions => backend.conditions().is_some(),
            Self::Directory => backend.directory().is_some(),
            _ => self
                .capability()
                .is_some_and(|capability| backend.capabilities().contains(capability)),
        }
    }
}

/// The [`Part`] that a word stands for. Any other word is a compile error.
#[doc(hidden)]
#[macro_export]
macro_rules! part {
    (fair) => {
        $crate::Part::Fair
    };
    (read_write) => {
        $crate::Part::ReadWrite
    };
    (permits) => {
        $crate::Part::Permits
    };
    (hand_over) => {
        $crate::Part::HandOver
    };
    (demand) => {
        $crate::Part::Demand
    };
    (direct_grant) => {
        $crate::Part::DirectGrant
    };
    (proposed_tokens) => {
        $crate::Part::ProposedTokens
    };
    (latches) => {
        $crate::Part::Latches
    };
    (conditions) => {
        $crate::Part::Conditions
    };
    (directory) => {
        $crate::Part::Directory
    };
    ($word:ident) => {
        compile_error!(concat!(
            "`",
            stringify!($word),
            "` is no word of `conformance_tests!`: the words are `fair`, `read_write`, `permits`, \
             `hand_over`, `demand`, `direct_grant`, `proposed_tokens`, `latches`, `conditions`, \
             `directory` and `paused`"
        ))
    };
}

/// The parts that several words stand for.
#[doc(hidden)]
#[macro_export]
macro_rules! parts {
    ([$($word:ident)*]) => {
        [$($crate::part!($word)),*]
    };
}
