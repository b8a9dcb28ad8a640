//! Acquisitions without a script, of a lock that is most likely free.
//!
//! A script costs the server several times as much as the commands in it. `RESTORE` creates a key
//! with a value and an expiry in one step, unless there is such a key, and the value of a lock with
//! one hold is known beforehand. So an acquisition is two commands: `RESTORE` of the hold, and
//! `INCRBY` of the last token. They are a transaction, because a token that is issued before or
//! after its hold may be out of order.
//!
//! Only a script can ask for the time, or look at the last token before it stores the next one. So
//! this way is for a lock whose last token the client knows, and is not far behind the clock or the
//! least token that the caller demands: see [`RecentTokens`](crate::server::RecentTokens). A script
//! decides the other cases: if the lock is held after all, or if the server refuses one of the
//! commands, nothing has been stored but a later last token, and the request is sent again as a
//! script.
//!
//! On a cluster, a transaction has keys in one slot only. So many acquisitions at one node share a
//! script with the same two commands for each, `batch_of_recent.lua`. It costs the client much less
//! than their transactions, and the server less once it is begun, which a few acquisitions are not
//! worth. It issues no token for a lock that is held, leaves no hold without a token, and raises a
//! last token that is too far behind the clock to be followed.
//!
//! A server writes its commands to the append-only file and sends them to its replicas. From Redis
//! 7.0 on, and in every Valkey, `RESTORE` is written with the time at which the key ends (`ABSTTL`),
//! as the files of Redis 7.0.15 and 8.0.2 and of Valkey 8.1.1 show. Redis 6.0 writes it as it came,
//! with a time that begins anew when the file is read: a crashed holder would free its lock only a
//! lease after a restart of the server (C3). All of them write the expiries that scripts set as
//! `PEXPIREAT`. So only scripts are sent to a server that is older, or does not tell its version.

use std::{iter, vec};

use crc::{CRC_64_REDIS, Crc};
use redis::{Cmd, Pipeline, ServerError, Value};

use crate::{
    error,
    exclusive::BatchableRequest,
    wire::{millis, token_ttl},
};

/// Adds the commands that carry acquisitions out, as one transaction.
pub(crate) fn add_commands<'a>(
    commands: &mut Pipeline,
    acquisitions: impl IntoIterator<Item = (&'a BatchableRequest, Sent)>,
) {
    let mut hold = Vec::new();
    commands.cmd("MULTI");
    for (request, sent) in acquisitions {
        let lock = request.keys.as_str();
        write_hash_with_one_hold(&mut hold, request.hold.owner());
        let mut restore = Cmd::with_capacity(4, 32 + lock.len() + hold.len());
        restore.arg("RESTORE").arg(lock).arg(millis(request.lease()).max(1)).arg(hold.as_slice());
        let mut issue = Cmd::with_capacity(3, 48 + lock.len());
        issue.arg("INCRBY").arg(request.keys.token()).arg(sent.step);
        commands.add_command(restore).add_command(issue);
    }
    commands.cmd("EXEC");
}

/// Adds the arguments of acquisitions by `batch_of_recent.lua`.
pub(crate) fn add_arguments<'a>(
    command: &mut Cmd,
    acquisitions: impl IntoIterator<Item = (&'a BatchableRequest, Sent)>,
) {
    let mut hold = Vec::new();
    for (request, sent) in acquisitions {
        write_hash_with_one_hold(&mut hold, request.hold.owner());
        command.arg(request.keys.as_str()).arg(request.keys.token());
        command.arg(millis(request.lease()).max(1)).arg(hold.as_slice());
        command.arg(sent.step).arg(sent.least);
    }
}

/// Replaces `dump` by a hash with the field `owner` and the value 1, as `DUMP` returns it: a type,
/// the value as in an RDB file, the version of that format, and a checksum of all this.
///
/// The type is the oldest one of a hash, and the version that of Redis 2.6, which all servers read.
fn write_hash_with_one_hold(dump: &mut Vec<u8>, owner: &str) {
    const HASH: u8 = 4;
    const FIELDS: u8 = 1;
    const VERSION: [u8; 2] = 6_u16.to_le_bytes();
    const CHECKSUM: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);
    dump.clear();
    dump.reserve(24 + owner.len());
    dump.extend([HASH, FIELDS]);
    add_length(dump, owner.len());
    dump.extend(owner.as_bytes());
    add_length(dump, 1);
    dump.push(b'1');
    dump.extend(VERSION);
    let checksum = CHECKSUM.checksum(dump);
    dump.extend(checksum.to_le_bytes());
}

/// Adds a length: in six bits of a byte, or in the four bytes that follow one.
fn add_length(dump: &mut Vec<u8>, length: usize) {
    const IN_FOUR_BYTES: u8 = 0x80;
    match u8::try_from(length) {
        Ok(short) if short < 64 => dump.push(short),
        // Names are shorter than 4 GiB.
        _ => {
            dump.push(IN_FOUR_BYTES);
            dump.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
}

/// The outcome of an acquisition without a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Restored {
    /// The lock is acquired, with this token as the last of its tokens.
    Granted { last: u64 },
    /// Nothing is acquired: the lock is held, or the server does not carry out such commands now.
    NotGranted,
    /// Nothing is acquired, nor will it ever be in this way: the user has no right to one of the
    /// commands, or the server does not have it.
    NotPossible,
    /// The lock may be acquired, but without a token that can be used: the last one was lost. If
    /// there was none, the command has made one, which has no expiry.
    WithoutToken { is_new: bool },
    /// The server has refused the transaction, and carried out the commands without it. If there was
    /// no last token, one of them has made one, which has no expiry.
    Unprotected { is_new: bool },
    /// The server has refused to end the transaction, and will not carry out anything else on this
    /// connection.
    Unfinished,
    /// The replies belong to other requests.
    Stray,
}

/// The token that an acquisition asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// `INCRBY` adds this number to the last token: that of the tokens to issue, or more if they have
    /// to be later.
    pub(crate) step: u64,
    /// The least token that may be the last one afterwards, unless it was lost.
    pub(crate) least: u64,
    /// Set if the last token is behind the clock. The script raises the next one to the least one.
    pub(crate) is_raised: bool,
}

impl Sent {
    /// For tokens that follow the last one.
    pub(crate) fn after(last: u64, step: u64) -> Self {
        Self { step, least: last.saturating_add(step), is_raised: false }
    }

    /// Returns `true` if the reply to `INCRBY` says that there was no last token.
    fn is_first(self, reply: &Value) -> bool {
        matches!(reply, Value::Int(last) if u64::try_from(*last) == Ok(self.step))
    }
}

/// Takes the replies to [`add_commands`], and adds the outcomes.
pub(crate) fn take_replies(
    replies: &mut vec::IntoIter<Value>,
    sent: impl ExactSizeIterator<Item = Sent>,
    outcomes: &mut Vec<Restored>,
) {
    let last = 2 * sent.len() + 1;
    match replies.as_slice().get(..=last) {
        Some([begun, queued @ .., ended]) => add_outcomes(begun, queued, ended, sent, outcomes),
        _ => outcomes.extend(iter::repeat_n(Restored::Stray, sent.len())),
    }
    replies.nth(last);
}

/// Adds the outcomes of a transaction, by the replies to `MULTI`, to the commands in it, and to
/// `EXEC`.
fn add_outcomes(
    begun: &Value,
    queued: &[Value],
    ended: &Value,
    sent: impl ExactSizeIterator<Item = Sent>,
    outcomes: &mut Vec<Restored>,
) {
    let is_queued = |reply: &Value| matches!(reply, Value::SimpleString(text) if text == "QUEUED");
    let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
    let outcome = match (begun, ended) {
        (Value::Okay, Value::Array(results))
            if queued.iter().all(is_queued) && results.len() == queued.len() =>
        {
            let results = results.chunks_exact(2).zip(sent);
            return outcomes.extend(results.map(|(results, sent)| Restored::of(results, sent)));
        }
        (Value::Okay, Value::ServerError(ended))
            if queued.iter().all(|reply| is_queued(reply) || is_error(reply)) =>
        {
            match queued.iter().find_map(refusal) {
                Some(refusal) => Restored::refused(refusal),
                None if ended.code() == "EXECABORT" => Restored::refused(ended),
                None if is_for_good(ended) => Restored::Unfinished,
                // An error of a node that does not serve the slot, or not all of it.
                None => Restored::NotGranted,
            }
        }
        (Value::ServerError(begun), Value::ServerError(_)) => match queued.iter().all(is_error) {
            true => Restored::refused(begun),
            // Without a transaction, each command took effect on its own.
            false => {
                let results = queued.chunks_exact(2).zip(sent);
                let is_new = |(results, sent): (&[Value], Sent)| sent.is_first(&results[1]);
                let unprotected = |each| Restored::Unprotected { is_new: is_new(each) };
                return outcomes.extend(results.map(unprotected));
            }
        },
        _ => Restored::Stray,
    };
    outcomes.extend(iter::repeat_n(outcome, sent.len()));
}

impl Restored {
    /// Reads the results of one acquisition in a transaction.
    fn of(results: &[Value], sent: Sent) -> Self {
        match results {
            [Value::Okay, Value::Int(last)] => match u64::try_from(*last) {
                Ok(last) if last >= sent.least => Self::Granted { last },
                _ => Self::WithoutToken { is_new: sent.is_first(&results[1]) },
            },
            [Value::Okay, Value::ServerError(_)] => Self::WithoutToken { is_new: false },
            // The lock is held, but its last token was lost.
            [Value::ServerError(_), issued] if sent.is_first(issued) => {
                Self::WithoutToken { is_new: true }
            }
            [Value::ServerError(refusal), Value::Int(_) | Value::ServerError(_)] => {
                Self::refused(refusal)
            }
            _ => Self::Stray,
        }
    }

    /// Reads the reply of `batch_of_recent.lua` to one acquisition.
    pub(crate) fn of_script(reply: &Value, sent: Sent) -> Self {
        match reply {
            Value::Int(0) => Self::NotGranted,
            Value::Int(last) => match u64::try_from(*last) {
                Ok(last) if last >= sent.least => Self::Granted { last },
                _ => Self::Stray,
            },
            Value::ServerError(refusal) => Self::refused(refusal),
            _ => Self::Stray,
        }
    }

    /// The outcome if the last reply belongs to another request: then these may as well.
    pub(crate) fn out_of_step(self) -> Self {
        match self {
            Self::Granted { .. } | Self::NotGranted | Self::WithoutToken { .. } => Self::Stray,
            of_the_user => of_the_user,
        }
    }

    fn refused(refusal: &ServerError) -> Self {
        if is_for_good(refusal) { Self::NotPossible } else { Self::NotGranted }
    }
}

/// Adds the commands that undo an acquisition [without a token](Restored::WithoutToken).
pub(crate) fn add_undo(commands: &mut Pipeline, request: &BatchableRequest, is_new: bool) {
    if is_new {
        // The next script gives it the usual expiry. One without an expiry would be kept for ever.
        commands.cmd("PEXPIRE").arg(request.keys.token()).arg(token_ttl(request.lease()));
    }
    request.add_release(commands);
}

/// Takes the replies to [`add_undo`]. Returns whether the acquisition is undone, or `None` if the
/// replies belong to other requests.
pub(crate) fn take_undone(
    replies: &mut impl Iterator<Item = Value>,
    request: &BatchableRequest,
    is_new: bool,
) -> Option<bool> {
    let is_done = |reply| match reply {
        Value::Int(_) => Some(true),
        Value::ServerError(_) => Some(false),
        _ => None,
    };
    let has_expiry = !is_new || is_done(replies.next().unwrap_or(Value::Nil))?;
    Some(is_done(request.take_released(replies))? && has_expiry)
}

fn refusal(reply: &Value) -> Option<&ServerError> {
    match reply {
        Value::ServerError(refusal) => Some(refusal),
        _ => None,
    }
}

/// Returns `true` if the next attempt will be refused as well. Other refusals have codes of their
/// own: `BUSYKEY`, `OOM`, `MOVED`, `READONLY` and the like. A transaction that is discarded at its
/// end has the code further back.
fn is_for_good(refusal: &ServerError) -> bool {
    let is_of_right =
        |details: &str| details.contains("NOPERM") || details.contains("no permissions");
    match refusal.code() {
        "EXECABORT" => refusal.details().is_some_and(is_of_right),
        "ERR" => {
            !refusal.details().is_some_and(|text| error::is_of_slot(text) || is_of_value(text))
        }
        code => code == "NOPERM",
    }
}

/// Returns `true` for an error of `INCRBY` that concerns the stored token.
fn is_of_value(text: &str) -> bool {
    text.contains("not an integer") || text.contains("would overflow")
}

#[cfg(test)]
mod tests {
    use lockcore_testkit::RedisServer;

    use super::*;

    fn text(text: &str) -> Value {
        Value::SimpleString(text.into())
    }

    fn error(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    fn sent<const N: usize>(sent: [(u64, u64); N]) -> impl ExactSizeIterator<Item = Sent> {
        sent.into_iter().map(|(last, step)| Sent::after(last, step))
    }

    /// The outcome of one acquisition, by the replies to `MULTI`, `RESTORE`, `INCRBY` and `EXEC`.
    fn outcome(replies: [Value; 4]) -> Restored {
        let mut outcomes = Vec::new();
        take_replies(&mut Vec::from(replies).into_iter(), sent([(7, 1)]), &mut outcomes);
        let [outcome] = outcomes.try_into().unwrap();
        outcome
    }

    /// The outcome of a transaction with these results.
    fn executed(results: Vec<Value>) -> Restored {
        outcome([Value::Okay, text("QUEUED"), text("QUEUED"), Value::Array(results)])
    }

    #[tokio::test]
    async fn the_server_restores_the_hold_of_any_owner() {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let lengths = [1, 2, 36, 63, 64, 65, 255, 256, 16_383, 16_384, 70_000];
        for owner in lengths.map(|length| "o".repeat(length)).iter().chain(["ä:\0\n".into()].iter())
        {
            let mut hold = Vec::new();
            write_hash_with_one_hold(&mut hold, owner);
            let mut command = redis::cmd("RESTORE");
            command.arg("lock").arg(30_000).arg(hold);
            let restored: String = command.query_async(&mut connection).await.unwrap();
            assert_eq!(restored, "OK");
            let hash: Vec<String> = server.query(&["HGETALL", "lock"]).await;
            assert_eq!(hash, [owner.as_str(), "1"]);
            let count: i64 = server.query(&["HINCRBY", "lock", owner, "1"]).await;
            assert_eq!(count, 2);
            let _: i64 = server.query(&["DEL", "lock"]).await;
        }
    }

    #[test]
    fn a_transaction_grants_a_lock_or_does_not() {
        let busy = || error("BUSYKEY Target key name already exists.");
        assert_eq!(executed(vec![Value::Okay, Value::Int(8)]), Restored::Granted { last: 8 });
        assert_eq!(executed(vec![busy(), Value::Int(8)]), Restored::NotGranted);
        // The last token was lost, and the command has made a new one.
        let new = Restored::WithoutToken { is_new: true };
        assert_eq!(executed(vec![busy(), Value::Int(1)]), new);
        let broken = error("ERR DUMP payload version or checksum are wrong");
        assert_eq!(executed(vec![broken, Value::Int(8)]), Restored::NotPossible);
    }

    #[test]
    fn a_hold_without_a_later_token_is_told_from_one_that_was_not_granted() {
        let wrong_type = error("WRONGTYPE Operation against a key");
        let tokens = [(Value::Int(7), false), (Value::Int(1), true), (Value::Int(-1), false)];
        for (token, is_new) in tokens.into_iter().chain([(wrong_type, false)]) {
            let outcome = executed(vec![Value::Okay, token]);
            assert_eq!(outcome, Restored::WithoutToken { is_new });
        }
        // The server has refused `MULTI` and `EXEC`, and carried the others out.
        let refused = || error("NOPERM No permissions to run the 'multi' command");
        let held = error("BUSYKEY Target key name already exists.");
        for (hold, token, is_new) in [
            (Value::Okay, Value::Int(8), false),
            (Value::Okay, Value::Int(1), true),
            (held, Value::Int(1), true),
            (Value::Okay, refused(), false),
        ] {
            let replies = [refused(), hold, token, refused()];
            assert_eq!(outcome(replies), Restored::Unprotected { is_new });
        }
    }

    #[test]
    fn a_script_grants_a_lock_or_does_not() {
        let outcome = |reply| Restored::of_script(&reply, Sent::after(7, 2));
        assert_eq!(outcome(Value::Int(9)), Restored::Granted { last: 9 });
        for refusal in [
            "BUSYKEY Target key name already exists.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR value is not an integer or out of range",
        ] {
            assert_eq!(outcome(error(refusal)), Restored::NotGranted, "{refusal}");
        }
        let forbidden = error("ERR The user executing the script can't run this command");
        assert_eq!(outcome(forbidden), Restored::NotPossible);
        // The last token was lost.
        assert_eq!(outcome(Value::Int(0)), Restored::NotGranted);
        for stray in [Value::Nil, Value::Okay, Value::Int(8), Value::Int(-1)] {
            assert_eq!(outcome(stray), Restored::Stray);
        }
    }

    #[test]
    fn a_transaction_that_is_refused_grants_nothing() {
        let aborted = || error("EXECABORT Transaction discarded because of previous errors.");
        for (line, expected) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", Restored::NotGranted),
            ("MOVED 1 127.0.0.1:7000", Restored::NotGranted),
            ("READONLY You can't write against a read only replica.", Restored::NotGranted),
            ("NOPERM No permissions to run the 'restore' command", Restored::NotPossible),
            ("ERR unknown command 'RESTORE', with args beginning with:", Restored::NotPossible),
            (
                "ERR Script attempted to access a non local key in a cluster node",
                Restored::NotGranted,
            ),
        ] {
            let replies = [Value::Okay, error(line), text("QUEUED"), aborted()];
            assert_eq!(outcome(replies), expected, "{line}");
            let replies = [error(line), error(line), error(line), error(line)];
            assert_eq!(outcome(replies), expected, "{line}");
        }
    }

    #[test]
    fn a_transaction_that_does_not_end_is_recognized() {
        let ends_with =
            |line: &str| outcome([Value::Okay, text("QUEUED"), text("QUEUED"), error(line)]);
        let refused = "NOPERM this user has no permissions to run the 'exec' command";
        assert_eq!(ends_with(refused), Restored::Unfinished);
        let discarded = "EXECABORT Transaction discarded because of: ";
        assert_eq!(ends_with(&format!("{discarded}{refused}")), Restored::NotPossible);
        let out_of_memory = format!("{discarded}OOM command not allowed");
        for line in [&out_of_memory, "TRYAGAIN Multiple keys request", "MOVED 1 127.0.0.1:7000"] {
            assert_eq!(ends_with(line), Restored::NotGranted, "{line}");
        }
    }

    #[test]
    fn replies_of_other_requests_are_recognized() {
        let results = || Value::Array(vec![Value::Okay, Value::Int(8)]);
        let queued = || text("QUEUED");
        for replies in [
            [Value::Okay, queued(), queued(), Value::Int(1)],
            [Value::Int(1), queued(), queued(), results()],
            [Value::Okay, queued(), Value::Int(8), results()],
            [Value::Okay, queued(), queued(), Value::Array(vec![Value::Okay])],
            [Value::Okay, queued(), queued(), Value::Array(vec![Value::Int(8), Value::Okay])],
            [queued(), queued(), results(), error("ERR no")],
            [Value::Okay, Value::Okay, queued(), error("ERR no")],
            [Value::Nil, Value::Nil, Value::Nil, Value::Nil],
        ] {
            assert_eq!(outcome(replies.clone()), Restored::Stray, "{replies:?}");
        }
    }

    #[test]
    fn each_acquisition_of_a_transaction_has_its_own_outcome() {
        let busy = error("BUSYKEY Target key name already exists.");
        let mut replies = vec![Value::Okay];
        replies.extend([(); 6].map(|()| text("QUEUED")));
        let results = [Value::Okay, Value::Int(5), busy, Value::Int(9), Value::Okay, Value::Int(2)];
        replies.extend([Value::Array(results.into()), Value::Int(42)]);
        let mut replies = replies.into_iter();
        let mut outcomes = Vec::new();
        take_replies(&mut replies, sent([(4, 1), (8, 1), (3, 2)]), &mut outcomes);
        let new = Restored::WithoutToken { is_new: true };
        let expected = [Restored::Granted { last: 5 }, Restored::NotGranted, new];
        assert_eq!(outcomes, expected);
        assert_eq!(replies.next(), Some(Value::Int(42)), "the next reply is not taken");
    }
}
