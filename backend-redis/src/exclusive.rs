//! Exclusive and fair locks.

use std::time::Duration;

use lockcore::{
    BackendError, FencingToken, Mode,
    backend::{AcquireRequest, HoldId, ReleaseRequest, RenewRequest},
};
use redis::{Cmd, Pipeline, Value};

use crate::{
    cluster::Publishing,
    keys::LockKeys,
    renewal::Renewal,
    script::{self, CallSize, LuaScript, ScriptCall},
    wire::{has_usual_token_ttl, millis, token_ttl},
};

/// A request that can be sent in a batch: an acquisition or a full release of an exclusive hold,
/// not nested, by an owner without a name.
#[derive(Clone, Debug)]
pub(crate) struct BatchableRequest {
    pub(crate) keys: LockKeys,
    pub(crate) hold: HoldId,
    pub(crate) operation: BatchOperation,
    /// On a node of a cluster: how its scripts publish.
    pub(crate) publishing: Option<Publishing>,
    /// The answer to an acquisition if the lock is not free: see [`AcquireRequest::held_for`].
    pub(crate) held_for: Option<Duration>,
}

/// The operation of a [`BatchableRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOperation {
    Release,
    /// `least` is the least token to issue: see [`AcquireRequest::least_token`].
    Acquire {
        lease: Duration,
        tokens: u32,
        least: Option<u64>,
    },
}

impl BatchableRequest {
    /// Returns `true` if the request can be sent in a batch.
    pub(crate) fn can_acquire(request: &AcquireRequest) -> bool {
        let AcquireRequest { mode, count, hold, .. } = request;
        *mode == Mode::Exclusive && *count == 1 && !hold.is_named()
    }

    pub(crate) fn acquire(keys: LockKeys, request: &AcquireRequest) -> Self {
        let AcquireRequest { lease, tokens, held_for, .. } = *request;
        let least = request.least_token.map(u64::from);
        Self {
            keys,
            hold: request.hold.clone(),
            operation: BatchOperation::Acquire { lease, tokens, least },
            publishing: None,
            held_for,
        }
    }

    /// Returns `true` if the request can be sent in a batch.
    pub(crate) fn can_release(request: &ReleaseRequest) -> bool {
        let ReleaseRequest { hold, mode, remaining, is_undo, .. } = request;
        // The script publishes only if there is such a hold. Undoing is rare.
        *mode == Mode::Exclusive && *remaining == 0 && !hold.is_named() && !is_undo
    }

    pub(crate) fn release(keys: LockKeys, request: &ReleaseRequest) -> Self {
        let (hold, operation) = (request.hold.clone(), BatchOperation::Release);
        Self { keys, hold, operation, publishing: None, held_for: None }
    }

    /// The same request to a node of a cluster.
    pub(crate) fn on_node(self, publishing: Publishing) -> Self {
        Self { publishing: Some(publishing), ..self }
    }

    /// The script of the request, which also names it in errors.
    pub(crate) fn script(&self) -> &'static LuaScript {
        match self.operation {
            BatchOperation::Release => &script::RELEASE,
            BatchOperation::Acquire { .. } => &script::ACQUIRE,
        }
    }

    /// The call of that script. Releases are sent without it, except to a node that their slot is
    /// on its way to.
    pub(crate) fn call(&self) -> ScriptCall {
        let (lock, owner) = (self.keys.lock(), self.hold.owner().to_owned());
        let (keys, args) = match self.operation {
            BatchOperation::Release => {
                let args = vec![owner, "0".into(), self.keys.channel().to_string(), String::new()];
                (vec![lock], args)
            }
            BatchOperation::Acquire { lease, tokens, least } => {
                let [lease, ttl] = [millis(lease), token_ttl(lease)].map(|ms| ms.to_string());
                let tokens = tokens.to_string();
                let mut args = vec![owner, lease, "1".into(), ttl, String::new(), tokens];
                if let Some(least) = least {
                    args.extend([self.keys.channel().to_string(), least.to_string()]);
                }
                (vec![lock, self.keys.token().to_string()], args)
            }
        };
        ScriptCall { script: self.script(), keys, args, optional: 0 }
    }

    /// Adds the commands of a release. The owner is unique to the hold, so HDEL deletes that hold
    /// or nothing. With the last field the lock is gone. The message is sent even if there was
    /// nothing to delete: the release may be repeated because both its reply and its message were
    /// lost.
    pub(crate) fn add_release(&self, commands: &mut Pipeline) {
        let mut delete = Cmd::with_capacity(3, self.bytes());
        delete.arg("HDEL").arg(self.keys.as_str()).arg(self.hold.owner());
        commands.add_command(delete);
        for publish in self.publish_commands() {
            let mut message = Cmd::with_capacity(3, self.bytes());
            message.arg(publish).arg(self.keys.channel()).arg(0);
            commands.add_command(message);
        }
    }

    /// Takes the replies to [`add_release`](Self::add_release). Returns the first one, or nil if
    /// one of them cannot belong to its command.
    pub(crate) fn take_released(&self, replies: &mut impl Iterator<Item = Value>) -> Value {
        let first = replies.next().unwrap_or(Value::Nil);
        let is_count = |reply: &Value| matches!(reply, Value::Int(_) | Value::ServerError(_));
        // All are taken.
        let messages = replies.take(self.publish_commands().len());
        let do_fit = messages.filter(|reply| !is_count(reply)).count() == 0 && is_count(&first);
        if do_fit { first } else { Value::Nil }
    }

    /// The names of the commands that publish a message.
    fn publish_commands(&self) -> &'static [&'static str] {
        self.publishing.unwrap_or(Publishing::Plain).commands()
    }

    /// The reply of the script if the lock is held for `remaining`.
    pub(crate) fn refusal(remaining: Duration) -> Value {
        let ms = i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX);
        Value::Array(vec![Value::Int(0), Value::Int(ms)])
    }

    /// The script that acquires the lock. `proposed` is the first of the tokens to issue, if the
    /// server's clock is known.
    pub(crate) fn acquire_command(&self, by_digest: bool, proposed: Option<u64>) -> Cmd {
        let lease = self.lease();
        let size = CallSize { keys: 2, args: 6, bytes: self.bytes() };
        let mut command = script::ACQUIRE_FREE.command(by_digest, self.publishing, size);
        command.arg(self.keys.as_str()).arg(self.keys.token());
        let is_kept_as_usual = self.has_usual_token_ttl();
        let first = proposed.filter(|_| is_kept_as_usual).unwrap_or_default();
        let last = self.last_of(first);
        command.arg(self.hold.owner()).arg(millis(lease)).arg(first).arg(last);
        if !is_kept_as_usual || self.least().is_some() {
            command.arg(token_ttl(lease));
        }
        if let Some(least) = self.least() {
            command.arg(least);
        }
        command
    }

    /// The lease of an acquisition.
    pub(crate) fn lease(&self) -> Duration {
        match self.operation {
            BatchOperation::Release => Duration::ZERO,
            BatchOperation::Acquire { lease, .. } => lease,
        }
    }

    /// The number of tokens to issue, at least 1.
    pub(crate) fn tokens(&self) -> u64 {
        match self.operation {
            BatchOperation::Release => 1,
            BatchOperation::Acquire { tokens, .. } => tokens.max(1).into(),
        }
    }

    /// The least token to issue, if the request has one.
    pub(crate) fn least(&self) -> Option<u64> {
        match self.operation {
            BatchOperation::Release => None,
            BatchOperation::Acquire { least, .. } => least,
        }
    }

    /// The last of the tokens, if this is the first.
    pub(crate) fn last_of(&self, first: u64) -> u64 {
        first.saturating_add(self.tokens() - 1)
    }

    /// Returns `true` if the last token is kept for no longer than usual.
    pub(crate) fn has_usual_token_ttl(&self) -> bool {
        has_usual_token_ttl(self.lease())
    }

    /// Returns `true` if the request can be answered by checking whether the lock exists, unless it
    /// is free. On a node of a cluster, the locks of a batch are in different slots.
    pub(crate) fn can_look(&self) -> bool {
        // A member of a quorum may be held for another time than the others.
        self.held_for.is_some() && self.publishing.is_none() && self.least().is_none()
    }

    pub(crate) fn is_release(&self) -> bool {
        self.operation == BatchOperation::Release
    }

    /// An estimate of the size of the keys and arguments in bytes.
    pub(crate) fn bytes(&self) -> usize {
        64 + 2 * self.keys.as_str().len() + self.hold.owner().len()
    }
}

pub(crate) fn acquire(keys: &LockKeys, request: &AcquireRequest) -> ScriptCall {
    let (script, names) = match request.mode {
        Mode::Fair => (&script::ACQUIRE_FAIR, fair_keys(keys)),
        _ if request.hold.is_named() => {
            (&script::ACQUIRE, vec![keys.lock(), keys.token().to_string(), keys.hold()])
        }
        _ => (&script::ACQUIRE, vec![keys.lock(), keys.token().to_string()]),
    };
    let mut args = vec![
        request.hold.owner().into(),
        millis(request.lease).to_string(),
        request.count.to_string(),
        token_ttl(request.lease).to_string(),
        id_if_named(&request.hold),
        if request.mode == Mode::Fair {
            millis(request.queue.unwrap_or_default()).to_string()
        } else {
            request.tokens.to_string()
        },
        keys.channel().to_string(),
    ];
    if request.mode == Mode::Fair {
        let number = request.direct_grant.filter(|_| !request.hold.is_named());
        args.push(number.map(|number| number.to_string()).unwrap_or_default());
    } else if let Some(least) = request.least_token {
        args.push(least.to_string());
    }
    ScriptCall { script, keys: names, args, optional: 0 }
}

/// Refuses a token that scripts cannot count up from: their numbers are exact only below 2^53.
pub(crate) fn check_token(token: FencingToken) -> Result<(), BackendError> {
    const GREATEST: u64 = (1 << 53) - (1 << 33);
    if u64::from(token) <= GREATEST {
        return Ok(());
    }
    Err(BackendError::unsupported(format_args!("tokens greater than {GREATEST}")))
}

/// Other connections may remember an earlier last token. Their next acquisition without a script adds
/// to the token that is stored by then.
pub(crate) fn raise_token(keys: &LockKeys, token: FencingToken) -> ScriptCall {
    let args = vec![token.to_string(), token_ttl(Duration::ZERO).to_string()];
    ScriptCall {
        script: &script::RAISE_TOKEN,
        keys: vec![keys.token().to_string()],
        args,
        optional: 0,
    }
}

pub(crate) fn release(keys: &LockKeys, request: &ReleaseRequest) -> ScriptCall {
    let mut args = vec![
        request.hold.owner().into(),
        request.remaining.to_string(),
        keys.channel().to_string(),
        id_if_named(&request.hold),
    ];
    let (script, keys) = match request.mode {
        Mode::Fair => {
            let mut fair_keys = fair_keys(keys);
            if request.hold.is_named() {
                // A declared key must exist if the lock does.
                fair_keys[1] = keys.lock();
            }
            // The lease of the owner that is granted the lock is not known here.
            args.push(token_ttl(Duration::ZERO).to_string());
            (&script::RELEASE_FAIR, fair_keys)
        }
        _ if request.hold.is_named() => (&script::RELEASE, vec![keys.lock(), keys.hold()]),
        _ => (&script::RELEASE, vec![keys.lock()]),
    };
    // There may be no waiters for a fair lock, and its owner may have no name.
    let optional = match (request.mode, request.hold.is_named()) {
        (Mode::Fair, true) => 4,
        (Mode::Fair, false) => keys.len() - 1,
        _ => 0,
    };
    ScriptCall { script, keys, args, optional }
}

pub(crate) fn renew(keys: &LockKeys, request: &RenewRequest) -> Renewal {
    let RenewRequest { hold, lease, .. } = request;
    let args = [
        "exclusive".into(),
        hold.owner().into(),
        millis(*lease).to_string(),
        id_if_named(hold),
        String::new(),
    ];
    // In a cluster, a key that is not there can fail the call while its slot moves.
    let names = if hold.is_named() { vec![keys.lock(), keys.hold()] } else { vec![keys.lock()] };
    Renewal { keys: names, args, leases: 1 }
}

/// The keys of a fair lock, in the order of its scripts.
fn fair_keys(keys: &LockKeys) -> Vec<String> {
    let [queue, expiries] = keys.queue();
    let (token, belongs_to) = (keys.token().to_string(), keys.queue_lock());
    vec![keys.lock(), token, keys.hold(), queue, expiries, belongs_to, keys.direct_grants()]
}

/// The id of the hold of a named owner, which distinguishes it from the owner's next hold. Empty
/// for other owners, whose id is stored as the owner.
fn id_if_named(hold: &HoldId) -> String {
    if hold.is_named() { hold.id().into() } else { String::new() }
}
