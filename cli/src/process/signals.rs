//! [`Signals`]: the signals that are passed on to the command.

use std::{future::poll_fn, io, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

const PASSED_ON: [Signal; 9] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// Listens to signals. They have no other effect on this process from then on.
///
/// One that this process was started to ignore, as `nohup` does with SIGHUP, stays ignored, by the
/// command as well. SIGPIPE is none of these, and the standard library resets it for the command.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let is_heard = |signal: &Signal| {
            *signal == Signal::CONT || ignored & (1 << (signal.as_raw() - 1)) == 0
        };
        let streams = PASSED_ON
            .into_iter()
            .filter(is_heard)
            .map(|number| Ok((number, signal(SignalKind::from_raw(number.as_raw()))?)));
        Ok(Self { streams: streams.collect::<io::Result<_>>()? })
    }

    /// The next signal.
    ///
    /// A SIGTSTP is left out if a SIGCONT has come as well: no other one would end the stop.
    ///
    /// # Cancel safety
    /// If the future is dropped before it resolves, no signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut stop = Poll::Pending;
            // SIGCONT follows SIGTSTP here.
            for (signal, stream) in &mut self.streams {
                match stream.poll_recv(context).is_ready() {
                    true if *signal == Signal::TSTP => stop = Poll::Ready(*signal),
                    true => return Poll::Ready(*signal),
                    false => {}
                }
            }
            stop
        })
        .await
    }

    /// The next signal that ends a process by default. The others have no meaning without a
    /// command, except SIGTSTP, which stops this process unless nobody could continue it.
    ///
    /// # Cancel safety
    /// As for [`next`](Self::next).
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::WINCH | Signal::CONT => {}
                Signal::TSTP => super::stop_unless_orphaned(),
                signal => return signal,
            }
        }
    }
}

/// The signals that this process ignores, one bit each. Only on Linux can they be read without
/// unsafe code.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
