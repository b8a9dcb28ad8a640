//! C7: nothing is left behind.

use super::Finding;

/// The state of a server and its clients while no lock is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// The keys of locks, without those of tokens.
    pub lock_keys: Vec<String>,
    /// The keys that would stay forever.
    pub endless_keys: Vec<String>,
    /// The channels with subscribers.
    pub channels: Vec<String>,
    /// The number of connections to the server.
    pub connections: usize,
    /// The number of live tasks in all clients.
    pub tasks: usize,
    /// The number of open file descriptors in all clients.
    pub descriptors: usize,
    /// The memory of all clients, in kB.
    pub memory: usize,
}

/// Finds locks and channels that should be gone, and growth since `before`. Connections,
/// descriptors and tasks may become fewer; memory may grow by `growth` kB.
#[must_use]
pub fn leftovers(before: &Vitals, after: &Vitals, growth: usize) -> Vec<Finding> {
    let finding = |message: String| Finding::new("C7 leftovers", message);
    let lists = [
        ("keys of locks", &after.lock_keys),
        ("keys without expiry", &after.endless_keys),
        ("channels", &after.channels),
    ];
    let stayed = lists.into_iter().filter(|(_, list)| !list.is_empty());
    let stayed = stayed.map(|(what, list)| finding(format!("{what} stay behind: {list:?}")));
    let counts = [
        ("connections", before.connections, after.connections),
        ("tasks", before.tasks, after.tasks),
        ("file descriptors", before.descriptors, after.descriptors),
        ("kB of memory", before.memory + growth, after.memory),
    ];
    let grown = counts.into_iter().filter(|(_, before, after)| after > before);
    let grown = grown.map(|(what, before, after)| {
        finding(format!("{after} {what}, at most {before} were expected"))
    });
    stayed.chain(grown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals() -> Vitals {
        Vitals { connections: 4, tasks: 10, descriptors: 30, memory: 9000, ..Vitals::default() }
    }

    #[test]
    fn as_before_is_good_and_so_is_less() {
        assert!(leftovers(&vitals(), &vitals(), 0).is_empty());
        let less =
            Vitals { connections: 2, tasks: 9, descriptors: 28, memory: 9500, ..Vitals::default() };
        assert!(leftovers(&vitals(), &less, 1000).is_empty());
    }

    #[test]
    fn everything_that_stays_behind_is_found() {
        let list = || vec!["a".to_owned()];
        let bad = [
            Vitals { lock_keys: list(), ..vitals() },
            Vitals { endless_keys: list(), ..vitals() },
            Vitals { channels: list(), ..vitals() },
            Vitals { connections: 5, ..vitals() },
            Vitals { tasks: 11, ..vitals() },
            Vitals { descriptors: 31, ..vitals() },
            Vitals { memory: 9501, ..vitals() },
        ];
        for after in bad {
            assert_eq!(leftovers(&vitals(), &after, 500).len(), 1, "{after:?}");
        }
    }
}
