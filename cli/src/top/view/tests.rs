use std::time::Duration;

use lockcore::{BackendError, BackendErrorKind, LockState};
use ratatui::{Terminal, backend::TestBackend};
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::report::Report;
use crate::top::model::{
    News, Sort,
    tests::{began, holding, model_of},
};

const PLAIN: Theme = Theme { has_colours: false };

/// The lines of a screen on which `model` was drawn.
fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, PLAIN, Instant::now())).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(line).collect()
}

fn busy() -> Model {
    let many: Vec<String> = (0..40).map(|number| format!("waiter-{number}:1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    model_of(vec![
        holding("order:1", "web-1:1", 30.0, &[]),
        holding("order:2", "web-2:1", 12.9, &many),
        holding("evil\u{1b}[2J", "x\u{9b}:1", 30.0, &["w:1"]),
    ])
}

fn line_with<'a>(screen: &'a [String], text: &str) -> &'a str {
    let found = screen.iter().find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("no `{text}` in\n{}", screen.join("\n")))
}

#[test]
fn everything_important_is_seen_on_80_columns() {
    let screen = screen(&mut busy(), 80, 24);
    assert!(screen[0].starts_with(" lockctl top  redis://***@store"), "{}", screen[0]);
    assert!(screen[0].contains("3 names"), "{}", screen[0]);
    assert!(screen[1].starts_with(" held 3  waiting 41  grants 0.0/s  ran out 0"), "{}", screen[1]);
    assert!(screen[1].contains("by waited for longest"));
    assert!(screen[2].contains("held, at most 3") && screen[2].contains("waiting, at most 41"));
    let header = line_with(&screen, "NAME");
    for column in ["KIND", "HOLDER", "COUNT", "HELD", "LEASE", "WAITS"] {
        assert!(header.contains(column), "{column}: {header}");
    }
    let row = line_with(&screen, "order:2");
    assert!(row.contains("fair") && row.contains("web-2:1") && row.contains("██████ 12s"), "{row}");
    assert!(row.contains("████ 40") && row.contains(">0.0s"), "{row}");
    assert!(line_with(&screen, "evil").starts_with("evil\\u{1b}[2J"));
    assert!(!screen.concat().contains(['\u{1b}', '\u{9b}']));
    assert!(screen[23].contains("? help") && screen[23].contains("q quit"));
    // What is waited for comes first.
    let at = |name| screen.iter().position(|line| line.contains(name)).unwrap();
    assert!(at("order:2") < at("evil") && at("evil") < at("order:1"));
}

#[test]
fn no_column_cuts_large_counts_or_is_shifted_by_wide_characters() {
    let mut reports = vec![holding("\u{6ce8}\u{6587}:1", "x:1", 30.0, &[])];
    let seats = LockState::free().with_permits(1_000, Some(u32::MAX));
    reports.push(Report::new("seats", &seats, None));
    reports.push(Report::new("latch", &LockState::free(), Some(1_234_567)));
    let mut model = model_of(reports);
    let screen = screen(&mut model, 80, 24);
    assert!(line_with(&screen, "seats").contains("0/4294M"), "{screen:?}");
    assert!(line_with(&screen, "latch").contains("1234k"));
    // The second cell of a wide character is empty.
    let at = |line: &str, text: &str| line[..line.find(text).unwrap()].width();
    let (header, row) = (line_with(&screen, "NAME"), line_with(&screen, "\u{6ce8}"));
    let blanks = row.matches(['\u{6ce8}', '\u{6587}']).count();
    assert_eq!(at(header, "HOLDER") + blanks, at(row, "x:1"), "{header}\n{row}");
}

#[test]
fn a_name_that_cannot_be_read_says_so() {
    let error = BackendError::new(BackendErrorKind::Permission, "no right\u{7}");
    let mut model = model_of(vec![Report::unreadable("secret", &error)]);
    model.selected = Some("secret".into());
    model.details = true;
    let screen = screen(&mut model, 80, 24);
    assert!(line_with(&screen, "secret").contains("error"));
    line_with(&screen, "cannot be read: no right\\u{7}");
}

#[test]
fn a_large_terminal_has_details_beside_the_table_and_higher_plots() {
    let mut model = busy();
    model.selected = Some("order:2".into());
    let screen = screen(&mut model, 200, 60);
    assert!(line_with(&screen, "NAME").contains("details"));
    let name = screen.iter().position(|line| line.starts_with("NAME")).unwrap();
    assert_eq!(name, 14, "the plots have twelve lines");
    for text in ["HOLDERS", "web-2:1  exclusive ×1", "WAITERS", "waiter-0:1", " more  "] {
        line_with(&screen, text);
    }
    assert!(line_with(&screen, "fair lock").contains("held for at least"));
}

#[test]
fn details_take_the_lower_half_of_a_small_terminal() {
    let mut model = busy();
    model.selected = Some("order:1".into());
    assert!(!screen(&mut model, 80, 24).concat().contains(" details ─"));
    model.details = true;
    let screen = screen(&mut model, 80, 24);
    line_with(&screen, " details ─");
    line_with(&screen, "web-1:1  exclusive ×1");
}

#[test]
fn dialogs_say_what_they_ask() {
    let mut model = busy();
    model.dialog = Dialog::Help;
    let help = screen(&mut model, 80, 24);
    for text in ["force release, after asking", "q, Ctrl-C", "WAITS  how many wait"] {
        line_with(&help, text);
    }
    let (holders, in_short) = ("x".to_owned(), "web\u{7}-2 shop 7".to_owned());
    model.dialog = Dialog::Release(Release { name: "order:2".into(), holders, in_short });
    let asked = screen(&mut model, 80, 24);
    line_with(&asked, "order:2 is held by web\\u{7}-2 shop 7");
    line_with(&asked, "Take it away? [y/N]");
    // Words that are too long for the rest of a line leave it empty.
    let name = ["twenty-five-characters-25"; 40].join(" ");
    let (holders, in_short) = ("x".to_owned(), "web-2 shop 7".to_owned());
    model.dialog = Dialog::Release(Release { name, holders, in_short });
    for (width, height) in [(40, 10), (80, 24)] {
        line_with(&screen(&mut model, width, height), "Take it away? [y/N]");
    }
    model.dialog = Dialog::Lapsed("order:2\u{7}".into());
    line_with(&screen(&mut model, 80, 24), "order:2\\u{7} has another holder by now");
    model.dialog = Dialog::Filter;
    model.filter = "ord".into();
    let typed = screen(&mut model, 80, 24);
    assert!(typed[23].contains("/ord_") && typed[1].ends_with("/ord") || typed[1].contains("/ord"));
    assert!(!typed.concat().contains("evil"));
}

#[test]
fn a_store_that_is_away_and_a_sweep_under_way_are_said() {
    let mut model = busy();
    let now = Instant::now();
    model.hear(began(&["order:1".to_owned(), "b".to_owned()]), now);
    let looked = News::Looked { names: vec!["b".into()], reports: Vec::new(), done: Some(1) };
    model.hear(looked, now);
    assert!(screen(&mut model, 80, 24)[0].contains("sweep 50 %"));
    let reason = "connection refused\u{1b}[31m".to_owned();
    model.hear(News::Away(reason), now.checked_sub(Duration::from_secs(17)).unwrap());
    let away = screen(&mut model, 80, 24);
    assert!(away[1].starts_with(" STORE AWAY for 17s: connection refused\\u"), "{}", away[1]);
}

#[test]
fn a_deadlock_is_said() {
    let mut model = busy();
    let names = vec!["order:1".to_owned(), "x\u{7}".to_owned()];
    let deadlocks = vec![Deadlock { names: names.clone(), is_certain: true }];
    model.hear(News::Began { names: ["order:1".to_owned()].into(), deadlocks }, Instant::now());
    let said = screen(&mut model, 80, 24);
    assert!(said[23].starts_with(" DEADLOCK over order:1, x\\u{7}"), "{}", said[23]);
    let deadlocks = vec![Deadlock { names, is_certain: false }];
    model.hear(News::Began { names: ["order:1".to_owned()].into(), deadlocks }, Instant::now());
    let said = screen(&mut model, 80, 24);
    assert!(said[23].starts_with(" probably a deadlock over order:1, x\\u{7}"), "{}", said[23]);
}

#[test]
fn the_selected_row_is_always_drawn() {
    let names: Vec<String> = (0..100).map(|number| format!("n{number:03}")).collect();
    let reports = names.iter().map(|name| holding(name, "x:1", 30.0, &[])).collect();
    let mut model = model_of(reports);
    model.sort = Sort::Name;
    for (by, selected) in [(isize::MAX, "n099"), (-99, "n000"), (50, "n050"), (-3, "n047")] {
        model.select(by, Instant::now());
        assert_eq!(model.selected.as_deref(), Some(selected));
        line_with(&screen(&mut model, 80, 24), selected);
    }
    assert_eq!(model.page, 14);
}

#[test]
fn any_size_can_be_drawn() {
    for width in [1, 39, 40, 41, 79, 100, 149, 150, 300] {
        for height in [1, 9, 10, 19, 20, 40, 100] {
            let mut model = busy();
            model.selected = Some("order:2".into());
            model.details = true;
            for dialog in [Dialog::None, Dialog::Help, Dialog::Filter] {
                model.dialog = dialog;
                let lines = screen(&mut model, width, height);
                let is_hidden = width < 40 || height < 10 || model.dialog == Dialog::Help;
                assert!(is_hidden || lines[0].contains("lockctl"), "{lines:?}");
            }
        }
    }
    line_with(&screen(&mut model_of(Vec::new()), 80, 24), "no name is in use");
}

#[test]
fn numbers_are_easy_to_read() {
    let shown = [0, 999, 1000, 1_234_567].map(thousands);
    assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
}
