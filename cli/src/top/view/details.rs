//! The details of the selected name.

use std::time::{Duration, Instant};

use ratatui::{
    Frame,
    layout::Rect,
    text::Line,
    widgets::{Block, Paragraph},
};

use super::Theme;
use crate::{
    clients::Wait,
    output::escaped,
    report::{Report, in_short},
    top::{
        bars::{bar, short_time},
        entry::Entry,
        model::Model,
    },
};

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme, now: Instant) {
    let room = usize::from(area.height.saturating_sub(2));
    let width = usize::from(area.width.saturating_sub(2));
    let lines = match model.selected_entry() {
        None => vec![Line::from("no name is selected; the arrow keys do that")],
        Some(entry) => lines(entry, theme, now, room, width),
    };
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" details ")), area);
}

/// At most `room` lines. Holders and waiters share the rest.
fn lines(
    entry: &Entry,
    theme: Theme,
    now: Instant,
    room: usize,
    width: usize,
) -> Vec<Line<'static>> {
    let report = &entry.report;
    let mut lines = vec![
        Line::styled(escaped(&report.name), theme.title()),
        Line::from(facts(entry, now).join("  ")),
    ];
    if let Some((left, share)) = entry.lease(now).filter(|_| report.held) {
        let text = short_time(left);
        let bar = bar(share, width.saturating_sub(text.len() + 7).min(60));
        lines.push(Line::styled(format!("lease {bar} {text}"), theme.lease(share)));
    }
    let (holders, waiters) = (holders(report), waiters(report));
    let titles = usize::from(!holders.is_empty()) + usize::from(!waiters.is_empty());
    let rest = room.saturating_sub(lines.len() + titles);
    let for_holders = rest.saturating_sub(waiters.len()).max(rest / 2).min(holders.len());
    append(&mut lines, "HOLDERS", holders, for_holders, theme);
    let rest = room.saturating_sub(lines.len() + 1);
    append(&mut lines, "WAITERS", waiters, rest, theme);
    lines
}

fn facts(entry: &Entry, now: Instant) -> Vec<String> {
    let report = &entry.report;
    if let Some(error) = &report.error {
        return vec![format!("cannot be read: {}", escaped(error))];
    }
    let mut facts = vec![report.kind.unwrap_or("not in use").to_owned()];
    if let Some(permits) = &report.permits {
        let total = permits.total.map_or("an unknown number".to_owned(), |total| total.to_string());
        facts.push(format!("{} of {total} available", permits.available));
    }
    if let Some(count) = report.latch {
        facts.push(format!("count {count}"));
    }
    if let Some((time, is_longer)) = entry.held_for(now) {
        let at_least = if is_longer { "at least " } else { "" };
        facts.push(format!("held for {at_least}{}", short_time(time)));
    }
    if let Some(time) = entry.waited_for(now) {
        facts.push(format!("waited for {}", short_time(time)));
    }
    facts
}

fn holders(report: &Report) -> Vec<String> {
    let line = |holder: &crate::report::HolderReport| {
        let who = holder.in_short();
        let owner = if who == holder.owner { String::new() } else { format!("  {}", holder.owner) };
        format!("{who}  {} ×{}{owner}", holder.mode, holder.count)
    };
    report.holders.iter().map(line).collect()
}

/// Places in the queue, and recorded waits.
fn waiters(report: &Report) -> Vec<String> {
    let place = |waiter: &crate::report::WaiterReport| {
        let who = in_short(&waiter.owner, waiter.client.as_ref());
        let owner = if who == waiter.owner { String::new() } else { format!("  {}", waiter.owner) };
        who + &owner
    };
    let told = |wait: &Wait| {
        let time = Duration::try_from_secs_f64(wait.seconds).unwrap_or_default();
        format!("{}  {} for {}  {}", wait.client, wait.mode, short_time(time), wait.site)
    };
    let places = report.queue.iter().map(place);
    places.chain(report.waiting.iter().map(told)).collect()
}

/// Appends a title and as many of `items` as there is room for, and the number of those that are
/// missing.
fn append(
    lines: &mut Vec<Line<'static>>,
    title: &'static str,
    items: Vec<String>,
    room: usize,
    theme: Theme,
) {
    if items.is_empty() || room == 0 {
        return;
    }
    lines.push(Line::styled(title, theme.title()));
    let shown = if items.len() > room { room - 1 } else { items.len() };
    let missing = items.len() - shown;
    lines.extend(items.iter().take(shown).map(|item| Line::from(format!(" {}", escaped(item)))));
    if missing > 0 {
        lines.push(Line::from(format!(" and {missing} more")));
    }
}
