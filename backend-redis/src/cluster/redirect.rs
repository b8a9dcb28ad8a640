//! [`Redirect`]: the next step after an error of a node. Pure.

use std::error::Error;

use lockcore::BackendError;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::slots::NodeAddress;

/// The next step after an error. A request is sent to another node only if the error proves that it
/// was not run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Another node serves the slot.
    Moved(NodeAddress),
    /// The slot is on its way to another node, and the keys may already be there.
    Ask(NodeAddress),
    /// Another node serves the slot, but this is no address of it.
    Somewhere(String),
    /// The error is the result of the request.
    Nowhere,
}

impl Redirect {
    /// `sender` is the node that answered.
    pub(super) fn of(error: &RedisError, sender: &NodeAddress) -> Self {
        let Some((address, _)) = error.redirect_node() else { return Self::Nowhere };
        match (NodeAddress::parse(address, sender), error.kind()) {
            (Some(node), ErrorKind::Server(ServerErrorKind::Moved)) => Self::Moved(node),
            (Some(node), _) => Self::Ask(node),
            (None, _) => Self::Somewhere(address.to_owned()),
        }
    }

    /// The same for an error that has been converted.
    pub(super) fn of_converted(error: &BackendError, sender: &NodeAddress) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref());
        source.map_or(Self::Nowhere, |error| Self::of(error, sender))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    #[test]
    fn only_moved_and_ask_lead_to_another_node() {
        let sender = NodeAddress::new("h", 1);
        let other = NodeAddress::new("10.0.0.1", 7001);
        let of = |line| Redirect::of(&error(line), &sender);
        assert_eq!(of("MOVED 5 10.0.0.1:7001"), Redirect::Moved(other.clone()));
        assert_eq!(of("ASK 5 10.0.0.1:7001"), Redirect::Ask(other.clone()));
        assert_eq!(of("MOVED 5 :7001"), Redirect::Moved(NodeAddress::new("h", 7001)));
        assert_eq!(of("MOVED 5 ?:7001"), Redirect::Somewhere("?:7001".to_owned()));
        for line in ["TRYAGAIN", "CLUSTERDOWN The cluster is down", "MOVED 5", "ERR MOVED 5 h:1"] {
            assert_eq!(of(line), Redirect::Nowhere, "{line}");
        }
        let converted = crate::error::of_request(error("MOVED 5 10.0.0.1:7001"), "subscribe");
        assert_eq!(Redirect::of_converted(&converted, &sender), Redirect::Moved(other));
    }
}
