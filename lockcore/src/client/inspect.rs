//! The state of a name as its client knows it, without asking the backend.

use std::sync::Arc;

use super::{lanes::LaneCell, shared::Client};
use crate::{LockName, LockState, Mode, Owner, backend::HoldId};

impl Client {
    /// Adds what only this client knows to what the backend reports: guards that needed no request.
    pub(crate) fn count_guards(&self, name: &LockName, state: &mut LockState) {
        let now = self.clock.now();
        for cell in self.lanes.of(name) {
            cell.look(|lane| {
                for hold in lane.holds().iter().filter(|hold| hold.is_live(now)) {
                    if let Some(holder) = state.holder_mut(hold.facts.id.owner(), hold.mode) {
                        holder.set_hold_count(hold.state.count().max(1));
                    }
                }
            });
        }
    }

    /// The number of guards of `name` that `owner` has in this client in `mode`.
    pub(crate) fn hold_count_of(&self, name: &LockName, mode: Mode, owner: &Owner) -> u32 {
        let now = self.clock.now();
        let Some(cell) = self.lanes.find(name, mode.kind()) else { return 0 };
        cell.look(|lane| {
            let holds = lane.holds().iter().filter(|hold| {
                hold.owner == *owner && hold.mode.is_held_as(mode) && hold.is_live(now)
            });
            holds.map(|hold| hold.state.count()).sum()
        })
    }

    /// Returns `true` if `owner` has a read hold of `name` in this client.
    pub(crate) fn reads(&self, name: &LockName, owner: &Owner) -> bool {
        let cell = self.lanes.find(name, Mode::Read.kind());
        cell.is_some_and(|cell| {
            cell.look(|lane| {
                lane.holds().iter().any(|hold| hold.mode == Mode::Read && hold.owner == *owner)
            })
        })
    }

    /// The ids of the holds of `name` that the backend may have for this client.
    pub(crate) fn ids_of(&self, name: &LockName) -> Vec<HoldId> {
        let ids = |cell: Arc<LaneCell>| {
            cell.look(|lane| lane.holds().iter().map(|hold| hold.facts.id.clone()).collect())
        };
        self.lanes.of(name).flat_map::<Vec<_>, _>(ids).collect()
    }
}
