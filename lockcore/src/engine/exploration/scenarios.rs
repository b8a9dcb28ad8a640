//! The worlds that are explored.

use std::time::Instant;

use super::{
    rules::{Luck, Routine, Rules, Who, lasting},
    search::explore,
    world::LockWorld,
};
use crate::{Mode, time::Lease};

const EXCLUSIVE: Routine = Routine::new(Mode::Exclusive);
const FAIR: Routine = Routine::new(Mode::Fair);
const READ: Routine = Routine::new(Mode::Read);
const WRITE: Routine = Routine::new(Mode::Write);

fn permits(count: u32) -> Routine {
    Routine::new(Mode::permits(count, 2))
}

/// Explores a world completely.
fn search(rules: &Rules) {
    let begin = Instant::now();
    match explore(LockWorld::new(rules)) {
        Ok(explored) => {
            let (name, time) = (rules.name, begin.elapsed());
            super::say(&format!("{name}: {explored}, {time:.1?}"));
        }
        Err(violation) => panic!("{}: {violation}", rules.name),
    }
}

#[test]
fn exclusive_with_another_client() {
    search(&Rules {
        hands_over: true,
        stranger: Some(Mode::Exclusive),
        ..Rules::new("exclusive, with another client", &[EXCLUSIVE, EXCLUSIVE.rounds(2)])
    });
}

#[test]
fn exclusive_at_once() {
    let tasks = [EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(1)];
    search(&Rules {
        hands_over: true,
        is_immediate: true,
        stranger: Some(Mode::Exclusive),
        ..Rules::new("exclusive, answered at once", &tasks)
    });
}

#[test]
fn exclusive_step_by_step() {
    search(&Rules {
        hands_over: true,
        is_fine: true,
        luck: Luck { drops: 1, ..Luck::default() },
        ..Rules::new("exclusive, step by step", &[EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_dropped() {
    search(&Rules {
        hands_over: true,
        stranger: Some(Mode::Exclusive),
        luck: Luck { drops: 1, false_alarms: 1, ..Luck::default() },
        ..Rules::new("exclusive, dropped", &[EXCLUSIVE.rounds(1), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_impatient() {
    search(&Rules {
        hands_over: true,
        stranger: Some(Mode::Exclusive),
        luck: Luck { drops: 1, ..Luck::default() },
        ..Rules::new(
            "exclusive, impatient",
            &[EXCLUSIVE.rounds(2), EXCLUSIVE.impatient().rounds(2)],
        )
    });
}

#[test]
fn exclusive_failing() {
    search(&Rules {
        hands_over: true,
        luck: Luck { failures: 1, ..Luck::default() },
        stranger: Some(Mode::Exclusive),
        ..Rules::new("exclusive, failing", &[EXCLUSIVE.rounds(1), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_delayed() {
    search(&Rules {
        hands_over: true,
        luck: Luck { delays: 1, ..Luck::default() },
        ..Rules::new("exclusive, delayed", &[EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_unpolled() {
    search(&Rules {
        luck: Luck { delays: 3, ..Luck::default() },
        stranger: Some(Mode::Exclusive),
        ..Rules::new("exclusive, not polled", &[EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_forced() {
    search(&Rules {
        hands_over: true,
        luck: Luck { forced: 1, ..Luck::default() },
        ..Rules::new("exclusive, forced", &[EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_closed() {
    search(&Rules {
        hands_over: true,
        luck: Luck { closings: 1, ..Luck::default() },
        stranger: Some(Mode::Exclusive),
        ..Rules::new("exclusive, closed", &[EXCLUSIVE.rounds(1), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_kept() {
    let tasks = [EXCLUSIVE.rounds(2), EXCLUSIVE.impatient().rounds(1)];
    search(&Rules {
        hands_over: true,
        lingers: true,
        luck: Luck { drops: 1, ..Luck::default() },
        stranger: Some(Mode::Exclusive),
        ..Rules::new("exclusive, kept", &tasks)
    });
}

#[test]
fn exclusive_kept_beside_a_named_owner() {
    let named = EXCLUSIVE.who(Who::Named).rounds(1);
    search(&Rules {
        hands_over: true,
        lingers: true,
        luck: Luck { closings: 1, ..Luck::default() },
        ..Rules::new("exclusive, kept beside a named owner", &[EXCLUSIVE.rounds(1), named])
    });
}

#[test]
fn exclusive_kept_beside_a_fair_one() {
    search(&Rules {
        hands_over: true,
        lingers: true,
        luck: Luck { drops: 1, ..Luck::default() },
        ..Rules::new(
            "exclusive, kept beside a fair one that tries",
            &[EXCLUSIVE.rounds(2), FAIR.impatient().rounds(1)],
        )
    });
}

#[test]
fn exclusive_kept_step_by_step() {
    search(&Rules {
        hands_over: true,
        lingers: true,
        is_fine: true,
        luck: Luck { drops: 1, ..Luck::default() },
        ..Rules::new("exclusive, kept, step by step", &[EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn exclusive_kept_and_freed() {
    search(&Rules {
        hands_over: true,
        lingers: true,
        luck: Luck { forced: 1, ..Luck::default() },
        ..Rules::new("exclusive, kept and freed", &[EXCLUSIVE.rounds(2), EXCLUSIVE.rounds(1)])
    });
}

#[test]
fn fair() {
    search(&Rules {
        stranger: Some(Mode::Fair),
        ..Rules::new("fair", &[FAIR.rounds(1), FAIR.rounds(1)])
    });
}

#[test]
fn fair_dropped() {
    search(&Rules {
        luck: Luck { drops: 1, failures: 1, ..Luck::default() },
        ..Rules::new("fair, dropped and failing", &[FAIR.rounds(1), FAIR.rounds(1)])
    });
}

#[test]
fn fair_granted_directly() {
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        ..Rules::new("fair, granted directly", &[FAIR.rounds(1), FAIR.rounds(1)])
    });
    search(&Rules {
        grants_directly: true,
        luck: Luck { drops: 1, failures: 1, ..Luck::default() },
        ..Rules::new(
            "fair, granted directly, dropped and failing",
            &[FAIR.rounds(1), FAIR.rounds(1)],
        )
    });
}

#[test]
fn fair_granted_directly_and_late() {
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        luck: Luck { delays: 2, ..Luck::default() },
        ..Rules::new("fair, granted directly and late", &[FAIR.rounds(1)])
    });
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        luck: Luck { forced: 1, closings: 1, ..Luck::default() },
        ..Rules::new("fair, granted directly, forced and closed", &[FAIR.rounds(1)])
    });
}

#[test]
fn fair_granted_directly_and_forgotten() {
    let failover = Luck { failovers: 1, ..Luck::default() };
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        luck: failover,
        ..Rules::new("fair, granted directly and forgotten", &[FAIR.rounds(1), FAIR.rounds(1)])
    });
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        luck: Luck { drops: 1, failures: 1, forced: 1, ..failover },
        ..Rules::new("fair, granted directly, forgotten and failing", &[FAIR.rounds(1)])
    });
}

#[test]
fn fair_granted_directly_step_by_step() {
    search(&Rules {
        grants_directly: true,
        is_fine: true,
        stranger: Some(Mode::Fair),
        luck: Luck { drops: 1, closings: 1, ..Luck::default() },
        ..Rules::new("fair, granted directly, step by step", &[FAIR.rounds(1)])
    });
}

#[test]
fn fair_granted_directly_to_one_owner() {
    let shared = FAIR.who(Who::Shared).rounds(1);
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        ..Rules::new("fair, granted directly to one owner", &[shared, shared])
    });
    search(&Rules {
        grants_directly: true,
        stranger: Some(Mode::Fair),
        ..Rules::new(
            "fair, granted directly beside an exclusive one",
            &[FAIR.rounds(1), EXCLUSIVE.rounds(1)],
        )
    });
}

#[test]
fn read_write() {
    let tasks = [READ.rounds(1), READ.rounds(1), WRITE.rounds(1)];
    search(&Rules::new("read and write", &tasks));
}

#[test]
fn read_write_with_another_client() {
    search(&Rules {
        stranger: Some(Mode::Write),
        ..Rules::new("read and write, with another client", &[READ.rounds(1), READ.rounds(1)])
    });
}

#[test]
fn read_within() {
    let (write, read) = (WRITE.who(Who::Shared).rounds(1), READ.who(Who::Shared).rounds(1));
    search(&Rules {
        luck: Luck { drops: 1, failures: 1, ..Luck::default() },
        ..Rules::new("read within a write", &[write, read])
    });
}

#[test]
fn semaphore() {
    let tasks = [permits(1).rounds(1), permits(1).rounds(1), permits(2).rounds(1)];
    search(&Rules { permits: 2, ..Rules::new("permits", &tasks) });
}

#[test]
fn nested() {
    let shared = EXCLUSIVE.who(Who::Shared).rounds(1);
    let longer = shared.lease(Lease::Fixed(lasting(3)));
    search(&Rules {
        hands_over: true,
        ..Rules::new("nested", &[shared, longer, EXCLUSIVE.rounds(1)])
    });
    search(&Rules {
        luck: Luck { extensions: 1, failures: 1, closings: 1, ..Luck::default() },
        ..Rules::new("nested and extended", &[shared, longer])
    });
}

#[test]
fn named() {
    let named = EXCLUSIVE.who(Who::Named).rounds(1);
    let tasks = [named, FAIR.who(Who::Named).rounds(1), EXCLUSIVE.rounds(1)];
    search(&Rules { hands_over: true, ..Rules::new("named and anonymous", &tasks) });
}
