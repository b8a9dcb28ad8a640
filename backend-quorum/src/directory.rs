//! The directory of a [`Quorum`], as reported by a majority of the members.
//!
//! A walk over the names visits one member after the other. A member that does not answer is
//! skipped if a majority is left, because every hold of a majority is at one of these members too.
//! A single member has more than that, such as a part of an acquisition that was refused. So each
//! name is inspected before it is reported.
//!
//! A record is written to all members with a number that rises, and the one with the greatest
//! number counts. The removal of a record is stored as a record too, because a member that was down
//! may have the earlier one. It is kept for as long as an earlier record can live.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::{join_all, try_join_all};
use lockcore::{
    BackendError, BackendErrorKind, LockName,
    backend::{Backend, Cursor, Directory, Page, Start, StoredEntry, async_trait},
};
use tokio::time::Instant;

use crate::{
    Quorum,
    acquire::GRACE,
    failure::Failures,
    inspect,
    member::{Member, MemberSet},
    quorum::Inner,
    round::{About, Round},
};

/// The longest lifetime of a record.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// How long a majority waits for the others to write a record. A member that gets it too late may
/// report the one before, if that was to live longer. Records are written in the background, and
/// only the end of a client waits for one that is being written.
const RECORD_GRACE: Duration = Duration::from_millis(500);

/// The number of names that are inspected concurrently.
const LOOKED_AT_TOGETHER: usize = 32;

/// The first word of a cursor.
const OF_MEMBER: &str = "member";

/// The last number that this process has written.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that is greater than all earlier ones in this process, and than those that other
/// processes wrote some time ago.
fn next_number() -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = u64::try_from(clock.as_micros()).unwrap_or_default();
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
        Some(micros.max(last.saturating_add(1)))
    });
    micros.max(last.unwrap_or_default().saturating_add(1))
}

/// The stored text of a record, or of its removal.
fn encode(number: u64, record: Option<&str>) -> String {
    match record {
        Some(record) => format!("{number} +{record}"),
        None => format!("{number} -"),
    }
}

/// The number, and the record unless it was removed. `None` for a text that is not a record of a
/// quorum, because a member may also be used on its own.
fn decode(stored: &str) -> Option<(u64, Option<&str>)> {
    let (number, rest) = stored.split_once(' ')?;
    let number = number.parse().ok()?;
    match rest.strip_prefix('+') {
        Some(record) => Some((number, Some(record))),
        None => (rest == "-").then_some((number, None)),
    }
}

/// The place where a walk goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    member: usize,
    /// The members that did not answer.
    missed: MemberSet,
    /// The place where the walk goes on at the member.
    start: Start,
}

impl Place {
    fn of(start: &Start) -> Result<Self, BackendError> {
        match start {
            Start::Beginning => {
                Ok(Self { member: 0, missed: MemberSet::default(), start: Start::Beginning })
            }
            Start::At(cursor) => Self::parse(cursor.as_str()).ok_or_else(|| cursor.refused()),
        }
    }

    fn parse(cursor: &str) -> Option<Self> {
        let mut words = cursor.splitn(4, ' ');
        let is_ours = words.next()? == OF_MEMBER;
        let member = words.next().filter(|_| is_ours)?.parse().ok()?;
        let missed = words.next()?.split(',').filter(|word| !word.is_empty());
        let missed = missed
            .map(|word| word.parse().ok().filter(|at| *at <= MemberSet::MAX))
            .collect::<Option<MemberSet>>()?;
        let start = words.next()?;
        let start = match start.strip_prefix("at ") {
            Some(cursor) => Start::At(Cursor::new(cursor)),
            None if start == "beginning" => Start::Beginning,
            None => return None,
        };
        Some(Self { member, missed, start })
    }

    fn cursor(&self) -> Cursor {
        let missed: Vec<_> = self.missed.iter().map(|at| at.to_string()).collect();
        let start = match &self.start {
            Start::Beginning => "beginning".to_owned(),
            Start::At(cursor) => format!("at {}", cursor.as_str()),
        };
        Cursor::new(format!("{OF_MEMBER} {} {} {start}", self.member, missed.join(",")))
    }

    /// The beginning of the next member.
    fn next_member(&self, missed: MemberSet) -> Self {
        Self { member: self.member + 1, missed, start: Start::Beginning }
    }
}

/// The directory of a member. A member that was connected later may have none.
fn directory_of(backend: &dyn Backend) -> Result<&dyn Directory, BackendError> {
    backend.directory().ok_or_else(|| BackendError::unsupported("a directory"))
}

impl Member {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        let asking = async {
            let backend = self.backend()?;
            directory_of(&*backend)?.names(start).await
        };
        self.other_answer(asking).await
    }

    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        let asking = async {
            let backend = self.backend()?;
            directory_of(&*backend)?.clients(start).await
        };
        self.other_answer(asking).await
    }

    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let asking = async {
            let backend = self.backend()?;
            directory_of(&*backend)?.storage(name, conditions).await
        };
        self.other_answer(asking).await
    }

    /// All records that this member has.
    async fn all_clients(&self) -> Result<Vec<(String, String)>, BackendError> {
        let (mut all, mut start) = (Vec::new(), Start::Beginning);
        loop {
            let page = self.clients(&start).await?;
            all.extend(page.entries);
            match page.next {
                Some(next) => start = Start::At(next),
                None => return Ok(all),
            }
        }
    }
}

impl Inner {
    /// Returns `true` if all members that are connected have a directory.
    pub(crate) fn has_directory(&self) -> bool {
        let mut members = self.members.iter().filter_map(|member| member.backend().ok());
        members.all(|member| member.directory().is_some())
    }

    /// The names that a majority holds.
    async fn held(&self, names: Vec<LockName>) -> Result<Vec<LockName>, BackendError> {
        let mut held = Vec::new();
        for some in names.chunks(LOOKED_AT_TOGETHER) {
            let looking = some.iter().cloned().map(|name| async move {
                let state = inspect::inspect(self, &name).await?;
                Ok::<_, BackendError>(state.is_held().then_some(name))
            });
            held.extend(try_join_all(looking).await?.into_iter().flatten());
        }
        Ok(held)
    }

    /// Notes that the member of `place` has not answered, and goes on to the next one.
    fn pass_over(&self, place: &Place, error: BackendError) -> Result<Place, BackendError> {
        let parts = self.parts();
        let missed = place.missed.with(MemberSet::of(place.member));
        if !parts.blocks(missed.len()) {
            return Ok(place.next_member(missed));
        }
        let mut failures = Failures::default();
        for at in place.missed.iter() {
            let message = "it did not answer earlier in this walk";
            failures.add(at, BackendError::new(BackendErrorKind::Unavailable, message));
        }
        failures.add(place.member, error);
        Err(failures.into_error(&self.members).not_applied())
    }

    /// Writes a record, or its removal, to all members. A majority has to answer.
    async fn put(
        &self,
        id: &str,
        record: Option<&str>,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        let (parts, asked) = (self.parts(), Instant::now());
        let stored = encode(next_number(), record);
        let mut round = Round::new(&self.members, self.all(), About::Other, |_, member| {
            let (id, stored) = (id.to_owned(), stored.clone());
            async move { directory_of(&*member)?.put_client(&id, &stored, lifetime).await }
        });
        round.until(|round| round.replies().count() >= parts.majority).await;
        match record {
            Some(_) => round.wait_for_all(RECORD_GRACE).await,
            None => round.wait_for_prompt(GRACE).await,
        }
        let is_majority = round.replies().count() >= parts.majority;
        let failures = Failures::of(&round, asked.elapsed());
        round.finish();
        if is_majority { Ok(()) } else { Err(failures.into_error(&self.members)) }
    }
}

#[async_trait]
impl Directory for Quorum {
    async fn names(&self, start: &Start) -> Result<Page<LockName>, BackendError> {
        let place = Place::of(start)?;
        let Some(member) = self.inner.members.get(place.member) else {
            return Err(match start {
                Start::At(cursor) => cursor.refused(),
                Start::Beginning => Failures::default().into_error(&self.inner.members),
            });
        };
        let (names, next) = match member.names(&place.start).await {
            Ok(Page { entries, next: Some(next), .. }) => {
                (entries, Place { start: Start::At(next), ..place })
            }
            Ok(page) => (page.entries, place.next_member(place.missed)),
            // The cursor is not one of this member's.
            Err(error) if error.kind() == BackendErrorKind::Other => return Err(error),
            Err(error) => (Vec::new(), self.inner.pass_over(&place, error)?),
        };
        let is_over = next.member >= self.inner.members.len();
        Ok(Page::new(self.inner.held(names).await?, (!is_over).then(|| next.cursor())))
    }

    async fn put_client(
        &self,
        id: &str,
        record: &str,
        lifetime: Duration,
    ) -> Result<(), BackendError> {
        self.inner.put(id, Some(record), lifetime).await
    }

    async fn remove_client(&self, id: &str) -> Result<(), BackendError> {
        self.inner.put(id, None, LONGEST).await
    }

    /// Returns all records in one page, because the latest one is known only when all members have
    /// returned theirs.
    async fn clients(&self, start: &Start) -> Result<Page<(String, String)>, BackendError> {
        if let Start::At(cursor) = start {
            return Err(cursor.refused());
        }
        let (parts, mut failures) = (self.inner.parts(), Failures::default());
        let mut newest: BTreeMap<String, (u64, Option<String>)> = BTreeMap::new();
        let (mut answers, mut failed) = (0, Vec::new());
        let asking = self.inner.members.iter().map(|member| member.all_clients());
        for (at, answer) in join_all(asking).await.into_iter().enumerate() {
            match answer {
                Ok(records) => {
                    answers += 1;
                    for (id, stored) in records {
                        let Some((number, record)) = decode(&stored) else { continue };
                        let known = newest.entry(id).or_default();
                        if known.0 < number {
                            *known = (number, record.map(str::to_owned));
                        }
                    }
                }
                Err(error) => failed.push((at, error)),
            }
        }
        if answers < parts.majority {
            failed.into_iter().for_each(|(at, error)| failures.add(at, error));
            return Err(failures.into_error(&self.inner.members).not_applied());
        }
        let records = newest.into_iter().filter_map(|(id, (_, record))| Some((id, record?)));
        Ok(Page::new(records.collect(), None))
    }

    /// The entries of each member that answers. A majority has to answer.
    async fn storage(
        &self,
        name: &LockName,
        conditions: &[LockName],
    ) -> Result<Vec<StoredEntry>, BackendError> {
        let (parts, mut failures) = (self.inner.parts(), Failures::default());
        let (mut answers, mut entries) = (0, Vec::new());
        let asking = self.inner.members.iter().map(|member| member.storage(name, conditions));
        for (at, answer) in join_all(asking).await.into_iter().enumerate() {
            match answer {
                Ok(stored) => {
                    answers += 1;
                    entries.extend(stored.into_iter().map(|mut entry| {
                        entry.key = format!("member {at}: {}", entry.key);
                        entry
                    }));
                }
                Err(error) => failures.add(at, error),
            }
        }
        if answers < parts.majority {
            return Err(failures.into_error(&self.inner.members).not_applied());
        }
        Ok(entries)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic: that is how they fail")]
mod tests {
    use lockcore_memory::MemoryBackend;

    use super::*;

    #[test]
    fn records_are_stored_with_their_numbers() {
        for record in ["", "+", "- -", "{\"a\": 1}"] {
            assert_eq!(decode(&encode(17, Some(record))), Some((17, Some(record))));
        }
        assert_eq!(decode(&encode(17, None)), Some((17, None)));
        for other in ["", "{\"a\": 1}", "17", "17 ", "17 -x", "x +y"] {
            assert_eq!(decode(other), None, "{other}");
        }
        assert!(next_number() < next_number());
    }

    #[test]
    fn a_cursor_has_the_member_and_those_that_were_missed() {
        for (missed, start) in [
            (MemberSet::default(), Start::Beginning),
            ([0, 2].into_iter().collect(), Start::At(Cursor::new("server x 17"))),
            (MemberSet::of(1), Start::At(Cursor::new(""))),
        ] {
            let place = Place { member: 3, missed, start };
            assert_eq!(Place::parse(place.cursor().as_str()), Some(place));
        }
        for other in
            ["", "member", "member 0", "member 0  ", "member x  beginning", "a 0  beginning"]
        {
            assert_eq!(Place::parse(other), None, "{other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_record_counts_wherever_it_is() {
        let stores = [(); 3].map(|()| MemoryBackend::new());
        let quorum = Quorum::new(stores.clone()).unwrap();
        let records = async || quorum.clients(&Start::Beginning).await.unwrap().entries;
        quorum.put_client("id", "new", LONGEST).await.unwrap();
        // A member that was down has an earlier one.
        stores[1].put_client("id", &encode(1, Some("old")), LONGEST).await.unwrap();
        stores[0].put_client("alone", "not of the quorum", LONGEST).await.unwrap();
        assert_eq!(records().await, [("id".to_owned(), "new".to_owned())]);
        quorum.remove_client("id").await.unwrap();
        stores[1].put_client("id", &encode(1, Some("old")), LONGEST).await.unwrap();
        assert_eq!(records().await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_a_minority_has_is_not_reported() {
        let stores = [(); 3].map(|()| MemoryBackend::new());
        let quorum = Quorum::new(stores.clone()).unwrap();
        let (held, part) = (LockName::new("held").unwrap(), LockName::new("part").unwrap());
        let acquire = |name: &LockName| {
            let hold = lockcore::backend::HoldId::unique("a:1");
            lockcore::backend::AcquireRequest::new(name.clone(), hold, LONGEST)
        };
        quorum.acquire(&acquire(&held)).await.unwrap();
        stores[2].acquire(&acquire(&part)).await.unwrap();
        let (mut found, mut start) = (Vec::new(), Start::Beginning);
        loop {
            let page = quorum.names(&start).await.unwrap();
            found.extend(page.entries);
            match page.next {
                Some(next) => start = Start::At(next),
                None => break,
            }
        }
        found.dedup();
        assert_eq!(found, [held]);
    }
}
