//! Semaphores.

use lockcore::{
    Mode,
    backend::{AcquireRequest, ReleaseRequest, RenewRequest, ResizeRequest},
};

use crate::{
    keys::Keys,
    script::{self, Call},
    wire::{millis, token_memory},
};

/// Takes `count` permits, of `limit` if the server does not know how many there are.
pub(crate) fn acquire(keys: &Keys, request: &AcquireRequest, count: u32, limit: u32) -> Call {
    Call {
        script: &script::ACQUIRE_PERMITS,
        keys: all(keys, request.mode),
        args: vec![
            kind(request.mode).into(),
            keys.permits_channel(),
            limit.to_string(),
            token_memory(request.lease).to_string(),
            request.hold.id().into(),
            count.to_string(),
            millis(request.lease).to_string(),
            request.hold.owner().into(),
            token_memory(request.lease).to_string(),
        ],
    }
}

pub(crate) fn release(keys: &Keys, request: &ReleaseRequest) -> Call {
    Call {
        script: &script::RELEASE_PERMITS,
        keys: vec![keys.lock(), leases(keys, request.mode), keys.permits()],
        args: vec![request.hold.id().into(), keys.permits_channel()],
    }
}

/// The part of one hold in a call of `RENEW`.
pub(crate) fn renew(keys: &Keys, request: &RenewRequest) -> (Vec<String>, [String; 5]) {
    let RenewRequest { hold, lease, .. } = request;
    let names = vec![keys.lock(), leases(keys, request.mode), keys.permits()];
    let (owner, id) = (hold.owner().into(), hold.id().into());
    (
        names,
        ["permits".into(), owner, millis(*lease).to_string(), id, token_memory(*lease).to_string()],
    )
}

pub(crate) fn resize(keys: &Keys, request: &ResizeRequest) -> Call {
    let mode = Mode::permits(0, request.permits);
    let args = vec![
        kind(mode).into(),
        keys.permits_channel(),
        request.permits.to_string(),
        u8::from(request.only_if_unset).to_string(),
    ];
    Call { script: &script::RESIZE, keys: all(keys, mode), args }
}

/// The keys in the order in which `semaphore.lua` numbers them.
fn all(keys: &Keys, mode: Mode) -> Vec<String> {
    vec![keys.lock(), keys.token().to_string(), leases(keys, mode), keys.permits(), keys.latch()]
}

fn kind(mode: Mode) -> &'static str {
    if is_plain(mode) { "plain" } else { "leased" }
}

/// Redisson's plain permits have no leases, and it does not know of ours.
fn leases(keys: &Keys, mode: Mode) -> String {
    if is_plain(mode) { keys.plain_permit_leases() } else { keys.permit_leases() }
}

fn is_plain(mode: Mode) -> bool {
    matches!(mode, Mode::Permit { plain: true, .. })
}
