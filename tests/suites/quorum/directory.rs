//! The directory of a quorum with members that are down.

use std::{collections::BTreeSet, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{AcquireRequest, Backend, Directory, Start},
};
use lockcore_quorum::Quorum;
use lockcore_testkit::{Fault, Op};
use tokio::time::sleep;

use crate::{Bench, LEASE, SECOND, enters, hold, release};

/// Not a connection error: after one, a member may have lost its data, and does not count for a
/// while.
const DOWN: Fault = Fault::Refuse(BackendErrorKind::Unavailable);

fn directory(quorum: &Quorum) -> &dyn Directory {
    quorum.directory().unwrap()
}

/// The names that a walk reports.
async fn names(quorum: &Quorum) -> Result<BTreeSet<String>, BackendError> {
    let (mut all, mut start) = (BTreeSet::new(), Start::Beginning);
    loop {
        let page = directory(quorum).names(&start).await?;
        all.extend(page.entries.iter().map(|name| name.as_str().to_owned()));
        match page.next {
            Some(next) => start = Start::At(next),
            None => return Ok(all),
        }
    }
}

async fn hold_all(quorum: &Quorum, names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let names: BTreeSet<_> = names.into_iter().collect();
    for name in &names {
        let request = AcquireRequest::new(LockName::new(name).unwrap(), hold("a:1"), LEASE);
        quorum.acquire(&request).await.unwrap();
    }
    names
}

/// Each majority has some of the names, and none has all.
#[tokio::test(start_paused = true)]
async fn whichever_minority_is_down_all_names_are_reported() {
    let bench = Bench::new(5);
    let mut all = BTreeSet::new();
    for down in 0..5 {
        bench.faults[down].every(Op::Acquire, DOWN);
        all.extend(hold_all(&bench.quorum, [format!("without {down}")]).await);
        bench.faults[down].heal();
    }
    for (one, other) in [(0, 1), (0, 4), (1, 3), (2, 3), (3, 4)] {
        for member in [one, other] {
            bench.faults[member].every(Op::Names, DOWN);
        }
        assert_eq!(names(&bench.quorum).await.unwrap(), all, "{one} and {other} are down");
        for member in [one, other] {
            bench.faults[member].heal();
        }
    }
    assert_eq!(names(&bench.quorum).await.unwrap(), all);
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_a_walk_fails_and_says_why() {
    let bench = Bench::new(3);
    hold_all(&bench.quorum, ["a".to_owned()]).await;
    // The walk fails at the beginning, or later, when the second member turns out to be down.
    for down in [[0, 1], [0, 2], [1, 2]] {
        for member in down {
            bench.faults[member].every(Op::Names, DOWN);
            bench.faults[member].every(Op::Clients, DOWN);
        }
        let error = names(&bench.quorum).await.unwrap_err();
        assert!(error.is_retryable() && !error.is_outcome_unknown(), "{error}");
        assert!(error.to_string().contains("no majority"), "{error}");
        let error = directory(&bench.quorum).clients(&Start::Beginning).await.unwrap_err();
        assert!(error.to_string().contains("no majority"), "{error}");
        for member in down {
            bench.faults[member].heal();
        }
    }
}

/// A member that was down has an earlier record, or one that was removed since.
#[tokio::test(start_paused = true)]
async fn a_member_that_was_down_brings_no_record_back() {
    let bench = Bench::new(3);
    let records = async || {
        let page = directory(&bench.quorum).clients(&Start::Beginning).await.unwrap();
        page.entries
    };
    let put = async |id: &'static str, record: &'static str| {
        directory(&bench.quorum).put_client(id, record, LEASE).await.unwrap();
    };
    put("changed", "old").await;
    put("removed", "old").await;
    bench.faults[1].every(Op::PutClient, DOWN);
    put("changed", "new").await;
    put("added", "new").await;
    directory(&bench.quorum).remove_client("removed").await.unwrap();
    bench.faults[1].heal();
    let expected = [("added", "new"), ("changed", "new")]
        .map(|(id, record)| (id.to_owned(), record.to_owned()));
    assert_eq!(records().await, expected);
    // The members that know better may be a minority of those that answer.
    bench.faults[0].every(Op::Clients, DOWN);
    assert_eq!(records().await, expected);
}

/// It would report the record before, which lives longer.
#[tokio::test(start_paused = true)]
async fn a_slow_member_has_a_record_when_it_is_answered() {
    let bench = Bench::new(3);
    let directory = directory(&bench.quorum);
    directory.put_client("id", "first", LEASE).await.unwrap();
    let (slow, brief) = (Duration::from_millis(100), Duration::from_millis(50));
    bench.faults[1].next(Op::PutClient, Fault::Delay(slow));
    directory.put_client("id", "brief", brief).await.unwrap();
    sleep(brief + Duration::from_millis(1)).await;
    assert_eq!(directory.clients(&Start::Beginning).await.unwrap().entries, []);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_no_majority_has_taken_is_an_error() {
    let bench = Bench::new(3);
    for member in [0, 2] {
        bench.faults[member].every(Op::PutClient, DOWN);
    }
    let error = directory(&bench.quorum).put_client("id", "record", LEASE).await.unwrap_err();
    assert!(error.to_string().contains("no majority") && error.is_outcome_unknown(), "{error}");
}

/// A member that keeps no records may well have the holds.
#[tokio::test(start_paused = true)]
async fn a_failed_record_keeps_no_member_out() {
    let bench = Bench::new(3);
    bench.faults[2].every(Op::PutClient, Fault::Refuse(BackendErrorKind::Connection));
    for number in 0..31 {
        bench.quorum.put_client("id", "record", SECOND).await.unwrap();
        enters(&bench.quorum, &format!("a:{number}")).await;
        bench.quorum.release(&release(&format!("a:{number}"))).await.unwrap();
        sleep(SECOND).await;
    }
    bench.quorum.put_client("id", "record", SECOND).await.unwrap();
    bench.faults[1].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Unavailable));
    enters(&bench.quorum, "a:31").await;
}
