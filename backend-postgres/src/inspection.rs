//! [`Inspection`]: what is known about a name.

use std::time::Duration;

use lockcore::{BackendError, Holder, LockState, Mode};
use tokio_postgres::Row;

use crate::{
    answer::{count, field},
    error,
};

/// The state of a name, collected row by row.
#[derive(Default)]
pub(crate) struct Inspection {
    holders: Vec<Holder>,
    waiters: Vec<String>,
    remaining: Option<Duration>,
    taken: u32,
    /// The number of permits that was set, and the one that the first holder gave.
    set: Option<u32>,
    said: Option<u32>,
}

impl Inspection {
    pub(crate) fn add(&mut self, row: &Row) -> Result<(), BackendError> {
        const DOING: &str = "inspecting a lock";
        let owner: String = field(row, 1, DOING)?;
        let counts = [3, 4, 5].map(|at| field::<i64>(row, at, DOING).map(count));
        let [held, permits, most] = counts;
        let (held, permits, most) = (held?, permits?, most?);
        match field::<i32>(row, 0, DOING)? {
            0 => {
                let mode = mode_of(field(row, 2, DOING)?, permits, most)
                    .ok_or_else(|| error::unexpected(DOING))?;
                if matches!(mode, Mode::Permit { .. }) {
                    self.taken = self.taken.saturating_add(permits);
                    self.said.get_or_insert(most);
                }
                let remaining = field::<i64>(row, 6, DOING)?.max(0).cast_unsigned();
                self.remaining = self.remaining.max(Some(Duration::from_micros(remaining)));
                self.holders.push(Holder::new(owner, mode, held));
            }
            1 => self.waiters.push(owner),
            _ => self.set = Some(permits),
        }
        Ok(())
    }

    pub(crate) fn state(self) -> LockState {
        let state = LockState::held(self.holders, self.remaining).with_waiters(self.waiters);
        match self.set.or(self.said) {
            Some(total) => state.with_permits(total.saturating_sub(self.taken), Some(total)),
            None => state,
        }
    }
}

fn mode_of(number: i32, permits: u32, most: u32) -> Option<Mode> {
    Some(match number {
        1 => Mode::Exclusive,
        2 => Mode::Fair,
        3 => Mode::Read,
        4 => Mode::Write,
        5 => Mode::permits(permits, most),
        6 => Mode::plain_permits(permits, most),
        _ => return None,
    })
}
