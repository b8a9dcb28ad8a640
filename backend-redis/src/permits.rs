//! Semaphores.

use lockcore::{
    Mode,
    backend::{AcquireRequest, ReleaseRequest, RenewRequest, ResizeRequest},
};

use crate::{
    keys::LockKeys,
    renewal::Renewal,
    script::{self, ScriptCall},
    wire::{millis, token_ttl},
};

/// Acquires `count` permits. `limit` is the total, used if the server does not have it.
pub(crate) fn acquire(
    keys: &LockKeys,
    request: &AcquireRequest,
    count: u32,
    limit: u32,
) -> ScriptCall {
    ScriptCall {
        script: &script::ACQUIRE_PERMITS,
        keys: semaphore_keys(keys, request.mode),
        args: vec![
            kind_of(request.mode).into(),
            keys.permits_channel(),
            limit.to_string(),
            token_ttl(request.lease).to_string(),
            request.hold.id().into(),
            count.to_string(),
            millis(request.lease).to_string(),
            request.hold.owner().into(),
            token_ttl(request.lease).to_string(),
        ],
        optional: 1,
    }
}

pub(crate) fn release(keys: &LockKeys, request: &ReleaseRequest) -> ScriptCall {
    ScriptCall {
        script: &script::RELEASE_PERMITS,
        keys: vec![keys.lock(), leases(keys, request.mode), keys.permit_holds()],
        args: vec![request.hold.id().into(), keys.permits_channel()],
        optional: 0,
    }
}

/// Renews a hold of `count` permits.
pub(crate) fn renew(keys: &LockKeys, request: &RenewRequest, count: u32) -> Renewal {
    let RenewRequest { hold, lease, .. } = request;
    let names = vec![keys.lock(), leases(keys, request.mode), keys.permit_holds()];
    let (owner, id) = (hold.owner().into(), hold.id().into());
    let args =
        ["permits".into(), owner, millis(*lease).to_string(), id, token_ttl(*lease).to_string()];
    Renewal { keys: names, args, leases: count }
}

pub(crate) fn resize(keys: &LockKeys, request: &ResizeRequest) -> ScriptCall {
    let mode = Mode::permits(0, request.permits);
    let args = vec![
        kind_of(mode).into(),
        keys.permits_channel(),
        request.permits.to_string(),
        u8::from(request.only_if_unset).to_string(),
    ];
    ScriptCall { script: &script::RESIZE, keys: semaphore_keys(keys, mode), args, optional: 1 }
}

/// The keys of a semaphore, in the order of `semaphore.lua`. A semaphore has no state of a latch.
fn semaphore_keys(keys: &LockKeys, mode: Mode) -> Vec<String> {
    vec![
        keys.lock(),
        keys.token().to_string(),
        leases(keys, mode),
        keys.permit_holds(),
        keys.latch_state(),
    ]
}

fn kind_of(mode: Mode) -> &'static str {
    if is_plain(mode) { "plain" } else { "leased" }
}

/// The key with the ends of the leases. Redisson's plain permits have no leases, so those that this
/// backend takes have theirs in a key that Redisson does not use.
fn leases(keys: &LockKeys, mode: Mode) -> String {
    if is_plain(mode) { keys.plain_permit_leases() } else { keys.permit_leases() }
}

fn is_plain(mode: Mode) -> bool {
    matches!(mode, Mode::Permit { plain: true, .. })
}
