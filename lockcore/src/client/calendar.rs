//! [`Calendar`]: the schedule of a client, behind a lock, and the signal for its background task.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

use super::lanes::LaneCell;
use crate::{
    engine::{Appointment, Schedule},
    time::Moment,
};

/// The times at which lanes need a look. Each lane with a hold or a request under way is in it
/// once, and knows its place.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    /// Short critical sections without awaits, hence not tokio's mutex.
    schedule: Mutex<Schedule<Arc<LaneCell>>>,
    /// Notified when something is due earlier than was known.
    earlier: Notify,
    /// Set while somebody waits, or has waited: the background task looks every second.
    is_watched: AtomicBool,
}

impl Calendar {
    fn schedule(&self) -> MutexGuard<'_, Schedule<Arc<LaneCell>>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the appointment of a lane.
    pub(super) fn reschedule(
        &self,
        appointment: &mut Option<Appointment>,
        at: Moment,
        cell: &Arc<LaneCell>,
    ) {
        let mut schedule = self.schedule();
        let old = appointment.take().and_then(|old| schedule.remove(old));
        let (new, is_earlier) = schedule.add(at, old.unwrap_or_else(|| cell.clone()));
        *appointment = Some(new);
        drop(schedule);
        if is_earlier {
            self.earlier.notify_one();
        }
    }

    /// Makes a lane due at once, if it has an appointment.
    pub(super) fn make_due(&self, appointment: &mut Option<Appointment>, cell: &Arc<LaneCell>) {
        if appointment.is_some() {
            self.reschedule(appointment, Moment::ORIGIN, cell);
        }
    }

    pub(super) fn remove(&self, appointment: Appointment) {
        let removed = self.schedule().remove(appointment);
        drop(removed);
    }

    pub(super) fn take_until(&self, until: Moment) -> Vec<Arc<LaneCell>> {
        self.schedule().take_until(until)
    }

    pub(super) fn all(&self) -> Vec<Arc<LaneCell>> {
        self.schedule().all().cloned().collect()
    }

    /// The time of the background task's next look.
    pub(super) fn look_next(&self, latest: Moment) -> Option<Moment> {
        self.schedule().look_next(latest)
    }

    /// Resolves when something is due earlier than was known.
    pub(super) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Makes the background task look every second. Costs nothing if it does already.
    pub(super) fn watch(&self) {
        // The waiter is in its lane by now. The task takes this back before it looks at the lanes,
        // and both lock them: either it sees the waiter, or the waiter sees this.
        if !self.is_watched.load(Ordering::Relaxed)
            && !self.is_watched.swap(true, Ordering::Relaxed)
        {
            self.earlier.notify_one();
        }
    }

    /// Returns `true` if the background task has to look every second.
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Ends the look every second until somebody asks for it again. Returns `true` if it was on.
    pub(super) fn unwatch(&self) -> bool {
        self.is_watched.swap(false, Ordering::Relaxed)
    }

    /// Wakes the background task, because the client is gone or closed.
    pub(super) fn wake(&self) {
        self.earlier.notify_one();
    }
}
