//! The end of this process by a signal.

use rustix::process::{Signal, getpid, kill_current_process_group};

use super::terminal::is_in_foreground;

/// Sends `signal` to the group of this process, a script that waits for it included, as the
/// terminal would have if the command had not been in the foreground instead. It has no effect on
/// this process, which listens to it.
///
/// Not in the background, where the keys of the terminal reach nobody either.
pub(crate) fn pass_on_to_own_group(signal: i32) {
    if let (Some(signal), true) = (Signal::from_named_raw(signal), is_in_foreground()) {
        let _ = kill_current_process_group(signal);
    }
}

/// Ends this process with `signal`, without a core dump. Returns if that is not possible.
pub(crate) fn die_of(signal: i32) {
    // The system protects the first process of a container from signals without a handler.
    if getpid().is_init() || !cannot_dump_core() {
        return;
    }
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// Prevents core dumps. A limit does not if a program receives them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn cannot_dump_core() -> bool {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};

    set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok()
}

/// Prevents core dumps.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn cannot_dump_core() -> bool {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(0);
    setrlimit(Resource::Core, limit).is_ok()
}
