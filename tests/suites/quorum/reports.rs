//! What errors and logs say about members that do not answer.

use lockcore::{BackendError, BackendErrorKind, backend::Backend};
use lockcore_memory::MemoryBackend;
use lockcore_quorum::Quorum;
use lockcore_testkit::{Fault, Faults, Faulty, Op};
use tokio::time::sleep;

use crate::{SECOND, enters, log::Log, release, request};

/// A quorum whose members have names.
fn named() -> (Quorum, Vec<Faults>) {
    let members: Vec<_> = (0..3).map(|_| Faulty::new(MemoryBackend::new())).collect();
    let faults = members.iter().map(Faulty::faults).collect();
    let hosts = ["a.internal", "b.internal", "c.internal"].into_iter();
    let members = members.into_iter().zip(hosts);
    let quorum =
        members.fold(Quorum::builder(), |quorum, (member, host)| quorum.member(member).named(host));
    (quorum.build().unwrap(), faults)
}

#[tokio::test(start_paused = true)]
async fn an_error_names_the_members_and_gives_the_advice_once() {
    let (quorum, faults) = named();
    faults[0].every(Op::Acquire, Fault::NeverAnswer);
    faults[2].every(Op::Acquire, Fault::Refuse(BackendErrorKind::Timeout));
    let text = quorum.acquire(&request("a:1")).await.unwrap_err().to_string();
    for part in ["; store 1 (a.internal): no answer within", "; store 3 (c.internal): Acquire was"]
    {
        assert!(text.contains(part), "`{part}` is missing: {text}");
    }
    assert_eq!(text.matches("check the server's load").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_cannot_be_connected_is_named() {
    let down = || async {
        Err::<MemoryBackend, _>(BackendError::new(BackendErrorKind::Connection, "it is down"))
    };
    let members = Quorum::builder().member(MemoryBackend::new());
    let members = members.member_from(down).named("b.internal").member_from(down);
    let text = members.connect().await.unwrap_err().to_string();
    assert!(text.contains("; store 2 (b.internal): it is down; store 3: it is down; "), "{text}");
    assert_eq!(text.matches("check that the server is up").count(), 1, "{text}");
}

/// A member that rejects the login answers requests, but is of no use.
#[tokio::test(start_paused = true)]
async fn a_member_that_takes_no_login_any_more_is_not_reported_as_back() {
    let (log, _guard) = Log::start();
    let (quorum, faults) = named();
    for kind in [BackendErrorKind::Connection, BackendErrorKind::Auth] {
        for op in [Op::Acquire, Op::Release] {
            faults[1].every(op, Fault::Refuse(kind));
        }
        for _ in 0..5 {
            enters(&quorum, "a:1").await;
            quorum.release(&release("a:1")).await.unwrap();
            sleep(SECOND).await;
        }
    }
    assert_eq!(log.lines_with("a member of the quorum").len(), 1);
    assert!(log.line_with("a member of the quorum").contains("does not answer"));
}

/// While a majority is well, nothing else tells of it.
#[tokio::test(start_paused = true)]
async fn a_member_that_goes_away_and_comes_back_is_logged_once() {
    let (log, _guard) = Log::start();
    let (quorum, faults) = named();
    let work = async |seconds| {
        for _ in 0..seconds {
            enters(&quorum, "a:1").await;
            quorum.release(&release("a:1")).await.unwrap();
            sleep(SECOND).await;
        }
    };
    work(3).await;
    faults[1].next(Op::Acquire, Fault::Refuse(BackendErrorKind::Connection));
    work(3).await;
    assert_eq!(log.lines_with("a member of the quorum"), [""; 0], "a single failure was reported");
    for op in [Op::Acquire, Op::Release] {
        faults[1].every(op, Fault::NeverAnswer);
    }
    work(10).await;
    let away = log.line_with("a member of the quorum");
    for part in ["WARN", "does not answer", "member=store 2 (b.internal)", "error=no answer within"]
    {
        assert!(away.contains(part), "`{part}` is missing: {away}");
    }
    faults[1].heal();
    work(10).await;
    let back = log.line_with("a member of the quorum answers again");
    for part in ["INFO", "member=store 2 (b.internal)", "away_for="] {
        assert!(back.contains(part), "`{part}` is missing: {back}");
    }
    assert_eq!(log.lines_with("a member of the quorum").len(), 2);
}
