//! [`ClusterMessages`]: which channels wake-ups use on a cluster.

/// How waiters are woken on a Redis Cluster.
///
/// Redis has two sets of channels, and a message in one is not heard in the other. The channels of
/// `PUBLISH` are common to the whole cluster: each message goes to all nodes. The channels of
/// `SPUBLISH` are *sharded*: a message goes only to the node of the lock and its replicas. They
/// exist since Redis 7.0.
///
/// All programs that share locks must use the same set, or the waiters of one miss the releases of
/// the other and ask only every 10 s or when a lease ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterMessages {
    /// As Redisson chooses: sharded if the node answers `PUBSUB SHARDNUMSUB`, else plain. This is
    /// the default.
    #[default]
    Auto,
    /// Sharded channels.
    Sharded,
    /// The common channels.
    Plain,
    /// Both sets, for a time in which some programs use one and some the other. Each waiting client
    /// has two connections for messages to a node.
    Both,
}

/// The resolved choice of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishing {
    Sharded,
    Plain,
    Both,
}

impl Publishing {
    /// The number of choices, and the index of each.
    pub(crate) const COUNT: usize = 3;

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Sharded => 0,
            Self::Plain => 1,
            Self::Both => 2,
        }
    }

    /// Defines the function `send` in Lua, which publishes a message.
    pub(crate) const fn header(self) -> &'static str {
        match self {
            Self::Sharded => include_str!("../scripts/publish_sharded.lua"),
            Self::Plain => include_str!("../scripts/publish_plain.lua"),
            Self::Both => include_str!("../scripts/publish_both.lua"),
        }
    }

    /// The commands that publish a message.
    pub(crate) const fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Sharded => &["SPUBLISH"],
            Self::Plain => &["PUBLISH"],
            Self::Both => &["SPUBLISH", "PUBLISH"],
        }
    }

    /// The subcommands of `PUBSUB` that count subscriptions.
    pub(crate) const fn counts(self) -> &'static [&'static str] {
        match self {
            Self::Sharded => &["SHARDNUMSUB"],
            Self::Plain => &["NUMSUB"],
            Self::Both => &["SHARDNUMSUB", "NUMSUB"],
        }
    }

    pub(crate) const fn is_sharded(self) -> bool {
        matches!(self, Self::Sharded | Self::Both)
    }

    pub(crate) const fn is_plain(self) -> bool {
        matches!(self, Self::Plain | Self::Both)
    }
}
