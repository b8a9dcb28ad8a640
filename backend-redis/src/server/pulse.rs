//! [`Pulse`]: notices that a server has stopped answering, long before a request times out.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use super::address::Locate;

/// A server that answers nothing from one beat to the next, while a request waits, may be down.
const BEAT: Duration = Duration::from_millis(200);

/// Numbers the requests of one connection. Replies come in the order of the requests. While
/// requests wait, a task looks at each beat how far the replies have come, so a request needs no
/// timer for that.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// The number of the last request.
    sent: AtomicUsize,
    /// The number of the last request whose reply was seen. The requests before it were answered
    /// too, even if nobody polls them.
    answered: AtomicUsize,
    /// The number of requests that are neither answered nor dropped.
    waiting: AtomicUsize,
    is_watched: AtomicBool,
}

impl Pulse {
    /// Waits for the answer to a request. Tells `address` that the server is in use, and if it falls
    /// silent meanwhile.
    pub(super) async fn during<T>(
        self: &Arc<Self>,
        runtime: &Handle,
        address: &Arc<dyn Locate>,
        request: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let _waiting = WaitingRequest::new(self);
        let number = self.sent.fetch_add(1, SeqCst) + 1;
        if !self.is_watched.load(SeqCst) && !self.is_watched.swap(true, SeqCst) {
            let task = PulseTask { pulse: self.clone(), address: address.clone() };
            runtime.spawn(task.run());
        }
        let answer = request.await;
        self.answered.fetch_max(number, SeqCst);
        answer
    }

    fn is_waiting(&self) -> bool {
        self.waiting.load(SeqCst) > 0 && self.sent.load(SeqCst) > self.answered.load(SeqCst)
    }
}

/// Counts a request as waiting until dropped.
struct WaitingRequest<'a>(&'a Pulse);

impl<'a> WaitingRequest<'a> {
    fn new(pulse: &'a Pulse) -> Self {
        pulse.waiting.fetch_add(1, SeqCst);
        Self(pulse)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

/// Watches the pulse as long as requests wait.
struct PulseTask {
    pulse: Arc<Pulse>,
    address: Arc<dyn Locate>,
}

impl PulseTask {
    async fn run(self) {
        let Pulse { sent, answered, is_watched, .. } = &*self.pulse;
        loop {
            let (due, before) = (sent.load(SeqCst), answered.load(SeqCst));
            tokio::time::sleep(BEAT).await;
            self.address.in_use();
            if self.pulse.is_waiting() {
                if due > before && answered.load(SeqCst) == before {
                    self.address.fell_silent();
                }
                continue;
            }
            is_watched.store(false, SeqCst);
            // A request that was sent before this store has started no other task.
            if !self.pulse.is_waiting() || is_watched.swap(true, SeqCst) {
                return;
            }
        }
    }
}
