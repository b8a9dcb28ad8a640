//! [`Pulse`]: notices that a server has stopped answering, long before a request times out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use super::address::Locate;

/// A server that answers nothing for so long, while a request waits, may be down.
const BEAT: Duration = Duration::from_millis(200);

/// Counts the requests and the answers of one connection. While requests wait, a task compares the
/// counts at each beat, so a request needs no timer.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    waiting: AtomicUsize,
    answered: AtomicUsize,
    is_watched: AtomicBool,
}

impl Pulse {
    /// Waits for the answer to a request. Tells `address` if the server falls silent meanwhile.
    pub(super) async fn feel<T>(
        self: &Arc<Self>,
        runtime: &Handle,
        address: &Arc<dyn Locate>,
        request: impl Future<Output = T>,
    ) -> T {
        let _waiting = WaitingRequest::new(self);
        if !self.is_watched.load(SeqCst) && !self.is_watched.swap(true, SeqCst) {
            let task = PulseTask { pulse: self.clone(), address: address.clone() };
            runtime.spawn(task.run());
        }
        let answer = request.await;
        self.answered.fetch_add(1, SeqCst);
        answer
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
        let Pulse { waiting, answered, is_watched } = &*self.pulse;
        loop {
            let (were_waiting, before) = (waiting.load(SeqCst) > 0, answered.load(SeqCst));
            tokio::time::sleep(BEAT).await;
            if were_waiting && waiting.load(SeqCst) > 0 && answered.load(SeqCst) == before {
                self.address.fell_silent();
            }
            if waiting.load(SeqCst) > 0 {
                continue;
            }
            is_watched.store(false, SeqCst);
            // A request that came before this store has started no other watch.
            if waiting.load(SeqCst) == 0 || is_watched.swap(true, SeqCst) {
                return;
            }
        }
    }
}
