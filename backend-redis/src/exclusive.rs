//! Exclusive and fair locks.

use lockcore::{AcquireRequest, HoldId, Mode, ReleaseRequest, RenewRequest};

use crate::{
    keys::Keys,
    script::{self, Call},
    wire::{millis, token_memory},
};

pub(crate) fn acquire(keys: &Keys, request: &AcquireRequest) -> Call {
    let (script, keys) = match request.mode {
        Mode::Fair => (&script::ACQUIRE_FAIR, all(keys)),
        _ if request.hold.is_named() => (&script::ACQUIRE, vec![keys.lock(), keys.token(), keys.hold()]),
        _ => (&script::ACQUIRE, vec![keys.lock(), keys.token()]),
    };
    let args = vec![
        request.hold.owner().into(),
        millis(request.lease),
        request.count.to_string(),
        token_memory(request.lease),
        id_if_named(&request.hold),
        match request.mode {
            Mode::Fair => millis(request.queue.unwrap_or_default()),
            _ => request.tokens.to_string(),
        },
    ];
    Call { script, keys, args }
}

pub(crate) fn release(keys: &Keys, request: &ReleaseRequest) -> Call {
    let args = vec![
        request.hold.owner().into(),
        request.remaining.to_string(),
        keys.channel(),
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
    let args = ["exclusive".into(), hold.owner().into(), millis(*lease), id_if_named(hold), String::new()];
    (vec![keys.lock(), keys.hold()], args)
}

/// The keys of a fair lock, in the order in which its scripts number them.
fn all(keys: &Keys) -> Vec<String> {
    let [queue, times] = keys.queue();
    vec![keys.lock(), keys.token(), keys.hold(), queue, times]
}

/// What tells one hold of a named owner from the next; nothing for other owners, whose field does.
fn id_if_named(hold: &HoldId) -> String {
    if hold.is_named() { hold.id().into() } else { String::new() }
}
