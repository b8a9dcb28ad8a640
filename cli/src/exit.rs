//! [`Exit`] and [`Failure`]: every exit code of the program.

use std::{error::Error, fmt, process::ExitCode};

use lockcore::{BackendError, BackendErrorKind, LockError};
use rustix::process::Signal;

use crate::{output, process};

/// The end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The exit code, as a shell reports it.
    pub(crate) code: u8,
    death: Option<Death>,
}

/// The signal that the program dies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Death {
    signal: i32,
    /// Set if a key of the terminal has sent it to the command, and to nobody else.
    is_by_key: bool,
}

impl Death {
    /// Returns `true` if keys of the terminal send this signal.
    fn is_of_key(self) -> bool {
        [Signal::INT, Signal::QUIT].map(Signal::as_raw).contains(&self.signal)
    }
}

impl Exit {
    pub(crate) const SUCCESS: Self = Self::code(0);
    /// The store is not fit for locks.
    pub(crate) const UNFIT: Self = Self::code(1);
    /// The command line, or what it asks for, makes no sense. `EX_USAGE` of sysexits.h.
    pub(crate) const USAGE: Self = Self::code(64);
    /// The store cannot be used. `EX_UNAVAILABLE`.
    pub(crate) const UNAVAILABLE: Self = Self::code(69);
    /// A file could not be written. `EX_IOERR`.
    pub(crate) const NO_OUTPUT: Self = Self::code(74);
    /// The lock could not be had. `EX_TEMPFAIL`; `-E` sets another code.
    pub(crate) const NOT_HAD: Self = Self::code(75);
    /// The lock was lost while the command ran.
    pub(crate) const LOST: Self = Self::code(76);
    /// The command cannot be executed, as in shells.
    pub(crate) const CANNOT_EXECUTE: Self = Self::code(126);
    /// The command does not exist, as in shells.
    pub(crate) const NOT_FOUND: Self = Self::code(127);

    pub(crate) const fn code(code: u8) -> Self {
        Self { code, death: None }
    }

    /// The code that a shell reports for a process that `signal` has ended.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self::code(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    /// The death by `signal`, after which a shell ends its script if that is SIGINT. If a process
    /// exits with the same code, the script goes on.
    pub(crate) fn by_signal(signal: i32) -> Self {
        let death = Some(Death { signal, is_by_key: false });
        Self { death, ..Self::of_signal(signal) }
    }

    /// This end of a command, after which the signal of `later` came to this process. Keys of the
    /// terminal have to end a script around it as well, whatever the command has returned, unless
    /// this end does that. Other signals only ask this process not to wait any longer.
    pub(crate) fn or_interrupted(self, later: Self) -> Self {
        let is_of_key = later.death.is_some_and(Death::is_of_key);
        if is_of_key && !self.is_by_key() { later } else { self }
    }

    /// Returns `true` if `signal` has ended the command, or the command says so.
    pub(crate) fn is_by(self, signal: Signal) -> bool {
        self.code == Self::of_signal(signal.as_raw()).code
    }

    /// The same end, of a command that was in the foreground. If the signal is one that keys of the
    /// terminal send, they have.
    pub(crate) fn in_foreground(self) -> Self {
        let by_key = |death: Death| Death { is_by_key: death.is_of_key(), ..death };
        Self { death: self.death.map(by_key), ..self }
    }

    /// Returns `true` if a key of the terminal has ended the command.
    pub(crate) fn is_by_key(self) -> bool {
        self.death.is_some_and(|death| death.is_by_key)
    }

    /// Ends this process, if that takes a signal.
    pub(crate) fn die(self) {
        let Some(Death { signal, is_by_key }) = self.death else { return };
        if is_by_key {
            process::pass_on_to_own_group(signal);
        }
        process::die_of(signal);
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code)
    }
}

/// The end of the program with a message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::USAGE, message)
    }
}

impl fmt::Display for Failure {
    /// One line, without passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&output::escaped(&output::without_passwords(&self.message)))
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let exit = match &error {
            LockError::Backend(error) => exit_of(error.kind()),
            LockError::Timeout { .. } | LockError::LatchTimeout { .. } => Exit::NOT_HAD,
            LockError::Lost { .. } => Exit::LOST,
            _ => Exit::USAGE,
        };
        Self::new(exit, with_sources(&error))
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self::new(exit_of(error.kind()), with_sources(&error))
    }
}

fn exit_of(kind: BackendErrorKind) -> Exit {
    match kind {
        BackendErrorKind::WrongType
        | BackendErrorKind::Configuration
        | BackendErrorKind::Unsupported => Exit::USAGE,
        _ => Exit::UNAVAILABLE,
    }
}

/// The messages of an error and of its causes, which do not repeat each other. The general advice
/// of a backend's error is given once, and not at all if the message has advice of its own, which
/// follows a semicolon.
pub(crate) fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut message = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let advice = general_advice(error);
        let own = text.strip_suffix(&*advice).unwrap_or(&text);
        if message.is_empty() {
            message = if own.contains("; ") { own } else { &text }.to_owned();
        } else if !message.contains(own) {
            message += &format!(": {own}");
        }
        next = error.source();
    }
    message
}

/// The advice at the end of the message of a backend's error.
fn general_advice(error: &(dyn Error + 'static)) -> String {
    let of_backend = match error.downcast_ref() {
        Some(LockError::Backend(error)) => Some(error),
        _ => error.downcast_ref::<BackendError>(),
    };
    // Without a message and a lock, the advice is all that there is.
    of_backend.map(|error| BackendError::new(error.kind(), "").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_without_passwords() {
        let failure = Failure::usage("no `redis://me:secret@host`\n\u{1b}[31mred");
        assert_eq!(failure.to_string(), "no `redis://***@host`\\n\\u{1b}[31mred");
    }

    #[test]
    fn signals_are_reported_as_by_shells() {
        assert_eq!(Exit::of_signal(15), Exit::code(143));
    }

    #[test]
    fn a_store_that_is_away_is_no_mistake_of_the_caller() {
        let away = BackendError::new(BackendErrorKind::Connection, "connection refused");
        assert_eq!(Failure::from(away).exit, Exit::UNAVAILABLE);
        let wrong = BackendError::new(BackendErrorKind::Configuration, "no such option");
        assert_eq!(Failure::from(wrong).exit, Exit::USAGE);
    }

    #[test]
    fn advice_is_given_once() {
        let cause = || BackendError::new(BackendErrorKind::Permission, "no right");
        let shown = |message| {
            with_sources(
                &BackendError::new(BackendErrorKind::Permission, message).with_source(cause()),
            )
        };
        let general = "grant the user the rights that the backend's documentation lists";
        assert_eq!(shown("refused"), format!("refused; {general}: no right"));
        assert_eq!(shown("refused; grant +scan"), "refused; grant +scan: no right");
        assert_eq!(shown("refused, no right"), format!("refused, no right; {general}"));
        assert_eq!(with_sources(&LockError::from(cause())), format!("no right; {general}"));
    }
}
