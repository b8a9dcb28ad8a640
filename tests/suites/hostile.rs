//! Servers with wrong answers or none: every call ends in time with a descriptive error, nothing
//! panics, and memory stays bounded. This is a separate binary, because the memory of the process is
//! measured.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may panic: that is how they fail"
)]

#[path = "redis/everything.rs"]
mod everything;

use std::time::{Duration, Instant};

use arbtest::{
    arbitrary::{Arbitrary, Result as Arbitrarily, Unstructured},
    arbtest,
};
use lockcore::{BackendError, BackendErrorKind, LockError, Locks};
use lockcore_redis::RedisBackend;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    sync::RwLock,
    task::JoinSet,
};

use self::everything::{assert_no_panic, call_everything};

/// Far more than the sum of the timeouts below, and far less than a hang.
const IN_TIME: Duration = Duration::from_secs(15);

/// The answer to every request of one kind.
#[derive(Clone, Debug)]
enum Answer {
    /// The answer of a sound server.
    Sound,
    Bytes(Vec<u8>),
    /// The first bytes of this answer, and then a closed connection.
    Cut(Vec<u8>, usize),
    Silence,
    /// This message a number of times, unsolicited.
    Storm(Vec<u8>, usize),
    /// The beginning of an endless answer.
    Flood(&'static str),
}

#[derive(Clone, Debug)]
struct Manners {
    /// The answer to connecting: `HELLO`, `CLIENT`, `INFO`.
    handshake: Answer,
    /// The answer to everything else.
    scripts: Answer,
    subscriptions: Answer,
}

impl Manners {
    fn scripts(answer: Answer) -> Self {
        Self { handshake: Answer::Sound, scripts: answer, subscriptions: Answer::Sound }
    }

    fn of(&self, command: &str) -> &Answer {
        match command {
            "HELLO" | "CLIENT" | "INFO" | "AUTH" | "SELECT" => &self.handshake,
            "SUBSCRIBE" | "UNSUBSCRIBE" | "PING" => &self.subscriptions,
            _ => &self.scripts,
        }
    }
}

/// The answers of a sound server, with which the client gets far enough. The lock is held by a
/// stranger.
fn sound(request: &[String]) -> Vec<u8> {
    match request[0].as_str() {
        "HELLO" => b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec(),
        "INFO" => {
            let info = "role:master\r\nredis_mode:standalone\r\n";
            format!("${}\r\n{info}\r\n", info.len()).into_bytes()
        }
        command @ ("SUBSCRIBE" | "UNSUBSCRIBE") => {
            let kind = command.to_lowercase();
            let confirm = |channel: &String| {
                format!(
                    ">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n",
                    kind.len(),
                    channel.len()
                )
            };
            request[1..].iter().map(confirm).collect::<String>().into_bytes()
        }
        "EVAL" | "EVALSHA" => b"*2\r\n:0\r\n:1000\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// The next request of a client; `None` if it has closed.
async fn request(client: &mut BufReader<OwnedReadHalf>) -> Option<Vec<String>> {
    let parts = number(client).await?;
    let mut request = Vec::new();
    for _ in 0..parts {
        let mut part = vec![0; number(client).await? + 2];
        client.read_exact(&mut part).await.ok()?;
        part.truncate(part.len() - 2);
        request.push(String::from_utf8_lossy(&part).into_owned());
    }
    Some(request)
}

async fn number(client: &mut BufReader<OwnedReadHalf>) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}

/// Serves one client until it closes, or until the answer forces it to.
async fn serve(client: TcpStream, manners: Manners) -> Option<()> {
    let (input, mut output) = client.into_split();
    let mut input = BufReader::new(input);
    loop {
        let request = request(&mut input).await?;
        match manners.of(&request[0]) {
            Answer::Sound => output.write_all(&sound(&request)).await.ok()?,
            Answer::Bytes(bytes) => output.write_all(bytes).await.ok()?,
            Answer::Cut(bytes, length) => {
                output.write_all(&bytes[..*length]).await.ok()?;
                return None;
            }
            Answer::Silence => {}
            Answer::Storm(bytes, times) => {
                for _ in 0..*times {
                    output.write_all(bytes).await.ok()?;
                }
                output.write_all(&sound(&request)).await.ok()?;
            }
            Answer::Flood(beginning) => {
                output.write_all(beginning.as_bytes()).await.ok()?;
                loop {
                    output.write_all(&[b'0'; 1 << 16]).await.ok()?;
                }
            }
        }
    }
}

/// Starts a server, which ends with the runtime. Returns its URL.
async fn server(manners: Manners) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://127.0.0.1:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, manners.clone()));
        }
    });
    url
}

async fn connect(url: &str) -> Result<Locks, BackendError> {
    let backend = RedisBackend::builder()
        .url(url)
        .response_timeout(Duration::from_millis(100))
        .connect_timeout(Duration::from_millis(200));
    let locks = Locks::builder(backend.connect().await?)
        .lease(Duration::from_millis(300))
        .queue_timeout(Duration::from_millis(60))
        .retry_for(Duration::from_millis(100));
    Ok(locks.build().unwrap())
}

/// Runs a client against such a server. Returns the error of connecting, or of all other calls.
async fn meet(manners: Manners) -> Result<Vec<LockError>, BackendError> {
    let start = Instant::now();
    let url = server(manners.clone()).await;
    let met =
        tokio::time::timeout(IN_TIME, async { Ok(call_everything(&connect(&url).await?).await) })
            .await;
    let met = met.unwrap_or_else(|_| panic!("a call has not ended in {IN_TIME:?}: {manners:?}"));
    for error in met.iter().flatten() {
        let text = error.to_string();
        assert!(text.len() < 2000 && !text.contains('\n'), "fit for a log: {text}");
    }
    assert!(start.elapsed() < IN_TIME);
    assert_no_panic();
    met
}

fn kinds(errors: &[LockError]) -> Vec<BackendErrorKind> {
    let kind = |error: &LockError| match error {
        LockError::Backend(error) => Some(error.kind()),
        _ => None,
    };
    errors.iter().filter_map(kind).collect()
}

const WRONG: [&str; 22] = [
    "_\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "+OK\r\n",
    ":0\r\n",
    ":1\r\n",
    ":-9223372036854775808\r\n",
    ",nan\r\n",
    "#t\r\n",
    "%0\r\n",
    "~1\r\n:1\r\n",
    "*2\r\n:1\r\n$1\r\nx\r\n",
    "*2\r\n:0\r\n:9223372036854775807\r\n",
    "*2\r\n:1\r\n:-1\r\n",
    "*1\r\n:2\r\n",
    "*2\r\n:3\r\n:-1\r\n",
    "-ERR what\r\n",
    "-\r\n",
    "-NOSCRIPT no\r\n",
    "!-1\r\n",
    "\0\0\0\0",
];

/// Runs a client against each of them at the same time.
async fn meet_each(
    manners: impl IntoIterator<Item = Manners>,
) -> Vec<Result<Vec<LockError>, BackendError>> {
    let meetings: JoinSet<_> = manners.into_iter().map(meet).collect();
    meetings.join_all().await
}

#[tokio::test]
async fn wrong_answers_are_typed_errors() {
    let _memory = MEASURING.read().await;
    assert_no_panic();
    for met in meet_each(WRONG.map(|wrong| Manners::scripts(Answer::Bytes(wrong.into())))).await {
        assert!(!met.unwrap().is_empty(), "no such server passes for one that keeps locks");
    }
    let errors = meet(Manners::scripts(Answer::Bytes("+what\r\n".into()))).await.unwrap();
    assert!(kinds(&errors).contains(&BackendErrorKind::Protocol), "{errors:?}");
}

#[tokio::test]
async fn wrong_answers_to_connecting_and_to_subscriptions_are_typed_errors() {
    let _memory = MEASURING.read().await;
    assert_no_panic();
    let answers = WRONG.map(|wrong| Answer::Bytes(wrong.into()));
    // Some of these pass for a server with little to report.
    let handshakes =
        answers.clone().map(|handshake| Manners { handshake, ..Manners::scripts(Answer::Sound) });
    meet_each(handshakes).await;
    let subscriptions =
        answers.map(|subscriptions| Manners { subscriptions, ..Manners::scripts(Answer::Sound) });
    for met in meet_each(subscriptions).await {
        met.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_after_any_number_of_bytes_is_an_error_in_time() {
    let _memory = MEASURING.read().await;
    assert_no_panic();
    let answer = b"*2\r\n:1\r\n$16\r\n1790000000000000\r\n".to_vec();
    let cuts =
        (0..=answer.len()).map(|length| Manners::scripts(Answer::Cut(answer.clone(), length)));
    for met in meet_each(cuts).await {
        assert!(!met.unwrap().is_empty());
    }
}

#[tokio::test]
async fn silence_is_an_error_in_time() {
    let _memory = MEASURING.read().await;
    assert_no_panic();
    let errors = meet(Manners::scripts(Answer::Silence)).await.unwrap();
    assert!(kinds(&errors).contains(&BackendErrorKind::Timeout), "{errors:?}");
    drop(
        meet(Manners { subscriptions: Answer::Silence, ..Manners::scripts(Answer::Sound) })
            .await
            .unwrap(),
    );
    let error = meet(Manners { handshake: Answer::Silence, ..Manners::scripts(Answer::Sound) })
        .await
        .unwrap_err();
    assert!(
        matches!(error.kind(), BackendErrorKind::Timeout | BackendErrorKind::Connection),
        "{error}"
    );
}

/// The memory of this process in bytes; `None` where it is unknown.
fn memory() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm");
    let pages = pages.ok().and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// The memory is that of the process, so a test that measures it runs alone.
static MEASURING: RwLock<()> = RwLock::const_new(());

/// Runs a client against such a server, and limits the growth of memory at any time.
async fn meet_within_memory(manners: Manners, limit: usize) {
    let before = memory();
    let mut all = JoinSet::new();
    all.spawn(async { drop(meet(manners).await) });
    let mut most = before;
    while tokio::time::timeout(Duration::from_millis(5), all.join_next()).await.is_err() {
        most = most.max(memory());
    }
    assert!(most - before < limit, "{} MB", (most - before) >> 20);
}

/// A server that was given up is no longer read from, even if nobody makes a call.
#[tokio::test]
async fn a_server_that_goes_on_talking_after_it_was_given_up_is_not_heard() {
    let _memory = MEASURING.write().await;
    assert_no_panic();
    let url = server(Manners::scripts(Answer::Flood("$9223372036854775807\r\n"))).await;
    let locks = connect(&url).await.unwrap();
    locks.lock("a").state().await.unwrap_err();
    let before = memory();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let more = memory().saturating_sub(before);
    assert!(more < 64 << 20, "{} MB", more >> 20);
}

#[tokio::test]
async fn neither_a_storm_of_messages_nor_an_answer_without_end_fills_the_memory() {
    let _memory = MEASURING.write().await;
    assert_no_panic();
    for push in [
        ">3\r\n$7\r\nmessage\r\n$26\r\nredisson_lock__channel:{a}\r\n$1\r\n0\r\n",
        ">2\r\n$10\r\ninvalidate\r\n_\r\n",
        ">0\r\n",
        ">1\r\n+x\r\n",
    ] {
        let storm = Answer::Storm(push.into(), 20_000);
        meet_within_memory(Manners::scripts(storm.clone()), 64 << 20).await;
        meet_within_memory(
            Manners { subscriptions: storm, ..Manners::scripts(Answer::Sound) },
            64 << 20,
        )
        .await;
    }
    for beginning in ["$536870912\r\n", "$9223372036854775807\r\n", "+", "*2147483647\r\n:1\r\n:"] {
        meet_within_memory(Manners::scripts(Answer::Flood(beginning)), 512 << 20).await;
    }
}

/// An arbitrary answer, which may be incomplete.
fn answer(u: &mut Unstructured<'_>) -> Arbitrarily<Answer> {
    let mut bytes = Vec::new();
    for _ in 0..u.int_in_range(1..=4)? {
        match u.int_in_range(0..=5)? {
            0 => bytes.extend(Vec::<u8>::arbitrary(u)?),
            1 => bytes.extend(
                format!(
                    "{}{}\r\n",
                    u.choose(&['*', '%', '>', '|', '~', '$', '!', '='])?,
                    u8::arbitrary(u)?
                )
                .bytes(),
            ),
            _ => bytes.extend(u.choose(&WRONG)?.bytes()),
        }
    }
    let length = u.int_in_range(0..=bytes.len())?;
    Ok(match u.int_in_range(0..=7)? {
        0 | 1 => Answer::Sound,
        2 => Answer::Cut(bytes, length),
        3 => Answer::Silence,
        4 => Answer::Storm(bytes, length),
        _ => Answer::Bytes(bytes),
    })
}

#[test]
fn whatever_a_server_answers_every_call_ends_in_time() {
    let _memory = MEASURING.blocking_read();
    assert_no_panic();
    arbtest(|u| {
        let manners = || {
            Ok(Manners { handshake: answer(u)?, scripts: answer(u)?, subscriptions: answer(u)? })
        };
        let manners: Vec<Manners> =
            std::iter::repeat_with(manners).take(16).collect::<Arbitrarily<_>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(meet_each(manners));
        Ok(())
    });
}
