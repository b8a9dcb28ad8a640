//! [`Account`]: what the store says about the locks in cycles.

use std::collections::HashMap;

use super::record::{HoldRecord, WaitRecord};
use crate::{LockState, Mode};

/// The states of the locks that the store was asked about. A wait or hold that it refutes is left
/// out of the graph, where it could hide a true cycle, since each wait is in one cycle only.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// `None` if the store refuses to tell.
    states: HashMap<String, Option<LockState>>,
}

impl Account {
    pub(crate) fn add(&mut self, lock: String, state: Option<LockState>) {
        self.states.insert(lock, state);
    }

    pub(crate) fn knows(&self, lock: &str) -> bool {
        self.states.contains_key(lock)
    }

    /// The number of locks that the store was asked about.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns `true` if the store was asked about the lock, and does not have the hold.
    pub(super) fn refutes_hold(&self, hold: &HoldRecord) -> bool {
        let is_writer = hold.mode == "write";
        self.refutes(&hold.lock, |state| {
            state.holders().iter().any(|holder| {
                let writes = holder.mode() == Mode::Write;
                holder.owner() == hold.wire && writes == is_writer
            })
        })
    }

    /// Returns `true` if the store was asked about the lock, and has no place of the client `id`,
    /// which waits for it. The place belongs to the first waiter in the client's line, which may be
    /// another wait; the same holds are in the way of both.
    pub(super) fn refutes_place(&self, id: &str, wait: &WaitRecord) -> bool {
        self.refutes(&wait.lock, |state| {
            state.waiters().iter().any(|wire| match wait.named {
                true => *wire == wait.owner,
                false => wire.strip_prefix(id).is_some_and(|rest| rest.starts_with(':')),
            })
        })
    }

    fn refutes(&self, lock: &str, is_so: impl FnOnce(&LockState) -> bool) -> bool {
        let known = self.states.get(lock);
        known.is_some_and(|state| !state.as_ref().is_some_and(is_so))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Holder;

    #[test]
    fn what_the_store_was_not_asked_for_is_not_refuted() {
        let mut account = Account::default();
        let hold = |mode: &str, wire: &str| {
            let (lock, mode, wire) = ("a".into(), mode.into(), wire.into());
            HoldRecord { lock, mode, wire, ..Default::default() }
        };
        let wait = WaitRecord { lock: "a".into(), owner: "job".into(), ..Default::default() };
        assert!(!account.knows("a") && !account.refutes_hold(&hold("read", "id:1")));
        assert!(!account.refutes_place("id", &wait));
        let holders = vec![Holder::new("id:1", Mode::Read, 1)];
        let waiters = vec!["id:7".to_owned(), "job".to_owned()];
        account.add("a".into(), Some(LockState::held(holders, None).with_waiters(waiters)));
        assert!(account.knows("a") && !account.refutes_hold(&hold("read", "id:1")));
        assert!(account.refutes_hold(&hold("write", "id:1")));
        assert!(account.refutes_hold(&hold("read", "id:2")));
        assert!(!account.refutes_place("id", &wait) && account.refutes_place("i", &wait));
        let named = WaitRecord { named: true, ..wait };
        assert!(!account.refutes_place("other", &named), "it is the same in all clients");
        account.add("a".into(), None);
        assert!(account.refutes_hold(&hold("read", "id:1")), "the store does not tell");
        assert!(account.refutes_place("id", &named) && account.len() == 1);
    }
}
