//! [`FileBackend`].

use std::{collections::BTreeMap, fs, io, path::PathBuf, time::Duration};

use lockcore::{
    BackendError, BackendErrorKind, FencingToken, Holder, LockName, LockState, Mode,
    backend::{
        AcquireOutcome, AcquireRequest, Awaited, Backend, Capabilities, Conditions, Directory,
        HoldId, Latches, Limits, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
        ResizeOutcome, ResizeRequest, SubscribeRequest, Wakeup, Wakeups, async_trait,
    },
};
use rustix::{fs::FlockOperation, time::ClockId};

/// How often whoever waits looks whether a hold has ended. Files tell nobody when they change.
const POLL: Duration = Duration::from_millis(10);

/// Locks in a file, for the processes of one host. It changes only while a second file next to it is locked, and only by
/// putting a new one in its place. It should not outlive a restart of the host, whose clock begins anew: one below
/// `/run` does not.
///
/// No method awaits anything, so that a future that was dropped has done everything or nothing. The thread is
/// blocked meanwhile, for the moment that a small file on a local disk takes.
#[derive(Clone, Debug)]
pub(crate) struct FileBackend {
    file: PathBuf,
}

impl FileBackend {
    pub(crate) fn open(file: PathBuf) -> Result<Self, BackendError> {
        fs::File::options().append(true).create(true).open(&file).map_err(failure)?;
        Ok(Self { file })
    }

    /// One atomic step: nobody else is between the reading and the writing, and whoever dies there has changed nothing.
    fn step<T>(&self, step: impl FnOnce(&mut Table, Duration) -> T) -> io::Result<T> {
        // Unlocked when it is closed, also by a process that dies.
        let mutex = fs::File::create(self.file.with_extension("mutex"))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&mutex, FlockOperation::LockExclusive))?;
        // All processes of the host share this clock.
        let now =
            Duration::try_from(rustix::time::clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        let stored = fs::read_to_string(&self.file)?;
        let mut table = Table::decode(&stored).ok_or(io::ErrorKind::InvalidData)?;
        table.holds.retain(|_, hold| hold.until > now);
        let result = step(&mut table, now);
        let changed = table.encode();
        if changed != stored {
            fs::write(self.file.with_extension("new"), changed)?;
            fs::rename(self.file.with_extension("new"), &self.file)?;
        }
        Ok(result)
    }
}

/// Whatever fails does so before the new file is in place.
fn failure(error: io::Error) -> BackendError {
    BackendError::new(BackendErrorKind::Other, "cannot use its file")
        .not_applied()
        .with_source(error)
}

#[async_trait]
impl Backend for FileBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn intact_for(&self) -> Option<Duration> {
        None
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome, BackendError> {
        self.capabilities().require(request.mode)?;
        if request.tokens > 1 {
            return Err(BackendError::unsupported("grants of several tokens"));
        }
        if request.least_token.is_some() {
            return Err(BackendError::unsupported("proposed tokens"));
        }
        self.step(|table, now| table.acquire(request, now)).map_err(failure)
    }

    async fn renew(&self, holds: &[RenewRequest]) -> Result<Vec<RenewOutcome>, BackendError> {
        self.step(|table, now| holds.iter().map(|hold| table.renew(hold, now)).collect())
            .map_err(failure)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, BackendError> {
        self.step(|table, _| table.release(request)).map_err(failure)
    }

    async fn force_release(&self, name: &LockName) -> Result<bool, BackendError> {
        self.step(|table, _| table.holds.remove(name.as_str()).is_some()).map_err(failure)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, BackendError> {
        let holds =
            |stored: &Stored| Holder::new(stored.hold.owner(), Mode::Exclusive, stored.count);
        let state =
            |stored: &Stored, now| LockState::held(vec![holds(stored)], Some(stored.until - now));
        self.step(|table, now| {
            table.holds.get(name.as_str()).map(|stored| state(stored, now)).unwrap_or_default()
        })
        .map_err(failure)
    }

    async fn subscribe(
        &self,
        request: &SubscribeRequest,
    ) -> Result<Box<dyn Wakeups>, BackendError> {
        if request.awaited == Awaited::Demand {
            return Err(BackendError::unsupported("messages about the demand for locks"));
        }
        let seen = fs::read_to_string(&self.file).map_err(failure)?;
        Ok(Box::new(Polling { file: self.file.clone(), seen: Some(seen) }))
    }

    async fn resize(&self, _: &ResizeRequest) -> Result<ResizeOutcome, BackendError> {
        Err(BackendError::unsupported("semaphores"))
    }

    async fn raise_token(&self, _: &LockName, _: FencingToken) -> Result<(), BackendError> {
        Err(BackendError::unsupported("proposed tokens"))
    }

    fn latches(&self) -> Option<&dyn Latches> {
        None
    }

    fn conditions(&self) -> Option<&dyn Conditions> {
        None
    }

    fn directory(&self) -> Option<&dyn Directory> {
        None
    }
}

/// Wakes at every change, and after every failure to look: too often is allowed.
#[derive(Debug)]
struct Polling {
    file: PathBuf,
    seen: Option<String>,
}

#[async_trait]
impl Wakeups for Polling {
    async fn woken(&mut self) -> Wakeup {
        loop {
            tokio::time::sleep(POLL).await;
            let before = std::mem::replace(&mut self.seen, fs::read_to_string(&self.file).ok());
            if self.seen.is_none() || self.seen != before {
                return Wakeup::Changed;
            }
        }
    }
}

/// What is in the file. A name that nobody holds is not.
struct Table {
    /// One sequence for all names, so that none has to be remembered for a name that is free.
    last_token: u64,
    /// By name.
    holds: BTreeMap<String, Stored>,
}

struct Stored {
    hold: HoldId,
    count: u32,
    token: u64,
    until: Duration,
}

impl Table {
    fn acquire(&mut self, request: &AcquireRequest, now: Duration) -> AcquireOutcome {
        let until = now + request.lease;
        match self.holds.get_mut(request.name.as_str()) {
            Some(stored) if stored.hold == request.hold => {
                (stored.count, stored.until) = (request.count, stored.until.max(until));
                AcquireOutcome::Acquired { token: stored.token.into() }
            }
            Some(stored) if stored.hold.owner() != request.hold.owner() => {
                AcquireOutcome::Held { remaining: Some(stored.until - now) }
            }
            _ if request.count > 1 => AcquireOutcome::NotHeld,
            _ => {
                self.last_token += 1;
                let stored =
                    Stored { hold: request.hold.clone(), count: 1, token: self.last_token, until };
                self.holds.insert(request.name.as_str().into(), stored);
                AcquireOutcome::Acquired { token: self.last_token.into() }
            }
        }
    }

    /// What `hold` has under `name`.
    fn held(&mut self, name: &LockName, hold: &HoldId) -> Option<&mut Stored> {
        self.holds.get_mut(name.as_str()).filter(|stored| stored.hold == *hold)
    }

    fn renew(&mut self, request: &RenewRequest, now: Duration) -> RenewOutcome {
        let Some(stored) = self.held(&request.name, &request.hold) else {
            return RenewOutcome::NotHeld;
        };
        stored.until = stored.until.max(now + request.lease);
        RenewOutcome::Renewed
    }

    fn release(&mut self, request: &ReleaseRequest) -> ReleaseOutcome {
        let Some(stored) = self.held(&request.name, &request.hold) else {
            return ReleaseOutcome::NotHeld;
        };
        stored.count = request.remaining;
        if request.remaining > 0 {
            return ReleaseOutcome::StillHeld;
        }
        self.holds.remove(request.name.as_str());
        ReleaseOutcome::Released
    }

    /// Fields with a NUL after each: the one character that no name has.
    fn encode(&self) -> String {
        let mut text = format!("{}\0", self.last_token);
        for (name, Stored { hold, count, token, until }) in &self.holds {
            let (owner, id, until) = (hold.owner(), hold.id(), until.as_nanos());
            text += &format!("{name}\0{owner}\0{id}\0{count}\0{token}\0{until}\0");
        }
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let (last_token, holds) = text.split_once('\0').unwrap_or(("0", ""));
        let mut table = Self { last_token: last_token.parse().ok()?, holds: BTreeMap::new() };
        let mut fields = holds.split_terminator('\0');
        while let Some(name) = fields.next() {
            let hold = HoldId::named(fields.next()?, fields.next()?);
            let stored = Stored {
                hold,
                count: fields.next()?.parse().ok()?,
                token: fields.next()?.parse().ok()?,
                until: Duration::from_nanos(fields.next()?.parse().ok()?),
            };
            table.holds.insert(name.into(), stored);
        }
        Some(table)
    }
}
