//! A service that uses locks, and its unit tests: with the memory backend and tokio's paused clock they need no server, and
//! a minute takes no time.
//!
//! ```text
//! cargo test -p lockcore-examples --example unit_test
//! cargo run --example unit_test
//! ```

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockcore::{FencingToken, LockError, Locks};
use lockcore_examples::{Failure, Story, claim, without_arguments};
use lockcore_memory::MemoryBackend;
use tokio::time::sleep;

/// Longer than any payout takes that still goes on.
const LEASE: Duration = Duration::from_secs(60);

// The service.

/// Pays out every account once, however many workers there are.
#[derive(Clone)]
struct Payouts {
    locks: Locks,
    bank: Arc<Bank>,
}

#[derive(Debug, PartialEq)]
enum Payout {
    Paid,
    PaidBefore,
    Refused,
}

impl Payouts {
    async fn pay_out(&self, account: &str) -> Result<Payout, LockError> {
        let lock = self.locks.lock(account).lease(LEASE);
        lock.run(async |guard| self.bank.transfer(account, guard.token()).await).await
    }
}

/// Transfers at most once for an account, as long as nobody else does so at the same time; and refuses outdated tokens.
#[derive(Default)]
struct Bank {
    accounts: Mutex<HashMap<String, Account>>,
    /// Never answers the first request.
    is_stuck: bool,
}

#[derive(Default)]
struct Account {
    greatest: Option<FencingToken>,
    requests: u32,
    transfers: u32,
}

impl Bank {
    const TRANSFER: Duration = Duration::from_secs(2);

    async fn transfer(&self, account: &str, token: FencingToken) -> Payout {
        let answer = self.account(account, |account| {
            account.requests += 1;
            if account.greatest.is_some_and(|greatest| token < greatest) {
                return Some(Payout::Refused);
            }
            account.greatest = Some(token);
            (account.transfers > 0).then_some(Payout::PaidBefore)
        });
        if let Some(answer) = answer {
            return answer;
        }
        if self.is_stuck && self.account(account, |account| account.requests == 1) {
            std::future::pending::<()>().await;
        }
        sleep(Self::TRANSFER).await;
        self.account(account, |account| account.transfers += 1);
        Payout::Paid
    }

    fn transfers(&self, account: &str) -> u32 {
        self.account(account, |account| account.transfers)
    }

    fn account<T>(&self, name: &str, change: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        change(accounts.entry(name.into()).or_default())
    }
}

// The same story as in the tests, to look at.

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    without_arguments("unit_test", story).await
}

async fn story() -> Result<(), Failure> {
    let really_began = std::time::Instant::now();
    let story = Story::begin("A worker gets stuck, another takes over; time flies");
    let store = MemoryBackend::new();
    let bank = Arc::new(Bank { is_stuck: true, ..Bank::default() });
    let first = Payouts { locks: Locks::new(store.clone()), bank: bank.clone() };
    let second = Payouts { locks: Locks::new(store), bank: bank.clone() };

    story.chapter(format_args!("Two workers want to pay out `account:7`; the lease is {LEASE:?}"));
    let stuck = async {
        story.tell("first", "begins, but the bank does not answer");
        let error = first
            .pay_out("account:7")
            .await
            .err()
            .ok_or("the first worker should lose its lock")?;
        story.tell("first", "gives up, as its lease ends:");
        story.add(&error);
        claim(matches!(error, LockError::Lost { .. }), "the first worker loses its lock")
    };
    let successor = async {
        story.tell("second", "waits");
        let payout = second.pay_out("account:7").await?;
        story.tell("second", "takes over, and has paid");
        claim(payout == Payout::Paid, "the second worker pays")
    };
    tokio::try_join!(stuck, successor)?;
    claim(bank.transfers("account:7") == 1, "the account is paid out once")?;
    story.line(format_args!("\nThat was {} ms of real time.", really_began.elapsed().as_millis()));
    story.line("As tests: cargo test -p lockcore-examples --example unit_test");
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Workers as in two processes, and the bank that both use.
    fn workers(bank: Bank) -> (Payouts, Payouts, Arc<Bank>) {
        // Clones share one store.
        let (store, bank) = (MemoryBackend::new(), Arc::new(bank));
        let worker = || Payouts { locks: Locks::new(store.clone()), bank: bank.clone() };
        (worker(), worker(), bank)
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_is_paid_out_once_by_two_workers() {
        let (first, second, bank) = workers(Bank::default());

        let (first, second) = tokio::join!(first.pay_out("account:7"), second.pay_out("account:7"));

        assert_eq!(first.unwrap(), Payout::Paid);
        assert_eq!(second.unwrap(), Payout::PaidBefore);
        assert_eq!(bank.transfers("account:7"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn different_accounts_are_paid_out_at_the_same_time() {
        let (first, second, _) = workers(Bank::default());
        let began = Instant::now();

        let (first, second) = tokio::join!(first.pay_out("account:7"), second.pay_out("account:8"));

        assert_eq!((first.unwrap(), second.unwrap()), (Payout::Paid, Payout::Paid));
        assert!(began.elapsed() < Bank::TRANSFER * 3 / 2, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_worker_takes_over_when_the_lease_of_a_stuck_one_ends() {
        let (first, second, bank) = workers(Bank { is_stuck: true, ..Bank::default() });
        let (began, really_began) = (Instant::now(), std::time::Instant::now());

        let (first, second) = tokio::join!(first.pay_out("account:7"), second.pay_out("account:7"));

        assert!(matches!(first, Err(LockError::Lost { .. })), "{first:?}");
        assert_eq!(second.unwrap(), Payout::Paid);
        assert_eq!(bank.transfers("account:7"), 1);
        let took = began.elapsed();
        assert!(took > LEASE * 9 / 10 && took <= LEASE + Bank::TRANSFER * 2, "{took:?}");
        assert!(
            really_began.elapsed() < LEASE / 10,
            "nobody has to wait for the end of a lease in a test"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_bank_refuses_a_worker_that_was_away_for_longer_than_its_lease() {
        let (first, second, bank) = workers(Bank::default());
        let outdated = first.locks.lock("account:7").lease(LEASE).acquire().await.unwrap();
        sleep(LEASE).await;

        assert_eq!(second.pay_out("account:7").await.unwrap(), Payout::Paid);
        assert_eq!(bank.transfer("account:7", outdated.token()).await, Payout::Refused);
        assert!(matches!(outdated.release().await, Err(LockError::Lost { .. })));
    }
}
