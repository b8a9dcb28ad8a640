//! [`Boxes`]: memory for requests on their way, to be used again.

use std::sync::{Mutex, PoisonError};

use tokio_util::sync::ReusableBoxFuture;

/// The number of boxes that are kept.
const MOST: usize = 8;

/// The boxes of a connection that no request is in.
///
/// The future of a request of the redis crate is larger than 1 KiB. Allocators keep smaller blocks
/// at hand for each thread, but take a lock for such a large one, and glibc puts free blocks
/// together each time.
#[derive(Debug)]
pub(super) struct Boxes<T: 'static> {
    empty: Mutex<Vec<ReusableBoxFuture<'static, T>>>,
}

impl<T> Default for Boxes<T> {
    fn default() -> Self {
        Self { empty: Mutex::default() }
    }
}

impl<T> Boxes<T> {
    /// Puts a future in a box.
    pub(super) fn put(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> ReusableBoxFuture<'static, T> {
        let empty = self.empty.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match empty {
            Some(mut empty) => {
                empty.set(request);
                empty
            }
            None => ReusableBoxFuture::new(request),
        }
    }

    /// Takes a box back whose future has ended.
    pub(super) fn take_back(&self, ended: ReusableBoxFuture<'static, T>) {
        let mut empty = self.empty.lock().unwrap_or_else(PoisonError::into_inner);
        if empty.len() < MOST {
            empty.push(ended);
        }
    }
}
