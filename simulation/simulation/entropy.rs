//! The system's random numbers, decided by a seed.
//!
//! Client ids, the pauses between retries, and the order in which hash maps are walked through all come from `getrandom`. This binary has
//! its own, which the linker prefers to libc's: on a thread that was seeded, it draws from the seed.

use std::cell::Cell;

use crate::chance::next;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From here on, this thread's random numbers follow from `seed`. The thread has to be fresh for that: the keys of its hash maps are drawn
/// with the first of them.
pub(crate) fn seed(seed: u64) {
    STATE.set(Some(seed));
}

/// What `getrandom(2)` does: fills the buffer and returns how much was filled.
///
/// # Safety
/// `buffer` points to `length` bytes that may be written to.
#[allow(
    unsafe_code,
    reason = "the only way to decide what dependencies draw; the signature is libc's"
)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller gives a buffer of this length; zeroing it first makes the slice valid whatever was in it.
    let buffer = unsafe {
        buffer.write_bytes(0, length);
        std::slice::from_raw_parts_mut(buffer, length)
    };
    match STATE.get() {
        Some(mut state) => {
            for chunk in buffer.chunks_mut(8) {
                chunk.copy_from_slice(&next(&mut state).to_le_bytes()[..chunk.len()]);
            }
            STATE.set(Some(state));
        }
        None => {
            if rustix::rand::getrandom(&mut *buffer, rustix::rand::GetRandomFlags::empty())
                != Ok(length)
            {
                return -1;
            }
        }
    }
    length.cast_signed()
}
