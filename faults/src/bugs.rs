//! Seeded bugs: that the tests would notice is shown by breaking what they test.
//!
//! Each bug is a few words of the source that are exchanged in a copy of the tree, so that the crates themselves have no switch
//! for it. A bug is caught if the tests that are named for it turn red; one whose words are no longer in the source is an error.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::protocol::{Result, failure};

/// One way to be wrong.
struct Bug {
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The test binary, and which of its tests.
    tests: (&'static str, &'static str),
}

const fn bug(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    tests: (&'static str, &'static str),
) -> Bug {
    Bug { name, file, from, to, tests }
}

const ATTEMPT: &str = "lockcore/src/acquiring/acquisition.rs";
const WAITERS: &str = "lockcore/src/acquiring/waiters/mod.rs";

/// The first twelve are those that every lock library has had; the others are our own.
const BUGS: &[Bug] = &[
    bug(
        "a release deletes the lock, whoever holds it",
        "backend-redis/src/scripts/release.lua",
        "if not count or mode == 'read'",
        "if mode == 'read'",
        ("redis", "conformance::release::"),
    ),
    bug(
        "a grant is not looked at again after the wait for its answer",
        ATTEMPT,
        "if now >= lease::deadline(sent, lease) {",
        "if false {",
        ("suites", "a_reply_that_comes_after_the_lease_is_no_hold"),
    ),
    bug(
        "the deadline is counted from the answer",
        ATTEMPT,
        "        let now = store.clock.now();\n        match answer {",
        "        let now = store.clock.now();\n        let sent = now;\n        match answer {",
        ("suites", "the_deadline_is_counted_from_before_the_request_was_sent"),
    ),
    bug(
        "the deadline leaves no margin for clocks that differ",
        "lockcore/src/leases/lease.rs",
        "sent.after(lease.saturating_sub(lease / 100 + Duration::from_millis(2)))",
        "sent.after(lease)",
        ("lib", "the_deadline_lies_before_the_end_of_the_lease"),
    ),
    bug(
        "a waiter relies on messages and has no timer for the end of the lease",
        ATTEMPT,
        "end.map_or(next, |end| end.min(next))",
        "end.map_or(next, |_| next)",
        ("suites", "the_end_of_a_lease_lets_the_next_one_in"),
    ),
    bug(
        "nobody tries again when the connection for messages is back",
        "backend-redis/src/wakeups.rs",
        "        self.channels.wake_all();\n        Ok(refused)",
        "        Ok(refused)",
        ("redis", "a_waiter_whose_connection_for_wake_ups_was_killed"),
    ),
    bug(
        "a count is added to when a request is repeated",
        "backend-redis/src/scripts/grant.lua",
        "    if count ~= ARGV[3] then\n        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])\n    end",
        "    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)",
        ("redis", "conformance::repetition::"),
    ),
    bug(
        "the watchdog renews nothing but nested holds",
        "lockcore/src/leases/hold.rs",
        "(self.phase == Phase::Live && self.renewed > 0)",
        "(self.phase == Phase::Live && self.renewed > 1)",
        ("suites", "permits_are_renewed"),
    ),
    bug(
        "a hold that the server does not know any more is not reported as lost",
        "lockcore/src/leases/renewal.rs",
        "    hold.gone(store.clock.now());\n",
        "",
        ("suites", "a_renewal_that_finds_nothing_ends_the_hold_at_once"),
    ),
    bug(
        "what a cut-off request has left is not cleared away",
        ATTEMPT,
        "                if !error.is_outcome_unknown() {\n                    unanswered.disarm();\n                }",
        "                unanswered.disarm();",
        ("suites", "an_acquisition_whose_reply_was_lost_leaves_no_hold"),
    ),
    bug(
        "tokens are counted and not kept above the clock, so that they begin anew",
        "backend-redis/src/scripts/token.lua",
        "last >= micros and last + 1 or micros",
        "last + 1",
        ("redis", "a_server_that_comes_back_empty_is_noticed_and_used_again"),
    ),
    bug(
        "a waiter that is cancelled takes its turn with it",
        "lockcore/src/acquiring/waiters/place.rs",
        "                    entry.wakeups = wakeups;\n                }\n                entry.signal_head();",
        "                    entry.wakeups = wakeups;\n                }",
        ("suites", "heads_that_give_up_together_leave_their_subscription_to_the_next"),
    ),
    bug(
        "a stranger nests in the hold of another owner",
        WAITERS,
        "        if !is_lone && let Some(inside) = entry.inside(owner, mode) {",
        "        if let Some(inside) = entry.holds.first().cloned().map(Inside::Nested) {",
        ("redis", "strangers_are_excluded_and_run_nests"),
    ),
    bug(
        "an owner nests across kinds",
        "lockcore/src/mode.rs",
        "Self::Read | Self::Write => Kind::ReadWrite,",
        "Self::Read | Self::Write => Kind::Lock,",
        ("suites", "one_name_is_not_two_kinds_of_lock"),
    ),
    bug(
        "a release tells nobody",
        "backend-redis/src/scripts/release.lua",
        "redis.pcall('PUBLISH', ARGV[3], '0')",
        "local _ = nil",
        ("redis", "conformance::wakeups::"),
    ),
    bug(
        "new readers pass a writer that waits",
        "backend-redis/src/scripts/acquire_read.lua",
        "if waiting and tonumber(waiting) > now then",
        "if false then",
        ("redis", "conformance::writers::"),
    ),
    bug(
        "a downgrade tells nobody",
        "backend-redis/src/scripts/release_read_write.lua",
        "    redis.pcall('PUBLISH', ARGV[3], message)\n    if message == '1' then",
        "    if false then",
        ("redis", "conformance::downgrade::"),
    ),
    bug(
        "a condition is joined after the lock was given up",
        "lockcore/src/sync/condition.rs",
        "        if let Err(error) = waiting.join().await {\n            return Err(WaitError::giving_back(error, guard));\n        }\n        let again = Self::again(&guard);\n        guard.release().await.map_err(WaitError::without_guard)?;\n",
        "        let again = Self::again(&guard);\n        guard.release().await.map_err(WaitError::without_guard)?;\n        waiting.join().await.map_err(WaitError::without_guard)?;\n",
        ("suites", "signals::conditions"),
    ),
    bug(
        "a latch counts a repeated request twice",
        "backend-redis/src/scripts/latch_count_down.lua",
        "if not is_remembered('down') then",
        "if true then",
        ("redis", "conformance::latches::"),
    ),
    bug(
        "a waiter of a fair lock that has died is never passed over",
        "backend-redis/src/scripts/queue.lua",
        "if kept > 0 then",
        "if kept > 0 or waiter then",
        ("redis", "cancelled_and_crashed_waiters"),
    ),
    bug(
        "a renewal shortens a lease",
        "backend-redis/src/scripts/renew_exclusive.lua",
        "    if redis.call('PTTL', lock) < tonumber(lease) then",
        "    if lease then",
        ("redis", "conformance::renewal::"),
    ),
    bug(
        "permits come back although they have ended already",
        "backend-redis/src/scripts/permits.lua",
        "removed = removed + redis.call('ZREM', leases, permit_id(id, i))",
        "redis.call('ZREM', leases, permit_id(id, i))\n        removed = removed + 1",
        ("redis", "permits_whose_lease_is_over_come_back_once"),
    ),
    bug(
        "a hold is handed on although the time for it is over",
        ATTEMPT,
        "since.unwrap_or(sent).after(time)",
        "since.unwrap_or(sent).after(100 * time)",
        ("suites", "hand_over::a_hold_is_given_back_after_its_time"),
    ),
    bug(
        "a hold that is handed on has a lease from its own beginning",
        "lockcore/src/leases/hold.rs",
        "Account::granted(tenure.lease, tenure.sent)",
        "Account::granted(tenure.lease, acquired_at)",
        ("suites", "hand_over::a_hold_that_was_handed_on_is_lost_with_the_lease_of_the_grant"),
    ),
    bug(
        "the tokens of hand-overs are given away again",
        "backend-redis/src/scripts/token.lua",
        "redis.call('SET', KEYS[2], micros + count - 1, 'KEEPTTL')",
        "redis.call('SET', KEYS[2], micros, 'KEEPTTL')",
        ("redis", "conformance::several_tokens::"),
    ),
    bug(
        "what is parked for an heir that does not come stays",
        "lockcore/src/leases/renewal.rs",
        "Phase::Released => unclaimed.extend(ReleaseWork::of_parked(store, &hold, now)),",
        "Phase::Released => {}",
        ("suites", "hand_over::"),
    ),
    bug(
        "an heir takes over what was freed by force",
        "lockcore/src/client.rs",
        "        names.forget_parked(name, ids);\n",
        "",
        ("suites", "hand_over::a_forced_release_ends_what_is_on_its_way_to_the_heir"),
    ),
    bug(
        "a client leaves the lock to nobody, however long it has had it",
        "lockcore/src/acquiring/waiters/entry.rs",
        "outlook.left_until = Some(now.after(COURTESY));",
        "outlook.left_until = None;",
        ("suites", "hand_over::other_clients_get_their_turn"),
    ),
];

/// How long the tests of one bug may take, building included. Those that take longer hang, which is red as well.
const PATIENCE: Duration = Duration::from_secs(300);

/// Breaks a copy of the tree in each way that contains `only`, and returns whether all of them were caught.
pub(crate) fn run(only: &str) -> Result<bool> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or_else(|| failure("no workspace"))?;
    let place = root.join("target/seeded-bugs");
    let tree = copy(root, &place)?;
    let chosen: Vec<&Bug> = BUGS.iter().filter(|bug| bug.name.contains(only)).collect();
    if chosen.is_empty() {
        return Err(failure(format!("no bug is called like `{only}`")));
    }
    build(&tree, &place)?;
    for bug in &chosen {
        if !test(&tree, &place, bug.tests)?.passed {
            return Err(failure(format!("the tests {:?} are red without any bug", bug.tests)));
        }
    }
    println!("{} bugs; without any, the tests that are to catch them are green", chosen.len());
    let mut all_caught = true;
    for (number, bug) in chosen.iter().enumerate() {
        let start = Instant::now();
        let path = tree.join(bug.file);
        let source = fs::read_to_string(&path)?;
        if source.matches(bug.from).count() != 1 {
            return Err(failure(format!(
                "{}: the words of `{}` are not there once",
                bug.file, bug.name
            )));
        }
        fs::write(&path, source.replace(bug.from, bug.to))?;
        let tested = test(&tree, &place, bug.tests);
        fs::write(&path, source)?;
        let tested = tested?;
        let caught = !tested.passed && tested.ran;
        all_caught &= caught;
        let outcome = match (caught, tested.ran) {
            (true, _) => "caught",
            (false, true) => "NOT CAUGHT",
            (false, false) => "DOES NOT COMPILE",
        };
        println!(
            "{:>2} {outcome:<16} {:>4} s  {}",
            number + 1,
            start.elapsed().as_secs(),
            bug.name
        );
    }
    Ok(all_caught)
}

/// Builds all tests once, which may take long, so that only what a bug has changed is built against time.
fn build(tree: &Path, place: &Path) -> Result<()> {
    let mut command = cargo(tree, place);
    command
        .args(["-p", "lockcore", "-p", "lockcore-testkit", "--tests", "--no-run"])
        .stderr(Stdio::null());
    if command.status()?.success() {
        Ok(())
    } else {
        Err(failure("the tests do not compile without any bug"))
    }
}

/// `cargo test` in a copy of the tree, with a target directory beside it.
fn cargo(tree: &Path, place: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(tree).env("CARGO_TARGET_DIR", place.join("build"));
    command.args(["test", "--quiet", "--locked"]);
    command
}

struct Tested {
    passed: bool,
    /// The tests were built, and there was at least one.
    ran: bool,
}

fn test(tree: &Path, place: &Path, (binary, filters): (&str, &str)) -> Result<Tested> {
    let log = place.join("tests.log");
    let mut command = cargo(tree, place);
    command.stdout(fs::File::create(&log)?).stderr(Stdio::null());
    match binary {
        "lib" => command.args(["-p", "lockcore", "--lib", "--"]),
        binary => command.args(["-p", "lockcore-testkit", "--test", binary, "--"]),
    };
    // A group of its own, so that a test that hangs ends with its cargo.
    let mut tests = command.args(filters.split('|')).process_group(0).spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = tests.try_wait()? {
            break status;
        }
        if start.elapsed() > PATIENCE {
            rustix::process::kill_process_group(Pid::from_child(&tests), Signal::KILL)?;
            tests.wait()?;
            return Ok(Tested { passed: false, ran: true });
        }
        thread::sleep(Duration::from_millis(50));
    };
    let text = fs::read_to_string(&log)?;
    let ran = text
        .lines()
        .any(|line| line.starts_with("test result: ") && !line.contains(" 0 passed; 0 failed"))
        || status.code().is_none();
    if status.success() && !ran {
        return Err(failure(format!("no test of `{binary}` is called like {filters}")));
    }
    Ok(Tested { passed: status.success(), ran })
}

/// Copies what belongs to the tree, as git knows it, and returns where to.
fn copy(root: &Path, place: &Path) -> Result<PathBuf> {
    let tree = place.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()?;
    for file in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|file| !file.is_empty())
    {
        let (from, to) = (root.join(file), tree.join(file));
        if let (true, Some(folder)) = (from.is_file(), to.parent()) {
            fs::create_dir_all(folder)?;
            fs::copy(from, to)?;
        }
    }
    Ok(tree)
}
