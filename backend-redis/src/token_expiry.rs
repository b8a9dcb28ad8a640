//! Tests of when the scripts renew the expiry of the last token, on a clock that the test sets.

use std::time::Duration;

use lockcore_testkit::RedisServer;
use redis::{Arg, Cmd};

use crate::script::{self, CallSize, LuaScript};

const KEYS: [&str; 2] = ["lock", "redisson_lock_token:{lock}"];
const DAY: i64 = 86_400_000;

/// Calls the script with the time of the key `clock` in the place of the server's.
async fn call(server: &RedisServer, script: &'static LuaScript, args: &[&str]) {
    let size = CallSize { keys: 0, args: 0, bytes: 0 };
    let source = second_part(&script.command(false, None, size));
    let source = source.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)");
    let command = [&["EVAL", &source, "2"], &KEYS[..], args].concat();
    let _: redis::Value = server.query(&command).await;
}

fn second_part(command: &Cmd) -> String {
    match command.args_iter().nth(1) {
        Some(Arg::Simple(part)) => String::from_utf8(part.to_vec()).unwrap(),
        part => panic!("{part:?}"),
    }
}

/// Acquires and releases the lock every five minutes of two days, in turn with each of the
/// scripts, and with a proposal. Returns the longest time without a new expiry of the token.
async fn longest_without_renewal(scripts: &[&'static LuaScript]) -> Duration {
    const STEP: Duration = Duration::from_secs(300);
    let server = RedisServer::start();
    let (mut kept_for, mut longest) = (Duration::ZERO, Duration::ZERO);
    for step in 0..576 {
        let micros = u64::try_from((STEP * step).as_micros()).unwrap() + 1_790_000_000_000_000;
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        let _: i64 = server.query(&["DEL", "clock", "lock"]).await;
        let _: i64 =
            server.query(&["RPUSH", "clock", &seconds.to_string(), &rest.to_string()]).await;
        let proposed = (micros - 100).to_string();
        let script = scripts[usize::try_from(step).unwrap() % scripts.len()];
        let args: &[&str] = match script.name {
            "batch" => &["0", "1", "30000", "86400000", "1", "owner"],
            // As a member of a quorum is asked.
            _ if std::ptr::eq(script, &script::ACQUIRE) => {
                &["owner", "30000", "1", "86400000", "", "1", "", &proposed]
            }
            _ => &["owner", "30000", &proposed, &proposed],
        };
        call(&server, script, args).await;
        let is_new = server.query::<i64>(&["PTTL", KEYS[1]]).await > DAY / 2;
        kept_for = if is_new { Duration::ZERO } else { kept_for + STEP };
        longest = longest.max(kept_for);
        let _: i64 = server.query(&["PEXPIRE", KEYS[1], &(DAY / 2).to_string()]).await;
    }
    longest
}

#[tokio::test]
async fn the_token_of_a_lock_in_use_has_a_new_expiry_every_three_hours() {
    let [free, batch, alone] = [&script::ACQUIRE_FREE, &script::BATCH, &script::ACQUIRE];
    for scripts in [&[free][..], &[batch], &[alone], &[free, batch, alone]] {
        let longest = longest_without_renewal(scripts).await;
        assert!(longest <= Duration::from_secs(3 * 3600), "{longest:?}");
    }
}
