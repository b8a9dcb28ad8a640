//! Read-write locks.

use lockcore::{
    BackendError, BackendErrorKind, Mode,
    backend::{AcquireRequest, HoldId, ReleaseRequest, RenewRequest},
};

use crate::{
    keys::LockKeys,
    renewal::Renewal,
    script::{self, ScriptCall},
    wire::{millis, token_ttl},
};

pub(crate) fn acquire(
    keys: &LockKeys,
    request: &AcquireRequest,
) -> Result<ScriptCall, BackendError> {
    let field = field(&request.hold, request.mode);
    if field == "mode" || request.mode == Mode::Read && field.ends_with(":write") {
        let message = "a reader's owner must not be named `mode` or end with `:write`: \
                       these fields have another meaning for Redisson";
        return Err(BackendError::new(BackendErrorKind::Configuration, message).not_applied());
    }
    let mut names = vec![keys.lock(), keys.token().to_string(), keys.lease(&field), keys.writers()];
    let mut args = vec![
        field,
        millis(request.lease).to_string(),
        request.count.to_string(),
        token_ttl(request.lease).to_string(),
        request.hold.id().into(),
    ];
    let script = if request.mode == Mode::Write {
        args.extend([
            millis(request.queue.unwrap_or_default()).to_string(),
            waiting_writer(&request.hold),
        ]);
        &script::ACQUIRE_WRITE
    } else {
        let within =
            request.within.as_ref().map(|write| (self::field(write, Mode::Write), write.id()));
        names.extend(within.iter().map(|(field, _)| keys.lease(field)));
        let (field, id) = within.unwrap_or_default();
        args.extend([field, id.into()]);
        &script::ACQUIRE_READ
    };
    args.extend([keys.read_write_channel(), keys.lease_prefix()]);
    let optional = names.len() - 3;
    Ok(ScriptCall { script, keys: names, args, optional })
}

pub(crate) fn release(keys: &LockKeys, request: &ReleaseRequest) -> ScriptCall {
    let field = field(&request.hold, request.mode);
    let (waiting, writers) = match request.mode {
        Mode::Write => (waiting_writer(&request.hold), keys.writers()),
        _ => Default::default(),
    };
    ScriptCall {
        script: &script::RELEASE_READ_WRITE,
        keys: vec![keys.lock(), keys.lease(&field)],
        args: vec![
            field,
            request.remaining.to_string(),
            keys.read_write_channel(),
            request.hold.id().into(),
            waiting,
            writers,
            keys.lease_prefix(),
        ],
        optional: 0,
    }
}

pub(crate) fn renew(keys: &LockKeys, request: &RenewRequest) -> Renewal {
    let field = field(&request.hold, request.mode);
    let names = vec![keys.lock(), keys.lease(&field)];
    let id = request.hold.id().into();
    let args = ["read_write".into(), field, millis(request.lease).to_string(), id, String::new()];
    Renewal { keys: names, args, leases: 1 }
}

/// The field of a hold in the hash. Redisson recognizes a writer by `:write` at the end; our
/// scripts recognize one that has a lease of its own by `:lockcore` before that.
fn field(hold: &HoldId, mode: Mode) -> String {
    match mode {
        Mode::Write => format!("{}:lockcore:write", hold.owner()),
        _ => hold.owner().into(),
    }
}

/// The entry of a writer among those that block new readers.
fn waiting_writer(hold: &HoldId) -> String {
    format!("{} {}", hold.id(), hold.owner())
}
