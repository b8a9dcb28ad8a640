//! Exclusive and fair locks.

use std::time::Duration;

use lockcore::{
    Mode,
    backend::{AcquireRequest, HoldId, ReleaseRequest, RenewRequest},
};
use redis::Cmd;

use crate::{
    keys::Keys,
    script::{self, Call, Script},
    wire::{millis, token_memory},
};

/// The request of an owner without a name for the whole of a hold in [`Mode::Exclusive`]. Of those, many can share a call.
#[derive(Debug)]
pub(crate) struct Outermost {
    pub(crate) keys: Keys,
    pub(crate) hold: HoldId,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Release,
    Acquire { lease: Duration, tokens: u32 },
}

impl Outermost {
    /// Whether this is such a request.
    pub(crate) fn is_acquired(request: &AcquireRequest) -> bool {
        request.mode == Mode::Exclusive && request.count == 1 && !request.hold.is_named()
    }

    pub(crate) fn acquire(keys: Keys, request: &AcquireRequest) -> Self {
        let AcquireRequest { lease, tokens, .. } = *request;
        Self { keys, hold: request.hold.clone(), kind: Kind::Acquire { lease, tokens } }
    }

    /// Whether this is such a request.
    pub(crate) fn is_released(request: &ReleaseRequest) -> bool {
        request.mode == Mode::Exclusive && request.remaining == 0 && !request.hold.is_named()
    }

    pub(crate) fn release(keys: Keys, request: &ReleaseRequest) -> Self {
        Self { keys, hold: request.hold.clone(), kind: Kind::Release }
    }

    /// What does it alone.
    pub(crate) fn script(&self) -> &'static Script {
        match self.kind {
            Kind::Release => &script::RELEASE,
            Kind::Acquire { .. } => &script::ACQUIRE,
        }
    }

    pub(crate) fn command(&self, by_digest: bool) -> Cmd {
        let (lock, owner) = (self.keys.as_str(), self.hold.owner());
        match self.kind {
            Kind::Release => {
                let mut command = self.script().command(by_digest, 1, 4, self.size());
                command.arg(lock).arg(owner).arg(0).arg(self.keys.channel()).arg("");
                command
            }
            Kind::Acquire { lease, tokens } => {
                let mut command = self.script().command(by_digest, 2, 6, self.size());
                command.arg(lock).arg(self.keys.token());
                command
                    .arg(owner)
                    .arg(millis(lease))
                    .arg(1)
                    .arg(token_memory(lease))
                    .arg("")
                    .arg(tokens);
                command
            }
        }
    }

    /// About how many bytes its keys and arguments have.
    pub(crate) fn size(&self) -> usize {
        64 + 2 * self.keys.as_str().len() + self.hold.owner().len()
    }
}

pub(crate) fn acquire(keys: &Keys, request: &AcquireRequest) -> Call {
    let (script, keys) = match request.mode {
        Mode::Fair => (&script::ACQUIRE_FAIR, all(keys)),
        _ if request.hold.is_named() => {
            (&script::ACQUIRE, vec![keys.lock(), keys.token().to_string(), keys.hold()])
        }
        _ => (&script::ACQUIRE, vec![keys.lock(), keys.token().to_string()]),
    };
    let args = vec![
        request.hold.owner().into(),
        millis(request.lease).to_string(),
        request.count.to_string(),
        token_memory(request.lease).to_string(),
        id_if_named(&request.hold),
        if request.mode == Mode::Fair {
            millis(request.queue.unwrap_or_default()).to_string()
        } else {
            request.tokens.to_string()
        },
    ];
    Call { script, keys, args }
}

pub(crate) fn release(keys: &Keys, request: &ReleaseRequest) -> Call {
    let args = vec![
        request.hold.owner().into(),
        request.remaining.to_string(),
        keys.channel().to_string(),
        id_if_named(&request.hold),
    ];
    let (script, keys) = match request.mode {
        Mode::Fair => (&script::RELEASE_FAIR, all(keys)),
        _ if request.hold.is_named() => (&script::RELEASE, vec![keys.lock(), keys.hold()]),
        _ => (&script::RELEASE, vec![keys.lock()]),
    };
    Call { script, keys, args }
}

/// The part of one hold in a call of `RENEW`.
pub(crate) fn renew(keys: &Keys, request: &RenewRequest) -> (Vec<String>, [String; 5]) {
    let RenewRequest { hold, lease, .. } = request;
    let args = [
        "exclusive".into(),
        hold.owner().into(),
        millis(*lease).to_string(),
        id_if_named(hold),
        String::new(),
    ];
    (vec![keys.lock(), keys.hold()], args)
}

/// The keys of a fair lock, in the order in which its scripts number them.
fn all(keys: &Keys) -> Vec<String> {
    let [queue, times] = keys.queue();
    vec![keys.lock(), keys.token().to_string(), keys.hold(), queue, times]
}

/// What tells one hold of a named owner from the next; nothing for other owners, whose field does.
fn id_if_named(hold: &HoldId) -> String {
    if hold.is_named() { hold.id().into() } else { String::new() }
}
