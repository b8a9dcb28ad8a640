//! The watchdog: renews all holds of a client in batches, handles everything else that is due, and
//! runs the background jobs.

use std::{
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::mpsc::UnboundedReceiver, task::JoinSet};

use super::{
    background::Job,
    calendar::Calendar,
    lanes::{LaneCell, Stay},
    measure::ClientMetrics,
    outcome::{BackendCall, RenewalEnd},
    report::deadline_of_lease,
    shared::Client,
};
use crate::{
    BackendError, BackendErrorKind,
    backend::{Limits, RenewOutcome, RenewRequest},
    engine::HoldNumber,
    time::{Clock, Moment, lease},
};

/// How soon after waking up a host notices that it was suspended, since timers do not count that
/// time; and how often waits are scanned.
const SUSPENSION_CHECK: Duration = Duration::from_secs(1);

/// The body of the background task of a client.
pub(super) fn serve(client: Weak<Client>, jobs: UnboundedReceiver<Job>) -> Job {
    Box::pin(async move {
        let Some((tools, record)) =
            client.upgrade().map(|client| (Tools::of(&client), client.leftover()))
        else {
            return;
        };
        // Requests that write the record of the client. They are not awaited for long at the end.
        let mut writes = JoinSet::new();
        serve_until_gone(client, &tools, jobs, &mut writes).await;
        record.remove().await;
        tools.measure.publish_all().await;
    })
}

/// The parts of a client that the background task keeps.
struct Tools {
    calendar: Arc<Calendar>,
    clock: Clock,
    measure: ClientMetrics,
}

impl Tools {
    fn of(client: &Client) -> Self {
        let Client { calendar, clock, measure, .. } = client;
        Self { calendar: calendar.clone(), clock: clock.clone(), measure: measure.clone() }
    }
}

impl Drop for Tools {
    /// Runs whatever ends the task, even the end of its runtime.
    fn drop(&mut self) {
        self.measure.publish();
    }
}

async fn serve_until_gone(
    client: Weak<Client>,
    tools: &Tools,
    mut jobs: UnboundedReceiver<Job>,
    writes: &mut JoinSet<()>,
) {
    // Renewals end with this task, since nothing is held any more.
    let Tools { calendar, clock, measure } = tools;
    let mut renewals = JoinSet::new();
    let mut work = JoinSet::new();
    let mut suspended = clock.suspended();
    let (mut tick, mut reports) = (None, JoinSet::new());
    loop {
        let due = next_due(tools, &mut tick);
        tokio::select! {
            biased;
            () = due => {
                let Some(client) = client.upgrade() else { break };
                if clock.suspended() > suspended {
                    suspended = clock.suspended();
                    client.look_at_all();
                }
                client.look_at_due(&mut renewals);
                // After the renewals, which must not be delayed.
                if tick.take_if(|tick| *tick <= clock.now()).is_some() {
                    // A panic, for example in the backend, must not end this task.
                    let _ = catch_unwind(AssertUnwindSafe(|| client.tick(writes)));
                    report(&mut reports, measure, ClientMetrics::is_due);
                }
            }
            job = jobs.recv() => match job {
                Some(job) => {
                    work.spawn(job);
                }
                // All handles and guards are gone, and the work that they left is on its way.
                None => break,
            },
            () = calendar.earlier() => report(&mut reports, measure, ClientMetrics::is_urgent),
            Some(_) = work.join_next() => {}
            Some(_) = renewals.join_next() => {}
            Some(_) = writes.join_next() => {}
            Some(_) = reports.join_next() => {
                report(&mut reports, measure, ClientMetrics::is_urgent);
            }
        }
    }
    while work.join_next().await.is_some() {}
}

/// Reports measurements to the recorder, if some are due and that is not under way. A slow recorder
/// delays no renewal if the runtime has more than one thread.
fn report(reports: &mut JoinSet<()>, measure: &ClientMetrics, are_due: fn(&ClientMetrics) -> bool) {
    if reports.is_empty() && are_due(measure) {
        reports.spawn(measure.clone().publish_apart());
    }
}

/// Resolves when a lane is due, and every second while any lane has an appointment, anybody waits
/// or something was measured. `tick` is the end of the current second.
fn next_due(tools: &Tools, tick: &mut Option<Moment>) -> impl Future<Output = ()> + use<> {
    let Tools { calendar, clock, measure } = tools;
    let next = *tick.get_or_insert_with(|| clock.now().after(SUSPENSION_CHECK));
    let ticks = calendar.is_watched() || measure.has_entries();
    let due = calendar.look_next(next).or_else(|| ticks.then_some(next));
    if due.is_none() {
        *tick = None;
    }
    let clock = clock.clone();
    async move {
        match due {
            None => pending().await,
            Some(moment) => clock.sleep_until(moment).await,
        }
    }
}

impl Client {
    /// Looks at the lanes that are due. Renewals run in `work`; one slow or failing batch delays no
    /// other.
    ///
    /// Holds that are due within a small part of their period are included, so that they are
    /// renewed together from then on.
    fn look_at_due(self: &Arc<Self>, work: &mut JoinSet<()>) {
        let now = self.clock.now();
        let until = now.after(self.settings.batching);
        let mut renewals = Vec::new();
        let mut requests = Vec::new();
        for cell in self.calendar.take_until(until) {
            // A panic, for example in the user's log subscriber, must not keep the others from
            // being renewed.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.look_at_lane(&cell, until, now, &mut renewals, &mut requests);
            }));
        }
        let most = self.backend.limits().largest_renewal.clamp(1, Limits::LARGEST_RENEWAL);
        while !requests.is_empty() {
            let at = requests.len().min(most);
            let rest = (renewals.split_off(at), requests.split_off(at));
            work.spawn(self.clone().renew(renewals, requests, now));
            (renewals, requests) = rest;
        }
    }

    /// Looks at every lane after the host was suspended, because timers did not count that time.
    fn look_at_all(&self) {
        let cells = self.calendar.all();
        for cell in cells {
            self.calendar.make_due(&mut cell.lock().appointment, &cell);
        }
    }

    fn look_at_lane(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        until: Moment,
        now: Moment,
        renewals: &mut Vec<(Arc<LaneCell>, HoldNumber, Duration)>,
        requests: &mut Vec<RenewRequest>,
    ) {
        self.with_slot(cell, cell.lock(), |slot, fx| {
            if slot.stay == Stay::Gone {
                return;
            }
            // The appointment was taken out of the schedule, unless it was added again since.
            if let Some(appointment) = slot.appointment.take() {
                self.calendar.remove(appointment);
            }
            for (hold, lease) in slot.lane.due(until, now, fx) {
                let Some(renewed) = slot.lane.hold(hold) else { continue };
                let (name, id) = (cell.name().clone(), renewed.facts.id.clone());
                requests.push(RenewRequest::new(name, id, lease).mode(renewed.mode));
                renewals.push((cell.clone(), hold, lease));
            }
        });
    }

    /// Renews one batch.
    async fn renew(
        self: Arc<Self>,
        renewals: Vec<(Arc<LaneCell>, HoldNumber, Duration)>,
        requests: Vec<RenewRequest>,
        sent: Moment,
    ) {
        // A call that never returns must not keep its holds from being tried again.
        let periods = requests.iter().map(|request| lease::renewal_period(request.lease));
        let patience = periods.min().unwrap_or(lease::MIN);
        // A task of its own: a panic of the backend is a failure like any other.
        let mut call = JoinSet::new();
        let client = self.clone();
        call.spawn(async move {
            if client.is_abandoned() {
                // This task is about to be stopped, and may run once more before that.
                return pending().await;
            }
            client.measure.call(BackendCall::Renew, client.backend.renew(&requests)).await
        });
        let answers = match tokio::time::timeout(patience, call.join_next()).await {
            Ok(Some(Ok(answers))) => answers,
            Ok(_) => Err(BackendError::new(BackendErrorKind::Other, "the backend panicked")),
            Err(_) => Err(BackendError::new(BackendErrorKind::Timeout, "no answer to a renewal")),
        };
        let answers = match answers {
            Ok(answers) if answers.len() == renewals.len() => answers,
            Ok(_) => {
                let message = "renewals were answered in part";
                let error = BackendError::new(BackendErrorKind::Protocol, message);
                vec![RenewOutcome::Failed(error); renewals.len()]
            }
            Err(error) => vec![RenewOutcome::Failed(error); renewals.len()],
        };
        let now = self.clock.now();
        let answered = renewals.into_iter().zip(answers);
        let (renewed, others): (Vec<_>, Vec<_>) =
            answered.partition(|(_, answer)| matches!(answer, RenewOutcome::Renewed));
        // These first, and no report before that: a report runs code of the user, which may be
        // slow, and a hold whose renewal is not noted is lost.
        let renewed: Vec<_> = renewed
            .into_iter()
            .map(|((cell, hold, lease), _)| (self.renewed(&cell, hold, lease, sent), lease))
            .collect();
        for ((cell, hold, lease), answer) in others {
            match answer {
                RenewOutcome::Renewed => {}
                RenewOutcome::NotHeld => {
                    self.with(&cell, |lane, fx| lane.gone(hold, fx));
                    self.report_gone();
                }
                RenewOutcome::Failed(error) => {
                    self.renewal_failed(&cell, hold, (lease, sent), error);
                }
            }
        }
        for (deadline, lease) in renewed {
            self.report_renewed(deadline, lease, now);
        }
    }

    /// Notes a renewal. Returns the deadline before it, as far as that is
    /// [reported](Self::report_renewed).
    fn renewed(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        hold: HoldNumber,
        lease: Duration,
        sent: Moment,
    ) -> Option<Moment> {
        self.with(cell, |lane, fx| {
            let renewed = lane.hold(hold);
            let deadline = renewed.and_then(|hold| deadline_of_lease(hold, lease, sent));
            lane.renewed(hold, lease, sent, fx);
            if let Some(hold) = lane.hold_mut(hold) {
                hold.facts.renewal_fails = false;
            }
            deadline
        })
    }

    fn renewal_failed(
        self: &Arc<Self>,
        cell: &Arc<LaneCell>,
        hold: HoldNumber,
        (lease, sent): (Duration, Moment),
        error: BackendError,
    ) {
        let now = self.clock.now();
        let failed = self.with(cell, |lane, fx| {
            let deadline = lane.renewal_failed(hold, lease, sent, now, fx)?;
            let facts = &mut lane.hold_mut(hold)?.facts;
            let is_first = !std::mem::replace(&mut facts.renewal_fails, true);
            Some((deadline, facts.span.clone(), is_first))
        });
        self.measure.renewal(RenewalEnd::Failed);
        if let Some((deadline, span, is_first)) = failed {
            let until = (deadline, lease);
            self.report_failed_renewal(cell, until, (span.as_deref(), is_first), error, now);
        }
    }
}
