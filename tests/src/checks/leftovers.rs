//! C7: nothing stays behind.

use super::Finding;

/// What a server and the clients on it have, when nobody does anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Keys of locks: all but tokens.
    pub lock_keys: Vec<String>,
    /// Keys that would stay for ever.
    pub endless_keys: Vec<String>,
    /// Channels that somebody listens to.
    pub channels: Vec<String>,
    /// Connections to the server.
    pub connections: usize,
    /// Tasks that live in all clients.
    pub tasks: usize,
    /// File descriptors that all clients have open.
    pub descriptors: usize,
    /// Memory that all clients take, in kB.
    pub memory: usize,
}

/// Finds what is there that should not be, and what there is more of than in the beginning. Connections, descriptors and tasks may
/// be fewer; memory may grow by `growth` kB.
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
