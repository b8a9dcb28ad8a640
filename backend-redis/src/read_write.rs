//! Read-write locks.

use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{AcquireRequest, HoldId, ReleaseRequest, RenewRequest},
};

use crate::{
    keys::Keys,
    script::{self, Call},
    wire::{millis, token_memory},
};

pub(crate) fn acquire(keys: &Keys, request: &AcquireRequest) -> Result<Call, BackendError> {
    let field = field(&request.hold, request.mode);
    if field == "mode" || request.mode == Mode::Read && field.ends_with(":write") {
        let message = "a reader cannot be called `mode` or `..:write`: Redisson takes such fields for something else";
        return Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied());
    }
    let mut names = vec![keys.lock(), keys.token().to_string(), keys.writers(), keys.lease(&field)];
    let mut args = vec![
        field,
        millis(request.lease).to_string(),
        request.count.to_string(),
        token_memory(request.lease).to_string(),
        request.hold.id().into(),
    ];
    let script = if request.mode == Mode::Write {
        args.extend([millis(request.queue.unwrap_or_default()).to_string(), waiter(&request.hold)]);
        &script::ACQUIRE_WRITE
    } else {
        let within =
            request.within.as_ref().map(|write| (self::field(write, Mode::Write), write.id()));
        names.extend(within.iter().map(|(field, _)| keys.lease(field)));
        let (field, id) = within.unwrap_or_default();
        args.extend([field, id.into()]);
        &script::ACQUIRE_READ
    };
    args.push(keys.leases());
    Ok(Call { script, keys: names, args })
}

pub(crate) fn release(keys: &Keys, request: &ReleaseRequest) -> Call {
    let field = field(&request.hold, request.mode);
    let waiter = if request.mode == Mode::Write { waiter(&request.hold) } else { String::new() };
    Call {
        script: &script::RELEASE_READ_WRITE,
        keys: vec![keys.lock(), keys.lease(&field), keys.writers()],
        args: vec![
            field,
            request.remaining.to_string(),
            keys.read_write_channel(),
            request.hold.id().into(),
            waiter,
            keys.leases(),
        ],
    }
}

/// The part of one hold in a call of `RENEW`.
pub(crate) fn renew(keys: &Keys, request: &RenewRequest) -> (Vec<String>, [String; 5]) {
    let field = field(&request.hold, request.mode);
    let names = vec![keys.lock(), keys.lease(&field)];
    let id = request.hold.id().into();
    (names, ["read_write".into(), field, millis(request.lease).to_string(), id, String::new()])
}

/// The field of a hold in the hash. Redisson knows a writer by the end; what is before it says that this one has a lease of its
/// own.
fn field(hold: &HoldId, mode: Mode) -> String {
    match mode {
        Mode::Write => format!("{}:lockcore:write", hold.owner()),
        _ => hold.owner().into(),
    }
}

/// A writer that keeps readers out.
fn waiter(hold: &HoldId) -> String {
    format!("{} {}", hold.id(), hold.owner())
}
