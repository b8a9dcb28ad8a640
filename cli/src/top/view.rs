//! Draws the model.

use std::{env, time::Instant};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, RenderDirection, Sparkline, Wrap},
};
use unicode_width::UnicodeWidthStr;

use super::{
    bars::short_time,
    model::{Dialog, Model, Release, Sample},
};
use crate::{clients::Deadlock, output::escaped};

mod details;
mod table;

/// The room that is needed to draw anything sensible.
const SMALLEST: (u16, u16) = (40, 10);

/// From this width on, details are always shown, beside the table.
const WIDE: u16 = 150;

const HELP: &str = " arrows, j k     select a name
 PgUp PgDn g G   go by pages, to the first, to the last
 Enter           details of the selected name; Esc closes them
 /               filter: a part of a name, kind or holder, or a
                 pattern with * and ?; Enter keeps it
 Esc             gives up the selection, then the filter
 s               next order; or at once:
                 t waited for longest  w most waiters
                 h held longest  l least lease left  n name
 f               force release, after asking
 Ctrl-L, Ctrl-Z  draw anew, suspend
 q, Ctrl-C       quit

 HELD   how long the holder was seen; > since before that
 LEASE  what is left of it; a bar below two thirds is not renewed
 WAITS  how many wait, as a share of the longest queue shown";

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    has_colours: bool,
}

impl Theme {
    /// Without colours if `NO_COLOR` says so.
    pub(crate) fn of_environment() -> Self {
        Self { has_colours: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn held(self) -> Style {
        self.colour(Color::Green)
    }

    fn waiting(self) -> Style {
        self.colour(Color::Yellow)
    }

    fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The style for the rest of a lease.
    fn lease(self, share: f64) -> Style {
        match share {
            0.6.. => self.colour(Color::Green),
            0.3..0.6 => self.colour(Color::Yellow),
            _ => self.colour(Color::Red),
        }
    }
}

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &mut Model, theme: Theme, now: Instant) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        frame.render_widget(Paragraph::new("the terminal is too small"), area);
        return;
    }
    let plots = match area.height {
        40.. => 12,
        // Details need the room more.
        20..40 if !model.details || area.width >= WIDE => 6,
        _ => 0,
    };
    let [title, totals, plots, main, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(plots),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, model, theme);
    draw_totals(frame, totals, model, theme, now);
    if plots.height > 0 {
        draw_plots(frame, plots, model, theme);
    }
    draw_main(frame, main, model, theme, now);
    frame.render_widget(foot_line(model, theme, now), foot);
    match &model.dialog {
        Dialog::Help => popup(frame, "keys and columns; any key closes this", HELP.to_owned()),
        Dialog::Release(release) => popup(frame, "release by force?", question(release)),
        Dialog::Lapsed(name) => popup(
            frame,
            "release by force?",
            format!(
                " {} has another holder by now, or none.\n\n Nothing was released; any key closes \
                 this",
                escaped(name)
            ),
        ),
        Dialog::None | Dialog::Filter => {}
    }
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let sweep = match model.sweep_percent() {
        Some(percent) => format!("sweep {percent} %  "),
        None if !model.has_swept() => "listing  ".to_owned(),
        None => String::new(),
    };
    let right = format!("{sweep}{} names ", thousands(model.total() as u64));
    let width = u16::try_from(right.width()).unwrap_or(area.width);
    let [left, right_area] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let line = Line::from(vec![
        Span::styled(" lockctl top  ", theme.title()),
        Span::raw(escaped(&model.store)),
    ]);
    frame.render_widget(line, left);
    frame.render_widget(Line::from(right), right_area);
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme, now: Instant) {
    if let Some((reason, since)) = &model.away {
        let time = short_time(now.saturating_duration_since(*since));
        let text = format!(" STORE AWAY for {time}: {}", escaped(reason));
        frame.render_widget(Line::styled(text, theme.alarm()), area);
        return;
    }
    let Sample { held, waiting } = model.totals();
    let mut spans = vec![
        Span::raw(" held "),
        Span::styled(thousands(held), theme.held()),
        Span::raw("  waiting "),
        Span::styled(thousands(waiting), theme.waiting()),
        Span::raw(format!("  grants {:.1}/s  ran out ", model.grants_per_second())),
        match model.ran_out {
            0 => Span::raw("0"),
            some => Span::styled(thousands(some), theme.alarm()),
        },
        Span::raw(format!("  by {}", model.sort.in_words())),
    ];
    if !model.filter.is_empty() {
        spans.push(Span::styled(format!("  /{}", escaped(&model.filter)), theme.title()));
    }
    frame.render_widget(Line::from(spans), area);
}

fn draw_plots(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let held: Vec<u64> = model.history().map(|sample| sample.held).collect();
    let waiting: Vec<u64> = model.history().map(|sample| sample.waiting).collect();
    plot(frame, left, "held", &held, theme.held());
    plot(frame, right, "waiting", &waiting, theme.waiting());
}

/// A plot of the past, the last sample on the right.
fn plot(frame: &mut Frame<'_>, area: Rect, what: &str, samples: &[u64], style: Style) {
    let shown = &samples[..samples.len().min(usize::from(area.width.saturating_sub(2)))];
    let most = shown.iter().copied().max().unwrap_or(0);
    let title = format!(" {what}, at most {} ", thousands(most));
    let plot = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(shown)
        .max(most.max(1))
        .direction(RenderDirection::RightToLeft)
        .style(style);
    frame.render_widget(plot, area);
}

/// The table, and details beside or below it.
fn draw_main(frame: &mut Frame<'_>, area: Rect, model: &mut Model, theme: Theme, now: Instant) {
    let is_wide = area.width >= WIDE;
    let shows_details = is_wide || model.details;
    let [rows, details] = match (shows_details, is_wide) {
        (false, _) => [area, Rect::ZERO],
        (true, true) => {
            Layout::horizontal([Constraint::Fill(1), Constraint::Length(area.width / 3)])
                .areas(area)
        }
        (true, false) => Layout::vertical([Constraint::Fill(2), Constraint::Fill(3)]).areas(area),
    };
    table::draw(frame, rows, model, theme, now);
    if shows_details {
        details::draw(frame, details, model, theme, now);
    }
}

fn foot_line(model: &Model, theme: Theme, now: Instant) -> Line<'static> {
    if model.dialog == Dialog::Filter {
        let text = format!(" /{}_   Enter keeps the filter, Esc clears it", escaped(&model.filter));
        return Line::styled(text, theme.title());
    }
    match (model.notice(now), model.deadlocks.first()) {
        (Some(notice), _) => Line::styled(format!(" {}", escaped(notice)), theme.title()),
        (None, Some(Deadlock { names, is_certain })) => {
            let names = escaped(&names.join(", "));
            match is_certain {
                true => Line::styled(format!(" DEADLOCK over {names}"), theme.alarm()),
                false => {
                    let text = format!(" probably a deadlock over {names}; see lockctl doctor");
                    Line::styled(text, theme.waiting())
                }
            }
        }
        (None, None) => Line::from(
            " ? help  / filter  s sort  Enter details  f force release  q quit".to_owned(),
        ),
    }
}

/// The question comes first, so that a long text or a small terminal does not push it off the box.
fn question(release: &Release) -> String {
    format!(
        " Take it away? [y/N]\n\n {} is held by {}.\n\n The holder goes on until it notices, beside \
         the next one.",
        escaped(&release.name),
        escaped(&release.in_short)
    )
}

/// A box in the middle of everything, as high as its text.
fn popup(frame: &mut Frame<'_>, title: &str, text: String) {
    let area = frame.area();
    let width = area.width.min(70);
    let inner = usize::from(width - 2);
    let lines = text.lines().map(|line| line.width() / inner.max(1) + 1).sum::<usize>();
    let height = u16::try_from(lines + 2).unwrap_or(u16::MAX).min(area.height);
    let area = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let block = Block::bordered().title(format!(" {title} "));
    frame.render_widget(Clear, area);
    // The spaces at the beginning of a line are part of the text.
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), area);
}

/// `number` with commas between thousands.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
