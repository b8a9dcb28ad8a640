//! [`Promise`]: the rows of the table.

use crate::{deployment::Topology, section::Section};

/// A promise to be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    Exclusion,
    Detection,
    Order,
    Counting,
    RustWakesJava,
    JavaWakesRust,
    RustDowngrades,
    JavaDowngrades,
    JavaNests,
    RustNests,
    Tokens,
    RustSeesJava,
    JavaSeesRust,
    Restored,
    RustResizes,
    JavaResizes,
    WriterWaits,
    JavaAwaitsRust,
    RustAwaitsJava,
    RustCrashes,
    JavaCrashes,
    RustReaderCrashes,
    JavaReaderCrashes,
    Takeover,
    RustWaiterCrashes,
    JavaWaiterCrashes,
    JavaCannotReleaseOurs,
    RustCannotReleaseTheirs,
    JavaForces,
    RustForces,
    LocksOfJava,
    ReadWriteLocksOfJava,
    SemaphoresOfJava,
    LatchesOfJava,
    LocksOfOurs,
    OthersOfOurs,
    Braces,
    BothMessages,
    OtherMessages,
    Failover,
}

impl Section {
    /// The rows of the section, in the order of [`Promise`].
    pub(crate) fn promises(self, topology: Topology) -> Vec<Promise> {
        match topology {
            Topology::Server => self.promises_of_a_server(),
            Topology::Sentinel => self.promises_elsewhere(),
            Topology::ShardedCluster | Topology::PlainCluster => {
                let mut promises = self.promises_elsewhere();
                if self == Self::Latch {
                    promises.push(Promise::Braces);
                }
                if self == Self::Reentrant && topology == Topology::ShardedCluster {
                    promises.extend([Promise::BothMessages, Promise::OtherMessages]);
                }
                promises
            }
        }
    }

    /// The promises that depend on where the commands and the messages go.
    fn promises_elsewhere(self) -> Vec<Promise> {
        use Promise as P;
        let wakeups = [P::RustWakesJava, P::JavaWakesRust];
        match self {
            Self::Reentrant => vec![
                P::Exclusion,
                P::RustWakesJava,
                P::JavaWakesRust,
                P::JavaNests,
                P::RustNests,
                P::Tokens,
                P::RustCrashes,
                P::JavaCrashes,
            ],
            Self::Latch => [&[P::Counting], wakeups.as_slice()].concat(),
            Self::Failover => vec![P::Failover],
            Self::Mixed => Vec::new(),
            _ => [&[P::Exclusion], wakeups.as_slice()].concat(),
        }
    }

    fn promises_of_a_server(self) -> Vec<Promise> {
        use Promise as P;
        let of_holds = [
            P::Exclusion,
            P::Detection,
            P::RustWakesJava,
            P::JavaWakesRust,
            P::JavaAwaitsRust,
            P::RustAwaitsJava,
        ];
        let (of_holds, others): (&[Promise], &[Promise]) = match self {
            Self::Reentrant => (
                &of_holds,
                &[
                    P::JavaNests,
                    P::RustNests,
                    P::Tokens,
                    P::RustSeesJava,
                    P::JavaSeesRust,
                    P::Restored,
                    P::RustCrashes,
                    P::JavaCrashes,
                    P::Takeover,
                    P::JavaCannotReleaseOurs,
                    P::RustCannotReleaseTheirs,
                    P::JavaForces,
                    P::RustForces,
                ],
            ),
            Self::Fair => (
                &of_holds,
                &[
                    P::Order,
                    P::JavaNests,
                    P::RustNests,
                    P::RustCrashes,
                    P::JavaCrashes,
                    P::RustWaiterCrashes,
                    P::JavaWaiterCrashes,
                ],
            ),
            Self::ReadWrite => (
                &of_holds,
                &[
                    P::RustDowngrades,
                    P::JavaDowngrades,
                    P::JavaNests,
                    P::RustNests,
                    P::RustSeesJava,
                    P::JavaSeesRust,
                    P::WriterWaits,
                    P::RustCrashes,
                    P::JavaCrashes,
                    P::RustReaderCrashes,
                    P::JavaReaderCrashes,
                ],
            ),
            Self::Semaphore | Self::PlainSemaphore => {
                (&of_holds, &[P::RustSeesJava, P::JavaSeesRust, P::RustCrashes, P::JavaCrashes])
            }
            Self::Latch => (
                &[],
                &[
                    P::Counting,
                    P::RustWakesJava,
                    P::JavaWakesRust,
                    P::RustSeesJava,
                    P::JavaSeesRust,
                    P::RustForces,
                    P::JavaForces,
                ],
            ),
            Self::Mixed => (
                &[],
                &[
                    P::LocksOfJava,
                    P::ReadWriteLocksOfJava,
                    P::SemaphoresOfJava,
                    P::LatchesOfJava,
                    P::LocksOfOurs,
                    P::OthersOfOurs,
                ],
            ),
            Self::Failover => (&[], &[]),
        };
        let mut promises = [of_holds, others].concat();
        if self == Self::Semaphore {
            promises.extend([P::RustResizes, P::JavaResizes]);
        }
        promises.sort_unstable();
        promises
    }
}

impl Promise {
    /// The text in the table.
    pub(crate) fn text(self, section: Section) -> &'static str {
        use Section as S;
        match (self, section) {
            (Self::Exclusion, S::ReadWrite) => {
                "Two Rust and two Java clients, two tasks or threads each, read and write: no writer is inside together with anybody, no update is lost"
            }
            (Self::Exclusion, S::Semaphore | S::PlainSemaphore) => {
                "Two Rust and two Java clients, two tasks or threads each, contend for the permits: never more are inside than there are permits"
            }
            (Self::JavaNests, S::Fair) => {
                "Nested holds of Java count for both sides while Rust waits in the queue"
            }
            (Self::RustNests, S::Fair) => {
                "Nested holds of Rust pass the queue, and keep Java in it until the last is released"
            }
            (Self::JavaNests, S::ReadWrite) => {
                "Nested holds of Java count for both sides: to read, to write, and to read while writing, which goes on after it"
            }
            (Self::RustNests, S::ReadWrite) => {
                "Nested holds of Rust count for both sides: to read, to write, and to read while writing, which goes on after it"
            }
            (Self::RustSeesJava, S::Semaphore | S::PlainSemaphore) => {
                "`available()` and `state()` show the permits that Java has taken"
            }
            (Self::JavaSeesRust, S::Semaphore) => {
                "`availablePermits`, `acquiredPermits` and `getPermits` show those that we have taken"
            }
            (Self::JavaSeesRust, S::PlainSemaphore) => {
                "`availablePermits` shows those that we have taken"
            }
            (Self::RustAwaitsJava, S::Semaphore) => {
                "Java's explicit lease, longer than ours, is respected: Rust stays outside"
            }
            (Self::RustAwaitsJava, S::PlainSemaphore) => {
                "Java's permit, which has no lease, is respected: Rust stays outside"
            }
            (Self::RustCrashes, S::PlainSemaphore) => {
                "The Rust holder is killed: its permit comes back as soon as Rust asks after the end of the lease, and not before for Java"
            }
            (Self::JavaCrashes, S::PlainSemaphore) => {
                "The Java holder is halted: its permit does not come back until somebody releases it"
            }
            (Self::RustWakesJava, S::Latch) => {
                "The last count in Rust wakes Java within 50 ms at the median"
            }
            (Self::JavaWakesRust, S::Latch) => {
                "The last count in Java wakes Rust within 50 ms at the median"
            }
            (Self::RustSeesJava, S::Latch) => {
                "`count()` shows what Java has set and counted, `set_count` does not set it again"
            }
            (Self::JavaSeesRust, S::Latch) => {
                "`getCount` shows what we have set and counted, `trySetCount` does not set it again"
            }
            (Self::RustForces, S::Latch) => "`open()` in Rust wakes Java",
            (Self::JavaForces, S::Latch) => "`delete` in Java, which opens the latch, wakes Rust",
            _ => self.common_text(),
        }
    }

    fn common_text(self) -> &'static str {
        match self {
            Self::Exclusion => {
                "Two Rust and two Java clients, two tasks or threads each, contend for one name: nobody else is inside, no update is lost"
            }
            Self::Detection => {
                "The same with different names for Rust and Java, to see that the test would notice it"
            }
            Self::Order => "Both sides enter in the order in which they asked",
            Self::Counting => {
                "Both sides count one latch down together: it opens with the last count, no earlier"
            }
            Self::RustWakesJava => "A release in Rust wakes Java within 50 ms at the median",
            Self::JavaWakesRust => "A release in Java wakes Rust within 50 ms at the median",
            Self::RustDowngrades => {
                "A writer of ours becomes a reader: Java's readers, who wait, are woken within 50 ms at the median"
            }
            Self::JavaDowngrades => {
                "A writer of Java's becomes a reader, of which Redisson tells nobody: readers, who wait, enter when they ask again, which is when the lease would have ended that they saw"
            }
            Self::JavaNests => {
                "Nested holds of Java count for both sides, and the lock is free after the last"
            }
            Self::RustNests => "Nested holds of Rust keep Java out until the last is released",
            Self::RustSeesJava => "`state()` shows Java's hold: owner, count, remaining lease",
            Self::JavaSeesRust => {
                "`isLocked` and `remainTimeToLive` show our hold, `getHoldCount` does not claim it"
            }
            Self::Restored => {
                "A hold that lockcore stores without a script is one for Java: refused, woken, tokens, `forceUnlock`"
            }
            Self::RustResizes => "`resize` in Rust: Java sees the new number, and is woken by it",
            Self::JavaResizes => {
                "`setPermits` in Java: Rust sees the new number, and is woken by it"
            }
            Self::WriterWaits => {
                "A writer of ours that waits keeps our new readers out; Java's do not know of it"
            }
            Self::JavaAwaitsRust => {
                "Our watchdog renews a hold past its first lease: Java stays outside"
            }
            Self::RustAwaitsJava => {
                "Java's watchdog renews a hold past its first lease: Rust stays outside"
            }
            Self::RustCrashes => {
                "The Rust holder is killed: Java enters at the end of the lease, at the median, at most 250 ms later"
            }
            Self::JavaCrashes => {
                "The Java holder is halted: Rust enters at the end of the lease, at the median, at most 250 ms later"
            }
            Self::RustReaderCrashes => {
                "A Rust reader is killed while Java reads on: Rust writes as soon as Java has read"
            }
            Self::JavaReaderCrashes => {
                "A Java reader is halted while Rust reads on: Java writes as soon as Rust has read"
            }
            Self::RustWaiterCrashes => {
                "A Rust waiter is killed at the head of the queue: Java, behind it, enters after the longer of its place and the lease"
            }
            Self::JavaWaiterCrashes => {
                "A Java waiter is halted at the head of the queue: Rust, behind it, enters when its place has lapsed"
            }
            Self::Takeover => {
                "A named owner takes its hold over with a shorter lease, and dies: Java enters at the end of that lease, also where it is fair or a read-write lock"
            }
            Self::JavaCannotReleaseOurs => "Java cannot release our hold",
            Self::RustCannotReleaseTheirs => "We cannot release Java's hold",
            Self::JavaForces => "`forceUnlock` in Java ends our hold, and we hear of it",
            Self::RustForces => "`force_release` in Rust ends Java's hold",
            Self::LocksOfJava => {
                "Held by Java as an `RLock`, an `RFairLock`: all other kinds of ours refuse the name"
            }
            Self::ReadWriteLocksOfJava => {
                "Held by Java for reading, for writing: all other kinds of ours refuse the name"
            }
            Self::SemaphoresOfJava => {
                "In use by Java as a semaphore: our locks and read-write locks refuse the name"
            }
            Self::LocksOfOurs => {
                "Our lock used by Java as a read-write lock, which Redisson does not refuse: we hear of it with the next renewal"
            }
            Self::OthersOfOurs => {
                "Held by us as one kind, and used by Java as any other: Java is not let in"
            }
            Self::Tokens => {
                "Fencing tokens rise from one hold to the next, whichever side has it: `token()` and `RFencedLock.lockAndGetToken`"
            }
            Self::Braces => "Its name has a tag: `{shop}:imported`",
            Self::BothMessages => {
                "Rust has `ClusterMessages::Both`, Java sharded or plain messages: a release wakes the other side within 50 ms at the median"
            }
            Self::OtherMessages => {
                "Rust has sharded and Java plain messages, which is a mistake: no release wakes the other side"
            }
            Self::Failover => {
                "The primary is killed while each side holds four kinds of locks and waits for those of the other: no hold is lost, every waiter enters, and both sides go on"
            }
            Self::LatchesOfJava => {
                "In use by Java as a latch: our locks and read-write locks refuse the name"
            }
        }
    }
}
