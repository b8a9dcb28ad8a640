//! [`Opener`]: opens connections.

use std::{sync::OnceLock, time::Duration};

use lockcore::{BackendError, BackendErrorKind};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, PushInfo,
    aio::MultiplexedConnection, io::tcp::socket2::TcpKeepalive,
};

use super::{
    address::Locate,
    check::{self, Facts, Identity},
};
use crate::error;

/// Opens connections to one server, wherever it is by then.
#[derive(Debug)]
pub(crate) struct Opener {
    pub(crate) address: Box<dyn Locate>,
    pub(crate) response_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) eviction_allowed: bool,
    /// Whether the server is a node of a cluster. Found out with the first connection.
    pub(crate) is_cluster_node: OnceLock<bool>,
}

impl Opener {
    /// How long an attempt to connect takes at most, with the check and the pause before it.
    pub(super) fn longest_attempt(&self) -> Duration {
        2 * (self.connect_timeout + self.response_timeout) + Duration::from_secs(1)
    }

    /// Opens a connection for commands, and checks that the server can be trusted with locks.
    ///
    /// `on_push` is called for each message, and when the connection breaks. It is dropped with the
    /// driver of the connection.
    pub(super) async fn open_for_commands(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, Identity), BackendError> {
        let opened = async {
            let (mut connection, address) = self.open(on_push).await?;
            let facts = Facts::of(&mut connection).await?;
            self.check_deployment(facts.is_cluster_node, &address)?;
            let identity = check::check(&facts, &address, self.eviction_allowed)?;
            Ok((connection, identity))
        };
        opened.await.inspect_err(|_| self.address.lost())
    }

    /// Checks that the server belongs to a cluster if the first one did.
    fn check_deployment(&self, is_node: bool, address: &str) -> Result<(), BackendError> {
        if *self.is_cluster_node.get_or_init(|| is_node) == is_node {
            return Ok(());
        }
        let is_not = if is_node { "is" } else { "is not" };
        let message = format!(
            "the server at {address} {is_not} a node of a cluster, unlike the one before it; \
             create the backend anew"
        );
        Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied())
    }

    /// Opens a connection for messages, and asks which server it leads to. `on_push` is as above.
    pub(super) async fn open_for_messages(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, Identity), BackendError> {
        let (mut connection, _) = self.open(on_push).await?;
        let identity = check::identify(&mut connection).await?;
        Ok((connection, identity))
    }

    async fn open(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, String), BackendError> {
        let info = with_our_settings(self.address.locate().await?);
        // Host and port, or the path of the socket. It is shown in messages.
        let address = info.addr().to_string();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(move |push| {
                on_push(push);
                Ok::<(), ()>(())
            });
        let connected = async {
            Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
        };
        match connected.await {
            Ok(connection) => Ok((connection, address)),
            Err(error) if error::is_of_cluster_database(&error) => {
                let message = format!(
                    "the server at {address} is a node of a cluster, which has the database 0 \
                     only; leave the number out of the URL"
                );
                Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied())
            }
            Err(error) => Err(error::of_connecting(error, &address)),
        }
    }
}

fn with_our_settings(info: ConnectionInfo) -> ConnectionInfo {
    // Detects a dead peer in well under a minute. A pending request has its own timeout.
    let probe = Duration::from_secs(5);
    let keepalive = TcpKeepalive::new().with_time(probe).with_interval(probe);
    let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    info.set_tcp_settings(tcp).set_redis_settings(settings)
}
