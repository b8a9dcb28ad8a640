//! [`Setup`]: the initial state of a scene.

use std::time::Duration;

use super::{LEASE, LINGER, LONG_LEASE, TIMEOUT};
use crate::{
    deployment::{Deployment, ServerSetup},
    protocol::Kind,
};

/// The initial state of a scene.
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
    /// How long the grants of a member of a quorum do not count after it was away.
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

    /// Makes a Redis server keep its data; all others do so anyway.
    pub(crate) fn durable(self) -> Self {
        self.server(&["--appendonly", "yes", "--appendfsync", "everysec"])
    }

    /// Makes a server come back without its data.
    pub(crate) fn forgetful(self) -> Self {
        Self { rejoin_after: self.lease, ..self }
    }

    /// Makes holds outlive a failover, or a slow restart of a server.
    pub(crate) fn patient(self) -> Self {
        Self { lease: LONG_LEASE, retry_for: LONG_LEASE, ..self }
    }

    /// On etcd, makes holds outlive an election, and slow renewals, which take three requests.
    pub(crate) fn patient_on(self, on: Deployment) -> Self {
        if on == Deployment::Etcd { self.patient() } else { self }
    }

    /// Makes a primary that does not answer be replaced, and holds outlive that.
    pub(crate) fn fails_over(mut self) -> Self {
        self.servers.fails_over = true;
        self.patient()
    }

    /// Adds a network between the servers that can fail.
    pub(crate) fn between(mut self) -> Self {
        self.servers.between = true;
        self
    }

    /// Adds a network that can fail, and tasks that stay inside for long.
    pub(crate) fn proxied(self) -> Self {
        Self { proxied: true, long_holds: true, ..self }
    }

    /// Disables the check of tokens: exclusion alone must prevent lost updates.
    pub(crate) fn unfenced(self) -> Self {
        Self { fenced: false, ..self }
    }
}
