//! A Redis Cluster: a server for each node, and the map that says which of them serves a slot.
//!
//! - [`slots`] has the map, and finds the slot of a key.
//! - [`nodes`] has a [`Server`](crate::server::Server) for each address, with its own connections.
//! - [`refresh`] keeps the map up to date.
//! - [`redirect`] has the next step after an error. A request that a node has refused because of
//!   its slot was not run, so it is sent to the right one. After any other failure it is not sent
//!   again.
//! - [`passing`] publishes at both nodes while a slot moves.
//! - [`subscription`] follows the slot of its channel. Messages and commands never share a
//!   connection: when a slot moves, the server ends sharded subscriptions on its own, and the redis
//!   crate takes that for a reply.
//! - [`walk`] finds the names in use at all nodes.
//! - [`url`] has the URLs that lead to a cluster.
//!
//! Requests to a node are batched as on a single server, and so are renewals. The locks of a batch
//! are in different slots, so their keys are not declared. If the node refuses one of them because
//! of its slot, that one is sent on its own, with its keys, and follows the slot.

mod connect;
mod messages;
mod nodes;
mod passing;
mod redirect;
mod refresh;
mod renewal;
mod slots;
mod subscription;
pub(crate) mod url;
pub(crate) mod walk;

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use lockcore::{BackendError, BackendErrorKind, backend::Replicas};
use redis::{Pipeline, RedisResult, Value};
use tokio::sync::watch;

pub use self::messages::ClusterMessages;
pub(crate) use self::{
    messages::Publishing,
    renewal::renew,
    slots::{NodeAddress, slot_of},
    url::ClusterSeeds,
};
use self::{
    nodes::Nodes,
    redirect::Redirect,
    refresh::RefreshState,
    slots::{SlotMap, slot_of_keys},
    subscription::moved_away,
};
use crate::{
    error,
    exclusive::BatchableRequest,
    script::ScriptCall,
    server::{CommandConnection, MovableKey, Purpose, Server, opener::ConnectOptions},
};

/// How often a request follows its slot.
const MAX_HOPS: u32 = 5;

/// A cluster that keeps locks.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Nodes,
    /// The nodes that the user named.
    seeds: Vec<NodeAddress>,
    topology: watch::Sender<Arc<SlotMap>>,
    refresh: RefreshState,
    /// Set when the cluster is connected.
    publishing: OnceLock<Publishing>,
}

/// A connection that a request was sent on.
#[derive(Clone, Debug)]
struct Hop {
    connection: Arc<CommandConnection>,
    is_asking: bool,
}

impl Hop {
    /// The node that the connection leads to.
    fn node(&self) -> NodeAddress {
        let (host, port) = self.connection.endpoint().map_or(("", 0), |(host, port)| (host, *port));
        NodeAddress::new(host, port)
    }

    /// Sends a request on its own.
    async fn send(
        &self,
        request: ClusterRequest<'_>,
        publishing: Publishing,
    ) -> RedisResult<Value> {
        match request {
            _ if self.is_asking => {
                let call = request.call();
                let command = |by_digest| call.cluster_command(by_digest, publishing, true);
                Box::pin(self.connection.try_ask(command)).await
            }
            ClusterRequest::Alone(call) => {
                let command = |by_digest| call.cluster_command(by_digest, publishing, false);
                self.connection.try_call(call, command).await
            }
            ClusterRequest::Batchable(request) => self.connection.try_send_alone(request).await,
        }
    }

    /// Fails if a key of `call` is still at this node, which has answered ASK. Redis 6 does so as
    /// soon as one of the keys has left; newer servers answer TRYAGAIN until all have. At the other
    /// node, a lock that has not arrived yet would look free.
    async fn check_left(&self, call: &ScriptCall) -> Result<(), BackendError> {
        let required = call.keys.len().saturating_sub(call.optional);
        if required <= 1 || self.is_asking {
            return Ok(());
        }
        let mut commands = Pipeline::with_capacity(required);
        for key in call.keys.iter().take(required) {
            commands.cmd("EXISTS").arg(key);
        }
        let replies = self.connection.query_all(commands).await;
        let failed = |error| error::of_request(error, call.script.name).not_applied();
        for reply in replies.map_err(failed)? {
            match reply.extract_error() {
                Ok(Value::Int(1)) => {
                    let message =
                        "TRYAGAIN some keys of the lock have moved to another node, and some not";
                    return Err(error::of_text(message).not_applied());
                }
                Ok(_) => {}
                // MOVED: meanwhile the whole slot has left.
                Err(error) if matches!(error.code(), Some("ASK" | "MOVED")) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// The place where a request may have been carried out: the connection on which it waits for its
/// reply, or waited in vain.
#[derive(Debug)]
pub(crate) struct Trail {
    hop: Mutex<Option<Hop>>,
    /// The connection of the node that it leads over.
    purpose: Purpose,
}

impl Trail {
    pub(crate) fn new(purpose: Purpose) -> Self {
        Self { hop: Mutex::default(), purpose }
    }

    fn set(&self, hop: Option<Hop>) {
        *self.hop.lock().unwrap_or_else(PoisonError::into_inner) = hop;
    }

    fn get(&self) -> Option<Hop> {
        self.hop.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns `true` if the connection that the request was sent on has been given up since: its
    /// node may have been succeeded.
    pub(crate) fn is_given_up(&self) -> bool {
        self.get().is_some_and(|hop| !hop.connection.is_usable())
    }

    /// Fails if the connection has been given up; see [`CommandConnection::still_leads`].
    fn still_leads(&self) -> Result<(), BackendError> {
        self.get().map_or(Ok(()), |hop| hop.connection.still_leads())
    }

    /// Takes the trail, if the request may have been carried out.
    pub(crate) fn take(&self) -> Option<Self> {
        let hop = self.hop.lock().unwrap_or_else(PoisonError::into_inner).take();
        hop.map(|hop| Self { hop: Mutex::new(Some(hop)), purpose: self.purpose })
    }

    /// Waits until replicas of the node where the trail ends have acknowledged the hold with `key`
    /// that was granted there. Returns their number.
    pub(crate) async fn wait_for_replicas(
        &self,
        demand: Replicas,
        key: String,
    ) -> Result<u32, BackendError> {
        let Some(Hop { connection, is_asking, .. }) = self.get() else { return Ok(0) };
        connection.wait_for_replicas(demand, Some(MovableKey { key, is_asking })).await
    }
}

/// A request, and how it can be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClusterRequest<'a> {
    Alone(&'a ScriptCall),
    /// First with others, if there are any.
    Batchable(&'a BatchableRequest),
}

impl<'a> ClusterRequest<'a> {
    fn slot(self) -> Result<u16, BackendError> {
        match self {
            Self::Alone(call) => slot_of_keys(&call.keys),
            Self::Batchable(request) if request.keys.is_tagged() => {
                slot_of_keys(&request.call().keys)
            }
            // Derived keys have the name in braces.
            Self::Batchable(request) => Ok(slot_of(request.keys.as_str())),
        }
    }

    fn batchable(self) -> Option<&'a BatchableRequest> {
        match self {
            Self::Alone(_) => None,
            Self::Batchable(request) => Some(request),
        }
    }

    fn call(self) -> Cow<'a, ScriptCall> {
        match self {
            Self::Alone(call) => Cow::Borrowed(call),
            Self::Batchable(request) => Cow::Owned(request.call()),
        }
    }

    fn script_name(self) -> &'static str {
        match self {
            Self::Alone(call) => call.script.name,
            Self::Batchable(request) => request.script().name,
        }
    }
}

impl Cluster {
    fn map(&self) -> Arc<SlotMap> {
        self.topology.borrow().clone()
    }

    /// The nodes to begin with, and how connections are opened.
    pub(crate) fn seeds(&self) -> (ClusterSeeds, ConnectOptions) {
        let (info, options) = self.nodes.info_and_options();
        let known = self.map();
        let mut nodes = known.primaries().to_vec();
        nodes.extend(self.seeds.iter().cloned());
        (ClusterSeeds { info, nodes }, options)
    }

    /// A server that has a connection.
    pub(crate) fn any_server(&self) -> Option<Arc<Server>> {
        self.nodes.connected().first().map(|node| self.nodes.server(node))
    }

    /// The connection to the node that serves the slot of `key`, if it is open.
    pub(crate) fn current_of(&self, key: &str) -> Option<Arc<CommandConnection>> {
        self.current_of_slot(slot_of(key))
    }

    pub(crate) fn publishing(&self) -> Publishing {
        self.publishing.get().copied().unwrap_or(Publishing::Plain)
    }

    /// Sends `call` once, and decodes the reply.
    pub(crate) async fn call<T>(
        self: &Arc<Self>,
        call: &ScriptCall,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let (request, trail) = (ClusterRequest::Alone(call), Trail::new(Purpose::Commands));
        self.send_on_trail(request, &trail, decode).await
    }

    /// Sends `request` once, and decodes the reply. While it may have been carried out without a
    /// reply, `trail` leads to the place.
    ///
    /// If `trail` comes from an earlier request, this one is sent behind it, on the same
    /// connection. If the slot has moved since then, so have the keys, and the request follows.
    pub(crate) async fn send_on_trail<T>(
        self: &Arc<Self>,
        request: ClusterRequest<'_>,
        trail: &Trail,
        decode: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let slot = request.slot()?;
        let (mut next, mut batchable) = (trail.get(), request.batchable());
        for _ in 0..=MAX_HOPS {
            let hop = match next.take() {
                Some(hop) => hop,
                None => self.hop_to_owner(slot, trail.purpose).await?,
            };
            trail.set(Some(hop.clone()));
            let batched = batchable.take_if(|_| !hop.is_asking);
            let reply = match batched {
                Some(request) => hop.connection.try_send_batched(request.clone()).await,
                // Boxed, because this future is large.
                None => Box::pin(hop.send(request, self.publishing())).await,
            };
            let error = match reply {
                Ok(reply) if hop.is_asking => {
                    let reply = self.pass_on(slot, &hop.node(), reply);
                    return hop.connection.decode(reply, decode);
                }
                Ok(reply) => return hop.connection.decode(reply, decode),
                Err(error) => error,
            };
            if batched.is_some() && error::is_of_slot(&error.to_string()) {
                next = Some(hop);
                continue;
            }
            match Redirect::of(&error, &hop.node()) {
                Redirect::Moved(owner) => {
                    trail.set(None);
                    self.note_move(slot, owner);
                }
                Redirect::Ask(node) => {
                    trail.set(None);
                    Box::pin(hop.check_left(&request.call())).await?;
                    let server = self.nodes.server(&node);
                    let connection = Box::pin(server.connection_for(trail.purpose)).await?;
                    next = Some(Hop { connection, is_asking: true });
                }
                Redirect::Somewhere(address) => {
                    return Err(self.address_unknown(slot, &hop.node(), &address));
                }
                Redirect::Nowhere => {
                    if error::is_of_cluster(&error) {
                        self.refresh_soon();
                    }
                    return Err(error::of_node(error, request.script_name(), hop.node()));
                }
            }
        }
        Err(self.owner_unclear(slot))
    }

    /// The error of a request that was sent from node to node, and was not run. The next one finds a
    /// new map.
    fn owner_unclear(self: &Arc<Self>, slot: u16) -> BackendError {
        self.refresh_soon();
        let message = format!("the nodes of the cluster do not agree who serves slot {slot}");
        BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
    }

    /// The error of a request that was not run, because its slot is at another node, of which
    /// `sender` knows no address. If the slot has moved, the next request finds a new map.
    fn address_unknown(
        self: &Arc<Self>,
        slot: u16,
        sender: &NodeAddress,
        address: &str,
    ) -> BackendError {
        self.refresh_soon();
        let way_out = match address.ends_with(":0") {
            true => {
                "every node has to serve connections with TLS (`tls-port`), or every node those \
                 without (`port`)"
            }
            false => {
                "set `cluster-announce-hostname` at every node, or \
                 `cluster-preferred-endpoint-type ip`"
            }
        };
        let message = format!(
            "slot {slot} is at another node of the cluster, which {sender} calls `{address}`; \
             {way_out}"
        );
        BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
    }

    /// The node that serves a slot.
    fn owner(self: &Arc<Self>, slot: u16) -> Result<NodeAddress, BackendError> {
        let owner = self.topology.borrow().owner(slot).cloned();
        owner.ok_or_else(|| {
            self.refresh_soon();
            let message = format!("no node of the cluster serves slot {slot}");
            BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
        })
    }

    /// The connection for commands to the node that serves a slot, if it is open.
    fn current_of_slot(&self, slot: u16) -> Option<Arc<CommandConnection>> {
        self.nodes.current(self.topology.borrow().owner(slot)?)
    }

    /// Leads to the node that serves a slot, which may have to be connected to first.
    async fn hop_to_owner(
        self: &Arc<Self>,
        slot: u16,
        purpose: Purpose,
    ) -> Result<Hop, BackendError> {
        match self.current_of_slot(slot) {
            Some(connection) if purpose == Purpose::Commands => {
                Ok(Hop { connection, is_asking: false })
            }
            // Boxed, because this future is large and rarely needed.
            _ => Box::pin(self.connect_to_owner(slot, purpose)).await,
        }
    }

    /// Connects to the node that serves a slot. If that is another one before there is a
    /// connection, connects to that.
    async fn connect_to_owner(
        self: &Arc<Self>,
        slot: u16,
        purpose: Purpose,
    ) -> Result<Hop, BackendError> {
        self.refresh_if_old();
        loop {
            let node = self.owner(slot)?;
            let server = self.nodes.server(&node);
            let mut topology = self.topology.subscribe();
            tokio::select! {
                connection = server.connection_for(purpose) => {
                    return Ok(Hop { connection: connection?, is_asking: false });
                }
                () = moved_away(&mut topology, slot, &node) => {}
            }
        }
    }

    /// Notes that another node serves a slot now.
    fn note_move(self: &Arc<Self>, slot: u16, owner: NodeAddress) {
        self.topology.send_if_modified(|map| {
            let has_moved = map.owner(slot) != Some(&owner);
            if has_moved {
                Arc::make_mut(map).set_owner(slot, owner);
            }
            has_moved
        });
        self.refresh_soon();
    }
}

/// The error of an attempt that ended because its node does not serve the slot any more.
fn moved_meanwhile(node: &NodeAddress) -> BackendError {
    let message = format!("{node} does not serve the slot any more");
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}
