//! The effects of keys.

use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Dialog, Model, Release, Sort};

/// A request of a key beyond a change of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Quit,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L: the screen is drawn anew.
    Redraw,
    Release(Release),
}

/// Carries out the action of `key`.
pub(crate) fn press(model: &mut Model, key: KeyEvent, now: Instant) -> Option<Request> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Request::Quit),
            KeyCode::Char('z') => Some(Request::Suspend),
            KeyCode::Char('l') => Some(Request::Redraw),
            _ => None,
        };
    }
    match model.dialog.clone() {
        Dialog::Help => model.dialog = Dialog::None,
        Dialog::Lapsed(_) => {
            model.dialog = Dialog::None;
            model.say("nothing was released", now);
        }
        Dialog::Filter => type_filter(model, key.code),
        Dialog::Release(release) => {
            model.dialog = Dialog::None;
            let is_plain = !key.modifiers.intersects(!KeyModifiers::SHIFT);
            if is_plain && matches!(key.code, KeyCode::Char('y' | 'Y')) {
                return Some(Request::Release(release));
            }
            model.say("nothing was released", now);
        }
        Dialog::None => return command(model, key.code, now),
    }
    None
}

fn type_filter(model: &mut Model, key: KeyCode) {
    match key {
        KeyCode::Char(character) => model.filter.push(character),
        KeyCode::Backspace => {
            model.filter.pop();
        }
        KeyCode::Enter => model.dialog = Dialog::None,
        KeyCode::Esc => {
            model.filter.clear();
            model.dialog = Dialog::None;
        }
        _ => {}
    }
}

fn command(model: &mut Model, key: KeyCode, now: Instant) -> Option<Request> {
    let page = isize::try_from(model.page.max(1)).unwrap_or(1);
    match key {
        KeyCode::Char('q') => return Some(Request::Quit),
        KeyCode::Char('?') => model.dialog = Dialog::Help,
        KeyCode::Char('/') => model.dialog = Dialog::Filter,
        KeyCode::Char('f') => ask(model, now),
        KeyCode::Char('s') => model.sort = model.sort.next(),
        KeyCode::Char('t') => model.sort = Sort::Waited,
        KeyCode::Char('w') => model.sort = Sort::Waiters,
        KeyCode::Char('h') => model.sort = Sort::Held,
        KeyCode::Char('l') => model.sort = Sort::Lease,
        KeyCode::Char('n') => model.sort = Sort::Name,
        KeyCode::Enter => {
            if model.selected.is_none() {
                model.select(0, now);
            }
            model.details = !model.details;
        }
        KeyCode::Esc if model.details => model.details = false,
        KeyCode::Esc if model.selected.is_some() => model.selected = None,
        KeyCode::Esc => model.filter.clear(),
        KeyCode::Down | KeyCode::Char('j') => model.select(1, now),
        KeyCode::Up | KeyCode::Char('k') => model.select(-1, now),
        KeyCode::PageDown | KeyCode::Char(' ') => model.select(page, now),
        KeyCode::PageUp => model.select(-page, now),
        KeyCode::Home | KeyCode::Char('g') => model.select(isize::MIN, now),
        KeyCode::End | KeyCode::Char('G') => model.select(isize::MAX, now),
        _ => {}
    }
    None
}

fn ask(model: &mut Model, now: Instant) {
    let Some(entry) = model.selected_entry() else {
        model.say("select a name first, with the arrow keys", now);
        return;
    };
    let report = &entry.report;
    let Some(in_short) = report.holder_in_short() else {
        let notice = format!("{} has no holder", report.name);
        model.say(notice, now);
        return;
    };
    let release =
        Release { name: report.name.clone(), holders: report.holders_in_words(), in_short };
    model.dialog = Dialog::Release(release);
}

#[cfg(test)]
mod tests {
    use super::super::model::{
        News,
        tests::{holding, model_of},
    };
    use super::*;

    fn keys(model: &mut Model, keys: &[KeyCode]) -> Option<Request> {
        let presses = keys.iter().map(|key| press(model, KeyEvent::from(*key), Instant::now()));
        presses.last().flatten()
    }

    #[test]
    fn a_release_is_asked_about_and_only_y_means_yes() {
        let mut model = model_of(vec![holding("a", "x:1", 30.0, &[])]);
        assert_eq!(keys(&mut model, &[KeyCode::Char('f')]), None);
        assert_eq!(model.notice(Instant::now()), Some("select a name first, with the arrow keys"));
        keys(&mut model, &[KeyCode::Down, KeyCode::Char('f')]);
        let Dialog::Release(release) = model.dialog.clone() else { panic!("it asks") };
        assert_eq!((&*release.name, &*release.holders), ("a", "x:1 (exclusive)"));
        for no in [KeyCode::Enter, KeyCode::Char('n'), KeyCode::Esc, KeyCode::Char('q')] {
            model.dialog = Dialog::Release(release.clone());
            assert_eq!(keys(&mut model, &[no]), None);
            assert_eq!(
                (&model.dialog, model.notice(Instant::now())),
                (&Dialog::None, Some("nothing was released"))
            );
        }
        model.dialog = Dialog::Release(release.clone());
        assert_eq!(keys(&mut model, &[KeyCode::Char('y')]), Some(Request::Release(release)));
    }

    #[test]
    fn a_question_that_has_lapsed_takes_the_answer_and_releases_nothing() {
        for answer in [KeyCode::Char('y'), KeyCode::Char('q'), KeyCode::Char('n'), KeyCode::Esc] {
            let mut model = model_of(vec![holding("a", "x:1", 30.0, &[])]);
            keys(&mut model, &[KeyCode::Down, KeyCode::Char('f')]);
            let looked = |owner: &str| News::Looked {
                names: vec!["a".into()],
                reports: vec![holding("a", owner, 30.0, &[])],
                done: None,
            };
            model.hear(looked("x:1"), Instant::now());
            assert!(matches!(model.dialog, Dialog::Release(_)), "it has the same holder");
            model.hear(looked("y:1"), Instant::now());
            assert_eq!(model.dialog, Dialog::Lapsed("a".into()));
            let sort = model.sort;
            assert_eq!(keys(&mut model, &[answer]), None);
            assert_eq!((&model.dialog, model.sort), (&Dialog::None, sort));
            assert_eq!(model.notice(Instant::now()), Some("nothing was released"));
            assert_eq!(keys(&mut model, &[KeyCode::Char('q')]), Some(Request::Quit));
        }
    }

    #[test]
    fn what_is_typed_after_a_slash_filters() {
        let reports = ["a", "b", "ab"].map(|name| holding(name, "x:1", 30.0, &[]));
        let mut model = model_of(reports.to_vec());
        let q = [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('b')];
        assert_eq!(keys(&mut model, &q), None, "q is typed");
        keys(&mut model, &[KeyCode::Enter]);
        assert_eq!((&*model.filter, model.rows(Instant::now()).len()), ("b", 2));
        keys(&mut model, &[KeyCode::Char('/'), KeyCode::Esc]);
        assert_eq!((&*model.filter, model.rows(Instant::now()).len()), ("", 3));
    }

    #[test]
    fn control_keys_work_in_every_dialog() {
        let mut model = model_of(Vec::new());
        for dialog in [Dialog::None, Dialog::Help, Dialog::Filter] {
            model.dialog = dialog;
            let key = |code| KeyEvent::new(KeyCode::Char(code), KeyModifiers::CONTROL);
            assert_eq!(press(&mut model, key('c'), Instant::now()), Some(Request::Quit));
            assert_eq!(press(&mut model, key('z'), Instant::now()), Some(Request::Suspend));
            assert_eq!(press(&mut model, key('l'), Instant::now()), Some(Request::Redraw));
        }
        assert_eq!(keys(&mut model, &[KeyCode::Esc, KeyCode::Char('q')]), Some(Request::Quit));
    }
}
