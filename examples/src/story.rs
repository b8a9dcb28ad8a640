//! [`Story`].

use std::{
    fmt::Display,
    io::Write,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

/// Prints what happens: chapters, and in each of them who did what after how many milliseconds. The
/// time is tokio's, which tests can fast-forward.
#[derive(Debug)]
pub struct Story {
    chapter_began: Mutex<Instant>,
}

impl Story {
    /// Prints what the example is about.
    #[must_use]
    pub fn begin(title: impl Display) -> Self {
        print_line(title);
        Self { chapter_began: Mutex::new(Instant::now()) }
    }

    /// Prints a headline, and restarts the time.
    pub fn chapter(&self, headline: impl Display) {
        print_line(format_args!("\n{headline}"));
        *self.chapter_began.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Prints that `who` just did `what`.
    pub fn tell(&self, who: impl Display, what: impl Display) {
        let began = *self.chapter_began.lock().unwrap_or_else(PoisonError::into_inner);
        print_line(format_args!("{:>7} ms  {who:<9} {what}", began.elapsed().as_millis()));
    }

    /// Adds text to the previous line, on as many lines as it takes.
    pub fn add(&self, text: impl Display) {
        const WIDTH: usize = 80;
        let mut line = String::new();
        for word in text.to_string().split(' ') {
            if !line.is_empty() && line.len() + word.len() >= WIDTH {
                print_line(format_args!("{:23}{line}", ""));
                line.clear();
            }
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
        print_line(format_args!("{:23}{line}", ""));
    }

    /// Prints a line as it is.
    pub fn line(&self, line: impl Display) {
        print_line(line);
    }
}

/// Unlike `println!`, does not panic when the reader has gone, as in `cargo run … | head`.
fn print_line(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
