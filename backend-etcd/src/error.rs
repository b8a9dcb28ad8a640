//! Conversion of errors of the etcd client and of the servers to [`BackendError`].

use std::{error::Error as _, io, time::Duration};

use etcd_client::Error;
use lockcore::{BackendError, BackendErrorKind};

use crate::members::Members;

/// The gRPC codes that etcd answers with.
mod code {
    pub(super) const CANCELLED: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// The prefix of etcd's own messages.
const BY_ETCD: &str = "etcdserver:";

/// Returns `true` if the server says that there is no such lease.
pub(crate) fn is_no_lease(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => {
            i32::from(status.code()) == code::NOT_FOUND && status.message().contains("lease")
        }
        // The client itself reports this for a keep-alive that was answered with no time.
        Error::LeaseKeepAliveError(said) => said == "lease not found",
        _ => false,
    }
}

/// Returns `true` if the server says that a lease with this id exists already.
pub(crate) fn is_lease_taken(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status)
        if i32::from(status.code()) == code::FAILED_PRECONDITION
            && status.message().contains("lease already exists"))
}

/// Returns `true` if the server refuses a token because users or roles have changed since, or
/// because it knew of no users when the client connected.
pub(crate) fn is_token_stale(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status)
        if i32::from(status.code()) == code::INVALID_ARGUMENT
            && (is_of_old_users(status.message()) || is_without_user(status.message())))
}

fn is_of_old_users(said: &str) -> bool {
    said.contains("revision of auth store is old")
}

fn is_without_user(said: &str) -> bool {
    said.contains("user name is empty")
}

/// Returns `true` if the server does not accept the token of the client any more: it has expired,
/// is out of date, or was given by a server that has been started again.
pub(crate) fn wants_login(error: &Error) -> bool {
    is_token_stale(error)
        || matches!(error, Error::GRpcStatus(status)
            if i32::from(status.code()) == code::UNAUTHENTICATED)
}

/// The name of the first requests of a client.
pub(crate) const CONNECTING: &str = "connecting";

/// Converts the error of a request. `doing` names the operation.
pub(crate) fn of_request(error: Error, doing: &str, address: &str) -> BackendError {
    let kind = kind_of(&error);
    let failed = match doing {
        CONNECTING => format!("could not connect to etcd at {address}"),
        doing => format!("{doing} on etcd at {address} failed"),
    };
    let message = format!("{failed}: {}{}", cause(&error), hint(kind));
    let is_certain = match &error {
        Error::GRpcStatus(status) => is_refusal(i32::from(status.code()), status.message()),
        _ => kind == BackendErrorKind::Configuration,
    };
    let converted = BackendError::new(kind, message);
    let converted = match is_certain || is_unsent(&error) {
        true => converted.not_applied(),
        false => converted.maybe_applied(),
    };
    converted.with_source(error)
}

fn kind_of(error: &Error) -> BackendErrorKind {
    use BackendErrorKind as Kind;
    match error {
        Error::GRpcStatus(status) => {
            match kind_of_status(i32::from(status.code()), status.message()) {
                Kind::Other if is_transport(error) => Kind::Connection,
                kind => kind,
            }
        }
        Error::TransportError(_) | Error::IoError(_) | Error::Internal(_) => Kind::Connection,
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::EndpointError(_) => {
            Kind::Configuration
        }
        _ => Kind::Protocol,
    }
}

fn kind_of_status(code: i32, said: &str) -> BackendErrorKind {
    use BackendErrorKind as Kind;
    match code {
        _ if is_dropped(said) => Kind::Unavailable,
        code::UNKNOWN if said.starts_with("context ") => Kind::Timeout,
        // The member is no longer the leader, or cannot make sure that it is.
        code::UNKNOWN if said.contains("not a primary lessor") => Kind::Unavailable,
        code::UNAVAILABLE if said.starts_with(BY_ETCD) => Kind::Unavailable,
        code::UNAVAILABLE => Kind::Connection,
        code::DEADLINE_EXCEEDED => Kind::Timeout,
        // The client's own error: the connection ended, or the server is shutting down.
        code::CANCELLED => Kind::Connection,
        // The token that the client got for this request has expired as well. It gets another one.
        code::UNAUTHENTICATED if said.contains("invalid auth token") => Kind::Unavailable,
        code::UNAUTHENTICATED => Kind::Auth,
        code::INVALID_ARGUMENT if said.contains("authentication failed") => Kind::Auth,
        // The answer to a client without credentials.
        code::INVALID_ARGUMENT if is_without_user(said) => Kind::Auth,
        // The users go on changing. With the next request, the client gets another token.
        code::INVALID_ARGUMENT if is_of_old_users(said) => Kind::Unavailable,
        code::FAILED_PRECONDITION if said.contains("authentication is not enabled") => {
            Kind::Configuration
        }
        code::PERMISSION_DENIED => Kind::Permission,
        code::RESOURCE_EXHAUSTED if is_no_space(said) => Kind::OutOfMemory,
        code::RESOURCE_EXHAUSTED => Kind::Unavailable,
        code::UNIMPLEMENTED => Kind::Configuration,
        _ => Kind::Other,
    }
}

/// Returns `true` if etcd itself reports that it has not carried out the request, and never will.
///
/// Only etcd's own messages count. The same codes come from the libraries on both sides, for
/// example if an answer is too long. With any other code, the outcome is unknown.
fn is_refusal(code: i32, said: &str) -> bool {
    const REFUSALS: [i32; 6] = [
        code::INVALID_ARGUMENT,
        code::NOT_FOUND,
        code::PERMISSION_DENIED,
        code::RESOURCE_EXHAUSTED,
        code::FAILED_PRECONDITION,
        code::UNAUTHENTICATED,
    ];
    // A server that could not reach its majority in time does not know either. The servers with
    // these messages have no leader to pass the request on to, too much to do, or no vote.
    const UNAVAILABLE: [&str; 3] = [
        "etcdserver: no leader",
        "etcdserver: too many requests",
        "etcdserver: rpc not supported for learner",
    ];
    is_dropped(said)
        || said.starts_with(BY_ETCD) && REFUSALS.contains(&code) && !is_no_space(said)
        || code == code::UNAVAILABLE && UNAVAILABLE.contains(&said)
}

/// The request that fills the database is carried out, but is answered with the same message as the
/// requests after it.
fn is_no_space(said: &str) -> bool {
    said.contains("space exceeded")
}

/// Returns `true` if the connection failed, and not the request.
fn is_transport(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    // An answer of the server has no source.
    status.source().is_some()
}

/// The leader is handing over the leadership to another member.
fn is_dropped(said: &str) -> bool {
    said == "raft proposal dropped"
}

/// Returns `true` if no connection could be made, so that nothing was sent.
fn is_unsent(error: &Error) -> bool {
    let source = match error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => error.source(),
        _ => None,
    };
    source.is_some_and(is_failed_connect)
}

/// Returns `true` if an error comes from an attempt to connect. Other errors of the network, such
/// as a missing route, can also end a connection over which a request was sent.
fn is_failed_connect(source: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(source);
    while let Some(source) = next {
        let is_refused = source.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::AddrNotAvailable
            )
        });
        if is_refused || source.to_string() == "tcp connect error" {
            return true;
        }
        next = source.source();
    }
    false
}

/// The message of the server or the operating system, without those of the layers in between.
fn cause(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else { return error.to_string() };
    let mut last = None;
    let mut next = status.source();
    while let Some(source) = next {
        last = Some(source.to_string());
        next = source.source();
    }
    match last {
        Some(last) if last != status.message() => format!("{}: {last}", status.message()),
        _ => status.message().to_owned(),
    }
}

fn hint(kind: BackendErrorKind) -> &'static str {
    match kind {
        BackendErrorKind::Permission => {
            "; the user needs a role with the right to read and write all keys below the prefix"
        }
        BackendErrorKind::OutOfMemory => {
            "; compact and defragment the database, raise --quota-backend-bytes, and disarm the \
             alarm"
        }
        _ => "",
    }
}

/// No answer to a request that was sent.
pub(crate) fn no_answer(doing: &str, address: &str, waited: Duration) -> BackendError {
    let message = format!("{doing}: no answer from etcd at {address} within {waited:?}");
    BackendError::new(BackendErrorKind::Timeout, message)
}

/// The error of a request that several members were asked to carry out: that of one of them.
/// `others` are the addresses of the others.
pub(crate) fn of_several(error: BackendError, others: &[&str]) -> BackendError {
    if others.is_empty() {
        return error;
    }
    let message = format!("{}; {} failed as well", error.message(), listed(others));
    let several = BackendError::new(error.kind(), message);
    let several = match error.is_outcome_unknown() {
        true => several.maybe_applied(),
        false => several.not_applied(),
    };
    several.with_source(error)
}

/// The addresses in words.
pub(crate) fn listed(addresses: &[&str]) -> String {
    match addresses {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        one => one.concat(),
    }
}

/// The words of the error of such an endpoint.
const OTHER_CLUSTER: &str = "belongs to another cluster than";

/// Returns `true` if an endpoint is a member of another cluster.
pub(crate) fn is_other_cluster(error: &BackendError) -> bool {
    error.kind() == BackendErrorKind::Configuration && error.message().contains(OTHER_CLUSTER)
}

/// An endpoint is a member of another cluster than the endpoint that answered first.
pub(crate) fn other_cluster(address: &str, first: &str) -> BackendError {
    let whose = match address == first {
        true => "before".to_owned(),
        false => first.to_owned(),
    };
    let message = format!(
        "{address} {OTHER_CLUSTER} {whose}; name the members of one cluster only, or, if it was \
         restored from a backup, start this process again"
    );
    BackendError::new(BackendErrorKind::Configuration, message)
}

/// A request was sent to two members, and the answer does not tell what the first copy has done.
pub(crate) fn unsure(members: &Members, doing: &str) -> BackendError {
    let message = format!(
        "{doing}: one member of etcd at {members} did not answer, and the answer of the next one \
         does not tell what was done; ask again"
    );
    BackendError::new(BackendErrorKind::Timeout, message).maybe_applied()
}

/// The reads before and after a renewal do not prove that the leader has made it.
pub(crate) fn unproven(members: &Members) -> BackendError {
    let message = format!(
        "renewing a lease: the leader of etcd at {members} may have changed meanwhile, or an \
         endpoint is a balancer in front of several members; name each member as an endpoint"
    );
    BackendError::new(BackendErrorKind::Unavailable, message)
}

/// The error for a value under the prefix that this crate has not written.
pub(crate) fn not_a_record(key: &str) -> BackendError {
    let message = format!(
        "what is stored in etcd under `{}` was not written by this backend",
        key.escape_debug()
    );
    BackendError::new(BackendErrorKind::WrongType, message).not_applied()
}

/// An answer that does not belong to the request.
pub(crate) fn unexpected(doing: &str) -> BackendError {
    let message = format!(
        "unexpected answer of etcd to {doing}; see that each endpoint is a member of etcd itself"
    );
    BackendError::new(BackendErrorKind::Protocol, message)
}

/// An error of a configuration that cannot work.
pub(crate) fn configuration(message: impl Into<String>) -> BackendError {
    BackendError::new(BackendErrorKind::Configuration, message).not_applied()
}

/// The error of a name that is in use as another kind of lock.
pub(crate) fn wrong_kind(kind: crate::keys::Kind) -> BackendError {
    let used = match kind {
        crate::keys::Kind::Lock => "an exclusive or fair lock",
        crate::keys::Kind::ReadWrite => "a read-write lock",
    };
    let message = format!("the name is in use as {used}");
    BackendError::new(BackendErrorKind::WrongType, message).not_applied()
}

/// The lock kept changing between the read and the write.
pub(crate) fn too_busy(members: &Members, doing: &str) -> BackendError {
    let waited = members.response_timeout();
    let message = format!(
        "{doing}: others kept changing the lock in etcd at {members} for {waited:?}; ask again, or \
         let fewer clients ask for the same name at once"
    );
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}

/// The lease of the request was revoked, or has ended, before the request arrived.
pub(crate) fn undone(members: &Members) -> BackendError {
    let message = format!(
        "the request came to etcd at {members} after it had been undone, or after its lease had \
         ended; ask again, with a longer lease if this happens often"
    );
    BackendError::new(BackendErrorKind::Timeout, message).not_applied()
}

/// The id of the lease is in use for something else, with a probability of 2^-63.
pub(crate) fn lease_is_foreign(members: &Members, lease: i64) -> BackendError {
    let message = format!(
        "the lease {lease:x} that etcd at {members} should grant has keys of somebody else; ask \
         again"
    );
    BackendError::new(BackendErrorKind::Unavailable, message).not_applied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_in_words_of_etcd_are_certain() {
        for (code, said) in [
            (code::INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"),
            (code::NOT_FOUND, "etcdserver: requested lease not found"),
            (code::PERMISSION_DENIED, "etcdserver: permission denied"),
            (code::RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
            (code::UNAUTHENTICATED, "etcdserver: invalid auth token"),
            (code::UNAVAILABLE, "etcdserver: no leader"),
            (code::UNKNOWN, "raft proposal dropped"),
        ] {
            assert!(is_refusal(code, said), "{code}: {said}");
        }
        let codes_of_grpc = 0..=16;
        for code in codes_of_grpc {
            assert!(!is_refusal(code, "the answer is too long"), "{code}");
        }
        for (code, said) in [
            (code::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"),
            (code::UNAVAILABLE, "etcdserver: request timed out"),
            (code::UNAVAILABLE, "etcdserver: leader changed"),
            (code::UNKNOWN, "etcdserver: something new"),
            (13, "etcdserver: something new"),
            (15, "etcdserver: corrupt cluster"),
        ] {
            assert!(!is_refusal(code, said), "{code}: {said}");
        }
    }

    #[test]
    fn a_member_that_is_no_leader_any_more_is_not_the_end() {
        for (code, said) in [
            (code::UNKNOWN, "not a primary lessor"),
            (code::UNKNOWN, "raft proposal dropped"),
            (code::UNAVAILABLE, "etcdserver: leader changed"),
        ] {
            assert_eq!(kind_of_status(code, said), BackendErrorKind::Unavailable, "{said}");
        }
    }

    #[test]
    fn only_a_failed_connect_is_certain_to_have_sent_nothing() {
        use io::ErrorKind as Kind;
        for (kind, is_certain) in [
            (Kind::ConnectionRefused, true),
            (Kind::HostUnreachable, false),
            (Kind::NetworkUnreachable, false),
            (Kind::ConnectionReset, false),
        ] {
            assert_eq!(is_failed_connect(&io::Error::from(kind)), is_certain, "{kind}");
        }
        let connecting = io::Error::new(Kind::HostUnreachable, "tcp connect error");
        assert!(is_failed_connect(&connecting));
    }

    #[test]
    fn the_error_of_several_members_names_them() {
        let error =
            || BackendError::new(BackendErrorKind::Timeout, "no answer from a").not_applied();
        assert_eq!(of_several(error(), &[]).message(), "no answer from a");
        let several = of_several(error(), &["b", "c"]);
        assert_eq!(several.message(), "no answer from a; b and c failed as well");
        assert!(several.is_retryable() && !several.is_outcome_unknown());
    }

    #[test]
    fn an_error_of_no_single_member_names_them_all() {
        let members = Members::unconnected(&["a", "b", "c"]);
        for error in [
            unsure(&members, "acquiring"),
            too_busy(&members, "acquiring"),
            undone(&members),
            lease_is_foreign(&members, 7),
        ] {
            let message = error.message();
            assert!(message.contains("etcd at a:1, b:1 and c:1 "), "{message}");
            assert!(message.contains("; ask again"), "{message}");
        }
        let message = unproven(&members).to_string();
        assert!(message.contains("etcd at a:1, b:1 and c:1 "), "{message}");
        assert_eq!(Members::unconnected(&["a"]).to_string(), "a:1");
    }

    #[test]
    fn a_token_that_has_expired_is_no_wrong_password() {
        let expired = kind_of_status(code::UNAUTHENTICATED, "etcdserver: invalid auth token");
        assert_eq!(expired, BackendErrorKind::Unavailable);
        let wrong = "etcdserver: authentication failed, invalid user ID or password";
        assert_eq!(kind_of_status(code::INVALID_ARGUMENT, wrong), BackendErrorKind::Auth);
    }
}
