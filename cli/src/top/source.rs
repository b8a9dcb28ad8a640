//! [`Source`]: asks the store, for as long as somebody listens.

use std::{sync::Arc, time::Duration};

use lockcore::{BackendErrorKind, LockError, LockName, backend::Backend};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::model::{News, Release};
use crate::{
    clients::Clients,
    exit::Failure,
    output::escaped,
    pace::Pace,
    report::Report,
    store::Store,
    sweep::{Sweep, is_of_name},
};

/// Sweeps over the names again and again, and looks at the selected one in between.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) store: Store,
    pub(crate) pace: Pace,
    /// The time from one sweep to the next, and between looks at the selected name.
    pub(crate) interval: Duration,
    pub(crate) selected: watch::Receiver<Option<String>>,
    pub(crate) news: mpsc::Sender<News>,
}

/// The reason why a sweep ended early.
enum End {
    /// Nobody listens any more.
    Closed,
    Failed(LockError),
}

impl<E: Into<LockError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Source {
    /// Ends when nobody listens any more.
    pub(crate) async fn run(mut self) {
        let mut clients = Arc::new(Clients::default());
        loop {
            let next = Instant::now() + self.interval;
            let ended = match self.sweep(&mut clients).await {
                Ok(()) => self.rest(next, &clients).await,
                Err(end) => Err(end),
            };
            match ended {
                Ok(()) => {}
                Err(End::Closed) => return,
                Err(End::Failed(error)) => {
                    let away = News::Away(Failure::from(error).to_string());
                    if self.news.send(away).await.is_err() {
                        return;
                    }
                    sleep_until(next.max(Instant::now() + Duration::from_millis(500))).await;
                }
            }
        }
    }

    async fn sweep(&mut self, clients: &mut Arc<Clients>) -> Result<(), End> {
        let mut sweep = Sweep::begin(&self.store, None, &mut self.pace, |_| ()).await?;
        *clients = Arc::clone(sweep.clients());
        let names = sweep.names().iter().map(|name| name.as_str().to_owned()).collect();
        self.tell(News::Began { names, deadlocks: clients.deadlocks() }).await?;
        let mut next_look = Instant::now();
        while let Some(batch) = sweep.next(&mut self.pace).await? {
            let names = batch.names.iter().map(|name| name.as_str().to_owned()).collect();
            let (reports, done) = (batch.reports, Some(sweep.done()));
            self.tell(News::Looked { names, reports, done }).await?;
            if self.selected.has_changed().unwrap_or(false) || Instant::now() >= next_look {
                self.look(clients).await?;
                next_look = Instant::now() + self.interval;
            }
        }
        self.tell(News::Ended).await
    }

    /// Waits for the next sweep. A name that is selected meanwhile is looked at.
    async fn rest(&mut self, next: Instant, clients: &Clients) -> Result<(), End> {
        loop {
            tokio::select! {
                () = sleep_until(next) => return Ok(()),
                changed = self.selected.changed() => changed.map_err(|_| End::Closed)?,
            }
            self.look(clients).await?;
        }
    }

    async fn tell(&self, news: News) -> Result<(), End> {
        self.news.send(news).await.map_err(|_| End::Closed)
    }

    /// Looks at the selected name.
    async fn look(&mut self, clients: &Clients) -> Result<(), End> {
        let Some(name) = self.selected.borrow_and_update().clone() else { return Ok(()) };
        let Ok(lock) = LockName::new(name.as_str()) else { return Ok(()) };
        self.pace.take(1).await;
        let report = match self.pace.in_time(Report::of(&*self.store.backend, &lock)).await {
            Ok(mut report) => {
                report.identify(clients);
                report.kind.is_some().then_some(report)
            }
            Err(error) if error.kind() == BackendErrorKind::WrongType => return Ok(()),
            Err(error) if is_of_name(error.kind()) => Some(Report::unreadable(&name, &error)),
            Err(error) => return Err(error.into()),
        };
        let reports = report.into_iter().collect();
        self.tell(News::Looked { names: vec![name], reports, done: None }).await
    }
}

/// Takes a name from its holders, if they are still those that were confirmed. Returns a message
/// about the outcome.
pub(crate) async fn release(backend: &dyn Backend, release: &Release) -> String {
    match try_release(backend, release).await {
        Ok(said) => said,
        Err(failure) => format!("nothing was released, as far as is known: {failure}"),
    }
}

async fn try_release(backend: &dyn Backend, release: &Release) -> Result<String, Failure> {
    let (name, pace) = (LockName::new(release.name.as_str())?, Pace::new(0));
    let shown = escaped(&release.name);
    let report = pace.in_time(Report::of(backend, &name)).await?;
    if report.holders_in_words() != release.holders {
        return Ok(format!("nothing was released: {shown} has another holder by now"));
    }
    Ok(match pace.in_time(backend.force_release(&name)).await? {
        true => format!("released {shown}, held by {}", escaped(&release.holders)),
        false => format!("{shown} is not held any more"),
    })
}

#[cfg(test)]
mod tests {
    use lockcore::Locks;
    use lockcore_memory::MemoryBackend;
    use lockcore_testkit::{Fault, Faulty, Op};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sweep_is_told_in_steps_and_the_selected_name_is_looked_at_in_between() {
        let memory = MemoryBackend::new();
        let locks = Locks::new(memory.clone());
        let _guard = locks.lock("a").acquire().await.unwrap();
        let (select, selected) = watch::channel(None);
        let (news, mut heard) = mpsc::channel(16);
        let store = Store { backend: Arc::new(memory), locks: locks.clone() };
        let interval = Duration::from_secs(5);
        let source = Source { store, pace: Pace::new(100), interval, selected, news };
        let running = tokio::spawn(source.run());
        let began = Instant::now();
        assert!(
            matches!(heard.recv().await, Some(News::Began { names, .. }) if names.contains("a"))
        );
        let looked = heard.recv().await.unwrap();
        assert!(
            matches!(looked, News::Looked { done: Some(1), reports, .. } if reports.len() == 1)
        );
        assert!(matches!(heard.recv().await, Some(News::Ended)));
        select.send(Some("a".to_owned())).unwrap();
        assert!(matches!(heard.recv().await, Some(News::Looked { done: None, .. })));
        assert!(began.elapsed() < interval);
        assert!(matches!(heard.recv().await, Some(News::Began { .. })));
        assert!(began.elapsed() >= interval);
        drop(heard);
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_selected_name_that_cannot_be_read_does_not_mean_that_the_store_is_away() {
        let memory = MemoryBackend::new();
        let faulty = Faulty::new(memory.clone());
        let faults = faulty.faults();
        let store = Store { backend: Arc::new(faulty), locks: Locks::new(memory) };
        let _guard = store.locks.lock("a").acquire().await.unwrap();
        let (select, selected) = watch::channel(None);
        let (news, mut heard) = mpsc::channel(16);
        let interval = Duration::from_secs(5);
        let source = Source { store, pace: Pace::new(100), interval, selected, news };
        let running = tokio::spawn(source.run());
        while !matches!(heard.recv().await, Some(News::Ended)) {}
        faults.next(Op::Inspect, Fault::Refuse(BackendErrorKind::Permission));
        select.send(Some("a".to_owned())).unwrap();
        let looked = heard.recv().await.unwrap();
        let News::Looked { names, reports, done: None } = &looked else { panic!("{looked:?}") };
        assert_eq!(names, &["a"]);
        assert!(matches!(&**reports, [report] if report.error.is_some()), "{reports:?}");
        running.abort();
    }

    #[tokio::test]
    async fn only_the_holders_that_were_asked_about_lose_their_lock() {
        let memory = MemoryBackend::new();
        let locks = Locks::new(memory.clone());
        let guard = locks.lock("a").acquire().await.unwrap();
        let holders = format!("{} (exclusive)", guard.wire_owner());
        let other =
            Release { name: "a".into(), holders: "x:1 (exclusive)".into(), in_short: "x:1".into() };
        let said = release(&memory, &other).await;
        assert!(said.contains("another holder") && guard.is_held(), "{said}");
        let said = release(&memory, &Release { holders, ..other }).await;
        assert!(said.starts_with("released a, held by"), "{said}");
        assert!(!locks.lock("a").state().await.unwrap().is_held());
    }
}
