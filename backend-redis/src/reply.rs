//! Decoding of the replies of scripts. Pure: no I/O and no clock.

use std::time::Duration;

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, Holder, LockState, Mode,
    backend::{AcquireOutcome, ReleaseOutcome, RenewOutcome, ResizeOutcome},
};
use redis::{Value, from_redis_value};

use crate::error;

pub(crate) fn acquire(reply: Value) -> Result<AcquireOutcome, BackendError> {
    let unexpected = || error::unexpected("acquire");
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    match parts.as_slice() {
        [Value::Int(1), token] | [Value::Int(1), token, Value::Int(_)] => {
            let token: u64 = from_redis_value(token.clone()).map_err(|_| unexpected())?;
            Ok(AcquireOutcome::Acquired { token: FencingToken::from(token) })
        }
        [Value::Int(0), Value::Int(ms)] => Ok(AcquireOutcome::Held { remaining: millis(*ms) }),
        [Value::Int(2)] => Ok(AcquireOutcome::NotHeld),
        [Value::Int(3), Value::Int(limit)] => {
            Ok(AcquireOutcome::TooMany { limit: saturated(*limit) })
        }
        _ => Err(unexpected()),
    }
}

/// Decodes the reply to a renewal of `count` holds.
pub(crate) fn renew(reply: Value, count: usize) -> Result<Vec<RenewOutcome>, BackendError> {
    match reply {
        Value::Array(parts) if parts.len() == count => parts.into_iter().map(renewed).collect(),
        _ => Err(error::unexpected("renew")),
    }
}

fn renewed(part: Value) -> Result<RenewOutcome, BackendError> {
    match part {
        Value::Int(1) => Ok(RenewOutcome::Renewed),
        Value::Int(0) => Ok(RenewOutcome::NotHeld),
        Value::BulkString(text) => {
            Ok(RenewOutcome::Failed(error::of_text(&String::from_utf8_lossy(&text))))
        }
        _ => Err(error::unexpected("renew")),
    }
}

pub(crate) fn release(reply: Value) -> Result<ReleaseOutcome, BackendError> {
    match reply {
        Value::Int(1) => Ok(ReleaseOutcome::Released),
        Value::Int(2) => Ok(ReleaseOutcome::StillHeld),
        Value::Int(0) => Ok(ReleaseOutcome::NotHeld),
        _ => Err(error::unexpected("release")),
    }
}

pub(crate) fn resize(reply: Value) -> Result<ResizeOutcome, BackendError> {
    Ok(match flag(&reply, "resize")? {
        true => ResizeOutcome::Resized,
        false => ResizeOutcome::AlreadySet,
    })
}

/// Decodes a reply of 1 or 0. `doing` names the operation.
pub(crate) fn flag(reply: &Value, doing: &str) -> Result<bool, BackendError> {
    match reply {
        Value::Int(flag @ (0 | 1)) => Ok(*flag == 1),
        _ => Err(error::unexpected(doing)),
    }
}

/// Decodes a number. Other clients may have stored one out of our range, so it saturates.
pub(crate) fn number(reply: Value, doing: &str) -> Result<u32, BackendError> {
    from_redis_value::<i64>(reply).map(saturated).map_err(|_| error::unexpected(doing))
}

fn saturated(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Decodes the reply to a count of the subscriptions to `channel`.
pub(crate) fn has_subscriptions(reply: &Value, channel: &str) -> Result<bool, BackendError> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [name, Value::Int(count)] if text(name).as_deref() == Some(channel) => Ok(*count > 0),
            _ => Err(error::unexpected("PUBSUB")),
        },
        _ => Err(error::unexpected("PUBSUB")),
    }
}

pub(crate) fn inspect(reply: Value) -> Result<LockState, BackendError> {
    let unexpected = || error::unexpected("inspect");
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    let [Value::BulkString(kind), Value::Int(ms), Value::Array(holds), rest @ ..] =
        parts.as_slice()
    else {
        return Err(unexpected());
    };
    let state = |holders| LockState::held(holders, millis(*ms));
    match (kind.as_slice(), rest) {
        (b"exclusive", [Value::Array(waiting)]) => {
            let holders =
                holds.chunks(2).map(exclusive_holder).collect::<Option<_>>().ok_or_else(|| {
                    let message = "the hash stored under the name is not a lock";
                    BackendError::new(BackendErrorKind::WrongType, message).not_applied()
                })?;
            let waiters = waiting.iter().map(text).collect::<Option<_>>();
            waiters.map(|waiters| state(holders).with_waiters(waiters))
        }
        (b"read_write", [Value::Array(waiting)]) => {
            let waiters = waiting.iter().map(waiting_writer).collect::<Option<_>>();
            let holders = holds.chunks(3).map(read_write_holder).collect::<Option<_>>();
            holders.zip(waiters).map(|(holders, waiters)| state(holders).with_waiters(waiters))
        }
        (kind, [Value::Int(available), Value::Int(total), Value::Array(others)]) => {
            let (available, total) = (saturated(*available), saturated(*total));
            // There is no record of plain permits that Redisson took, so their total is unknown.
            let (mode, limit): (fn(u32, u32) -> Mode, _) = match kind {
                b"plain" => (Mode::plain_permits, None),
                _ => (Mode::permits, Some(total)),
            };
            let ours = holds.chunks(2).map(|hold| permits_holder(hold, |count| mode(count, total)));
            let others = others.iter().map(|id| foreign_permit_holder(id, mode(1, total)));
            let holders = ours.chain(others).collect::<Option<_>>();
            holders.map(|holders| state(holders).with_permits(available, limit))
        }
        _ => None,
    }
    .ok_or_else(unexpected)
}

pub(crate) fn text(value: &Value) -> Option<String> {
    from_redis_value(value.clone()).ok()
}

fn count(value: &Value) -> Option<u32> {
    from_redis_value(value.clone()).ok()
}

fn exclusive_holder(hold: &[Value]) -> Option<Holder> {
    let [owner, hold_count] = hold else { return None };
    Some(Holder::new(text(owner)?, Mode::Exclusive, count(hold_count)?))
}

fn read_write_holder(hold: &[Value]) -> Option<Holder> {
    let [owner, Value::BulkString(mode), hold_count] = hold else { return None };
    let mode = if mode == b"write" { Mode::Write } else { Mode::Read };
    Some(Holder::new(text(owner)?, mode, count(hold_count)?))
}

/// The owner of a waiting writer, which is stored as `<id> <owner>`.
fn waiting_writer(entry: &Value) -> Option<String> {
    let entry = text(entry)?;
    entry.split_once(' ').map(|(_, owner)| owner.to_owned())
}

fn permits_holder(hold: &[Value], mode: impl FnOnce(u32) -> Mode) -> Option<Holder> {
    let [owner, permits] = hold else { return None };
    Some(Holder::new(text(owner)?, mode(count(permits)?), 1))
}

/// The holder of a permit that Redisson took. It has no owner: the id takes its place, in
/// hexadecimal digits as in Redisson.
fn foreign_permit_holder(id: &Value, mode: Mode) -> Option<Holder> {
    let Value::BulkString(id) = id else { return None };
    Some(Holder::new(hex(id), mode, 1))
}

/// The bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Converts a reply of `PTTL`. Returns `None` for a key without an expiry.
fn millis(remaining: i64) -> Option<Duration> {
    u64::try_from(remaining).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn every_reply_of_acquire_is_decoded_and_others_are_refused() {
        let acquired =
            acquire(Value::Array(vec![Value::Int(1), bulk("1790000000000000")])).unwrap();
        assert_eq!(
            acquired,
            AcquireOutcome::Acquired { token: FencingToken::from(1_790_000_000_000_000) }
        );
        let held = acquire(Value::Array(vec![Value::Int(0), Value::Int(1500)])).unwrap();
        assert_eq!(held, AcquireOutcome::Held { remaining: Some(Duration::from_millis(1500)) });
        let endless = acquire(Value::Array(vec![Value::Int(0), Value::Int(-1)])).unwrap();
        assert_eq!(endless, AcquireOutcome::Held { remaining: None });
        assert_eq!(acquire(Value::Array(vec![Value::Int(2)])).unwrap(), AcquireOutcome::NotHeld);
        for unknown in [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1), bulk("x")]),
        ] {
            assert_eq!(acquire(unknown).unwrap_err().kind(), BackendErrorKind::Protocol);
        }
    }

    #[test]
    fn one_failed_renewal_does_not_spoil_the_others() {
        let replies =
            renew(Value::Array(vec![Value::Int(1), bulk("WRONGTYPE Operation"), Value::Int(0)]), 3)
                .unwrap();
        assert!(matches!(
            replies.as_slice(),
            [RenewOutcome::Renewed, RenewOutcome::Failed(error), RenewOutcome::NotHeld]
                if error.kind() == BackendErrorKind::WrongType
        ));
    }

    #[test]
    fn a_hash_that_is_not_a_lock_has_the_wrong_type() {
        let fields = Value::Array(vec![bulk("name"), bulk("Ada")]);
        let empty = Value::Array(Vec::new());
        let reply = Value::Array(vec![bulk("exclusive"), Value::Int(-1), fields, empty.clone()]);
        assert_eq!(inspect(reply).unwrap_err().kind(), BackendErrorKind::WrongType);
        let reply = Value::Array(vec![bulk("read_write"), Value::Int(-2), empty.clone(), empty]);
        assert_eq!(inspect(reply).unwrap(), LockState::free());
        assert_eq!(inspect(Value::Array(vec![])).unwrap_err().kind(), BackendErrorKind::Protocol);
    }
}
