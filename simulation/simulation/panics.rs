//! Caught panics: tokio catches those of tasks, and the core ignores most of its own.

use std::{cell::Cell, panic, sync::Once};

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Records panics from here on.
pub(crate) fn note() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            SEEN.set(true);
            print(panic);
        }));
    });
}

/// Returns `true` if this thread has panicked.
pub(crate) fn seen() -> bool {
    SEEN.get()
}
