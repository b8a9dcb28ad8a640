//! A shop with 100 pieces in stock and 192 customers, served by many tasks in several clients, each of which reads the
//! stock, waits for the payment and writes the stock: how many pieces too many are sold without a lock, and with one.
//!
//! ```text
//! cargo run --example oversell
//! cargo run --example oversell -- --redis redis://127.0.0.1:6379
//! ```

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockcore::{LockError, Locks};
use lockcore_examples::{Failure, Store, Story, claim, with_store};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const STOCK: u32 = 100;
const CLIENTS: u32 = 4;
const TASKS_PER_CLIENT: u32 = 16;
const CUSTOMERS_PER_TASK: u32 = 3;
const CUSTOMERS: u32 = CLIENTS * TASKS_PER_CLIENT * CUSTOMERS_PER_TASK;

/// Between reading the stock and writing it. As all tasks begin at once, many of them read before the first one writes.
const PAYMENT: Duration = Duration::from_millis(1);

#[tokio::main]
async fn main() -> ExitCode {
    with_store("oversell", oversell).await
}

async fn oversell(store: Store) -> Result<(), Failure> {
    let story = Story::begin(format_args!(
        "{CUSTOMERS} customers want one of {STOCK} pieces each; {CLIENTS} clients with {TASKS_PER_CLIENT} tasks \
         each serve them; the lock is kept {store}\n"
    ));
    story.line("               sold   left by the books   oversold      time");
    let without = open(&store, Service::WithoutLock).await?;
    report(&story, "without lock", &without);
    let with = open(&store, Service::WithLock).await?;
    report(&story, "with lock", &with);

    claim(without.oversold() > 0, "without a lock the shop sells more than it has")?;
    claim(with.oversold() == 0, "with the lock it does not")?;
    claim(with.sold == STOCK && with.left == 0, "with the lock it sells everything that it has")?;
    Ok(())
}

/// How a customer is served.
#[derive(Clone, Copy)]
enum Service {
    WithoutLock,
    WithLock,
}

/// What a day brought.
struct Day {
    sold: u32,
    left: u32,
    took: Duration,
}

impl Day {
    fn oversold(&self) -> u32 {
        self.sold.saturating_sub(STOCK)
    }
}

fn report(story: &Story, service: &str, day: &Day) {
    let (sold, left, oversold, took) = (day.sold, day.left, day.oversold(), day.took.as_millis());
    story
        .line(format_args!("{service:<12}  {sold:>5}   {left:>17}   {oversold:>8}   {took:>4} ms"));
}

/// Opens a shop, serves all customers, and counts.
async fn open(store: &Store, service: Service) -> Result<Day, Failure> {
    let shop = Arc::new(Shop { stock: AtomicU32::new(STOCK), sold: AtomicU32::new(0) });
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(store.client().await?.build()?);
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for locks in &clients {
        for _ in 0..TASKS_PER_CLIENT {
            tasks.spawn(serve(shop.clone(), locks.clone(), service));
        }
    }
    while let Some(served) = tasks.join_next().await {
        served??;
    }
    let took = began.elapsed();
    for locks in clients {
        locks.close().await?;
    }
    Ok(Day {
        sold: shop.sold.load(Ordering::Relaxed),
        left: shop.stock.load(Ordering::Relaxed),
        took,
    })
}

/// One task: its customers, one after the other.
async fn serve(shop: Arc<Shop>, locks: Locks, service: Service) -> Result<(), LockError> {
    for _ in 0..CUSTOMERS_PER_TASK {
        match service {
            Service::WithoutLock => shop.sell().await,
            Service::WithLock => locks.lock("stock").run(async |_| shop.sell().await).await?,
        }
    }
    Ok(())
}

/// The books of the shop. The stock is read and written as if it were in a database: each access by itself is
/// atomic, a sale is not.
struct Shop {
    stock: AtomicU32,
    sold: AtomicU32,
}

impl Shop {
    async fn sell(&self) {
        let left = self.stock.load(Ordering::Relaxed);
        if left > 0 {
            sleep(PAYMENT).await;
            self.stock.store(left - 1, Ordering::Relaxed);
            self.sold.fetch_add(1, Ordering::Relaxed);
        }
    }
}
