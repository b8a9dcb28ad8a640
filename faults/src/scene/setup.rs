//! [`Setup`]: what a scene begins with.

use std::time::Duration;

use super::{LEASE, LINGER, LONG_LEASE, TIMEOUT};
use crate::{
    deployment::{Deployment, ServerSetup},
    protocol::Kind,
};

/// What a scene begins with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) names: usize,
    pub(crate) clients: usize,
    pub(crate) tasks: usize,
    pub(crate) hold_ms: (u64, u64),
    pub(crate) servers: ServerSetup,
    pub(crate) client_environment: Vec<(String, String)>,
    pub(crate) user: String,
    pub(crate) proxied: bool,
    pub(crate) lease: Duration,
    /// How long every second client keeps a lock that it has released.
    pub(crate) linger: Duration,
    pub(crate) queue_timeout: Duration,
    pub(crate) fenced: bool,
    pub(crate) careless: bool,
    pub(crate) allow_eviction: bool,
    pub(crate) can_suspend: bool,
    pub(crate) long_holds: bool,
    pub(crate) retry_for: Duration,
    /// For how long the grants of a member of a quorum do not count after it was away.
    pub(crate) rejoin_after: Duration,
    pub(crate) response_timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kinds: Kind::ALL.to_vec(),
            names: 3,
            clients: 4,
            tasks: 16,
            hold_ms: (5, 60),
            servers: ServerSetup::default(),
            client_environment: Vec::new(),
            user: String::new(),
            proxied: false,
            lease: LEASE,
            linger: LINGER,
            queue_timeout: Duration::from_secs(1),
            fenced: true,
            careless: false,
            allow_eviction: false,
            can_suspend: false,
            long_holds: false,
            retry_for: Duration::from_secs(5),
            rejoin_after: Duration::ZERO,
            response_timeout: TIMEOUT,
        }
    }
}

impl Setup {
    pub(crate) fn server(mut self, options: &[&str]) -> Self {
        self.servers.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// A Redis server keeps what it has been told; all others do so anyway.
    pub(crate) fn durable(self) -> Self {
        self.server(&["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    /// A server comes back without what it had been told.
    pub(crate) fn forgetful(self) -> Self {
        Self { rejoin_after: self.lease, ..self }
    }

    /// Holds outlive a failover, or a server that takes its time to come back.
    pub(crate) fn patient(self) -> Self {
        Self { lease: LONG_LEASE, retry_for: LONG_LEASE, ..self }
    }

    /// On etcd, holds outlive an election, and what takes the three requests of a renewal long.
    pub(crate) fn patient_on(self, on: Deployment) -> Self {
        if on == Deployment::Etcd { self.patient() } else { self }
    }

    /// A primary that does not answer is replaced, and holds outlive that.
    pub(crate) fn fails_over(mut self) -> Self {
        self.servers.fails_over = true;
        self.patient()
    }

    /// There is a network between the servers that can be made bad.
    pub(crate) fn between(mut self) -> Self {
        self.servers.between = true;
        self
    }

    /// There is a network that can be made bad, and some stay inside for long.
    pub(crate) fn proxied(self) -> Self {
        Self { proxied: true, long_holds: true, ..self }
    }

    /// Nobody looks at tokens: exclusion alone has to prevent lost updates.
    pub(crate) fn unfenced(self) -> Self {
        Self { fenced: false, ..self }
    }
}
