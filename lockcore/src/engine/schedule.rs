//! [`Schedule`]: appointments in order of time.

use std::{collections::BTreeMap, mem};

use crate::time::Moment;

/// A place in a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Appointment {
    pub(crate) at: Moment,
    number: u64,
}

/// Appointments in order of time, and the time at which their keeper has to look at them.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    /// Kept apart from the map, because a short hold is over before another one comes.
    newest: Option<(Appointment, T)>,
    others: BTreeMap<Appointment, T>,
    next_number: u64,
    throttle: WakeThrottle,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            newest: None,
            others: BTreeMap::new(),
            next_number: 0,
            throttle: WakeThrottle::default(),
        }
    }
}

impl<T> Schedule<T> {
    /// Adds an appointment. The second value is `true` if the keeper has to be woken for it.
    pub(crate) fn add(&mut self, at: Moment, what: T) -> (Appointment, bool) {
        let appointment = Appointment { at, number: self.next_number };
        self.next_number += 1;
        self.others.extend(self.newest.replace((appointment, what)));
        (appointment, self.throttle.is_too_late_for(at))
    }

    /// Removes an appointment. Returns its value, unless it was taken before.
    pub(crate) fn remove(&mut self, appointment: Appointment) -> Option<T> {
        if self.newest.as_ref().is_some_and(|(newest, _)| *newest == appointment) {
            return self.newest.take().map(|(_, what)| what);
        }
        self.others.remove(&appointment)
    }

    /// Takes out everything that is due by `until`.
    pub(crate) fn take_until(&mut self, until: Moment) -> Vec<T> {
        self.others.extend(self.newest.take());
        let rest = self.others.split_off(&Appointment { at: until, number: u64::MAX });
        mem::replace(&mut self.others, rest).into_values().collect()
    }

    /// Everything in it.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.others.values().chain(self.newest.iter().map(|(_, what)| what))
    }

    /// The time of the keeper's next look: when the first appointment is due, or at `latest` if all
    /// appointments are later. `None` if it only looks when it is woken.
    pub(crate) fn look_next(&mut self, latest: Moment) -> Option<Moment> {
        let newest = self.newest.as_ref().map(|(appointment, _)| appointment.at);
        let first = self.others.first_key_value().map(|(appointment, _)| appointment.at);
        self.throttle.look_again(first.into_iter().chain(newest).min(), latest)
    }
}

/// Lets the keeper sleep while appointments come and go between its looks, so that short holds do
/// not wake it each time.
#[derive(Debug, Default)]
struct WakeThrottle {
    /// The time of the keeper's next look. `None` if it only looks when it is woken.
    next: Option<Moment>,
    /// Set if the keeper's last look found nothing, and it was not woken since.
    was_in_vain: bool,
}

impl WakeThrottle {
    /// Something is due at `moment`. Returns `true` if the keeper has to be woken.
    fn is_too_late_for(&mut self, moment: Moment) -> bool {
        let is_too_late = self.next.is_none_or(|next| moment < next);
        self.was_in_vain &= !is_too_late;
        is_too_late
    }

    /// The keeper looked, and `first` is due next. It looks again at that time, or at `latest`; if
    /// it found nothing twice in a row, it looks only when it is woken. Twice, because short holds
    /// would otherwise wake it each time, although they are gone when it looks.
    fn look_again(&mut self, first: Option<Moment>, latest: Moment) -> Option<Moment> {
        let was_in_vain = mem::replace(&mut self.was_in_vain, first.is_none());
        self.next = match first {
            Some(moment) => Some(latest.min(moment)),
            None if was_in_vain => None,
            None => Some(latest),
        };
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Clock;

    fn seconds() -> impl Fn(u64) -> Moment {
        let start = Clock::with_suspension(|| Duration::ZERO).now();
        move |seconds| start.after(Duration::from_secs(seconds))
    }

    #[test]
    fn what_is_due_comes_in_order_and_once() {
        let at = seconds();
        let mut schedule = Schedule::default();
        for second in [3, 1, 2, 1] {
            schedule.add(at(second), second);
        }
        assert_eq!(schedule.take_until(at(2)), [1, 1, 2]);
        assert_eq!(schedule.take_until(at(2)), [0; 0]);
        assert_eq!(schedule.all().collect::<Vec<_>>(), [&3]);
    }

    #[test]
    fn an_appointment_that_was_removed_does_not_come() {
        let at = seconds();
        let mut schedule = Schedule::default();
        let (one, _) = schedule.add(at(1), 1);
        assert_eq!(schedule.remove(one), Some(1));
        assert_eq!(schedule.remove(one), None);
        assert!(schedule.take_until(at(9)).is_empty());
    }

    #[test]
    fn holds_that_come_and_go_wake_once_and_then_not_until_the_next_look() {
        let at = seconds();
        let mut throttle = WakeThrottle::default();
        assert!(throttle.is_too_late_for(at(10)), "nobody looks");
        assert_eq!(throttle.look_again(None, at(1)), Some(at(1)), "gone, but others may come");
        assert!(!throttle.is_too_late_for(at(10)) && !throttle.is_too_late_for(at(10)));
        assert_eq!(throttle.look_again(None, at(2)), None, "there was nothing for a second");
        for second in 2..5 {
            assert!(throttle.is_too_late_for(at(second + 10)));
            assert_eq!(throttle.look_again(None, at(second + 1)), Some(at(second + 1)));
            assert!(!throttle.is_too_late_for(at(second + 10)));
            assert_eq!(throttle.look_again(None, at(second + 2)), None);
        }
    }

    #[test]
    fn what_is_due_earlier_than_the_next_look_wakes() {
        let at = seconds();
        let mut throttle = WakeThrottle::default();
        assert_eq!(throttle.look_again(Some(at(3)), at(1)), Some(at(1)), "a suspension is noticed");
        assert_eq!(throttle.look_again(Some(at(3)), at(4)), Some(at(3)));
        assert!(!throttle.is_too_late_for(at(3)));
        assert!(throttle.is_too_late_for(at(2)));
    }
}
