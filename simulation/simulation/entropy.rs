//! The system's random numbers, derived from a seed.
//!
//! Client ids, the pauses between retries, and the iteration order of hash maps all come from
//! `getrandom`. This binary has its own, which the linker prefers to libc's: on a seeded thread, it
//! draws from the seed.

use std::cell::Cell;

use crate::chance::next;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From here on, this thread's random numbers follow from `seed`. The thread must be new: the first
/// random numbers become the keys of its hash maps.
pub(crate) fn seed(seed: u64) {
    STATE.set(Some(seed));
}

/// Replaces `getrandom(2)`: fills the buffer and returns how much was filled.
///
/// # Safety
/// `buffer` must point to `length` writable bytes.
#[allow(
    unsafe_code,
    reason = "the only way to decide what dependencies draw; the signature is libc's"
)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller passes a buffer of this length; zeroing it first makes the slice valid,
    // whatever its content was.
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
