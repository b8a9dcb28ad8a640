//! [`Model`]: everything that `lockctl top` knows and shows. It does no I/O.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use super::entry::Entry;
use crate::{clients::Deadlock, glob::Glob, report::Report};

/// The number of samples that are kept: as many as the widest plot has columns.
const LONGEST_HISTORY: usize = 512;

/// The shortest time over which the rate of grants is computed.
const RATE_TIME: Duration = Duration::from_secs(10);

/// How long a notice is shown.
const NOTICE_TIME: Duration = Duration::from_secs(8);

/// News from the store.
#[derive(Debug)]
pub(crate) enum News {
    /// A sweep began. These are the names, and the deadlocks.
    Began { names: HashSet<String>, deadlocks: Vec<Deadlock> },
    /// Names that were looked at, with reports of those in use. `done` is the number that the sweep
    /// has looked at, if these belong to it.
    Looked { names: Vec<String>, reports: Vec<Report>, done: Option<usize> },
    /// The sweep is over.
    Ended,
    /// The store does not answer.
    Away(String),
    /// The outcome of a forced release, or another message.
    Notice(String),
}

/// The order of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// The longest wait comes first.
    #[default]
    Waited,
    /// The most waiters come first.
    Waiters,
    /// The longest hold comes first.
    Held,
    /// The shortest rest of a lease comes first.
    Lease,
    Name,
}

impl Sort {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Waited => Self::Waiters,
            Self::Waiters => Self::Held,
            Self::Held => Self::Lease,
            Self::Lease => Self::Name,
            Self::Name => Self::Waited,
        }
    }

    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Waited => "waited for longest",
            Self::Waiters => "most waiters",
            Self::Held => "held longest",
            Self::Lease => "least lease left",
            Self::Name => "name",
        }
    }
}

/// The present meaning of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dialog {
    None,
    Help,
    /// The filter is being typed.
    Filter,
    /// The question whether to take the name from its holders.
    Release(Release),
    /// The same question, whose holders no longer hold the name. It stays until a key is pressed,
    /// because that key is meant for the question.
    Lapsed(String),
}

/// A forced release that has to be confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) name: String,
    /// The holders, as in [`Report::holders_in_words`]: the answer applies to these.
    pub(crate) holders: String,
    /// The first holder in a few words.
    pub(crate) in_short: String,
}

/// A moment of the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
}

#[derive(Debug)]
pub(crate) struct Model {
    /// The store, without secrets.
    pub(crate) store: String,
    entries: BTreeMap<String, Entry>,
    /// The number of names that the sweep has looked at, and the number of all.
    progress: (usize, usize),
    sweeps: u64,
    /// When the sweep began, and how long the last one took.
    sweep_began: Option<Instant>,
    sweep_time: Duration,
    /// The reason why the store cannot be asked, and since when.
    pub(crate) away: Option<(String, Instant)>,
    history: VecDeque<Sample>,
    grants: VecDeque<(Instant, u64)>,
    pub(crate) ran_out: u64,
    /// The deadlocks that the records of clients tell of, the certain ones first.
    pub(crate) deadlocks: Vec<Deadlock>,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    /// The selected name. It stays selected when the order changes.
    pub(crate) selected: Option<String>,
    pub(crate) details: bool,
    pub(crate) dialog: Dialog,
    notice: Option<(String, Instant)>,
    /// The first row that was drawn.
    pub(crate) first_row: usize,
    /// The number of rows that the table shows, for the keys that turn pages.
    pub(crate) page: usize,
}

impl Model {
    pub(crate) fn new(store: String) -> Self {
        Self {
            store,
            entries: BTreeMap::new(),
            progress: (0, 0),
            sweeps: 0,
            sweep_began: None,
            sweep_time: Duration::ZERO,
            away: None,
            history: VecDeque::new(),
            grants: VecDeque::new(),
            ran_out: 0,
            deadlocks: Vec::new(),
            sort: Sort::default(),
            filter: String::new(),
            selected: None,
            details: false,
            dialog: Dialog::None,
            notice: None,
            first_row: 0,
            page: 10,
        }
    }

    pub(crate) fn hear(&mut self, news: News, now: Instant) {
        match news {
            News::Began { names, deadlocks } => {
                self.away = None;
                self.deadlocks = deadlocks;
                self.progress = (0, names.len());
                self.sweep_began = Some(now);
                let gone: Vec<String> =
                    self.entries.keys().filter(|name| !names.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.forget(name, now));
            }
            News::Looked { names, reports, done } => {
                self.away = None;
                self.progress.0 = done.unwrap_or(self.progress.0);
                let used: HashSet<&str> = reports.iter().map(|report| &*report.name).collect();
                let gone: Vec<&String> =
                    names.iter().filter(|name| !used.contains(&***name)).collect();
                gone.into_iter().for_each(|name| self.forget(name, now));
                reports.into_iter().for_each(|report| self.look(report, now));
            }
            News::Ended => {
                self.sweeps += 1;
                if let Some(began) = self.sweep_began.take() {
                    self.sweep_time = now.saturating_duration_since(began);
                }
            }
            News::Away(reason) => {
                let since = self.away.take().map_or(now, |(_, since)| since);
                self.away = Some((reason, since));
            }
            News::Notice(notice) => self.notice = Some((notice, now)),
        }
        if self.selected.as_ref().is_none_or(|name| !self.entries.contains_key(name)) {
            self.selected = None;
        }
        if let Dialog::Release(release) = &self.dialog {
            let entry = self.entries.get(&release.name);
            if entry.is_none_or(|entry| entry.report.holders_in_words() != release.holders) {
                self.dialog = Dialog::Lapsed(release.name.clone());
            }
        }
    }

    fn look(&mut self, report: Report, now: Instant) {
        // Before the first sweep is over, a new name may be an old one.
        let came = self.sweeps > 0;
        if let Some(entry) = self.entries.get_mut(&report.name) {
            let change = entry.update(report, now);
            self.ran_out += change.ran_out;
            self.count_grants(change.grants, now);
            return;
        }
        if came {
            self.count_grants(report.holders.len() as u64, now);
        }
        self.entries.insert(report.name.clone(), Entry::new(report, now, came));
    }

    fn forget(&mut self, name: &str, now: Instant) {
        if let Some(entry) = self.entries.remove(name) {
            self.ran_out += entry.ran_out(now);
        }
    }

    fn count_grants(&mut self, grants: u64, now: Instant) {
        if grants > 0 {
            self.grants.push_back((now, grants));
        }
    }

    /// Takes a sample of what is known.
    pub(crate) fn sample(&mut self, now: Instant) {
        if self.history.len() == LONGEST_HISTORY {
            self.history.pop_front();
        }
        let sample = self.totals();
        self.history.push_back(sample);
        let rate_time = self.rate_time();
        while self
            .grants
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) > rate_time)
        {
            self.grants.pop_front();
        }
    }

    /// A sweep that takes longer than [`RATE_TIME`] finds the grants of all that time.
    fn rate_time(&self) -> Duration {
        RATE_TIME.max(self.sweep_time)
    }

    pub(crate) fn totals(&self) -> Sample {
        let entries = self.entries.values();
        entries.fold(Sample::default(), |sample, Entry { report, .. }| Sample {
            held: sample.held + u64::from(report.held),
            waiting: sample.waiting + report.waiters as u64,
        })
    }

    /// The number of names in use: those that a sweep has listed, although it has not looked at
    /// all of them yet.
    pub(crate) fn total(&self) -> usize {
        if self.has_swept() { self.entries.len() } else { self.progress.1 }
    }

    /// The samples, the last one first.
    pub(crate) fn history(&self) -> impl Iterator<Item = Sample> {
        self.history.iter().rev().copied()
    }

    /// The grants a second that were noticed. There may have been more between two looks.
    pub(crate) fn grants_per_second(&self) -> f64 {
        let grants: u64 = self.grants.iter().map(|(_, grants)| grants).sum();
        #[allow(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
        let grants = grants as f64;
        grants / self.rate_time().as_secs_f64()
    }

    /// The progress of the sweep, in percent. [`None`] between two sweeps.
    pub(crate) fn sweep_percent(&self) -> Option<usize> {
        self.sweep_began.map(|_| self.progress.0 * 100 / self.progress.1.max(1))
    }

    pub(crate) fn has_swept(&self) -> bool {
        self.sweeps > 0
    }

    /// The notice, while it is new. Whatever the interval of the samples is, the picture is drawn
    /// at least once a second, and no longer has it then.
    pub(crate) fn notice(&self, now: Instant) -> Option<&str> {
        let is_new = |at: Instant| now.saturating_duration_since(at) <= NOTICE_TIME;
        self.notice.as_ref().filter(|(_, at)| is_new(*at)).map(|(notice, _)| &**notice)
    }

    pub(crate) fn say(&mut self, notice: impl Into<String>, now: Instant) {
        self.notice = Some((notice.into(), now));
    }

    pub(crate) fn selected_entry(&self) -> Option<&Entry> {
        self.entries.get(self.selected.as_ref()?)
    }

    /// The names that the filter lets through, in their order.
    pub(crate) fn rows(&self, now: Instant) -> Vec<&Entry> {
        let filter = Filter::new(&self.filter);
        let mut rows: Vec<&Entry> =
            self.entries.values().filter(|entry| filter.matches(&entry.report)).collect();
        // The sort is stable, so that equals stay in the order of their names.
        match self.sort {
            Sort::Waited => rows.sort_by_cached_key(|entry| {
                std::cmp::Reverse((entry.waited_for(now), entry.report.waiters))
            }),
            Sort::Waiters => rows.sort_by_key(|entry| std::cmp::Reverse(entry.report.waiters)),
            Sort::Held => rows.sort_by_cached_key(|entry| {
                std::cmp::Reverse(entry.held_for(now).map(|(time, _)| time))
            }),
            Sort::Lease => rows.sort_by_cached_key(|entry| {
                entry.lease(now).map_or(Duration::MAX, |(left, _)| left)
            }),
            Sort::Name => {}
        }
        rows
    }

    /// Selects the row that is `by` rows further down.
    pub(crate) fn select(&mut self, by: isize, now: Instant) {
        let rows = self.rows(now);
        let is_selected = |entry: &&Entry| Some(&entry.report.name) == self.selected.as_ref();
        let at = match rows.iter().position(is_selected) {
            Some(at) => at.saturating_add_signed(by),
            // The first key selects the first row.
            None if by < isize::MAX => 0,
            None => usize::MAX,
        };
        let at = at.min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|entry| entry.report.name.clone());
    }
}

/// The text typed after `/`: a pattern if it has a `*` or `?`, else a part of the name, kind or
/// holder.
struct Filter {
    pattern: Option<Glob>,
    part: String,
}

impl Filter {
    fn new(filter: &str) -> Self {
        let pattern = filter.contains(['*', '?']).then(|| Glob::new(filter));
        Self { pattern, part: filter.to_lowercase() }
    }

    fn matches(&self, report: &Report) -> bool {
        if let Some(pattern) = &self.pattern {
            return pattern.matches(&report.name);
        }
        let contains = |text: &str| text.to_lowercase().contains(&self.part);
        self.part.is_empty()
            || contains(&report.name)
            || report.kind.is_some_and(contains)
            || report
                .holders
                .iter()
                .any(|holder| contains(&holder.owner) || contains(&holder.in_short()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lockcore::{Holder, LockState, Mode};

    use super::*;

    /// A name that `owner` holds.
    pub(crate) fn holding(name: &str, owner: &str, left: f64, waiters: &[&str]) -> Report {
        let left = Some(Duration::from_secs_f64(left));
        let state = LockState::held(vec![Holder::new(owner, Mode::Exclusive, 1)], left);
        let waiters = waiters.iter().map(|waiter| (*waiter).to_owned()).collect();
        Report::new(name, &state.with_waiters(waiters), None)
    }

    pub(crate) fn began(names: &[String]) -> News {
        News::Began { names: names.iter().cloned().collect(), deadlocks: Vec::new() }
    }

    fn sweep(model: &mut Model, reports: Vec<Report>, now: Instant) {
        let names: Vec<String> = reports.iter().map(|report| report.name.clone()).collect();
        model.hear(began(&names), now);
        let done = Some(names.len());
        model.hear(News::Looked { names, reports, done }, now);
        model.hear(News::Ended, now);
    }

    /// After one sweep.
    pub(crate) fn model_of(reports: Vec<Report>) -> Model {
        let mut model = Model::new("redis://***@store".to_owned());
        let now = Instant::now();
        sweep(&mut model, reports, now);
        model.sample(now);
        model
    }

    fn shown(model: &Model, now: Instant) -> Vec<&str> {
        model.rows(now).iter().map(|entry| &*entry.report.name).collect()
    }

    #[test]
    fn a_sweep_says_how_far_it_is_and_removes_what_is_gone() {
        let mut model = Model::new(String::new());
        let now = Instant::now();
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        model.hear(began(&names), now);
        assert_eq!((model.sweep_percent(), model.has_swept()), (Some(0), false));
        let reports = vec![holding("a", "x:1", 30.0, &["y:1", "z:1"])];
        let names = names[..2].to_vec();
        model.hear(News::Looked { names, reports, done: Some(2) }, now);
        assert_eq!((model.sweep_percent(), model.total()), (Some(50), 4));
        assert_eq!(model.totals(), Sample { held: 1, waiting: 2 });
        model.hear(News::Ended, now);
        assert_eq!((model.sweep_percent(), model.has_swept()), (None, true));
        model.selected = Some("a".to_owned());
        sweep(&mut model, vec![holding("b", "x:1", 30.0, &[])], now);
        assert_eq!((model.total(), &model.selected), (1, &None));
    }

    #[test]
    fn rows_are_sorted_and_equals_stay_in_the_order_of_names() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let mut model = Model::new(String::new());
        let old = vec![holding("d", "x:1", 30.0, &["w:1"]), holding("c", "x:1", 20.0, &[])];
        sweep(&mut model, old.clone(), now);
        let new = vec![holding("b", "x:1", 10.0, &["w:1", "w:2"]), holding("a", "x:1", 15.0, &[])];
        sweep(&mut model, [old, new].concat(), later);
        assert_eq!(shown(&model, later), ["d", "b", "a", "c"]);
        let orders = [
            (Sort::Waiters, ["b", "d", "a", "c"]),
            (Sort::Held, ["c", "d", "a", "b"]),
            (Sort::Lease, ["b", "a", "c", "d"]),
            (Sort::Name, ["a", "b", "c", "d"]),
        ];
        for (sort, order) in orders {
            model.sort = model.sort.next();
            assert_eq!((model.sort, shown(&model, later)), (sort, order.to_vec()));
        }
        assert_eq!(model.sort.next(), Sort::Waited);
    }

    #[test]
    fn grants_and_leases_that_ran_out_are_counted_from_the_second_sweep_on() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut model = Model::new(String::new());
        sweep(&mut model, vec![holding("a", "x:1", 30.0, &[])], now);
        assert_eq!(model.grants_per_second(), 0.0);
        let both = vec![holding("a", "x:1", 9.0, &[]), holding("b", "x:1", 30.0, &[])];
        sweep(&mut model, both, after(21));
        model.sample(after(21));
        assert_eq!(model.grants_per_second(), 0.1);
        sweep(&mut model, vec![holding("b", "y:1", 30.0, &[])], after(40));
        assert_eq!(model.ran_out, 1);
        model.sample(after(40));
        assert_eq!(model.grants_per_second(), 0.1, "the first one is too long ago");
        let history: Vec<_> = model.history().map(|sample| sample.held).collect();
        assert_eq!(history, [1, 2]);
    }

    #[test]
    fn a_selected_name_stays_selected_when_the_order_changes() {
        let now = Instant::now();
        let reports = ["a", "b", "c"].map(|name| holding(name, "x:1", 30.0, &[])).to_vec();
        let mut model = model_of(reports.clone());
        for (by, selected) in
            [(1, "a"), (1, "b"), (isize::MAX, "c"), (5, "c"), (-1, "b"), (isize::MIN, "a")]
        {
            model.select(by, now);
            assert_eq!(model.selected.as_deref(), Some(selected), "{by}");
        }
        let mut reports = reports;
        reports[2] = holding("c", "x:1", 30.0, &["w:1"]);
        sweep(&mut model, reports, now);
        assert_eq!((shown(&model, now)[0], model.selected.as_deref()), ("c", Some("a")));
        model.filter = "nothing".to_owned();
        model.select(1, now);
        assert_eq!(model.selected, None);
    }

    #[test]
    fn a_filter_is_a_pattern_or_a_part_of_what_is_shown() {
        let now = Instant::now();
        let reports = vec![holding("Order:1", "host:1", 30.0, &[]), holding("b", "x:1", 3.0, &[])];
        let mut model = model_of(reports);
        for (filter, names) in [
            ("", vec!["Order:1", "b"]),
            ("order", vec!["Order:1"]),
            ("Order:*", vec!["Order:1"]),
            ("order:*", vec![]),
            ("HOST", vec!["Order:1"]),
            ("?", vec!["b"]),
            ("lock", vec!["Order:1", "b"]),
        ] {
            model.filter = filter.to_owned();
            assert_eq!(shown(&model, now), names, "{filter:?}");
        }
    }

    #[test]
    fn a_store_that_is_away_is_said_until_it_answers() {
        let now = Instant::now();
        let mut model = model_of(vec![holding("a", "x:1", 30.0, &[])]);
        model.hear(News::Away("refused".into()), now);
        model.hear(News::Away("still refused".into()), now + Duration::from_secs(3));
        assert_eq!(model.away, Some(("still refused".into(), now)));
        assert_eq!(model.total(), 1, "what was known is still shown");
        sweep(&mut model, Vec::new(), now);
        assert_eq!(model.away, None);
    }

    #[test]
    fn a_notice_is_shown_for_a_while_without_samples() {
        let now = Instant::now();
        let mut model = Model::new(String::new());
        model.say("x", now);
        assert_eq!(model.notice(now + NOTICE_TIME), Some("x"));
        assert_eq!(model.notice(now + NOTICE_TIME + Duration::from_millis(1)), None);
    }
}
