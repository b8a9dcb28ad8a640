//! [`Network`]: the network between one client and all servers.

use std::time::Duration;

use lockcore_testkit::{Conditions, On, Proxy};

use super::routes::{EVERYBODY, Routes};
use crate::protocol::Result;

/// The route of one client to each server, and to each Sentinel.
#[derive(Debug)]
pub(crate) struct Network {
    servers: Vec<Proxy>,
    sentinels: Vec<Proxy>,
    routes: Option<Routes>,
}

impl Network {
    /// The network in front of a single server. The client connects to [`port`](Self::port).
    pub(crate) async fn to_one(port: u16) -> Result<Self> {
        let servers = vec![Proxy::start(port).await?];
        Ok(Self { servers, sentinels: Vec::new(), routes: None })
    }

    /// The network in front of several servers and Sentinels. The client connects to their own
    /// addresses, and its [`environment`](Self::environment) routes it through the network.
    pub(crate) async fn to_all(servers: &[u16], sentinels: &[u16]) -> Result<Self> {
        let routes = Routes::make()?;
        let mut lines = Vec::new();
        let mut proxies = [Vec::new(), Vec::new()];
        for (ports, proxies) in [servers, sentinels].into_iter().zip(&mut proxies) {
            for port in ports {
                let proxy = Proxy::start(*port).await?;
                lines.push((EVERYBODY, *port, proxy.port()));
                proxies.push(proxy);
            }
        }
        routes.lead(lines)?;
        let [servers, sentinels] = proxies;
        Ok(Self { servers, sentinels, routes: Some(routes) })
    }

    /// The network in front of servers that do not use the Redis protocol: it can be slow, cut and
    /// reset, and does not see requests. The client's environment routes it through the network.
    pub(crate) async fn opaque(ports: &[u16]) -> Result<Self> {
        let (routes, mut servers) = (Routes::make()?, Vec::new());
        for port in ports {
            servers.push(Proxy::start_opaque(*port).await?);
        }
        let ways = ports.iter().zip(&servers);
        routes.lead(ways.map(|(port, proxy)| (EVERYBODY, *port, proxy.port())))?;
        Ok(Self { servers, sentinels: Vec::new(), routes: Some(routes) })
    }

    /// The port that leads to the single server.
    pub(crate) fn port(&self) -> u16 {
        self.servers[0].port()
    }

    /// The environment variables to start the client with.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        self.routes.as_ref().map(Routes::environment).unwrap_or_default()
    }

    /// Changes the conditions on the routes to every server and Sentinel.
    pub(crate) fn set(&self, conditions: &Conditions) {
        self.servers.iter().chain(&self.sentinels).for_each(|proxy| proxy.set(conditions.clone()));
    }

    /// Changes the conditions on the route to one server.
    pub(crate) fn set_server(&self, index: usize, conditions: &Conditions) {
        self.servers[index].set(conditions.clone());
    }

    /// Blocks everything except the traffic with one server.
    pub(crate) fn cut_all_but(&self, index: usize) {
        let others = self.servers.iter().enumerate().filter(|(at, _)| *at != index);
        others.map(|(_, proxy)| proxy).chain(&self.sentinels).for_each(|proxy| proxy.set(cut()));
    }

    /// Lets everything pass again.
    pub(crate) fn heal(&self) {
        self.servers.iter().chain(&self.sentinels).for_each(Proxy::heal);
    }

    /// Resets all connections to servers.
    pub(crate) fn reset(&self) {
        self.servers.iter().for_each(Proxy::reset);
    }

    /// Resets the connection of a server after `bytes` bytes from it.
    pub(crate) fn reset_after(&self, bytes: u64) {
        self.servers.iter().for_each(|proxy| proxy.reset_after(bytes));
    }

    /// Loses the `k`-th answer of each server, together with its connection.
    pub(crate) fn lose_answer(&self, k: u64) {
        self.servers.iter().for_each(|proxy| proxy.lose_answer(k));
    }

    /// Returns `true` once the answer of a server has been lost.
    pub(crate) fn has_lost_answer(&self) -> bool {
        self.servers.iter().any(Proxy::has_lost_answer)
    }

    /// The number of answers that have been lost so far.
    pub(crate) fn lost_answers(&self) -> u64 {
        self.servers.iter().map(Proxy::lost_answers).sum()
    }

    /// The number of script calls that servers have answered.
    pub(crate) fn answers(&self) -> u64 {
        self.servers.iter().map(Proxy::answers).sum()
    }

    /// Delays the next request to each server.
    pub(crate) fn delay_next_request(&self, time: Duration) {
        self.servers.iter().for_each(|proxy| proxy.delay_next_request(time));
    }

    /// Makes the connections to all servers half open.
    pub(crate) fn freeze(&self, on: On) {
        self.servers.iter().for_each(|proxy| proxy.freeze(on));
    }

    /// The number of connections made to servers so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.servers.iter().map(Proxy::accepted).sum()
    }
}

/// Conditions under which nothing gets through in either direction.
pub(crate) fn cut() -> Conditions {
    Conditions { cut_to_server: true, cut_to_client: true, ..Conditions::default() }
}
