//! Panics that somebody caught: tokio catches those of tasks, and the core looks at few of its own.

use std::{cell::Cell, panic, sync::Once};

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// From here on, panics are noted.
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

/// Whether this thread has panicked.
pub(crate) fn seen() -> bool {
    SEEN.get()
}
