//! The table of names.

use std::time::Instant;

use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Table},
};

use super::Theme;
use crate::{
    output::escaped,
    report::short_number,
    top::{
        bars::{bar, short_time},
        entry::Entry,
        model::Model,
    },
};

/// The widths of the columns.
struct Widths {
    holder: u16,
    count: u16,
    /// The bar of the rest of the lease.
    lease: usize,
    /// The bar of the number of waiters.
    waiters: usize,
}

impl Widths {
    /// The widths for a table of `width`, with counts of up to `count` characters.
    fn of(width: u16, count: usize) -> Self {
        let count = u16::try_from(count.max(5)).unwrap_or(u16::MAX);
        match width {
            ..100 => Self { holder: 18, count, lease: 6, waiters: 4 },
            100..130 => Self { holder: 28, count, lease: 10, waiters: 10 },
            _ => Self { holder: 36, count, lease: 16, waiters: 16 },
        }
    }

    fn constraints(&self) -> [Constraint; 7] {
        let with_text = |bar: usize| Constraint::Length(u16::try_from(bar + 6).unwrap_or(u16::MAX));
        [
            Constraint::Fill(1),
            Constraint::Length(7),
            Constraint::Length(self.holder),
            Constraint::Length(self.count),
            Constraint::Length(6),
            with_text(self.lease),
            with_text(self.waiters),
        ]
    }
}

/// Draws as many rows as there is room for, the selected one among them.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &mut Model,
    theme: Theme,
    now: Instant,
) {
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let rows = model.rows(now);
    let is_selected = |entry: &&Entry| Some(&entry.report.name) == model.selected.as_ref();
    let first = match rows.iter().position(is_selected) {
        Some(at) => model.first_row.clamp((at + 1).saturating_sub(room), at),
        None => 0,
    };
    let counts = rows
        .iter()
        .skip(first)
        .take(room)
        .filter_map(|entry| entry.report.count_in_short().map(|count| count.len()));
    let widths = Widths::of(area.width, counts.max().unwrap_or(0));
    let most = rows.iter().map(|entry| entry.report.waiters).max().unwrap_or(0);
    let shown: Vec<Row<'_>> = rows
        .iter()
        .skip(first)
        .take(room)
        .map(|entry| {
            let style = match is_selected(entry) {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            Row::new(cells(entry, &widths, most, theme, now)).style(style)
        })
        .collect();
    let (is_empty, has_filter) = (rows.is_empty(), !model.filter.is_empty());
    (model.first_row, model.page) = (first, room);
    let header = Row::new(["NAME", "KIND", "HOLDER", "COUNT", "HELD", "LEASE", "WAITS"]);
    let table = Table::new(shown, widths.constraints()).header(header.style(theme.title()));
    frame.render_widget(table, area);
    if is_empty && area.height > 2 {
        let text = match (has_filter, model.has_swept()) {
            (true, _) => " no name matches the filter",
            (false, true) => " no name is in use",
            (false, false) => " looking for names",
        };
        let below = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Paragraph::new(text), below);
    }
}

fn cells(
    entry: &Entry,
    widths: &Widths,
    most: usize,
    theme: Theme,
    now: Instant,
) -> [Cell<'static>; 7] {
    let report = &entry.report;
    let text = |text: Option<String>| Cell::from(escaped(&text.unwrap_or("-".to_owned())));
    let held = entry.held_for(now).map(|(time, is_longer)| {
        format!("{}{}", if is_longer { ">" } else { "" }, short_time(time))
    });
    let lease = match (report.held, entry.lease(now)) {
        (false, _) => Line::from("-"),
        (true, None) => Line::from("no end"),
        (true, Some((left, share))) => Line::from(vec![
            Span::styled(bar(share, widths.lease), theme.lease(share)),
            Span::raw(format!(" {}", short_time(left))),
        ]),
    };
    let waiters = report.waiters;
    #[allow(clippy::cast_precision_loss, reason = "a bar has a few characters")]
    let share = waiters as f64 / most.max(1) as f64;
    let waiting = match waiters {
        0 => Line::from("-"),
        some => Line::from(vec![
            Span::styled(bar(share, widths.waiters), theme.waiting()),
            Span::raw(format!(" {}", short_number(some as u64))),
        ]),
    };
    [
        Cell::from(escaped(&report.name)),
        Cell::from(short_kind(entry)),
        text(report.holder_in_short()),
        text(report.count_in_short()),
        text(held),
        Cell::from(lease),
        Cell::from(waiting),
    ]
}

/// The kind in one word; for a read-write lock, the side that holds it.
fn short_kind(entry: &Entry) -> String {
    let report = &entry.report;
    if report.error.is_some() {
        return "error".to_owned();
    }
    match report.kind {
        Some("fair lock") => "fair".to_owned(),
        Some("semaphore") => "permits".to_owned(),
        Some("read-write lock") if report.holders.iter().any(|holder| holder.mode == "write") => {
            "write".to_owned()
        }
        Some("read-write lock") => "read".to_owned(),
        Some("fair or read-write lock") => "queue".to_owned(),
        kind => kind.unwrap_or("-").to_owned(),
    }
}
