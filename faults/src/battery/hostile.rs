//! #54: a server with unexpected answers.

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, LockError, Locks};
use lockcore_redis::RedisBackend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    protocol::Result,
    report::{Report, Run},
};

/// The answer of the server to a script, and what follows.
#[derive(Clone, Copy)]
struct Answer {
    what: &'static str,
    bytes: &'static [u8],
    closes: bool,
}

const ANSWERS: [Answer; 11] = [
    Answer { what: "a word instead of a list", bytes: b"+OK\r\n", closes: false },
    Answer { what: "nothing", bytes: b"_\r\n", closes: false },
    Answer { what: "an empty list", bytes: b"*0\r\n", closes: false },
    Answer {
        what: "words where numbers should be",
        bytes: b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        closes: false,
    },
    Answer { what: "a token below zero", bytes: b"*2\r\n:1\r\n$2\r\n-5\r\n", closes: false },
    Answer { what: "the head of a huge word", bytes: b"$536870912\r\nx", closes: false },
    Answer { what: "the head of a huge list", bytes: b"*2147483647\r\n", closes: false },
    Answer { what: "an unknown error", bytes: b"-WHATEVER this is\r\n", closes: false },
    Answer {
        what: "no protocol at all",
        bytes: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        closes: false,
    },
    Answer { what: "silence", bytes: b"", closes: false },
    Answer { what: "half of an answer", bytes: b"*2\r\n:1\r\n$16\r\n17000", closes: true },
];

/// #54: the server answers with other types, huge lengths, unknown errors, broken protocol,
/// nothing, half an answer, and a storm of pushes before a good one. Each is a typed error within
/// the timeout; no panic, and no memory is allocated for merely announced data.
pub(super) async fn answers(run: Run) -> Result<Report> {
    let mut report = Report::new(run, &[crate::protocol::Kind::Exclusive]);
    for answer in ANSWERS {
        let before = resident();
        let start = Instant::now();
        let error = ask(answer, Duration::from_secs(1)).await?;
        let took = start.elapsed();
        let grown = resident().saturating_sub(before);
        report
            .failures
            .entry(format!("{error:?}").chars().take(60).collect())
            .and_modify(|count| *count += 1)
            .or_insert(1);
        let what = answer.what;
        match error {
            Some(LockError::Backend(error)) if error.kind() != BackendErrorKind::Configuration => {}
            other => report.findings.push(format!("I9: {what}: {other:?}")),
        }
        if took > Duration::from_secs(3) {
            report.findings.push(format!("I9: {what}: it took {took:?}"));
        }
        if grown > 64_000 {
            report.findings.push(format!("I8: {what}: {grown} kB were taken"));
        }
    }
    let storm: Vec<u8> = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n0\r\n".repeat(20_000);
    let before = resident();
    let good = [&storm, &b"*2\r\n:1\r\n$16\r\n1700000000000000\r\n"[..]].concat();
    // The time that a busy machine may take to read all the irrelevant data.
    let patience = Duration::from_secs(20);
    let granted =
        ask(Answer { what: "a storm of pushes", bytes: good.leak(), closes: false }, patience)
            .await?;
    if granted.is_some() {
        report.findings.push(format!("I8: a storm of pushes: {granted:?}"));
    }
    report.grants += 1;
    report.notes.push(format!("{} kB more after 20,000 pushes", resident().saturating_sub(before)));
    Ok(report)
}

/// Tries to acquire from a server with this answer. Returns the error, if there was one.
async fn ask(answer: Answer, patience: Duration) -> Result<Option<LockError>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://{}", listener.local_addr()?);
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, answer));
        }
    });
    let backend = RedisBackend::builder().url(url).response_timeout(patience).connect().await?;
    let locks = Locks::builder(backend).retry_for(Duration::ZERO).build()?;
    let acquired = locks.lock("hostile").try_acquire().await;
    serving.abort();
    Ok(match acquired {
        Ok(guard) => {
            drop(guard);
            None
        }
        Err(error) => Some(error),
    })
}

/// Greets like a server, and sends `answer` to scripts.
async fn serve(mut stream: TcpStream, answer: Answer) {
    let mut input = [0; 8192];
    while let Ok(length @ 1..) = stream.read(&mut input).await {
        let text = String::from_utf8_lossy(&input[..length]).to_uppercase();
        let mut reply = Vec::new();
        for command in text.split('*').skip(1) {
            if command.contains("\r\nHELLO\r\n") {
                reply.extend_from_slice(
                    b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n",
                );
            } else if command.contains("\r\nINFO\r\n") {
                let info = "role:master\r\nredis_mode:standalone\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";
                reply.extend_from_slice(format!("${}\r\n{info}\r\n", info.len()).as_bytes());
            } else if command.contains("EVAL") {
                reply.extend_from_slice(answer.bytes);
            } else {
                reply.extend_from_slice(b"+OK\r\n");
            }
        }
        if stream.write_all(&reply).await.is_err() || answer.closes && text.contains("EVAL") {
            return;
        }
    }
}

/// The memory of this process, in kB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
