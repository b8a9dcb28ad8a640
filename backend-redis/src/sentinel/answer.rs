//! [`Answer`]: the primary, as a Sentinel knows it.

use std::collections::HashMap;

use lockcore::{BackendError, BackendErrorKind};
use redis::{
    ConnectionInfo, FromRedisValue, RedisError, RedisResult, Value, aio::MultiplexedConnection,
};

use crate::{
    error,
    url::{self, Endpoint},
};

/// A Sentinel's answer: the primary, and the other Sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The location of the primary.
    pub(crate) primary: Endpoint,
    /// The failover that made it the primary. The number rises with each failover. Unknown if the
    /// user has no right to `SENTINEL MASTER`.
    pub(super) epoch: Option<u64>,
    /// The other Sentinels that this one names.
    pub(super) others: Vec<Endpoint>,
    /// The Sentinel, as it is shown in messages.
    pub(super) named_by: String,
}

impl Answer {
    /// Returns `true` if this answer names another primary than the one at `info` since `epoch`,
    /// and is known to be newer.
    pub(super) fn succeeds(&self, info: &ConnectionInfo, epoch: Option<u64>) -> bool {
        !self.names(info) && self.epoch.zip(epoch).is_some_and(|(mine, other)| mine > other)
    }

    /// The number of Sentinels that this one knows, with itself.
    pub(super) fn sentinels(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns `true` if the primary is the server at `info`.
    pub(super) fn names(&self, info: &ConnectionInfo) -> bool {
        url::endpoint(info.addr()).as_ref() == Some(&self.primary)
    }
}

/// Asks a Sentinel about the primary `name`.
pub(super) async fn ask(
    connection: &mut MultiplexedConnection,
    address: &str,
    name: &str,
) -> Result<Answer, BackendError> {
    let mut request = redis::pipe();
    request.ignore_errors();
    for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER", "SENTINELS"] {
        request.cmd("SENTINEL").arg(question).arg(name);
    }
    let replies: RedisResult<Vec<RedisResult<Value>>> = request.query_async(connection).await;
    let replies = replies.map_err(|error| failed(error, address))?;
    let Ok([primary, state, others]) = <[_; 3]>::try_from(replies) else {
        return Err(not_a_sentinel(address));
    };
    let primary = primary.map_err(|error| failed(error, address))?;
    let primary: Option<Endpoint> =
        FromRedisValue::from_redis_value(primary).map_err(|_| not_a_sentinel(address))?;
    let Some(primary) = primary else {
        let message = format!(
            "the Sentinel at {address} monitors no primary named `{name}`; use the name of the \
             line `sentinel monitor` in its configuration"
        );
        return Err(BackendError::new(BackendErrorKind::Configuration, message));
    };
    // The user may have no right to the other two.
    let state: Option<Fields> = decode(state);
    let epoch = state.and_then(|state| state.get("config-epoch")?.parse().ok());
    Ok(Answer { primary, epoch, others: endpoints(others), named_by: address.to_owned() })
}

type Fields = HashMap<String, String>;

fn decode<T: FromRedisValue>(reply: RedisResult<Value>) -> Option<T> {
    FromRedisValue::from_redis_value(reply.ok()?).ok()
}

fn endpoints(reply: RedisResult<Value>) -> Vec<Endpoint> {
    let others: Vec<Fields> = decode(reply).unwrap_or_default();
    let endpoint =
        |other: &Fields| Some((other.get("ip")?.clone(), other.get("port")?.parse().ok()?));
    others.iter().filter_map(endpoint).collect()
}

/// The error of a request to a Sentinel, or of connecting to it.
pub(super) fn failed(error: RedisError, address: &str) -> BackendError {
    let error = error::of_connecting(error, address);
    match error.kind() {
        BackendErrorKind::Auth => {
            let message = format!(
                "the Sentinel at {address} rejects the credentials; set those of the Sentinels \
                 with `sentinel_credentials`"
            );
            BackendError::new(BackendErrorKind::Auth, message).with_source(error)
        }
        BackendErrorKind::Other | BackendErrorKind::Protocol => not_a_sentinel(address),
        kind => BackendError::new(kind, format!("the Sentinel at {address} cannot be asked"))
            .not_applied()
            .with_source(error),
    }
}

fn not_a_sentinel(address: &str) -> BackendError {
    let message = format!(
        "the server at {address} is not a Sentinel; give the addresses of the Sentinels, or \
         connect to a single server with its URL"
    );
    BackendError::new(BackendErrorKind::Configuration, message)
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn an_answer_succeeds_older_answers_that_name_another_primary() {
        let answer = Answer {
            primary: ("new".to_owned(), 6379),
            epoch: Some(2),
            others: Vec::new(),
            named_by: "sentinel:26379".to_owned(),
        };
        for (url, epoch, expected) in [
            ("redis://old:6379", Some(1), true),
            ("redis://old:6379", None, false),
            ("redis://new:6380", Some(1), true),
            ("redis://old:6379", Some(2), false),
            ("redis://old:6379", Some(3), false),
            ("redis://new:6379", Some(1), false),
        ] {
            let info = url.into_connection_info().unwrap();
            assert_eq!(answer.succeeds(&info, epoch), expected, "{url} {epoch:?}");
        }
    }
}
