//! Decoding of what the scripts return. Pure.

use std::time::Duration;

use lockcore::{
    AcquireOutcome, BackendError, BackendErrorKind, FencingToken, Holder, LockState, Mode, ReleaseOutcome,
    RenewOutcome,
};
use redis::{Value, from_redis_value};

use crate::error;

pub(crate) fn acquire(reply: Value) -> Result<AcquireOutcome, BackendError> {
    let not_understood = || error::unexpected("acquire");
    let Value::Array(parts) = reply else { return Err(not_understood()) };
    match parts.as_slice() {
        [Value::Int(1), token] => {
            let token: u64 = from_redis_value(token.clone()).map_err(|_| not_understood())?;
            Ok(AcquireOutcome::Acquired { token: FencingToken::from(token) })
        }
        [Value::Int(0), Value::Int(left)] => Ok(AcquireOutcome::Held { remaining: millis(*left) }),
        [Value::Int(2)] => Ok(AcquireOutcome::NotHeld),
        _ => Err(not_understood()),
    }
}

pub(crate) fn renew(reply: Value) -> Result<Vec<RenewOutcome>, BackendError> {
    let Value::Array(parts) = reply else { return Err(error::unexpected("renew")) };
    Ok(parts.into_iter().map(renewed).collect())
}

fn renewed(part: Value) -> RenewOutcome {
    match part {
        Value::Int(1) => RenewOutcome::Renewed,
        Value::Int(0) => RenewOutcome::NotHeld,
        part => RenewOutcome::Failed(match from_redis_value::<String>(part) {
            Ok(text) => error::of_text(&text),
            Err(_) => error::unexpected("renew"),
        }),
    }
}

pub(crate) fn release(reply: &Value) -> Result<ReleaseOutcome, BackendError> {
    match reply {
        Value::Int(1) => Ok(ReleaseOutcome::Released),
        Value::Int(2) => Ok(ReleaseOutcome::StillHeld),
        Value::Int(0) => Ok(ReleaseOutcome::NotHeld),
        _ => Err(error::unexpected("release")),
    }
}

pub(crate) fn force_release(reply: &Value) -> Result<bool, BackendError> {
    match reply {
        Value::Int(held @ (0 | 1)) => Ok(*held == 1),
        _ => Err(error::unexpected("force_release")),
    }
}

pub(crate) fn inspect(reply: Value) -> Result<LockState, BackendError> {
    let not_understood = || error::unexpected("inspect");
    let Value::Array(parts) = reply else { return Err(not_understood()) };
    let Some((Value::Int(left), fields)) = parts.split_first() else { return Err(not_understood()) };
    let holders = fields.chunks(2).map(holder).collect::<Option<Vec<_>>>();
    let holders = holders.ok_or_else(|| {
        BackendError::new(BackendErrorKind::WrongType, "the hash under this name is not a lock").not_applied()
    })?;
    Ok(if holders.is_empty() { LockState::free() } else { LockState::held(holders, millis(*left)) })
}

fn holder(field: &[Value]) -> Option<Holder> {
    let [owner, count] = field else { return None };
    let owner: String = from_redis_value(owner.clone()).ok()?;
    let count: u32 = from_redis_value(count.clone()).ok()?;
    Some(Holder::new(owner, Mode::Exclusive, count))
}

/// What `PTTL` says; nothing for a key without an expiry.
fn millis(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn decodes_every_reply_of_acquire_and_nothing_else() {
        let acquired = acquire(Value::Array(vec![Value::Int(1), text("1790000000000000")])).unwrap();
        assert_eq!(acquired, AcquireOutcome::Acquired { token: FencingToken::from(1_790_000_000_000_000) });
        let held = acquire(Value::Array(vec![Value::Int(0), Value::Int(1500)])).unwrap();
        assert_eq!(held, AcquireOutcome::Held { remaining: Some(Duration::from_millis(1500)) });
        let endless = acquire(Value::Array(vec![Value::Int(0), Value::Int(-1)])).unwrap();
        assert_eq!(endless, AcquireOutcome::Held { remaining: None });
        assert_eq!(acquire(Value::Array(vec![Value::Int(2)])).unwrap(), AcquireOutcome::NotHeld);
        for odd in
            [Value::Nil, Value::Int(1), Value::Array(vec![]), Value::Array(vec![Value::Int(1), text("x")])]
        {
            assert_eq!(acquire(odd).unwrap_err().kind(), BackendErrorKind::Protocol);
        }
    }

    #[test]
    fn one_failed_renewal_does_not_spoil_the_others() {
        let replies =
            renew(Value::Array(vec![Value::Int(1), text("WRONGTYPE Operation"), Value::Int(0)])).unwrap();
        assert!(matches!(
            replies.as_slice(),
            [RenewOutcome::Renewed, RenewOutcome::Failed(error), RenewOutcome::NotHeld]
                if error.kind() == BackendErrorKind::WrongType
        ));
    }

    #[test]
    fn a_hash_that_is_no_lock_is_reported_as_such() {
        let reply = Value::Array(vec![Value::Int(-1), text("name"), text("Ada")]);
        assert_eq!(inspect(reply).unwrap_err().kind(), BackendErrorKind::WrongType);
        assert!(!inspect(Value::Array(vec![Value::Int(-2)])).unwrap().is_held());
    }
}
